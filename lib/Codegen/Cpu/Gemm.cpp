//===- Gemm.cpp - kernels of matrix products ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Dialect/X86Vector/X86VectorDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

using Builder = ImplicitLocOpBuilder;

//===----------------------------------------------------------------------===//
// Pieces
//===----------------------------------------------------------------------===//

static Value index(Builder &b, int64_t value) { return arith::ConstantIndexOp::create(b, value); }
static Value add(Builder &b, Value x, Value y) { return arith::AddIOp::create(b, x, y); }
static Value add(Builder &b, Value x, int64_t y) { return y ? add(b, x, index(b, y)) : x; }
static Value sub(Builder &b, Value x, Value y) { return arith::SubIOp::create(b, x, y); }
static Value mul(Builder &b, Value x, int64_t y) {
  return y == 1 ? x : arith::MulIOp::create(b, x, index(b, y));
}
static Value min(Builder &b, Value x, Value y) { return arith::MinUIOp::create(b, x, y); }
static Value min(Builder &b, Value x, int64_t y) { return min(b, x, index(b, y)); }
static Value less(Builder &b, Value x, Value y) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, x, y);
}
static Value less(Builder &b, Value x, int64_t y) { return less(b, x, index(b, y)); }
static Value equal(Builder &b, Value x, int64_t y) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, x, index(b, y));
}

static Type withShapeOf(Type vector, Type element) {
  return cast<VectorType>(vector).clone(element);
}
static Value widen(Builder &b, Value vector) {
  Type type = withShapeOf(vector.getType(), b.getF32Type());
  return type == vector.getType() ? vector : arith::ExtFOp::create(b, type, vector);
}
static Value narrow(Builder &b, Value vector, Type element) {
  Type type = withShapeOf(vector.getType(), element);
  return type == vector.getType() ? vector : arith::TruncFOp::create(b, type, vector);
}

/// A dense buffer in one dimension.
static Value flatten(Builder &b, Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  if (type.getRank() == 1)
    return buffer;
  int64_t count = type.getNumElements();
  return memref::ReinterpretCastOp::create(b, MemRefType::get({count}, type.getElementType()),
                                           buffer, /*offset=*/0, ArrayRef<int64_t>{count},
                                           ArrayRef<int64_t>{1});
}

static Value getMask(Builder &b, int64_t count, int64_t lanes) {
  return vector::ConstantMaskOp::create(b, VectorType::get({lanes}, b.getI1Type()),
                                        ArrayRef<int64_t>{count});
}

/// Loads `count` elements of a flat buffer as f32, in a vector of `lanes` with zeros behind
/// them. Without `masksBf16`, LLVM would split masked vectors of bf16 by functions that no
/// library has, so this loads each element.
static Value loadSome(Builder &b, Value buffer, Value at, int64_t count, int64_t lanes,
                      bool masksBf16) {
  auto type = VectorType::get({lanes}, cast<MemRefType>(buffer.getType()).getElementType());
  if (count == lanes)
    return widen(b, vector::LoadOp::create(b, type, buffer, at));
  if (type.getElementType().isF32() || masksBf16) {
    Value zero = arith::ConstantOp::create(b, b.getZeroAttr(type));
    return widen(b,
                 vector::MaskedLoadOp::create(b, type, buffer, at, getMask(b, count, lanes), zero));
  }
  Value wide = arith::ConstantOp::create(b, b.getZeroAttr(withShapeOf(type, b.getF32Type())));
  for (int64_t i = 0; i < count; ++i) {
    Value element = memref::LoadOp::create(b, buffer, add(b, at, i));
    element = arith::ExtFOp::create(b, b.getF32Type(), element);
    wide = vector::InsertOp::create(b, element, wide, i);
  }
  return wide;
}

