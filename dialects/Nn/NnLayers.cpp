//===- NnLayers.cpp - verifiers of layers ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/Support/ElementTypes.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// Checks the type of a product's result: that of its operands, or f32 for bf16 and f16, which
/// partial sums keep until ranks have added them.
static LogicalResult verifyResultType(Operation *op, StringRef name, Value operand) {
  Type type = elementOf(operand), wide = getComputeType(type);
  if (type != wide && elementOf(op->getResult(0)) == wide)
    return success();
  return verifyElementType(op, "result", op->getResult(0), name, operand);
}

/// Checks that
///  - operands have one element type, and two dimensions or more;
///  - the result has their element type, or f32;
///  - the operands agree in the dimension that is summed;
///  - their other leading dimensions broadcast, to those of the result;
///  - the result ends in the rows of lhs and the columns of rhs.
LogicalResult MatmulOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyResultType(*this, "lhs", getLhs())) ||
      failed(verifyRankAtLeast(*this, "lhs", getLhs(), 2)) ||
      failed(verifyRankAtLeast(*this, "rhs", getRhs(), 2)))
    return failure();
  SmallVector<int64_t> lhs(shapeOf(getLhs())), rhs(shapeOf(getRhs()));
  if (getTransposeLhs())
    std::swap(lhs.back(), lhs[lhs.size() - 2]);
  if (getTransposeRhs())
    std::swap(rhs.back(), rhs[rhs.size() - 2]);
  int64_t inner = rhs[rhs.size() - 2];
  if (lhs.back() != inner)
    return emitOpError() << "expected lhs and rhs to agree in the dimension that is summed, got "
                         << lhs.back() << " and " << inner;
  Shape batches[] = {Shape(lhs).drop_back(2), Shape(rhs).drop_back(2)};
  std::optional<SmallVector<int64_t>> expected = broadcastShapes(batches);
  if (!expected)
    return emitOpError() << "expected batch dimensions that broadcast, got " << spell(batches[0])
                         << " and " << spell(batches[1]);
  expected->push_back(lhs[lhs.size() - 2]);
  expected->push_back(rhs.back());
  return verifyShape(*this, "result", getResult(), *expected);
}

/// Checks that
///  - operands have one element type, and the result has it or, without a bias, f32;
///  - the weight has two dimensions, and the input ends in the weight's in features;
///  - a bias has one element for each out feature;
///  - the result has the input's shape with the out features last.
LogicalResult LinearOp::verify() {
  if (failed(verifyElementType(*this, "weight", getWeight(), "input", getInput())) ||
      failed(getBias() ? verifyElementType(*this, "result", getResult(), "input", getInput())
                       : verifyResultType(*this, "input", getInput())) ||
      failed(verifyRankAtLeast(*this, "input", getInput(), 1)) ||
      failed(verifyRank(*this, "weight", getWeight(), 2)))
    return failure();
  Shape weight = shapeOf(getWeight());
  int64_t in = weight[getInOut() ? 0 : 1], out = weight[getInOut() ? 1 : 0];
  SmallVector<int64_t> expected(shapeOf(getInput()));
  if (expected.back() != in)
    return emitOpError() << "expected input of " << in << " features as weight, got "
                         << expected.back();
  if (getBias() && (failed(verifyElementType(*this, "bias", getBias(), "input", getInput())) ||
                    failed(verifyShape(*this, "bias", getBias(), {out}))))
    return failure();
  expected.back() = out;
  return verifyShape(*this, "result", getResult(), expected);
}

std::optional<int64_t> nn::getTableRows(dist::LookupOpInterface lookup) {
  if (!lookup.getOffsetOperand())
    return shapeOf(lookup.getTable())[lookup.getTableDim()];
  if (auto rows = lookup->getAttrOfType<IntegerAttr>(NnDialect::kTableRowsAttr))
    return rows.getInt();
  return std::nullopt;
}

/// Checks that
///  - table and result have one element type;
///  - the table has two dimensions, and an offset none;
///  - the result has the shape of the ids, followed by the table's features.
LogicalResult EmbeddingOp::verify() {
  if (failed(verifyElementType(*this, "result", getResult(), "table", getTable())) ||
      failed(verifyRank(*this, "table", getTable(), 2)) ||
      (getOffset() && failed(verifyRank(*this, "offset", getOffset(), 0))))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getIds()));
  expected.push_back(shapeOf(getTable())[1]);
  return verifyShape(*this, "result", getResult(), expected);
}

/// Checks that input and result have one type with a dimension or more, and that eps is
/// finite and not negative.
static LogicalResult verifyNorm(Operation *op, Value input, Value result, const APFloat &eps) {
  if (failed(verifyElementType(op, "result", result, "input", input)) ||
      failed(verifyRankAtLeast(op, "input", input, 1)) ||
      failed(verifyShape(op, "result", result, shapeOf(input))))
    return failure();
  return verifyEpsilon(op, eps);
}

/// Checks that a parameter of a norm, if there is one, has the input's element type and one
/// element for each feature.
static LogicalResult verifyNormParameter(Operation *op, StringRef subject, Value parameter,
                                         Value input) {
  if (!parameter)
    return success();
  if (failed(verifyElementType(op, subject, parameter, "input", input)))
    return failure();
  return verifyShape(op, subject, parameter, {shapeOf(input).back()});
}

LogicalResult RmsNormOp::verify() {
  if (failed(verifyNorm(*this, getInput(), getResult(), getEps())))
    return failure();
  if (getUnitOffset() && !getWeight())
    return emitOpError("expected weight with unit_offset, got none");
  return verifyNormParameter(*this, "weight", getWeight(), getInput());
}

LogicalResult LayerNormOp::verify() {
  if (failed(verifyNorm(*this, getInput(), getResult(), getEps())) ||
      failed(verifyNormParameter(*this, "weight", getWeight(), getInput())))
    return failure();
  return verifyNormParameter(*this, "bias", getBias(), getInput());
}

/// Checks that
///  - operands and result have one element type, and input and result one shape;
///  - cos and sin end in the same number of features, which is even, from 2 to the input's;
///  - cos and sin broadcast to the part of the input that is rotated.
LogicalResult RotaryOp::verify() {
  if (failed(verifyElementType(*this, "cos", getCos(), "input", getInput())) ||
      failed(verifyElementType(*this, "sin", getSin(), "input", getInput())) ||
      failed(verifyElementType(*this, "result", getResult(), "input", getInput())) ||
      failed(verifyShape(*this, "result", getResult(), shapeOf(getInput()))) ||
      failed(verifyRankAtLeast(*this, "input", getInput(), 1)) ||
      failed(verifyRankAtLeast(*this, "cos", getCos(), 1)) ||
      failed(verifyRankAtLeast(*this, "sin", getSin(), 1)))
    return failure();
  int64_t rotated = shapeOf(getCos()).back(), features = shapeOf(getInput()).back();
  if (rotated < 2 || rotated > features || rotated % 2)
    return emitOpError() << "expected cos to end in an even number of features from 2 to "
                         << features << ", got " << rotated;
  SmallVector<int64_t> target(shapeOf(getInput()));
  target.back() = rotated;
  if (shapeOf(getSin()).back() != rotated)
    return emitOpError() << "expected sin to end in " << rotated << " features as cos, got "
                         << shapeOf(getSin()).back();
  if (failed(verifyStretchesTo(*this, "cos", getCos(), target)))
    return failure();
  return verifyStretchesTo(*this, "sin", getSin(), target);
}
