//===- NnRows.cpp - operations on the rows that exist ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In the rules, the rows of all experts are one factor. The proof splits it into experts and tokens
// (lib/Placement/RowModels.cpp).
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::FactorKind;
using dist::FactorRule;
using padding::Operands;
using padding::Padding;
using ValueFactors = FactorRule::ValueFactors;

/// The shape of rows of tokens with `features` behind `tokens` dimensions.
static SmallVector<int64_t> getRowShape(int64_t capacity, int64_t tokens, Shape features) {
  SmallVector<int64_t> shape(tokens + 1, 1);
  shape.front() = capacity;
  llvm::append_range(shape, features);
  return shape;
}

/// A shape with another first dimension.
static SmallVector<int64_t> withFirst(int64_t first, Shape shape) {
  SmallVector<int64_t> result(shape);
  result.front() = first;
  return result;
}

/// Checks that there is an offset for each expert, and the number of all rows.
static LogicalResult verifyOffsets(Operation *op, Value offsets, int64_t experts) {
  return verifyShape(op, "offsets", offsets, {experts + 1});
}

//===----------------------------------------------------------------------===//
// nn.route
//===----------------------------------------------------------------------===//

/// Checks that
///  - indices are [tokens..., k] with a token dimension or more, and an offset has no dimension;
///  - there is an expert or more, as are those of a group;
///  - indices that are rows are [rows, 1..., k], and each group has as many experts;
///  - offsets are [experts + 1], choices have one dimension, and places the shape of the indices.
LogicalResult RouteOp::verify() {
  if (failed(verifyRankAtLeast(*this, "indices", getIndices(), 2)) ||
      (getOffset() && failed(verifyRank(*this, "offset", getOffset(), 0))))
    return failure();
  if (int64_t experts = getExperts(); experts < 1)
    return emitOpError() << "expected an expert or more, got " << experts;
  if (int64_t shared = getShared().value_or(1); shared < 1)
    return emitOpError() << "expected an expert or more that share a row, got " << shared;
  if (Shape indices = shapeOf(getIndices());
      getRows() && (failed(verifyRank(*this, "rows", getRows(), 1)) ||
                    failed(verifyShape(*this, "indices", getIndices(),
                                       getRowShape(indices.front(), indices.size() - 2, indices.back())))))
    return failure();
  if (int64_t groups = getRows() ? shapeOf(getRows()).front() - 1 : 1; groups < 1 || getExperts() % groups != 0)
    return emitOpError() << "expected experts that divide by the " << groups << " groups of the rows, got "
                         << getExperts();
  if (failed(verifyOffsets(*this, getOffsets(), getExperts())) ||
      failed(verifyRank(*this, "choices", getChoices(), 1)))
    return failure();
  return verifyShape(*this, "places", getPlaces(), shapeOf(getIndices()));
}

FactorRule RouteOp::getFactorRule() {
  FactorRule rule;
  ValueFactors indices = rule.addFactors(shapeOf(getIndices()), FactorKind::Special);
  rule.operands = {indices};
  if (getOffset())
    rule.operands.emplace_back();
  if (getRows())
    rule.operands.push_back(rule.addFactors(shapeOf(getRows()), FactorKind::Special));
  rule.results = {rule.addFactors(shapeOf(getOffsets()), FactorKind::Special),
                  rule.addFactors(shapeOf(getChoices()), FactorKind::Special), indices};
  return rule;
}

Padding RouteOp::getResultPadding(const Operands &in) {
  double rows = shapeOf(getChoices()).front(), all = getPlaces().getType().getNumElements();
  return in.getResult() == 0 ? Padding{0, rows} : in.getResult() == 1 ? Padding{0, all - 1} : Padding{-1, rows - 1};
}

//===----------------------------------------------------------------------===//
// Rows and tokens
//===----------------------------------------------------------------------===//

