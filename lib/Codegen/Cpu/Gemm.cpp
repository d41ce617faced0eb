//===- Gemm.cpp - kernels of matrix products ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"

#include "meshwright/lib/Codegen/Cpu/GemmPieces.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Dialect/X86Vector/X86VectorDialect.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

using namespace gemm;
using gemm::Builder;

//===----------------------------------------------------------------------===//
// Kernel
//===----------------------------------------------------------------------===//

namespace {
/// Emits one kernel. Sizes are those of the plan. A tile is `tileRows` rows of one panel.
///
/// `emit` loops over the items: panels of C for one block of rows, or for all rows of all experts
/// (`emitExperts`). For each block of k, `emitBlock` copies the rows of A (`emitCopy`) and sums each
/// tile (`emitTile`). Sums of all blocks but the last go to the workspace.
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
  /// Tiles of consecutive panels, from block to block of k.
  struct Part {
    Value firstTile, tileCount, firstPanel, panelCount;
  };
  /// A tile in a block of k: its number in the block of rows, its place in the copy and among kept sums,
  /// and the weights that are read next.
  struct Tile {
    Value number, tile, panel, copied, kept, firstStep, chunks, next;
  };

  void emitItems(Builder &b);
  void emitExperts(Builder &b);
  void emitPart(Builder &b, const Part &part);
  void emitBlock(Builder &b, const Part &part, Value firstStep);
  /// The place of weights.
  Value getWeights(Builder &b, Value panel, Value step);
  /// The place of the weights behind those of panel `p` of a part.
  Value getNext(Builder &b, const Part &part, Value p, Value firstStep);
  /// Where the last row of A is, and where a row is among those of all experts.
  Value getLastRow(Builder &b);
  Value getRow(Builder &b, Value row) { return firstRow ? add(b, row, firstRow) : row; }
  /// Returns true if all tiles have row `r`.
  bool isInAllTiles(int64_t r) const {
    return spec.experts ? r == 0 : r < spec.m - (tiles - 1) * plan.tileRows;
  }

  /// Copies A's rows of this block, from step `firstStep` on, in the order in which a tile
  /// reads them: [tile][chunk][row][elements of four steps].
  void emitCopy(Builder &b, Value firstTile, Value count, Value firstStep, Value chunks);
  void emitCopiedChunk(Builder &b, Value row, Value k, Value to);
  void emitCopiedTail(Builder &b, Value firstTile, Value count, Value at);
  Value fusePrologue(Builder &b, Value vector, Value row, Value k);
  void emitTile(Builder &b, const Tile &tile);
  SmallVector<Value> emitSums(Builder &b, const Tile &tile, ValueRange initial);
  void emitPrefetches(Builder &b, const Tile &tile, Value chunk);
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
  /// Of the current expert: its first row, the number of its rows, and its first panel. Else null.
  Value firstRow, rowCount, firstOfPanels;
};
} // namespace

/// Emits a loop.
static void emitFor(Builder &b, Value begin, Value end, int64_t step,
                    llvm::function_ref<void(Builder &, Value)> emit) {
  scf::ForOp::create(b, begin, end, index(b, step), ValueRange{},
                     [&](OpBuilder &nested, Location loc, Value i, ValueRange) {
                       Builder inner(loc, nested);
                       emit(inner, i);
                       scf::YieldOp::create(inner);
                     });
}

void GemmEmitter::emit(Builder &b) {
  if (spec.experts)
    emitExperts(b);
  else
    emitItems(b);
}

void GemmEmitter::emitItems(Builder &b) {
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
        emitPart(inner, {firstTile, tileCount, firstPanel, panelCount});
        scf::YieldOp::create(inner, ValueRange{add(inner, item, panelCount)});
      });
}

