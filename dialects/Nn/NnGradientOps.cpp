//===- NnGradientOps.cpp - ops of backward passes -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Verifiers, factor rules, padding rules and work of the ops of NnGradientOps.td.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"
#include "meshwright/dialects/Nn/Writer.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;
using dist::FactorKind;
using dist::FactorRule;
using ValueFactors = FactorRule::ValueFactors;

/// Checks that the result has the type in which elements of the operand are summed.
static LogicalResult verifySumType(Operation *op, StringRef subject, Value operand) {
  Type expected = getComputeType(getElementTypeOrSelf(operand.getType()));
  Type got = getElementTypeOrSelf(op->getResult(0).getType());
  if (got == expected)
    return success();
  return op->emitOpError() << "expected result of element type " << expected
                           << ", the type of sums of " << subject << ", got " << got;
}

//===----------------------------------------------------------------------===//
// nn.gradient
//===----------------------------------------------------------------------===//

/// Checks that a gradient is of a parameter of the function, in the type of its sums.
static LogicalResult
verifyParameter(GradientOp op, FunctionOpInterface function,
                const llvm::DenseMap<StringAttr, SmallVector<unsigned, 1>> &arguments) {
  auto found = arguments.find(op.getParameterAttr());
  if (found == arguments.end())
    return op.emitOpError() << "expected a parameter of the function, got '" << op.getParameter()
                            << "'";
  for (unsigned i : found->second) {
    auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[i]);
    if (!type || !isa<FloatType>(type.getElementType()))
      return op.emitOpError() << "expected parameter '" << op.getParameter()
                              << "' to be of float type, got " << function.getArgumentTypes()[i];
    bool isPart = bool(function.getArgAttr(i, NnDialect::kParameterOffsetsAttr));
    if (op.getType().getElementType() != getComputeType(type.getElementType()) ||
        (!isPart && op.getType().getShape() != type.getShape()))
      return op.emitOpError() << "expected result of type "
                              << type.clone(getComputeType(type.getElementType())) << ", got "
                              << op.getType();
  }
  return success();
}

/// Checks that
///  - the loss has one element;
///  - the function has a parameter of this name, of float type;
///  - the result has the parameter's shape, or that of the stored tensor of which the function
///    has parts, in the type of sums.
LogicalResult GradientOp::verify() {
  if (getLoss().getType().getNumElements() != 1)
    return emitOpError() << "expected a loss with one element, got " << getLoss().getType();
  // The first of a loss checks them all: each weight has a gradient, and a walk over all arguments
  // for each would take time that grows with the square of their number.
  auto gradients = llvm::make_filter_range(getLoss().getUsers(), llvm::IsaPred<GradientOp>);
  if (*gradients.begin() != *this)
    return success();
  auto function = (*this)->getParentOfType<FunctionOpInterface>();
  llvm::DenseMap<StringAttr, SmallVector<unsigned, 1>> arguments;
  for (unsigned i = 0; function && i < function.getNumArguments(); ++i)
    if (auto name = function.getArgAttrOfType<StringAttr>(i, NnDialect::kParameterAttr))
      arguments[name].push_back(i);
  for (Operation *user : gradients)
    if (failed(verifyParameter(cast<GradientOp>(user), function, arguments)))
      return failure();
  return success();
}

/// `differentiate` replaces the op before a value of it has a layout.
FactorRule GradientOp::getFactorRule() {
  FactorRule rule;
  rule.operands.push_back(rule.addFactors(shapeOf(getLoss()), FactorKind::Special));
  rule.results.push_back(rule.addFactors(shapeOf(getResult())));
  return rule;
}

Padding GradientOp::getResultPadding(const Operands &) { return Padding::Arbitrary; }

//===----------------------------------------------------------------------===//
// nn.weight_grad
//===----------------------------------------------------------------------===//

/// Checks that
///  - operands have one element type, a dimension or more, and one shape but for the last;
///  - the result is [m, n] in the type of sums.
LogicalResult WeightGradOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyRankAtLeast(*this, "lhs", getLhs(), 1)) ||
      failed(verifyRank(*this, "rhs", getRhs(), typeOf(getLhs()).getRank())) ||
      failed(verifySumType(*this, "lhs", getLhs())))
    return failure();
  SmallVector<int64_t> rows(shapeOf(getLhs()).drop_back());
  int64_t m = shapeOf(getLhs()).back(), n = shapeOf(getRhs()).back();
  rows.push_back(n);
  if (failed(verifyShape(*this, "rhs", getRhs(), rows)))
    return failure();
  return verifyShape(*this, "result", getResult(), {m, n});
}

