//===- NnExperts.cpp - operations of mixtures of experts ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rules are those of the meaning of routed tensors, which have a row for each expert and token.
// No row is padding: no choice names an expert behind the last one, and the choices of tokens that
// are padding go nowhere, which dispatch requires. So sums over experts and tokens need nothing of
// padding.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::FactorKind;
using dist::FactorRule;
using padding::Need;
using padding::Operands;
using padding::Padding;
using ValueFactors = FactorRule::ValueFactors;

//===----------------------------------------------------------------------===//
// nn.top_k
//===----------------------------------------------------------------------===//

/// Checks that there is a last dimension, of k elements or more, and that the result has k in its
/// place.
LogicalResult TopKOp::verify() {
  if (failed(verifyRankAtLeast(*this, "scores", getScores(), 1)))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getScores()));
  int64_t k = getK();
  if (k < 1 || k > expected.back())
    return emitOpError() << "expected k from 1 to the " << expected.back()
                         << " elements of a row, got " << k;
  expected.back() = k;
  return verifyShape(*this, "result", getResult(), expected);
}

FactorRule TopKOp::getFactorRule() {
  FactorRule rule;
  ValueFactors scores = rule.addFactors(shapeOf(getScores())), result = scores;
  rule.factors[scores.back().front()].kind = FactorKind::Special;
  result.back() = {rule.addFactor(getK(), FactorKind::Special)};
  rule.operands = {scores};
  rule.results = {result};
  return rule;
}

Padding TopKOp::getResultPadding(const Operands &) {
  return {0, double(shapeOf(getScores()).back() - 1)};
}
std::optional<Need> TopKOp::getPaddingNeed() {
  return Need{std::nullopt, "and would choose among it"};
}

//===----------------------------------------------------------------------===//
// nn.limit
//===----------------------------------------------------------------------===//

/// Checks that there are tokens with choices, and that the capacity is not negative.
LogicalResult LimitOp::verify() {
  if (failed(verifyRankAtLeast(*this, "indices", getIndices(), 2)))
    return failure();
  if (int64_t capacity = getCapacity(); capacity < 0)
    return emitOpError() << "expected a capacity that is not negative, got " << capacity;
  return success();
}

FactorRule LimitOp::getFactorRule() {
  FactorRule rule;
  ValueFactors dims = rule.addFactors(shapeOf(getIndices()), FactorKind::Special);
  rule.operands = {dims};
  rule.results = {dims};
  return rule;
}

Padding LimitOp::getResultPadding(const Operands &in) {
  return padding::meet(in[0], padding::ofConstant(-1));
}
std::optional<Need> LimitOp::getPaddingNeed() {
  return Need{std::nullopt, "and would count it among the choices of experts"};
}

//===----------------------------------------------------------------------===//
// nn.dispatch and nn.combine
//===----------------------------------------------------------------------===//

/// The experts that share a row of a routed type.
static int64_t getSharing(Value rows) {
  RoutedAttr routed = getRouted(rows.getType());
  return routed ? routed.getShared() : 1;
}

/// Checks rows and the tensor of tokens on the other side, `tokens`. Checks that
///  - they have one element type;
///  - indices are [tokens..., k] with a token dimension or more, and an offset has no dimension;
///  - rows are routed, by k choices;
///  - tokens are routed if indices are, as rows of the same choices that more experts share;
///  - with `each` the tokens have the shape of the indices and rows have no features, else both have
///    the same features.
static LogicalResult verifyRouting(Operation *op, StringRef rowsName, Value rows,
                                   StringRef tokensName, Value tokens, Value indices, Value offset,
                                   bool each) {
  RoutedAttr routed = getRouted(rows.getType()), outer = getRouted(indices.getType());
  if (failed(verifyElementType(op, "result", op->getResult(0), "operand 0", op->getOperand(0))) ||
      failed(verifyRankAtLeast(op, "indices", indices, outer ? 3 : 2)) ||
      (offset && failed(verifyRank(op, "offset", offset, 0))))
    return failure();
  int64_t choices = shapeOf(indices).back();
  if (!routed || routed.getChoices() != choices)
    return op->emitOpError() << "expected " << rowsName << " with encoding #nn.routed<" << choices
                             << "> as the last dimension of indices, got " << rows.getType();
  if (getRouted(tokens.getType()) && !outer)
    return op->emitOpError() << "expected " << tokensName << " that is not routed, got "
                             << tokens.getType();
  if (getRouted(tokens.getType()) != outer)
    return op->emitOpError() << "expected " << tokensName << " of the routing of indices, "
                             << indices.getType() << ", got " << tokens.getType();
  if (each && routed.getShared() != 1)
    return op->emitOpError() << "expected a row for each choice with each, got rows that experts share, "
                             << rows.getType();
  Shape chosen = shapeOf(indices).drop_back(), shape = shapeOf(tokens);
  if (each && failed(verifyShape(op, tokensName, tokens, shapeOf(indices))))
    return failure();
  if (shape.take_front(chosen.size()) != chosen)
    return op->emitOpError() << "expected " << tokensName << " with the dimensions of tokens "
                             << spell(chosen) << " as indices, got " << spell(shape);
  SmallVector<int64_t> expected(chosen);
  if (!each)
    llvm::append_range(expected, shape.drop_front(chosen.size()));
  if (!outer) {
    expected.insert(expected.begin(), shapeOf(rows).front());
    return verifyShape(op, rowsName, rows, expected);
  }
  if (getShared(outer, routed.getShared()) != routed || outer.getShared() % routed.getShared() != 0)
    return op->emitOpError() << "expected " << rowsName << " of a part of the experts that share a row of "
                             << tokensName << ", " << outer << ", got " << routed;
  expected.front() *= outer.getShared() / routed.getShared();
  return verifyShape(op, rowsName, rows, expected);
}

