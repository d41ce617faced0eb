//===- Problem.h - Descriptions of a product, and their rules ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_CUBLASLT_PROBLEM_H
#define FAKEGPU_CUBLASLT_PROBLEM_H

#include <cublasLt.h>

#include <string>
#include <vector>

#define FAKECUBLAS_EXPORT extern "C" __attribute__((visibility("default")))

namespace fakegpu::cublaslt {

/// An attribute of an object: its number in cublasLt.h, and where its value is.
struct Attribute {
  int number;
  void *at;
  size_t size;
};

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  int32_t order = CUBLASLT_ORDER_COL, batches = 1, batchMode = CUBLASLT_BATCH_MODE_STRIDED;
  uint64_t rows = 0, columns = 0;
  int64_t stride = 0, batchStride = 0; // in elements
  std::vector<Attribute> attributes();
  bool operator==(const Layout &o) const;
  /// The element at row i and column j of a batch.
  size_t at(uint64_t i, uint64_t j, int batch) const {
    return size_t(batch * batchStride) + (order == CUBLASLT_ORDER_ROW ? i * uint64_t(stride) + j : j * uint64_t(stride) + i);
  }
  /// Elements from the first to the last one.
  size_t extent() const { return rows && columns ? at(rows - 1, columns - 1, batches - 1) + 1 : 0; }
};

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t pointerMode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transA = CUBLAS_OP_N, transB = CUBLAS_OP_N, transC = CUBLAS_OP_N, fill = CUBLAS_FILL_MODE_FULL;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *bias = nullptr;
  void *aux = nullptr;
  int64_t biasStride = 0, auxStride = 0, auxBatchStride = 0;
  int32_t biasType = -1, auxType = -1, multiprocessors = 0;
  std::vector<Attribute> attributes();
};

struct Preference {
  uint32_t mode = CUBLASLT_SEARCH_BEST_FIT, reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace = 0, implementations = ~uint64_t(0);
  uint32_t alignment[4] = {256, 256, 256, 256}; // of A, B, C and D
  float waves = 0;
  std::vector<Attribute> attributes();
};

/// The stand-in's contents of cublasLtMatmulAlgo_t. An algorithm fits the problem it was chosen for.
struct Algorithm {
  uint64_t problem; // hash
  uint32_t splits, reduction, workspace;
  uint32_t alignment[4];
  uint32_t magic;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint32_t kMagic = 0x6c74616c;

struct Problem {
  Description description;
  Layout a, b, c, d;

  uint64_t rows() const { return d.rows; }
  uint64_t columns() const { return d.columns; }
  uint64_t depth() const { return description.transA == CUBLAS_OP_N ? a.columns : a.rows; }
  uint64_t hash() const;
  /// Why cuBLASLt refuses this, or an empty text.
  std::string invalid() const;     // CUBLAS_STATUS_INVALID_VALUE
  std::string unsupported() const; // CUBLAS_STATUS_NOT_SUPPORTED

  bool hasBias() const { return description.epilogue & CUBLASLT_EPILOGUE_BIAS; }
  bool hasAux() const { return description.epilogue & 128; }
  bool isRelu() const { return description.epilogue & CUBLASLT_EPILOGUE_RELU; }
  bool isGelu() const { return description.epilogue & CUBLASLT_EPILOGUE_GELU; }
  cudaDataType_t biasType() const { return description.biasType < 0 ? d.type : cudaDataType_t(description.biasType); }
  size_t auxBytes() const;
};

size_t sizeOf(cudaDataType_t type);
cublasStatus_t refuse(cublasStatus_t code, const std::string &why);

/// The matrices of a product in the host's memory.
struct Buffers {
  const char *a, *b, *c, *bias;
  char *d, *aux;
  const void *alpha, *beta;
};
/// D = epilogue(alpha * op(A) * op(B) + beta * C). `order` is the order of the parts of a split sum.
void multiply(const Problem &problem, const Buffers &buffers, const std::vector<unsigned> &order);

} // namespace fakegpu::cublaslt

#endif
