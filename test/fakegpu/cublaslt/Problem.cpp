//===- Problem.cpp - Descriptions of a product, and their rules -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "cublaslt/Problem.h"

#include <cstdlib>
#include <cstring>
#include <functional>

namespace fakegpu::cublaslt {

size_t sizeOf(cudaDataType_t type) {
  switch (type) {
  case CUDA_R_16F:
  case CUDA_R_16BF: return 2;
  case CUDA_R_32F: return 4;
  case CUDA_R_64F: return 8;
  default: return 0;
  }
}

cublasStatus_t refuse(cublasStatus_t code, const std::string &why) {
  fprintf(stderr, "fakegpu: cublasLt: %s\n", why.c_str());
  return code;
}

bool Layout::operator==(const Layout &o) const {
  return type == o.type && order == o.order && batches == o.batches && rows == o.rows && columns == o.columns &&
         stride == o.stride && batchStride == o.batchStride;
}

std::vector<Attribute> Layout::attributes() {
  return {{CUBLASLT_MATRIX_LAYOUT_TYPE, &type, 4},
          {CUBLASLT_MATRIX_LAYOUT_ORDER, &order, 4},
          {CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, 8},
          {CUBLASLT_MATRIX_LAYOUT_COLS, &columns, 8},
          {CUBLASLT_MATRIX_LAYOUT_LD, &stride, 8},
          {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, 4},
          {CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &batchMode, 4},
          {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batchStride, 8}};
}

std::vector<Attribute> Description::attributes() {
  return {{CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, 4},
          {CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale, 4},
          {CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointerMode, 4},
          {CUBLASLT_MATMUL_DESC_TRANSA, &transA, 4},
          {CUBLASLT_MATMUL_DESC_TRANSB, &transB, 4},
          {CUBLASLT_MATMUL_DESC_TRANSC, &transC, 4},
          {CUBLASLT_MATMUL_DESC_FILL_MODE, &fill, 4},
          {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4},
          {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, 8},
          {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &biasStride, 8},
          {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &biasType, 4},
          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, 8},
          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &auxStride, 8},
          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &auxBatchStride, 8},
          {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &auxType, 4},
          {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &multiprocessors, 4}};
}

std::vector<Attribute> Preference::attributes() {
  return {{CUBLASLT_MATMUL_PREF_SEARCH_MODE, &mode, 4},
          {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, 8},
          {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, 4},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment[0], 4},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment[1], 4},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment[2], 4},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment[3], 4},
          {CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, &waves, 4},
          {CUBLASLT_MATMUL_PREF_IMPL_MASK, &implementations, 8}};
}

uint64_t Problem::hash() const {
  uint64_t h = 0;
  auto add = [&](uint64_t v) { h = (h ^ v) * 0x9e3779b97f4a7c15u + (h >> 29); };
  for (uint64_t v : {uint64_t(description.compute), uint64_t(description.scale), uint64_t(description.transA), uint64_t(description.transB), uint64_t(description.epilogue), uint64_t(description.pointerMode)})
    add(v);
  for (const Layout *l : {&a, &b, &c, &d})
    for (uint64_t v : {uint64_t(l->type), uint64_t(l->order), l->rows, l->columns, uint64_t(l->stride), uint64_t(l->batches), uint64_t(l->batchStride)})
      add(v);
  return h;
}

size_t Problem::auxBytes() const {
  if (!hasAux())
    return 0;
  auto elements = uint64_t(description.auxStride) * columns() + uint64_t(description.auxBatchStride) * uint64_t(d.batches - 1);
  return isRelu() ? elements / 8 : elements * sizeOf(d.type);
}

