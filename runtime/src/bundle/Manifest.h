//===- Manifest.h - the description in a bundle -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFEST_H
#define MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFEST_H

#include "meshwright/runtime/include/Program.h"

#include <map>

namespace meshwright::rt {

/// Files with the parts of all values that are sharded over the same axes: one file for each set
/// of ranks that hold equal parts.
struct WeightGroup {
  /// The axes along which parts differ. If there are none, all ranks share one file.
  mw_rt_axes axes = {};
  /// The size of each file.
  int64_t bytes = 0;
  struct File {
    /// Relative to the bundle.
    std::string name;
    /// Checked only if the user asks for it.
    std::string hash;
  };
  /// The keys are the first ranks that hold a file's parts.
  std::map<int64_t, File> files;

  int64_t getHolder(int64_t rank) const;
};

/// A range of bytes, at the same offset of every file of a group.
struct Stored {
  int64_t group = -1, offset = 0, bytes = 0;
};

/// The file of a bundle that describes its program and its other files.
struct Manifest {
  /// A random id, which all files of the bundle carry.
  std::string id;
  std::string architecture;
  int64_t programBytes = 0;
  std::string programHash;
  /// The files of a kernel in the folder `kernels`: PTX, and machine code if there is some. The
  /// order is that of the description's kernels.
  struct CodeFile {
    int64_t bytes = 0;
    std::string hash;
  };
  struct KernelFiles {
    CodeFile text, binary;
  };
  std::vector<KernelFiles> kernels;
  /// The program's description; its constants and kernels have no data here.
  ProgramDescription description;
  std::vector<WeightGroup> groups;
  /// True if the bundle has weights. If not, a session is given the description's tensors.
  bool hasWeights = true;
  /// Where values are stored: by parameter, by packed weight and by state. The group is -1 for
  /// parameters that are read packed only, for states that begin with one element's value, and for
  /// weights that the bundle does not have.
  std::vector<Stored> parameters, prepared, states;
  /// Where the fixed tensors of the description's `stateDict` are stored. The group is -1 for those
  /// without data.
  std::vector<Stored> fixed;
  /// The indices are an entry and a constant.
  std::vector<std::vector<Stored>> constants;

  std::string toJson() const;
  /// Returns true if the text is a manifest of any version, damaged or not.
  static bool isOne(const std::string &text);
  /// Returns false, with an error, if the text is not a valid manifest of this version.
  static bool parse(const std::string &text, Manifest &manifest, std::string &error);
};

/// A checksum against accidental changes. It detects every change within one word of eight bytes.
class Hash {
public:
  /// Adds data. Only the last piece may end within a word.
  void add(const char *data, int64_t size);
  /// 16 hexadecimal digits.
  std::string get() const;
  uint64_t getBits() const { return state; }

private:
  uint64_t state = 0xcbf29ce484222325;
};

std::string hashOf(const char *data, int64_t size);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_BUNDLE_MANIFEST_H
