//===- RowKernels.cpp - kernels that go over rows -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Emits the kernel of a RowPlan: for each row and each pass, a loop over columns. A vector of
// the loop is several registers. They unroll the loop, and give sums independent chains.
// Columns that do not fill such a vector form a vector of their own width.
//
// Outline: `RowKernel::emit` emits each piece of the plan, as a loop over its items. An item is a
// row, or a block of columns of a row without statistics (`emitBlock`). A row is a sequence of
// passes, each a loop of chunks (`emitChunk`): a chunk updates the statistics of its pass and
// stores the outputs whose statistics are complete.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/Processor.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Codegen/RowStatistics.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <set>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

namespace {

/// Offsets in the workspace of a row.
struct Workspace {
  int64_t bytes = 0;
  int64_t add(int64_t columns, Type type) {
    int64_t offset = bytes;
    bytes = llvm::alignTo(bytes + columns * type.getIntOrFloatBitWidth() / 8, 64);
    return offset;
  }
};

/// How the items of a piece are cut: rows, or blocks of their columns.
struct PieceItems {
  int64_t first, items, blocks, blockColumns;
};

class RowKernel {
public:
  RowKernel(const KernelRegion &region, const RowPlan &plan, const Processor &processor);

  int64_t getNumItems() const {
    return pieces.empty() ? 0 : pieces.back().first + pieces.back().items;
  }
  int64_t getWorkspaceBytes() const { return workspaceBytes; }

  /// Emits all pieces. `arguments` are the buffers of inputs and outputs, the bounds of the
  /// items, and the workspace.
  void emit(Builder &builder, ValueRange arguments);

private:
  using Columns = std::function<void(int64_t begin, int64_t end, Value column, int64_t width,
                                     Operation *anchor)>;

  static Type getStoredType(Value value) {
    return getRowStorageType(getElementTypeOrSelf(value.getType()));
  }
  void emitItem(Builder &builder, const RowPiece &piece, const PieceItems &items, Value item);
  void emitPass(const RowPiece &piece, int64_t pass, int64_t columns);
  SmallVector<Value> emitChunk(const RowPiece &piece, int64_t pass, int64_t columns);
  void emitBlock(const RowPiece &piece, const PieceItems &items, Value block);
  Value getWorkspace(int64_t offset, int64_t columns, Type type);
  /// Returns true if the output is stored past the caches: no later pass reads it.
  bool streams(const RowPiece &piece, const Store &store) const {
    return isAligned && store.level + 1 == piece.numPasses;
  }
  static Access getColumnAccess(const RowPiece &piece) {
    Access access;
    access.rows.assign(piece.space.rows.size(), 0);
    access.column = 1;
    return access;
  }

  const KernelRegion &region;
  const RowPlan &plan;
  int64_t widest;
  /// The width of vectors with elements of even columns first, or 0.
  int64_t evenFirstWidth = 0;
  /// Rows are read from memory, so the kernel prefetches them.
  bool isLarge;
  /// The bytes of a store past the caches, for outputs larger than they are; otherwise 0.
  int64_t streamBytes = 0;
  SmallVector<PieceItems> pieces;
  int64_t workspaceBytes = 0;

  // Set by `emit`.
  RowEmitter *row = nullptr;
  Value workspace;
  SmallVector<Value> outputs;
  /// The bytes that the piece's row uses.
  Workspace used;
  SmallVector<Value> keptBuffers;
  llvm::DenseMap<const Statistic *, Value> exponentialBuffers;
  /// 1, or 0 in the last row; null if rows are not prefetched.
  Value further;
  /// True if the outputs are aligned to vectors; null if no output is stored past the caches.
  Value isAligned;
};

} // namespace

