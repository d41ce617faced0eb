//===- LayoutTransferPadding.cpp - padding through a factor rule ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

#include "llvm/ADT/TypeSwitch.h"

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

bool layout_transfer::isElementwise(Operation *op) {
  return isa<nn::AbsOp, nn::AddOp, nn::AndOp, nn::BroadcastOp, nn::CastOp, nn::CompareOp, nn::CosOp,
             nn::DivOp, nn::ErfOp, nn::ExpOp, nn::FloorOp, nn::GeluOp, nn::LogOp, nn::MaximumOp,
             nn::MinimumOp, nn::MulOp, nn::NegOp, nn::NotOp, nn::OrOp, nn::PowOp, nn::ReciprocalOp,
             nn::ReluOp, nn::RemOp, nn::RotaryOp, nn::RsqrtOp, nn::SelectOp, nn::SigmoidOp,
             nn::SiluOp, nn::SinOp, nn::SqrtOp, nn::SubOp, nn::TanhOp, nn::XorOp>(op);
}

bool layout_transfer::keepsBlocks(Operation *op) {
  return (isElementwise(op) && !isa<nn::RotaryOp>(op)) || isa<nn::TransposeOp, nn::ReshapeOp>(op);
}

//===----------------------------------------------------------------------===//
// What is read
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
    // A key of negative position is seen by nobody, nor is one where a mask is false.
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
  for (int f = 0, e = rule.factors.size(); f < e; ++f) {
    if (rule.factors[f].kind == FactorKind::Parallel)
      continue;
    for (const LayoutFactor &piece : pieces[f]) {
      if (!piece.isPadded() || owners[f] < 0)
        continue;
      State state = getState(owners[f], f, piece);
      auto fails = [&](StringRef need) { return readsPadding(f, piece, state, need); };
      LogicalResult result =
          llvm::TypeSwitch<Operation *, LogicalResult>(op)
              .Case<nn::SoftmaxOp>([&](auto) -> LogicalResult {
                return state == Padding::NegInf ? success() : fails("expected minus infinity");
              })
              .Case<nn::ReduceOp>([&](nn::ReduceOp reduce) -> LogicalResult {
                switch (reduce.getKind()) {
                case nn::ReduceKind::Sum:
                  return state == Padding::Zero ? success() : fails("expected zero");
                case nn::ReduceKind::Max:
                  return state == Padding::NegInf ? success() : fails("expected minus infinity");
                case nn::ReduceKind::Mean:
                  return fails("and would count it in the mean");
                case nn::ReduceKind::Min:
                  return fails("and would count it in the minimum");
                }
                return success();
              })
              .Case<nn::RmsNormOp, nn::LayerNormOp>(
                  [&](auto) -> LogicalResult { return fails("and would count it in the norm"); })
              .Case<nn::RotaryOp>([&](auto) -> LogicalResult {
                return fails("and would rotate it with the features");
              })
              .Default([](Operation *) { return success(); });
      if (failed(result))
        return failure();
    }
  }
  if (isa<nn::MatmulOp, nn::LinearOp>(op)) {
    for (auto [f, factor] : llvm::enumerate(rule.factors))
      if (factor.kind == FactorKind::Contracted && failed(checkProduct(f, 0, 1)))
        return failure();
  }
  if (auto attention = dyn_cast<nn::AttentionOp>(op))
    return checkKeys(attention);
  return success();
}

//===----------------------------------------------------------------------===//
// What is left
//===----------------------------------------------------------------------===//

/// Rows of x / sqrt(... + eps), and of what is added to them.
static Padding evaluateNorm(padding::State input, double eps, bool shifts) {
  if (!isFinite(input) || !(eps > 0))
    return Padding::Arbitrary;
  return input == Padding::Zero && !shifts ? Padding::Zero : Padding::Finite;
}

