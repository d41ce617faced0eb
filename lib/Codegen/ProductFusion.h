//===- ProductFusion.h - ops beside a product in its kernel -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernel of a product by a weight may compute other ops, too: some of those that make its input,
// while it copies the input, and some of those that read the product, while it has the sums.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_PRODUCTFUSION_H
#define MESHWRIGHT_LIB_CODEGEN_PRODUCTFUSION_H

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Codegen/RowPlan.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <optional>

namespace meshwright::lower {

/// Some consecutive elements of a row of the product, or of its input.
struct ProductPoint {
  /// The row and the column of the first element, in the whole matrix.
  mlir::Value row, column;
  /// The number of valid elements, and the width of the vectors.
  int64_t count, lanes;
};

/// The region's product by a weight; null if it has none, or several.
nn::LinearOp findLinear(const KernelRegion &region);
/// Returns true if the kernel of a product may go on with the op, as far as the op itself shows.
bool isEpilogueOp(mlir::Operation *op, mlir::RankedTensorType product);
/// The same for an op before the product.
bool isPrologueOp(mlir::Operation *op, mlir::RankedTensorType input);

/// The ops that compute the product's input `made` from `source`, which has as many elements.
struct ProductPrologue {
  KernelRegion region;
  RowPiece piece;
  mlir::Value source, made;
};

/// The ops of a product's kernel before and after the product.
struct ProductFusion {
  std::optional<ProductPrologue> prologue;
  std::optional<RowPiece> epilogue;
  /// The value that the product's rows are copied from.
  mlir::Value source;
};

/// Returns none if the product's kernel cannot compute the other ops of the region.
std::optional<ProductFusion> planFusion(const KernelRegion &region, nn::LinearOp linear,
                                        const KernelTarget &target);

/// Emits the ops before and after a product as elements of a row kernel.
class FusedRows {
public:
  FusedRows(const KernelRegion &region, nn::LinearOp linear, const ProductFusion &fusion)
      : region(region), linear(linear), fusion(fusion) {}

  /// Sets the flat buffers of the inputs and of the outputs.
  void setBuffers(llvm::ArrayRef<std::pair<mlir::Value, mlir::Value>> inputs,
                  mlir::ValueRange outputs) {
    this->inputs.assign(inputs.begin(), inputs.end());
    this->outputs.assign(outputs.begin(), outputs.end());
  }
  /// The elements that are multiplied, computed from those of the source.
  mlir::Value emitPrologue(Builder &b, mlir::Value elements, const ProductPoint &point);
  /// Takes the sums, in f32 and without the bias.
  void emitEpilogue(Builder &b, mlir::Value sums, const ProductPoint &point);

private:
  void start(RowEmitter &row, const RowPiece &piece, const ProductPoint &point);

  const KernelRegion &region;
  nn::LinearOp linear;
  const ProductFusion &fusion;
  llvm::SmallVector<std::pair<mlir::Value, mlir::Value>> inputs;
  llvm::SmallVector<mlir::Value> outputs;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_PRODUCTFUSION_H
