//===- RowKernels.cpp - kernels that go over rows, on GPUs ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Emits the kernel of a RowPlan. A chunk is some consecutive columns of a row, which one thread
// computes as a vector.
//
// - A piece without statistics is a list of chunks, one for each thread. If its columns are cut,
//   each range of them is a list of its own.
// - In a piece with statistics, a group of threads computes a row: some lanes of a warp, or a
//   whole block. A statistic is summed in each thread, across lanes by shuffles, and across warps
//   in shared memory. The tree of the sum is always the same.
// - Values of a chunk stay in registers between the passes of a short row, so a row comes from
//   memory once. Longer rows are read again, from the caches.
// - Threads beyond the end repeat the last chunk, and do not store. So all threads of a warp take
//   part in shuffles, and all threads of a block in barriers.
// - If numbers count the rows, the last row that exists is the end, and blocks behind it do nothing.
//
// Outline: the constructor assigns ranges of blocks to shares, and `RowKernel::emit` emits each.
// `emitList` is a piece without statistics, `emitRows` one with statistics: a sequence of passes
// (`emitPass`), of chunks (`emitChunk`).
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Codegen/RowStatistics.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>
#include <set>

using namespace mlir;

namespace meshwright::lower {

int64_t getRowWidth(const KernelRegion &region, const RowPlan &plan) {
  // 16 bytes of the narrowest buffer, and at most 8 elements, which registers hold.
  int64_t narrowest = 8;
  for (ArrayRef<Value> values : {ArrayRef(region.inputs), ArrayRef(region.outputs)})
    for (Value value : values)
      narrowest = std::min<int64_t>(
          narrowest,
          getStorageType(getElementTypeOrSelf(value.getType())).getIntOrFloatBitWidth() / 8);
  int64_t width = 16 / std::max<int64_t>(narrowest, 2);
  bool hasPairs = false;
  for (Operation *op : region.ops)
    if (auto rotary = dyn_cast<nn::RotaryOp>(op))
      hasPairs |= rotary.getInterleaved();
  // Neighbouring threads read columns that are not neighbours in memory one by one.
  if (plan.isScalar)
    width = hasPairs ? 2 : 1;
  for (const RowPiece &piece : plan.pieces) {
    width = std::gcd(width, piece.getNumColumns());
    for (const Statistic &statistic : piece.statistics)
      width = std::gcd(width, statistic.columns);
    for (const auto &[columns, cuts] : piece.cuts)
      for (int64_t cut : cuts)
        width = std::gcd(width, cut);
  }
  return hasPairs && width < 2 ? 0 : width;
}

namespace {

/// Ranges of columns that the computation is the same in.
SmallVector<std::pair<int64_t, int64_t>> getRanges(const RowPiece &piece, int64_t columns) {
  SmallVector<int64_t> bounds{0};
  if (auto cuts = piece.cuts.find(columns); cuts != piece.cuts.end())
    bounds.append(cuts->second);
  bounds.push_back(columns);
  SmallVector<std::pair<int64_t, int64_t>> ranges;
  for (size_t i = 0; i + 1 < bounds.size(); ++i)
    if (bounds[i] < bounds[i + 1])
      ranges.emplace_back(bounds[i], bounds[i + 1]);
  return ranges;
}

/// Work of a range of blocks.
struct Share {
  const RowPiece *piece;
  /// The columns of a share without statistics.
  int64_t begin, end;
  /// The threads that compute a row, or 0 in a share without statistics.
  int64_t group;
  int64_t firstBlock = 0, blocks = 0;
};

class RowKernel {
public:
  RowKernel(const KernelRegion &region, const RowPlan &plan);

  int64_t getNumBlocks() const {
    return shares.empty() ? 0 : shares.back().firstBlock + shares.back().blocks;
  }
  int64_t getNumThreads() const { return threads; }
  int64_t getSharedBytes() const { return sharedBytes; }

  /// Emits all shares. `arguments` are the buffers of inputs and outputs, and the shared memory
  /// if there is any. If `rows` is not zero, the outputs have so many rows, and the last input counts the
  /// existing ones.
  void emit(Builder &builder, ValueRange arguments, int64_t rows);

private:
  /// A chunk of this thread: its first column, and whether the thread has it (null: all have).
  struct Chunk {
    Value column, exists;
  };

