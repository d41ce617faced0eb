//===- AttentionPositions.cpp - which keys attention's queries may see ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Positions and lengths of a row of the batch, and the tests that leave out blocks of keys.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"

using namespace mlir;

namespace meshwright::lower {

Value AttentionEmitter::toPosition(Value index) {
  return arith::IndexCastOp::create(b, getPositionType(), index);
}

Value AttentionEmitter::getPosition(int64_t position) {
  return arith::ConstantIntOp::create(b, getPositionType(), position);
}

void AttentionEmitter::startBatch(Value index) {
  batchIndex = index;
  if (plan.hasQueryPositionsOfRow)
    firstQueryPosition = mul(index, plan.queries);
  if (plan.hasKeyPositionsOfRow)
    firstKeyPosition = mul(index, plan.keyRows);
  numKeysOfRow = getIndex(plan.keys);
  if (!lengths)
    return;
  Value length = loadScalar(lengths, index);
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIntOp::create(b, b.getI64Type(), value);
  };
  length = max(length, constant(0));
  if (plan.hasPositions) {
    lengthOfRow = length;
    return;
  }
  length = min(length, constant(plan.keys));
  numKeysOfRow = arith::IndexCastOp::create(b, b.getIndexType(), length);
}

Value AttentionEmitter::getQueryPosition(Value query) {
  return loadScalar(queryPositions, firstQueryPosition ? add(firstQueryPosition, query) : query);
}

Value AttentionEmitter::getKeyPosition(Value key) {
  return loadScalar(keyPositions, firstKeyPosition ? add(firstKeyPosition, key) : key);
}

AttentionEmitter::Bounds AttentionEmitter::getBoundsOfQueries() {
  return getBounds(queryPositions, firstQueryPosition ? firstQueryPosition : getIndex(0),
                   getIndex(plan.queries));
}

AttentionEmitter::Bounds AttentionEmitter::getBoundsOfKeys(Value first, Value count) {
  return getBounds(keyPositions, firstKeyPosition ? add(firstKeyPosition, first) : first, count);
}

Value AttentionEmitter::isKey(Value position) {
  bool isVector = isa<VectorType>(position.getType());
  auto compare = [&](arith::CmpIPredicate predicate, Value limit) -> Value {
    return arith::CmpIOp::create(b, predicate, position, isVector ? splat(limit) : limit);
  };
  // Without a sign, negative positions are above each length.
  return lengthOfRow ? compare(arith::CmpIPredicate::ult, lengthOfRow)
                     : compare(arith::CmpIPredicate::sge, getPosition(0));
}

AttentionEmitter::Bounds AttentionEmitter::getBounds(Value buffer, Value first, Value count) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  int64_t lanes = processor.vectorBytes / (type.getIntOrFloatBitWidth() / 8);
  auto widen = [&](const Bounds &bounds, Value position) {
    return SmallVector<Value>{arith::MinSIOp::create(b, bounds.lowest, position),
                              arith::MinUIOp::create(b, bounds.lowestPosition, position),
                              arith::MaxSIOp::create(b, bounds.highest, position)};
  };
  auto toBounds = [](ValueRange values) { return Bounds{values[0], values[1], values[2]}; };
  Value whole = mul(div(count, lanes), lanes);
  auto constant = [&](const APInt &value) -> Value {
    return arith::ConstantOp::create(b, DenseElementsAttr::get(getVector(lanes, type), value));
  };
  unsigned bits = type.getIntOrFloatBitWidth();
  SmallVector<Value> none{constant(APInt::getSignedMaxValue(bits)),
                          constant(APInt::getMaxValue(bits)),
                          constant(APInt::getSignedMinValue(bits))};
  SmallVector<Value> vectors =
      loop(getIndex(0), whole, lanes, none, [&](Value i, ValueRange known) {
        return widen(toBounds(known), load(buffer, add(first, i), lanes));
      });
  constexpr vector::CombiningKind kinds[] = {
      vector::CombiningKind::MINSI, vector::CombiningKind::MINUI, vector::CombiningKind::MAXSI};
  SmallVector<Value> scalars;
  for (auto [values, kind] : llvm::zip_equal(vectors, kinds))
    scalars.push_back(vector::ReductionOp::create(b, kind, values));
  return toBounds(loop(whole, count, 1, scalars, [&](Value i, ValueRange known) {
    return widen(toBounds(known), loadScalar(buffer, add(first, i)));
  }));
}

Value AttentionEmitter::isSeen(const Bounds &queries, const Bounds &keys) {
  return isWithin(keys.highest, keys.lowestPosition, keys.highest, queries);
}

Value AttentionEmitter::isWhollySeen(const Bounds &queries, const Bounds &keys) {
  // The first query must see the last key, and the last query the first key.
  return isWithin(keys.lowest, keys.highest, keys.lowest, {queries.highest, {}, queries.lowest});
}

Value AttentionEmitter::isWithin(Value position, Value first, Value last, const Bounds &queries) {
  Value seen = arith::CmpIOp::create(b, arith::CmpIPredicate::sge, position, getPosition(0));
  if (plan.right) {
    Value limit = add(queries.highest, getPosition(*plan.right));
    seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sle, first, limit));
  }
  if (plan.left) {
    Value limit = sub(queries.lowest, getPosition(*plan.left));
    seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sge, last, limit));
  }
  if (lengthOfRow)
    seen = both(seen, isBelow(first, lengthOfRow));
  return seen;
}

} // namespace meshwright::lower
