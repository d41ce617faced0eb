//===- MappedFile.cpp - files mapped into memory --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/MappedFile.h"

#include "meshwright/runtime/include/WholeFile.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace meshwright::rt {

namespace {
/// A mapping in a list that a signal handler may read. Entries are reused and never freed.
struct Mapping {
  std::atomic<const char *> data{nullptr};
  std::atomic<int64_t> size{0};
  std::atomic<const char *> path{nullptr};
  std::atomic<bool> isUsed{false};
  Mapping *next = nullptr;
};
} // namespace

static std::atomic<Mapping *> mappings{nullptr};
static const char *programName = "";

static void enter(const char *data, int64_t size, const char *path) {
  Mapping *mapping = mappings;
  while (mapping && mapping->isUsed.exchange(true))
    mapping = mapping->next;
  if (!mapping) {
    mapping = new Mapping;
    mapping->isUsed = true;
    mapping->next = mappings;
    while (!mappings.compare_exchange_weak(mapping->next, mapping)) {
    }
  }
  mapping->path = path;
  mapping->size = size;
  mapping->data = data;
}

static void leave(const char *data) {
  for (Mapping *mapping = mappings; mapping; mapping = mapping->next)
    if (mapping->data == data) {
      mapping->data = nullptr;
      mapping->isUsed = false;
      return;
    }
}

static void say(const char *text) {
  // An error of this write cannot be handled.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

static void handleBusError(int, siginfo_t *info, void *) {
  auto *address = static_cast<const char *>(info->si_addr);
  // A signal that another process sent has no address.
  bool isFault = info->si_code > 0;
  for (Mapping *mapping = mappings; isFault && mapping; mapping = mapping->next) {
    const char *data = mapping->data;
    if (!data || address < data || address >= data + mapping->size)
      continue;
    say(programName);
    say(": error: ");
    say(mapping->path);
    say(": cannot be read any more: it was cut or its disk failed while the program ran\n");
    Temporary::removeAll();
    _exit(1);
  }
  // The address is in none of our files: act as if there were no handler.
  std::signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

void MappedFile::reportLostFiles(const char *program) {
  programName = program;
  struct sigaction action = {};
  action.sa_sigaction = handleBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string &path, std::string &error) {
  // Opening a pipe must not wait for a writer.
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    error = path + ": " + std::strerror(errno);
    return nullptr;
  }
  std::shared_ptr<MappedFile> result(new MappedFile());
  result->path = path;
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    error = path + ": not a file";
    close(file);
    return nullptr;
  }
  result->size = status.st_size;
  if (result->size > 0) {
    void *mapped = mmap(nullptr, result->size, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
      error = path + ": " + std::strerror(errno);
      close(file);
      return nullptr;
    }
    result->data = static_cast<const char *>(mapped);
    enter(result->data, result->size, result->path.c_str());
  }
  close(file);
  return result;
}

MappedFile::~MappedFile() {
  if (!data)
    return;
  leave(data);
  munmap(const_cast<char *>(data), size);
}

} // namespace meshwright::rt
