//===- NcclApi.h - NCCL's functions, as the backend calls them --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Declarations of our own, so that a build without CUDA has the backend too. The libraries are
// loaded at run time. test/fakegpu/layouts compares sizes, offsets, values and signatures with
// NVIDIA's headers.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_NCCLAPI_H
#define MESHWRIGHT_RUNTIME_GPU_NCCLAPI_H

#include <cstddef>

namespace meshwright::rt::nccl {

/// 2.26.2, the first that keeps the order of several communicators (NCCL_LAUNCH_ORDER_IMPLICIT).
constexpr int kVersion = 22602;

struct Communicator; // ncclComm
struct Stream;       // CUstream_st, which is cudaStream_t

struct UniqueId {
  char internal[128];
};

enum Result : int {
  Success = 0, UnhandledCudaError = 1, SystemError = 2, InternalError = 3, InvalidArgument = 4,
  InvalidUsage = 5, RemoteError = 6, InProgress = 7
};
enum Reduction : int { Sum = 0, Product = 1, Maximum = 2, Minimum = 3, Average = 4 };
enum Type : int {
  Int8 = 0, Uint8 = 1, Int32 = 2, Uint32 = 3, Int64 = 4, Uint64 = 5, Float16 = 6, Float32 = 7,
  Float64 = 8, Bfloat16 = 9
};

/// X(function, result, parameters) for each function that the backend loads from libnccl.so.2.
#define MESHWRIGHT_NCCL_FUNCTIONS(X)                                                               \
  X(ncclGetVersion, Result, (int *))                                                               \
  X(ncclGetUniqueId, Result, (UniqueId *))                                                         \
  X(ncclCommInitRank, Result, (Communicator **, int, UniqueId, int))                               \
  X(ncclCommSplit, Result, (Communicator *, int, int, Communicator **, void *))                    \
  X(ncclCommDestroy, Result, (Communicator *))                                                     \
  X(ncclCommAbort, Result, (Communicator *))                                                       \
  X(ncclCommGetAsyncError, Result, (Communicator *, Result *))                                     \
  X(ncclGetErrorString, const char *, (Result))                                                    \
  X(ncclGetLastError, const char *, (Communicator *))                                              \
  X(ncclGroupStart, Result, ())                                                                    \
  X(ncclGroupEnd, Result, ())                                                                      \
  X(ncclAllReduce, Result,                                                                         \
    (const void *, void *, size_t, Type, Reduction, Communicator *, Stream *))                     \
  X(ncclReduceScatter, Result,                                                                     \
    (const void *, void *, size_t, Type, Reduction, Communicator *, Stream *))                     \
  X(ncclAllGather, Result, (const void *, void *, size_t, Type, Communicator *, Stream *))         \
  X(ncclBroadcast, Result, (const void *, void *, size_t, Type, int, Communicator *, Stream *))    \
  X(ncclSend, Result, (const void *, size_t, Type, int, Communicator *, Stream *))                 \
  X(ncclRecv, Result, (void *, size_t, Type, int, Communicator *, Stream *))

} // namespace meshwright::rt::nccl

#endif // MESHWRIGHT_RUNTIME_GPU_NCCLAPI_H
