//===- Products.cpp - matrix products by cuBLASLt -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Our matrices are stored by rows, cuBLASLt's by columns. A matrix stored by rows is its own
// transpose stored by columns, so C = A B is computed as C' = B' A': cuBLASLt's first operand is our
// B, and its rows are our columns. The bias then is one number for each of its rows, as its epilogue
// expects.
//
//===----------------------------------------------------------------------===//

#include "Products.h"

#include "meshwright/runtime/src/ranks/GemmShape.h"

#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace meshwright::rt::gpu {

/// The most bytes that an algorithm may use for sums of parts.
static constexpr uint64_t kMaxWorkspace = 32 << 20;

/// A product for cuBLASLt: descriptions, and its strided batch.
struct Products::Plan {
  const CublasLt &library;
  cublaslt::MatmulDescription *description = nullptr;
  cublaslt::MatrixLayout *first = nullptr, *second = nullptr, *result = nullptr;
  cublaslt::Heuristic heuristic = {};
  /// Offsets in elements of each call's matrices: cuBLASLt has one stride over the batch, other
  /// dimensions are calls of their own.
  struct Call {
    int64_t a = 0, b = 0, c = 0;
  };
  std::vector<Call> calls;
  int64_t batch = 1, strideA = 0, strideB = 0;

  explicit Plan(const CublasLt &library) : library(library) {}
  ~Plan() {
    for (cublaslt::MatrixLayout *layout : {first, second, result})
      if (layout)
        library.cublasLtMatrixLayoutDestroy(layout);
    if (description)
      library.cublasLtMatmulDescDestroy(description);
  }
};

Products::Products(std::shared_ptr<Processor> processor, const CublasLt &library)
    : processor(std::move(processor)), library(library) {
  this->processor->enter();
  check(library, library.cublasLtCreate(&handle), "cublasLtCreate");
}

Products::~Products() {
  plans.clear();
  if (processor->getCuda().cuCtxSetCurrent(processor->getContext()) == cuda::Success)
    library.cublasLtDestroy(handle);
}

static cublaslt::Type getType(int64_t dtype) {
  switch (DType(dtype)) {
  case DType::F32:
    return cublaslt::Float32;
  case DType::BF16:
    return cublaslt::Bfloat16;
  case DType::F16:
    return cublaslt::Float16;
  case DType::F64:
    return cublaslt::Float64;
  default:
    throw Failure(std::string("cuBLASLt multiplies no ") + nameOf(DType(dtype)));
  }
}

/// Splits the batch: the innermost dimensions with one stride become cuBLASLt's batch, and the others
/// become calls.
static void splitBatch(const mw_rt_gemm &what, int64_t &batch, int64_t &strideA, int64_t &strideB,
                       std::vector<std::array<int64_t, 3>> &starts) {
  int64_t d = what.batch_rank;
  batch = 1;
  strideA = strideB = 0;
  for (; d > 0; --d) {
    int64_t size = what.batch[d - 1], a = what.stride_a[d - 1], b = what.stride_b[d - 1];
    if (size == 1)
      continue;
    if (batch == 1)
      strideA = a, strideB = b;
    else if (a != strideA * batch || b != strideB * batch)
      break;
    batch *= size;
  }
  starts = {{0, 0, 0}};
  int64_t inner = batch;
  for (; d > 0; --d) {
    std::vector<std::array<int64_t, 3>> all;
    for (int64_t i = 0; i < what.batch[d - 1]; ++i)
      for (const auto &[a, b, c] : starts)
        all.push_back({a + i * what.stride_a[d - 1], b + i * what.stride_b[d - 1], c + i * inner});
    starts = std::move(all);
    inner *= what.batch[d - 1];
  }
}

