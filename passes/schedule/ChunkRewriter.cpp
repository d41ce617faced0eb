//===- ChunkRewriter.cpp - regions written in chunks ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ChunkRewriter.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Writes a block anew with regions in chunks.
///
/// Outline of `run`, over the ops in program order:
///  1. An op of a region joins the `batch`. An op that reads a result of the batch is
///     `deferred`. Any other op is moved to the end at once.
///  2. An op of another region, or an op of the region that reads a result of the batch
///     whole, calls `flush`.
///  3. `flush` orders the batch by levels, the number of collectives before an op within the
///     batch, and writes each level chunk by chunk (`write`). Thus the collectives of one
///     level start before the ops of the next level need them. It then joins the values
///     that ops read whole (`join`) and writes the deferred ops.
///
/// Complexity: linear in the ops of the block times the number of chunks.
class ChunkRewriter {
public:
  ChunkRewriter(Block &block, ArrayRef<SplitRegion> regions)
      : block(block), regions(regions), builder(block.getTerminator()) {}

  void run();

private:
  const SplitRegion *findRegion(Operation *op) const {
    auto it = owner.find(op);
    return it == owner.end() ? nullptr : it->second;
  }
  void flush();
  void write(const ChunkOp &how, unsigned chunk);
  Value findChunk(Value value, const TokenDim &token, unsigned chunk);
  Value getChunk(Value value, const TokenDim &token, unsigned chunk);
  Value exposeRows(Value value, Value piece, const TokenDim &token);
  Value hideRanks(Value value, Value piece, const TokenDim &token);
  void join(Value value, const TokenDim &token);
  /// Returns true if each rank has its own rows of a value that enters or leaves the region.
  bool isSharded(Value value) const {
    auto it = joined.find(value);
    return region->sharded.contains(it == joined.end() ? value : it->second);
  }

  Block &block;
  ArrayRef<SplitRegion> regions;
  OpBuilder builder;
  ProgramMap<Operation *, const SplitRegion *> owner;
  const SplitRegion *region = nullptr;
  SmallVector<const ChunkOp *> batch;
  SmallVector<Operation *> deferred;
  /// The ops of `batch` and `deferred`.
  ProgramSet<Operation *> waiting;
  /// The chunks of a value in a region. Another region may cut it elsewhere.
  DenseMap<std::pair<const SplitRegion *, Value>, SmallVector<Value, 4>> chunks;
  /// The values in whose places joined chunks are.
  ProgramMap<Value, Value> joined;
  SmallVector<Operation *> replaced;
};

} // namespace

/// The chunk that a joined value is made of; null for other values. Of a value that waits, the chunk
/// waits.
Value ChunkRewriter::findChunk(Value value, const TokenDim &token, unsigned chunk) {
  if (auto whole = joined.find(value); whole != joined.end()) {
    auto known = chunks.find({region, whole->second});
    bool isSame = known != chunks.end() && region->tokens.lookup(whole->second) == token;
    return isSame ? known->second[chunk] : Value();
  }
  auto after = value.getDefiningOp<AfterOp>();
  Value piece = after ? findChunk(after.getInput(), token, chunk) : Value();
  return piece ? AfterOp::create(builder, after.getLoc(), piece, after.getEarlier()) : Value();
}

Value ChunkRewriter::getChunk(Value value, const TokenDim &token, unsigned chunk) {
  SmallVector<Value, 4> &list = chunks[{region, value}];
  list.resize(region->bounds.size());
  if (list[chunk])
    return list[chunk];
  Location location = value.getLoc();
  if (Value joinedChunk = findChunk(value, token, chunk))
    return list[chunk] = joinedChunk;
  int64_t dim = token.dim + isSharded(value);
  Value whole = exposeRows(value, value, token);
  auto type = cast<RankedTensorType>(whole.getType());
  SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape()),
      strides(type.getRank(), 1), shape(type.getShape());
  shape[dim] = region->getSize(token, chunk) * token.inner;
  starts[dim] = region->bounds[chunk] * token.inner;
  limits[dim] = starts[dim] + shape[dim];
  Value slice = nn::SliceOp::create(
      builder, location, type.clone(shape), whole, builder.getDenseI64ArrayAttr(starts),
      builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
  return list[chunk] = hideRanks(value, slice, token);
}

