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
#include <cstdio>
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
  /// Keeps the file, which has been renamed.
  void keep();

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
  bool isKept = false;
};

/// A file that appears under its name when it is complete: it is written beside its place and
/// renamed. A pipe, a terminal or a device is written directly, and a link stays a link.
class WholeFile {
public:
  /// Between a file's name and the number of the process that writes it.
  static constexpr const char *kPartial = ".partial.";

  /// Checks that the file could be written, so that an error comes before the work that makes
  /// the contents.
  static bool check(const std::string &path, std::string &error);

  /// Returns null, with an error that names the file, if it cannot be written.
  static std::unique_ptr<WholeFile> create(const std::string &path, std::string &error);
  ~WholeFile();

  /// After a failure further calls do nothing, and `finish` returns the error.
  void write(const void *data, size_t bytes);
  /// A durable file is on the disk before it gets its name, so that it is whole even after the
  /// machine has lost its power.
  bool finish(std::string &error, bool isDurable = false);

  static bool write(const std::string &path, const std::string &text, std::string &error);

private:
  WholeFile() = default;
  bool fail(int problem, std::string &error) const;

  std::string path, target;
  std::unique_ptr<Temporary> partial;
  FILE *file = nullptr;
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