  void emitList(const Share &share, Value block);
  void emitRows(const Share &share, Value block);
  Value countItems(const Share &share, int64_t items);
  Value limitItem(const Share &share, Value first, Value item, int64_t items, int64_t most, Value &exists);
  void emitPass(const Share &share, int64_t pass, int64_t columns);
  SmallVector<Value> emitChunk(const RowPiece &piece, int64_t pass, int64_t columns,
                               const Chunk &chunk);
  Chunk getChunk(int64_t begin, int64_t end, Value number, int64_t most);
  void startRow(const RowPiece &piece, Value row);
  void store(const Store &store, Value element, Value exists);
  Value reduceGroup(const Share &share, const Statistic &statistic, Value value);
  /// The elements of a chunk that one thread holds between passes.
  static int64_t getMostHeld(const RowPiece &piece) { return piece.statistics.empty() ? 0 : 16; }
  Value andOf(Value lhs, Value rhs) {
    return !lhs ? rhs : !rhs ? lhs : arith::AndIOp::create(*b, lhs, rhs).getResult();
  }

  const KernelRegion &region;
  const RowPlan &plan;
  int64_t width, threads = 128, sharedBytes = 0;
  SmallVector<Share> shares;

  // Set by `emit`.
  Builder *b = nullptr;
  RowEmitter *row = nullptr;
  SmallVector<Value> outputs;
  Value thread, shared;
  /// The number of existing rows, at most `room`; null if all exist.
  Value existing;
  int64_t room = 0;
  /// In a share with statistics: the number of the thread in its group, and whether the group has
  /// a row (null: all have).
  Value lane, hasRow;
  /// Shared memory that earlier statistics of the share use.
  int64_t usedShared = 0;
  /// Elements that the thread holds, by columns of the pass, first column of the range and number
  /// of the chunk.
  std::map<std::tuple<int64_t, int64_t, int64_t>, NodeMap<Value>> held;
};

} // namespace

/// The threads that compute a row of so many chunks: lanes of a warp, or whole warps.
static int64_t chooseGroup(int64_t chunks, int64_t width) {
  if (chunks <= Chip::warpSize)
    return llvm::PowerOf2Ceil(std::max<int64_t>(chunks, 1));
  // A thread holds up to 16 elements.
  int64_t each = std::max<int64_t>(16 / width, 1), group = 128;
  while (group < Chip::maxThreads && group * each < chunks)
    group *= 2;
  return group;
}

RowKernel::RowKernel(const KernelRegion &region, const RowPlan &plan)
    : region(region), plan(plan), width(getRowWidth(region, plan)) {
  for (const RowPiece &piece : plan.pieces) {
    int64_t columns = piece.getNumColumns(), most = columns;
    bool isList = piece.statistics.empty() &&
                  llvm::none_of(piece.stores, [](const Store &store) { return store.perRow; });
    if (isList) {
      for (auto [begin, end] : getRanges(piece, columns))
        shares.push_back({&piece, begin, end, 0});
      continue;
    }
    for (const Statistic &statistic : piece.statistics)
      most = std::max(most, statistic.columns);
    int64_t group = chooseGroup(llvm::divideCeil(most, width), width);
    shares.push_back({&piece, 0, columns, group});
    threads = std::max(threads, group);
  }
  int64_t next = 0;
  for (Share &share : shares) {
    if (share.group > Chip::warpSize) {
      share.group = threads;
      int64_t bytes = 0;
      for (const Statistic &statistic : share.piece->statistics)
        bytes += threads / Chip::warpSize * (getTypeOf(statistic).getIntOrFloatBitWidth() == 64 ? 8 : 4);
      sharedBytes = std::max(sharedBytes, bytes);
    }
    int64_t rows = share.piece->getNumRows();
    int64_t needed = share.group ? rows * share.group : rows * ((share.end - share.begin) / width);
    share.firstBlock = next;
    share.blocks = llvm::divideCeil(needed, threads);
    next += share.blocks;
  }
}

void RowKernel::emit(Builder &builder, ValueRange arguments, int64_t rows) {
  RowEmitter emitter(builder, region);
  b = &builder;
  row = &emitter;
  SmallVector<Value> read(region.inputs);
  llvm::append_range(read, region.getPositions());
  for (auto [i, input] : llvm::enumerate(read))
    emitter.setBuffer(input, arguments[i]);
  ValueRange written = arguments.drop_front(read.size() + (rows ? 1 : 0)).take_front(region.outputs.size());
  outputs.assign(written.begin(), written.end());
  if (sharedBytes)
    shared = arguments.back();
  room = rows;
  // One piece goes over the rows of all outputs in their order. Several pieces compute all rows.
  if (rows && plan.pieces.size() == 1)
    existing = emitExistingRows(builder, arguments[read.size()], rows);
  thread = emitThread(builder, threads);
  Value block = emitBlock(builder, getNumBlocks());
  for (const Share &share : shares) {
    OpBuilder::InsertionGuard guard(builder);
    Value own = block;
    if (shares.size() > 1) {
      own = arith::SubIOp::create(builder, block, emitIndex(builder, share.firstBlock));
      Value isOwn = arith::CmpIOp::create(builder, arith::CmpIPredicate::ult, own,
                                          emitIndex(builder, share.blocks));
      auto choice = scf::IfOp::create(builder, isOwn);
      builder.setInsertionPointToStart(choice.thenBlock());
    }
    usedShared = 0;
    held.clear();
    lane = hasRow = Value();
    if (share.group)
      emitRows(share, own);
    else
      emitList(share, own);
  }
}

/// Returns `number`, or the last number if it is not below `count`. `exists` then is whether it
/// is below. There are at most `most` numbers.
static Value clamp(Builder &b, Value number, int64_t count, int64_t most, Value &exists) {
  exists = Value();
  if (most <= count)
    return number;
  exists = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, number, emitIndex(b, count));
  return arith::MinUIOp::create(b, number, emitIndex(b, count - 1));
}

