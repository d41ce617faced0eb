//===- Routed.cpp - tensors with rows of some experts ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/Choices.h"
#include "meshwright/dialects/Nn/MovedRows.h"

#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::FactorKind;
using dist::FactorRule;

//===----------------------------------------------------------------------===//
// The encoding
//===----------------------------------------------------------------------===//

Attribute RoutedAttr::parse(AsmParser &parser, Type) {
  int64_t choices, shared = 1;
  bool repeats = false;
  if (parser.parseLess() || parser.parseInteger(choices))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    if (!repeats && succeeded(parser.parseOptionalKeyword("repeats")))
      repeats = true;
    else if (parser.parseKeyword("shared") || parser.parseEqual() || parser.parseInteger(shared))
      return {};
  }
  if (parser.parseGreater())
    return {};
  return RoutedAttr::get(parser.getContext(), choices, repeats, shared);
}

void RoutedAttr::print(AsmPrinter &printer) const {
  printer << "<" << getChoices();
  if (getRepeats())
    printer << ", repeats";
  if (getShared() != 1)
    printer << ", shared = " << getShared();
  printer << ">";
}

int64_t RoutedAttr::getCapacity(ArrayRef<int64_t> shape) const {
  // Repeated choices of one expert, of a group, have one row.
  bool repeats = getRepeats() && getShared() == 1;
  int64_t rows = repeats ? getChoices() : std::min(getChoices(), shape.front());
  return rows * ShapedType::getNumElements(shape.drop_front());
}

int64_t RoutedAttr::getExpected(ArrayRef<int64_t> shape) const {
  auto rows = RankedTensorType::get(shape, IntegerType::get(getContext(), 64), *this);
  return getExpectedElements(rows, std::max<int64_t>(1, shape.front()));
}

/// Checks that a tensor has experts and tokens, and that a token has a choice or more.
LogicalResult RoutedAttr::verifyEncoding(ArrayRef<int64_t> shape, Type,
                                         llvm::function_ref<InFlightDiagnostic()> emitError) const {
  if (shape.size() < 2)
    return emitError() << "expected a routed tensor of rank 2 or more (experts, tokens), got rank "
                       << shape.size();
  if (getChoices() < 1)
    return emitError() << "expected a routed tensor with a choice or more for each token, got "
                       << getChoices();
  if (getShared() < 1)
    return emitError() << "expected an expert or more that share a row of a routed tensor, got "
                       << getShared();
  return success();
}

RoutedAttr nn::getRouted(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor ? dyn_cast_or_null<RoutedAttr>(tensor.getEncoding()) : RoutedAttr();
}

RoutedAttr nn::getShared(RoutedAttr routed, int64_t shared) {
  return RoutedAttr::get(routed.getContext(), routed.getChoices(), routed.getRepeats(), shared);
}

//===----------------------------------------------------------------------===//
// Ops on rows
//===----------------------------------------------------------------------===//

/// Returns true if an op leaves out the last elements of dimensions, and no others. In a program on ranks they
/// are padding, and experts and tokens of padding have no rows.
static bool leavesOutTail(Operation *op) {
  auto slice = dyn_cast<SliceOp>(op);
  auto isOne = [](int64_t stride) { return stride == 1; };
  auto isZero = [](int64_t start) { return start == 0; };
  return slice && llvm::all_of(slice.getStarts(), isZero) && llvm::all_of(slice.getStrides(), isOne);
}

/// Returns true if a dimension of an operand is the same dimension of a result, index by index.
static bool keepsDim(const FactorRule &rule, Value operand, unsigned i, Value result, int64_t dim) {
  if (shapeOf(operand)[dim] != shapeOf(result)[dim] ||
      rule.operands[i][dim] != rule.results[0][dim])
    return false;
  return llvm::all_of(rule.operands[i][dim], [&](int factor) {
    return rule.factors[factor].kind == FactorKind::Parallel;
  });
}

LogicalResult nn::detail::verifyKeepsRows(Operation *op) {
  // These go between rows and tokens, which may be rows of another routing.
  if (isa<DispatchOp, CombineOp>(op))
    return success();
  RoutedAttr routed;
  bool hasResult = llvm::any_of(op->getResultTypes(), [](Type type) { return getRouted(type); });
  for (Value operand : op->getOperands()) {
    RoutedAttr own = getRouted(operand.getType());
    if (own && routed && own != routed)
      return op->emitOpError() << "expected operands of one routing, got " << routed << " and "
                               << own;
    if (own)
      routed = own;
  }
  if ((!routed && !hasResult) || isa<GroupedLinearOp, GroupedWeightGradOp>(op))
    return success();
  // A constant has each row.
  if (op->getNumOperands() == 0)
    return success();
  if (!routed)
    return op->emitOpError("expected a routed operand as the result is routed, got none");
  FactorRule rule = cast<dist::ShardingRuleOpInterface>(op).getFactorRule();
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!getRouted(operand.getType()))
      continue;
    if (!hasResult) {
      // A sum over the tokens of each expert, or of all of them.
      if (rule.operands[i][1].empty() || rule.factors[rule.operands[i][1].front()].kind == FactorKind::Contracted)
        continue;
      return op->emitOpError() << "expected a result with the encoding of operand " << i << ", "
                               << routed << ", got " << op->getResult(0).getType();
    }
    for (Value result : op->getResults())
      for (int64_t dim : {0, 1})
        if (getRouted(result.getType()) != routed ||
            (!keepsDim(rule, operand, i, result, dim) && !leavesOutTail(op)))
          return op->emitOpError() << "expected to treat the rows of operand " << i
                                   << ", which is routed, one by one";
  }
  return success();
}