/// Checks that
///  - input and result have one element type, and there is a dimension of tokens or more;
///  - with `each` the input ends in the choices of a token;
///  - rows as input have a dimension of size 1 for each one of the tokens, of which the first stands for
///    that of the rows;
///  - the result has a row for each element of choices.
LogicalResult TakeRowsOp::verify() {
  Shape input = shapeOf(getInput());
  int64_t tokens = getTokens(), group = getGroup();
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())) ||
      failed(verifyRank(*this, "choices", getChoices(), 1)))
    return failure();
  if (tokens < 1 || tokens > int64_t(input.size()))
    return emitOpError() << "expected from 1 to " << input.size() << " dimensions of tokens, got "
                         << tokens;
  if (group < 1)
    return emitOpError() << "expected a group of a choice or more, got " << group;
  Shape features = input.drop_front(getNested() ? std::min<int64_t>(tokens + 1, input.size()) : tokens);
  if (getNested() && failed(verifyShape(*this, "input", getInput(),
                                        getRowShape(input.front(), tokens, features))))
    return failure();
  if (getEach() && features != Shape{group})
    return emitOpError() << "expected input of " << group << " choices for each token, got "
                         << spell(input);
  return verifyShape(*this, "result", getResult(),
                     getRowShape(shapeOf(getChoices()).front(), tokens,
                                 getEach() ? Shape() : features));
}

FactorRule TakeRowsOp::getFactorRule() {
  FactorRule rule;
  size_t tokens = getTokens();
  ValueFactors rows = rule.addFactors(shapeOf(getResult()));
  ValueFactors input = rule.addFactors(shapeOf(getInput()).take_front(tokens + (getNested() ? 1 : 0)));
  if (getEach())
    input.push_back({rule.addFactor(getGroup())});
  else
    input.append(rows.begin() + 1 + tokens, rows.end());
  rule.operands = {input, {rows.front()}};
  rule.results = {rows};
  rule.linearOperands = {0};
  return rule;
}

Padding TakeRowsOp::getResultPadding(const Operands &in) { return in[0]; }

/// Checks that rows and result have one element type, and that rows have a dimension of size 1 for each
/// dimension of the tokens, and the features of the result; with `each` they have none. The first dimension of
/// tokens that are rows is that of the rows.
LogicalResult SumRowsOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "rows", getRows())) ||
      failed(verifyRankAtLeast(*this, "places", getPlaces(), 2)) ||
      failed(verifyRankAtLeast(*this, "rows", getRows(), shapeOf(getPlaces()).size() - (getNested() ? 1 : 0))))
    return failure();
  Shape places = shapeOf(getPlaces()), rows = shapeOf(getRows());
  int64_t tokens = places.size() - (getNested() ? 2 : 1);
  if (getNested() && failed(verifyShape(*this, "places", getPlaces(),
                                        getRowShape(places.front(), tokens, places.back()))))
    return failure();
  Shape features = rows.drop_front(tokens + 1);
  if (getEach() && !features.empty())
    return emitOpError() << "expected rows of one number, got " << spell(rows);
  SmallVector<int64_t> expected(getEach() ? places : places.drop_back());
  llvm::append_range(expected, features);
  if (failed(verifyShape(*this, "rows", getRows(), getRowShape(rows.front(), tokens, features))))
    return failure();
  return verifyShape(*this, "result", getResult(), expected);
}

FactorRule SumRowsOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows = rule.addFactors(shapeOf(getRows())),
               places = rule.addFactors(shapeOf(getPlaces()));
  rule.factors[places.back().front()].kind = FactorKind::Special;
  ValueFactors result(places.begin(), places.end() - (getEach() ? 0 : 1));
  result.append(rows.begin() + places.size() - (getNested() ? 1 : 0), rows.end());
  rule.operands = {rows, places};
  rule.results = {result};
  rule.linearOperands = {0, 1};
  return rule;
}

Padding SumRowsOp::getResultPadding(const Operands &in) {
  if (in[1] == Padding{-1, -1})
    return Padding::Zero;
  Type type = elementOf(*this);
  int64_t terms = getEach() ? 1 : shapeOf(getPlaces()).back();
  return padding::round(
      padding::sum(padding::meet(in[0], Padding::Zero), terms, getComputeType(type)), type);
}

