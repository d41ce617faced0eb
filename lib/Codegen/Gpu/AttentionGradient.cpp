//===- AttentionGradient.cpp - the backward pass of attention, on GPUs ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernel of nn.attention_grad, by multiply-add for all types. Each block of threads owns a part
// of one result, and computes all scores again that it depends on:
//
// - 32 rows and a slice of the features of the queries' gradient: it goes over the keys;
// - 32 keys and a slice of the gradient of keys or values: it goes over the queries of all query heads
//   that share the key head;
// - a tile of the bias' gradient: it goes over all that the bias broadcasts over.
//
// So no sum needs another block's, and two runs have the same bits. A thread has the scores of one row
// with every fourth key of a tile. Weights go through shared memory to the threads that multiply them.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {
class AttentionGradient final : public AttentionBlock {
public:
  AttentionGradient(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  int64_t getNumBlocks() const override;
  int64_t getSharedBytes() const override {
    return operandOffset + plan.blockRows * operandStride * bytes;
  }

private:
  void emitBlock(Value block) override;
  Value getRowOffset(int64_t) override { return div(thread, lanes); }
  Value getKeyOffset(int64_t key) override { return add(quad, key * lanes); }
  bool hasRest() const override { return plan.keyRows != plan.keys || AttentionBlock::hasRest(); }

  int64_t getSlices(int64_t columns) const { return llvm::divideCeil(columns, slice); }
  int64_t getRowTiles() const { return llvm::divideCeil(plan.rows, plan.blockRows); }
  int64_t getKeyTiles() const { return llvm::divideCeil(plan.keyRows, plan.blockKeys); }
  int64_t getQueryBlocks() const { return plan.units * getRowTiles() * getSlices(plan.features); }
  int64_t getKeyBlocks(int64_t columns) const {
    return plan.batch * plan.keyHeads * getKeyTiles() * getSlices(columns);
  }
  /// The bias' own rows of the batch, heads, tiles of queries and tiles of keys.
  SmallVector<int64_t> getBiasTiles() const;

  void emitQueryGradient(Value block);
  /// The gradient of keys, or of values.
  void emitKeyGradient(Value block, bool isOfValues);
  void emitBiasGradient(Value block);

  void setUnit(Value number);
  /// Begins the rows from `firstRow` on.
  void emitRows();
  /// Emits `body` if any score of the tile is seen.
  SmallVector<Value> emitTile(ValueRange running, function_ref<SmallVector<Value>()> body);
  Tile getTile(Value buffer, Value unit, int64_t rows, Value first, Value end, int64_t columns);
  Tile getCotangentTile();
  /// Products of the thread's row and keys.
  SmallVector<Value> emitDots(Tile ofRows, Tile ofKeys);
  struct Weights {
    /// The share of a key, the cotangent of its score, and that of the product of query and key.
    SmallVector<Value> shares, scores, products;
  };
  Weights emitWeights(bool needsCotangents);
  /// Adds products of weights and rows of the tile. `ownsKey`: the weights of the thread's key, else
  /// those of its row.
  SmallVector<Value> accumulate(ArrayRef<Value> weights, Tile tile, bool ownsKey, ValueRange sums);
  /// Stores the sums of the thread's row of a matrix.
  void store(ValueRange sums, Value buffer, Value row, Value exists, int64_t columns);
  SmallVector<Value> getZeros() {
    return SmallVector<Value>(slice / (lanes * lanes), emitConstant(b, getVector(), 0));
  }

  VectorType getVector() { return VectorType::get(lanes, plan.compute); }
  Value loadShared(Value buffer, Value index) {
    return vector::LoadOp::create(b, getVector(), buffer, index);
  }

  /// Lanes of a row, and features of two operands in shared memory at a time.
  static constexpr int64_t lanes = 4, depth = 32, dotStride = depth + lanes;
  bool hasBiasGrad;
  /// Bytes of an element, and features of a block.
  int64_t bytes, slice;
  int64_t weightStride, operandStride, weightOffset, operandOffset;
  std::array<int64_t, 4> strides = {0, 0, 0, 0};
  /// The number that is subtracted from the scores of the thread's row, the exponent that remains, and
  /// delta.
  Value shift, rest, deltaOfRow;
};
} // namespace

