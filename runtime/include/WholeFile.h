//===- WholeFile.h - what is written whole or not at all --------*- C++ -*-===//
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

/// A file or folder that goes, with all that is in it, unless it is kept.
class Temporary {
public:
  explicit Temporary(std::string path);
  ~Temporary();
  Temporary(const Temporary &) = delete;

  const std::string &getPath() const { return path; }
  /// It has another name now.
  void keep();

  /// From here on those there are go when SIGINT, SIGTERM or SIGHUP ends the
  /// process, and a file that gets too large is an error, no signal. For programs,
  /// not for libraries: a handler belongs to the whole process.
  static void removeOnSignals();
  /// They go now, by system calls only: for signal handlers that end the process.
  static void removeAll();
  /// Whether this is what a signal does since then: who takes its place passes on to it.
  static bool isRemoval(const struct sigaction &action);

private:
  std::string path;
  bool isKept = false;
};

/// A file that appears under its name when all of it is there: it is written
/// beside its place and renamed. What is there and no file (a pipe, a terminal,
/// /dev/null) is written as it is, and a link stays one.
class WholeFile {
public:
  /// Whether one could be written, before there is anything to write: an error
  /// comes before the work and not after it.
  static bool check(const std::string &path, std::string &error);

  /// Null, with an error that names the file.
  static std::unique_ptr<WholeFile> create(const std::string &path, std::string &error);
  ~WholeFile();

  /// After a failure the next ones do nothing, and `finish` says why.
  void write(const void *data, size_t bytes);
  bool finish(std::string &error);

  static bool write(const std::string &path, const std::string &text, std::string &error);

private:
  WholeFile() = default;
  bool fail(int problem, std::string &error) const;

  std::string path, target;
  std::unique_ptr<Temporary> partial;
  FILE *file = nullptr;
  int problem = 0;
};

/// A file, and how the command line knows it: by an option, or as "the model". Without
/// a path it is none.
struct NamedPath {
  std::string name, path;
};

/// Whether nothing is written twice, where only the later would be left, nor over what
/// is read or into a folder that is. Devices and pipes take any number. Else why not.
bool checkDistinct(const std::vector<NamedPath> &written, const std::vector<NamedPath> &read,
                   std::string &error);

/// Whether standard output took all that was printed; else why not.
bool finishOutput(std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WHOLEFILE_H