//===----------------------------------------------------------------------===//
// Rows and experts
//===----------------------------------------------------------------------===//

LogicalResult RepeatRowsOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "table", getTable())) ||
      failed(verifyRankAtLeast(*this, "table", getTable(), 1)) ||
      failed(verifyOffsets(*this, getOffsets(), shapeOf(getTable()).front())) ||
      failed(verifyRankAtLeast(*this, "result", getResult(), 1)))
    return failure();
  return verifyShape(*this, "result", getResult(),
                     withFirst(shapeOf(getResult()).front(), shapeOf(getTable())));
}

FactorRule RepeatRowsOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows = rule.addFactors(shapeOf(getResult())), table = rows;
  table.front() = {rule.addFactor(shapeOf(getTable()).front())};
  rule.operands = {table, rule.addFactors(shapeOf(getOffsets()))};
  rule.results = {rows};
  rule.linearOperands = {0};
  return rule;
}

Padding RepeatRowsOp::getResultPadding(const Operands &in) { return in[0]; }

LogicalResult SumGroupsOp::verify() {
  if (failed(verifyRankAtLeast(*this, "rows", getRows(), 1)) ||
      failed(verifyRankAtLeast(*this, "result", getResult(), 1)) ||
      failed(verifyOffsets(*this, getOffsets(), shapeOf(getResult()).front())))
    return failure();
  if (elementOf(getResult()) != getComputeType(elementOf(getRows())) &&
      failed(verifyElementType(*this, "result", getResult(), "rows", getRows())))
    return failure();
  return verifyShape(*this, "result", getResult(),
                     withFirst(shapeOf(getResult()).front(), shapeOf(getRows())));
}

FactorRule SumGroupsOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows = rule.addFactors(shapeOf(getRows())), result = rows;
  rule.factors[rows.front().front()].kind = FactorKind::Contracted;
  result.front() = {rule.addFactor(shapeOf(getResult()).front())};
  rule.operands = {rows, rule.addFactors(shapeOf(getOffsets()))};
  rule.results = {result};
  rule.linearOperands = {0};
  return rule;
}

Padding SumGroupsOp::getResultPadding(const Operands &in) {
  // Experts of padding have no rows.
  if (in.isAlongResult(0))
    return Padding::Zero;
  Type type = elementOf(*this);
  return padding::round(
      padding::sum(padding::meet(in[0], Padding::Zero), shapeOf(getRows()).front(), type), type);
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

LogicalResult GroupedProductOp::verify() {
  Type wide = getComputeType(elementOf(getRows()));
  if (failed(verifyElementType(*this, "weight", getWeight(), "rows", getRows())) ||
      failed(verifyRankAtLeast(*this, "rows", getRows(), 3)) ||
      failed(verifyRank(*this, "weight", getWeight(), 3)) ||
      (elementOf(getResult()) != wide &&
       failed(verifyElementType(*this, "result", getResult(), "rows", getRows()))))
    return failure();
  Shape weight = shapeOf(getWeight()), rows = shapeOf(getRows());
  int64_t in = weight[getInOut() ? 1 : 2], out = weight[getInOut() ? 2 : 1];
  if (failed(verifyOffsets(*this, getOffsets(), weight.front())))
    return failure();
  if (rows.back() != in)
    return emitOpError() << "expected rows of " << in << " features as weight, got "
                         << rows.back();
  SmallVector<int64_t> expected(rows);
  expected.back() = out;
  return verifyShape(*this, "result", getResult(), expected);
}

FactorRule GroupedProductOp::getFactorRule() {
  FactorRule rule;
  ValueFactors result = rule.addFactors(shapeOf(getResult())), rows = result;
  FactorRule::DimFactors out = result.back();
  FactorRule::DimFactors in = {rule.addFactor(shapeOf(getRows()).back(), FactorKind::Contracted)};
  FactorRule::DimFactors experts = {rule.addFactor(shapeOf(getWeight()).front())};
  rows.back() = in;
  rule.operands = {rows, getInOut() ? ValueFactors{experts, in, out} : ValueFactors{experts, out, in},
                   rule.addFactors(shapeOf(getOffsets()))};
  rule.results = {result};
  rule.linearOperands = {0, 1};
  return rule;
}

double GroupedProductOp::getFlops() {
  return 2.0 * double(getResult().getType().getNumElements()) * double(shapeOf(getRows()).back());
}

Padding GroupedProductOp::getResultPadding(const Operands &in) {
  return padding::sumProducts(*this, in);
}

LogicalResult GroupedOuterOp::verify() {
  Type wide = getComputeType(elementOf(getLhs()));
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyRankAtLeast(*this, "lhs", getLhs(), 3)) ||
      failed(verifyRank(*this, "result", getResult(), 3)) ||
      failed(verifyOffsets(*this, getOffsets(), shapeOf(getResult()).front())))
    return failure();
  if (elementOf(getResult()) != wide)
    return emitOpError() << "expected a result of element type " << wide << ", got "
                         << elementOf(getResult());
  Shape lhs = shapeOf(getLhs()), rhs = shapeOf(getRhs());
  if (lhs.drop_back() != rhs.drop_back())
    return emitOpError() << "expected rhs with the dimensions " << spell(lhs.drop_back())
                         << " before its features as lhs, got " << spell(rhs.drop_back());
  return verifyShape(*this, "result", getResult(),
                     {shapeOf(getResult()).front(), lhs.back(), rhs.back()});
}