std::string Problem::invalid() const {
  const Description &p = description;
  static const char names[] = "ABCD";
  const Layout *layouts[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    const Layout &l = *layouts[i];
    std::string name(1, names[i]);
    if (!sizeOf(l.type))
      return "type " + std::to_string(l.type) + " of " + name;
    uint64_t most = l.order == CUBLASLT_ORDER_ROW ? l.columns : l.rows;
    if (l.stride < 0 || uint64_t(l.stride) < most)
      return "leading dimension " + std::to_string(l.stride) + " of " + name + " is less than " + std::to_string(most);
    if (l.batches != d.batches)
      return name + " has " + std::to_string(l.batches) + " batches, D has " + std::to_string(d.batches);
  }
  bool plainA = p.transA == CUBLAS_OP_N, plainB = p.transB == CUBLAS_OP_N;
  uint64_t m = plainA ? a.rows : a.columns, n = plainB ? b.columns : b.rows, k = plainB ? b.rows : b.columns;
  if (m != d.rows || n != d.columns || k != depth() || c.rows != d.rows || c.columns != d.columns)
    return "the shapes do not fit: op(A) " + std::to_string(m) + "x" + std::to_string(depth()) + ", op(B) " + std::to_string(k) + "x" + std::to_string(n) + ", C " + std::to_string(c.rows) + "x" + std::to_string(c.columns) + ", D " + std::to_string(d.rows) + "x" + std::to_string(d.columns);
  if (d.batches > 1 && uint64_t(d.batchStride) < d.at(d.rows - 1, d.columns - 1, 0) + 1)
    return "the batches of D overlap";
  if (hasAux() && (uint64_t(p.auxStride) < d.rows || p.auxStride % (isRelu() ? 128 : 8) || p.auxBatchStride % (isRelu() ? 128 : 8)))
    return "leading dimension " + std::to_string(p.auxStride) + " of the auxiliary output";
  return "";
}

namespace {

/// A leading dimension and batches that do not break accesses of 16 bytes.
std::string misaligned(const Layout &l, const char *name) {
  size_t size = sizeOf(l.type);
  if (size != 2 || ((l.columns == 1 || l.stride * 2 % 16 == 0) && (l.batches == 1 || l.batchStride * 2 % 16 == 0)))
    return "";
  return std::string("leading dimension ") + std::to_string(l.stride) + " or batch stride " + std::to_string(l.batchStride) + " of " + name + " is not a multiple of 16 bytes";
}

} // namespace

std::string Problem::unsupported() const {
  const Description &p = description;
  bool tf32 = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32, f64 = p.compute == CUBLAS_COMPUTE_64F;
  if (!tf32 && !f64 && p.compute != CUBLAS_COMPUTE_32F && p.compute != CUBLAS_COMPUTE_32F_PEDANTIC)
    return "compute type " + std::to_string(p.compute);
  const char *allowed = getenv("FAKEGPU_TF32");
  if (tf32 && !(allowed && *allowed == '1'))
    return "CUBLAS_COMPUTE_32F_FAST_TF32, which needs FAKEGPU_TF32=1";
  if (p.scale != (f64 ? CUDA_R_64F : CUDA_R_32F))
    return "scale type " + std::to_string(p.scale);
  bool types = f64 || tf32 ? a.type == (f64 ? CUDA_R_64F : CUDA_R_32F) && b.type == a.type && d.type == a.type
                           : a.type == b.type && a.type != CUDA_R_64F && (d.type == a.type || d.type == CUDA_R_32F);
  if (!types || c.type != d.type)
    return "types " + std::to_string(a.type) + ", " + std::to_string(b.type) + ", " + std::to_string(c.type) + ", " + std::to_string(d.type) + " of A, B, C and D";
  if (p.pointerMode != CUBLASLT_POINTER_MODE_HOST && p.pointerMode != CUBLASLT_POINTER_MODE_DEVICE)
    return "pointer mode " + std::to_string(p.pointerMode);
  if (p.transC != CUBLAS_OP_N || p.fill != CUBLAS_FILL_MODE_FULL || p.transA > CUBLAS_OP_C || p.transB > CUBLAS_OP_C)
    return "a transposed C, a fill mode or a transposition";
  for (const Layout *l : {&a, &b, &c, &d})
    if ((l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) || l->batchMode != CUBLASLT_BATCH_MODE_STRIDED)
      return "memory order " + std::to_string(l->order) + " or a batch mode";
  constexpr uint32_t known = CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU_AUX_BIAS | CUBLASLT_EPILOGUE_GELU;
  if (!p.epilogue || (p.epilogue & ~known) || (isRelu() && isGelu()) || (hasAux() && !isRelu() && !isGelu()))
    return "epilogue " + std::to_string(p.epilogue);
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && (f64 || d.order == CUBLASLT_ORDER_ROW))
    return std::string("an epilogue with ") + (f64 ? "64-bit floats" : "D in row order");
  if (hasBias() && biasType() != d.type)
    return "a bias of type " + std::to_string(biasType()) + " with D of type " + std::to_string(d.type);
  if (hasAux() && p.auxType >= 0 && p.auxType != int(d.type))
    return "an auxiliary output of type " + std::to_string(p.auxType);
  for (const auto &[layout, name] : {std::pair(&a, "A"), std::pair(&b, "B"), std::pair(&c, "C"), std::pair(&d, "D")})
    if (std::string why = misaligned(*layout, name); !why.empty())
      return why;
  return "";
}

} // namespace fakegpu::cublaslt
