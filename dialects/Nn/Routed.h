//===- Routed.h - tensors with rows of some experts -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_ROUTED_H
#define MESHWRIGHT_DIALECTS_NN_ROUTED_H

#include "mlir/IR/OpDefinition.h"

#include <optional>

namespace meshwright::nn {

class DispatchOp;
class LimitOp;
class RoutedAttr;

/// The values of one routing that an op reads and gives: rows, and what places and counts them.
struct RoutingUse {
  /// The operand of choices, [tokens..., k], that is the routing. None if the operands below alone name it.
  std::optional<unsigned> choices;
  /// The operands that are of the routing.
  llvm::SmallVector<unsigned, 3> operands;
  /// True if all results are of the routing, false if none is.
  bool givesRouted = false;
  /// The experts that share a row of the routing, where the op has choices.
  int64_t shared = 1;
  /// An operand on the side of the tokens, which may be rows of another routing. It is of that of which the
  /// choices are rows.
  std::optional<unsigned> tokens = std::nullopt;
  /// True if the result is on the side of the tokens.
  bool givesTokens = false;
  /// The axes along which rows leave the ranks of their tokens, and the experts to which they go. Null if they
  /// do not leave.
  mlir::ArrayAttr sentAlong = nullptr;
  int64_t sentTo = 0;
};

namespace detail {
mlir::LogicalResult verifyKeepsRows(mlir::Operation *op);
} // namespace detail

/// An op with routed operands and a routed result, of its own or of an op with other routed tensors,
/// treats rows one by one: its rule ties their experts and tokens. An op that reads a dimension of
/// the routing does so for all of them, and has a result that is not routed. Verified.
template <typename ConcreteOp>
class KeepsRows : public mlir::OpTrait::TraitBase<ConcreteOp, KeepsRows> {
public:
  static mlir::LogicalResult verifyRegionTrait(mlir::Operation *op) {
    return detail::verifyKeepsRows(op);
  }
};

/// An op on rows that exist, of which another operand counts those of each expert. So it cannot take some of
/// the rows alone.
template <typename ConcreteOp>
class CountsRows : public mlir::OpTrait::TraitBase<ConcreteOp, CountsRows> {};

/// The encoding of a routed tensor; null for other types.
RoutedAttr getRouted(mlir::Type type);
/// The encoding of the rows that so many experts share, of the same choices.
RoutedAttr getShared(RoutedAttr routed, int64_t shared);

/// The op that gave the first rows from which ops made those of a routed value. Null if there is none
/// in the function.
DispatchOp getDispatch(mlir::Value rows);
/// The choices from which those of a routing come, through ops that move them or leave some out.
mlir::Value getChoicesRoot(mlir::Value indices);
/// The op that leaves out some of a routing's choices. Null if there is none.
LimitOp getLimit(mlir::Value indices);
/// The number of dimensions of tokens of a routed value, behind that of the experts. Zero for other
/// values.
int64_t getNumTokenDims(mlir::Value rows);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_ROUTED_H
