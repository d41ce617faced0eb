//===- Manifest.h - what a bundle says of itself ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_MANIFEST_H
#define MESHWRIGHT_RUNTIME_SRC_MANIFEST_H

#include "meshwright/runtime/include/Program.h"

#include <map>

namespace meshwright::rt {

/// Files with the parts of values that lie alike on the ranks: one for each set of
/// ranks that hold the same.
struct WeightGroup {
  /// Along which the parts differ; none: one file for all.
  mw_rt_axes axes = {};
  /// Of each file.
  int64_t bytes = 0;
  struct File {
    /// Relative to the bundle.
    std::string name;
    /// Looked at on demand.
    std::string hash;
  };
  /// By their first ranks.
  std::map<int64_t, File> files;

  int64_t getHolder(int64_t rank) const;
};

/// Where bytes lie, in the same place of every file of a group.
struct Stored {
  int64_t group = -1, offset = 0, bytes = 0;
};

struct Manifest {
  /// Drawn at random: files of one bundle have the same.
  std::string id;
  std::string architecture;
  int64_t programBytes = 0;
  std::string programHash;
  /// Constants have no data here.
  ProgramDescription description;
  std::vector<WeightGroup> groups;
  /// By argument (inputs have none), by packed parameter, by constant.
  std::vector<Stored> arguments, prepared, constants;

  std::string toJson() const;
  /// Whether the text is a manifest, of any version and damaged or not.
  static bool isOne(const std::string &text);
  /// False, with an error, where the text is not a manifest of this version.
  static bool parse(const std::string &text, Manifest &manifest, std::string &error);
};

/// Finds changes by accident; any in a single word of eight bytes.
class Hash {
public:
  /// All pieces but the last are whole words.
  void add(const char *data, int64_t size);
  /// 16 hexadecimal digits.
  std::string get() const;

private:
  uint64_t state = 0xcbf29ce484222325;
};

std::string hashOf(const char *data, int64_t size);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_MANIFEST_H
