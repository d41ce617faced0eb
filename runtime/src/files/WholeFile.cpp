//===- WholeFile.cpp - files written whole or not at all ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/WholeFile.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace meshwright::rt {

//===----------------------------------------------------------------------===//
// Temporary
//===----------------------------------------------------------------------===//

/// Removes a file, or a folder with its contents. Uses system calls only, because a signal
/// handler calls it.
static void removeTree(int folder, const char *name) {
  if (unlinkat(folder, name, 0) == 0 || errno == ENOENT)
    return;
  int inside = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (inside < 0)
    return;
  // Removing an entry while a folder is read may hide later entries, so the folder is read
  // until it is empty. The number of attempts is limited, because some entries cannot be
  // removed.
  bool any = true;
  for (int pass = 0; any && pass < 16; ++pass) {
    any = false;
    lseek(inside, 0, SEEK_SET);
    alignas(dirent64) char buffer[4096];
    long size;
    while ((size = syscall(SYS_getdents64, inside, buffer, sizeof(buffer))) > 0)
      for (long at = 0; at < size;) {
        auto *entry = reinterpret_cast<dirent64 *>(buffer + at);
        at += entry->d_reclen;
        if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0)
          continue;
        any = true;
        removeTree(inside, entry->d_name);
      }
  }
  close(inside);
  unlinkat(folder, name, AT_REMOVEDIR);
}

/// The temporary files, in a form that a signal handler may read. Files beyond this number are
/// not removed by signals; no program has that many.
static std::atomic<const char *> temporaries[64];

void Temporary::removeAll() {
  for (std::atomic<const char *> &entry : temporaries)
    if (const char *path = entry.exchange(nullptr))
      removeTree(AT_FDCWD, path);
}

