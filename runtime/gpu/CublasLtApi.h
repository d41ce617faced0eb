//===- CublasLtApi.h - cuBLASLt's functions, as the backend calls them ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Declarations of our own (see NcclApi.h). They hold for libcublasLt.so.12 and .13.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_CUBLASLTAPI_H
#define MESHWRIGHT_RUNTIME_GPU_CUBLASLTAPI_H

#include <cstddef>
#include <cstdint>

namespace meshwright::rt::cublaslt {

struct Context;           // cublasLtHandle_t
struct MatrixLayout;      // cublasLtMatrixLayout_t
struct MatmulDescription; // cublasLtMatmulDesc_t
struct MatmulPreference;  // cublasLtMatmulPreference_t
struct Stream;            // CUstream_st, which is cudaStream_t

enum Status : int {
  Success = 0, NotInitialized = 1, AllocFailed = 3, InvalidValue = 7, ArchMismatch = 8,
  MappingError = 11, ExecutionFailed = 13, InternalError = 14, NotSupported = 15
};
enum Type : int { Float32 = 0, Float64 = 1, Float16 = 2, Bfloat16 = 14 };
enum Compute : int { Compute32F = 68, Compute32FPedantic = 69, Compute32FFastTF32 = 77, Compute64F = 70 };
enum Operation : int { Plain = 0, Transposed = 1 };
enum Order : int { ColumnOrder = 0, RowOrder = 1 };
enum ReductionScheme : unsigned { NoReduction = 0, InPlace = 1, ComputeType = 2, OutputType = 4 };
enum Epilogue : unsigned {
  Default = 1, Relu = 2, Bias = 4, ReluBias = 6, Gelu = 32, GeluBias = 36
};
enum LayoutAttribute : int { LayoutOrder = 1, LayoutBatchCount = 5, LayoutBatchStride = 6 };
enum DescriptionAttribute : int {
  PointerMode = 2, TransA = 3, TransB = 4, EpilogueKind = 7, BiasPointer = 8, BiasBatchStride = 10,
  BiasType = 26
};
enum PreferenceAttribute : int {
  MaxWorkspace = 1, ReductionMask = 3, AlignmentA = 5, AlignmentB = 6, AlignmentC = 7, AlignmentD = 8
};

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

/// X(function, result, parameters) for each function that the backend loads.
#define MESHWRIGHT_CUBLASLT_FUNCTIONS(X)                                                           \
  X(cublasLtCreate, Status, (Context **))                                                          \
  X(cublasLtDestroy, Status, (Context *))                                                          \
  X(cublasLtGetVersion, size_t, ())                                                                \
  X(cublasLtGetStatusName, const char *, (Status))                                                 \
  X(cublasLtMatrixLayoutCreate, Status, (MatrixLayout **, Type, uint64_t, uint64_t, int64_t))      \
  X(cublasLtMatrixLayoutDestroy, Status, (MatrixLayout *))                                         \
  X(cublasLtMatrixLayoutSetAttribute, Status,                                                      \
    (MatrixLayout *, LayoutAttribute, const void *, size_t))                                       \
  X(cublasLtMatmulDescCreate, Status, (MatmulDescription **, Compute, Type))                       \
  X(cublasLtMatmulDescDestroy, Status, (MatmulDescription *))                                      \
  X(cublasLtMatmulDescSetAttribute, Status,                                                        \
    (MatmulDescription *, DescriptionAttribute, const void *, size_t))                             \
  X(cublasLtMatmulPreferenceCreate, Status, (MatmulPreference **))                                 \
  X(cublasLtMatmulPreferenceDestroy, Status, (MatmulPreference *))                                 \
  X(cublasLtMatmulPreferenceSetAttribute, Status,                                                  \
    (MatmulPreference *, PreferenceAttribute, const void *, size_t))                               \
  X(cublasLtMatmulAlgoGetHeuristic, Status,                                                        \
    (Context *, MatmulDescription *, MatrixLayout *, MatrixLayout *, MatrixLayout *,               \
     MatrixLayout *, MatmulPreference *, int, Heuristic *, int *))                                 \
  X(cublasLtMatmul, Status,                                                                        \
    (Context *, MatmulDescription *, const void *, const void *, MatrixLayout *, const void *,     \
     MatrixLayout *, const void *, const void *, MatrixLayout *, void *, MatrixLayout *,           \
     const Algorithm *, void *, size_t, Stream *))

} // namespace meshwright::rt::cublaslt

#endif // MESHWRIGHT_RUNTIME_GPU_CUBLASLTAPI_H
