//===- GpuProduct.h - a matrix product for kernels of GPUs ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUPRODUCT_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUPRODUCT_H

#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/ProductFusion.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/MathExtras.h"

#include <memory>

namespace meshwright::lower {

/// One operand of a product: `rows` of m or n by the summed dimension.
struct ProductFactor {
  Value value;
  int64_t rows = 0;
  /// Elements of the summed dimension are consecutive in memory. Otherwise rows are.
  bool sumIsInner = true;
  /// Matrices that the operand advances for each batch dimension.
  SmallVector<int64_t> strides;
};

/// [m, k] times [k, n], for each matrix of a batch.
struct MatrixProduct {
  ProductFactor lhs, rhs;
  Value bias, result;
  int64_t m = 0, n = 0, k = 0;
  SmallVector<int64_t> batch;
  /// The first row of each expert, and the number of all rows, if the left operand has rows of
  /// experts. The batch then has a matrix for each expert. It has the expert's part of m, or, with
  /// `sumsRows`, of k. Rows of the result behind the last one are not written.
  Value offsets;
  bool sumsRows = false;

  bool hasRowsOfExperts() const { return offsets && !sumsRows; }
  /// The rows of a matrix. Experts are taken to have equal numbers of them.
  int64_t getRowsOfMatrix() const {
    return hasRowsOfExperts() ? llvm::divideCeil(m, getNumMatrices()) : m;
  }
  int64_t getNumMatrices() const { return mlir::ShapedType::getNumElements(batch); }
  Type getElement() const { return mlir::getElementTypeOrSelf(lhs.value.getType()); }
};

/// The product that an op is; none for other ops.
std::optional<MatrixProduct> getProduct(mlir::Operation *op);

/// Writes the kernel of a product. Sums are in f32, or f64 for f64.
class ProductEmitter : protected LoopEmitter {
public:
  virtual ~ProductEmitter() = default;

  virtual int64_t getNumBlocks() const = 0;
  virtual int64_t getNumThreads() const = 0;
  virtual int64_t getSharedBytes() const = 0;
  /// The blocks that a multiprocessor has to hold at a time, so few that ptxas spills no registers.
  virtual int64_t getLeastBlocks() const {
    constexpr int64_t threadsOf128Registers = 512;
    return threadsOf128Registers / getNumThreads();
  }
  /// Fills the function, whose arguments are the buffers and the shared memory.
  virtual void emit(mlir::func::FuncOp kernel) = 0;

protected:
  /// `epilogue`, if it is not null, takes the sums. Otherwise they are stored, with the bias added.
  ProductEmitter(const MatrixProduct &product, FusedRows *epilogue);

  /// Moves to the kernel's body, and finds the buffers of the bias and the result.
  void start(mlir::func::FuncOp kernel);
  /// The first element of this block's matrix (`matrix`) in the operand's buffer.
  Value getBase(const ProductFactor &factor);
  /// Finds the rows of experts that a tile has, and goes on in the branch of the blocks whose tile has one.
  void findRowsOfExpert(Value tile, int64_t tileRows);
  /// Goes on with the result of a block. The rows of all experts are one matrix of it.
  void startResult();
  /// Takes the sums of consecutive elements of a row, all in the matrix where `exists`. Null stands
  /// for true.
  void store(ArrayRef<Value> sums, Value row, Value column, Value exists);

  MatrixProduct product;
  Type element, compute, stored, resultElement;
  /// The number of this block's matrix in the batch.
  Value matrix;
  /// The buffer of the experts' first rows.
  Value offsets;
  /// The first row of the block, the end of the rows, null if tiles are whole, and begin and end of
  /// the sum.
  Value firstRow, endOfRows, sumBegin, sumEnd;

private:
  FusedRows *epilogue;
  Value bias, result;
};

/// Returns true if the product has few rows, and lines of 16 bytes along the sum.
bool isThinProduct(const MatrixProduct &product);
/// The kernel of such a product.
std::unique_ptr<ProductEmitter> makeThinProduct(const MatrixProduct &product, FusedRows *epilogue);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUPRODUCT_H