Padding RuleTransfer::evaluate(int factor, const LayoutFactor &piece) const {
  SmallVector<State, 4> in;
  for (unsigned i = 0; i < operands.size(); ++i)
    in.push_back(getState(i, factor, piece));
  if (isElementwise(op))
    return padding::evaluateElementwise(op, in);

  // The first operand where the tail meets padding that the op reads.
  auto readCorners = [&](auto combine, State state) {
    for (auto [f, other] : llvm::enumerate(rule.factors)) {
      if (other.kind == FactorKind::Parallel || owners[f] < 0 || static_cast<int>(f) == factor)
        continue;
      for (const LayoutFactor &otherPiece : pieces[f])
        if (otherPiece.isPadded())
          state = combine(state, f, otherPiece);
    }
    return state;
  };
  auto ofInput = [&](State state, int f, const LayoutFactor &otherPiece) -> State {
    State here = getCornerState(0, factor, piece, f, otherPiece);
    return padding::meet(state, here);
  };
  auto whole = [&] { return *readCorners(ofInput, padding::meet(in[0], in[0])); };

  return llvm::TypeSwitch<Operation *, Padding>(op)
      .Case<nn::TransposeOp>([&](auto) { return padding::meet(in[0], in[0]); })
      .Case<nn::MatmulOp, nn::LinearOp>([&](auto) {
        auto product = [&](State state, int f, const LayoutFactor &otherPiece) -> State {
          State a = getCornerState(0, factor, piece, f, otherPiece);
          State b = getCornerState(1, factor, piece, f, otherPiece);
          return padding::add(state, padding::multiply(a, b));
        };
        Padding state = *readCorners(product, padding::multiply(in[0], in[1]));
        return in.size() > 2 ? padding::add(state, in[2]) : state;
      })
      .Case<nn::RmsNormOp>([&](nn::RmsNormOp norm) {
        return evaluateNorm(in[0], norm.getEps().convertToDouble(), false);
      })
      .Case<nn::LayerNormOp>([&](nn::LayerNormOp norm) {
        return evaluateNorm(in[0], norm.getEps().convertToDouble(), bool(norm.getBias()));
      })
      .Case<nn::SoftmaxOp>([&](nn::SoftmaxOp softmax) {
        if (usesFactor(rule.results[0][softmax.getDim()], factor))
          return Padding::Zero;
        Padding state = whole();
        return state == Padding::NegInf ? Padding::Zero
               : isMaskable(state)      ? Padding::Finite
                                        : Padding::Arbitrary;
      })
      .Case<nn::ReduceOp>([&](nn::ReduceOp reduce) {
        // A maximum ignores what is masked.
        Padding state = whole();
        bool masked = reduce.getKind() == nn::ReduceKind::Max && isMaskable(state);
        return masked && isFinite(in[0]) ? padding::meet(in[0], in[0]) : state;
      })
      .Case<nn::CumsumOp>([&](nn::CumsumOp cumsum) {
        if (usesFactor(rule.results[0][cumsum.getDim()], factor))
          return padding::add(in[0], Padding::Finite);
        return whole();
      })
      .Case<nn::EmbeddingOp>([&](auto) {
        if (hasFactor(1, factor))
          return padding::meet(in[1], in[1]);
        return padding::meet(Padding::Finite, overallState(*operands[1]));
      })
      .Case<nn::GatherOp, nn::TakeAlongOp>([&](auto) {
        if (hasFactor(0, factor))
          return padding::meet(in[0], in[0]);
        return padding::meet(Padding::Finite, overallState(*operands[0]));
      })
      .Case<nn::AttentionOp>([&](nn::AttentionOp attention) {
        State bias = attention.getBias() ? in[attention.getKeyPadding() ? 4 : 3] : State();
        if (!isFinite(in[0]) || !isFinite(in[1]) || !isFinite(in[2]) || !isMaskable(bias))
          return Padding::Arbitrary;
        return in[2] == Padding::Zero ? Padding::Zero : Padding::Finite;
      })
      .Case<nn::MergeAttentionOp>([&](auto) {
        if (!isFinite(in[0]) || !isFinite(in[2]) || !isMaskable(in[1]) || !isMaskable(in[3]))
          return Padding::Arbitrary;
        return in[0] == Padding::Zero && in[2] == Padding::Zero ? Padding::Zero : Padding::Finite;
      })
      .Default([](Operation *) { return Padding::Arbitrary; });
}

/// A bound on the corners of the results.
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
  if (isElementwise(op))
    return padding::evaluateElementwise(op, in);
  if (isa<nn::TransposeOp>(op))
    return operands[0]->corner;
  if (isa<nn::MergeAttentionOp>(op)) {
    bool finite = isFinite(overallState(*operands[0])) && isFinite(overallState(*operands[2])) &&
                  isMaskable(overallState(*operands[1])) && isMaskable(overallState(*operands[3]));
    return finite ? Padding::Finite : Padding::Arbitrary;
  }
  if (isa<nn::SoftmaxOp>(op))
    return isMaskable(overallState(*operands[0])) ? Padding::Finite : Padding::Arbitrary;
  // Integer operands (ids) do not enter the result, and a bias only hides.
  auto attention = dyn_cast<nn::AttentionOp>(op);
  bool finite = true;
  for (auto [i, layout] : llvm::enumerate(operands)) {
    State state = overallState(*layout);
    if (attention && attention.getBias() == op->getOperand(i))
      finite &= isMaskable(state);
    else if (isa<FloatType>(getElementTypeOrSelf(op->getOperand(i).getType())))
      finite &= isFinite(state);
  }
  return finite ? Padding::Finite : Padding::Arbitrary;
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
