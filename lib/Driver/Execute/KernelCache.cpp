//===- KernelCache.cpp - compiled kernels on disk -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelCache.h"

#include "meshwright-c/Runtime.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/BLAKE3.h"
#include "llvm/Support/CachePruning.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

#include <cstdlib>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace llvm;

namespace meshwright {

/// The prefix of all files. LLVM's pruning deletes only files with it.
static constexpr StringLiteral kPrefix = "llvmcache-";

//===----------------------------------------------------------------------===//
// Keys
//===----------------------------------------------------------------------===//

/// The linker's hash of this library. Another build may lower kernels differently.
static std::string readBuildId() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *data) -> int {
        auto &id = *static_cast<std::string *>(data);
        auto self = reinterpret_cast<uintptr_t>(&readBuildId);
        bool isOurs = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto &header = info->dlpi_phdr[i];
          uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          isOurs |= header.p_type == PT_LOAD && self >= begin && self < begin + header.p_memsz;
        }
        if (!isOurs)
          return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto &header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE)
            continue;
          auto *at = reinterpret_cast<const char *>(info->dlpi_addr + header.p_vaddr);
          const char *end = at + header.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            auto *note = reinterpret_cast<const ElfW(Nhdr) *>(at);
            const char *name = at + sizeof(*note);
            const char *value = name + alignTo(note->n_namesz, 4);
            if (note->n_type == NT_GNU_BUILD_ID &&
                StringRef(name, note->n_namesz) == StringRef("GNU\0", 4))
              id.assign(value, note->n_descsz);
            at = value + alignTo(note->n_descsz, 4);
          }
        }
        return 1;
      },
      &id);
  return id;
}

static const std::string &getBuildId() {
  static const std::string id = readBuildId();
  return id;
}

/// Returns true if only this user, or root, can put files into a folder: it is theirs, and neither its
/// group nor others may write there. Nor may others put another folder in its place, or in that of one
/// of the folders above.
static bool isPrivate(StringRef folder) {
  SmallString<128> real;
  if (sys::fs::real_path(folder, real))
    return false;
  for (StringRef at = real; !at.empty(); at = sys::path::parent_path(at)) {
    bool isAbove = at.size() < real.size();
    struct stat status;
    if (stat(at.str().c_str(), &status) != 0 ||
        (status.st_uid != geteuid() && status.st_uid != 0))
      return false;
    // In a sticky folder a user cannot rename the folders of others.
    mode_t others = isAbove ? S_IWOTH : S_IWGRP | S_IWOTH;
    if ((status.st_mode & others) != 0 && !(isAbove && (status.st_mode & S_ISVTX)))
      return false;
  }
  return true;
}

KernelCache::KernelCache() {
  // Without it, builds could not tell their kernels apart.
  if (getBuildId().empty())
    return;
  SmallString<128> path;
  if (const char *given = std::getenv("MESHWRIGHT_CACHE"); given && *given) {
    if (StringRef(given) == "off")
      return;
    path = given;
  } else if (const char *caches = std::getenv("XDG_CACHE_HOME"); caches && *caches) {
    sys::path::append(path, caches, "meshwright", "kernels");
  } else if (const char *home = std::getenv("HOME"); home && *home) {
    sys::path::append(path, home, ".cache", "meshwright", "kernels");
  } else {
    return;
  }
  // A kernel is code that runs in this process.
  if (!sys::fs::create_directories(path, /*IgnoreExisting=*/true, sys::fs::owner_all) &&
      isPrivate(path))
    folder = path.str().str();
}

std::string KernelCache::getKey(StringRef text, StringRef target) {
  BLAKE3 hasher;
  auto add = [&](StringRef part) {
    uint64_t size = part.size();
    hasher.update(ArrayRef(reinterpret_cast<uint8_t *>(&size), sizeof(size)));
    hasher.update(part);
  };
  add(getBuildId());
  add(LLVM_VERSION_STRING);
  add(std::to_string(MW_RT_ABI_VERSION));
  add(target);
  add(text);
  BLAKE3Result<20> result = hasher.final<20>();
  return toHex(result, /*LowerCase=*/true);
}

//===----------------------------------------------------------------------===//
// Files: the code's hash, then the code
//===----------------------------------------------------------------------===//

static std::string getPath(StringRef folder, StringRef key) {
  SmallString<128> path(folder);
  sys::path::append(path, kPrefix + key);
  return path.str().str();
}

std::optional<ObjectCode> KernelCache::find(StringRef key) const {
  if (!isOn())
    return std::nullopt;
  std::string path = getPath(folder, key);
  auto buffer = MemoryBuffer::getFile(path, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!buffer || (*buffer)->getBufferSize() < 8)
    return std::nullopt;
  StringRef object = (*buffer)->getBuffer().drop_front(8);
  if (support::endian::read64le((*buffer)->getBufferStart()) !=
      xxh3_64bits(arrayRefFromStringRef(object)))
    return std::nullopt;
  // Sets the time of access, which some mounts do not keep. Pruning depends on it.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return object.str();
}

void KernelCache::insert(StringRef key, const ObjectCode &object) const {
  if (!isOn())
    return;
  // The prefix lets pruning delete files of processes that were killed.
  SmallString<128> model(folder), partial;
  sys::path::append(model, kPrefix + "partial-%%%%%%%%%%%%");
  int file = -1;
  if (sys::fs::createUniqueFile(model, file, partial))
    return;
  raw_fd_ostream os(file, /*shouldClose=*/true);
  char hash[8];
  support::endian::write64le(hash, xxh3_64bits(arrayRefFromStringRef(object)));
  os.write(hash, sizeof(hash));
  os << object;
  os.close();
  // After an error, such as a full disk, the kernel is compiled again next time.
  bool isWhole = !os.has_error();
  os.clear_error();
  if (!isWhole || sys::fs::rename(partial, getPath(folder, key)))
    sys::fs::remove(partial);
}

void KernelCache::prune() const {
  if (!isOn())
    return;
  CachePruningPolicy policy;
  policy.Interval = std::chrono::hours(1);
  policy.Expiration = std::chrono::hours(24 * 30);
  policy.MaxSizePercentageOfAvailableSpace = 50;
  policy.MaxSizeBytes = uint64_t(1) << 30;
  pruneCache(folder, policy);
}

} // namespace meshwright
