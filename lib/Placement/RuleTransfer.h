//===- RuleTransfer.h - layouts by an op's factor rule ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H
#define MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

namespace meshwright::layout_transfer {

/// Returns true if an op reads the factor as a whole.
bool isWhole(const dist::RuleFactor &factor);

/// One transfer by a factor rule. `run` works in this order:
/// 1. `collect`: each factor of the rule gets the layout factors of the operands'
///    dimensions, which must agree. `refinePieces` may add to them.
/// 2. `checkAxes`: no axis shards two factors, and no factor that the op reads whole is
///    sharded. Axes of contracted factors become unreduced axes of the results.
/// 3. `checkTable`, `checkOrder`: ops that count elements find them where they expect.
/// 4. `checkUnreduced`: parts across ranks, which the op takes, go together with other operands.
/// 5. `joinParts`: parts across steps among the operands, and results that are such parts.
/// 6. `checkReadPadding`: the op reads no arbitrary padding.
/// 7. `makeResult`: the layout of each result, and what its elements are.
///
/// The rule does not say all of some ops. Their models (Models.h) derive a class from this one, and
/// override the virtual functions.
class RuleTransfer {
public:
  explicit RuleTransfer(const TransferContext &context);
  virtual ~RuleTransfer() = default;
  MaybeLayouts run();

protected:
  using Padding = padding::Padding;
  /// A padded piece of a factor of the rule.
  struct Tail {
    int factor;
    const dist::LayoutFactor *piece;
  };

  /// Gives factors pieces that the operands do not show.
  virtual void refinePieces() {}
  /// Checks the operand that says which rows of a table a rank has.
  virtual mlir::LogicalResult checkTable();
  /// Ops that count elements need the contiguous order.
  virtual mlir::LogicalResult checkOrder();
  /// The factors of queries and keys if both are sharded over one axis, as in a ring; else none.
  virtual std::optional<std::pair<int, int>> getRingFactors() const { return std::nullopt; }
  /// Checks parts across steps among the operands. Fills `stepParts` of the results that are some.
  virtual mlir::LogicalResult joinParts();
  /// Checks padding that the op reads otherwise than PaddingOpInterface can state.
  virtual mlir::LogicalResult checkOwnPadding() { return mlir::success(); }

  mlir::LogicalResult collect();
  mlir::LogicalResult unify(int factor, mlir::ArrayRef<dist::LayoutFactor> list, unsigned operand,
                            unsigned dim);
  mlir::LogicalResult unifyProduct(mlir::ArrayRef<int> factors, const dist::DimLayout &layout,
                                   unsigned operand, unsigned dim);
  mlir::LogicalResult mismatch(int factor, mlir::ArrayRef<dist::LayoutFactor> list,
                               unsigned operand, unsigned dim);
  dist::AxisList getAxes(int factor) const;
  mlir::LogicalResult checkAxes();
  /// The axes over which a result is a sum because it broadcasts as an operand does.
  dist::AxisList getBroadcastAxes(unsigned result, unsigned dim) const;
  /// Returns true if the result has the factor as a dimension, and does not broadcast along it.
  bool hasFactorInResult(unsigned result, int factor) const;
  /// Checks that the factors that the op reads whole are in contiguous order. In the error, `hint`
  /// stands before the layout.
  mlir::LogicalResult checkContiguousOrder(llvm::StringRef hint);
  mlir::LogicalResult checkUnreduced();
  mlir::LogicalResult checkMaximum(int source);

  dist::Layout makeResult(unsigned result) const;

  // The padding that the op reads, and the padding of its results.
  mlir::LogicalResult checkReadPadding();
  void describeElements(unsigned result, dist::Layout &layout) const;
  mlir::LogicalResult checkProduct(int factor, unsigned lhs, unsigned rhs);
  mlir::LogicalResult checkSum(int factor, bool reports) const;
  mlir::LogicalResult checkSums();
  mlir::LogicalResult readsPadding(const Tail &tail, Padding content, llvm::StringRef need);
  /// The tails of factors that a result has, and of factors that the op contracts or reads
  /// whole.
  llvm::SmallVector<Tail, 4> getResultTails(unsigned result) const;
  llvm::SmallVector<Tail, 4> getReadTails() const;
  void addTails(int factor, llvm::SmallVectorImpl<Tail> &tails) const;
  bool hasFactor(unsigned i, int factor) const;
  /// The content of operand `i` in a tail; none if the tail is no padding of it.
  bool isUniformAlong(unsigned i, int f) const;
  std::optional<Padding> getTail(unsigned i, const Tail &tail) const;
  /// The content of operand `i` in a tail, which may be conditional.
  Padding getContent(unsigned i, const Tail &tail) const;
  /// The content of an operand that has no such tail: it is the same in the tail and beside it.
  Padding getContentBeside(unsigned i) const;
  /// The content of operand `i` where two tails meet. It may be conditional on account of the
  /// first.
  Padding getCorner(unsigned i, const Tail &tail, const Tail &other) const;
  /// The event that `what` is true of operand `i`, at an index of it.
  uint32_t getEvent(unsigned i, llvm::StringRef what) const;
  /// An event of an operand, at an index of a result.
  uint32_t moveEvent(uint32_t cause, unsigned operand, unsigned result) const;
  /// The bound on the elements of a result in a region: true elements without tails, a tail,
  /// or the corners of two tails.
  Padding evaluate(unsigned result, llvm::ArrayRef<Tail> tails) const;
  class RegionOperands;

  const TransferContext &context;
  mlir::Operation *op;
  mlir::ArrayRef<const dist::Layout *> operands;
  dist::MeshAttr mesh;
  /// The rule, if the caller does not know it.
  std::optional<dist::FactorRule> ownRule;
  const dist::FactorRule &rule;

  /// For each factor of the rule its layout factors, major to minor, and the first operand
  /// that gave them (-1 if none did).
  mlir::SmallVector<Pieces, 8> pieces;
  mlir::SmallVector<int, 8> owners;
  /// The axes that shard contracted factors, of all and of those that each result sums, and
  /// the axes over which operands are unreduced.
  dist::AxisList contracted, unreduced;
  mlir::SmallVector<dist::AxisList, 1> summed;
  /// How the parts of each result combine.
  mlir::SmallVector<dist::ReductionKind, 1> reductions;
  /// For each result the part across steps that it is, if it is one.
  mlir::SmallVector<std::optional<dist::Part>, 1> stepParts;
};

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_RULETRANSFER_H