FactorRule GroupedOuterOp::getFactorRule() {
  FactorRule rule;
  ValueFactors lhs = rule.addFactors(shapeOf(getLhs())), rhs = lhs;
  rule.factors[lhs.front().front()].kind = FactorKind::Contracted;
  rhs.back() = {rule.addFactor(shapeOf(getRhs()).back())};
  FactorRule::DimFactors experts = {rule.addFactor(shapeOf(getResult()).front())};
  rule.operands = {lhs, rhs, rule.addFactors(shapeOf(getOffsets()))};
  rule.results = {{experts, lhs.back(), rhs.back()}};
  rule.linearOperands = {0, 1};
  return rule;
}

double GroupedOuterOp::getFlops() {
  return 2.0 * double(getLhs().getType().getNumElements()) * double(shapeOf(getRhs()).back());
}

Padding GroupedOuterOp::getResultPadding(const Operands &in) {
  return in.isAlongResult(0) ? Padding::Zero
                             : padding::meet(padding::sumProducts(*this, in), Padding::Zero);
}

//===----------------------------------------------------------------------===//
// Rows on other ranks
//===----------------------------------------------------------------------===//

/// Checks that rows have one element type and the same dimensions behind the first, and that axes are.
static LogicalResult verifyMoved(Operation *op, Value rows, Value result, ArrayAttr axes) {
  if (failed(verifyElementType(op, "result", result, "rows", rows)) ||
      failed(verifyRankAtLeast(op, "rows", rows, 2)) ||
      failed(verifyRankAtLeast(op, "result", result, 2)))
    return failure();
  if (axes.empty() || !llvm::all_of(axes, llvm::IsaPred<dist::AxisRefAttr>))
    return op->emitOpError() << "expected a list of axes, got " << axes;
  return verifyShape(op, "result", result, withFirst(shapeOf(result).front(), shapeOf(rows)));
}

/// Checks that parts count the rows of `experts` experts for each of some ranks.
static LogicalResult verifyParts(Operation *op, Value parts, int64_t experts) {
  int64_t count = shapeOf(parts).size() == 1 ? shapeOf(parts).front() - 1 : -1;
  if (count >= experts && experts > 0 && count % experts == 0)
    return success();
  return op->emitOpError() << "expected parts of " << experts << " experts for each rank, and their end, got "
                           << spell(shapeOf(parts));
}

