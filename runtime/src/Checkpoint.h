//===- Checkpoint.h - the files of a saved state ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A saved state is a folder (docs/checkpoints.md). Each rank writes the boxes of states that it
// holds to a file of its own. An index says where the boxes of each global tensor are, and has their
// checksums. The files of a new state have new names, so the one before stays whole until the new
// index takes the place of its index.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CHECKPOINT_H
#define MESHWRIGHT_RUNTIME_SRC_CHECKPOINT_H

#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshwright::rt {

/// A box of a global tensor.
struct Box {
  std::vector<int64_t> offset, shape;
};

/// Returns the box of a value that is in a rank's part, without padding: at the beginning of the
/// part in each dimension. Returns none if the part is no box of the value.
std::optional<Box> findBox(const ProgramValue &value, int64_t rank);

/// A box in a file.
struct SavedPart {
  std::string state, file;
  Box box;
  std::string hash;
};

/// Writes the files of some ranks, and deletes them again if the saved state does not become whole.
class CheckpointWriter {
public:
  CheckpointWriter(std::string folder, std::string id)
      : folder(std::move(folder)), id(std::move(id)) {}

  /// A new name for the files of a saved state.
  static std::string makeId();
  /// Creates the folder unless it is there.
  static bool createFolder(const std::string &folder, bool &isNew, std::string &error);

  /// Writes the file of a rank: a box of each tensor.
  bool write(int64_t rank, const std::vector<NamedTensor> &tensors, const std::vector<Box> &boxes,
             std::string &error);
  /// The boxes in a file as text, for the process that writes the index.
  static std::string toText(const std::vector<SavedPart> &parts);
  static std::vector<SavedPart> fromText(const std::string &text);
  const std::vector<SavedPart> &getParts(size_t file) const { return parts[file]; }
  /// Puts the index in its place. All files must be written.
  bool finish(const ProgramDescription &description, const std::vector<SavedPart> &all,
              std::string &error);
  /// Keeps the files.
  void keep();

private:
  std::string folder, id;
  std::vector<std::unique_ptr<Temporary>> files;
  /// By file.
  std::vector<std::vector<SavedPart>> parts;
};

/// A saved state that fits a program.
class Checkpoint {
public:
  /// Returns null, with an error that names a file, if the folder has no saved state of the program,
  /// or one that is not whole. Reads all files.
  static std::unique_ptr<Checkpoint> open(const std::string &folder,
                                          const ProgramDescription &description,
                                          std::string &error);

  /// The size of the largest tensor that is not stored in one piece.
  int64_t getScratchBytes() const { return scratchBytes; }
  /// Returns the global tensor of a state, in its file or in `scratch`.
  HostTensor read(const std::string &state, char *scratch) const;

private:
  struct Part {
    Box box;
    const void *data;
  };
  struct Saved {
    DType type;
    std::vector<int64_t> shape;
    std::vector<Part> parts;
  };
  friend class IndexReader;

  std::map<std::string, std::unique_ptr<SafeTensorsFile>> files;
  std::map<std::string, Saved> states;
  int64_t scratchBytes = 0;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CHECKPOINT_H