/// Stores the first `count` elements of a vector of f32.
static void storeSome(Builder &b, Value wide, Value buffer, Value at, int64_t count,
                      bool masksBf16) {
  int64_t lanes = cast<VectorType>(wide.getType()).getNumElements();
  Type element = cast<MemRefType>(buffer.getType()).getElementType();
  if (count == lanes) {
    vector::StoreOp::create(b, narrow(b, wide, element), buffer, at);
    return;
  }
  if (element.isF32() || masksBf16) {
    vector::MaskedStoreOp::create(b, buffer, at, getMask(b, count, lanes),
                                  narrow(b, wide, element));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Value value = vector::ExtractOp::create(b, wide, i);
    value = arith::TruncFOp::create(b, element, value);
    memref::StoreOp::create(b, value, buffer, add(b, at, i));
  }
}

Value GemmPoint::load(Builder &b, Value buffer, int64_t columns, bool byRow) const {
  Value at = byRow ? add(b, mul(b, row, columns), column) : column;
  return loadSome(b, flatten(b, buffer), at, count, lanes, masksBf16);
}

void GemmPoint::store(Builder &b, Value vector, Value buffer, int64_t columns) const {
  Value at = add(b, mul(b, row, columns), column);
  storeSome(b, vector, flatten(b, buffer), at, count, masksBf16);
}

//===----------------------------------------------------------------------===//
// Kernel
//===----------------------------------------------------------------------===//

namespace {
/// Emits one kernel. Sizes are those of the plan. A tile is `tileRows` rows of one panel.
///
/// `emit` loops over the items: panels of C for one block of rows. For each block of k it
/// copies the rows of A (`emitCopy`) and sums each tile (`emitTile`). Sums of all blocks but
/// the last go to the workspace.
class GemmEmitter {
public:
  GemmEmitter(Builder &b, const GemmSpec &spec, const GemmPlan &plan, const GemmBuffers &buffers)
      : spec(spec), plan(plan), buffers(buffers), group(getGroup(spec.type)),
        columns(plan.tileVectors * plan.lanes), tiles(llvm::divideCeil(spec.m, plan.tileRows)),
        perStep(spec.type.isBF16() && !plan.dotsPairs ? 2 : 1), chunk(kChunkSteps * perStep),
        blockChunks(plan.blockSteps / kChunkSteps), hasBlocks(plan.blockSteps < plan.steps),
        sums(VectorType::get({plan.lanes}, b.getF32Type())) {
    a = flatten(b, buffers.a);
    weights = flatten(b, buffers.b);
    if (!spec.epilogue)
      c = flatten(b, buffers.c);
    if (spec.hasBias)
      bias = flatten(b, buffers.bias);
    auto view = [&](int64_t offset, int64_t count, Type type) -> Value {
      return memref::ViewOp::create(b, MemRefType::get({count}, type), buffers.workspace,
                                    index(b, offset), ValueRange{});
    };
    int64_t count = plan.blockTiles * plan.tileRows * plan.blockSteps * perStep;
    copy = view(0, count, plan.dotsPairs ? Type(b.getI32Type()) : b.getF32Type());
    copyOfTail = plan.dotsPairs ? view(0, count * 2, b.getBF16Type()) : copy;
    int64_t keptTiles = hasBlocks ? plan.blockPanels * plan.blockTiles : spec.epilogue ? 1 : 0;
    if (keptTiles)
      partial =
          view(llvm::alignTo(count * 4, 64), keptTiles * plan.tileRows * columns, b.getF32Type());
  }

  void emit(Builder &b);

private:
  /// Copies A's rows of this block, from step `firstStep` on, in the order in which a tile
  /// reads them: [tile][chunk][row][elements of four steps].
  void emitCopy(Builder &b, Value firstTile, Value count, Value firstStep, Value chunks);
  void emitCopiedChunk(Builder &b, Value row, Value k, Value to);
  void emitCopiedTail(Builder &b, Value firstTile, Value count, Value at);
  Value fusePrologue(Builder &b, Value vector, Value row, Value k);
  void emitTile(Builder &b, Value tile, Value panel, Value copied, Value kept, Value firstStep,
                Value chunks);
  SmallVector<Value> emitSums(Builder &b, Value copied, Value panel, Value firstStep, Value chunks,
                              ValueRange initial);
  void emitSteps(Builder &b, Value fromCopy, Value fromWeights, int64_t count,
                 MutableArrayRef<Value> results);
  void emitResults(Builder &b, Value tile, Value panel, ValueRange results, int64_t width);
  void emitEpilogue(Builder &b, Value tile, Value panel, Value kept);
  /// Calls `emit` with the number of the panel's columns that C has.
  void emitForWidth(Builder &b, Value panel, llvm::function_ref<void(Builder &, int64_t)> emit);