AttentionGradient::AttentionGradient(const AttentionLaunch &launch, const AttentionTilePlan &plan)
    : AttentionBlock(launch, plan),
      hasBiasGrad(bool(cast<nn::AttentionGradOp>(op.getOperation()).getBiasGrad())) {
  bytes = plan.compute.getIntOrFloatBitWidth() / 8;
  slice = std::min<int64_t>(plan.compute.isF64() ? 64 : 128,
                            llvm::alignTo(std::max(plan.features, plan.valueFeatures), 16));
  weightStride = plan.blockKeys + lanes;
  operandStride = slice + lanes;
  weightOffset = 2 * plan.blockRows * dotStride * bytes;
  operandOffset = weightOffset + plan.blockRows * weightStride * bytes;
  if (hasBiasGrad)
    strides = getBiasStrides(op);
}

SmallVector<int64_t> AttentionGradient::getBiasTiles() const {
  if (!hasBiasGrad)
    return {0};
  return {strides[0] ? plan.batch : 1, strides[1] ? plan.queryHeads : 1,
          strides[2] ? getRowTiles() : 1, strides[3] ? getKeyTiles() : 1};
}

int64_t AttentionGradient::getNumBlocks() const {
  return getQueryBlocks() + getKeyBlocks(plan.features) + getKeyBlocks(plan.valueFeatures) +
         ShapedType::getNumElements(getBiasTiles());
}

void AttentionGradient::emitBlock(Value block) {
  int64_t keysFrom = getQueryBlocks(), valuesFrom = keysFrom + getKeyBlocks(plan.features);
  int64_t biasFrom = valuesFrom + getKeyBlocks(plan.valueFeatures);
  auto emitFrom = [&](int64_t first) { return sub(block, getIndex(first)); };
  auto emitRest = [&] {
    when(isBelow(block, getIndex(valuesFrom)),
         [&] { emitKeyGradient(emitFrom(keysFrom), /*isOfValues=*/false); },
         [&] {
           if (!hasBiasGrad)
             return emitKeyGradient(emitFrom(valuesFrom), /*isOfValues=*/true);
           when(isBelow(block, getIndex(biasFrom)),
                [&] { emitKeyGradient(emitFrom(valuesFrom), /*isOfValues=*/true); },
                [&] { emitBiasGradient(emitFrom(biasFrom)); });
         });
  };
  when(isBelow(block, getIndex(keysFrom)), [&] { emitQueryGradient(block); }, emitRest);
}

//===----------------------------------------------------------------------===//
// Weights
//===----------------------------------------------------------------------===//

void AttentionGradient::setUnit(Value number) {
  unit = number;
  keyUnit = div(unit, plan.getGroup());
  batchIndex = div(unit, plan.queryHeads);
}

void AttentionGradient::emitRows() {
  startRows();
  Value at = add(mul(unit, plan.rows), rows.front().index);
  Value sum = memref::LoadOp::create(b, lse, at);
  rest = Value();
  if (hasWideLogSumExp(op))
    std::tie(shift, rest) = emitSplitLogSumExp(b, op, sum);
  else
    shift = arith::MulFOp::create(b, sum, getScalar(getScoreUnit(op)));
  // A row without keys has weights of zero.
  double infinity = std::numeric_limits<double>::infinity();
  Value isEmpty =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, shift, getScalar(-infinity));
  shift = arith::SelectOp::create(b, isEmpty, getScalar(infinity), shift);
  if (rest)
    rest = arith::SelectOp::create(b, isEmpty, getScalar(0), rest);
  deltaOfRow = memref::LoadOp::create(b, delta, at);
}

SmallVector<Value> AttentionGradient::emitTile(ValueRange running,
                                               function_ref<SmallVector<Value>()> body) {
  emitMask();
  for (Value &is : seen)
    is = both(is, rows.front().exists);
  if (!seen.front())
    return body();
  Value any = seen.front();
  for (Value is : ArrayRef(seen).drop_front())
    any = arith::OrIOp::create(b, any, is);
  return choose(emitAny(b, any), body, [&] { return llvm::to_vector(running); });
}

AttentionGradient::Tile AttentionGradient::getTile(Value buffer, Value unit, int64_t rows,
                                                   Value first, Value end, int64_t columns) {
  return {buffer, mul(unit, rows * columns), first, end, getIndex(0), plan.blockRows, depth,
          columns};
}

AttentionGradient::Tile AttentionGradient::getCotangentTile() {
  Value end = plan.rows % plan.blockRows ? getIndex(plan.rows) : Value();
  return getTile(cotangent, unit, plan.rows, firstRow, end, plan.valueFeatures);
}