RowKernel::RowKernel(const KernelRegion &region, const RowPlan &plan, const Processor &processor)
    : region(region), plan(plan) {
  int64_t registers = plan.isScalar ? 1 : 2;
  widest = registers * processor.vectorBytes / plan.widestBytes;
  if (plan.canReorder && !plan.isScalar && plan.widestBytes == 4 && processor.narrowsPairs())
    evenFirstWidth = widest;
  int64_t bytes = 0;
  for (ArrayRef<Value> values : {ArrayRef(region.inputs), ArrayRef(region.outputs)})
    for (Value value : values)
      bytes += getBytes(value);
  isLarge = bytes > 16 * processor.l2Bytes;
  if (processor.hasStreamingStores && bytes > processor.l3Bytes)
    streamBytes = processor.vectorBytes;
  int64_t first = 0;
  for (const RowPiece &piece : plan.pieces) {
    int64_t columns = piece.getNumColumns(), blocks = 1, blockColumns = columns;
    bool isPlain = piece.statistics.empty() &&
                   llvm::all_of(piece.cuts, [](auto &entry) { return entry.second.empty(); }) &&
                   llvm::none_of(piece.stores, [](const Store &store) { return store.perRow; });
    int64_t wanted = llvm::alignTo(kShareBytes / plan.widestBytes, widest);
    if (isPlain && columns > 2 * wanted) {
      blockColumns = wanted;
      blocks = llvm::divideCeil(columns, blockColumns);
    }
    int64_t items = piece.getNumRows() * blocks;
    pieces.push_back({first, items, blocks, blockColumns});
    first += items;
    Workspace places;
    for (const Kept &kept : piece.kept)
      places.add(kept.columns, getStoredType(kept.value));
    for (const Statistic &statistic : piece.statistics)
      if (statistic.kind == Statistic::ExponentialSum)
        places.add(statistic.columns, getTypeOf(statistic));
    workspaceBytes = std::max(workspaceBytes, places.bytes);
  }
}

Value RowKernel::getWorkspace(int64_t offset, int64_t columns, Type type) {
  Builder &b = row->builder;
  return memref::ViewOp::create(b, MemRefType::get({columns}, type), workspace,
                                emitIndex(b, offset), ValueRange());
}

static Value emitIsAligned(Builder &b, ArrayRef<Value> buffers, int64_t bytes) {
  Value bits = emitIndex(b, 0);
  for (Value buffer : buffers)
    bits = arith::OrIOp::create(b, bits, memref::ExtractAlignedPointerAsIndexOp::create(b, buffer));
  bits = arith::AndIOp::create(b, bits, emitIndex(b, bytes - 1));
  return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, bits, emitIndex(b, 0));
}

void RowKernel::emit(Builder &builder, ValueRange arguments) {
  RowEmitter emitter(builder, region);
  row = &emitter;
  emitter.setEvenFirst(evenFirstWidth);
  SmallVector<Value> read(region.inputs);
  llvm::append_range(read, region.getPositions());
  for (auto [i, input] : llvm::enumerate(read))
    emitter.setBuffer(input, arguments[i]);
  ValueRange written = arguments.drop_back(3).take_back(region.outputs.size());
  outputs.assign(written.begin(), written.end());
  Value begin = arguments[arguments.size() - 3], end = arguments[arguments.size() - 2];
  workspace = arguments.back();
  if (streamBytes)
    isAligned = emitIsAligned(builder, outputs, streamBytes);
  for (auto [piece, items] : llvm::zip_equal(plan.pieces, pieces)) {
    if (items.items == 0)
      continue;
    Value from = begin, to = end;
    if (pieces.size() > 1) {
      from = arith::MaxSIOp::create(builder, from, emitIndex(builder, items.first));
      to = arith::MinSIOp::create(builder, to, emitIndex(builder, items.first + items.items));
    }
    auto loop = scf::ForOp::create(builder, from, to, emitIndex(builder, 1));
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(loop.getBody());
    Value item = loop.getInductionVar();
    if (items.first > 0)
      item = arith::SubIOp::create(builder, item, emitIndex(builder, items.first));
    emitItem(builder, piece, items, item);
  }
  // Other threads read these outputs after this call, so the stores must end before it.
  if (streamBytes)
    LLVM::CallIntrinsicOp::create(builder, builder.getStringAttr("llvm.x86.sse.sfence"),
                                  ValueRange());
}

