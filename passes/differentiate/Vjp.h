//===- Vjp.h - the vector-Jacobian product of one op ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_VJP_H
#define MESHWRIGHT_PASSES_DIFFERENTIATE_VJP_H

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

namespace meshwright::nn {

/// The cotangents that an op reads and writes.
///
/// - The cotangent of a value has its shape. Its element type is that of the value, or f32
///   where the value is of a narrower type and depends on parameters alone.
/// - An op that is no product computes in the wide type (`getWide`) and rounds once, when `add`
///   takes the result.
class Vjp {
public:
  /// `cotangents` has one entry for each result, null where the loss does not depend on it.
  /// `wanted` has the element type of the cotangent of each operand, null where that is not wanted.
  Vjp(mlir::Operation *op, mlir::OpBuilder &builder, llvm::ArrayRef<mlir::Value> cotangents,
      llvm::ArrayRef<mlir::Type> wanted)
      : op(op), cotangents(cotangents), wanted(wanted), contributions(wanted.size()),
        writer(builder, op->getLoc()) {}

  Writer &getWriter() { return writer; }

  bool wants(unsigned operand) const { return bool(wanted[operand]); }
  /// The element type of the cotangent of an operand that is wanted.
  mlir::Type getType(unsigned operand) const { return wanted[operand]; }
  /// The cotangent of a result as it is; null if there is none.
  mlir::Value getCotangent(unsigned result = 0) const { return cotangents[result]; }
  /// The cotangent of a result in the wide type.
  mlir::Value getWideCotangent(unsigned result = 0) { return getWide(cotangents[result]); }
  /// A value in the type in which sums of its elements are computed.
  mlir::Value getWide(mlir::Value value) {
    return writer.cast(value, getComputeType(elementOf(value)));
  }

  /// Adds a term to the cotangent of an operand, if that is wanted. Sums it over the dimensions
  /// along which the operand stretches.
  void add(unsigned operand, mlir::Value term);
  /// The cotangent of each operand; null where nothing was added.
  llvm::ArrayRef<mlir::Value> getContributions() const { return contributions; }

private:
  mlir::Operation *op;
  llvm::ArrayRef<mlir::Value> cotangents;
  llvm::ArrayRef<mlir::Type> wanted;
  llvm::SmallVector<mlir::Value, 4> contributions;
  Writer writer;
};

/// The model of an op that `build` differentiates.
template <typename OpT, mlir::LogicalResult (*build)(OpT, Vjp &)>
struct VjpModel : DifferentiableOpInterface::ExternalModel<VjpModel<OpT, build>, OpT> {
  mlir::LogicalResult buildVjp(mlir::Operation *op, Vjp &vjp) const {
    return build(mlir::cast<OpT>(op), vjp);
  }
};

/// The model of an op whose derivative is zero.
template <typename OpT>
struct ConstantModel : DifferentiableOpInterface::ExternalModel<ConstantModel<OpT>, OpT> {
  bool isConstant(mlir::Operation *) const { return true; }
  mlir::LogicalResult buildVjp(mlir::Operation *, Vjp &) const { return mlir::success(); }
};

/// The model of an op that cannot be differentiated.
template <typename OpT>
struct RefusedModel : DifferentiableOpInterface::ExternalModel<RefusedModel<OpT>, OpT> {
  mlir::LogicalResult buildVjp(mlir::Operation *op, Vjp &) const {
    return op->emitOpError("cannot be differentiated");
  }
};

template <typename OpT, mlir::LogicalResult (*build)(OpT, Vjp &)>
void attachVjp(mlir::MLIRContext *context) {
  OpT::template attachInterface<VjpModel<OpT, build>>(*context);
}
template <typename... Ops> void attachConstant(mlir::MLIRContext *context) {
  (Ops::template attachInterface<ConstantModel<Ops>>(*context), ...);
}
template <typename... Ops> void attachRefused(mlir::MLIRContext *context) {
  (Ops::template attachInterface<RefusedModel<Ops>>(*context), ...);
}

} // namespace meshwright::nn

#endif // MESHWRIGHT_PASSES_DIFFERENTIATE_VJP_H