/// An item is a panel of the results of all experts, so items take as long however many rows an expert has.
void GemmEmitter::emitExperts(Builder &b) {
  auto load = [&](Builder &b, Value at) -> Value {
    Value offset = memref::LoadOp::create(b, buffers.offsets, at);
    return arith::IndexCastOp::create(b, b.getIndexType(), offset);
  };
  emitFor(b, index(b, 0), index(b, spec.experts), 1, [&](Builder &b, Value expert) {
    firstRow = load(b, expert);
    rowCount = sub(b, load(b, add(b, expert, 1)), firstRow);
    firstOfPanels = mul(b, expert, plan.panels);
    Value tileRows = index(b, plan.tileRows);
    Value count = arith::DivUIOp::create(b, add(b, rowCount, plan.tileRows - 1), tileRows);
    emitFor(b, index(b, 0), count, plan.blockTiles, [&](Builder &b, Value firstTile) {
      Value tileCount = min(b, sub(b, count, firstTile), plan.blockTiles);
      emitFor(b, buffers.begin, buffers.end, plan.blockPanels, [&](Builder &b, Value firstPanel) {
        emitPart(b, {firstTile, tileCount, firstPanel,
                     min(b, sub(b, buffers.end, firstPanel), plan.blockPanels)});
      });
    });
  });
}

void GemmEmitter::emitPart(Builder &b, const Part &part) {
  if (!hasBlocks)
    return emitBlock(b, part, index(b, 0));
  emitFor(b, index(b, 0), index(b, plan.steps), plan.blockSteps,
          [&](Builder &b, Value step) { emitBlock(b, part, step); });
}

void GemmEmitter::emitBlock(Builder &b, const Part &part, Value firstStep) {
  Value chunks = index(b, blockChunks);
  if (hasBlocks)
    chunks = arith::DivUIOp::create(
        b, min(b, sub(b, index(b, plan.steps), firstStep), plan.blockSteps), index(b, kChunkSteps));
  emitCopy(b, part.firstTile, part.tileCount, firstStep, chunks);
  emitFor(b, index(b, 0), part.panelCount, 1, [&](Builder &b, Value p) {
    Value next = plan.aheadLines ? getNext(b, part, p, firstStep) : Value();
    emitFor(b, index(b, 0), part.tileCount, 1, [&](Builder &b, Value t) {
      Value copied = mul(b, t, blockChunks * plan.tileRows * chunk), kept = index(b, 0);
      if (hasBlocks)
        kept = mul(b, add(b, mul(b, p, plan.blockTiles), t), plan.tileRows * columns);
      emitTile(b, {t, add(b, part.firstTile, t), add(b, part.firstPanel, p), copied, kept, firstStep,
                   chunks, next});
    });
  });
}

Value GemmEmitter::getWeights(Builder &b, Value panel, Value step) {
  if (firstOfPanels)
    panel = add(b, panel, firstOfPanels);
  return mul(b, add(b, mul(b, panel, plan.steps), step), columns * group);
}

Value GemmEmitter::getNext(Builder &b, const Part &part, Value p, Value firstStep) {
  Value following = getWeights(b, add(b, part.firstPanel, add(b, p, 1)), firstStep);
  Value step = add(b, firstStep, plan.blockSteps);
  Value block = getWeights(b, part.firstPanel, step);
  Value expert = getWeights(b, add(b, part.firstPanel, plan.panels), index(b, 0));
  Value other = arith::SelectOp::create(b, less(b, step, plan.steps), block, expert);
  return arith::SelectOp::create(b, less(b, add(b, p, 1), part.panelCount), following, other);
}

