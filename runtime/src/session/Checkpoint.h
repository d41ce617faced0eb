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
// The steps of a save, after each of which all processes agree:
// - `write`: each process writes its files, and makes them and their names permanent.
// - `prepare`: the first process writes the index beside its place.
// - `release`: each process gives up its files. From here on neither a failure nor a signal deletes
//   one, and only the first process changes the folder.
// - `commit`: the first process gives the index its name, makes the name permanent, and deletes the
//   files that no index names any more.
// A process that has not released its files may delete them, because the first one commits only
// after all have.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SESSION_CHECKPOINT_H
#define MESHWRIGHT_RUNTIME_SRC_SESSION_CHECKPOINT_H

#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/WholeFile.h"
#include "meshwright/runtime/src/files/FolderLock.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
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

  /// Creates the folder unless it is there.
  static bool createFolder(const std::string &folder, bool &isNew, std::string &error);

  /// Writes the file of a rank: a box of each tensor. `extras` are written to the first rank's.
  bool write(int64_t rank, std::vector<NamedTensor> tensors, const std::vector<Box> &boxes,
             const SavedExtras &extras, std::string &error);
  /// The boxes in a file as text, for the process that writes the index.
  static std::string toText(const std::vector<SavedPart> &parts);
  static std::vector<SavedPart> fromText(const std::string &text);
  const std::vector<SavedPart> &getParts(size_t file) const { return parts[file]; }

  /// Writes the index beside its place. All files must be written.
  bool prepare(const ProgramDescription &description, const std::vector<SavedPart> &all,
               const SavedExtras &extras, std::string &error);
  /// Gives up the files: the index may name them from now on. Returns false, with an error, if a
  /// signal has deleted one.
  bool release(std::string &error);
  /// Gives the index its name. After a failure the state before is whole, and so is the new one if its
  /// index has the name.
  bool commit(const FolderLock &lock, std::string &error);
  /// Deletes the files of all processes, after `release`, instead of a commit.
  void discard();

private:
  std::string folder, id;
  std::vector<std::unique_ptr<Temporary>> files;
  /// By file.
  std::vector<std::vector<SavedPart>> parts;
  /// The index, and the files that it names.
  std::unique_ptr<WholeFile> index;
  std::set<std::string> named;
};

/// Returns an empty string if the number is a learning rate, finite and not negative, else an error.
std::string checkLearningRate(double rate);

/// The text of the index of a folder.
bool readIndex(const std::string &folder, std::string &text, std::string &error);

/// A saved state that fits a program.
class Checkpoint {
public:
  /// Returns null, with an error that names a file, if the text is no index of a state of the
  /// program, or the state is not whole. Reads all files. Sets `isGone` if a file is not there: a
  /// session may have saved since the index was read.
  static std::unique_ptr<Checkpoint> open(const std::string &folder, const std::string &index,
                                          const ProgramDescription &description, bool &isGone,
                                          std::string &error);

  /// The size of the largest tensor that is not stored in one piece.
  int64_t getScratchBytes() const { return scratchBytes; }
  /// Returns false for a cache of other pages, whose values are of no use.
  bool has(const std::string &state) const { return states.count(state) > 0; }
  /// Returns the global tensor of a state, in its file or in `scratch`.
  HostTensor read(const std::string &state, char *scratch) const;
  const SavedExtras &getExtras() const { return extras; }

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
  SavedExtras extras;
  int64_t scratchBytes = 0;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SESSION_CHECKPOINT_H
