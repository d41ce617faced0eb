//===- NnFactorRules.cpp - how the dimensions of each op are tied ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rule depends on the present types of the op alone. An operand's dimension of
// size 1 is tied to a result's dimension of size 1, because in a local program both
// may be chunks of larger dimensions. Only the global types tell whether the
// dimension has size 1 globally and broadcasts.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::broadcastFactors;
using dist::FactorKind;
using dist::FactorRule;
using dist::getElementwiseRule;
using ValueFactors = FactorRule::ValueFactors;

static bool isFloat(Value value) { return isa<FloatType>(getElementTypeOrSelf(value.getType())); }

/// The rule of an op that reads dimension `dim` whole. Its input and result have the same
/// shape.
static FactorRule wholeDimRule(Value input, int64_t dim, FactorKind kind = FactorKind::Special) {
  FactorRule rule;
  ValueFactors dims = rule.addFactors(shapeOf(input));
  rule.factors[dims[dim].front()].kind = kind;
  rule.operands.push_back(dims);
  rule.results.push_back(std::move(dims));
  return rule;
}

static FactorRule withLinear(FactorRule rule, std::initializer_list<int> operands,
                             bool jointly = false) {
  rule.linearOperands.assign(operands);
  rule.jointlyLinear = jointly;
  return rule;
}

//===----------------------------------------------------------------------===//
// Elementwise ops that are linear in some operand
//===----------------------------------------------------------------------===//

FactorRule NegOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0}); }
FactorRule StopGradientOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0}); }
FactorRule DropoutOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0}); }
FactorRule AddOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0, 1}, true); }
FactorRule SubOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0, 1}, true); }
FactorRule MulOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0, 1}); }

FactorRule SelectOp::getFactorRule() {
  FactorRule rule = withLinear(getElementwiseRule(*this), {1, 2}, true);
  rule.maximumOperands = {1, 2};
  return rule;
}

FactorRule MaximumOp::getFactorRule() {
  FactorRule rule = getElementwiseRule(*this);
  rule.maximumOperands = {0, 1};
  return rule;
}

FactorRule DivOp::getFactorRule() {
  // Division of integers rounds, so the quotients of partial sums do not add up.
  if (!isFloat(getLhs()))
    return getElementwiseRule(*this);
  return withLinear(getElementwiseRule(*this), {0});
}

/// Returns true if every value of type `from` is a value of type `to`. Then the casts of
/// partial sums add up to the cast of the sum.
static bool isWidening(Type from, Type to) {
  if (from == to)
    return true;
  if (from.isInteger(1))
    return false;
  if (from.isIntOrIndex() && to.isIntOrIndex())
    return from.getIntOrFloatBitWidth() < to.getIntOrFloatBitWidth();
  auto fromFloat = dyn_cast<FloatType>(from), toFloat = dyn_cast<FloatType>(to);
  return fromFloat && toFloat && fromFloat.getWidth() < toFloat.getWidth();
}