FactorRule WeightGradOp::getFactorRule() {
  FactorRule rule;
  ValueFactors rows = rule.addFactors(shapeOf(getLhs()).drop_back(), FactorKind::Contracted);
  ValueFactors result = rule.addFactors(shapeOf(getResult()));
  for (const FactorRule::DimFactors &features : result) {
    rule.operands.push_back(rows);
    rule.operands.back().push_back(features);
  }
  rule.results.push_back(std::move(result));
  rule.linearOperands = {0, 1};
  return rule;
}

Padding WeightGradOp::getResultPadding(const Operands &in) { return sumProducts(*this, in); }

double WeightGradOp::getFlops() {
  return 2.0 * double(getLhs().getType().getNumElements()) * double(shapeOf(getRhs()).back());
}

//===----------------------------------------------------------------------===//
// nn.scatter_add
//===----------------------------------------------------------------------===//

/// Checks that
///  - `dim` is a dimension of the result, and an offset has none;
///  - the result is in the type of sums;
///  - with `along` the indices have the updates' shape, else their shape from `dim` on;
///  - the result has the updates' other dimensions.
LogicalResult ScatterAddOp::verify() {
  if (failed(verifyDim(*this, getDim(), "result", getResult())) ||
      failed(verifySumType(*this, "updates", getUpdates())) ||
      (getOffset() && failed(verifyRank(*this, "offset", getOffset(), 0))))
    return failure();
  Shape updates = shapeOf(getUpdates()), indices = shapeOf(getIndices());
  int64_t dim = getDim(), behind = typeOf(getResult()).getRank() - dim - 1;
  int64_t count = getNumIndexedDims();
  if (failed(verifyRank(*this, "updates", getUpdates(), dim + count + behind)))
    return failure();
  if (getAlong() ? indices != updates : indices != updates.slice(dim, count))
    return emitOpError() << "expected indices of shape "
                         << spell(getAlong() ? updates : updates.slice(dim, count)) << ", got "
                         << spell(indices);
  SmallVector<int64_t> expected(updates.take_front(dim));
  expected.push_back(shapeOf(getResult())[dim]);
  llvm::append_range(expected, updates.take_back(behind));
  return verifyShape(*this, "result", getResult(), expected);
}

FactorRule ScatterAddOp::getFactorRule() {
  FactorRule rule;
  ValueFactors updates = rule.addFactors(shapeOf(getUpdates())), result;
  int64_t dim = getDim(), count = getNumIndexedDims();
  ArrayRef<FactorRule::DimFactors> indexed = ArrayRef(updates).slice(dim, count);
  for (const FactorRule::DimFactors &factors : indexed)
    rule.factors[factors.front()].kind = FactorKind::Contracted;
  result.append(updates.begin(), updates.begin() + dim);
  result.push_back({rule.addFactor(shapeOf(getResult())[dim])});
  result.append(updates.begin() + dim + count, updates.end());
  rule.operands.push_back(updates);
  rule.operands.push_back(getAlong() ? updates : ValueFactors(indexed.begin(), indexed.end()));
  if (getOffset())
    rule.operands.emplace_back();
  rule.results.push_back(std::move(result));
  rule.linearOperands = {0};
  return rule;
}

Padding ScatterAddOp::getResultPadding(const Operands &in) {
  // No index is one of a row of padding.
  if (in.isAlongResult(getDim()))
    return Padding::Zero;
  Type type = getElementTypeOrSelf(getType());
  return meet(Padding::Zero, round(sum(ofRow(in, in[0]), in.getReadCount(), type), type));
}

std::optional<Need> ScatterAddOp::getPaddingNeed() {
  return Need{Padding::Zero, "expected zero", /*isStrict=*/true};
}

std::optional<unsigned> ScatterAddOp::getTableOperand() { return std::nullopt; }
unsigned ScatterAddOp::getIndexOperand() { return 1; }
int64_t ScatterAddOp::getTableDim() { return getDim(); }
bool ScatterAddOp::takesOffset() { return true; }
std::optional<unsigned> ScatterAddOp::getOffsetOperand() {
  return getOffset() ? std::optional<unsigned>(2) : std::nullopt;
}

//===----------------------------------------------------------------------===//
// nn.pad
//===----------------------------------------------------------------------===//