  const GemmSpec &spec;
  const GemmPlan &plan;
  const GemmBuffers &buffers;
  int64_t group, columns, tiles;
  /// Elements of a row in the copy of A, for a step and for a chunk; chunks of a block of k.
  int64_t perStep, chunk, blockChunks;
  bool hasBlocks;
  VectorType sums;
  Value a, weights, bias, c, copy, copyOfTail, partial;
};
} // namespace

void GemmEmitter::emit(Builder &b) {
  scf::WhileOp::create(
      b, TypeRange{b.getIndexType()}, ValueRange{buffers.begin},
      [&](OpBuilder &nested, Location loc, ValueRange item) {
        Builder inner(loc, nested);
        scf::ConditionOp::create(inner, less(inner, item[0], buffers.end), item);
      },
      [&](OpBuilder &nested, Location loc, ValueRange arguments) {
        Builder inner(loc, nested);
        Value item = arguments[0];
        Value panels = index(inner, plan.panels);
        Value block = arith::DivUIOp::create(inner, item, panels);
        Value firstPanel = arith::RemUIOp::create(inner, item, panels);
        Value panelCount = min(inner, sub(inner, buffers.end, item),
                               min(inner, sub(inner, panels, firstPanel), plan.blockPanels));
        Value firstTile = mul(inner, block, plan.blockTiles);
        Value tileCount = min(inner, sub(inner, index(inner, tiles), firstTile), plan.blockTiles);
        auto emitBlock = [&](Builder &inner, Value firstStep) {
          Value chunks = index(inner, blockChunks);
          if (hasBlocks)
            chunks = arith::DivUIOp::create(
                inner, min(inner, sub(inner, index(inner, plan.steps), firstStep), plan.blockSteps),
                index(inner, kChunkSteps));
          emitCopy(inner, firstTile, tileCount, firstStep, chunks);
          scf::ForOp::create(
              inner, index(inner, 0), panelCount, index(inner, 1), ValueRange{},
              [&](OpBuilder &nested, Location loc, Value p, ValueRange) {
                Builder inner(loc, nested);
                scf::ForOp::create(
                    inner, index(inner, 0), tileCount, index(inner, 1), ValueRange{},
                    [&](OpBuilder &nested, Location loc, Value t, ValueRange) {
                      Builder inner(loc, nested);
                      Value copied = mul(inner, t, blockChunks * plan.tileRows * chunk);
                      Value kept = index(inner, 0);
                      if (hasBlocks)
                        kept = mul(inner, add(inner, mul(inner, p, plan.blockTiles), t),
                                   plan.tileRows * columns);
                      emitTile(inner, add(inner, firstTile, t), add(inner, firstPanel, p), copied,
                               kept, firstStep, chunks);
                      scf::YieldOp::create(inner);
                    });
                scf::YieldOp::create(inner);
              });
        };
        if (hasBlocks)
          scf::ForOp::create(inner, index(inner, 0), index(inner, plan.steps),
                             index(inner, plan.blockSteps), ValueRange{},
                             [&](OpBuilder &nested, Location loc, Value step, ValueRange) {
                               Builder inner(loc, nested);
                               emitBlock(inner, step);
                               scf::YieldOp::create(inner);
                             });
        else
          emitBlock(inner, index(inner, 0));
        scf::YieldOp::create(inner, ValueRange{add(inner, item, panelCount)});
      });
}

