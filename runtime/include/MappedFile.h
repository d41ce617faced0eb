//===- MappedFile.h - files read where they lie -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_MAPPEDFILE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_MAPPEDFILE_H

#include <cstdint>
#include <memory>
#include <string>

namespace meshwright::rt {

/// A file in memory, for reading.
class MappedFile {
public:
  /// Null, with an error that names the file.
  static std::shared_ptr<MappedFile> open(const std::string &path, std::string &error);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;

  const char *getData() const { return data; }
  int64_t getSize() const { return size; }
  const std::string &getPath() const { return path; }

  /// A file that is cut after it was mapped has nothing to read: the system sends
  /// SIGBUS. From here on the process then says which file it was, removes its
  /// temporary files, and exits with 1. For programs, not for libraries: a handler
  /// belongs to the whole process.
  static void reportLostFiles(const char *program);

private:
  MappedFile() = default;
  std::string path;
  const char *data = nullptr;
  int64_t size = 0;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_MAPPEDFILE_H