/// The factors of experts, of tokens..., of choices and of features.... Rows that experts share are the
/// tokens of the experts of their group, and groups are the major factor of the experts.
static void addRoutingFactors(FactorRule &rule, Value rows, Value indices, bool each,
                              FactorKind experts, ValueFactors &routed, ValueFactors &chosen,
                              ValueFactors &tokens) {
  bool isNested = bool(getRouted(indices.getType()));
  routed = rule.addFactors(shapeOf(rows));
  rule.factors[routed.front().front()].kind = experts;
  size_t count = shapeOf(indices).size() - (isNested ? 2 : 1);
  chosen.assign(routed.begin() + 1, routed.begin() + 1 + count);
  if (isNested) {
    int64_t groups = shapeOf(indices).front();
    int group = rule.addFactor(groups), member = routed.front().front();
    rule.factors[member].size = groups ? shapeOf(rows).front() / groups : 0;
    routed.front() = {group, member};
    chosen.insert(chosen.begin(), FactorRule::DimFactors{group});
  }
  tokens = chosen;
  chosen.push_back({rule.addFactor(shapeOf(indices).back(), FactorKind::Special)});
  if (each)
    tokens.push_back(chosen.back());
  else
    tokens.append(routed.begin() + 1 + count, routed.end());
}

LogicalResult DispatchOp::verify() {
  return verifyRouting(*this, "result", getResult(), "input", getInput(), getIndices(), getOffset(),
                       getEach());
}

FactorRule DispatchOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows, indices, input;
  addRoutingFactors(rule, getResult(), getIndices(), getEach(), FactorKind::Parallel, rows, indices,
                    input);
  rule.operands = {input, indices};
  if (getOffset())
    rule.operands.emplace_back();
  rule.results = {rows};
  rule.linearOperands = {0};
  return rule;
}

Padding DispatchOp::getResultPadding(const Operands &in) {
  // No choice names an expert of padding.
  return in.isAlongResult(0) ? Padding::Zero : in[0];
}

std::optional<unsigned> DispatchOp::getTableOperand() { return std::nullopt; }
unsigned DispatchOp::getIndexOperand() { return 1; }
int64_t DispatchOp::getTableDim() { return 0; }
bool DispatchOp::takesOffset() { return true; }
bool DispatchOp::skipsMinusOne() { return true; }
std::optional<unsigned> DispatchOp::getOffsetOperand() {
  return getOffset() ? std::optional<unsigned>(2) : std::nullopt;
}

RoutingUse DispatchOp::getRoutingUse() {
  return {getIndexOperand(), {}, /*givesRouted=*/true, getSharing(getResult()), /*tokens=*/0};
}

LogicalResult CombineOp::verify() {
  return verifyRouting(*this, "rows", getRows(), "result", getResult(), getIndices(), getOffset(),
                       getEach());
}

FactorRule CombineOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows, indices, result;
  addRoutingFactors(rule, getRows(), getIndices(), getEach(), FactorKind::Contracted, rows, indices,
                    result);
  rule.operands = {rows, indices};
  if (getOffset())
    rule.operands.emplace_back();
  rule.results = {result};
  rule.linearOperands = {0};
  return rule;
}

Padding CombineOp::getResultPadding(const Operands &in) {
  if (in[1] == Padding{-1, -1})
    return Padding::Zero;
  Type type = elementOf(*this);
  int64_t terms = getEach() ? 1 : shapeOf(getIndices()).back();
  return padding::round(padding::sum(padding::meet(in[0], Padding::Zero), terms,
                                     getComputeType(type)), type);
}
bool CombineOp::statesSummedNeeds() { return true; }

std::optional<unsigned> CombineOp::getTableOperand() { return 0; }
unsigned CombineOp::getIndexOperand() { return 1; }
int64_t CombineOp::getTableDim() { return 0; }
bool CombineOp::takesOffset() { return true; }
bool CombineOp::skipsMinusOne() { return true; }
std::optional<unsigned> CombineOp::getOffsetOperand() {
  return getOffset() ? std::optional<unsigned>(2) : std::nullopt;
}

RoutingUse CombineOp::getRoutingUse() {
  return {getIndexOperand(), {0},          /*givesRouted=*/false, getSharing(getRows()),
          std::nullopt,      /*givesTokens=*/true};
}

