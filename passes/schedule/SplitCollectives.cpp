//===- SplitCollectives.cpp - collectives and products in chunks ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/LaunchTasks.h"
#include "meshwright/passes/schedule/ListScheduler.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/SplitRegion.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/Threading.h"

namespace meshwright {
#define GEN_PASS_DEF_SPLITCOLLECTIVESPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kPass = "split-collectives";

//===----------------------------------------------------------------------===//
// Simulating chunks
//===----------------------------------------------------------------------===//

/// Returns true if chunks of the value are views (rt::isView): chunks of an argument whose
/// rows are outermost.
bool isCutForNothing(Value value, const TokenDim &place) {
  auto type = cast<RankedTensorType>(value.getType());
  ArrayRef<int64_t> before = type.getShape().take_front(place.dim);
  return isa<BlockArgument>(rt::getBuffer(value)) &&
         llvm::all_of(before, [](int64_t size) { return size == 1; });
}

/// Simulates a stretch of the program with a region in chunks, without writing it.
class ChunkSimulator {
public:
  ChunkSimulator(const CostModel &model, bool always) : model(model), always(always) {}

  /// The schedule of the ops of `stretch`. Ops of the region run once for each chunk
  /// (`SplitRegion::bounds`; without bounds, whole).
  Schedule simulate(ArrayRef<Operation *> stretch, const SplitRegion &region);

private:
  unsigned add(int stream, int64_t time, ArrayRef<unsigned> dependences);
  void require(SmallVectorImpl<unsigned> &dependences, Value value, int chunk);
  int64_t getTime(Operation *op, const ChunkOp *how, double share) const;

  const CostModel &model;
  bool always;
  std::vector<ScheduleTask> tasks;
  /// The tasks that make a value: one, or one for each chunk.
  DenseMap<Value, SmallVector<unsigned, 4>> made;
};

unsigned ChunkSimulator::add(int stream, int64_t time, ArrayRef<unsigned> dependences) {
  ScheduleTask task;
  task.stream = stream;
  task.time = time;
  task.dependences.assign(dependences.begin(), dependences.end());
  tasks.push_back(std::move(task));
  return tasks.size() - 1;
}

void ChunkSimulator::require(SmallVectorImpl<unsigned> &dependences, Value value, int chunk) {
  auto it = made.find(value);
  if (it == made.end())
    return;
  if (chunk >= 0 && it->second.size() > 1)
    dependences.push_back(it->second[chunk]);
  else
    dependences.append(it->second.begin(), it->second.end());
}

/// Picoseconds of `share` of the op's rows.
int64_t ChunkSimulator::getTime(Operation *op, const ChunkOp *how, double share) const {
  if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
    if (!collective.communicates())
      return 0;
    AxisList axes = getCollectiveAxes(op, model.getMesh());
    int64_t fixed = model.getTime(axes, 0, getSteps(collective.getKind(), getNumShards(axes)));
    return fixed + int64_t(double(model.getCost(collective).time - fixed) * share);
  }
  if (op->hasTrait<View>())
    return 0;
  double bytes = 0;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    bytes += double(getTensorBytes(operand.getType())) * (how && how->operands[i] ? share : 1);
  for (Value result : op->getResults())
    bytes += double(getTensorBytes(result.getType())) * share;
  int64_t time = model.getMemoryTime(int64_t(bytes));
  if (!isHeavy(op))
    return time;
  Type type = cast<RankedTensorType>(op->getResult(0).getType()).getElementType();
  return model.getLaunchTime() + std::max(time, model.getComputeTime(getProductFlops(op) * share, type));
}