void RowKernel::emitItem(Builder &builder, const RowPiece &piece, const PieceItems &items,
                         Value item) {
  auto split = [&](Value &value, int64_t size) -> Value {
    Value by = emitIndex(builder, size);
    Value rest = arith::RemUIOp::create(builder, value, by);
    value = arith::DivUIOp::create(builder, value, by);
    return rest;
  };
  Value block;
  if (items.blocks > 1)
    block = items.blocks == items.items ? item : split(item, items.blocks);
  SmallVector<Value> indices(piece.space.rows.size());
  for (size_t i = piece.loops.size(); i-- > 0;)
    indices[piece.loops[i].front()] = i == 0 ? item : split(item, piece.getLoopSize(i));
  row->startRow(piece.space, indices);
  // The passes over a row prefetch the next one.
  further = Value();
  if (isLarge && piece.numPasses > 1 && piece.loops.size() == 1) {
    Value isLast = arith::CmpIOp::create(builder, arith::CmpIPredicate::eq, item,
                                         emitIndex(builder, piece.getNumRows() - 1));
    further =
        arith::SelectOp::create(builder, isLast, emitIndex(builder, 0), emitIndex(builder, 1));
  }

  used = Workspace();
  keptBuffers.clear();
  exponentialBuffers.clear();
  for (const Kept &kept : piece.kept) {
    Type type = getStoredType(kept.value);
    keptBuffers.push_back(getWorkspace(used.add(kept.columns, type), kept.columns, type));
  }
  for (const Statistic &statistic : piece.statistics)
    if (statistic.kind == Statistic::ExponentialSum) {
      Type type = getTypeOf(statistic);
      exponentialBuffers[&statistic] =
          getWorkspace(used.add(statistic.columns, type), statistic.columns, type);
    }

  if (block)
    return emitBlock(piece, items, block);
  for (int64_t pass = 0; pass < piece.numPasses; ++pass) {
    // Outputs may be in the place of inputs, so all elements come before the first store.
    SmallVector<std::pair<const Store *, Value>> ofRow;
    for (const Store &store : piece.stores)
      if (store.perRow && store.level == pass)
        ofRow.push_back({&store, row->emit(store.value, store.from)});
    for (auto [store, element] : ofRow)
      row->store(element, outputs[store->output], store->to);
    std::set<int64_t> widths;
    for (const Statistic &statistic : piece.statistics)
      if (statistic.level == pass)
        widths.insert(statistic.columns);
    for (const Store &store : piece.stores)
      if (!store.perRow && store.level == pass)
        widths.insert(piece.getNumColumns());
    for (int64_t columns : widths)
      emitPass(piece, pass, columns);
    // Later passes read stored values from their buffers.
    for (const Store &store : piece.stores)
      if (!store.perRow && store.value && store.level == pass && store.to.column == 1)
        row->setKept(store.value, store.from, outputs[store.output], store.to);
    for (auto [kept, buffer] : llvm::zip_equal(piece.kept, keptBuffers))
      if (kept.level == pass)
        row->setKept(kept.value, kept.access, buffer, getColumnAccess(piece));
  }
}

