//===- ColumnEmitter.h - reductions over outer dimensions -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Emits softmax, reductions and running sums along dimensions that are not the last ones. The last
// dimensions are lanes, and each lane has a sum of its own.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_COLUMNEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_COLUMNEMITTER_H

#include "meshwright/lib/Codegen/Elements.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <optional>

namespace meshwright::lower {

/// A value as dimensions that are reduced (or summed along) and dimensions that are kept.
struct Columns {
  /// The shape. Adjacent dimensions of one kind are one.
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<bool> reduced;
  /// Elements that are reduced together.
  int64_t count = 1;

  Columns(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> dims) {
    for (auto [d, size] : llvm::enumerate(shape)) {
      bool isReduced = llvm::is_contained(dims, int64_t(d));
      count *= isReduced ? size : 1;
      if (size == 1)
        continue;
      if (!sizes.empty() && reduced.back() == isReduced) {
        sizes.back() *= size;
      } else {
        sizes.push_back(size);
        reduced.push_back(isReduced);
      }
    }
  }

  llvm::SmallVector<int64_t> getSizes(bool ofReduced) const {
    llvm::SmallVector<int64_t> result;
    for (auto [size, isReduced] : llvm::zip_equal(sizes, reduced))
      if (isReduced == ofReduced)
        result.push_back(size);
    return result;
  }
  int64_t getStride(size_t dim) const {
    int64_t stride = 1;
    for (size_t d = dim + 1; d < sizes.size(); ++d)
      stride *= sizes[d];
    return stride;
  }
};

/// Emits an op item by item. An item is a point of the kept dimensions, or a vector of the last
/// one.
class ColumnEmitter {
public:
  /// Returns nothing for ops of other kinds. A vector has at most `widest` elements of f32.
  static std::optional<ColumnEmitter> create(mlir::Operation *op, int64_t widest);

  int64_t getNumItems() const { return items; }
  /// Bytes of the exponentials that a softmax stores between its two loops.
  int64_t getWorkspaceBytes() const;
  /// Emits an item, on flat buffers. Without a workspace, a softmax computes its exponentials
  /// twice.
  void emit(Builder &builder, mlir::Value item, mlir::Value input, mlir::Value output,
            mlir::Value workspace);

private:
  ColumnEmitter(mlir::Operation *op, nn::ReduceKind kind, llvm::ArrayRef<int64_t> dims,
                int64_t widest);

  mlir::Value getVector(mlir::Value buffer, mlir::Value index);
  void setVector(mlir::Value value, mlir::Value buffer, mlir::Value index);
  mlir::Value getConstant(double value);
  mlir::Value getNeutral();
  mlir::Value combine(mlir::Value lhs, mlir::Value rhs);
  using Step = llvm::function_ref<mlir::Value(mlir::Value index, mlir::Value folded)>;
  /// Folds over all reduced dimensions. `step` gets the index of the element.
  mlir::Value fold(mlir::Value base, mlir::Value init, Step step) {
    return foldFrom(0, base, init, step);
  }
  mlir::Value foldFrom(size_t dim, mlir::Value base, mlir::Value folded, Step step);
  /// Emits an item from its first elements in the input and in the result on.
  void emitVector(mlir::Value from, mlir::Value to);
  void emitSoftmax(mlir::Value from, mlir::Value highest);

  mlir::Operation *op;
  nn::ReduceKind kind;
  Columns columns;
  mlir::Type element, compute;
  bool isFloat;
  llvm::SmallVector<int64_t> kept;
  /// The last dimension if it is kept, and how it is cut.
  int64_t vectorSize, width, blocks, items;

  // Set by `emit`.
  Builder *builder = nullptr;
  mlir::Value input, output, workspace;
  int64_t current = 1;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_COLUMNEMITTER_H