void GemmEmitter::emitCopy(Builder &b, Value firstTile, Value count, Value firstStep,
                           Value chunks) {
  // Chunks that are complete in A. One incomplete chunk may follow.
  int64_t wholeChunks = spec.k / (kChunkSteps * group);
  bool hasTail = spec.k % (kChunkSteps * group) != 0;
  Value firstChunk = arith::DivUIOp::create(b, firstStep, index(b, kChunkSteps));
  Value whole = chunks;
  if (hasTail)
    whole = min(b, chunks, sub(b, index(b, wholeChunks), firstChunk));
  scf::ForOp::create(b, index(b, 0), count, index(b, 1), ValueRange{},
                     [&](OpBuilder &nested, Location loc, Value t, ValueRange) {
                       Builder b(loc, nested);
                       Value firstRow = mul(b, add(b, firstTile, t), plan.tileRows);
                       SmallVector<Value> rows;
                       // Rows behind A's last row are copies of it. Their sums are not stored.
                       for (int64_t r = 0; r < plan.tileRows; ++r)
                         rows.push_back(r < spec.m - (tiles - 1) * plan.tileRows
                                            ? add(b, firstRow, r)
                                            : min(b, add(b, firstRow, r), spec.m - 1));
                       Value to = mul(b, t, blockChunks * plan.tileRows * chunk);
                       scf::ForOp::create(
                           b, index(b, 0), whole, index(b, 1), ValueRange{},
                           [&](OpBuilder &nested, Location loc, Value i, ValueRange) {
                             Builder b(loc, nested);
                             Value at = add(b, to, mul(b, i, plan.tileRows * chunk));
                             Value k = mul(b, add(b, firstChunk, i), kChunkSteps * group);
                             for (int64_t r = 0; r < plan.tileRows; ++r)
                               emitCopiedChunk(b, rows[r], k, add(b, at, r * chunk));
                             scf::YieldOp::create(b);
                           });
                       scf::YieldOp::create(b);
                     });
  if (!hasTail)
    return;
  scf::IfOp::create(b, less(b, whole, chunks), [&](OpBuilder &nested, Location loc) {
    Builder b(loc, nested);
    emitCopiedTail(b, firstTile, count, whole);
    scf::YieldOp::create(b);
  });
}

/// Applies the prologue to elements of A in f32. The result is rounded to the type of the
/// product, and is f32 again.
Value GemmEmitter::fusePrologue(Builder &b, Value vector, Value row, Value k) {
  int64_t lanes = cast<VectorType>(vector.getType()).getNumElements();
  Value fused = spec.prologue(b, vector, GemmPoint{{row, k, lanes, lanes}, plan.masksBf16});
  return widen(b, narrow(b, fused, spec.type));
}

void GemmEmitter::emitCopiedChunk(Builder &b, Value row, Value k, Value to) {
  int64_t lanes = kChunkSteps * group;
  auto type = VectorType::get({lanes}, cast<MemRefType>(a.getType()).getElementType());
  Value vector = vector::LoadOp::create(b, type, a, add(b, mul(b, row, spec.k), k));
  if (spec.prologue)
    vector = fusePrologue(b, widen(b, vector), row, k);
  if (plan.dotsPairs)
    vector = vector::BitCastOp::create(b, VectorType::get({kChunkSteps}, b.getI32Type()),
                                       narrow(b, vector, spec.type));
  else
    vector = widen(b, vector);
  vector::StoreOp::create(b, vector, copy, to);
}

/// Copies the last elements of the rows, with zeros behind them.
void GemmEmitter::emitCopiedTail(Builder &b, Value firstTile, Value count, Value at) {
  int64_t lanes = kChunkSteps * group, first = spec.k / lanes * lanes;
  scf::ForOp::create(
      b, index(b, 0), mul(b, count, plan.tileRows), index(b, 1), ValueRange{},
      [&](OpBuilder &nested, Location loc, Value r, ValueRange) {
        Builder b(loc, nested);
        Value height = index(b, plan.tileRows);
        Value tile = arith::DivUIOp::create(b, r, height);
        Value inTile = arith::RemUIOp::create(b, r, height);
        Value row = min(b, add(b, mul(b, firstTile, plan.tileRows), r), spec.m - 1);
        Value to = mul(
            b, add(b, mul(b, add(b, mul(b, tile, blockChunks), at), plan.tileRows), inTile), chunk);
        auto type = VectorType::get({chunk}, cast<MemRefType>(copy.getType()).getElementType());
        vector::StoreOp::create(b, arith::ConstantOp::create(b, b.getZeroAttr(type)), copy, to);
        if (plan.dotsPairs)
          to = mul(b, to, 2);
        for (int64_t i = 0; i < spec.k - first; ++i) {
          Value k = index(b, first + i);
          Value from = add(b, mul(b, row, spec.k), k);
          Value element = loadSome(b, a, from, 1, 1, plan.masksBf16);
          if (spec.prologue)
            element = fusePrologue(b, element, row, k);
          storeSome(b, element, copyOfTail, add(b, to, i), 1, plan.masksBf16);
        }
        scf::YieldOp::create(b);
      });
}

