//===- Gemm.h - matrix products by oneDNN -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Forms.h"

#include <memory>
#include <string>

namespace meshwright::rt {

class Workers;

/// A matrix that products read from another form.
class StoredMatrix {
public:
  /// Writes a block as a dense matrix.
  virtual void decode(const FormBlock &block, DType type, void *to) const = 0;

protected:
  ~StoredMatrix() = default;
};

/// The matrix products of one rank. Keeps the library's primitives and the scratch memory
/// from call to call. One thread at a time may call it.
///
/// The workers of the rank share a product: each computes some tiles of the result. The tiles depend
/// on the product's shape alone, so the number of threads does not show in the result.
class Gemm {
public:
  Gemm();
  ~Gemm();
  /// Returns false, with an error, if the library fails. If `stored` is given it is b, a single matrix
  /// of the shape in which b is stored.
  bool multiply(const mw_rt_gemm &what, const void *a, const void *b, const void *bias, void *c,
                Workers &workers, std::string &error, const StoredMatrix *stored = nullptr);
  /// The same of a weight's gradient.
  bool weightGrad(const mw_rt_weight_grad &what, const void *a, const void *b, void *c,
                  Workers &workers, std::string &error);

private:
  struct Impl;
  Impl &getImpl();
  /// Returns true if the library multiplies numbers of this type in f32 only.
  bool needsF32(int64_t dtype);
  /// Made by the first product: the library takes a while to load.
  std::unique_ptr<Impl> impl;
};

/// The product of some rows, of a call that makes several.
template <typename What> mw_rt_gemm getProduct(const What &what) {
  mw_rt_gemm product = {};
  product.call.kind = MW_RT_CALL_GEMM;
  product.dtype = what.dtype;
  product.result = what.result;
  product.n = what.n;
  product.k = what.k;
  product.transpose_b = what.transpose_b;
  return product;
}

/// Sets how many threads libraries may use on behalf of the calling thread.
void setThreadsOfLibraries(int count);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H
