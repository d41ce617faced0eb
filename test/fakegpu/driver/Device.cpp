//===- Device.cpp - Memory of devices and of the host ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

namespace fakegpu {
namespace {

constexpr uint64_t kSpace = uint64_t(64) << 30; // addresses of a device
constexpr uint64_t kGranule = 512, kPoisonFile = uint64_t(16) << 20;

/// A file of poison that large allocations map privately, so that they take no memory before they
/// are written.
int poisonFile() {
  static int file = [] {
    int f = memfd_create("fakegpu-poison", 0);
    std::vector<char> bytes(1 << 20, char(0xff));
    for (uint64_t at = 0; f >= 0 && at < kPoisonFile; at += bytes.size())
      if (write(f, bytes.data(), bytes.size()) != ssize_t(bytes.size()))
        return -1;
    return f;
  }();
  return file;
}

void poison(char *at, size_t bytes) {
  constexpr uint64_t kPage = 4096;
  if (bytes >= (8 << 20) && poisonFile() >= 0) {
    auto begin = (reinterpret_cast<uint64_t>(at) + kPage - 1) / kPage * kPage;
    uint64_t end = (reinterpret_cast<uint64_t>(at) + bytes) / kPage * kPage;
    memset(at, 0xff, begin - reinterpret_cast<uint64_t>(at));
    for (uint64_t p = begin; p < end; p += kPoisonFile)
      mmap(reinterpret_cast<void *>(p), std::min(kPoisonFile, end - p), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poisonFile(), 0);
    memset(reinterpret_cast<char *>(end), 0xff, reinterpret_cast<uint64_t>(at) + bytes - end);
    return;
  }
  memset(at, 0xff, bytes);
}

} // namespace

std::vector<std::unique_ptr<Device>> &Device::all() {
  static auto *devices = new std::vector<std::unique_ptr<Device>>; // streams may run at exit
  return *devices;
}

Device *Device::at(int ordinal) {
  return ordinal >= 0 && size_t(ordinal) < all().size() ? all()[size_t(ordinal)].get() : nullptr;
}

Device *Device::of(uint64_t address) {
  for (auto &d : all())
    if (d->base && address >= d->base && address < d->base + kSpace)
      return d.get();
  return nullptr;
}

void Device::open() {
  std::unique_lock<std::shared_mutex> lock(mutex);
  if (base)
    return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *reserved = mmap(nullptr, kSpace, PROT_NONE, flags, -1, 0);
  void *bytes = mmap(nullptr, kSpace, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (reserved == MAP_FAILED || bytes == MAP_FAILED) {
    fprintf(stderr, "fakegpu: cannot reserve addresses for device %d\n", ordinal);
    abort();
  }
  base = reinterpret_cast<uint64_t>(reserved);
  backing = static_cast<char *>(bytes);
  holes[base + (1 << 20)] = kSpace - (2 << 20);
  defaultPool.device = this;
}

Range Device::find(uint64_t address) {
  Device *owner = of(address);
  if (!owner)
    return PinnedMemory::get().find(address);
  if (owner != this) {
    std::lock_guard<std::mutex> lock(primary->mutex);
    if (!owner->primary || !primary->peers.count(owner->primary))
      return {};
  }
  std::shared_lock<std::shared_mutex> lock(owner->mutex);
  auto after = owner->allocations.upper_bound(address);
  if (after == owner->allocations.begin())
    return {};
  auto &[begin, allocation] = *std::prev(after);
  return {begin, begin + allocation.size, owner->backing + (begin - owner->base)};
}

CUresult Device::allocate(size_t bytes, CUdeviceptr *out, CUmemoryPool pool) {
  if (!bytes || !out)
    return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock<std::shared_mutex> lock(mutex);
  if (used + bytes > Settings::get().memory)
    return CUDA_ERROR_OUT_OF_MEMORY;
  // A gap behind each allocation, so that an access behind its end is outside of all.
  uint64_t room = (bytes + kGranule - 1) / kGranule * kGranule + kGranule;
  auto hole = std::find_if(holes.begin(), holes.end(), [&](auto &h) { return h.second >= room; });
  if (hole == holes.end())
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t at = hole->first, left = hole->second - room;
  holes.erase(hole);
  if (left)
    holes[at + room] = left;
  allocations[at] = {bytes, pool};
  used += bytes;
  if (pool) {
    pool->used += bytes;
    pool->usedHigh = std::max(pool->usedHigh.load(), pool->used.load());
  }
  poison(backing + (at - base), bytes);
  *out = at;
  return CUDA_SUCCESS;
}

CUresult Device::release(CUdeviceptr at) {
  std::unique_lock<std::shared_mutex> lock(mutex);
  auto found = allocations.find(at);
  if (found == allocations.end())
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = found->second.size;
  used -= bytes;
  if (found->second.pool)
    found->second.pool->used -= bytes;
  allocations.erase(found);
  uint64_t room = (bytes + kGranule - 1) / kGranule * kGranule + kGranule;
  if (bytes >= (1 << 20)) { // gives the pages back
    constexpr uint64_t kPage = 4096;
    uint64_t begin = (at - base + kPage - 1) / kPage * kPage, end = (at - base + bytes) / kPage * kPage;
    mmap(backing + begin, end - begin, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  auto next = holes.lower_bound(at);
  if (next != holes.end() && next->first == at + room) {
    room += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin() && std::prev(next)->first + std::prev(next)->second == at)
    std::prev(next)->second += room;
  else
    holes[at] = room;
  return CUDA_SUCCESS;
}

void Device::fail(CUresult code, const std::string &what) {
  int none = CUDA_SUCCESS;
  if (error.compare_exchange_strong(none, code))
    fprintf(stderr, "fakegpu: device %d: %s: %s\n", ordinal, errorName(code).c_str(), what.c_str());
}

PinnedMemory &PinnedMemory::get() {
  static auto *memory = new PinnedMemory;
  return *memory;
}

Range PinnedMemory::find(uint64_t address) {
  std::shared_lock<std::shared_mutex> lock(mutex);
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin())
    return {};
  auto &[begin, bytes] = *std::prev(after);
  return {begin, begin + bytes, reinterpret_cast<char *>(begin)};
}

bool PinnedMemory::contains(const void *at, size_t bytes) {
  auto address = reinterpret_cast<uint64_t>(at);
  Range r = find(address);
  return address >= r.begin && address + bytes <= r.end;
}

} // namespace fakegpu

using namespace fakegpu;

FAKEGPU_EXPORT CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total) {
  FAKEGPU_ENTER("cuMemGetInfo", true);
  Device &d = *currentContext()->device;
  std::shared_lock<std::shared_mutex> lock(d.mutex);
  *total = Settings::get().memory;
  *free = *total - d.used;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr *out, size_t bytes) {
  FAKEGPU_ENTER("cuMemAlloc", true);
  return currentContext()->device->allocate(bytes, out, nullptr);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr at) {
  FAKEGPU_ENTER("cuMemFree", true);
  if (!at)
    return CUDA_SUCCESS;
  Device *d = Device::of(at);
  if (!d)
    return CUDA_ERROR_INVALID_VALUE;
  synchronizeContext(d->primary); // as hardware does
  return d->release(at);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *, size_t, unsigned) {
  FAKEGPU_ENTER("cuMemAllocManaged", true);
  return CUDA_ERROR_NOT_SUPPORTED;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
  FAKEGPU_ENTER("cuMemGetAddressRange", true);
  Device *d = Device::of(at);
  Range r = d ? d->find(at) : Range{};
  if (at < r.begin || at >= r.end)
    return CUDA_ERROR_NOT_FOUND;
  if (base)
    *base = r.begin;
  if (size)
    *size = r.end - r.begin;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **out, size_t bytes, unsigned) {
  FAKEGPU_ENTER("cuMemHostAlloc", true);
  void *at = nullptr;
  if (!bytes || posix_memalign(&at, 4096, bytes))
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  memset(at, 0xff, bytes);
  PinnedMemory &p = PinnedMemory::get();
  std::unique_lock<std::shared_mutex> lock(p.mutex);
  p.ranges[reinterpret_cast<uint64_t>(at)] = bytes;
  p.owned.insert(reinterpret_cast<uint64_t>(at));
  *out = at;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemAllocHost(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

FAKEGPU_EXPORT CUresult CUDAAPI cuMemFreeHost(void *at) {
  FAKEGPU_ENTER("cuMemFreeHost", false);
  for (auto &d : Device::all())
    if (d->primary)
      synchronizeContext(d->primary);
  PinnedMemory &p = PinnedMemory::get();
  std::unique_lock<std::shared_mutex> lock(p.mutex);
  if (!p.owned.erase(reinterpret_cast<uint64_t>(at)))
    return CUDA_ERROR_INVALID_VALUE;
  p.ranges.erase(reinterpret_cast<uint64_t>(at));
  free(at);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemHostRegister(void *at, size_t bytes, unsigned) {
  FAKEGPU_ENTER("cuMemHostRegister", true);
  PinnedMemory &p = PinnedMemory::get();
  if (p.contains(at, 1))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  std::unique_lock<std::shared_mutex> lock(p.mutex);
  p.ranges[reinterpret_cast<uint64_t>(at)] = bytes;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *at) {
  FAKEGPU_ENTER("cuMemHostUnregister", true);
  PinnedMemory &p = PinnedMemory::get();
  std::unique_lock<std::shared_mutex> lock(p.mutex);
  if (p.owned.count(reinterpret_cast<uint64_t>(at)) || !p.ranges.erase(reinterpret_cast<uint64_t>(at)))
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *out, void *at, unsigned) {
  FAKEGPU_ENTER("cuMemHostGetDevicePointer", true);
  if (!PinnedMemory::get().contains(at, 1))
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
  FAKEGPU_ENTER("cuPointerGetAttribute", false);
  Device *d = Device::of(at);
  Range r = d ? d->find(at) : PinnedMemory::get().find(at);
  if (at < r.begin || at >= r.end)
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *static_cast<unsigned *>(out) = d ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *static_cast<int *>(out) = d ? d->ordinal : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *static_cast<CUdeviceptr *>(out) = at;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *static_cast<bool *>(out) = false;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *static_cast<CUcontext *>(out) = d ? d->primary : nullptr;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}