void GemmEmitter::emitTile(Builder &b, Value tile, Value panel, Value copied, Value kept,
                           Value firstStep, Value chunks) {
  int64_t count = plan.tileRows * plan.tileVectors;
  SmallVector<Value> initial(count, arith::ConstantOp::create(b, b.getZeroAttr(sums)));
  SmallVector<Type> types(count, sums);
  if (hasBlocks) {
    auto isFirst = scf::IfOp::create(
        b, equal(b, firstStep, 0),
        [&](OpBuilder &nested, Location loc) { scf::YieldOp::create(nested, loc, initial); },
        [&](OpBuilder &nested, Location loc) {
          Builder b(loc, nested);
          SmallVector<Value> loaded;
          for (int64_t i = 0; i < count; ++i)
            loaded.push_back(
                vector::LoadOp::create(b, sums, partial, add(b, kept, i * plan.lanes)));
          scf::YieldOp::create(b, loaded);
        });
    initial.assign(isFirst.getResults().begin(), isFirst.getResults().end());
  }
  SmallVector<Value> results = emitSums(b, copied, panel, firstStep, chunks, initial);
  auto keep = [&](Builder &b) {
    for (int64_t i = 0; i < count; ++i)
      vector::StoreOp::create(b, results[i], partial, add(b, kept, i * plan.lanes));
  };
  auto finish = [&](Builder &b) {
    if (spec.epilogue)
      emitEpilogue(b, tile, panel, kept);
    else
      emitForWidth(b, panel,
                   [&](Builder &b, int64_t width) { emitResults(b, tile, panel, results, width); });
  };
  if (spec.epilogue)
    keep(b);
  if (!hasBlocks)
    return finish(b);
  Value isLast = less(b, index(b, plan.steps - 1), add(b, firstStep, plan.blockSteps));
  auto emitIn = [&](llvm::function_ref<void(Builder &)> emit) {
    return [emit](OpBuilder &nested, Location loc) {
      Builder b(loc, nested);
      emit(b);
      scf::YieldOp::create(b);
    };
  };
  if (spec.epilogue)
    scf::IfOp::create(b, isLast, emitIn(finish));
  else
    scf::IfOp::create(b, isLast, emitIn(finish), emitIn(keep));
}

SmallVector<Value> GemmEmitter::emitSums(Builder &b, Value copied, Value panel, Value firstStep,
                                         Value chunks, ValueRange initial) {
  Value start = mul(b, add(b, mul(b, panel, plan.steps), firstStep), columns * group);
  // LLVM moves the prefetches of a loop body to its beginning. Many of them delay the loads
  // behind them, so a body with prefetches reads only two lines.
  int64_t stepBytes = columns * group * getBytes(spec.type);
  int64_t count =
      plan.nearSteps ? std::clamp<int64_t>(128 / stepBytes, 1, kChunkSteps) : kChunkSteps;
  int64_t parts = kChunkSteps / count;
  auto emitParts = [&](Builder &b, Value first, Value last, ValueRange initial) {
    auto loop = scf::ForOp::create(
        b, first, last, index(b, 1), initial,
        [&](OpBuilder &nested, Location loc, Value i, ValueRange arguments) {
          Builder b(loc, nested);
          SmallVector<Value> results(arguments);
          Value part = arith::RemUIOp::create(b, i, index(b, parts));
          Value whole = arith::DivUIOp::create(b, i, index(b, parts));
          Value inCopy =
              add(b, mul(b, whole, plan.tileRows * chunk), mul(b, part, count * perStep));
          emitSteps(b, add(b, copied, inCopy), add(b, start, mul(b, i, count * columns * group)),
                    count, results);
          scf::YieldOp::create(b, results);
        });
    return SmallVector<Value>(loop.getResults());
  };
  Value last = mul(b, chunks, parts);
  int64_t exactParts = plan.exactSteps / count;
  if (!spec.type.isF32() || plan.blockSteps <= plan.exactSteps)
    return emitParts(b, index(b, 0), last, initial);
  // Long sums are sums of shorter ones, which are more exact.
  auto loop = scf::ForOp::create(
      b, index(b, 0), last, index(b, exactParts), initial,
      [&](OpBuilder &nested, Location loc, Value i, ValueRange known) {
        Builder b(loc, nested);
        SmallVector<Value> zeros(known.size(), arith::ConstantOp::create(b, b.getZeroAttr(sums)));
        SmallVector<Value> results = emitParts(b, i, min(b, last, add(b, i, exactParts)), zeros);
        for (auto [result, sum] : llvm::zip_equal(results, known))
          result = arith::AddFOp::create(b, sum, result);
        scf::YieldOp::create(b, results);
      });
  return SmallVector<Value>(loop.getResults());
}