FactorRule CastOp::getFactorRule() {
  FactorRule rule = getElementwiseRule(*this);
  if (getParts() || isWidening(getElementTypeOrSelf(getInput().getType()),
                               getElementTypeOrSelf(getResult().getType())))
    rule.linearOperands.push_back(0);
  return rule;
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

FactorRule ConstantOp::getFactorRule() {
  FactorRule rule;
  auto elements = dyn_cast<DenseElementsAttr>(getValue());
  rule.results.push_back(
      rule.addFactors(shapeOf(getResult()),
                 elements && elements.isSplat() ? FactorKind::Parallel : FactorKind::Special));
  return rule;
}

FactorRule IotaOp::getFactorRule() {
  FactorRule rule;
  rule.results.push_back(rule.addFactors(shapeOf(getResult())));
  rule.factors[getDim()].kind = FactorKind::Special;
  return rule;
}

/// A dimension that is cut is not tied to that of the result: its elements count in other places.
static FactorRule getSizeRule(Value input, ArrayAttr sizes) {
  FactorRule rule;
  ValueFactors from = rule.addFactors(shapeOf(input)), to = from;
  for (auto [d, name] : llvm::enumerate(sizes.getAsValueRange<StringAttr>())) {
    if (name.empty())
      continue;
    rule.factors[from[d].front()].kind = FactorKind::Special;
    to[d] = {rule.addFactor(shapeOf(input)[d], FactorKind::Special)};
  }
  rule.operands.push_back(std::move(from));
  rule.results.push_back(std::move(to));
  return withLinear(std::move(rule), {0});
}

FactorRule CutOp::getFactorRule() { return getSizeRule(getInput(), getSizes()); }
FactorRule UncutOp::getFactorRule() { return getSizeRule(getInput(), getSizes()); }

FactorRule nn::getReshapeFactorRule(ArrayRef<int64_t> from, ArrayRef<int64_t> to) {
  FactorRule rule;
  ValueFactors source(from.size()), target(to.size());

  /// Walks the dimensions of one side, major to minor. `rest` is the size that is left of
  /// dimension `dim` after its major factors.
  struct Cursor {
    ArrayRef<int64_t> shape;
    ValueFactors &factors;
    size_t dim = 0;
    int64_t rest = 1;

    Cursor(ArrayRef<int64_t> shape, ValueFactors &factors) : shape(shape), factors(factors) {
      settle();
    }
    bool atEnd() const { return dim == shape.size(); }
    void settle() {
      while (dim < shape.size() && shape[dim] == 1)
        ++dim;
      rest = atEnd() ? 1 : shape[dim];
    }
    void take(FactorRule &rule, int64_t size, int factor) {
      factors[dim].push_back(factor);
      rest /= size;
      if (rest == 1) {
        ++dim;
        settle();
      }
    }
    void takeSpecial(FactorRule &rule, int64_t size) {
      take(rule, size, rule.addFactor(size, FactorKind::Special));
    }
  };

  auto finish = [&] {
    rule.operands.push_back(std::move(source));
    rule.results.push_back(std::move(target));
    rule.linearOperands.push_back(0);
    return std::move(rule);
  };

  // An empty tensor has no products to compare.
  if (llvm::is_contained(from, 0) || llvm::is_contained(to, 0)) {
    source = rule.addFactors(from, FactorKind::Special);
    target = rule.addFactors(to, FactorKind::Special);
    return finish();
  }

  Cursor a(from, source), b(to, target);
  while (!a.atEnd() && !b.atEnd()) {
    if (a.rest % b.rest == 0 || b.rest % a.rest == 0) {
      int64_t size = std::min(a.rest, b.rest);
      int factor = rule.addFactor(size);
      a.take(rule, size, factor);
      b.take(rule, size, factor);
      continue;
    }
    // All factors up to the next boundary of both sides are special. The boundary may be
    // within a dimension.
    int64_t productA = a.rest, productB = b.rest;
    a.takeSpecial(rule, a.rest);
    b.takeSpecial(rule, b.rest);
    while (productA != productB) {
      bool aIsShort = productA < productB;
      Cursor &shorter = aIsShort ? a : b;
      int64_t &product = aIsShort ? productA : productB;
      int64_t other = aIsShort ? productB : productA;
      // The shapes have different numbers of elements, which the verifier refuses.
      if (shorter.atEnd())
        break;
      int64_t size = shorter.rest;
      if (other % product == 0 && size % (other / product) == 0)
        size = other / product;
      product *= size;
      shorter.takeSpecial(rule, size);
    }
  }
  return finish();
}

FactorRule ReshapeOp::getFactorRule() {
  return getReshapeFactorRule(shapeOf(getInput()), shapeOf(getResult()));
}

FactorRule TransposeOp::getFactorRule() {
  FactorRule rule;
  ValueFactors source = rule.addFactors(shapeOf(getInput())), target;
  for (int64_t dim : getPermutation())
    target.push_back(source[dim]);
  rule.operands.push_back(std::move(source));
  rule.results.push_back(std::move(target));
  return withLinear(std::move(rule), {0});
}

FactorRule SliceOp::getFactorRule() {
  FactorRule rule;
  ArrayRef<int64_t> from = shapeOf(getInput()), to = shapeOf(getResult());
  ValueFactors source, target;
  for (size_t i = 0; i < from.size(); ++i) {
    // A dimension keeps its size only if the slice takes all of it.
    if (from[i] == to[i]) {
      source.push_back({rule.addFactor(from[i])});
      target.push_back(source.back());
      continue;
    }
    source.push_back({rule.addFactor(from[i], FactorKind::Special)});
    target.push_back({rule.addFactor(to[i], FactorKind::Special)});
  }
  rule.operands.push_back(std::move(source));
  rule.results.push_back(std::move(target));
  return withLinear(std::move(rule), {0});
}

FactorRule ConcatOp::getFactorRule() {
  FactorRule rule;
  ValueFactors dims = rule.addFactors(shapeOf(getResult()));
  rule.factors[dims[getDim()].front()].kind = FactorKind::Special;
  for (auto [i, input] : llvm::enumerate(getInputs())) {
    ValueFactors own = dims;
    own[getDim()] = {rule.addFactor(shapeOf(input)[getDim()], FactorKind::Special)};
    rule.operands.push_back(std::move(own));
    rule.linearOperands.push_back(i);
  }
  rule.results.push_back(std::move(dims));
  rule.jointlyLinear = true;
  return rule;
}

FactorRule BroadcastOp::getFactorRule() { return withLinear(getElementwiseRule(*this), {0}); }
bool BroadcastOp::mayBroadcast(unsigned, unsigned) { return true; }

FactorRule GatherOp::getFactorRule() {
  FactorRule rule;
  ValueFactors data = rule.addFactors(shapeOf(getData()));
  ValueFactors indices = rule.addFactors(shapeOf(getIndices()));
  int64_t dim = getDim();
  rule.factors[data[dim].front()].kind = FactorKind::Special;
  ValueFactors result(data.begin(), data.begin() + dim);
  result.append(indices.begin(), indices.end());
  result.append(data.begin() + dim + 1, data.end());
  rule.operands.push_back(std::move(data));
  rule.operands.push_back(std::move(indices));
  rule.results.push_back(std::move(result));
  return withLinear(std::move(rule), {0});
}

FactorRule TakeAlongOp::getFactorRule() {
  FactorRule rule;
  ValueFactors indices = rule.addFactors(shapeOf(getIndices()));
  ValueFactors data = indices;
  data[getDim()] = {rule.addFactor(shapeOf(getData())[getDim()], FactorKind::Special)};
  rule.operands.push_back(std::move(data));
  rule.operands.push_back(indices);
  rule.results.push_back(std::move(indices));
  return withLinear(std::move(rule), {0});
}

FactorRule IndexCopyOp::getFactorRule() {
  FactorRule rule;
  ValueFactors data = rule.addFactors(shapeOf(getData()));
  int64_t dim = getDim();
  rule.factors[data[dim].front()].kind = FactorKind::Special;
  ValueFactors source = data;
  source[dim] = {rule.addFactor(shapeOf(getIndices()).back(), FactorKind::Special)};
  rule.operands.push_back(data);
  // Indices of several dimensions have those in front of the rows, too.
  ValueFactors indices(source.begin() + (dim + 1 - shapeOf(getIndices()).size()), source.begin() + dim + 1);
  rule.operands.push_back(std::move(indices));
  rule.operands.push_back(std::move(source));
  rule.results.push_back(std::move(data));
  return withLinear(std::move(rule), {0, 2}, true);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// Returns true if sums and maxima give the mean or minimum. The mean of integers rounds.
static bool expands(ReduceOp op) {
  return op.getKind() == ReduceKind::Min ||
         (op.getKind() == ReduceKind::Mean && isFloat(op.getInput()));
}

FactorRule ReduceOp::getFactorRule() {
  FactorRule rule;
  ValueFactors source = rule.addFactors(shapeOf(getInput())), target;
  for (auto [i, factors] : llvm::enumerate(source)) {
    if (!llvm::is_contained(getDims(), static_cast<int64_t>(i))) {
      target.push_back(factors);
      continue;
    }
    dist::RuleFactor &reduced = rule.factors[factors.front()];
    bool isMax = getKind() == ReduceKind::Max;
    reduced.kind = isMax || getKind() == ReduceKind::Sum ? FactorKind::Contracted
                   : expands(*this)                      ? FactorKind::Expandable
                                                         : FactorKind::Special;
    if (isMax)
      reduced.reductions = {dist::ReductionKind::Max};
    if (getKeepDims())
      target.emplace_back();
  }
  rule.operands.push_back(std::move(source));
  rule.results.push_back(std::move(target));
  if (getKind() == ReduceKind::Sum || getKind() == ReduceKind::Mean)
    rule.linearOperands.push_back(0);
  return rule;
}

FactorRule CumsumOp::getFactorRule() { return withLinear(wholeDimRule(getInput(), getDim()), {0}); }

FactorRule SoftmaxOp::getFactorRule() {
  return wholeDimRule(getInput(), getDim(), FactorKind::Expandable);
}

FactorRule CrossEntropyOp::getFactorRule() {
  FactorRule rule;
  ValueFactors logits = rule.addFactors(shapeOf(getLogits())), rows = logits;
  rule.factors[logits[getDim()].front()].kind = FactorKind::Expandable;
  rows.erase(rows.begin() + getDim());
  rule.operands = {logits, rows};
  rule.results = {rows};
  return rule;
}

//===----------------------------------------------------------------------===//
// Layers
//===----------------------------------------------------------------------===//

FactorRule MatmulOp::getFactorRule() {
  FactorRule rule;
  ArrayRef<int64_t> lhs = shapeOf(getLhs()), rhs = shapeOf(getRhs()), to = shapeOf(getResult());
  ValueFactors result = rule.addFactors(to);
  ArrayRef<int64_t> batch = to.drop_back(2);
  FactorRule::DimFactors rows = result[batch.size()], columns = result[batch.size() + 1];
  int64_t depth = getTransposeLhs() ? lhs[lhs.size() - 2] : lhs.back();
  FactorRule::DimFactors inner = {rule.addFactor(depth, FactorKind::Contracted)};

  auto operand = [&](ArrayRef<int64_t> shape, bool transposed, FactorRule::DimFactors outer,
                     FactorRule::DimFactors last) {
    ValueFactors dims =
        broadcastFactors(shape.drop_back(2), batch, ArrayRef(result).take_front(batch.size()));
    if (transposed)
      std::swap(outer, last);
    dims.push_back(outer);
    dims.push_back(last);
    return dims;
  };
  rule.operands.push_back(operand(lhs, getTransposeLhs(), rows, inner));
  rule.operands.push_back(operand(rhs, getTransposeRhs(), inner, columns));
  rule.results.push_back(std::move(result));
  return withLinear(std::move(rule), {0, 1});
}

bool MatmulOp::mayBroadcast(unsigned operand, unsigned dim) {
  return dim + 2 < shapeOf(getOperand(operand)).size();
}

FactorRule LinearOp::getFactorRule() {
  FactorRule rule;
  ValueFactors result = rule.addFactors(shapeOf(getResult()));
  FactorRule::DimFactors out = result.back();
  FactorRule::DimFactors in = {rule.addFactor(shapeOf(getInput()).back(), FactorKind::Contracted)};
  ValueFactors input = result;
  input.back() = in;
  rule.operands.push_back(std::move(input));
  rule.operands.push_back(getInOut() ? ValueFactors{in, out} : ValueFactors{out, in});
  rule.results.push_back(std::move(result));
  // Each partial sum would add the bias.
  if (getBias())
    rule.operands.push_back({out});
  else
    rule.linearOperands.assign({0, 1});
  return rule;
}

FactorRule EmbeddingOp::getFactorRule() {
  FactorRule rule;
  ValueFactors result = rule.addFactors(shapeOf(getResult()));
  rule.operands.push_back(ValueFactors(result.begin(), result.end() - 1));
  // An id outside the rows of a rank gives zeros, so the sum over the ranks is the row.
  int rows = rule.addFactor(shapeOf(getTable()).front(), FactorKind::Contracted);
  rule.operands.push_back({{rows}, result.back()});
  if (getOffset())
    rule.operands.emplace_back();
  rule.results.push_back(std::move(result));
  return withLinear(std::move(rule), {1});
}

/// A norm over the last dimension, with `parameters` along that dimension.
static FactorRule normRule(Value input, size_t parameters) {
  FactorRule rule = wholeDimRule(input, shapeOf(input).size() - 1);
  FactorRule::DimFactors features = rule.results.front().back();
  rule.operands.append(parameters, ValueFactors{features});
  return rule;
}

FactorRule RmsNormOp::getFactorRule() { return normRule(getInput(), getNumOperands() - 1); }
FactorRule LayerNormOp::getFactorRule() { return normRule(getInput(), getNumOperands() - 1); }

FactorRule RotaryOp::getFactorRule() {
  ArrayRef<int64_t> shape = shapeOf(getInput());
  FactorRule rule = wholeDimRule(getInput(), shape.size() - 1);
  ValueFactors dims = rule.results.front();
  int64_t rotated = shapeOf(getCos()).back();
  if (rotated != shape.back())
    dims.back() = {rule.addFactor(rotated, FactorKind::Special)};
  for (Value table : {getCos(), getSin()}) {
    ValueFactors own =
        broadcastFactors(shapeOf(table).drop_back(), shape.drop_back(), ArrayRef(dims).drop_back());
    own.push_back(dims.back());
    rule.operands.push_back(std::move(own));
  }
  return withLinear(std::move(rule), {0});
}

bool RotaryOp::mayBroadcast(unsigned, unsigned) { return true; }
