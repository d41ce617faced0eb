//===- FolderLock.h - one process that changes a folder ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_FILES_FOLDERLOCK_H
#define MESHWRIGHT_RUNTIME_SRC_FILES_FOLDERLOCK_H

#include <memory>
#include <string>

namespace meshwright::rt {

/// A lock that one session at a time holds on a folder, so that it alone changes the files there.
///
/// - It is a lock of the kernel on a file of the folder, so it ends with its process. A file that a
///   killed process left behind locks nothing.
/// - The file has the number and the host of the process, for the error of another one.
/// - No signal deletes the file, since another process could then take a new one while this process
///   still writes.
/// - A file system may have no locks: then the folder is not locked.
class FolderLock {
public:
  /// Returns null, with an error that names the other process, if the folder is locked or the file
  /// cannot be made.
  static std::unique_ptr<FolderLock> take(const std::string &folder, std::string &error);
  ~FolderLock();
  FolderLock(const FolderLock &) = delete;

  /// Returns false on a file system without locks.
  bool isHeld() const { return hasLock; }
  /// Returns false, with an error, if another program has deleted the file of the lock: another session
  /// may have a new one.
  bool check(std::string &error) const;

private:
  FolderLock() = default;

  std::string path;
  int file = -1;
  bool hasLock = false;
};

/// The file of the lock.
inline constexpr const char *kLockFile = "checkpoint.lock";

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_FILES_FOLDERLOCK_H