/// Emits the work of a pass on some columns. Returns the terms of its statistics.
SmallVector<Value> RowKernel::emitChunk(const RowPiece &piece, int64_t pass, int64_t columns) {
  Builder &b = row->builder;
  for (auto [kept, buffer] : llvm::zip_equal(piece.kept, keptBuffers))
    if (kept.level == pass && kept.columns == columns)
      row->store(row->emitVector(kept.value, kept.access), buffer, getColumnAccess(piece));
  SmallVector<Value> terms;
  for (const Statistic &statistic : piece.statistics) {
    if (statistic.level != pass || statistic.columns != columns)
      continue;
    Value term = row->emitTerm(statistic);
    if (statistic.kind == Statistic::ExponentialSum)
      row->store(term, exponentialBuffers[&statistic], getColumnAccess(piece));
    terms.push_back(term);
  }
  SmallVector<std::pair<const Store *, Value>> stored;
  for (const Store &store : piece.stores) {
    if (store.perRow || store.level != pass || columns != piece.getNumColumns())
      continue;
    Value element =
        store.value ? row->emit(store.value, store.from)
                    : emitConstant(
                          b, cast<MemRefType>(outputs[store.output].getType()).getElementType(), 0);
    stored.push_back({&store, element});
  }
  for (auto [store, element] : stored)
    if (streams(piece, *store))
      row->stream(element, outputs[store->output], store->to, isAligned, streamBytes);
    else
      row->store(element, outputs[store->output], store->to);
  // Each pass prefetches a share, so that memory is never idle. If passes have different columns,
  // the last pass prefetches all.
  if (!further)
    return terms;
  bool spreads = llvm::all_of(piece.statistics, [&](const Statistic &statistic) {
    return statistic.columns == piece.getNumColumns();
  });
  // A pass with stores past the caches uses memory already.
  int64_t passes = piece.numPasses - llvm::any_of(piece.stores, [&](const Store &store) {
                     return streams(piece, store);
                   });
  if (spreads ? pass < passes : pass == piece.numPasses - 1)
    row->prefetchRead(piece.loops[0].front(), further, spreads ? pass : 0, spreads ? passes : 1);
  for (const Store &store : piece.stores)
    if (spreads && !streams(piece, store) && !store.perRow && store.to.column == 1 &&
        pass <= store.level && store.level > 0)
      row->prefetchWritten(outputs[store.output], store.to, pass, store.level + 1);
  return terms;
}

void RowKernel::emitPass(const RowPiece &piece, int64_t pass, int64_t columns) {
  Builder &b = row->builder;
  SmallVector<const Statistic *> statistics;
  for (const Statistic &statistic : piece.statistics)
    if (statistic.level == pass && statistic.columns == columns)
      statistics.push_back(&statistic);
  SmallVector<Value> totals(statistics.size());
  auto addTerms = [&](ValueRange terms) {
    for (auto [statistic, term, total] : llvm::zip_equal(statistics, terms, totals)) {
      Reducer reducer(b, *statistic);
      // All terms have one order, so sums have the same bits.
      if (row->getOrder() == LaneOrder::EvenFirst)
        term = emitInterleaved(b, term);
      Value sum = reducer.reduce(term);
      total = total ? reducer.combine(total, sum) : sum;
    }
  };
  SmallVector<int64_t> bounds{0};
  if (auto cuts = piece.cuts.find(columns); cuts != piece.cuts.end())
    bounds.append(cuts->second);
  bounds.push_back(columns);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    int64_t begin = bounds[i], end = bounds[i + 1], count = end - begin;
    int64_t width = std::min(widest, count), whole = count / width, rest = count % width;
    int64_t tail = begin + whole * width;
    // If columns continue over several rows, elements see them as columns of one row.
    auto startColumns = [&](Value column, int64_t width, Operation *anchor) {
      row->startColumns(begin, piece.columnDims.empty() ? end : piece.space.end, column, width,
                        anchor);
    };
    if (whole == 1) {
      startColumns(emitIndex(b, begin), width, nullptr);
      addTerms(emitChunk(piece, pass, columns));
    } else {
      SmallVector<Value> init;
      for (const Statistic *statistic : statistics)
        init.push_back(Reducer(b, *statistic).getNeutral(width));
      auto loop =
          scf::ForOp::create(b, emitIndex(b, begin), emitIndex(b, tail), emitIndex(b, width), init);
      {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToStart(loop.getBody());
        startColumns(loop.getInductionVar(), width, loop);
        SmallVector<Value> next;
        for (auto [statistic, term, sum] :
             llvm::zip_equal(statistics, emitChunk(piece, pass, columns), loop.getRegionIterArgs()))
          next.push_back(Reducer(b, *statistic).combine(sum, term));
        if (!next.empty())
          scf::YieldOp::create(b, next);
      }
      addTerms(loop.getResults());
    }
    if (rest) {
      startColumns(emitIndex(b, tail), rest, nullptr);
      addTerms(emitChunk(piece, pass, columns));
    }
  }
  row->endColumns();
  for (auto [statistic, total] : llvm::zip_equal(statistics, totals)) {
    row->setStatistic(statistic->op, statistic->stage, statistic->row,
                      finishStatistic(b, *statistic, total));
    if (statistic->kind == Statistic::ExponentialSum)
      row->setExponentials(statistic->op, statistic->row, exponentialBuffers[statistic]);
  }
}

