//===- FolderLock.cpp - one process that changes a folder -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The lock is one of fcntl, because a forked process does not inherit it: a worker that outlives its
// parent would go on holding a lock of flock. Such a lock belongs to the process, which would get it
// a second time and lose it with the first file that it closes. So the sessions of a process look
// into a set first.
//
//===----------------------------------------------------------------------===//

#include "FolderLock.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace meshwright::rt {

/// The files of the locks that this process holds, by device and number.
static std::mutex ownMutex;
static std::set<std::pair<dev_t, ino_t>> &getOwn() {
  static auto &own = *new std::set<std::pair<dev_t, ino_t>>;
  return own;
}

static std::string getHost() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

static struct flock wholeFile(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Names the process that holds the lock: by the file, if its number is that of the lock's or the
/// process is on another machine, or else by the lock.
static std::string nameHolder(int file, pid_t locker) {
  char text[HOST_NAME_MAX + 32] = "";
  ssize_t size = pread(file, text, sizeof(text) - 1, 0);
  long long process = 0;
  char host[HOST_NAME_MAX + 1] = "";
  bool isWhole = size > 0 && text[size - 1] == '\n' &&
                 std::sscanf(text, "%lld %64s", &process, host) == 2;
  if (!isWhole || (getHost() == host && locker > 0))
    return "process " + std::to_string(locker) + " on " + getHost();
  return "process " + std::to_string(process) + " on " + host;
}

/// Returns true if a path is that of an open file.
static bool isAt(const std::string &path, int file, struct stat &opened) {
  struct stat there;
  return fstat(file, &opened) == 0 && lstat(path.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

std::unique_ptr<FolderLock> FolderLock::take(const std::string &folder, std::string &error) {
  std::lock_guard<std::mutex> guard(ownMutex);
  std::unique_ptr<FolderLock> lock(new FolderLock());
  lock->path = folder + "/" + kLockFile;
  const char *path = lock->path.c_str();
  auto fail = [&](const std::string &what) {
    error = what;
    if (lock->file >= 0)
      close(lock->file);
    lock->file = -1;
    return nullptr;
  };
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    struct stat there, opened;
    // A file of ours must not be opened a second time: closing it would end the lock.
    if (lstat(path, &there) == 0 && getOwn().count({there.st_dev, there.st_ino}))
      return fail(folder + ": another session of this process saves there");
    lock->file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock->file < 0)
      return fail(lock->path + ": cannot be locked: " + std::strerror(errno));
    struct flock wanted = wholeFile(F_WRLCK);
    if (fcntl(lock->file, F_SETLK, &wanted) != 0) {
      bool isLocked = errno == EACCES || errno == EAGAIN;
      if (!isLocked && errno != ENOLCK && errno != ENOSYS && errno != ENOTSUP && errno != EINVAL)
        return fail(lock->path + ": cannot be locked: " + std::strerror(errno));
      // Without locks, each session removes only the files that its own index replaces.
      if (!isLocked)
        return lock;
      struct flock holder = wholeFile(F_WRLCK);
      if (fcntl(lock->file, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK)
        return fail(folder + ": " + nameHolder(lock->file, holder.l_pid) +
                    " saves there: expected one process at a time");
    } else if (isAt(lock->path, lock->file, opened)) {
      getOwn().insert({opened.st_dev, opened.st_ino});
      lock->hasLock = true;
      break;
    }
    // The other session has ended meanwhile and deleted the file.
    close(lock->file);
    lock->file = -1;
    if (attempt == kAttempts)
      return fail(folder + ": other processes save there: expected one process at a time");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  std::string text = std::to_string(getpid()) + " " + getHost() + "\n";
  // The text is only for errors.
  if (ftruncate(lock->file, 0) == 0)
    [[maybe_unused]] ssize_t written = pwrite(lock->file, text.data(), text.size(), 0);
  return lock;
}

bool FolderLock::check(std::string &error) const {
  struct stat status;
  if (!hasLock || isAt(path, file, status))
    return true;
  error = path + ": deleted by another program during the save";
  return false;
}

FolderLock::~FolderLock() {
  if (file < 0)
    return;
  std::lock_guard<std::mutex> guard(ownMutex);
  struct stat status;
  // While it is locked, so the file is no other session's.
  if (isAt(path, file, status))
    unlink(path.c_str());
  getOwn().erase({status.st_dev, status.st_ino});
  close(file);
}

} // namespace meshwright::rt