/// The number of items of a share that are of rows that exist, of `items` of all rows.
Value RowKernel::countItems(const Share &share, int64_t items) {
  if (share.group || !share.piece->loops.empty())
    return emitExistingItems(*b, existing, room, items);
  // The columns go on over all rows, and the share has a range of them.
  Value end = emitExistingItems(*b, existing, room, share.piece->getNumColumns()), begin = emitIndex(*b, share.begin);
  end = arith::MaxUIOp::create(*b, arith::MinUIOp::create(*b, end, emitIndex(*b, share.end)), begin);
  Value columns = arith::SubIOp::create(*b, end, begin);
  columns = arith::AddIOp::create(*b, columns, emitIndex(*b, width - 1));
  return arith::DivUIOp::create(*b, columns, emitIndex(*b, width));
}

/// The item of a thread, or the last one if the thread has none: `exists` says which, null that it has. There are
/// `items`, and at most `most` numbers. Where rows are counted, goes on in the branch of blocks that have an item, the
/// first of which is `first`.
Value RowKernel::limitItem(const Share &share, Value first, Value item, int64_t items, int64_t most, Value &exists) {
  if (!existing)
    return clamp(*b, item, items, most, exists);
  Value end = countItems(share, items);
  auto isBelow = [&](Value value) -> Value {
    return arith::CmpIOp::create(*b, arith::CmpIPredicate::ult, value, end);
  };
  auto choice = scf::IfOp::create(*b, isBelow(first));
  b->setInsertionPointToStart(choice.thenBlock());
  exists = first == item ? Value() : isBelow(item);
  return exists ? arith::MinUIOp::create(*b, item, arith::SubIOp::create(*b, end, emitIndex(*b, 1))) : item;
}

void RowKernel::startRow(const RowPiece &piece, Value item) {
  SmallVector<Value> indices(piece.space.rows.size());
  for (size_t i = piece.loops.size(); i-- > 0;)
    indices[piece.loops[i].front()] = i == 0 ? item : emitSplit(*b, item, piece.getLoopSize(i));
  row->startRow(piece.space, indices);
}

/// The chunk of a number, in a range of columns. There are at most `most` numbers.
RowKernel::Chunk RowKernel::getChunk(int64_t begin, int64_t end, Value number, int64_t most) {
  Chunk chunk;
  number = clamp(*b, number, (end - begin) / width, most, chunk.exists);
  chunk.column = arith::MulIOp::create(*b, number, emitIndex(*b, width));
  if (begin)
    chunk.column = arith::AddIOp::create(*b, chunk.column, emitIndex(*b, begin));
  return chunk;
}

void RowKernel::store(const Store &store, Value element, Value exists) {
  OpBuilder::InsertionGuard guard(*b);
  if (exists) {
    auto choice = scf::IfOp::create(*b, exists);
    b->setInsertionPointToStart(choice.thenBlock());
  }
  row->store(element, outputs[store.output], store.to);
}

void RowKernel::emitList(const Share &share, Value block) {
  const RowPiece &piece = *share.piece;
  int64_t chunks = (share.end - share.begin) / width, count = piece.getNumRows() * chunks;
  Value first = arith::MulIOp::create(*b, block, emitIndex(*b, threads));
  Value item = arith::AddIOp::create(*b, first, thread), exists;
  item = limitItem(share, first, item, count, share.blocks * threads, exists);
  Value number = piece.loops.empty() ? item : emitSplit(*b, item, chunks);
  startRow(piece, item);
  Chunk chunk = getChunk(share.begin, share.end, number, chunks);
  chunk.exists = exists;
  // If columns continue over several rows, elements see them as columns of one row.
  row->startColumns(share.begin, piece.columnDims.empty() ? share.end : piece.space.end,
                    chunk.column, width, nullptr);
  emitChunk(piece, 0, piece.getNumColumns(), chunk);
}