/// Emits a block of columns of a row without statistics.
void RowKernel::emitBlock(const RowPiece &piece, const PieceItems &items, Value block) {
  Builder &b = row->builder;
  int64_t columns = piece.getNumColumns();
  int64_t whole = columns / widest * widest, rest = columns % widest;
  Value from = arith::MulIOp::create(b, block, emitIndex(b, items.blockColumns));
  Value to = arith::AddIOp::create(b, from, emitIndex(b, items.blockColumns));
  to = arith::MinSIOp::create(b, to, emitIndex(b, whole));
  auto loop = scf::ForOp::create(b, from, to, emitIndex(b, widest));
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    row->startColumns(0, piece.space.end, loop.getInductionVar(), widest, loop);
    emitChunk(piece, 0, columns);
  }
  if (!rest)
    return;
  Value isLast =
      arith::CmpIOp::create(b, arith::CmpIPredicate::eq, block, emitIndex(b, items.blocks - 1));
  auto last = scf::IfOp::create(b, isLast);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(last.thenBlock());
  row->startColumns(0, piece.space.end, emitIndex(b, whole), rest, last);
  emitChunk(piece, 0, columns);
}

//===----------------------------------------------------------------------===//
// The kernel
//===----------------------------------------------------------------------===//

std::optional<KernelInfo> KernelScope::buildRows(rt::KernelOp launch) {
  KernelRegion region = KernelRegion::of(launch);
  RowPlanResult result = kernels.getTarget().planRows(region);
  if (!result.plan)
    return std::nullopt;
  RowKernel emitter(region, *result.plan, kernels.getProcessor());
  SmallVector<Type> types;
  KernelInfo info;
  info.bytes = 0;
  int64_t points = 0;
  auto addBuffer = [&](Value value) {
    int64_t count = cast<RankedTensorType>(value.getType()).getNumElements();
    types.push_back(
        MemRefType::get({count}, getRowStorageType(getElementTypeOrSelf(value.getType()))));
    info.bytes += getBytes(value);
    points = std::max(points, count);
  };
  llvm::for_each(region.inputs, addBuffer);
  info.inputs = region.inputs;
  for (Value positions : region.getPositions()) {
    types.push_back(getFirstBufferType(positions));
    info.inputs.push_back(positions);
  }
  if (std::optional<uint64_t> counter = launch.getCountedBy()) {
    Value counts = launch.getBlock().getArgument(*counter);
    info.rows = cast<RankedTensorType>(region.outputs.front().getType()).getDimSize(0);
    info.counter = info.inputs.size();
    info.numOffsets = cast<RankedTensorType>(counts.getType()).getNumElements();
    // One piece goes over the rows of all outputs in their order. Several pieces compute all rows.
    info.itemsAreRows = result.plan->pieces.size() == 1;
    info.inputs.push_back(counts);
    types.push_back(getBufferType(counts));
  }
  llvm::for_each(region.outputs, addBuffer);
  info.workspaceBytes = emitter.getWorkspaceBytes();
  info.items = emitter.getNumItems();
  bool onlyMoves = true;
  for (Operation *op : region.ops) {
    onlyMoves &= op->hasTrait<dist::MovesOnly>();
    info.flops += isMovement(op) ? 0 : points;
  }
  info.kind = onlyMoves ? MW_RT_MOVE : MW_RT_ROWS;
  info.flops = onlyMoves ? 0 : info.flops;
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  func::FuncOp kernel = begin(region.ops.front(), types, info.workspaceBytes);
  Builder builder = getBuilder(kernel);
  emitter.emit(builder, kernel.getArguments());
  info.name = finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