/// Adds `count` steps of k, all of one chunk, to `results`.
void GemmEmitter::emitSteps(Builder &b, Value fromCopy, Value fromWeights, int64_t count,
                            MutableArrayRef<Value> results) {
  auto broadcast = [&](int64_t row, int64_t element) -> Value {
    Value scalar = memref::LoadOp::create(b, copy, add(b, fromCopy, row * chunk + element));
    Type type = VectorType::get({plan.lanes}, scalar.getType());
    return vector::BroadcastOp::create(b, type, scalar);
  };
  auto multiplyAll = [&](int64_t element, ArrayRef<Value> vectors) {
    for (int64_t r = 0; r < plan.tileRows; ++r) {
      Value left = broadcast(r, element);
      for (int64_t v = 0; v < plan.tileVectors; ++v) {
        Value &sum = results[r * plan.tileVectors + v];
        sum = vector::FMAOp::create(b, left, vectors[v], sum);
      }
    }
  };
  auto integers = VectorType::get({plan.lanes}, b.getI32Type());
  auto pairs = VectorType::get({plan.lanes * group}, spec.type);
  for (int64_t u = 0; u < count; ++u) {
    SmallVector<Value> vectors;
    for (int64_t v = 0; v < plan.tileVectors; ++v)
      vectors.push_back(vector::LoadOp::create(
          b, pairs, weights, add(b, fromWeights, (u * columns + v * plan.lanes) * group)));
    auto prefetch = [&](int64_t steps, unsigned locality) {
      for (int64_t byte = 0; steps && byte < columns * group * getBytes(spec.type); byte += 64)
        memref::PrefetchOp::create(
            b, weights,
            ValueRange{
                add(b, fromWeights, (u + steps) * columns * group + byte / getBytes(spec.type))},
            /*isWrite=*/false, locality, /*isDataCache=*/true);
    };
    prefetch(plan.farSteps, /*locality=*/2);
    prefetch(plan.nearSteps, /*locality=*/3);
    if (spec.type.isF32()) {
      multiplyAll(u, vectors);
      continue;
    }
    if (plan.dotsPairs) {
      for (int64_t r = 0; r < plan.tileRows; ++r) {
        Value left = vector::BitCastOp::create(b, pairs, broadcast(r, u));
        for (int64_t v = 0; v < plan.tileVectors; ++v) {
          Value &sum = results[r * plan.tileVectors + v];
          sum = x86vector::DotBF16Op::create(b, sum, left, vectors[v]);
        }
      }
      continue;
    }
    // The first element of a pair is in the lower 16 bits.
    SmallVector<Value> evens, odds;
    for (Value vector : vectors) {
      Value bits = vector::BitCastOp::create(b, integers, vector);
      Value shift =
          arith::ConstantOp::create(b, DenseElementsAttr::get(integers, b.getI32IntegerAttr(16)));
      Value upper = arith::ConstantOp::create(
          b, DenseElementsAttr::get(integers, b.getI32IntegerAttr(0xffff0000)));
      evens.push_back(arith::BitcastOp::create(b, sums, arith::ShLIOp::create(b, bits, shift)));
      odds.push_back(arith::BitcastOp::create(b, sums, arith::AndIOp::create(b, bits, upper)));
    }
    multiplyAll(2 * u, evens);
    multiplyAll(2 * u + 1, odds);
  }
}