SmallVector<Value> AttentionGradient::emitDots(Tile ofRows, Tile ofKeys) {
  int64_t count = plan.blockRows * dotStride;
  Value left = getShared(0, count, plan.compute);
  Value right = getShared(count * bytes, count, plan.compute);
  SmallVector<Value> sums(plan.keysOfThread, emitConstant(b, getVector(), 0));
  auto emitStep = [&](Value first, ValueRange known) {
    for (auto [tile, to] : {std::pair(&ofRows, left), std::pair(&ofKeys, right)}) {
      tile->firstColumn = first;
      tile->tileColumns = depth;
      copyTile(*tile, to, dotStride, plan.compute);
    }
    emitBarrier(b);
    Value row = mul(getRowOffset(0), dotStride);
    SmallVector<Value> after =
        loop(getIndex(0), getIndex(depth), lanes, known, [&](Value at, ValueRange before) {
          Value own = loadShared(left, add(row, at));
          SmallVector<Value> next;
          for (auto [i, sum] : llvm::enumerate(before)) {
            Value other = loadShared(right, add(mul(getKeyOffset(i), dotStride), at));
            next.push_back(math::FmaOp::create(b, own, other, sum));
          }
          return next;
        });
    emitBarrier(b);
    return after;
  };
  sums = loop(getIndex(0), getIndex(ofRows.columns), depth, sums, emitStep);
  for (Value &sum : sums)
    sum = vector::ReductionOp::create(b, vector::CombiningKind::ADD, sum);
  return sums;
}

AttentionGradient::Weights AttentionGradient::emitWeights(bool needsCotangents) {
  SmallVector<Value> products = emitDots(getQueryTile(), getKeyTile()), cotangents;
  if (needsCotangents)
    cotangents = emitDots(getCotangentTile(), getValueTile());
  emitDropout();
  Weights weights;
  Value zero = getScalar(0);
  double unitOfScores = getScoreUnit(op);
  auto dropped = [&](Value number, size_t i) {
    if (dropRows)
      number = arith::MulFOp::create(b, number, getScalar(getKeptFactor(op)));
    return drop(number, i);
  };
  for (auto [i, product] : llvm::enumerate(products)) {
    Value capped = emitCapped(product), score = capped;
    if (!biases.empty())
      score = arith::AddFOp::create(b, score, biases[i]);
    Value exponent = arith::SubFOp::create(b, score, shift);
    if (unitOfScores != M_LOG2E)
      exponent = arith::MulFOp::create(b, exponent, getScalar(M_LOG2E));
    if (rest)
      exponent = arith::SubFOp::create(b, exponent, rest);
    // No weight is above 1, for any log-sum-exp in padding.
    Value isAbove = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, exponent, zero);
    exponent = arith::SelectOp::create(b, isAbove, zero, exponent);
    Value share = emitPower(exponent);
    auto hide = [&, i = i](Value value) -> Value {
      return seen[i] ? arith::SelectOp::create(b, seen[i], value, zero).getResult() : value;
    };
    weights.shares.push_back(hide(dropped(share, i)));
    if (!needsCotangents)
      continue;
    Value gradient = arith::SubFOp::create(b, dropped(cotangents[i], i), deltaOfRow);
    gradient = hide(arith::MulFOp::create(b, share, gradient));
    weights.scores.push_back(gradient);
    if (auto limit = op.getSoftCap()) {
      // The derivative of c tanh(x / c).
      Value slope = arith::MulFOp::create(
          b, capped, getScalar(1 / (limit->convertToDouble() * unitOfScores)));
      slope = arith::SubFOp::create(b, getScalar(1), arith::MulFOp::create(b, slope, slope));
      gradient = arith::MulFOp::create(b, gradient, slope);
    }
    weights.products.push_back(
        arith::MulFOp::create(b, gradient, getScalar(op.getScale().convertToDouble())));
  }
  return weights;
}

//===----------------------------------------------------------------------===//
// Gradients of queries, keys and values
//===----------------------------------------------------------------------===//

SmallVector<Value> AttentionGradient::accumulate(ArrayRef<Value> weights, Tile tile, bool ownsKey,
                                                 ValueRange sums) {
  Value buffer = getShared(weightOffset, plan.blockRows * weightStride, plan.compute);
  Value operand = getShared(operandOffset, plan.blockRows * operandStride, plan.compute);
  Value own = getRowOffset(0), row = mul(own, weightStride);
  for (auto [i, weight] : llvm::enumerate(weights))
    memref::StoreOp::create(b, weight, buffer, add(row, getKeyOffset(i)));
  tile.firstColumn = firstFeature;
  tile.tileColumns = slice;
  copyTile(tile, operand, operandStride, plan.compute);
  emitBarrier(b);
  SmallVector<Value> after =
      loop(getIndex(0), getIndex(plan.blockRows), 1, sums, [&](Value i, ValueRange known) {
        Value at = ownsKey ? add(mul(i, weightStride), own) : add(row, i);
        Value weight = memref::LoadOp::create(b, buffer, at);
        weight = vector::BroadcastOp::create(b, getVector(), weight);
        Value from = add(mul(i, operandStride), mul(quad, lanes));
        SmallVector<Value> next;
        for (auto [j, sum] : llvm::enumerate(known))
          next.push_back(math::FmaOp::create(
              b, weight, loadShared(operand, add(from, j * lanes * lanes)), sum));
        return next;
      });
  emitBarrier(b);
  return after;
}

