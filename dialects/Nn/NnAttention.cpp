//===- NnAttention.cpp - attention and its backward pass ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Verifiers, factor rules, work and padding rules of the ops of NnAttentionOps.td.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;
using dist::broadcastFactors;
using dist::FactorKind;
using dist::FactorRule;
using ValueFactors = FactorRule::ValueFactors;

//===----------------------------------------------------------------------===//
// Verifiers
//===----------------------------------------------------------------------===//

/// Checks that
///  - scale is finite, and soft_cap finite and positive;
///  - windows are not negative;
///  - kv_length is from 0 to the number of keys.
static LogicalResult verifyScoreAttributes(ScoresOpInterface op) {
  double scale = op.getScale().convertToDouble();
  if (!std::isfinite(scale))
    return op->emitOpError() << "expected scale to be finite, got " << scale;
  if (std::optional<APFloat> cap = op.getSoftCap()) {
    double value = cap->convertToDouble();
    if (!std::isfinite(value) || value <= 0)
      return op->emitOpError() << "expected soft_cap to be finite and positive, got " << value;
  }
  const std::pair<StringRef, std::optional<uint64_t>> windows[] = {
      {"window_left", op.getWindowLeft()}, {"window_right", op.getWindowRight()}};
  for (auto [name, window] : windows)
    if (window && int64_t(*window) < 0)
      return op->emitOpError() << "expected " << name << " not to be negative, got "
                               << int64_t(*window);
  int64_t keys = shapeOf(op.getKey())[2];
  if (std::optional<int64_t> length = op.getKvLength(); length && (*length < 0 || *length > keys))
    return op->emitOpError() << "expected kv_length from 0 to the " << keys << " keys, got "
                             << *length;
  return success();
}

