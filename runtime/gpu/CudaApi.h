//===- CudaApi.h - The driver's functions, as the backend calls them ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Declarations of our own (see NcclApi.h). Functions come from cuGetProcAddress by their names
// without a suffix, at version kVersion.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_CUDAAPI_H
#define MESHWRIGHT_RUNTIME_GPU_CUDAAPI_H

#include <cstddef>
#include <cstdint>

namespace meshwright::rt::cuda {

/// CUDA 12.8: the oldest driver that takes the PTX of all our chips.
constexpr int kVersion = 12080;

struct Context;         // CUcontext
struct Module;          // CUmodule
struct Function;        // CUfunction
struct Stream;          // CUstream
struct Event;           // CUevent
struct Graph;           // CUgraph
struct GraphNode;       // CUgraphNode
struct GraphExecutable; // CUgraphExec
using Device = int;
using Address = unsigned long long;

enum Result : int {
  Success = 0, InvalidValue = 1, OutOfMemory = 2, NotInitialized = 3, NoDevice = 100, InvalidDevice = 101,
  NotFound = 500, NotReady = 600, PeerAccessAlreadyEnabled = 704
};
enum DeviceAttribute : int {
  ClockRate = 13, MultiprocessorCount = 16, MemoryClockRate = 36, MemoryBusWidth = 37, CapabilityMajor = 75, CapabilityMinor = 76, SharedMemoryOptIn = 97
};
enum FunctionAttribute : int { MaxDynamicSharedMemory = 8 };
enum JitOption : int { ErrorLogBuffer = 5, ErrorLogBytes = 6 };
enum CaptureMode : int { CaptureThreadLocal = 1, CaptureRelaxed = 2 };
enum StreamFlags : unsigned { NonBlocking = 1 };
enum TensorMapType : int { MapFloat16 = 6, MapBfloat16 = 9 };
enum TensorMapSwizzle : int { Swizzle128 = 3 };
enum TensorMapPromotion : int { Promote256 = 3 };
enum EventFlags : unsigned { WithTimes = 0, WithoutTimes = 2 };

/// The bytes of a TMA descriptor.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

/// X(function, parameters) for each function that the backend gets from the driver. All return Result.
#define MESHWRIGHT_CUDA_FUNCTIONS(X)                                                               \
  X(cuInit, (unsigned))                                                                            \
  X(cuDriverGetVersion, (int *))                                                                   \
  X(cuGetErrorName, (Result, const char **))                                                       \
  X(cuGetErrorString, (Result, const char **))                                                     \
  X(cuDeviceGetCount, (int *))                                                                     \
  X(cuDeviceGet, (Device *, int))                                                                  \
  X(cuDeviceGetName, (char *, int, Device))                                                        \
  X(cuDeviceGetAttribute, (int *, DeviceAttribute, Device))                                        \
  X(cuDeviceCanAccessPeer, (int *, Device, Device))                                                \
  X(cuDevicePrimaryCtxRetain, (Context **, Device))                                                \
  X(cuDevicePrimaryCtxRelease, (Device))                                                           \
  X(cuCtxSetCurrent, (Context *))                                                                  \
  X(cuCtxGetCurrent, (Context **))                                                                 \
  X(cuCtxSynchronize, ())                                                                          \
  X(cuCtxEnablePeerAccess, (Context *, unsigned))                                                  \
  X(cuMemGetInfo, (size_t *, size_t *))                                                            \
  X(cuMemAlloc, (Address *, size_t))                                                               \
  X(cuMemFree, (Address))                                                                          \
  X(cuMemHostAlloc, (void **, size_t, unsigned))                                                   \
  X(cuMemFreeHost, (void *))                                                                       \
  X(cuMemcpyHtoDAsync, (Address, const void *, size_t, Stream *))                                  \
  X(cuMemcpyDtoHAsync, (void *, Address, size_t, Stream *))                                        \
  X(cuMemcpyDtoDAsync, (Address, Address, size_t, Stream *))                                       \
  X(cuMemcpyPeerAsync, (Address, Context *, Address, Context *, size_t, Stream *))                 \
  X(cuMemsetD8Async, (Address, unsigned char, size_t, Stream *))                                   \
  X(cuStreamCreateWithPriority, (Stream **, unsigned, int))                                        \
  X(cuStreamDestroy, (Stream *))                                                                   \
  X(cuStreamSynchronize, (Stream *))                                                               \
  X(cuStreamQuery, (Stream *))                                                                     \
  X(cuStreamWaitEvent, (Stream *, Event *, unsigned))                                              \
  X(cuEventCreate, (Event **, unsigned))                                                           \
  X(cuEventDestroy, (Event *))                                                                     \
  X(cuEventRecord, (Event *, Stream *))                                                            \
  X(cuEventQuery, (Event *))                                                                       \
  X(cuEventSynchronize, (Event *))                                                                 \
  X(cuEventElapsedTime, (float *, Event *, Event *))                                               \
  X(cuModuleLoadDataEx, (Module **, const void *, unsigned, JitOption *, void **))                 \
  X(cuModuleUnload, (Module *))                                                                    \
  X(cuModuleGetFunction, (Function **, Module *, const char *))                                    \
  X(cuFuncSetAttribute, (Function *, FunctionAttribute, int))                                      \
  X(cuLaunchKernel, (Function *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,       \
                     unsigned, Stream *, void **, void **))                                        \
  X(cuStreamBeginCapture, (Stream *, CaptureMode))                                                 \
  X(cuStreamEndCapture, (Stream *, Graph **))                                                      \
  X(cuGraphGetNodes, (Graph *, GraphNode **, size_t *))                                            \
  X(cuGraphInstantiate, (GraphExecutable **, Graph *, unsigned long long))                         \
  X(cuGraphLaunch, (GraphExecutable *, Stream *))                                                  \
  X(cuGraphExecDestroy, (GraphExecutable *))                                                       \
  X(cuGraphDestroy, (Graph *))                                                                     \
  X(cuPointerGetAttribute, (void *, int, Address))                                                 \
  X(cuTensorMapEncodeTiled,                                                                        \
    (TensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,     \
     const uint32_t *, int, int, int, int))

} // namespace meshwright::rt::cuda

#endif // MESHWRIGHT_RUNTIME_GPU_CUDAAPI_H