//===----------------------------------------------------------------------===//
// nn.grouped_linear
//===----------------------------------------------------------------------===//

/// Checks that
///  - rows and result are routed by one encoding, and rows end in features;
///  - operands have one element type, and the result has it or f32;
///  - the weight is [experts, out, in], or [experts, in, out] with `in_out`;
///  - the result has the rows' shape with the out features last.
LogicalResult GroupedLinearOp::verify() {
  Type type = elementOf(getRows()), wide = getComputeType(type);
  if (failed(verifyElementType(*this, "weight", getWeight(), "rows", getRows())) ||
      failed(verifyRank(*this, "weight", getWeight(), 3)) ||
      failed(verifyRankAtLeast(*this, "rows", getRows(), 3)))
    return failure();
  if (elementOf(getResult()) != wide &&
      failed(verifyElementType(*this, "result", getResult(), "rows", getRows())))
    return failure();
  if (!getRouted(getRows().getType()) ||
      getRouted(getRows().getType()) != getRouted(getResult().getType()))
    return emitOpError() << "expected rows and result of one routing, got " << getRows().getType()
                         << " and " << getResult().getType();
  Shape weight = shapeOf(getWeight());
  int64_t in = weight[getInOut() ? 1 : 2], out = weight[getInOut() ? 2 : 1];
  SmallVector<int64_t> expected(shapeOf(getRows()));
  if (expected.front() != weight.front())
    return emitOpError() << "expected weight of " << expected.front() << " experts as rows, got "
                         << weight.front();
  if (expected.back() != in)
    return emitOpError() << "expected rows of " << in << " features as weight, got "
                         << expected.back();
  expected.back() = out;
  return verifyShape(*this, "result", getResult(), expected);
}

FactorRule GroupedLinearOp::getFactorRule() {
  FactorRule rule;
  ValueFactors result = rule.addFactors(shapeOf(getResult())), rows = result;
  FactorRule::DimFactors out = result.back();
  rows.back() = {rule.addFactor(shapeOf(getRows()).back(), FactorKind::Contracted)};
  FactorRule::DimFactors in = rows.back();
  rule.operands = {rows, getInOut() ? ValueFactors{rows.front(), in, out}
                                    : ValueFactors{rows.front(), out, in}};
  rule.results = {result};
  rule.linearOperands = {0, 1};
  return rule;
}

double GroupedLinearOp::getFlops() {
  return 2.0 * double(dist::getStoredElements(getResult().getType())) *
         double(shapeOf(getRows()).back());
}

Padding GroupedLinearOp::getResultPadding(const Operands &in) {
  return in.isAlongResult(0) ? Padding::Zero : padding::sumProducts(*this, in);
}

//===----------------------------------------------------------------------===//
// nn.grouped_weight_grad
//===----------------------------------------------------------------------===//

/// Checks that lhs and rhs are rows of one routing and one element type that agree in experts and
/// tokens, and that the result is [experts, m, n] in the type of sums.
LogicalResult GroupedWeightGradOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyRankAtLeast(*this, "lhs", getLhs(), 3)))
    return failure();
  if (!getRouted(getLhs().getType()) ||
      getRouted(getLhs().getType()) != getRouted(getRhs().getType()))
    return emitOpError() << "expected operands of one routing, got " << getLhs().getType()
                         << " and " << getRhs().getType();
  Type wide = getComputeType(elementOf(getLhs()));
  if (elementOf(getResult()) != wide)
    return emitOpError() << "expected a result of element type " << wide << ", got "
                         << elementOf(getResult());
  Shape lhs = shapeOf(getLhs()), rhs = shapeOf(getRhs());
  if (lhs.drop_back() != rhs.drop_back())
    return emitOpError() << "expected rhs with the dimensions " << spell(lhs.drop_back())
                         << " before its features as lhs, got " << spell(rhs.drop_back());
  return verifyShape(*this, "result", getResult(), {lhs.front(), lhs.back(), rhs.back()});
}

FactorRule GroupedWeightGradOp::getFactorRule() {
  FactorRule rule;
  ValueFactors lhs = rule.addFactors(shapeOf(getLhs())), rhs = lhs;
  for (const FactorRule::DimFactors &token : ArrayRef(lhs).drop_front().drop_back())
    rule.factors[token.front()].kind = FactorKind::Contracted;
  rhs.back() = {rule.addFactor(shapeOf(getRhs()).back())};
  rule.results = {{lhs.front(), lhs.back(), rhs.back()}};
  rule.operands = {lhs, rhs};
  rule.linearOperands = {0, 1};
  return rule;
}

double GroupedWeightGradOp::getFlops() {
  return 2.0 * double(dist::getStoredElements(getLhs().getType())) * double(shapeOf(getRhs()).back());
}

Padding GroupedWeightGradOp::getResultPadding(const Operands &in) {
  return in.isAlongResult(0) ? Padding::Zero : padding::sumProducts(*this, in);
}

bool GroupedWeightGradOp::statesSummedNeeds() { return true; }