static void handleEnd(int signal) {
  Temporary::removeAll();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

bool Temporary::isRemoval(const struct sigaction &action) { return action.sa_handler == handleEnd; }

void Temporary::removeOnSignals() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current = {}, ours = {};
    // `nohup` ignores the signal, and some programs handle it themselves.
    if (sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL)
      continue;
    ours.sa_handler = handleEnd;
    sigfillset(&ours.sa_mask);
    sigaction(signal, &ours, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

Temporary::Temporary(std::string given) : path(std::move(given)) {
  for (std::atomic<const char *> &entry : temporaries) {
    const char *none = nullptr;
    if (entry.compare_exchange_strong(none, path.c_str())) {
      isListed = true;
      break;
    }
  }
}

bool Temporary::keep() {
  if (isKept)
    return true;
  isKept = true;
  bool isThere = !isListed;
  for (std::atomic<const char *> &entry : temporaries) {
    const char *own = path.c_str();
    if (entry.compare_exchange_strong(own, nullptr)) {
      isThere = true;
      break;
    }
  }
  return isThere;
}

Temporary::~Temporary() {
  if (isKept)
    return;
  removeTree(AT_FDCWD, path.c_str());
  keep();
}

//===----------------------------------------------------------------------===//
// WholeFile
//===----------------------------------------------------------------------===//

/// Smaller pieces of a file are collected.
static constexpr size_t kBufferBytes = 1 << 16;

/// The target of a link, if it exists.
static std::string follow(const std::string &path) {
  char *real = realpath(path.c_str(), nullptr);
  std::string result = real ? real : path;
  std::free(real);
  return result;
}

std::string folderOf(std::string path) {
  while (path.size() > 1 && path.back() == '/')
    path.pop_back();
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string makeRandomName() {
  std::random_device random;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%08x%08x", random(), random());
  return digits;
}

static bool syncAt(const std::string &path, int flags, std::string &error) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  // Some file systems have nothing to do for a folder, and say so.
  bool isFine = file >= 0 && (fsync(file) == 0 || ((flags & O_DIRECTORY) &&
                                                   (errno == EINVAL || errno == ENOTSUP ||
                                                    errno == ENOSYS)));
  if (!isFine)
    error = path + ": cannot be made permanent: " + std::strerror(errno);
  if (file >= 0)
    close(file);
  return isFine;
}

bool syncFolder(const std::string &folder, std::string &error) {
  return syncAt(folder, O_DIRECTORY, error);
}

bool syncFile(const std::string &path, std::string &error) {
  return syncAt(path, O_NOFOLLOW, error);
}

/// Returns true if the path exists and is no regular file. It is then written directly and not
/// replaced.
static bool isSpecial(const struct stat &status) {
  return !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

bool WholeFile::check(const std::string &path, std::string &error) {
  std::string target = follow(path), folder = folderOf(target);
  struct stat status;
  int problem = 0;
  bool isThere = stat(target.c_str(), &status) == 0;
  // The file is replaced by renaming, so its folder must be writable.
  bool asItIs = isThere && isSpecial(status);
  if (isThere && S_ISDIR(status.st_mode))
    problem = EISDIR;
  else if (access(asItIs ? target.c_str() : folder.c_str(), asItIs ? W_OK : W_OK | X_OK) != 0)
    problem = errno;
  if (problem)
    error = path + ": cannot be written: " + std::strerror(problem);
  return problem == 0;
}

bool WholeFile::fail(int reason, std::string &error) const {
  error = path + ": cannot be written: " + std::strerror(reason);
  return false;
}

std::unique_ptr<WholeFile> WholeFile::create(const std::string &path, std::string &error) {
  std::unique_ptr<WholeFile> whole(new WholeFile());
  whole->path = path;
  whole->target = follow(path);
  struct stat status;
  if (stat(whole->target.c_str(), &status) == 0 && isSpecial(status)) {
    whole->file = open(whole->target.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    std::string name = whole->target + kPartial + makeRandomName();
    whole->partial = std::make_unique<Temporary>(name);
    whole->file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    // Then the name is not that of a file of ours.
    if (whole->file < 0) {
      int problem = errno;
      whole->partial->keep();
      errno = problem;
    }
  }
  if (whole->file >= 0)
    return whole;
  whole->fail(errno, error);
  return nullptr;
}

WholeFile::~WholeFile() {
  if (file >= 0)
    close(file);
}

void WholeFile::writeAll(const char *data, size_t bytes) {
  while (problem == 0 && bytes > 0) {
    ssize_t written = ::write(file, data, bytes);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      problem = written < 0 && errno ? errno : EIO;
    else
      data += written, bytes -= written;
  }
}

void WholeFile::write(const void *data, size_t bytes) {
  if (bytes == 0)
    return;
  if (buffer.size() + bytes > kBufferBytes) {
    writeAll(buffer.data(), buffer.size());
    buffer.clear();
  }
  if (bytes > kBufferBytes)
    writeAll(static_cast<const char *>(data), bytes);
  else
    buffer.append(static_cast<const char *>(data), bytes);
}

bool WholeFile::complete(std::string &error, bool isDurable) {
  writeAll(buffer.data(), buffer.size());
  buffer.clear();
  if (problem == 0 && partial && isDurable && fsync(file) != 0)
    problem = errno;
  // Closing may fail, too.
  if (close(file) != 0 && problem == 0)
    problem = errno;
  file = -1;
  return problem == 0 || fail(problem, error);
}

bool WholeFile::place(std::string &error) {
  if (!partial)
    return true;
  // From here on no signal deletes the file: it may have its name already.
  if (!partial->keep())
    return fail(EINTR, error);
  if (std::rename(partial->getPath().c_str(), target.c_str()) == 0)
    return true;
  problem = errno;
  unlink(partial->getPath().c_str());
  return fail(problem, error);
}

bool WholeFile::finish(std::string &error, bool isDurable) {
  struct stat status;
  isDurable |= partial && stat(target.c_str(), &status) == 0;
  return complete(error, isDurable) && place(error) &&
         (!isDurable || !partial || syncFolder(folderOf(target), error));
}

bool WholeFile::write(const std::string &path, const std::string &text, std::string &error) {
  std::unique_ptr<WholeFile> file = create(path, error);
  if (!file)
    return false;
  file->write(text.data(), text.size());
  return file->finish(error);
}

//===----------------------------------------------------------------------===//
// Command lines
//===----------------------------------------------------------------------===//

/// Follows links, so that all paths of one file become the same path.
static fs::path resolve(const std::string &path) {
  std::error_code code;
  fs::path whole = fs::absolute(path, code);
  // This includes a link whose target does not exist yet, which weakly_canonical takes for a
  // file.
  for (int hops = 0; hops < 40 && fs::is_symlink(fs::symlink_status(whole, code)); ++hops)
    whole = whole.parent_path() / fs::read_symlink(whole, code);
  fs::path file = fs::weakly_canonical(whole, code);
  return code ? whole : file;
}

bool checkDistinct(const std::vector<NamedPath> &written, const std::vector<NamedPath> &read,
                   std::string &error) {
  std::vector<std::pair<const NamedPath *, fs::path>> taken;
  for (const NamedPath &file : read)
    if (!file.path.empty())
      taken.emplace_back(&file, resolve(file.path));
  for (const NamedPath &file : written) {
    std::error_code code;
    if (file.path.empty() || fs::is_other(fs::status(file.path, code)))
      continue;
    fs::path place = resolve(file.path);
    for (const auto &[other, known] : taken) {
      auto [rest, within] = std::mismatch(known.begin(), known.end(), place.begin(), place.end());
      if (rest != known.end())
        continue;
      bool isOne = within == place.end();
      error = (isOne ? other->name + " and " + file.name + " are one file"
                     : file.name + " is inside " + other->name) +
              ", '" + file.path + "'";
      return false;
    }
    taken.emplace_back(&file, std::move(place));
  }
  return true;
}

bool finishOutput(std::string &error) {
  // An earlier write may have failed even if this flush succeeds.
  bool failed = std::ferror(stdout);
  if (std::fflush(stdout) != 0)
    error = std::string("standard output cannot be written: ") + std::strerror(errno);
  else if (failed)
    error = "standard output cannot be written";
  return error.empty();
}

} // namespace meshwright::rt
