//===- MappedFile.h - files mapped into memory ------------------*- C++ -*-===//
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

/// A file that is mapped into memory for reading.
class MappedFile {
public:
  /// Returns null, with an error that names the file, if it cannot be read.
  static std::shared_ptr<MappedFile> open(const std::string &path, std::string &error);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;

  const char *getData() const { return data; }
  int64_t getSize() const { return size; }
  const std::string &getPath() const { return path; }

  /// Installs a handler for SIGBUS, which the system sends when a mapped file was truncated and
  /// a page behind its end is read. The handler names the file, removes the temporary files of
  /// the process and exits with 1. Only a program calls this, never a library: a handler
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