static FactorRule getMovedRule(Operation *op) {
  FactorRule rule;
  ValueFactors rows = rule.addFactors(shapeOf(op->getOperand(0))), result = rows;
  result.front() = {rule.addFactor(shapeOf(op->getResult(0)).front())};
  rule.operands = {rows};
  for (Value operand : op->getOperands().drop_front())
    rule.operands.push_back(rule.addFactors(shapeOf(operand)));
  rule.results = {result};
  for (Value other : op->getResults().drop_front())
    rule.results.push_back(rule.addFactors(shapeOf(other)));
  rule.linearOperands = {0};
  return rule;
}

LogicalResult SendRowsOp::verify() {
  if (failed(verifyMoved(*this, getRows(), getResult(), getAxes())) ||
      failed(verifyRank(*this, "offsets", getOffsets(), 1)) ||
      failed(verifyRank(*this, "own", getOwn(), 1)))
    return failure();
  return verifyParts(*this, getParts(), shapeOf(getOwn()).front() - 1);
}

FactorRule SendRowsOp::getFactorRule() { return getMovedRule(*this); }

Padding SendRowsOp::getResultPadding(const Operands &in) {
  return in.getResult() == 0 ? in[0] : padding::ofType(elementOf(getOwn()));
}

LogicalResult ReturnRowsOp::verify() {
  if (failed(verifyMoved(*this, getRows(), getResult(), getAxes())))
    return failure();
  return verifyRank(*this, "offsets", getOffsets(), 1);
}

FactorRule ReturnRowsOp::getFactorRule() { return getMovedRule(*this); }

Padding ReturnRowsOp::getResultPadding(const Operands &in) { return in[0]; }

//===----------------------------------------------------------------------===//
// Routings
//===----------------------------------------------------------------------===//

Value TakeRowsOp::getOffsetsOfRows() {
  auto route = getChoices().getDefiningOp<RouteOp>();
  return route && getChoices() == route.getChoices() ? route.getOffsets() : Value();
}
Value RepeatRowsOp::getOffsetsOfRows() { return getOffsets(); }
Value GroupedProductOp::getOffsetsOfRows() { return getOffsets(); }
Value SumGroupsOp::getOffsetsOfRows() { return getOffsets(); }
bool SumGroupsOp::givesRows() { return false; }
Value GroupedOuterOp::getOffsetsOfRows() { return getOffsets(); }
bool GroupedOuterOp::givesRows() { return false; }
Value SendRowsOp::getOffsetsOfRows() { return getOwn(); }
Value ReturnRowsOp::getOffsetsOfRows() { return getOffsets(); }

RoutingUse RouteOp::getRoutingUse() {
  RoutingUse use{0, {}, /*givesRouted=*/true, int64_t(getShared().value_or(1))};
  if (getRows())
    use.tokens = getOffset() ? 2 : 1;
  return use;
}
RoutingUse TakeRowsOp::getRoutingUse() {
  return {std::nullopt, {1}, /*givesRouted=*/true, /*shared=*/1, /*tokens=*/0};
}
RoutingUse SumRowsOp::getRoutingUse() {
  return {std::nullopt, {0, 1}, /*givesRouted=*/false, /*shared=*/1, std::nullopt, /*givesTokens=*/true};
}
RoutingUse RepeatRowsOp::getRoutingUse() { return {std::nullopt, {1}, /*givesRouted=*/true}; }
RoutingUse SumGroupsOp::getRoutingUse() { return {std::nullopt, {0, 1}, /*givesRouted=*/false}; }
RoutingUse GroupedProductOp::getRoutingUse() { return {std::nullopt, {0, 2}, /*givesRouted=*/true}; }
RoutingUse GroupedOuterOp::getRoutingUse() { return {std::nullopt, {0, 1, 2}, /*givesRouted=*/false}; }
RoutingUse SendRowsOp::getRoutingUse() {
  RoutingUse use{std::nullopt, {0, 1}, /*givesRouted=*/true};
  use.sentAlong = getAxes();
  use.sentTo = shapeOf(getOffsets()).front() - 1;
  return use;
}
RoutingUse ReturnRowsOp::getRoutingUse() { return {std::nullopt, {0, 1, 2}, /*givesRouted=*/true}; }
