//===- Copy.cpp - Copies, memory set, and memory that is ordered by streams ===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

using namespace fakegpu;

namespace fakegpu {
namespace {

/// Where an address is, if all its bytes are in one allocation of a device or on the host.
struct Place {
  Device *device = nullptr;
  char *host = nullptr;
  bool pinned = false;
};

bool locate(uint64_t address, size_t bytes, Place &place) {
  place.device = Device::of(address);
  if (!place.device) {
    place.host = reinterpret_cast<char *>(address);
    place.pinned = PinnedMemory::get().contains(place.host, bytes);
    return true;
  }
  Range r = place.device->find(address);
  place.host = r.host + (address - r.begin);
  return address >= r.begin && address + bytes <= r.end;
}

double copyTime(size_t bytes, bool host) { return 1500 + double(bytes) / (host ? 50.0 : 2000.0); }

/// An asynchronous copy as CUDA orders it: the source is read and the destination written when the
/// stream gets there. Memory of the host that is not pinned is staged at once when it is read; when
/// it is written, the call waits.
CUresult copy(uint64_t to, uint64_t from, size_t bytes, CUstream s, bool wait) {
  Place source, destination;
  if (!bytes)
    return CUDA_SUCCESS;
  if (!locate(from, bytes, source) || !locate(to, bytes, destination))
    return CUDA_ERROR_INVALID_VALUE;
  if (wait)
    if (CUresult r = forbidDuringCapture(s))
      return r;
  bool host = !source.device || !destination.device;
  if (!source.device && !destination.device && !wait && !s->capture && !destination.pinned)
    wait = true;
  Work work;
  work.kind = Work::Copy;
  std::shared_ptr<std::vector<char>> staged;
  if (!source.device && !source.pinned) {
    if (s->capture)
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    staged = std::make_shared<std::vector<char>>(source.host, source.host + bytes);
  }
  if (!destination.device && !destination.pinned) {
    if (s->capture)
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    wait = true;
  }
  const char *read = staged ? staged->data() : source.host;
  char *write = destination.host;
  bool poisons = destination.pinned && !destination.device;
  bool fromDevice = source.device, toDevice = destination.device;
  work.run = [=] {
    (void)staged;
    if (poisons && source.device)
      memset(write, 0xff, bytes);
    memmove(write, read, bytes);
    if (fromDevice || toDevice)
      Log::get().copied(fromDevice, toDevice, bytes);
    return copyTime(bytes, host);
  };
  if (CUresult r = submit(s, std::move(work)))
    return r;
  if (!wait)
    return CUDA_SUCCESS;
  Log::get().waited();
  s->last()->wait();
  return CUresult(s->context->device->error.load());
}

template <typename T> CUresult set(CUdeviceptr to, T value, size_t count, CUstream s, bool wait) {
  Place place;
  if (!count)
    return CUDA_SUCCESS;
  if (to % sizeof(T) || !locate(to, count * sizeof(T), place) || (!place.device && !place.pinned))
    return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.kind = Work::Set;
  auto *at = reinterpret_cast<T *>(place.host);
  work.run = [=] {
    std::fill(at, at + count, value);
    return copyTime(count * sizeof(T), false);
  };
  if (CUresult r = submit(s, std::move(work)))
    return r;
  (void)wait; // a set of device memory does not wait
  return CUDA_SUCCESS;
}

/// A copy whose ends both have to be memory of devices.
CUresult copyBetweenDevices(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
  if (!Device::of(to) || !Device::of(from))
    return CUDA_ERROR_INVALID_VALUE;
  return copy(to, from, bytes, s, false);
}

uint64_t address(const void *at) { return reinterpret_cast<uint64_t>(at); }

} // namespace
} // namespace fakegpu

#define FAKEGPU_STREAM(handle)                                                                     \
  CUstream s = streamOf(handle);                                                                   \
  if (!s)                                                                                          \
  return CUDA_ERROR_INVALID_HANDLE

FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKEGPU_ENTER("cuMemcpy", true);
  return copy(to, from, bytes, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  FAKEGPU_ENTER("cuMemcpyHtoD", true);
  return copy(to, address(from), bytes, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  FAKEGPU_ENTER("cuMemcpyDtoH", true);
  return copy(address(to), from, bytes, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKEGPU_ENTER("cuMemcpyDtoD", true);
  return copyBetweenDevices(to, from, bytes, streamOf(nullptr));
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemcpyAsync", true);
  FAKEGPU_STREAM(handle);
  return copy(to, from, bytes, s, false);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemcpyHtoDAsync", true);
  FAKEGPU_STREAM(handle);
  if (!Device::of(to))
    return CUDA_ERROR_INVALID_VALUE;
  return copy(to, address(from), bytes, s, false);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemcpyDtoHAsync", true);
  FAKEGPU_STREAM(handle);
  if (!Device::of(from))
    return CUDA_ERROR_INVALID_VALUE;
  return copy(address(to), from, bytes, s, false);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemcpyDtoDAsync", true);
  FAKEGPU_STREAM(handle);
  return copyBetweenDevices(to, from, bytes, s);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemcpyPeerAsync", true);
  FAKEGPU_STREAM(handle);
  return copyBetweenDevices(to, from, bytes, s);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  FAKEGPU_ENTER("cuMemsetD8", true);
  return set<uint8_t>(to, value, count, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  FAKEGPU_ENTER("cuMemsetD16", true);
  return set<uint16_t>(to, value, count, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  FAKEGPU_ENTER("cuMemsetD32", true);
  return set<uint32_t>(to, value, count, streamOf(nullptr), true);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream handle) {
  FAKEGPU_ENTER("cuMemsetD8Async", true);
  FAKEGPU_STREAM(handle);
  return set<uint8_t>(to, value, count, s, false);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream handle) {
  FAKEGPU_ENTER("cuMemsetD16Async", true);
  FAKEGPU_STREAM(handle);
  return set<uint16_t>(to, value, count, s, false);
}
FAKEGPU_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
  FAKEGPU_ENTER("cuMemsetD32Async", true);
  FAKEGPU_STREAM(handle);
  return set<uint32_t>(to, value, count, s, false);
}

/// An allocation takes its memory at once; the release waits for the stream.
FAKEGPU_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle) {
  FAKEGPU_ENTER("cuMemAllocFromPoolAsync", true);
  FAKEGPU_STREAM(handle);
  if (CUresult r = forbidDuringCapture(s))
    return r;
  return pool->device->allocate(bytes, out, pool);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle) {
  FAKEGPU_ENTER("cuMemAllocAsync", true);
  FAKEGPU_STREAM(handle);
  if (CUresult r = forbidDuringCapture(s))
    return r;
  Device *d = s->context->device;
  return d->allocate(bytes, out, d->currentPool);
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  FAKEGPU_ENTER("cuMemFreeAsync", true);
  FAKEGPU_STREAM(handle);
  Device *d = Device::of(at);
  if (!d)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = forbidDuringCapture(s))
    return r;
  Work work;
  work.kind = Work::Free;
  work.run = [=] {
    if (CUresult r = d->release(at))
      d->fail(r, "cuMemFreeAsync of an address that is not allocated");
    return 100.0;
  };
  return submit(s, std::move(work));
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceGetDefaultMemPool", false);
  Device *d = Device::at(device);
  if (!d)
    return CUDA_ERROR_INVALID_DEVICE;
  d->open();
  *pool = &d->defaultPool;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  FAKEGPU_ENTER("cuMemPoolCreate", false);
  Device *d = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? Device::at(properties->location.id) : nullptr;
  if (!d || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  d->open();
  *pool = new CUmemPoolHandle_st;
  (*pool)->device = d;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
  FAKEGPU_ENTER("cuMemPoolDestroy", false);
  if (!pool || pool == &pool->device->defaultPool)
    return CUDA_ERROR_INVALID_VALUE;
  synchronizeContext(pool->device->primary);
  {
    std::unique_lock<std::shared_mutex> lock(pool->device->mutex);
    for (auto &[at, allocation] : pool->device->allocations)
      if (allocation.pool == pool)
        allocation.pool = nullptr; // stays until it is released
  }
  if (pool->device->currentPool == pool)
    pool->device->currentPool = &pool->device->defaultPool;
  delete pool;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  FAKEGPU_ENTER("cuMemPoolTrimTo", false);
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  FAKEGPU_ENTER("cuMemPoolSetAttribute", false);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    pool->releaseThreshold = *static_cast<uint64_t *>(value);
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    pool->usedHigh = pool->used.load();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  FAKEGPU_ENTER("cuMemPoolGetAttribute", false);
  auto *out = static_cast<uint64_t *>(value);
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *out = pool->releaseThreshold; return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *out = pool->used; return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *out = pool->usedHigh; return CUDA_SUCCESS;
  default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
