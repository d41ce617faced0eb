//===- LayoutTransferPadding.cpp - padding through a factor rule ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;
using padding::isFinite;
using padding::isMaskable;

static bool usesFactor(const FactorRule::DimFactors &factors, int factor) {
  return llvm::is_contained(factors, factor);
}

bool RuleTransfer::hasFactor(unsigned i, int factor) const {
  return llvm::any_of(rule.operands[i],
                      [&](const auto &factors) { return usesFactor(factors, factor); });
}

padding::State RuleTransfer::getState(unsigned i, int factor, const LayoutFactor &piece) const {
  if (std::optional<double> splat = padding::getSplat(op->getOperand(i)))
    return padding::ofConstant(*splat);
  State state;
  for (auto [d, factors] : llvm::enumerate(rule.operands[i])) {
    if (!usesFactor(factors, factor))
      continue;
    State others;
    for (const LayoutFactor &own : operands[i]->dims[d].factors) {
      if (own.uniform || (own.isPadded() && own.sameShardingAs(piece)))
        return own.padding;
      if (own.isPadded())
        others = others ? padding::meet(others, own.padding) : own.padding;
    }
    // Cut otherwise than in the other operands: the worst that it may be.
    if (others)
      state = others;
  }
  return state;
}

padding::State RuleTransfer::getCornerState(unsigned i, int factor, const LayoutFactor &piece,
                                            int other, const LayoutFactor &otherPiece) const {
  if (std::optional<double> splat = padding::getSplat(op->getOperand(i)))
    return padding::ofConstant(*splat);
  State own = getState(i, factor, piece), second = getState(i, other, otherPiece);
  if (own && second)
    return operands[i]->corner;
  return own ? own : second;
}

bool layout_transfer::isAttentionBias(Operation *op, unsigned operand) {
  auto attention = dyn_cast<nn::AttentionOp>(op);
  return attention && attention.getBias() == op->getOperand(operand);
}

bool layout_transfer::keepsBlocks(Operation *op) {
  return op->hasTrait<Elementwise>() || (op->hasTrait<Reindexes>() && !op->hasTrait<TakesPart>());
}

//===----------------------------------------------------------------------===//
// Reads of padding
//===----------------------------------------------------------------------===//

LogicalResult RuleTransfer::readsPadding(int factor, const LayoutFactor &piece, State state,
                                         StringRef need) {
  return report(context,
                "reads the padding behind the " + Twine(piece.size) + " true of " +
                    Twine(piece.padded) + " rows, which is " +
                    padding::toString(state.value_or(Padding::Finite)) + ", " + need,
                owners[factor]);
}

/// Padding that is summed over: zero on one side, finite on the other.
LogicalResult RuleTransfer::checkProduct(int factor, unsigned lhs, unsigned rhs) {
  for (const LayoutFactor &piece : pieces[factor]) {
    if (!piece.isPadded())
      continue;
    State a = getState(lhs, factor, piece), b = getState(rhs, factor, piece);
    if (padding::multiply(a, b) != Padding::Zero)
      return readsPadding(factor, piece, a == Padding::Zero ? b : a,
                          "expected zero on one side of the product and finite on the other");
  }
  return success();
}

PositionsOp layout_transfer::getPositions(Value positions) {
  while (positions) {
    Operation *source = rt::getSource(positions).getDefiningOp();
    if (auto op = dyn_cast_or_null<PositionsOp>(source))
      return op;
    if (!isa_and_nonnull<nn::ReshapeOp, nn::BroadcastOp>(source))
      break;
    positions = source->getOperand(0);
  }
  return {};
}

/// Whether positions are negative where the factor is padding.
bool RuleTransfer::hidesPadding(Value positions, const LayoutFactor &piece) const {
  PositionsOp op = getPositions(positions);
  if (!op)
    return false;
  LayoutFactor own = getFactor(op.getFactor(), mesh);
  return own.size == piece.size && own.padded == piece.padded && own.axes == piece.axes;
}

LogicalResult RuleTransfer::checkKeys(nn::AttentionOp attention) {
  int keys = rule.operands[1][2].front();
  for (const LayoutFactor &piece : pieces[keys]) {
    if (!piece.isPadded())
      continue;
    std::optional<int64_t> length = attention.getKvLength();
    if (length && pieces[keys].size() == 1 && *length <= piece.size)
      continue;
    // No query sees a key of negative position, nor a key where a mask is false.
    bool isHidden = hidesPadding(attention.getKvPositions(), piece) ||
                    (attention.getKeyPadding() && getState(3, keys, piece) == Padding::Zero);
    // Its value has weight zero, and zero times NaN is NaN.
    if (State values = getState(2, keys, piece); isHidden && !isFinite(values))
      return readsPadding(keys, piece, values, "as values: expected it to be finite");
    if (isHidden)
      continue;
    if (length)
      return report(context,
                    "has kv_length " + Twine(*length) + ", but only " + Twine(piece.size) +
                        " of the keys are true: padding counts as keys",
                    1);
    return readsPadding(keys, piece, getState(1, keys, piece),
                        "as keys: expected kv_length to mask it");
  }
  return checkProduct(rule.operands[1][3].front(), 0, 1);
}

