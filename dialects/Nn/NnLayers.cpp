//===- NnLayers.cpp - verifiers of layers ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"
#include "meshwright/dialects/Nn/TableRows.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// Checks that
///  - operands and result have one element type, and the operands two dimensions or more;
///  - the operands agree in the dimension that is summed;
///  - their other leading dimensions broadcast, to those of the result;
///  - the result ends in the rows of lhs and the columns of rhs.
LogicalResult MatmulOp::verify() {
  if (failed(verifyElementType(*this, "rhs", getRhs(), "lhs", getLhs())) ||
      failed(verifyElementType(*this, "result", getResult(), "lhs", getLhs())) ||
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
///  - operands and result have one element type;
///  - the weight has two dimensions, and the input ends in the weight's in features;
///  - a bias has one element for each out feature;
///  - the result has the input's shape with the out features last.
LogicalResult LinearOp::verify() {
  if (failed(verifyElementType(*this, "weight", getWeight(), "input", getInput())) ||
      failed(verifyElementType(*this, "result", getResult(), "input", getInput())) ||
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

/// Checks that
///  - scale is finite, and soft_cap finite and positive;
///  - windows are not negative;
///  - kv_length is from 0 to the number of keys.
template <typename Op> static LogicalResult verifyAttentionAttributes(Op op) {
  double scale = op.getScale().convertToDouble();
  if (!std::isfinite(scale))
    return op.emitOpError() << "expected scale to be finite, got " << scale;
  if (std::optional<APFloat> cap = op.getSoftCap()) {
    double value = cap->convertToDouble();
    if (!std::isfinite(value) || value <= 0)
      return op.emitOpError() << "expected soft_cap to be finite and positive, got " << value;
  }
  const std::pair<StringRef, std::optional<int64_t>> windows[] = {
      {"window_left", op.getWindowLeft()}, {"window_right", op.getWindowRight()}};
  for (auto [name, window] : windows)
    if (window && *window < 0)
      return op.emitOpError() << "expected " << name << " not to be negative, got " << *window;
  int64_t keys = shapeOf(op.getKey())[2];
  if (std::optional<int64_t> length = op.getKvLength(); length && (*length < 0 || *length > keys))
    return op.emitOpError() << "expected kv_length from 0 to the " << keys << " keys, got "
                            << *length;
  return success();
}

/// Checks that positions are [tokens] or [batch, tokens].
static LogicalResult verifyPositions(Operation *op, StringRef name, Value positions, int64_t batch,
                                     int64_t tokens) {
  if (shapeOf(positions).size() == 2)
    return verifyShape(op, name, positions, {batch, tokens});
  return verifyShape(op, name, positions, {tokens});
}

/// Checks that
///  - query, key and value have four dimensions and one element type;
///  - there are a query and features, and the query heads are a multiple of the key heads;
///  - these three agree in batch, heads, tokens and features;
///  - key_padding has a value for each key of the batch;
///  - a bias broadcasts to the scores;
///  - there are positions of queries and keys, or of neither, one for each token, for the whole
///    batch or for each of its rows;
///  - kv_lengths has a number for each row of the batch;
///  - the mask and the scale are those of `verifyAttentionAttributes`.
template <typename Op> static LogicalResult verifyAttentionOperands(Op op) {
  const std::pair<StringRef, Value> tensors[] = {
      {"query", op.getQuery()}, {"key", op.getKey()}, {"value", op.getValue()}};
  for (auto [name, value] : tensors)
    if (failed(verifyRank(op, name, value, 4)) ||
        failed(verifyElementType(op, name, value, "query", op.getQuery())))
      return failure();
  Shape query = shapeOf(op.getQuery()), key = shapeOf(op.getKey()), value = shapeOf(op.getValue());
  if (llvm::is_contained(query, 0) || value[3] == 0)
    return op.emitOpError() << "expected at least one query, and features, got a query of type "
                            << op.getQuery().getType() << " and a value of type "
                            << op.getValue().getType();
  if (key[1] < 1 || query[1] % key[1] != 0)
    return op.emitOpError()
           << "expected a number of query heads that is a multiple of the key's, got " << query[1]
           << " and " << key[1];
  if (failed(verifyShape(op, "key", op.getKey(), {query[0], key[1], key[2], query[3]})) ||
      failed(verifyShape(op, "value", op.getValue(), {query[0], key[1], key[2], value[3]})))
    return failure();
  if (op.getKeyPadding() &&
      failed(verifyShape(op, "key_padding", op.getKeyPadding(), {query[0], key[2]})))
    return failure();
  if (op.getBias() &&
      (failed(verifyElementType(op, "bias", op.getBias(), "query", op.getQuery())) ||
       failed(verifyStretchesTo(op, "bias", op.getBias(), {query[0], query[1], query[2], key[2]}))))
    return failure();
  if (bool(op.getQPositions()) != bool(op.getKvPositions()))
    return op.emitOpError("expected positions of queries and keys, or of neither");
  if (op.getQPositions() &&
      (failed(verifyPositions(op, "q_positions", op.getQPositions(), query[0], query[2])) ||
       failed(verifyPositions(op, "kv_positions", op.getKvPositions(), query[0], key[2]))))
    return failure();
  if (op.getKvLengths() && failed(verifyShape(op, "kv_lengths", op.getKvLengths(), {query[0]})))
    return failure();
  return verifyAttentionAttributes(op);
}

/// The shape of attention's result.
template <typename Op> static SmallVector<int64_t> getAttentionShape(Op op) {
  SmallVector<int64_t> shape(shapeOf(op.getQuery()));
  shape.back() = shapeOf(op.getValue()).back();
  return shape;
}

/// Checks that
///  - operands and attributes are those of `verifyAttentionOperands`;
///  - the result has four dimensions and the element type and shape of the mean of values;
///  - a log-sum-exp has a number for each query, in f32 (f64 for f64).
LogicalResult AttentionOp::verify() {
  if (failed(verifyAttentionOperands(*this)) ||
      failed(verifyElementType(*this, "result", getResult(), "query", getQuery())) ||
      failed(verifyShape(*this, "result", getResult(), getAttentionShape(*this))))
    return failure();
  Value lse = getLse();
  if (!lse)
    return success();
  if (failed(verifyShape(*this, "lse", lse, shapeOf(getQuery()).drop_back())))
    return failure();
  Type element = getElementTypeOrSelf(getQuery().getType());
  Type got = getElementTypeOrSelf(lse.getType());
  if (!got.isF64() && (element.isF64() || !got.isF32()))
    return emitOpError() << "expected lse of element type " << (element.isF64() ? "" : "f32 or ")
                         << "f64, got " << got;
  return success();
}

/// Checks that
///  - operands and attributes are those of `verifyAttentionOperands`;
///  - cotangent and out have the element type and the shape of attention's result;
///  - lse has a number for each query, and the results are in the type of sums;
///  - the results have the shapes that the op states, and that of a bias is there only with one.
LogicalResult AttentionGradOp::verify() {
  if (failed(verifyAttentionOperands(*this)))
    return failure();
  SmallVector<int64_t> shape = getAttentionShape(*this);
  const std::pair<StringRef, Value> outs[] = {{"cotangent", getCotangent()}, {"out", getOut()}};
  for (auto [name, value] : outs)
    if (failed(verifyElementType(*this, name, value, "query", getQuery())) ||
        failed(verifyShape(*this, name, value, shape)))
      return failure();
  Shape query = shapeOf(getQuery());
  if (failed(verifyShape(*this, "lse", getLse(), query.drop_back())))
    return failure();
  if (getBiasGrad() && !getBias())
    return emitOpError("expected a bias, of which it has the gradient");
  int64_t keys = shapeOf(getKey())[2];
  SmallVector<int64_t> ofKeys(query), ofScores(query);
  ofKeys[2] = ofScores[3] = keys;
  shape[2] = keys;
  const std::tuple<StringRef, Value, ArrayRef<int64_t>> results[] = {
      {"query_grad", getQueryGrad(), query},
      {"key_grad", getKeyGrad(), ofKeys},
      {"value_grad", getValueGrad(), shape},
      {"bias_grad", getBiasGrad(), ofScores}};
  Type expected = padding::getSumType(getElementTypeOrSelf(getQuery().getType()));
  for (auto [name, value, own] : results) {
    if (!value)
      continue;
    if (failed(verifyShape(*this, name, value, own)))
      return failure();
    if (Type got = getElementTypeOrSelf(value.getType()); got != expected)
      return emitOpError() << "expected " << name << " of element type " << expected << ", got "
                           << got;
  }
  if (Type got = getElementTypeOrSelf(getLse().getType()); got != expected)
    return emitOpError() << "expected lse of element type " << expected << ", got " << got;
  return success();
}

/// Checks that
///  - both parts and the result have one type with four dimensions;
///  - each log-sum-exp has their shape without the last dimension, all in f32 or all in f64
///    (f64 for f64).
LogicalResult MergeAttentionOp::verify() {
  if (failed(verifyRank(*this, "first", getFirst(), 4)))
    return failure();
  Shape out = shapeOf(getFirst());
  const std::pair<StringRef, Value> outs[] = {{"second", getSecond()}, {"result", getResult()}};
  for (auto [name, value] : outs)
    if (failed(verifyShape(*this, name, value, out)) ||
        failed(verifyElementType(*this, name, value, "first", getFirst())))
      return failure();
  const std::pair<StringRef, Value> lses[] = {
      {"first_lse", getFirstLse()}, {"second_lse", getSecondLse()}, {"lse", getLse()}};
  Type element = getElementTypeOrSelf(getFirst().getType());
  bool isWide = element.isF64() || getElementTypeOrSelf(getLse().getType()).isF64();
  Type expected = Float32Type::get(getContext());
  if (isWide)
    expected = Float64Type::get(getContext());
  for (auto [name, value] : lses) {
    if (failed(verifyShape(*this, name, value, out.drop_back())))
      return failure();
    if (Type got = getElementTypeOrSelf(value.getType()); got != expected)
      return emitOpError() << "expected " << name << " of element type " << expected << ", got "
                           << got;
  }
  return success();
}
