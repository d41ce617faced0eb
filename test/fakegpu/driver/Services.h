//===- Services.h - What the driver offers the other stand-ins ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The stand-ins for NCCL and cuBLASLt hold no machine code: their work is a function of the host
// that a stream runs as a kernel.
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_DRIVER_SERVICES_H
#define FAKEGPU_DRIVER_SERVICES_H

#include <cuda.h>

#include <functional>
#include <string>
#include <vector>

#define FAKEGPU_SERVICE __attribute__((visibility("default")))

namespace fakegpu::services {

/// Counts a call for FAKEGPU_LOG; returns true if FAKEGPU_FAIL says that it fails.
FAKEGPU_SERVICE bool failsNow(const char *call);
/// The device of the current context, -1 without one.
FAKEGPU_SERVICE int currentDevice();
/// Number of a device, no matter which ones CUDA_VISIBLE_DEVICES shows; -1 if there is no such device.
FAKEGPU_SERVICE int physicalDevice(int ordinal);
/// The stream of a handle on this device; 0 is the null stream of its primary context. Null if it is
/// the stream of another device.
FAKEGPU_SERVICE CUstream stream(CUstream handle, int device);
/// The device of a stream; 0 is the null stream of the current context. -1 without a context.
FAKEGPU_SERVICE int deviceOf(CUstream handle);
/// The bytes of a range that is in one allocation which this device may touch, or null.
FAKEGPU_SERVICE char *bytes(int device, const void *address, size_t size);
/// The first fault of a device.
FAKEGPU_SERVICE CUresult error(int device);
FAKEGPU_SERVICE void fail(int device, CUresult code, const std::string &what);
/// Queues work on a stream, or adds it to the graph that it captures, and logs it as a launch of
/// `name`. `run` returns its duration in ns. Work with a key in common runs in the order of the calls.
FAKEGPU_SERVICE CUresult enqueue(CUstream stream, const char *name, std::function<double()> run,
                                 const std::vector<const void *> &keys = {});
/// Waits for the work with this key that is queued.
FAKEGPU_SERVICE void awaitKey(const void *key);
FAKEGPU_SERVICE void forgetKey(const void *key);
/// Rises while streams of this process make progress.
FAKEGPU_SERVICE uint64_t activity();

/// Ranges [a, a + n) and [b, b + m) have bytes in common.
inline bool overlap(const void *a, size_t n, const void *b, size_t m) {
  auto x = reinterpret_cast<uint64_t>(a), y = reinterpret_cast<uint64_t>(b);
  return n && m && x < y + m && y < x + n;
}

} // namespace fakegpu::services

#endif
