//===- Rendezvous.cpp - Memory that the ranks of a communicator share -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "nccl/Rendezvous.h"

#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace fakegpu::nccl {
namespace {

constexpr size_t kControl = size_t(1) << 20, kRegion = size_t(2) << 30;
static_assert(sizeof(Control) <= kControl);

/// Memory is faster than a disk, but containers often have little of it here.
const char *folder() {
  struct statvfs info;
  bool roomy = !statvfs("/dev/shm", &info) && uint64_t(info.f_bavail) * info.f_frsize > uint64_t(512) << 20;
  return roomy ? "/dev/shm/" : "/tmp/";
}

const char *nameOf(ncclDataType_t type) {
  switch (type) {
  case ncclInt8: return "int8";
  case ncclUint8: return "uint8";
  case ncclInt32: return "int32";
  case ncclUint32: return "uint32";
  case ncclInt64: return "int64";
  case ncclUint64: return "uint64";
  case ncclFloat16: return "float16";
  case ncclFloat32: return "float32";
  case ncclFloat64: return "float64";
  case ncclBfloat16: return "bfloat16";
  default: return "an unknown type";
  }
}

} // namespace

size_t sizeOf(ncclDataType_t type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 0;
  }
}

const char *Operation::call() const {
  static const char *const names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
                                      "ncclAlltoAll", "ncclGather", "ncclScatter", "ncclSend", "ncclRecv"};
  return names[kind];
}

std::string Operation::text() const {
  static const char *const reductions[] = {"sum", "prod", "max", "min", "avg"};
  std::string text = call();
  text += " of " + std::to_string(count) + " " + nameOf(type);
  if (reduces())
    text += std::string(" by ") + reductions[reduction];
  if (kind == Send || kind == Receive)
    text += (kind == Send ? " to rank " : " from rank ") + std::to_string(peer);
  else if (kind == Reduce || kind == Broadcast || kind == Gather || kind == Scatter)
    text += " with root " + std::to_string(peer);
  return text;
}

std::string uniqueName() {
  std::random_device random;
  char text[64];
  snprintf(text, sizeof text, "fakegpu-nccl-%d-%08x%08x", int(getpid()), random(), random());
  return text;
}

std::unique_ptr<Rendezvous> Rendezvous::open(const std::string &name, unsigned ranks) {
  auto r = std::make_unique<Rendezvous>();
  r->path = folder() + name;
  r->ranks = ranks;
  r->file = ::open(r->path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  size_t size = kControl + ranks * 3 * kRegion;
  if (r->file < 0 || ftruncate(r->file, off_t(size)))
    return nullptr;
  void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, r->file, 0);
  if (at == MAP_FAILED)
    return nullptr;
  r->base = static_cast<char *>(at); // zeros: the initial state of each field
  return r;
}

Rendezvous::~Rendezvous() {
  if (base)
    munmap(base, kControl + ranks * 3 * kRegion);
  if (file >= 0)
    close(file);
}

void Rendezvous::removeName() { unlink(path.c_str()); }

char *Rendezvous::region(unsigned rank, unsigned which) { return base + kControl + (rank * 3 + which) * kRegion; }

bool Rendezvous::reserve(const char *at, size_t bytes) {
  return bytes <= kRegion && (bytes == 0 || !posix_fallocate(file, off_t(at - base), off_t(bytes)));
}

} // namespace fakegpu::nccl