LogicalResult RuleTransfer::checkReadPadding() {
  if (std::optional<padding::Need> need = cast<PaddingOpInterface>(op).getPaddingNeed())
    for (int f = 0, e = rule.factors.size(); f < e; ++f) {
      if (rule.factors[f].kind == FactorKind::Parallel || owners[f] < 0)
        continue;
      for (const LayoutFactor &piece : pieces[f]) {
        if (!piece.isPadded())
          continue;
        State state = getState(owners[f], f, piece);
        if (!need->state || state != need->state)
          return readsPadding(f, piece, state, need->text);
      }
    }
  if (op->hasTrait<Product>() && isa<MatrixOpInterface>(op)) {
    for (auto [f, factor] : llvm::enumerate(rule.factors))
      if (factor.kind == FactorKind::Contracted && failed(checkProduct(f, 0, 1)))
        return failure();
  }
  if (auto attention = dyn_cast<nn::AttentionOp>(op))
    return checkKeys(attention);
  return success();
}

//===----------------------------------------------------------------------===//
// Padding of results
//===----------------------------------------------------------------------===//

/// The operands of the op at the tail of a piece of a factor.
class RuleTransfer::TailOperands : public padding::Operands {
public:
  TailOperands(const RuleTransfer &transfer, int factor, const LayoutFactor &piece,
               ArrayRef<State> states)
      : Operands(states), transfer(transfer), factor(factor), piece(piece) {}

  std::optional<double> getSplat(unsigned operand) const override {
    return padding::getSplat(transfer.op->getOperand(operand));
  }
  State getOverall(unsigned operand) const override {
    return overallState(*transfer.operands[operand]);
  }
  bool isPaddingOf(unsigned operand) const override { return transfer.hasFactor(operand, factor); }
  bool isAlongResult(unsigned dim) const override {
    return usesFactor(transfer.rule.results[0][dim], factor);
  }
  void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<State(unsigned)>)> visit) const override {
    for (auto [f, other] : llvm::enumerate(transfer.rule.factors)) {
      int number = f;
      if (other.kind == FactorKind::Parallel || transfer.owners[f] < 0 || number == factor)
        continue;
      for (const LayoutFactor &otherPiece : transfer.pieces[f])
        if (otherPiece.isPadded())
          visit([&](unsigned operand) {
            return transfer.getCornerState(operand, factor, piece, number, otherPiece);
          });
    }
  }

private:
  const RuleTransfer &transfer;
  int factor;
  const LayoutFactor &piece;
};

Padding RuleTransfer::evaluate(int factor, const LayoutFactor &piece) const {
  SmallVector<State, 4> in;
  for (unsigned i = 0; i < operands.size(); ++i)
    in.push_back(getState(i, factor, piece));
  return cast<PaddingOpInterface>(op).getResultPadding(TailOperands(*this, factor, piece, in));
}

/// The operands of the op at the corners of its results.
class RuleTransfer::CornerOperands : public padding::Operands {
public:
  CornerOperands(const RuleTransfer &transfer, ArrayRef<State> states)
      : Operands(states), transfer(transfer) {}

  std::optional<double> getSplat(unsigned operand) const override {
    return padding::getSplat(transfer.op->getOperand(operand));
  }
  State getOverall(unsigned operand) const override {
    return overallState(*transfer.operands[operand]);
  }
  bool isPaddingOf(unsigned) const override { return true; }
  bool isAlongResult(unsigned) const override { return true; }
  void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<State(unsigned)>)>) const override {}

private:
  const RuleTransfer &transfer;
};

Padding RuleTransfer::evaluateCorner() const {
  int padded = 0;
  for (const auto &dims : rule.results.front())
    for (int factor : dims)
      padded += llvm::count_if(pieces[factor], [](const LayoutFactor &f) { return f.isPadded(); });
  if (padded < 2)
    return Padding::Zero;
  SmallVector<State, 4> in;
  for (auto [i, layout] : llvm::enumerate(operands)) {
    if (std::optional<double> splat = padding::getSplat(op->getOperand(i)))
      in.push_back(padding::ofConstant(*splat));
    else
      in.push_back(countPadded(*layout) >= padded ? layout->corner : overallState(*layout));
  }
  return cast<PaddingOpInterface>(op).getCornerPadding(CornerOperands(*this, in));
}

LogicalResult RuleTransfer::derivePadding() {
  bool relevant = false;
  for (const Pieces &list : pieces)
    for (const LayoutFactor &piece : list)
      relevant |= piece.isPadded() || piece.uniform;
  if (!relevant)
    return success();
  if (failed(checkReadPadding()))
    return failure();
  corner = evaluateCorner();
  for (const FactorRule::DimFactors &dim : rule.results.front())
    for (int factor : dim)
      for (LayoutFactor &piece : pieces[factor])
        if (piece.isPadded() || piece.uniform)
          piece.padding = evaluate(factor, piece);
  return success();
}