/// Adds a dimension for the ranks before rows that are sharded. Each rank has one element of
/// it, so the row dimension is whole when a rank cuts or joins it. `piece` is a piece of
/// `value`.
Value ChunkRewriter::exposeRows(Value value, Value piece, const TokenDim &token) {
  if (!isSharded(value))
    return piece;
  auto type = cast<RankedTensorType>(piece.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape.insert(shape.begin() + token.dim, 1);
  return nn::ReshapeOp::create(builder, piece.getLoc(), type.clone(shape), piece);
}

Value ChunkRewriter::hideRanks(Value value, Value piece, const TokenDim &token) {
  if (!isSharded(value))
    return piece;
  auto type = cast<RankedTensorType>(piece.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape.erase(shape.begin() + token.dim);
  return nn::ReshapeOp::create(builder, piece.getLoc(), type.clone(shape), piece);
}

void ChunkRewriter::write(const ChunkOp &how, unsigned chunk) {
  SmallVector<Value> operands;
  for (auto [operand, token] : llvm::zip_equal(how.op->getOperands(), how.operands))
    operands.push_back(token ? getChunk(operand, *token, chunk) : operand);
  SmallVector<Type> types;
  for (auto [result, token] : llvm::zip_equal(how.op->getResults(), how.results)) {
    auto type = cast<RankedTensorType>(result.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape[token.dim] = region->getSize(token, chunk) * token.inner;
    types.push_back(type.clone(shape));
  }
  auto setResults = [&](ValueRange values) {
    for (auto [result, value] : llvm::zip_equal(how.op->getResults(), values)) {
      SmallVector<Value, 4> &list = chunks[{region, result}];
      list.resize(region->bounds.size());
      list[chunk] = value;
    }
  };
  // Only the last chunk has padding: in the others there is nothing to pad, strip or mask.
  bool isLast = chunk + 1 == region->bounds.size();
  auto mask = dyn_cast<MaskPaddingOp>(how.op);
  bool masksRows = mask && int64_t(mask.getDim()) == how.results[0].dim;
  if ((isa<PadOp, nn::SliceOp>(how.op) && operands[0].getType() == types[0]) ||
      (masksRows && !isLast))
    return setResults(operands[0]);
  Operation *op = builder.clone(*how.op);
  op->setOperands(operands);
  op->removeAttr(nn::NnDialect::kIdAttr);
  for (auto [result, type] : llvm::zip_equal(op->getResults(), types))
    result.setType(type);
  // Ops with sizes of dimensions among their attributes.
  if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    SmallVector<int64_t> limits(slice.getLimits());
    limits[how.results[0].dim] = cast<RankedTensorType>(types[0]).getDimSize(how.results[0].dim);
    slice.setLimits(limits);
  } else if (masksRows) {
    cast<MaskPaddingOp>(op).setSize(mask.getSize() - region->bounds[chunk]);
  }
  setResults(op->getResults());
}

/// Joins the chunks of a value for the ops that read it whole.
void ChunkRewriter::join(Value value, const TokenDim &token) {
  auto readsWhole = [&](OpOperand &use) { return !region->readsChunk(use); };
  if (llvm::none_of(value.getUses(), readsWhole))
    return;
  SmallVector<Value, 4> pieces;
  for (Value chunk : chunks[{region, value}])
    pieces.push_back(exposeRows(value, chunk, token));
  auto type = cast<RankedTensorType>(pieces[0].getType());
  SmallVector<int64_t> shape(type.getShape());
  int64_t dim = token.dim + isSharded(value);
  shape[dim] = cast<RankedTensorType>(value.getType()).getDimSize(token.dim);
  Value whole = nn::ConcatOp::create(builder, value.getLoc(), type.clone(shape), pieces,
                                     builder.getI64IntegerAttr(dim));
  whole = hideRanks(value, whole, token);
  if (Attribute id = value.getDefiningOp()->getAttr(nn::NnDialect::kIdAttr))
    whole.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  joined[whole] = value;
  value.replaceUsesWithIf(whole, readsWhole);
}

void ChunkRewriter::flush() {
  if (!batch.empty()) {
    // The number of collectives before an op, within the batch.
    ProgramMap<Operation *, unsigned> levels;
    SmallVector<SmallVector<const ChunkOp *>> byLevel;
    for (const ChunkOp *how : batch) {
      unsigned level = 0;
      for (Value operand : how->op->getOperands())
        if (Operation *producer = operand.getDefiningOp())
          if (auto it = levels.find(producer); it != levels.end())
            level = std::max(level, it->second + communicates(producer));
      levels[how->op] = level;
      if (byLevel.size() <= level)
        byLevel.resize(level + 1);
      byLevel[level].push_back(how);
    }
    for (ArrayRef<const ChunkOp *> level : byLevel)
      for (unsigned chunk = 0; chunk < region->bounds.size(); ++chunk)
        for (const ChunkOp *how : level)
          write(*how, chunk);
    for (const ChunkOp *how : batch) {
      for (auto [result, token] : llvm::zip_equal(how->op->getResults(), how->results))
        join(result, token);
      replaced.push_back(how->op);
    }
  }
  for (Operation *op : deferred)
    op->moveBefore(block.getTerminator());
  batch.clear();
  deferred.clear();
  waiting.clear();
}

void ChunkRewriter::run() {
  for (const SplitRegion &own : regions)
    for (const ChunkOp &how : own.ops)
      owner[how.op] = &own;
  SmallVector<Operation *, 0> order;
  for (Operation &op : block.without_terminator())
    order.push_back(&op);
  for (Operation *op : order) {
    const SplitRegion *own = findRegion(op);
    bool waits = false, waitsForWhole = false;
    op->walk([&](Operation *inner) {
      for (OpOperand &use : inner->getOpOperands()) {
        Operation *producer = use.get().getDefiningOp();
        if (!producer || !waiting.contains(producer))
          continue;
        waits = true;
        waitsForWhole |= !own || !own->readsChunk(use) || findRegion(producer) != own;
      }
    });
    if (!own) {
      if (waits) {
        deferred.push_back(op);
        waiting.insert(op);
      } else {
        op->moveBefore(block.getTerminator());
      }
      continue;
    }
    if (own != region || waitsForWhole)
      flush();
    region = own;
    batch.push_back(own->lookup(op));
    waiting.insert(op);
  }
  flush();
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
}

void meshwright::writeInChunks(Block &block, ArrayRef<SplitRegion> regions) {
  ChunkRewriter(block, regions).run();
}
