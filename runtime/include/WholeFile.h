//===- WholeFile.h - files written whole or not at all ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_WHOLEFILE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_WHOLEFILE_H

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshwright::rt {

/// A file or folder that is deleted with its contents when this object is destroyed, unless
/// `keep` was called.
class Temporary {
public:
  explicit Temporary(std::string path);
  ~Temporary();
  Temporary(const Temporary &) = delete;

  const std::string &getPath() const { return path; }
  /// Keeps the file. Returns false if a signal has deleted it, or is about to: the process ends.
  bool keep();

  /// From this call on, SIGINT, SIGTERM and SIGHUP delete all temporary files before they end the
  /// process, and a file that exceeds the size limit is an error instead of a signal. Only a
  /// program calls this, never a library: a handler belongs to the whole process.
  static void removeOnSignals();
  /// Deletes all temporary files now. Uses system calls only, so that a signal handler may call
  /// it.
  static void removeAll();
  /// Returns true if this action is the one that `removeOnSignals` installed. A handler that
  /// replaces it must pass the signal on.
  static bool isRemoval(const struct sigaction &action);

private:
  std::string path;
  bool isKept = false, isListed = false;
};

/// 16 hexadecimal digits that no other process guesses.
std::string makeRandomName();

/// Makes the names in a folder permanent: files that were created, renamed or deleted there stay so
/// after the machine has lost its power. Does nothing on a file system that cannot do it.
bool syncFolder(const std::string &folder, std::string &error);
/// Makes a file's contents permanent.
bool syncFile(const std::string &path, std::string &error);

/// The folder of a file or of another folder.
std::string folderOf(std::string path);

/// A file that appears under its name when it is complete: it is written beside its place and
/// renamed. A pipe, a terminal or a device is written directly, and a link stays a link.
///
/// - The name beside the place is random, and the file is new: it is no link of another user.
/// - A file that replaces another is on the disk before it takes the name, so after the machine has
///   lost its power there is the one or the other.
class WholeFile {
public:
  /// Between a file's name and the random digits of one that is not complete.
  static constexpr const char *kPartial = ".partial.";

  /// Checks that the file could be written, so that an error comes before the work that makes
  /// the contents.
  static bool check(const std::string &path, std::string &error);

  /// Returns null, with an error that names the file, if it cannot be written.
  static std::unique_ptr<WholeFile> create(const std::string &path, std::string &error);
  ~WholeFile();

  /// After a failure further calls do nothing, and `finish` returns the error.
  void write(const void *data, size_t bytes);
  /// The same as `complete`, `place` and, for a durable file, `syncFolder`.
  bool finish(std::string &error, bool isDurable = false);

  /// Ends the contents. Those of a durable file are then on the disk.
  bool complete(std::string &error, bool isDurable);
  /// Gives the file its name, in one step. It is the last one that may fail before the name is
  /// that of the new file.
  bool place(std::string &error);

  static bool write(const std::string &path, const std::string &text, std::string &error);

private:
  WholeFile() = default;
  bool fail(int problem, std::string &error) const;
  void writeAll(const char *data, size_t bytes);

  std::string path, target;
  std::unique_ptr<Temporary> partial;
  int file = -1;
  /// Bytes that are not written yet.
  std::string buffer;
  int problem = 0;
};

/// A file of the command line and the name of its option, or "the model". The path is empty if
/// the option is not given.
struct NamedPath {
  std::string name, path;
};

/// Checks that no file is written twice, that no written file is also read, and that none is
/// written into a folder that is read. Devices and pipes may be named any number of times.
/// Returns false, with an error, if a check fails.
bool checkDistinct(const std::vector<NamedPath> &written, const std::vector<NamedPath> &read,
                   std::string &error);

/// Flushes standard output. Returns false, with an error, if a write failed.
bool finishOutput(std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WHOLEFILE_H
