//===- Context.cpp - Devices, attributes and contexts ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Driver.h"

#include <cstdio>

using namespace fakegpu;

namespace fakegpu {

std::vector<CUcontext> &contextStack() {
  static thread_local std::vector<CUcontext> stack;
  return stack;
}

void synchronizeContext(CUcontext context) {
  if (!context)
    return;
  std::vector<std::shared_ptr<Completion>> waits;
  {
    std::lock_guard<std::mutex> lock(context->mutex);
    waits.push_back(context->nullStream->last());
    for (CUstream s : context->streams)
      waits.push_back(s->last());
  }
  for (auto &w : waits)
    if (w)
      w->wait();
}

namespace {

CUcontext primaryOf(Device &d) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!d.primary) {
    d.open();
    auto *context = new CUctx_st;
    context->device = &d;
    context->isPrimary = true;
    context->nullStream = std::make_unique<CUstream_st>(context, 0, 0, 0);
    d.primary = context;
  }
  return d.primary;
}

int attributeOf(CUdevice_attribute attribute, int ordinal, bool &known) {
  const Settings &s = Settings::get();
  const ChipLimits &l = chipLimits();
  known = true;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return int(s.chip / 10);
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return int(s.chip % 10);
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return int(l.sharedPerBlock);
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return int(l.sharedOptIn);
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return int(l.sharedPerMultiprocessor);
  case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return int(l.registersPerBlock);
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return int(l.multiprocessors);
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return s.chip == 120 ? 1536 : 2048;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 50 << 20;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2619000;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
  case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: return 0;
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: return 1;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
  case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: return 1;
  case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
  case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return s.chip >= 90;
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
  case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return s.physical[size_t(ordinal)] + 1;
  case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return 0;
  case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return 0;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return CU_COMPUTEMODE_DEFAULT;
  case CU_DEVICE_ATTRIBUTE_INTEGRATED: return 0;
  case CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT: return 0;
  case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return 1;
  case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: return s.chip >= 90;
  default: known = false; return 0;
  }
}

} // namespace
} // namespace fakegpu

FAKEGPU_EXPORT CUresult CUDAAPI cuInit(unsigned flags) {
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Log::get();
  const Settings &s = Settings::get();
  for (int i = int(Device::all().size()); i < s.devices; ++i) {
    auto d = std::make_unique<Device>();
    d->ordinal = i;
    Device::all().push_back(std::move(d));
  }
  FAKEGPU_ENTER("cuInit", false);
  return s.devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version) {
  *version = Settings::get().driver;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count) {
  FAKEGPU_ENTER("cuDeviceGetCount", false);
  *count = int(Device::all().size());
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  FAKEGPU_ENTER("cuDeviceGet", false);
  if (!Device::at(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceGetName", false);
  if (!Device::at(device) || length < 1)
    return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, size_t(length), "Stand-in for sm_%u", Settings::get().chip);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceGetUuid", false);
  if (!Device::at(device))
    return CUDA_ERROR_INVALID_DEVICE;
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = char(0xfa);
  uuid->bytes[15] = char(device);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceTotalMem", false);
  if (!Device::at(device))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Settings::get().memory;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceGetAttribute", false);
  if (!Device::at(device))
    return CUDA_ERROR_INVALID_DEVICE;
  bool known;
  *value = attributeOf(attribute, device, known);
  if (known)
    return CUDA_SUCCESS;
  fprintf(stderr, "fakegpu: unknown device attribute %d\n", int(attribute));
  return CUDA_ERROR_INVALID_VALUE;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
  FAKEGPU_ENTER("cuDeviceGetPCIBusId", false);
  snprintf(id, size_t(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) {
  FAKEGPU_ENTER("cuDeviceCanAccessPeer", false);
  if (!Device::at(a) || !Device::at(b))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = a != b;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  FAKEGPU_ENTER("cuDevicePrimaryCtxRetain", false);
  Device *d = Device::at(device);
  if (!d)
    return CUDA_ERROR_INVALID_DEVICE;
  *out = primaryOf(*d);
  ++(*out)->references;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKEGPU_ENTER("cuDevicePrimaryCtxRelease", false);
  Device *d = Device::at(device);
  if (!d || !d->primary || d->primary->references < 1)
    return CUDA_ERROR_INVALID_CONTEXT;
  --d->primary->references;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  FAKEGPU_ENTER("cuDevicePrimaryCtxGetState", false);
  Device *d = Device::at(device);
  if (!d)
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = d->primary ? d->primary->flags : 0;
  *active = d->primary && d->primary->references > 0;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  FAKEGPU_ENTER("cuDevicePrimaryCtxSetFlags", false);
  if (!Device::at(device))
    return CUDA_ERROR_INVALID_DEVICE;
  primaryOf(*Device::at(device))->flags = flags;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  FAKEGPU_ENTER("cuCtxSetCurrent", false);
  auto &stack = contextStack();
  if (!stack.empty())
    stack.pop_back();
  if (context)
    stack.push_back(context);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context) {
  FAKEGPU_ENTER("cuCtxGetCurrent", false);
  *context = currentContext();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  FAKEGPU_ENTER("cuCtxPushCurrent", false);
  if (!context)
    return CUDA_ERROR_INVALID_CONTEXT;
  contextStack().push_back(context);
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) {
  FAKEGPU_ENTER("cuCtxPopCurrent", false);
  if (contextStack().empty())
    return CUDA_ERROR_INVALID_CONTEXT;
  if (context)
    *context = currentContext();
  contextStack().pop_back();
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
  FAKEGPU_ENTER("cuCtxGetDevice", false);
  if (!currentContext())
    return CUDA_ERROR_INVALID_CONTEXT;
  *device = currentContext()->device->ordinal;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxSynchronize() {
  FAKEGPU_ENTER("cuCtxSynchronize", true);
  {
    std::lock_guard<std::mutex> lock(currentContext()->mutex);
    for (CUstream s : currentContext()->streams)
      if (s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Log::get().waited();
  synchronizeContext(currentContext());
  return CUresult(currentContext()->device->error.load());
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  FAKEGPU_ENTER("cuCtxGetStreamPriorityRange", true);
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  FAKEGPU_ENTER("cuCtxEnablePeerAccess", true);
  if (!peer || flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (peer == currentContext())
    return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> lock(currentContext()->mutex);
  return currentContext()->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

FAKEGPU_EXPORT CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  FAKEGPU_ENTER("cuCtxDisablePeerAccess", true);
  std::lock_guard<std::mutex> lock(currentContext()->mutex);
  return currentContext()->peers.erase(peer) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