/// Checks that
///  - there are all operands and attributes of dropout, or none;
///  - there is a number for each query, and one for each key;
///  - seed and step are scalars;
///  - the probability is that of `verifyProbability`.
static LogicalResult verifyDropout(ScoresOpInterface op) {
  Value rows = op.getDropRows(), keys = op.getDropKeys();
  bool all = rows && keys && op.getSeed() && op.getStep() && op.getDropout() && op.getStream();
  bool any = rows || keys || op.getSeed() || op.getStep() || op.getDropout() || op.getStream();
  if (!any)
    return success();
  if (!all)
    return op->emitOpError("expected drop_at, seed, step, dropout and stream, or none of them");
  if (failed(verifyShape(op, "drop_rows", rows, shapeOf(op.getQuery()).drop_back())) ||
      failed(verifyShape(op, "drop_keys", keys, {shapeOf(op.getKey())[2]})) ||
      failed(verifyShape(op, "seed", op.getSeed(), {})) ||
      failed(verifyShape(op, "step", op.getStep(), {})))
    return failure();
  return verifyProbability(op, *op.getDropout());
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
///  - dropout is that of `verifyDropout`;
///  - the mask and the scale are those of `verifyScoreAttributes`.
static LogicalResult verifyScores(ScoresOpInterface scores) {
  Operation *op = scores;
  Value queries = scores.getQuery(), keys = scores.getKey(), values = scores.getValue();
  const std::pair<StringRef, Value> tensors[] = {
      {"query", queries}, {"key", keys}, {"value", values}};
  for (auto [name, tensor] : tensors)
    if (failed(verifyRank(op, name, tensor, 4)) ||
        failed(verifyElementType(op, name, tensor, "query", queries)))
      return failure();
  Shape query = shapeOf(queries), key = shapeOf(keys), value = shapeOf(values);
  if (llvm::is_contained(query, 0) || value[3] == 0)
    return op->emitOpError() << "expected at least one query, and features, got a query of type "
                             << queries.getType() << " and a value of type " << values.getType();
  if (key[1] < 1 || query[1] % key[1] != 0)
    return op->emitOpError()
           << "expected a number of query heads that is a multiple of the key's, got " << query[1]
           << " and " << key[1];
  if (failed(verifyShape(op, "key", keys, {query[0], key[1], key[2], query[3]})) ||
      failed(verifyShape(op, "value", values, {query[0], key[1], key[2], value[3]})))
    return failure();
  if (Value padding = scores.getKeyPadding();
      padding && failed(verifyShape(op, "key_padding", padding, {query[0], key[2]})))
    return failure();
  if (Value bias = scores.getBias();
      bias && (failed(verifyElementType(op, "bias", bias, "query", queries)) ||
               failed(verifyStretchesTo(op, "bias", bias, {query[0], query[1], query[2], key[2]}))))
    return failure();
  Value ofQueries = scores.getQPositions(), ofKeys = scores.getKvPositions();
  if (bool(ofQueries) != bool(ofKeys))
    return op->emitOpError("expected positions of queries and keys, or of neither");
  if (ofQueries && (failed(verifyPositions(op, "q_positions", ofQueries, query[0], query[2])) ||
                    failed(verifyPositions(op, "kv_positions", ofKeys, query[0], key[2]))))
    return failure();
  if (Value lengths = scores.getKvLengths();
      lengths && failed(verifyShape(op, "kv_lengths", lengths, {query[0]})))
    return failure();
  if (failed(verifyDropout(scores)))
    return failure();
  return verifyScoreAttributes(scores);
}

/// Checks that a log-sum-exp has a number for each query, in f32 or f64 (f64 for f64).
static LogicalResult verifyLogSumExp(ScoresOpInterface op, Value lse) {
  if (failed(verifyShape(op, "lse", lse, shapeOf(op.getQuery()).drop_back())))
    return failure();
  Type element = getElementTypeOrSelf(op.getQuery().getType());
  Type got = getElementTypeOrSelf(lse.getType());
  if (!got.isF64() && (element.isF64() || !got.isF32()))
    return op->emitOpError() << "expected lse of element type "
                             << (element.isF64() ? "" : "f32 or ") << "f64, got " << got;
  return success();
}

/// Checks that
///  - the operands are those of `verifyScores`;
///  - the result has the query's tokens and the value's features, and the query's element type;
///  - a log-sum-exp is that of `verifyLogSumExp`.
LogicalResult AttentionOp::verify() {
  if (failed(verifyRank(*this, "result", getResult(), 4)) || failed(verifyScores(*this)))
    return failure();
  SmallVector<int64_t> expected(shapeOf(getQuery()));
  expected.back() = shapeOf(getValue()).back();
  if (failed(verifyElementType(*this, "result", getResult(), "query", getQuery())) ||
      failed(verifyShape(*this, "result", getResult(), expected)))
    return failure();
  return getLse() ? verifyLogSumExp(*this, getLse()) : success();
}

/// Checks that
///  - the operands are those of `verifyScores` and `verifyLogSumExp`;
///  - delta has a number for each query in the type of sums;
///  - the cotangent has the type of the attention's result;
///  - each gradient has the shape of its operand, in the type of sums;
///  - a fourth result is the gradient of a bias.
LogicalResult AttentionGradOp::verify() {
  if (failed(verifyScores(*this)) || failed(verifyLogSumExp(*this, getLse())))
    return failure();
  Shape query = shapeOf(getQuery());
  SmallVector<int64_t> result(query);
  result.back() = shapeOf(getValue()).back();
  if (failed(verifyShape(*this, "delta", getDelta(), query.drop_back())) ||
      failed(verifyShape(*this, "cotangent", getCotangent(), result)) ||
      failed(verifyElementType(*this, "cotangent", getCotangent(), "query", getQuery())))
    return failure();
  if (getBiasGrad() && !getBias())
    return emitOpError("expected three results without a bias, got the gradient of a bias");
  const std::tuple<StringRef, Value, Value> gradients[] = {
      {"query_grad", getQueryGrad(), getQuery()},
      {"key_grad", getKeyGrad(), getKey()},
      {"value_grad", getValueGrad(), getValue()},
      {"bias_grad", getBiasGrad(), getBias()}};
  Type sums = getComputeType(getElementTypeOrSelf(getQuery().getType()));
  auto verifySums = [&](StringRef name, Value value) -> LogicalResult {
    Type got = getElementTypeOrSelf(value.getType());
    if (got == sums)
      return success();
    return emitOpError() << "expected " << name << " of element type " << sums << ", got " << got;
  };
  if (failed(verifySums("delta", getDelta())))
    return failure();
  for (auto [name, gradient, operand] : gradients)
    if (gradient && (failed(verifyShape(*this, name, gradient, shapeOf(operand))) ||
                     failed(verifySums(name, gradient))))
      return failure();
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

//===----------------------------------------------------------------------===//
// Factor rules
//===----------------------------------------------------------------------===//

FactorRule MergeAttentionOp::getFactorRule() {
  FactorRule rule;
  ValueFactors out = rule.addFactors(shapeOf(getFirst()));
  ValueFactors rows(out.begin(), out.end() - 1);
  rule.operands = {out, rows, out, rows};
  rule.results = {out, rows};
  return rule;
}

namespace {
/// The factors of the scores, and the rule with their operands.
struct ScoreRule {
  explicit ScoreRule(ScoresOpInterface op);

  FactorRule rule;
  int batch, kv, group, queries, keys, features, valueFeatures;
  /// [batch, q_heads, q_len, kv_len].
  ValueFactors scores;
  SmallVector<int64_t, 4> shape;

  FactorRule::DimFactors getHeads() const { return {kv, group}; }
  ValueFactors getRows() const { return {{batch}, getHeads(), {queries}}; }
  ValueFactors getOutput() const { return {{batch}, getHeads(), {queries}, {valueFeatures}}; }
  /// The factors of a bias, or of its gradient.
  ValueFactors broadcast(Value bias) const {
    return broadcastFactors(shapeOf(bias), shape, scores);
  }
};
} // namespace

ScoreRule::ScoreRule(ScoresOpInterface op) {
  Shape query = shapeOf(op.getQuery()), key = shapeOf(op.getKey());
  int64_t kvHeads = key[1];
  batch = rule.addFactor(query[0]);
  kv = rule.addFactor(kvHeads);
  group = rule.addFactor(query[1] / kvHeads);
  // Causal and window masks compare indices. A chunk of the queries does not know its
  // indices in the whole sequence.
  bool positional =
      !op.getQPositions() && (op.getCausal() || op.getWindowLeft() || op.getWindowRight());
  queries = rule.addFactor(query[2], positional ? FactorKind::Special : FactorKind::Parallel);
  keys = rule.addFactor(key[2], FactorKind::Special);
  features = rule.addFactor(query[3], FactorKind::Special);
  valueFeatures = rule.addFactor(shapeOf(op.getValue())[3]);
  shape = {query[0], query[1], query[2], key[2]};
  scores = {{batch}, getHeads(), {queries}, {keys}};

  rule.operands.push_back({{batch}, getHeads(), {queries}, {features}});
  rule.operands.push_back({{batch}, {kv}, {keys}, {features}});
  rule.operands.push_back({{batch}, {kv}, {keys}, {valueFeatures}});
  if (op.getKeyPadding())
    rule.operands.push_back({{batch}, {keys}});
  if (Value bias = op.getBias())
    rule.operands.push_back(broadcast(bias));
  const std::pair<Value, int> positions[] = {{op.getQPositions(), queries},
                                             {op.getKvPositions(), keys}};
  for (auto [value, tokens] : positions)
    if (value) {
      FactorRule::DimFactors token = {tokens}, row = {batch};
      rule.operands.push_back(shapeOf(value).size() == 2 ? ValueFactors{row, token}
                                                         : ValueFactors{token});
    }
  if (op.getKvLengths())
    rule.operands.push_back({{batch}});
  if (op.getDropRows())
    rule.operands.append({getRows(), {{keys}}, {}, {}});
}

FactorRule AttentionOp::getFactorRule() {
  ScoreRule own(*this);
  own.rule.factors[own.keys].reductions = {dist::ReductionKind::Merge};
  own.rule.results.push_back(own.getOutput());
  if (getLse())
    own.rule.results.push_back(own.getRows());
  return std::move(own.rule);
}

/// The gradients of queries are sums over keys, those of keys and values sums over queries and
/// over the query heads of a group, and those of a bias sums where it broadcasts. Values are read
/// whole: the products of their features are not linear in the scores.
FactorRule AttentionGradOp::getFactorRule() {
  ScoreRule own(*this);
  FactorRule &rule = own.rule;
  bool positional = getCausal() || getWindowLeft() || getWindowRight() || getKvLengths();
  if (!getKvLength() && (getKvPositions() || !positional))
    rule.factors[own.keys].kind = FactorKind::Parallel;
  rule.factors[own.valueFeatures].kind = FactorKind::Special;
  rule.operands.append({own.getRows(), own.getRows(), own.getOutput()});
  rule.results.assign(rule.operands.begin(), rule.operands.begin() + 3);
  if (Value gradient = getBiasGrad()) {
    rule.results.push_back(own.broadcast(gradient));
    rule.broadcastResults.push_back({3, getKeyPadding() ? 4 : 3});
  }
  for (auto [f, factor] : llvm::enumerate(rule.factors))
    for (const ValueFactors &result : rule.results)
      if (factor.kind == FactorKind::Parallel && !FactorRule::hasFactor(result, f))
        factor.kind = FactorKind::Contracted;
  return std::move(rule);
}

bool AttentionOp::mayBroadcast(unsigned operand, unsigned) {
  return getOperand(operand) == getBias();
}

bool AttentionGradOp::mayBroadcast(unsigned operand, unsigned) {
  return getOperand(operand) == getBias();
}

//===----------------------------------------------------------------------===//
// Work and roles of results
//===----------------------------------------------------------------------===//

/// Pairs of a query and a key. A kernel may skip pairs that the mask hides, and positions are not
/// known here.
static double countPairs(ScoresOpInterface op) {
  Shape query = shapeOf(op.getQuery());
  return double(query[0]) * double(query[1]) * double(query[2]) *
         double(shapeOf(op.getKey())[2]);
}

/// The products of queries with keys, and of scores with values.
double AttentionOp::getFlops() {
  return 2.0 * countPairs(*this) * double(shapeOf(getQuery())[3] + shapeOf(getValue())[3]);
}

/// The scores and their cotangents, and the three gradients.
double AttentionGradOp::getFlops() {
  return 2.0 * countPairs(*this) * double(3 * shapeOf(getQuery())[3] + 2 * shapeOf(getValue())[3]);
}

void AttentionOp::removeDropout() {
  getDropRowsMutable().clear();
  getDropKeysMutable().clear();
  getSeedMutable().clear();
  getStepMutable().clear();
  removeDropoutAttr();
  removeStreamAttr();
}

Value AttentionOp::getLogSumExp() { return getLse(); }
Value MergeAttentionOp::getLogSumExp() { return getLse(); }

//===----------------------------------------------------------------------===//
// Padding
//===----------------------------------------------------------------------===//

/// A mean of values. Its rounding is small against them.
static Padding average(const Padding &values, Type type) {
  Padding result = values;
  double largest = getLargest(type);
  result.lower = std::max(std::min(values.lower * 2, values.lower), -largest);
  result.upper = std::min(std::max(values.upper * 2, values.upper), largest);
  return round(result, type);
}

/// The condition of a log-sum-exp: that of its mean of values, unless it always holds.
static uint32_t getPartCause(uint32_t own, const Padding &mean) {
  return own && mean.cause ? mean.cause | 1 : own;
}

/// The log-sum-exp of so many numbers up to `upper`, minus infinity where there is none. From
/// 2^30 on another number may stand for it (see the op). Its condition only tells that the
/// mean beside it is not finite: a key may be hidden by a score of minus infinity. The lower
/// bound keeps it from sums.
static Padding sumExponentials(double upper, int64_t count, uint32_t cause, Type type) {
  Padding bound = std::fabs(upper) < std::ldexp(1.0, 30)
                      ? round({0, std::max(upper + std::log(2.0 * count), 0.0)}, type)
                      : finiteOf(type);
  return {-kInfinity, bound.upper, false, cause};
}

/// Attention is a mean of values if its scores are finite. Its log-sum-exp reads no values. For
/// conditional operands:
/// - A query that is not finite has scores that are not, for each key. The softmax of such
///   a row is NaN.
/// - A value that is not finite counts with a weight of zero, too: zero times infinity is
///   NaN.
/// - A key that is not finite may have a score of minus infinity, which hides it. Its value
///   is not finite for the same reason, if both have the same condition. Keys that heads of
///   a group share give each true head of the group scores that are not finite.
/// Masks hide some keys from some queries, so none of this holds in padding of the queries.
Padding AttentionOp::getResultPadding(const Operands &in) {
  Type type = elementOf(getResult()), wide = getComputeType(type);
  Padding query = in.getConditional(0), key = in.getConditional(1), value = in.getConditional(2);
  if (in.isAlongResult(2)) {
    query = in[0];
    key = in[1];
    value = in[2];
  }
  if (in.isPaddingOf(1) && key.cause && !isSameEvent(key.cause, value.cause))
    key = Padding::Arbitrary;
  int64_t features = getQuery().getType().getShape().back();
  double scale = getScale().convertToDouble();
  Padding scores = sum(multiply(query, key, wide), features, wide);
  scores = multiply(scores, ofConstant(scale), wide);
  uint32_t cause = scores.cause;
  bool areNumbers = isFinite(scores);
  // A capped score is nearer to zero.
  Padding seen = getSoftCap() ? meet(scores, Padding::Zero) : scores;
  if (getBias()) {
    Padding bias = in[getKeyPadding() ? 4 : 3];
    seen = add(seen, bias, wide);
    areNumbers &= isMaskable(bias) && isMaskable(seen);
  }
  if (!areNumbers)
    return Padding::Arbitrary;
  Padding result = Padding::Arbitrary;
  if (isFinite(value)) {
    // A query that sees no key gives zeros.
    result = meet(value, Padding::Zero);
    if (std::optional<APFloat> dropped = getDropout())
      result = multiply(result, ofConstant(1 / (1 - dropped->convertToDouble())), wide);
    result.cause = joinCauses(cause, value.cause);
    result = average(result, type);
  }
  if (in.getResult() == 0)
    return result;
  int64_t keys = getKey().getType().getShape()[2];
  return sumExponentials(seen.upper, keys, getPartCause(cause, result),
                         getElementTypeOrSelf(getLse().getType()));
}

/// A part that is not finite counts with a weight of zero, too. A log-sum-exp has the
/// condition of its part.
Padding MergeAttentionOp::getResultPadding(const Operands &in) {
  Padding result{0, 0}, lse = Padding::NegInf;
  bool isMean = true;
  for (unsigned part : {0, 2}) {
    Padding out = in.getConditional(part), own = in.getConditional(part + 1);
    lse = meet(lse, own);
    isMean &= isFinite(out) && isMaskable(own) && (!own.cause || isSameEvent(own.cause, out.cause));
    result = meet(result, out);
  }
  result = isMean ? average(result, elementOf(getResult())) : Padding::Arbitrary;
  if (in.getResult() == 0)
    return result;
  if (!isMaskable(lse))
    return Padding::Arbitrary;
  return sumExponentials(lse.upper, /*count=*/2,
                         getPartCause(lse.cause, result),
                         getElementTypeOrSelf(getLse().getType()));
}

/// Padding that a gradient sums adds zero: the cotangent and delta are zero there, or the keys
/// are. All else is a number, so that no product with zero is NaN. Queries or keys of zeros have
/// scores that are numbers, and weights are from 0 to 1.
bool AttentionGradOp::statesSummedNeeds() { return true; }
std::optional<Padding> AttentionGradOp::getSummedNeed(unsigned operand, unsigned factor) {
  Value value = getOperand(operand);
  if (!isa<FloatType>(getElementTypeOrSelf(value.getType())))
    return std::nullopt;
  if (value == getQuery() || value == getCotangent() || value == getDelta())
    return Padding::Zero;
  bool alongKeys = llvm::is_contained(getFactorRule().operands[1][2], int(factor));
  if (value == getKey() && alongKeys)
    return Padding::Zero;
  // A score of minus infinity is hidden.
  if (value == getBias())
    return Padding{-kInfinity, getLargest(getElementTypeOrSelf(value.getType()))};
  if (value == getLse())
    return Padding{-kInfinity, kInfinity};
  return Padding::Finite;
}

/// The meet of the contents of an operand in a region and in its corners with padding that the op
/// sums.
static Padding getReadContent(const Operands &in, unsigned operand) {
  Padding content = in[operand];
  in.visitReadCorners([&](llvm::function_ref<Padding(unsigned)> corner) {
    content = meet(content, corner(operand));
  });
  return content;
}

/// A gradient is zero where the cotangent and delta are, if all scores are numbers.
Padding AttentionGradOp::getResultPadding(const Operands &in) {
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    Type type = getElementTypeOrSelf(operand.getType());
    if (!isa<FloatType>(type))
      continue;
    Padding content = getReadContent(in, i);
    bool isSmall = operand == getCotangent() || operand == getDelta() ? isZero(content)
                   : operand == getBias()                             ? isMaskable(content)
                   : operand == getLse()                              ? !content.mayBeNaN
                                                                      : isFinite(content);
    if (!isSmall || content.cause)
      return Padding::Arbitrary;
  }
  // The products of queries and keys are sums of finite numbers that may overflow.
  Type wide = getElementTypeOrSelf(getQueryGrad().getType());
  Padding query = getReadContent(in, 0), key = getReadContent(in, 1);
  Padding scores = sum(multiply(query, key, wide), shapeOf(getQuery()).back(), wide);
  scores = multiply(scores, ofConstant(getScale().convertToDouble()), wide);
  return isFinite(scores) ? Padding::Zero : Padding::Arbitrary;
}
