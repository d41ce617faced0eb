//===- Multiply.cpp - Products of matrices on the host ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "cublaslt/Problem.h"
#include "ops/Numeric.h"

namespace fakegpu::cublaslt {
namespace {

template <typename S> S read(const char *at, size_t index, cudaDataType_t type) {
  switch (type) {
  case CUDA_R_16F: return S(halfToFloat(reinterpret_cast<const uint16_t *>(at)[index]));
  case CUDA_R_16BF: return S(bfloatToFloat(reinterpret_cast<const uint16_t *>(at)[index]));
  case CUDA_R_32F: return S(reinterpret_cast<const float *>(at)[index]);
  default: return S(reinterpret_cast<const double *>(at)[index]);
  }
}

template <typename S> void write(char *at, size_t index, cudaDataType_t type, S value) {
  switch (type) {
  case CUDA_R_16F: reinterpret_cast<uint16_t *>(at)[index] = floatToHalf(float(value)); return;
  case CUDA_R_16BF: reinterpret_cast<uint16_t *>(at)[index] = floatToBfloat(float(value)); return;
  case CUDA_R_32F: reinterpret_cast<float *>(at)[index] = float(value); return;
  default: reinterpret_cast<double *>(at)[index] = double(value);
  }
}

/// The approximation by tanh, as cuBLASLt's.
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/// op(X) of a batch as rows of `columns` elements.
template <typename S> std::vector<S> pack(const char *from, const Layout &l, bool transposed, uint64_t rows, uint64_t columns, int batch, bool tf32) {
  std::vector<S> out(rows * columns);
  for (uint64_t i = 0; i < rows; ++i)
    for (uint64_t j = 0; j < columns; ++j) {
      S value = read<S>(from, transposed ? l.at(j, i, batch) : l.at(i, j, batch), l.type);
      out[i * columns + j] = tf32 ? S(asFloat(uint32_t(roundTo(double(value), 8, 10, NearestAway)) << 13)) : value;
    }
  return out;
}

/// sum[i] += a[p][i] * b[p] for p in [begin, end).
template <typename S> void accumulate(S *sum, const S *a, const S *b, uint64_t rows, uint64_t columns, uint64_t begin, uint64_t end, uint64_t j) {
  for (uint64_t p = begin; p < end; ++p) {
    S factor = b[p * columns + j];
    const S *row = a + p * rows;
#pragma omp simd
    for (uint64_t i = 0; i < rows; ++i)
      sum[i] += row[i] * factor;
  }
}

template <typename S> void finish(const Problem &problem, const Buffers &m, const S *sum, uint64_t j, int batch, S alpha, S beta) {
  const Description &p = problem.description;
  for (uint64_t i = 0; i < problem.rows(); ++i) {
    S value = alpha * sum[i];
    if (beta != 0)
      value += beta * read<S>(m.c, problem.c.at(i, j, batch), problem.c.type);
    if (problem.hasBias())
      value += read<S>(m.bias, size_t(batch * p.biasStride) + i, problem.biasType());
    size_t aux = size_t(batch * p.auxBatchStride) + j * size_t(p.auxStride) + i;
    if (problem.hasAux() && problem.isGelu())
      write(m.aux, aux, problem.d.type, value);
    if (problem.hasAux() && problem.isRelu()) {
      char bit = char(1 << aux % 8), &byte = m.aux[aux / 8];
      byte = char(value > 0 ? byte | bit : byte & ~bit);
    }
    if (problem.isRelu())
      value = value < 0 ? S(0) : value;
    if (problem.isGelu())
      value = S(gelu(double(value)));
    write(m.d, problem.d.at(i, j, batch), problem.d.type, value);
  }
}

template <typename S> void multiplyAs(const Problem &problem, const Buffers &m, const std::vector<unsigned> &order) {
  uint64_t rows = problem.rows(), columns = problem.columns(), depth = problem.depth();
  bool tf32 = problem.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  S alpha = *static_cast<const S *>(m.alpha), beta = *static_cast<const S *>(m.beta);
  for (int batch = 0; batch < problem.d.batches; ++batch) {
    // A by columns, so that the inner loop goes over rows of D.
    std::vector<S> a = pack<S>(m.a, problem.a, problem.description.transA == CUBLAS_OP_N, depth, rows, batch, tf32);
    std::vector<S> b = pack<S>(m.b, problem.b, problem.description.transB != CUBLAS_OP_N, depth, columns, batch, tf32);
    std::vector<S> sum(rows), part(rows);
    uint64_t chunk = (depth + order.size() - 1) / order.size();
    for (uint64_t j = 0; j < columns; ++j) {
      std::fill(sum.begin(), sum.end(), S(0));
      for (unsigned k : order) {
        std::fill(part.begin(), part.end(), S(0));
        accumulate(part.data(), a.data(), b.data(), rows, columns, std::min(depth, k * chunk), std::min(depth, (k + 1) * chunk), j);
        for (uint64_t i = 0; i < rows; ++i)
          sum[i] += part[i];
      }
      finish(problem, m, sum.data(), j, batch, alpha, beta);
    }
  }
}

} // namespace

void multiply(const Problem &problem, const Buffers &buffers, const std::vector<unsigned> &order) {
  if (problem.description.compute == CUBLAS_COMPUTE_64F)
    multiplyAs<double>(problem, buffers, order);
  else
    multiplyAs<float>(problem, buffers, order);
}

} // namespace fakegpu::cublaslt