void RowKernel::emitRows(const Share &share, Value block) {
  const RowPiece &piece = *share.piece;
  int64_t rows = piece.getNumRows(), perBlock = threads / share.group;
  Value first = block, item = block;
  lane = thread;
  if (perBlock > 1) {
    Value group = thread;
    lane = emitSplit(*b, group, share.group);
    first = arith::MulIOp::create(*b, block, emitIndex(*b, perBlock));
    item = arith::AddIOp::create(*b, first, group);
  }
  item = limitItem(share, first, item, rows, share.blocks * perBlock, hasRow);
  startRow(piece, item);
  for (int64_t pass = 0; pass < piece.numPasses; ++pass) {
    // Outputs may be in the place of inputs, so all elements come before the first store.
    SmallVector<std::pair<const Store *, Value>> ofRow;
    for (const Store &value : piece.stores)
      if (value.perRow && value.level == pass)
        ofRow.push_back({&value, row->emit(value.value, value.from)});
    for (auto [value, element] : ofRow) {
      Value isFirst =
          arith::CmpIOp::create(*b, arith::CmpIPredicate::eq, lane, emitIndex(*b, 0));
      store(*value, element, andOf(hasRow, isFirst));
    }
    std::set<int64_t> widths;
    for (const Statistic &statistic : piece.statistics)
      if (statistic.level == pass)
        widths.insert(statistic.columns);
    for (const Store &value : piece.stores)
      if (!value.perRow && value.level == pass)
        widths.insert(piece.getNumColumns());
    for (int64_t columns : widths)
      emitPass(share, pass, columns);
  }
}

/// Emits the work of a pass on a chunk. Returns the terms of its statistics.
SmallVector<Value> RowKernel::emitChunk(const RowPiece &piece, int64_t pass, int64_t columns,
                                        const Chunk &chunk) {
  SmallVector<Value> terms;
  for (const Statistic &statistic : piece.statistics) {
    if (statistic.level != pass || statistic.columns != columns)
      continue;
    Value term = row->emitTerm(statistic);
    if (chunk.exists)
      term = arith::SelectOp::create(*b, chunk.exists, term,
                                     Reducer(*b, statistic).getNeutral(width));
    terms.push_back(term);
  }
  SmallVector<std::pair<const Store *, Value>> stored;
  for (const Store &value : piece.stores) {
    if (value.perRow || value.level != pass || columns != piece.getNumColumns())
      continue;
    Value element =
        value.value
            ? row->emit(value.value, value.from)
            : emitConstant(*b, cast<MemRefType>(outputs[value.output].getType()).getElementType(),
                           0);
    stored.push_back({&value, element});
  }
  for (auto [value, element] : stored)
    store(*value, element, andOf(hasRow, chunk.exists));
  return terms;
}

void RowKernel::emitPass(const Share &share, int64_t pass, int64_t columns) {
  const RowPiece &piece = *share.piece;
  SmallVector<const Statistic *> statistics;
  for (const Statistic &statistic : piece.statistics)
    if (statistic.level == pass && statistic.columns == columns)
      statistics.push_back(&statistic);
  SmallVector<Value> totals(statistics.size());
  auto addTerms = [&](ValueRange terms) {
    for (auto [statistic, term, total] : llvm::zip_equal(statistics, terms, totals))
      total = total ? Reducer(*b, *statistic).combine(total, term) : term;
  };
  for (auto [begin, end] : getRanges(piece, columns)) {
    int64_t chunks = (end - begin) / width, each = llvm::divideCeil(chunks, share.group);
    auto start = [&, first = begin, last = end](const Chunk &chunk, Operation *anchor) {
      row->startColumns(first, last, chunk.column, width, anchor);
    };
    if (each * width <= std::max(getMostHeld(piece), width)) {
      for (int64_t i = 0; i < each; ++i) {
        Value number = lane;
        if (i > 0)
          number = arith::AddIOp::create(*b, lane, emitIndex(*b, i * share.group));
        Chunk chunk = getChunk(begin, end, number, (i + 1) * share.group);
        start(chunk, nullptr);
        NodeMap<Value> &values = held[{columns, begin, i}];
        row->resumeColumns(std::move(values));
        addTerms(emitChunk(piece, pass, columns, chunk));
        values = row->takeColumns();
      }
      continue;
    }
    SmallVector<Value> init;
    for (const Statistic *statistic : statistics)
      init.push_back(Reducer(*b, *statistic).getNeutral(width));
    auto loop = scf::ForOp::create(*b, emitIndex(*b, 0), emitIndex(*b, each * share.group),
                                   emitIndex(*b, share.group), init);
    {
      OpBuilder::InsertionGuard guard(*b);
      b->setInsertionPointToStart(loop.getBody());
      Value number = arith::AddIOp::create(*b, loop.getInductionVar(), lane);
      Chunk chunk = getChunk(begin, end, number, each * share.group);
      start(chunk, loop);
      SmallVector<Value> next;
      for (auto [statistic, term, sum] : llvm::zip_equal(
               statistics, emitChunk(piece, pass, columns, chunk), loop.getRegionIterArgs()))
        next.push_back(Reducer(*b, *statistic).combine(sum, term));
      if (!next.empty())
        scf::YieldOp::create(*b, next);
    }
    addTerms(loop.getResults());
  }
  row->endColumns();
  for (auto [statistic, total] : llvm::zip_equal(statistics, totals))
    row->setStatistic(statistic->op, statistic->stage, statistic->row,
                      finishStatistic(*b, *statistic, reduceGroup(share, *statistic, total)));
}

