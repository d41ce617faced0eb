//===- Services.cpp - What the driver offers the other stand-ins -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "driver/Services.h"
#include "driver/Driver.h"

namespace fakegpu::services {

bool failsNow(const char *call) {
  {
    std::lock_guard<std::mutex> lock(Log::get().mutex);
    ++Log::get().calls[call];
  }
  return fakegpu::failsNow(call);
}

int currentDevice() { return currentContext() ? currentContext()->device->ordinal : -1; }

int physicalDevice(int ordinal) {
  return Device::at(ordinal) ? Settings::get().physical[size_t(ordinal)] : -1;
}

CUstream stream(CUstream handle, int device) {
  Device *d = Device::at(device);
  if (!d || !d->primary)
    return nullptr;
  CUstream s = !handle || handle == CU_STREAM_LEGACY ? d->primary->nullStream.get() : streamOf(handle);
  return s && s->context->device == d ? s : nullptr;
}

int deviceOf(CUstream handle) {
  CUstream s = streamOf(handle);
  return s ? s->context->device->ordinal : -1;
}

char *bytes(int device, const void *address, size_t size) {
  Device *d = Device::at(device);
  auto at = reinterpret_cast<uint64_t>(address);
  Range r = d ? d->find(at) : Range{};
  return at >= r.begin && at < r.end && size <= r.end - at ? r.host + (at - r.begin) : nullptr;
}

CUresult error(int device) {
  Device *d = Device::at(device);
  return d ? CUresult(d->error.load()) : CUDA_ERROR_INVALID_DEVICE;
}

void fail(int device, CUresult code, const std::string &what) {
  if (Device *d = Device::at(device))
    d->fail(code, what);
}

CUresult enqueue(CUstream stream, const char *name, std::function<double()> run,
                 const std::vector<const void *> &keys) {
  Work work;
  work.kind = Work::Kernel;
  work.name = name;
  work.keys = keys;
  work.run = std::move(run);
  return submit(stream, std::move(work));
}

void awaitKey(const void *key) { fakegpu::awaitKey(key); }

void forgetKey(const void *key) { fakegpu::forgetKey(key); }

uint64_t activity() { return fakegpu::activity(); }

} // namespace fakegpu::services
