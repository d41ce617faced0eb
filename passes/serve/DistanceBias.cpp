//===- DistanceBias.cpp - biases by the distance of the key ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/DistanceBias.h"

#include "meshwright/lib/Support/ElementTypes.h"

#include "llvm/ADT/DenseMap.h"

using namespace mlir;
using namespace meshwright;
using dist::FactorKind;
using dist::FactorRule;
using nn::Writer;

namespace {

/// The dimensions of a value that count the positions of queries and of keys; -1 if it has none.
struct Positions {
  int64_t query, key;
  bool areNone() const { return query < 0 && key < 0; }
};

/// How a value depends on the positions.
struct Growth {
  /// Linear: `query` times the query's position, plus `key` times the key's, plus a term without positions. Else another
  /// function of their difference, or of the key's position.
  enum Kind { Linear, OfDistance, OfKey } kind = Linear;
  int64_t query = 0, key = 0;

  bool isLinear() const { return kind == Linear; }
  bool isByDistance() const { return isLinear() ? query == -key : kind == OfDistance; }
  bool isByKey() const { return isLinear() ? query == 0 : kind == OfKey; }
  bool isNone() const { return isLinear() && !query && !key; }
};

/// Writes values for the last query.
class LastQuery {
public:
  LastQuery(Writer &w, int64_t length) : w(w), length(length) {}

  struct Found {
    Value value;
    Growth growth;
  };
  /// The value for the last query: the dimension of queries has size 1. Fails if the value does not depend on
  /// positions as `Growth` says.
  FailureOr<Found> of(Value value, Positions at);

private:
  FailureOr<Found> ofIota(nn::IotaOp op, Positions at);
  FailureOr<Found> ofRuled(Operation *op, Positions at);
  /// How a result depends on the positions, where its op computes each pair by itself.
  FailureOr<Growth> join(Operation *op, ArrayRef<Growth> operands) const;
  bool isExact(Operation *op) const;
  RankedTensorType getType(Value value, Positions at) const {
    SmallVector<int64_t> shape(shapeOf(value));
    if (at.query >= 0)
      shape[at.query] = 1;
    return typeOf(value).clone(shape);
  }

  Writer &w;
  int64_t length;
  DenseMap<std::pair<Value, std::pair<int64_t, int64_t>>, Found> known;
};

} // namespace

FailureOr<LastQuery::Found> LastQuery::of(Value value, Positions at) {
  if (at.areNone())
    return Found{value, Growth()};
  std::pair<Value, std::pair<int64_t, int64_t>> place{value, {at.query, at.key}};
  if (auto it = known.find(place); it != known.end())
    return it->second;
  Operation *op = value.getDefiningOp();
  FailureOr<Found> found = failure();
  if (auto iota = dyn_cast_or_null<nn::IotaOp>(op)) {
    found = ofIota(iota, at);
  } else if (auto constant = dyn_cast_or_null<nn::ConstantOp>(op)) {
    if (auto elements = dyn_cast<SplatElementsAttr>(constant.getValue()))
      found = Found{nn::ConstantOp::create(w.getBuilder(), w.getLoc(), elements.resizeSplat(getType(value, at))),
                    Growth()};
  } else if (op) {
    found = ofRuled(op, at);
  }
  // A value that has no dimension of queries is itself a table of positions.
  if (failed(found) && at.query < 0)
    found = Found{value, Growth{Growth::OfKey}};
  if (succeeded(found))
    known[place] = *found;
  return found;
}

FailureOr<LastQuery::Found> LastQuery::ofIota(nn::IotaOp op, Positions at) {
  RankedTensorType type = getType(op.getResult(), at);
  int64_t dim = op.getDim();
  if (dim == at.query)
    return Found{w.fill(double(length - 1), type), Growth{Growth::Linear, 1, 0}};
  return Found{w.iota(dim, type), Growth{Growth::Linear, 0, dim == at.key ? 1 : 0}};
}

/// Returns true if a cast keeps positions as they are.
bool LastQuery::isExact(Operation *op) const {
  Type from = elementOf(op->getOperand(0)), to = elementOf(op->getResult(0));
  auto floats = dyn_cast<FloatType>(to);
  if (auto narrow = dyn_cast<FloatType>(from))
    return floats && floats.getFPMantissaWidth() >= narrow.getFPMantissaWidth();
  int64_t digits = floats ? floats.getFPMantissaWidth() : to.getIntOrFloatBitWidth() - 1;
  return 4 * length <= int64_t(1) << std::min<int64_t>(digits, 62);
}