/// The choices that an op moves, casts or limits to give these. Null for other ops.
static Value getChoicesBefore(Value indices) {
  Operation *op = indices.getDefiningOp();
  // Choices that go with the rows of their tokens.
  if (auto dispatch = dyn_cast_or_null<DispatchOp>(op))
    return dispatch.getInput();
  if (!isa_and_nonnull<dist::CollectiveOpInterface, dist::AfterOp, LimitOp, CastOp, SelectOp, ReshapeOp, SliceOp>(op))
    return nullptr;
  // A collective of several tensors moves each on its own.
  if (op->getNumOperands() == op->getNumResults())
    return op->getOperand(cast<OpResult>(indices).getResultNumber());
  // The choices are an operand of integers, with the same choices of a token.
  auto isSame = [&](Value operand) {
    auto type = dyn_cast<RankedTensorType>(operand.getType());
    return type && type.getRank() > 0 && type.getElementType().isInteger() &&
           !type.getElementType().isInteger(1) && type.getShape().back() == shapeOf(indices).back();
  };
  auto from = llvm::find_if(op->getOperands(), isSame);
  return from == op->getOperands().end() ? Value() : *from;
}

Value nn::getCastChoices(Value choices) {
  auto cast = choices.getDefiningOp<CastOp>();
  auto fits = [](Value value) {
    Type type = elementOf(value);
    return type.isInteger() && type.getIntOrFloatBitWidth() >= 32;
  };
  return cast && fits(cast.getInput()) && fits(choices) ? cast.getInput() : Value();
}

Value nn::getJoined(Operation *op, llvm::function_ref<Value(Value)> getSource) {
  auto concat = dyn_cast<ConcatOp>(op);
  if (!concat)
    return nullptr;
  Value whole;
  int64_t dim = concat.getDim(), next = 0, size = 0;
  for (Value input : concat.getInputs()) {
    auto slice = getSource(input).getDefiningOp<SliceOp>();
    if (!slice)
      return nullptr;
    Value from = getSource(slice.getInput());
    ArrayRef<int64_t> shape = shapeOf(slice.getInput()), piece = shapeOf(slice);
    bool isNext = slice.getStarts()[dim] == next && slice.getStrides()[dim] == 1;
    if (!isNext || (whole && (whole != from || size != shape[dim])))
      return nullptr;
    for (size_t d = 0; d < shape.size(); ++d)
      if (int64_t(d) != dim && piece[d] != shape[d])
        return nullptr;
    whole = from;
    size = shape[dim];
    next += piece[dim];
  }
  return next == size ? whole : Value();
}

Value nn::getChoicesRoot(Value indices) {
  while (Value before = getChoicesBefore(indices))
    indices = before;
  return indices;
}

LimitOp nn::getLimit(Value indices) {
  while (indices && !indices.getDefiningOp<LimitOp>())
    indices = getChoicesBefore(indices);
  return indices ? indices.getDefiningOp<LimitOp>() : LimitOp();
}

SmallVector<std::pair<Value, DispatchOp>> nn::getRoutings(Block &block) {
  SmallVector<std::pair<Value, DispatchOp>> routings;
  for (auto dispatch : block.getOps<DispatchOp>()) {
    Value root = getChoicesRoot(dispatch.getIndices());
    if (llvm::none_of(routings, [&](const auto &known) { return known.first == root; }))
      routings.push_back({root, dispatch});
  }
  return routings;
}

int64_t nn::getNumTokenDims(Value rows) {
  DispatchOp dispatch = getRouted(rows.getType()) ? getDispatch(rows) : DispatchOp();
  if (!dispatch)
    return 0;
  RankedTensorType indices = dispatch.getIndices().getType();
  return indices.getRank() - (getRouted(indices) ? 2 : 1);
}

DispatchOp nn::getDispatch(Value rows) {
  Operation *op = rows.getDefiningOp();
  if (!op || isa<DispatchOp>(op))
    return dyn_cast_or_null<DispatchOp>(op);
  for (Value operand : op->getOperands())
    if (getRouted(operand.getType()))
      if (DispatchOp dispatch = getDispatch(operand))
        return dispatch;
  return {};
}