Schedule ChunkSimulator::simulate(ArrayRef<Operation *> stretch, const SplitRegion &region) {
  tasks.clear();
  made.clear();
  unsigned chunks = std::max<size_t>(1, region.bounds.size());
  // The time to cut a value into chunks, or to join it.
  auto getMoveTime = [&](Value value) {
    return model.getMemoryTime(2 * getTensorBytes(value.getType()));
  };
  DenseMap<Value, unsigned> cut;
  for (Operation *op : stretch) {
    const ChunkOp *how = chunks > 1 ? region.lookup(op) : nullptr;
    bool beside =
        communicates(op) && (always || model.runsBeside(getCollectiveAxes(op, model.getMesh())));
    SmallVector<unsigned, 8> dependences;
    if (!how) {
      SmallPtrSet<Value, 8> seen;
      op->walk([&](Operation *inner) {
        for (Value operand : inner->getOperands())
          if (seen.insert(operand).second)
            require(dependences, operand, -1);
      });
      unsigned task = add(beside ? 1 : 0, getTime(op, nullptr, 1), dependences);
      for (Value result : op->getResults())
        made[result] = {task};
      continue;
    }
    for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
      Operation *producer = operand.getDefiningOp();
      if (!how->operands[i] || (producer && region.lookup(producer)) || cut.contains(operand))
        continue;
      int64_t time = isCutForNothing(operand, *how->operands[i]) ? 0 : getMoveTime(operand);
      if (!time)
        continue;
      SmallVector<unsigned, 8> before;
      require(before, operand, -1);
      cut[operand] = add(0, time, before);
    }
    SmallVector<SmallVector<unsigned, 4>, 1> results(op->getNumResults());
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      double share = double(region.getSize(how->results[0], chunk)) / how->results[0].size;
      dependences.clear();
      for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
        if (how->operands[i] && cut.contains(operand))
          dependences.push_back(cut[operand]);
        else
          require(dependences, operand, how->operands[i] ? int(chunk) : -1);
      }
      unsigned task = add(beside ? 1 : 0, getTime(op, how, share), dependences);
      for (auto &list : results)
        list.push_back(task);
    }
    for (auto [result, list] : llvm::zip_equal(op->getResults(), results)) {
      bool joined =
          llvm::any_of(result.getUses(), [&](OpOperand &use) { return !region.readsChunk(use); });
      if (int64_t time = joined ? getMoveTime(result) : 0)
        add(0, time, list);
      made[result] = std::move(list);
    }
  }
  return scheduleTasks(tasks);
}

//===----------------------------------------------------------------------===//
// Rewriting
//===----------------------------------------------------------------------===//

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
class Splitter {
public:
  Splitter(Block &block, ArrayRef<SplitRegion> regions)
      : block(block), regions(regions), builder(block.getTerminator()) {}

  void run();

private:
  const SplitRegion *findRegion(Operation *op) const {
    auto it = owner.find(op);
    return it == owner.end() ? nullptr : it->second;
  }
  void flush();
  void write(const ChunkOp &how, unsigned chunk);
  Value findChunk(Value value, const TokenDim &place, unsigned chunk);
  Value getChunk(Value value, const TokenDim &place, unsigned chunk);
  Value exposeRows(Value value, Value part, const TokenDim &place);
  Value hideRanks(Value value, Value part, const TokenDim &place);
  void join(Value value, const TokenDim &place);
  /// Whether each rank has its own rows of a value that enters or leaves the region.
  bool isSharded(Value value) const {
    auto it = joined.find(value);
    return region->sharded.contains(it == joined.end() ? value : it->second);
  }

  Block &block;
  ArrayRef<SplitRegion> regions;
  OpBuilder builder;
  DenseMap<Operation *, const SplitRegion *> owner;
  const SplitRegion *region = nullptr;
  SmallVector<const ChunkOp *> batch;
  SmallVector<Operation *> deferred;
  /// The ops of `batch` and `deferred`.
  DenseSet<Operation *> waiting;
  /// The chunks of a value in a region. Another region may cut it elsewhere.
  DenseMap<std::pair<const SplitRegion *, Value>, SmallVector<Value, 4>> chunks;
  /// The values in whose places joined chunks are.
  DenseMap<Value, Value> joined;
  SmallVector<Operation *> replaced;
};