void AttentionGradient::store(ValueRange sums, Value buffer, Value row, Value exists,
                              int64_t columns) {
  Value base = mul(row, columns);
  auto emit = [&](Value value, Value column) {
    Value isInside = exists;
    if (columns % slice)
      isInside = both(isInside, isBelow(column, getIndex(columns)));
    auto write = [&] { vector::StoreOp::create(b, value, buffer, add(base, column)); };
    isInside ? when(isInside, write) : write();
  };
  for (auto [i, sum] : llvm::enumerate(sums)) {
    Value column = add(firstFeature, add(mul(quad, lanes), i * lanes * lanes));
    if (columns % lanes == 0) {
      emit(sum, column);
      continue;
    }
    for (int64_t j = 0; j < lanes; ++j)
      emit(vector::ExtractStridedSliceOp::create(b, sum, j, 1, 1), add(column, j));
  }
}

void AttentionGradient::emitQueryGradient(Value block) {
  int64_t slices = getSlices(plan.features);
  firstFeature = mul(rem(block, slices), slice);
  Value number = div(block, slices);
  firstRow = mul(rem(number, getRowTiles()), plan.blockRows);
  setUnit(div(number, getRowTiles()));
  startBatch();
  emitRows();
  auto [first, last] = getKeyRange();
  SmallVector<Value> sums =
      loop(first, last, plan.blockKeys, getZeros(), [&](Value key, ValueRange known) {
        firstKey = key;
        return emitTile(known, [&] {
          return accumulate(emitWeights(/*needsCotangents=*/true).products, getKeyTile(),
                            /*ownsKey=*/false, known);
        });
      });
  store(sums, queryGrad, add(mul(unit, plan.rows), rows.front().index), rows.front().exists,
        plan.features);
}

void AttentionGradient::emitKeyGradient(Value block, bool isOfValues) {
  int64_t columns = isOfValues ? plan.valueFeatures : plan.features, slices = getSlices(columns);
  firstFeature = mul(rem(block, slices), slice);
  Value number = div(block, slices), ownUnit = div(number, getKeyTiles());
  Value ownKey = mul(rem(number, getKeyTiles()), plan.blockKeys);
  Value first = getIndex(0), last = getIndex(plan.rows);
  if (plan.isOrdered()) {
    // Blocks of rows begin at multiples of their size.
    if (plan.right)
      first = mul(div(max(sub(ownKey, getIndex(*plan.right)), first), plan.blockRows),
                  plan.blockRows);
    if (plan.left)
      last = min(last, add(ownKey, plan.blockKeys + *plan.left));
  }
  auto emitHead = [&](Value head, ValueRange ofHeads) {
    return loop(first, last, plan.blockRows, ofHeads, [&](Value row, ValueRange known) {
      setUnit(add(mul(ownUnit, plan.getGroup()), head));
      startBatch();
      firstRow = row;
      firstKey = ownKey;
      emitRows();
      return emitTile(known, [&] {
        Weights weights = emitWeights(/*needsCotangents=*/!isOfValues);
        return accumulate(isOfValues ? weights.shares : weights.products,
                          isOfValues ? getCotangentTile() : getQueryTile(), /*ownsKey=*/true,
                          known);
      });
    });
  };
  SmallVector<Value> sums =
      loop(getIndex(0), getIndex(plan.getGroup()), 1, getZeros(), emitHead);
  Value key = add(ownKey, getRowOffset(0)), exists;
  if (plan.keyRows % plan.blockKeys)
    exists = isBelow(key, getIndex(plan.keyRows));
  store(sums, isOfValues ? valueGrad : keyGrad, add(mul(ownUnit, plan.keyRows), key), exists,
        columns);
}

//===----------------------------------------------------------------------===//
// The gradient of the bias
//===----------------------------------------------------------------------===//

