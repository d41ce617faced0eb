//===- Products.h - matrix products by cuBLASLt -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_PRODUCTS_H
#define MESHWRIGHT_RUNTIME_GPU_PRODUCTS_H

#include "Processor.h"
#include "meshwright/runtime/include/Types.h"

namespace meshwright::rt::gpu {

/// The matrix products of one rank. Functions throw Failure.
class Products {
public:
  Products(std::shared_ptr<Processor> processor, const CublasLt &library);
  ~Products();

  /// Chooses an algorithm for a product between buffers as aligned as these. Elements of the result
  /// are of type `result`.
  void prepare(const mw_rt_gemm &what, DType result, const void *a, const void *b,
               const void *bias, void *c);
  void multiply(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                const void *bias, void *c, cuda::Stream *stream);

private:
  struct Plan;

  Plan &getPlan(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                const void *bias, void *c);
  std::unique_ptr<Plan> makePlan(const mw_rt_gemm &what, DType result, bool hasBias,
                                 unsigned alignment);
  char *getWorkspace(size_t bytes);

  std::shared_ptr<Processor> processor;
  const CublasLt &library;
  cublaslt::Context *handle = nullptr;
  /// The key has the product's fields, the type of the result and the alignment of the buffers.
  std::map<std::vector<int64_t>, std::unique_ptr<Plan>> plans;
  /// All that were ever used: recorded work has their addresses. The last is the largest.
  std::vector<std::pair<size_t, DeviceMemory>> workspaces;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_PRODUCTS_H