void GemmEmitter::emitForWidth(Builder &b, Value panel,
                               llvm::function_ref<void(Builder &, int64_t)> emit) {
  int64_t lastWidth = spec.n - (plan.panels - 1) * columns;
  if (plan.panels == 1 || lastWidth == columns)
    return emit(b, lastWidth);
  auto emitIn = [&](int64_t width) {
    return [&, width](OpBuilder &nested, Location loc) {
      Builder b(loc, nested);
      emit(b, width);
      scf::YieldOp::create(b);
    };
  };
  scf::IfOp::create(b, equal(b, panel, plan.panels - 1), emitIn(lastWidth), emitIn(columns));
}

/// Passes the sums of a tile, which are in the workspace, to the epilogue. A loop over rows
/// keeps the code short: it contains the epilogue once.
void GemmEmitter::emitEpilogue(Builder &b, Value tile, Value panel, Value kept) {
  Value firstRow = mul(b, tile, plan.tileRows), column = mul(b, panel, columns);
  Value rows = min(b, sub(b, index(b, spec.m), firstRow), plan.tileRows);
  emitForWidth(b, panel, [&](Builder &b, int64_t width) {
    scf::ForOp::create(
        b, index(b, 0), rows, index(b, 1), ValueRange{},
        [&](OpBuilder &nested, Location loc, Value r, ValueRange) {
          Builder b(loc, nested);
          GemmPoint point{{add(b, firstRow, r), column, width, columns}, plan.masksBf16};
          Value value = vector::LoadOp::create(b, VectorType::get({columns}, b.getF32Type()),
                                               partial, add(b, kept, mul(b, r, columns)));
          if (spec.hasBias)
            value = arith::AddFOp::create(b, value, point.load(b, bias, spec.n, /*byRow=*/false));
          spec.epilogue(b, value, point);
          scf::YieldOp::create(b);
        });
  });
}

/// Stores a tile. Only `width` columns of it are in C.
void GemmEmitter::emitResults(Builder &b, Value tile, Value panel, ValueRange results,
                              int64_t width) {
  Value row = mul(b, tile, plan.tileRows), column = mul(b, panel, columns);
  SmallVector<GemmPoint> points;
  SmallVector<Value> biases;
  for (int64_t first = 0; first < width; first += plan.lanes) {
    points.push_back({{row, add(b, column, first), std::min(plan.lanes, width - first), plan.lanes},
                      plan.masksBf16});
    if (spec.hasBias)
      biases.push_back(points.back().load(b, bias, spec.n, /*byRow=*/false));
  }
  auto emitRow = [&](Builder &b, int64_t r) {
    for (auto [v, point] : llvm::enumerate(points)) {
      Value value = results[r * plan.tileVectors + v];
      point.row = add(b, row, r);
      if (spec.hasBias)
        value = arith::AddFOp::create(b, value, biases[v]);
      storeSome(b, value, c, add(b, mul(b, point.row, spec.n), point.column), point.count,
                plan.masksBf16);
    }
  };
  for (int64_t r = 0; r < plan.tileRows; ++r) {
    if (r < spec.m - (tiles - 1) * plan.tileRows) {
      emitRow(b, r);
      continue;
    }
    scf::IfOp::create(b, less(b, add(b, row, r), spec.m), [&](OpBuilder &nested, Location loc) {
      Builder b(loc, nested);
      emitRow(b, r);
      scf::YieldOp::create(b);
    });
  }
}

void emitGemm(Builder &b, const GemmSpec &spec, const GemmPlan &plan, const GemmBuffers &buffers) {
  GemmEmitter(b, spec, plan, buffers).emit(b);
}

} // namespace meshwright::lower