/// The chunk that a joined value is made of; null for other values. Of a value that waits, the chunk
/// waits.
Value Splitter::findChunk(Value value, const TokenDim &place, unsigned chunk) {
  if (auto whole = joined.find(value); whole != joined.end()) {
    auto known = chunks.find({region, whole->second});
    bool isSame = known != chunks.end() && region->places.lookup(whole->second) == place;
    return isSame ? known->second[chunk] : Value();
  }
  auto after = value.getDefiningOp<AfterOp>();
  Value part = after ? findChunk(after.getInput(), place, chunk) : Value();
  return part ? AfterOp::create(builder, after.getLoc(), part, after.getEarlier()) : Value();
}

Value Splitter::getChunk(Value value, const TokenDim &place, unsigned chunk) {
  SmallVector<Value, 4> &list = chunks[{region, value}];
  list.resize(region->bounds.size());
  if (list[chunk])
    return list[chunk];
  Location location = value.getLoc();
  if (Value joinedChunk = findChunk(value, place, chunk))
    return list[chunk] = joinedChunk;
  int64_t dim = place.dim + isSharded(value);
  Value whole = exposeRows(value, value, place);
  auto type = cast<RankedTensorType>(whole.getType());
  SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape()),
      strides(type.getRank(), 1), shape(type.getShape());
  shape[dim] = region->getSize(place, chunk) * place.inner;
  starts[dim] = region->bounds[chunk] * place.inner;
  limits[dim] = starts[dim] + shape[dim];
  Value slice = nn::SliceOp::create(
      builder, location, type.clone(shape), whole, builder.getDenseI64ArrayAttr(starts),
      builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
  return list[chunk] = hideRanks(value, slice, place);
}