Value GemmEmitter::getLastRow(Builder &b) {
  return spec.experts ? sub(b, rowCount, index(b, 1)) : index(b, spec.m - 1);
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
                       Value firstInTile = mul(b, add(b, firstTile, t), plan.tileRows);
                       SmallVector<Value> rows;
                       // Rows behind A's last row are copies of it. Their sums are not stored.
                       for (int64_t r = 0; r < plan.tileRows; ++r) {
                         Value row = add(b, firstInTile, r);
                         rows.push_back(
                             getRow(b, isInAllTiles(r) ? row : min(b, row, getLastRow(b))));
                       }
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
        Value row = min(b, add(b, mul(b, firstTile, plan.tileRows), r), getLastRow(b));
        row = getRow(b, row);
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

void GemmEmitter::emitTile(Builder &b, const Tile &tile) {
  int64_t count = plan.tileRows * plan.tileVectors;
  SmallVector<Value> initial(count, arith::ConstantOp::create(b, b.getZeroAttr(sums)));
  SmallVector<Type> types(count, sums);
  if (hasBlocks) {
    auto isFirst = scf::IfOp::create(
        b, equal(b, tile.firstStep, 0),
        [&](OpBuilder &nested, Location loc) { scf::YieldOp::create(nested, loc, initial); },
        [&](OpBuilder &nested, Location loc) {
          Builder b(loc, nested);
          SmallVector<Value> loaded;
          for (int64_t i = 0; i < count; ++i)
            loaded.push_back(
                vector::LoadOp::create(b, sums, partial, add(b, tile.kept, i * plan.lanes)));
          scf::YieldOp::create(b, loaded);
        });
    initial.assign(isFirst.getResults().begin(), isFirst.getResults().end());
  }
  SmallVector<Value> results = emitSums(b, tile, initial);
  auto keep = [&](Builder &b) {
    for (int64_t i = 0; i < count; ++i)
      vector::StoreOp::create(b, results[i], partial, add(b, tile.kept, i * plan.lanes));
  };
  auto finish = [&](Builder &b) {
    if (spec.epilogue)
      emitEpilogue(b, tile.tile, tile.panel, tile.kept);
    else
      emitForWidth(b, tile.panel, [&](Builder &b, int64_t width) {
        emitResults(b, tile.tile, tile.panel, results, width);
      });
  };
  if (spec.epilogue)
    keep(b);
  if (!hasBlocks)
    return finish(b);
  Value isLast = less(b, index(b, plan.steps - 1), add(b, tile.firstStep, plan.blockSteps));
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

SmallVector<Value> GemmEmitter::emitSums(Builder &b, const Tile &tile, ValueRange initial) {
  Value start = getWeights(b, tile.panel, tile.firstStep);
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
          if (plan.aheadLines)
            emitPrefetches(b, tile, i);
          emitSteps(b, add(b, tile.copied, inCopy), add(b, start, mul(b, i, count * columns * group)),
                    count, results);
          scf::YieldOp::create(b, results);
        });
    return SmallVector<Value>(loop.getResults());
  };
  Value last = mul(b, tile.chunks, parts);
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

/// Prefetches some lines of the weights that are read next. All tiles of a block of rows prefetch them all.
void GemmEmitter::emitPrefetches(Builder &b, const Tile &tile, Value chunk) {
  constexpr int64_t kLineBytes = 64;
  int64_t lineElements = kLineBytes / getBytes(spec.type);
  Value last = sub(b, mul(b, tile.chunks, kChunkSteps * columns * group / lineElements), index(b, 1));
  Value first = mul(b, add(b, arith::MulIOp::create(b, tile.number, tile.chunks), chunk), plan.aheadLines);
  for (int64_t i = 0; i < plan.aheadLines; ++i) {
    Value line = min(b, add(b, first, i), last);
    memref::PrefetchOp::create(b, weights, ValueRange{add(b, tile.next, mul(b, line, lineElements))},
                               /*isWrite=*/false, /*locality=*/2, /*isDataCache=*/true);
  }
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
      point.row = getRow(b, add(b, row, r));
      if (spec.hasBias)
        value = arith::AddFOp::create(b, value, biases[v]);
      storeSome(b, value, c, add(b, mul(b, point.row, spec.n), point.column), point.count,
                plan.masksBf16);
    }
  };
  for (int64_t r = 0; r < plan.tileRows; ++r) {
    if (isInAllTiles(r)) {
      emitRow(b, r);
      continue;
    }
    Value end = spec.experts ? rowCount : index(b, spec.m);
    scf::IfOp::create(b, less(b, add(b, row, r), end), [&](OpBuilder &nested, Location loc) {
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