void AttentionGradient::emitBiasGradient(Value block) {
  SmallVector<int64_t> tiles = getBiasTiles();
  Value own[4], from[4], to[4];
  int64_t all[] = {plan.batch, plan.queryHeads, getRowTiles(), getKeyTiles()};
  for (int64_t i = 3; i >= 0; --i) {
    own[i] = rem(block, tiles[i]);
    block = div(block, tiles[i]);
    from[i] = strides[i] ? own[i] : getIndex(0);
    to[i] = strides[i] ? add(own[i], 1) : getIndex(all[i]);
  }
  SmallVector<Value> indices;
  std::function<SmallVector<Value>(ValueRange)> emitLoops = [&](ValueRange sums) {
    size_t i = indices.size();
    if (i < 4)
      return loop(from[i], to[i], 1, sums, [&](Value index, ValueRange known) {
        indices.push_back(index);
        SmallVector<Value> after = emitLoops(known);
        indices.pop_back();
        return after;
      });
    setUnit(add(mul(indices[0], plan.queryHeads), indices[1]));
    startBatch();
    firstRow = mul(indices[2], plan.blockRows);
    firstKey = mul(indices[3], plan.blockKeys);
    emitRows();
    return emitTile(sums, [&] {
      SmallVector<Value> after;
      for (auto [sum, term] : llvm::zip_equal(sums, emitWeights(true).scores))
        after.push_back(arith::AddFOp::create(b, sum, term));
      return after;
    });
  };
  SmallVector<Value> sums = emitLoops(SmallVector<Value>(plan.keysOfThread, getScalar(0)));
  // Sums over rows and keys of the tile go through shared memory.
  Value buffer = getShared(weightOffset, plan.blockRows * weightStride, plan.compute);
  for (auto [i, sum] : llvm::enumerate(sums))
    memref::StoreOp::create(b, sum, buffer,
                            add(mul(getRowOffset(0), weightStride), getKeyOffset(i)));
  emitBarrier(b);
  auto sumAlong = [&](Value first, int64_t stride, int64_t count) {
    return loop(getIndex(0), getIndex(count), 1, {getScalar(0)}, [&](Value i, ValueRange known) {
      Value term = memref::LoadOp::create(b, buffer, add(first, mul(i, stride)));
      return SmallVector<Value>{arith::AddFOp::create(b, known.front(), term)};
    }).front();
  };
  Value base = add(mul(own[0], strides[0]), mul(own[1], strides[1]));
  Value rowFrom = mul(own[2], plan.blockRows), keyFrom = mul(own[3], plan.blockKeys);
  auto write = [&](Value sum, Value row, Value key) {
    Value place = add(base, add(mul(row, strides[2]), mul(key, strides[3])));
    memref::StoreOp::create(b, sum, biasGrad, place);
  };
  auto isOwn = [&](Value index, int64_t dimension, int64_t count) {
    return strides[dimension] ? isBelow(index, getIndex(count)) : Value();
  };
  if (strides[2] && strides[3]) {
    Value row = add(rowFrom, getRowOffset(0));
    for (auto [i, sum] : llvm::enumerate(sums)) {
      Value key = add(keyFrom, getKeyOffset(i));
      when(both(isOwn(row, 2, plan.rows), isOwn(key, 3, plan.keyRows)),
           [&, sum = sum] { write(sum, row, key); });
    }
    return;
  }
  Value isWriter = isBelow(thread, getIndex(plan.blockKeys));
  if (strides[2]) {
    Value row = add(rowFrom, thread);
    return when(both(isWriter, isOwn(row, 2, plan.rows)), [&] {
      write(sumAlong(mul(thread, weightStride), 1, plan.blockKeys), row, getIndex(0));
    });
  }
  if (strides[3]) {
    Value key = add(keyFrom, thread);
    return when(both(isWriter, isOwn(key, 3, plan.keyRows)), [&] {
      write(sumAlong(thread, weightStride, plan.blockRows), getIndex(0), key);
    });
  }
  // The sums of rows are in the first column, which no other thread reads then.
  when(isWriter, [&] {
    Value first = mul(thread, weightStride);
    memref::StoreOp::create(b, sumAlong(first, 1, plan.blockKeys), buffer, first);
  });
  emitBarrier(b);
  when(compare(arith::CmpIPredicate::eq, thread, getIndex(0)), [&] {
    write(sumAlong(getIndex(0), weightStride, plan.blockRows), getIndex(0), getIndex(0));
  });
}

std::unique_ptr<AttentionBlock> makeAttentionGradient(const AttentionLaunch &launch,
                                                      const AttentionTilePlan &plan) {
  return std::make_unique<AttentionGradient>(launch, plan);
}

} // namespace meshwright::lower