/// Adds a dimension for the ranks before rows that are sharded. Each rank has one element of
/// it, so the row dimension is whole when a rank cuts or joins it. `part` is a part of
/// `value`.
Value Splitter::exposeRows(Value value, Value part, const TokenDim &place) {
  if (!isSharded(value))
    return part;
  auto type = cast<RankedTensorType>(part.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape.insert(shape.begin() + place.dim, 1);
  return nn::ReshapeOp::create(builder, part.getLoc(), type.clone(shape), part);
}

Value Splitter::hideRanks(Value value, Value part, const TokenDim &place) {
  if (!isSharded(value))
    return part;
  auto type = cast<RankedTensorType>(part.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape.erase(shape.begin() + place.dim);
  return nn::ReshapeOp::create(builder, part.getLoc(), type.clone(shape), part);
}

void Splitter::write(const ChunkOp &how, unsigned chunk) {
  SmallVector<Value> operands;
  for (auto [operand, place] : llvm::zip_equal(how.op->getOperands(), how.operands))
    operands.push_back(place ? getChunk(operand, *place, chunk) : operand);
  SmallVector<Type> types;
  for (auto [result, place] : llvm::zip_equal(how.op->getResults(), how.results)) {
    auto type = cast<RankedTensorType>(result.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape[place.dim] = region->getSize(place, chunk) * place.inner;
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
void Splitter::join(Value value, const TokenDim &place) {
  auto readsWhole = [&](OpOperand &use) { return !region->readsChunk(use); };
  if (llvm::none_of(value.getUses(), readsWhole))
    return;
  SmallVector<Value, 4> parts;
  for (Value chunk : chunks[{region, value}])
    parts.push_back(exposeRows(value, chunk, place));
  auto type = cast<RankedTensorType>(parts[0].getType());
  SmallVector<int64_t> shape(type.getShape());
  int64_t dim = place.dim + isSharded(value);
  shape[dim] = cast<RankedTensorType>(value.getType()).getDimSize(place.dim);
  Value whole = nn::ConcatOp::create(builder, value.getLoc(), type.clone(shape), parts,
                                     builder.getI64IntegerAttr(dim));
  whole = hideRanks(value, whole, place);
  if (Attribute id = value.getDefiningOp()->getAttr(nn::NnDialect::kIdAttr))
    whole.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  joined[whole] = value;
  value.replaceUsesWithIf(whole, readsWhole);
}

void Splitter::flush() {
  if (!batch.empty()) {
    // The number of collectives before an op, within the batch.
    DenseMap<Operation *, unsigned> levels;
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
      for (auto [result, place] : llvm::zip_equal(how->op->getResults(), how->results))
        join(result, place);
      replaced.push_back(how->op);
    }
  }
  for (Operation *op : deferred)
    op->moveBefore(block.getTerminator());
  batch.clear();
  deferred.clear();
  waiting.clear();
}

void Splitter::run() {
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

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

} // namespace

llvm::LogicalResult meshwright::parseOptionText(StringRef text, ChunkCount &count,
                                                OptionErrorHandler error) {
  if (text.getAsInteger(10, count.value) || count.value < 0 || count.value == 1)
    return error("'" + text + "': expected 0 (as many as pay) or at least 2");
  return success();
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const ChunkCount &count) {
  return os << count.value;
}

namespace {

struct SplitCollectivesPass : meshwright::impl::SplitCollectivesPassBase<SplitCollectivesPass> {
  using SplitCollectivesPassBase::SplitCollectivesPassBase;

  void runOnOperation() override;
  /// Derives the placement of the function. Fails without a diagnostic: a program that
  /// runs as it is may have a placement that cannot be derived.
  const FailureOr<PlacementAnalysis> &getPlacement();
  bool always = false;
  bool choose(SplitRegion &region, const CostModel &model, ArrayRef<Operation *> order,
              const DenseMap<Operation *, unsigned> &positions, Schedule &whole, Schedule &split);
};

/// Cuts the region into the number of chunks with the least simulated time. Returns false
/// if none takes less time than the whole.
bool SplitCollectivesPass::choose(SplitRegion &region, const CostModel &model,
                                  ArrayRef<Operation *> order,
                                  const DenseMap<Operation *, unsigned> &positions, Schedule &whole,
                                  Schedule &split) {
  unsigned first = positions.lookup(region.ops.front().op);
  unsigned last = positions.lookup(region.ops.back().op);
  ArrayRef<Operation *> stretch = order.slice(first, last - first + 1);
  ChunkSimulator simulator(model, always);
  region.bounds.clear();
  whole = simulator.simulate(stretch, region);
  SmallVector<int64_t, 4> best;
  SmallVector<int64_t> counts{2, 3, 4, 6, 8, 12, 16};
  if (chunks.value)
    counts.assign(1, chunks.value);
  int worse = 0;
  for (int64_t count : counts) {
    if (!region.cut(count))
      break;
    Schedule schedule = simulator.simulate(stretch, region);
    // More chunks must gain a part in two hundred: the model leaves out costs of small
    // products.
    bool better = best.empty() || schedule.time < split.time - split.time / 200;
    worse = better ? 0 : worse + 1;
    if (better) {
      split = std::move(schedule);
      best = region.bounds;
    }
    if (worse == 2)
      break;
  }
  region.bounds = best;
  if (best.empty())
    return false;
  // A gain below one part in a hundred is within the error of the estimates.
  return always || split.time < whole.time - whole.time / 100;
}

const FailureOr<PlacementAnalysis> &SplitCollectivesPass::getPlacement() {
  uint64_t thread = llvm::get_threadid();
  ScopedDiagnosticHandler ignore(
      &getContext(), [&](Diagnostic &) { return success(llvm::get_threadid() == thread); });
  return getAnalysis<SharedPlacementAnalysis>().placement;
}

/// The mode that the program asks for, or else `otherwise`.
static OnOffAuto getMode(func::FuncOp func, OnOffAuto otherwise) {
  OnOffAuto mode = getRequestedOverlap(func).value_or(otherwise);
  auto chunks = func->getAttrOfType<StringAttr>(rt::RtDialect::kChunksAttr);
  if (chunks && chunks == "none")
    return OnOffAuto::Off;
  if (chunks && chunks == "all" && mode != OnOffAuto::Off)
    return OnOffAuto::On;
  return mode;
}

void SplitCollectivesPass::runOnOperation() {
  func::FuncOp func = getOperation();
  OnOffAuto mode = getMode(func, when);
  if (!getSpmdMeshSymbol(func) || func.isDeclaration() || mode == OnOffAuto::Off)
    return markAllAnalysesPreserved();
  always = mode == OnOffAuto::On;
  Block &block = func.front();
  if (llvm::none_of(block, [](Operation &op) { return communicates(&op); }))
    return markAllAnalysesPreserved();
  const FailureOr<PlacementAnalysis> &placement = getPlacement();
  if (failed(placement)) {
    // No analysis is preserved: another pass that derives the placement reports the error.
    DistDialect::getDecisionLog(&getContext())
        .add(kPass.str(), Outcome::Declined, func.getLoc(),
             "collectives stay whole: the placement of the program cannot be derived");
    return;
  }
  MeshAttr mesh = placement->getMesh();
  if (failed(verifyDevice(mesh, func)))
    return signalPassFailure();
  CostModel model(mesh);
  DecisionLog &log = DistDialect::getDecisionLog(&getContext());

  // Values that depend on parameters only are no activations, so they have no rows.
  DenseSet<Value> flowing;
  for (BlockArgument argument : func.getArguments())
    if (!getWeight(argument))
      flowing.insert(argument);
  SmallVector<Operation *, 0> order;
  DenseMap<Operation *, unsigned> positions;
  for (Operation &op : block.without_terminator()) {
    positions[&op] = order.size();
    order.push_back(&op);
    if (llvm::any_of(op.getOperands(), [&](Value v) { return flowing.contains(v); }))
      flowing.insert(op.result_begin(), op.result_end());
  }

  SplitRegionFinder finder(block, *placement);
  SmallVector<SplitRegion, 0> regions;
  for (Operation *op : order) {
    if (!communicates(op) || finder.isClaimed(op) || !flowing.contains(op->getOperand(0)))
      continue;
    std::string reason;
    SplitRegion *best = nullptr;
    Schedule whole, split;
    SmallVector<SplitRegion, 2> candidates = finder.find(op, reason);
    bool pays = false;
    for (SplitRegion &candidate : candidates) {
      Schedule before, after;
      bool better = choose(candidate, model, order, positions, before, after);
      if (candidate.bounds.empty())
        continue;
      // Candidates are compared by their gain, because their stretches may differ.
      if (!best || before.time - after.time > whole.time - split.time) {
        best = &candidate;
        pays = better;
        whole = std::move(before);
        split = std::move(after);
      }
    }
    if (!best) {
      if (!reason.empty())
        log.add(kPass.str(), Outcome::Declined, op->getLoc(),
                op->getName().getStringRef().str() + " stays whole: " + reason);
      continue;
    }
    int64_t collectives =
        llvm::count_if(best->ops, [](const ChunkOp &how) { return communicates(how.op); });
    std::vector<std::pair<std::string, double>> numbers = {
        {"chunks", double(best->bounds.size())},
        {"rows", double(best->rows)},
        {"collectives", double(collectives)},
        {"communication_seconds", double(whole.communication) * 1e-12},
        {"exposed_before_seconds", double(whole.exposed) * 1e-12},
        {"exposed_after_seconds", double(split.exposed) * 1e-12},
        {"before_seconds", double(whole.time) * 1e-12},
        {"after_seconds", double(split.time) * 1e-12}};
    if (!pays) {
      log.add(kPass.str(), Outcome::Declined, op->getLoc(),
              whole.communication == 0
                  ? "collectives stay whole: nothing runs beside them on this device"
                  : "collectives stay whole: chunks take longer, as weights are read once for "
                    "each and each is launched; more rows or slower links would change that",
              std::move(numbers));
      continue;
    }
    log.add(kPass.str(), Outcome::Applied, op->getLoc(),
            "collectives and the products around them run in chunks of their rows: one chunk's "
            "communication beside another's arithmetic",
            std::move(numbers));
    finder.claim(*best);
    regions.push_back(std::move(*best));
  }
  if (regions.empty())
    return markAllAnalysesPreserved();
  Splitter(block, regions).run();
  if (failed(verifyPlacement(func)))
    signalPassFailure();
}

} // namespace
