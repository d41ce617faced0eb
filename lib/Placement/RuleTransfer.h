//===- RuleTransfer.h - layouts by an op's factor rule ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H
#define MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/LayoutTransferDetail.h"

namespace meshwright::layout_transfer {

/// The op that positions are from. In a product of dimensions they are those of one
/// factor, repeated along the others.
dist::PositionsOp getPositions(mlir::Value positions);

/// One transfer by a factor rule.
class RuleTransfer {
public:
  explicit RuleTransfer(const TransferContext &context);
  MaybeLayouts run(mlir::SmallVectorImpl<dist::Layout> *alternatives);

private:
  using State = padding::State;

  mlir::LogicalResult collect();
  mlir::LogicalResult unify(int factor, mlir::ArrayRef<dist::LayoutFactor> list, unsigned operand,
                            unsigned dim);
  mlir::LogicalResult unifyProduct(mlir::ArrayRef<int> factors, const dist::DimLayout &layout,
                                   unsigned operand, unsigned dim);
  mlir::LogicalResult mismatch(int factor, mlir::ArrayRef<dist::LayoutFactor> list,
                               unsigned operand, unsigned dim);
  dist::AxisList getAxes(int factor) const;
  mlir::LogicalResult checkAxes();
  mlir::LogicalResult checkEmbedding(nn::EmbeddingOp embedding);
  /// Ops that count elements need their natural order.
  mlir::LogicalResult checkOrder();
  /// Attention over keys that are sharded is a part of the whole.
  mlir::LogicalResult coverKeys(nn::AttentionOp attention);
  /// Keys and values that a permute left out are those that the mask hides there.
  /// `sharded` is null where the keys are whole.
  mlir::LogicalResult checkMissing(nn::AttentionOp attention, const dist::LayoutFactor *sharded,
                                   llvm::ArrayRef<llvm::SmallBitVector> needing);
  /// Parts of one attention make up more of it.
  mlir::LogicalResult mergeKeys(nn::MergeAttentionOp merge);
  mlir::LogicalResult checkUnreduced();
  /// Whether all that is contracted of some factor are equal elements.
  bool contractsUniform() const;
  void addUnreducedCandidates(const dist::Layout &layout,
                              mlir::SmallVectorImpl<dist::Layout> &alternatives) const;

  // Padding: what the op needs of it, and what it leaves.
  mlir::LogicalResult derivePadding();
  mlir::LogicalResult checkReadPadding();
  mlir::LogicalResult checkProduct(int factor, unsigned lhs, unsigned rhs);
  bool hidesPadding(mlir::Value positions, const dist::LayoutFactor &piece) const;
  mlir::LogicalResult checkKeys(nn::AttentionOp attention);
  mlir::LogicalResult readsPadding(int factor, const dist::LayoutFactor &piece, State state,
                                   llvm::StringRef need);
  /// What operand `i` holds in the tail of `piece` of `factor`.
  State getState(unsigned i, int factor, const dist::LayoutFactor &piece) const;
  bool hasFactor(unsigned i, int factor) const;
  /// What operand `i` holds where the tail of `piece` of `factor` meets the
  /// padding of what the op contracts or reads whole.
  State getCornerState(unsigned i, int factor, const dist::LayoutFactor &piece, int other,
                       const dist::LayoutFactor &otherPiece) const;
  padding::Padding evaluate(int factor, const dist::LayoutFactor &piece) const;
  /// A bound on the corners of the results.
  padding::Padding evaluateCorner() const;
  class TailOperands;
  class CornerOperands;

  const TransferContext &context;
  mlir::Operation *op;
  mlir::ArrayRef<const dist::Layout *> operands;
  dist::MeshAttr mesh;
  dist::FactorRule rule;

  /// The layout factors of each factor of the rule, major to minor, and the
  /// first operand that gave them (-1: none).
  mlir::SmallVector<Pieces, 8> pieces;
  mlir::SmallVector<int, 8> owners;
  /// Axes that shard a contracted factor; those over which an operand is
  /// unreduced.
  dist::AxisList contracted, unreduced;
  dist::ReductionKind reduction = dist::ReductionKind::Sum;
  padding::Padding corner = padding::Padding::Zero;
  /// Of attention, and of merged attention, while some keys are missing.
  dist::KeyCover keys;
};

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H