/// The size of a dimension of `size` elements behind nn.pad; none if it exceeds 63 bits.
static std::optional<int64_t> getPaddedSize(int64_t size, int64_t low, int64_t high,
                                            int64_t interior) {
  int64_t between = 0, result = 0;
  if (size > 0 && llvm::MulOverflow(size - 1, interior, between))
    return std::nullopt;
  for (int64_t part : {size, low, high, between})
    if (llvm::AddOverflow(result, part, result))
      return std::nullopt;
  return result;
}

/// Checks that
///  - input and result have one element type;
///  - each dimension has a number of zeros before, behind and between its elements, none of them
///    negative;
///  - the result has the elements and the zeros of each dimension.
LogicalResult PadOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "input", getInput())))
    return failure();
  Shape shape = shapeOf(getInput());
  const std::pair<StringRef, Shape> lists[] = {
      {"low", getLow()}, {"high", getHigh()}, {"interior", getInterior()}};
  for (auto [name, list] : lists) {
    if (list.size() != shape.size())
      return emitOpError() << "expected " << shape.size() << " numbers in " << name
                           << ", one for each dimension of input, got " << list.size();
    for (int64_t number : list)
      if (number < 0)
        return emitOpError() << "expected " << name << " not to be negative, got " << number;
  }
  SmallVector<int64_t> expected;
  for (size_t i = 0; i < shape.size(); ++i) {
    auto size = getPaddedSize(shape[i], getLow()[i], getHigh()[i], getInterior()[i]);
    if (!size)
      return emitOpError() << "expected dimension " << i
                           << " of result of less than 2^63, got more";
    expected.push_back(*size);
  }
  return verifyShape(*this, "result", getResult(), expected);
}

OpFoldResult PadOp::fold(FoldAdaptor adaptor) {
  bool isAnnotated = (*this)->hasAttr(dist::DistDialect::kShardingAttr);
  return !isAnnotated && getInput().getType() == getType() ? getInput() : OpFoldResult();
}

FactorRule PadOp::getFactorRule() {
  FactorRule rule;
  ValueFactors source, target;
  for (auto [from, to] : llvm::zip_equal(shapeOf(getInput()), shapeOf(getResult()))) {
    // A dimension without zeros keeps its size.
    FactorKind kind = from == to ? FactorKind::Parallel : FactorKind::Special;
    source.push_back({rule.addFactor(from, kind)});
    target.push_back(from == to ? source.back() : FactorRule::DimFactors{rule.addFactor(to, kind)});
  }
  rule.operands.push_back(std::move(source));
  rule.results.push_back(std::move(target));
  rule.linearOperands = {0};
  return rule;
}

Padding PadOp::getResultPadding(const Operands &in) { return meet(in[0], Padding::Zero); }

SmallVector<int64_t, 2> PadOp::getExpandedDims() { return {}; }
int64_t PadOp::getNumStatistics() { return 0; }
bool PadOp::needsExpansion() { return true; }

/// Concatenates with zeros, one dimension after the other. Zeros between elements are a dimension
/// of their own while they are added.
Value PadOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Value value = getInput();
  auto zeros = [&](ArrayRef<int64_t> shape, int64_t dim, int64_t size) {
    SmallVector<int64_t> own(shape);
    own[dim] = size;
    return w.fill(0, typeOf(value).clone(own));
  };
  for (int64_t dim = 0, rank = getType().getRank(); dim < rank; ++dim) {
    int64_t size = typeOf(value).getDimSize(dim), interior = getInterior()[dim];
    if (interior > 0 && size > 1) {
      SmallVector<int64_t> split(shapeOf(value)), joined(shapeOf(value));
      split.insert(split.begin() + dim + 1, 1);
      value = w.reshape(value, split);
      value = w.concat({value, zeros(split, dim + 1, interior)}, dim + 1);
      joined[dim] = size * (interior + 1);
      value = w.reshape(value, joined);
      value = w.slice(value, dim, 0, joined[dim] - interior);
    }
    SmallVector<Value, 3> parts;
    if (getLow()[dim] > 0)
      parts.push_back(zeros(shapeOf(value), dim, getLow()[dim]));
    parts.push_back(value);
    if (getHigh()[dim] > 0)
      parts.push_back(zeros(shapeOf(value), dim, getHigh()[dim]));
    if (parts.size() > 1)
      value = w.concat(parts, dim);
  }
  // An op that adds nothing.
  if (value == getInput())
    value = ReshapeOp::create(builder, getLoc(), getType(), value);
  return value;
}