/// Reduces the vectors of all threads of a group to one scalar, which each thread gets.
Value RowKernel::reduceGroup(const Share &share, const Statistic &statistic, Value vector) {
  Reducer reducer(*b, statistic);
  auto combine = [&](Value lhs, Value rhs) { return reducer.combine(lhs, rhs); };
  int64_t warpSize = Chip::warpSize;
  Value value =
      emitLaneReduction(*b, reducer.reduce(vector), std::min(share.group, warpSize), combine);
  int64_t warps = share.group / warpSize;
  if (warps <= 1)
    return value;
  Type type = getStorageType(value.getType());
  Value slots =
      memref::ViewOp::create(*b,
                             MemRefType::get({warps}, type, MemRefLayoutAttrInterface(),
                                             b->getI64IntegerAttr(kSharedSpace)),
                             shared, emitIndex(*b, usedShared), ValueRange());
  usedShared += warps * (type.getIntOrFloatBitWidth() == 64 ? 8 : 4);
  Value warp = thread, inWarp = emitSplit(*b, warp, warpSize);
  Value isFirst = arith::CmpIOp::create(*b, arith::CmpIPredicate::eq, inWarp, emitIndex(*b, 0));
  auto choice = scf::IfOp::create(*b, isFirst);
  {
    OpBuilder::InsertionGuard guard(*b);
    b->setInsertionPointToStart(choice.thenBlock());
    memref::StoreOp::create(*b, toStorage(*b, value), slots, warp);
  }
  emitBarrier(*b);
  // `warps` is a power of two. Each lane reads the sum of a warp.
  Value own = arith::RemUIOp::create(*b, inWarp, emitIndex(*b, warps));
  value = fromStorage(*b, memref::LoadOp::create(*b, slots, own), value.getType());
  return emitLaneReduction(*b, value, warps, combine);
}

std::optional<KernelInfo> GpuKernelBuilder::buildRows(rt::KernelOp launch) {
  KernelRegion region = KernelRegion::of(launch);
  RowPlanResult result = target.planRows(region);
  if (!result.plan)
    return std::nullopt;
  RowKernel emitter(region, *result.plan);
  KernelInfo info;
  info.inputs = region.inputs;
  llvm::append_range(info.inputs, region.getPositions());
  info.items = emitter.getNumBlocks();
  info.grain = emitter.getNumThreads();
  info.bytes = 0;
  int64_t points = 0;
  for (ArrayRef<Value> values : {ArrayRef(region.inputs), ArrayRef(region.outputs)})
    for (Value value : values) {
      info.bytes += getBytes(value);
      points = std::max(points, cast<RankedTensorType>(value.getType()).getNumElements());
    }
  bool onlyMoves = true;
  for (Operation *op : region.ops) {
    onlyMoves &= op->hasTrait<dist::MovesOnly>();
    info.flops += isMovement(op) ? 0 : points;
  }
  info.kind = onlyMoves ? MW_RT_MOVE : MW_RT_ROWS;
  info.flops = onlyMoves ? 0 : info.flops;
  if (info.items > 0)
    addCounter(info, launch);
  func::FuncOp kernel =
      begin(launch, info.inputs, emitter.getSharedBytes(), emitter.getNumThreads());
  Builder builder = Builder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  emitter.emit(builder, kernel.getArguments(), info.rows);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