std::unique_ptr<Products::Plan> Products::makePlan(const mw_rt_gemm &what, DType resultType,
                                                   bool hasBias, unsigned alignment) {
  auto plan = std::make_unique<Plan>(library);
  auto checked = [&](cublaslt::Status status, const char *call) { check(library, status, call); };
  cublaslt::Type type = getType(what.dtype);
  bool isDouble = type == cublaslt::Float64;
  checked(library.cublasLtMatmulDescCreate(&plan->description,
                                           isDouble ? cublaslt::Compute64F : cublaslt::Compute32F,
                                           isDouble ? cublaslt::Float64 : cublaslt::Float32),
          "cublasLtMatmulDescCreate");
  auto set = [&](cublaslt::DescriptionAttribute attribute, const auto &value) {
    checked(library.cublasLtMatmulDescSetAttribute(plan->description, attribute, &value,
                                                   sizeof(value)),
            "cublasLtMatmulDescSetAttribute");
  };
  set(cublaslt::TransA, what.transpose_b ? cublaslt::Transposed : cublaslt::Plain);
  set(cublaslt::TransB, what.transpose_a ? cublaslt::Transposed : cublaslt::Plain);
  if (hasBias)
    set(cublaslt::EpilogueKind, cublaslt::Bias);
  std::vector<std::array<int64_t, 3>> starts;
  splitBatch(what, plan->batch, plan->strideA, plan->strideB, starts);
  for (const auto &[a, b, c] : starts)
    plan->calls.push_back({a * what.m * what.k, b * what.k * what.n, c * what.m * what.n});
  auto describe = [&](cublaslt::MatrixLayout *&layout, cublaslt::Type element, int64_t rows,
                      int64_t columns, int64_t stride) {
    checked(library.cublasLtMatrixLayoutCreate(&layout, element, rows, columns, rows),
            "cublasLtMatrixLayoutCreate");
    int32_t count = int32_t(plan->batch);
    checked(library.cublasLtMatrixLayoutSetAttribute(layout, cublaslt::LayoutBatchCount, &count,
                                                     sizeof(count)),
            "cublasLtMatrixLayoutSetAttribute");
    int64_t elements = stride * rows * columns;
    checked(library.cublasLtMatrixLayoutSetAttribute(layout, cublaslt::LayoutBatchStride,
                                                     &elements, sizeof(elements)),
            "cublasLtMatrixLayoutSetAttribute");
  };
  describe(plan->first, type, what.transpose_b ? what.k : what.n, what.transpose_b ? what.n : what.k,
           plan->strideB);
  describe(plan->second, type, what.transpose_a ? what.m : what.k, what.transpose_a ? what.k : what.m,
           plan->strideA);
  describe(plan->result, getType(int64_t(resultType)), what.n, what.m, 1);
  cublaslt::MatmulPreference *preference = nullptr;
  checked(library.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  std::unique_ptr<cublaslt::MatmulPreference, cublaslt::Status (*)(cublaslt::MatmulPreference *)>
      owner(preference, library.cublasLtMatmulPreferenceDestroy);
  auto prefer = [&](cublaslt::PreferenceAttribute attribute, const auto &value) {
    checked(library.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                         sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(cublaslt::MaxWorkspace, kMaxWorkspace);
  // Without sums in place, which are added in any order.
  prefer(cublaslt::ReductionMask, uint32_t(cublaslt::ComputeType | cublaslt::OutputType));
  for (cublaslt::PreferenceAttribute operand :
       {cublaslt::AlignmentA, cublaslt::AlignmentB, cublaslt::AlignmentC, cublaslt::AlignmentD})
    prefer(operand, uint32_t(alignment));
  int found = 0;
  cublaslt::Status status = library.cublasLtMatmulAlgoGetHeuristic(
      handle, plan->description, plan->first, plan->second, plan->result, plan->result, preference,
      1, &plan->heuristic, &found);
  if (status == cublaslt::Success && found > 0)
    return plan;
  throw Failure("cuBLASLt has no algorithm for a product of " + std::to_string(what.m) + " x " +
                std::to_string(what.k) + " and " + std::to_string(what.k) + " x " +
                std::to_string(what.n) + " of " + nameOf(DType(what.dtype)) + ": " +
                library.cublasLtGetStatusName(status));
}

Products::Plan &Products::getPlan(const mw_rt_gemm &what, DType result, const void *a,
                                  const void *b, const void *bias, void *c) {
  unsigned alignment = 256;
  while (((addressOf(a) | addressOf(b) | addressOf(c)) & (alignment - 1)) != 0)
    alignment /= 2;
  auto *fields = reinterpret_cast<const int64_t *>(&what);
  std::vector<int64_t> key(fields, fields + sizeof(what) / sizeof(int64_t));
  key.insert(key.end(), {int64_t(result), bias != nullptr, int64_t(alignment)});
  std::unique_ptr<Plan> &plan = plans[key];
  if (!plan)
    plan = makePlan(what, result, bias != nullptr, alignment);
  return *plan;
}

char *Products::getWorkspace(size_t bytes) {
  if (bytes == 0)
    return nullptr;
  if (workspaces.empty() || workspaces.back().first < bytes) {
    DeviceMemory memory = processor->allocate(int64_t(bytes));
    if (!memory)
      throw Failure("no memory for a workspace of cuBLASLt");
    workspaces.emplace_back(bytes, std::move(memory));
  }
  return workspaces.back().second.get();
}

void Products::prepare(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                       const void *bias, void *c) {
  if (batchOf(what) * what.m * what.n > 0 && what.k > 0)
    getWorkspace(getPlan(what, result, a, b, bias, c).heuristic.workspace);
}

void Products::multiply(const mw_rt_gemm &what, DType result, const void *a, const void *b,
                        const void *bias, void *c, cuda::Stream *stream) {
  if (batchOf(what) * what.m * what.n == 0)
    return;
  if (what.k == 0)
    throw Failure("cuBLASLt multiplies no matrices of 0 columns");
  Plan &plan = getPlan(what, result, a, b, bias, c);
  int64_t size = sizeOf(DType(what.dtype));
  if (bias)
    check(library,
          library.cublasLtMatmulDescSetAttribute(plan.description, cublaslt::BiasPointer, &bias,
                                                 sizeof(bias)),
          "cublasLtMatmulDescSetAttribute");
  // The factors of the product and of the addend, in the type of the sums.
  double oneF64 = 1, zeroF64 = 0;
  float oneF32 = 1, zeroF32 = 0;
  bool isDouble = DType(what.dtype) == DType::F64;
  const void *one = isDouble ? static_cast<const void *>(&oneF64) : &oneF32;
  const void *zero = isDouble ? static_cast<const void *>(&zeroF64) : &zeroF32;
  char *workspace = getWorkspace(plan.heuristic.workspace);
  for (const Plan::Call &call : plan.calls) {
    char *to = static_cast<char *>(c) + call.c * sizeOf(result);
    check(library,
          library.cublasLtMatmul(
              handle, plan.description, one, static_cast<const char *>(b) + call.b * size,
              plan.first, static_cast<const char *>(a) + call.a * size, plan.second, zero, to,
              plan.result, to, plan.result, &plan.heuristic.algorithm, workspace,
              plan.heuristic.workspace, reinterpret_cast<cublaslt::Stream *>(stream)),
          "cublasLtMatmul");
  }
}

} // namespace meshwright::rt::gpu
