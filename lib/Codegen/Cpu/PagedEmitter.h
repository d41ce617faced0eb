//===- PagedEmitter.h - the kernel of nn.paged_attention --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A unit is a block of tokens of one request, the query heads of one or several key heads, the table of one
// rank and one part of the keys. Sizes at run time decide the units, and no number of threads does.
//
// - Units are in one order. Each has a weight, its keys times its rows. Item i of n computes the
//   units that begin in the i-th n-th of all weights, so equal shares of the items are equal work.
// - A block of one token is computed with features as lanes (PagedRows.cpp), a longer one, and one
//   of many heads, with rows as lanes (PagedBlocks.cpp), as kernels of nn.attention are.
// - Keys of a table are counted in its own order. A row of a block sees the keys of a range. No row behind
//   the keys that a block sees is read.
// - Offsets of rows of pages are looked up once for a block of keys.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDEMITTER_H

#include "meshwright/lib/Codegen/Cpu/VectorEmitter.h"
#include "meshwright/lib/Codegen/PagedShape.h"
#include "meshwright/lib/Codegen/Processor.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <optional>

namespace meshwright::lower {

/// How an op is cut into units.
struct PagedPlan : PagedShape {
  PagedPlan(nn::PagedAttentionOp op, const Processor &processor);

  int64_t lanes;
  /// Instructions multiply pairs of bf16.
  bool usesDot;
  /// Heads and tokens of a block, and the blocks of heads of a unit.
  int64_t blockHeads, blockTokens, unitBlocks;

  /// The units of a block of tokens.
  int64_t getInner() const { return getNumParts() * queryHeads / (blockHeads * unitBlocks); }
  int64_t getBlockRows() const;
  int64_t getItems() const;

private:
  int64_t chooseUnitBlocks() const;
};

/// Emits the kernel.
class PagedEmitter : public VectorEmitter, PagedBuffers {
public:
  PagedEmitter(nn::PagedAttentionOp op, const Processor &processor);

  const PagedPlan &getPlan() const { return plan; }
  SmallVector<Value> getReadTensors();
  SmallVector<Type> getBufferTypes();
  void emit(mlir::func::FuncOp kernel);

private:
  //===--------------------------------------------------------------------===//
  // Units
  //===--------------------------------------------------------------------===//

  Value loadNumber(Value buffer, Value index);
  Value divUp(Value a, Value c);
  Value isEqual(Value a, Value c);
  Value splatOf(Value scalar, int64_t size) {
    return mlir::vector::BroadcastOp::create(b, getVector(size, scalar.getType()), scalar);
  }
  /// Calls `visit` for each block of tokens, with the sum so far, the weight of its units and their
  /// number, and for the tokens behind all requests, which are units of weight 1. Returns the last sum.
  using BlockVisitor = function_ref<Value(Value sum, Value weight, int64_t count, bool isPadding)>;
  Value forEachBlock(Value init, BlockVisitor visit);
  /// Emits the units of the items `begin` to `end`.
  void emitShare(Value begin, Value end);
  /// The number of keys up to a token of the request, and how many of them its window hides.
  Value getSeen(Value token);
  Value getFirstSeen(Value seen);
  /// The weight of a unit of the block of tokens.
  Value getWeight();
  void emitUnit(Value unit);
  void setHeadBlock(Value index);
  /// Calls `emitBody` for each block of heads of the unit, in their order.
  void forEachHeadBlock(function_ref<void()> emitBody);
  /// Emits the results of a token of no request.
  void emitNothing(Value token);
  /// The number of the first `count` keys of a request that are in the unit's table.
  Value toLocal(Value count);
  /// The position of a key of the table.
  Value toPosition(Value key);
  /// Stores the rows of pages that have the `count` keys from the first one of the block on: all rows of all heads
  /// are counted. Behind the last key are at least 32 that repeat it.
  void lookUpKeys(Value count);
  /// The first element of the row of a key of the block.
  Value getKeyRow(Value key) { return mul(getRow(key), plan.features); }
  Value getValueRow(Value key) { return mul(getRow(key), plan.valueStride); }
  Value getRow(Value key) { return add(loadNumber(offsets.buffer, key), headBlock); }
  /// The row of the query of a row of the unit, behind the first one.
  Value getQueryRow(Value row) {
    return add(mul(div(row, plan.blockHeads), plan.queryHeads), rem(row, plan.blockHeads));
  }
  Value atRow(Value row, int64_t stride, Value column) { return add(mul(row, stride), column); }
  void fill(const Region &region, Value count, double value) {
    loop(getIndex(0), count, lanes, [&](Value i) { store(getSplat(value), region.buffer, i); });
  }