FailureOr<Growth> LastQuery::join(Operation *op, ArrayRef<Growth> operands) const {
  bool areLinear = llvm::all_of(operands, [](const Growth &growth) { return growth.isLinear(); });
  if (areLinear && isa<nn::AddOp, nn::SubOp>(op)) {
    int64_t sign = isa<nn::SubOp>(op) ? -1 : 1;
    return Growth{Growth::Linear, operands[0].query + sign * operands[1].query, operands[0].key + sign * operands[1].key};
  }
  if (areLinear && isa<nn::NegOp>(op))
    return Growth{Growth::Linear, -operands[0].query, -operands[0].key};
  if (areLinear && (op->hasTrait<dist::Reindexes>() || (isa<nn::CastOp>(op) && isExact(op))))
    return operands[0];
  if (llvm::all_of(operands, [](const Growth &growth) { return growth.isNone(); }))
    return Growth();
  if (llvm::all_of(operands, [](const Growth &growth) { return growth.isByDistance(); }))
    return Growth{Growth::OfDistance};
  if (llvm::all_of(operands, [](const Growth &growth) { return growth.isByKey(); }))
    return Growth{Growth::OfKey};
  return failure();
}

FailureOr<LastQuery::Found> LastQuery::ofRuled(Operation *op, Positions at) {
  auto ruled = dyn_cast<dist::ShardingRuleOpInterface>(op);
  if (!ruled || op->getNumResults() != 1 || op->getNumRegions())
    return failure();
  FactorRule rule = ruled.getFactorRule();
  auto getFactor = [&](int64_t dim) -> FailureOr<int> {
    const FactorRule::DimFactors &factors = rule.results[0][dim];
    if (factors.size() != 1 || rule.factors[factors[0]].kind != FactorKind::Parallel)
      return failure();
    return factors[0];
  };
  FailureOr<int> query = at.query < 0 ? FailureOr<int>(-1) : getFactor(at.query);
  FailureOr<int> key = at.key < 0 ? FailureOr<int>(-1) : getFactor(at.key);
  if (failed(query) || failed(key))
    return failure();
  SmallVector<Value> operands;
  SmallVector<Growth> growths;
  for (auto [operand, dims] : llvm::zip_equal(op->getOperands(), rule.operands)) {
    Positions own{-1, -1};
    for (auto [d, factors] : llvm::enumerate(dims)) {
      bool isQuery = llvm::is_contained(factors, *query), isKey = llvm::is_contained(factors, *key);
      if ((isQuery || isKey) && factors.size() != 1)
        return failure();
      own.query = isQuery ? int64_t(d) : own.query;
      own.key = isKey ? int64_t(d) : own.key;
    }
    FailureOr<Found> found = of(operand, own);
    if (failed(found))
      return failure();
    operands.push_back(found->value);
    growths.push_back(found->growth);
  }
  FailureOr<Growth> growth = join(op, growths);
  if (failed(growth))
    return failure();
  OperationState state(op->getLoc(), op->getName(), operands, getType(op->getResult(0), at), op->getAttrs());
  Operation *made = w.getBuilder().create(state);
  if (auto slice = dyn_cast<nn::SliceOp>(made); slice && at.query >= 0) {
    SmallVector<int64_t> limits(slice.getLimits());
    limits[at.query] = 1;
    slice.setLimits(limits);
  }
  return Found{made->getResult(0), *growth};
}

Value meshwright::writeDistanceBias(Writer &w, nn::AttentionOp op) {
  Value bias = op.getBias();
  ArrayRef<int64_t> shape = shapeOf(bias), query = shapeOf(op.getQuery());
  int64_t rank = shape.size(), length = query[2];
  if (rank < 1 || shape[rank - 1] != length || length < 2)
    return {};
  bool hasQueries = rank > 1 && shape[rank - 2] == length;
  FailureOr<LastQuery::Found> found = LastQuery(w, length).of(bias, {hasQueries ? rank - 2 : -1, rank - 1});
  if (failed(found) || (!found->growth.isByDistance() && !found->growth.isByKey()))
    return {};
  Value each = w.broadcast(found->value, {query[0], query[1], 1, length});
  each = w.cast(each, getComputeType(elementOf(op.getQuery())));
  int64_t heads = query[0] * query[1];
  return found->growth.isByDistance() ? w.reshape(each, {heads, length}) : w.reshape(each, {heads, 1, length});
}