  /// Scores are exponents of two.
  double getFactor();
  Value cap(Value products);
  Value exponentiate(Value difference, Value maximum);
  /// The factor of a row's sum of values, with the sink's share; zero if the row sees no key.
  Value getResultFactor(Value sum, Value maximum, Value sink);
  Value getLogSumExp(Value sum, Value maximum);
  Value getLowest();
  /// A slope or a sink of the head of a row of the unit, as an exponent of two.
  Value loadPerHead(Value buffer, Value row);
  /// The place in the table of distances of the token's own key, or of position 0, for the head of a row of the unit.
  Value getBiasOrigin(Value row);
  /// Numbers of the table, as exponents of two, so many places behind the origins.
  Value loadBias(Value origin, Value steps);

  //===--------------------------------------------------------------------===//
  // One token
  //===--------------------------------------------------------------------===//

  void reserveRows();
  void emitRowUnit();
  void packRowQueries();
  /// The row of a head of the present block in the buffers of the unit.
  Value ofUnit(Value row) { return add(mul(headBlock, paddedRows), row); }
  /// Fetches the line of the cache that has an element of a buffer, ahead of its use.
  void prefetch(Value buffer, Value index);
  /// The row of pages to fetch at a key of the present block of heads. The blocks of heads of a unit fetch the rows of
  /// all of its heads, in the order of memory, from the key `first` on up to `last`.
  Value getRowAhead(Value key, Value first, Value last);
  void emitScoreTile(Value firstRow, Value first);
  /// The positions of the keys from `key` on.
  Value getPositions(Value key);
  /// The same less the position of the token: not positive for keys that it sees.
  Value getDistances(Value positions);
  void emitRowProbabilities(Value row);
  void emitRowProducts();
  void emitProductTile(Value firstRow, Value column, int64_t full, int64_t tail);
  void emitRowResult();

  int64_t rowTile = 0, keyTile = 0, paddedRows = 0, step = 0;
  int64_t queryStride = 0, scoreStride = 0, resultStride = 0;
  Region rowQueries, rowScores, rowResults, rowMaxima, rowSums, rowScales;

  //===--------------------------------------------------------------------===//
  // Blocks of tokens
  //===--------------------------------------------------------------------===//

  void reserveBlocks();
  void emitBlockUnit();
  /// Stores, for each row, the keys that it sees, its query and its terms. Rows behind the last one
  /// repeat it.
  void packRows();
  void packQueries();
  /// Copies a block of rows of pages.
  void copyRows(Value from, int64_t stride, int64_t columns, const Region &to);
  void packValuePairs();
  void emitPanel(Value panel);
  void emitScores(Value panel);
  Value getScore(Value panel, Value key, int64_t vector, bool masked);
  void emitProbabilities(Value panel);
  void emitProducts(Value panel);
  void emitBlockResult();
  void emitBlockLogSumExp();
  /// Sums scalar(i, k) * vector(v, k) for the rows of a tile, over k in from .. to.
  SmallVector<Value> emitTile(Value from, Value to, function_ref<Value(Value)> row,
                              function_ref<Value(int64_t, Value)> scalar,
                              function_ref<Value(int64_t, Value)> vector);
  Value accumulate(Value a, Value c, Value sum);
  Value emitPairs(Value lower, Value upper);
  /// The index of a vector of row `row` of a panel, in regions with a vector for each row.
  Value at(Value row, int64_t vector) { return add(mul(row, width), vector * lanes); }
  Value atLanes(Value panel, int64_t vector) { return add(mul(panel, width), vector * lanes); }

  int64_t vectors = 1, width = 0, tileRows = 8, featureSteps = 0;
  /// A block of keys, or values, is copied to the workspace. Else they are read in their pages, or values
  /// as the first columns of the copied keys.
  bool copiesKeys = false, copiesValues = false;
  Region queryPanels, scores, probabilities, keyBlock, valueBlock, results, maxima, sums, scales;
  Region rowsOfQuery, uppers, lowers, positions, rowSlopes, rowSinks, rowOrigins;
  Value numRows, numPanels, from, to;

  /// Keys of a block, of one token and of more.
  static constexpr int64_t kRowKeys = 256, kBlockKeys = 64;

  nn::PagedAttentionOp op;
  PagedPlan plan;
  const Processor &processor;

  Region offsets;

  // The present block of tokens: its request, the request's length and the token behind it.
  Value group, request, length, endOfTokens, firstToken, numTokens;
  // The present unit: its first head, and its rows of the query and of the result, the table, pages and the residue of
  // blocks.
  Value firstHeadOfUnit, headOfKeys, residue, tableBase, pageBase, queryOfUnit, resultOfUnit;
  // The present block of heads of the unit: its first head, and its rows of the query and of the result.
  Value headBlock, firstHead, queryBase, resultBase;
  Value firstOfUnit, lastOfUnit;
  // The present block of keys, and the keys from its first one on whose rows are looked up.
  Value firstKey, numKeys, numKnown;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDEMITTER_H
