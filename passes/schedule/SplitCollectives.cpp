//===- SplitCollectives.cpp - collectives and products in chunks ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/ChunkRewriter.h"
#include "meshwright/passes/schedule/LaunchTasks.h"
#include "meshwright/passes/schedule/ListScheduler.h"
#include "meshwright/passes/schedule/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Threading.h"

namespace meshwright {
#define GEN_PASS_DEF_SPLITCOLLECTIVESPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kSplitCollectives = "split-collectives";

//===----------------------------------------------------------------------===//
// Simulating chunks
//===----------------------------------------------------------------------===//

/// Returns true if chunks of the value are views (rt::isView): chunks of an argument whose
/// rows are outermost.
bool isCutForNothing(Value value, const TokenDim &token) {
  auto type = cast<RankedTensorType>(value.getType());
  ArrayRef<int64_t> before = type.getShape().take_front(token.dim);
  return isa<BlockArgument>(rt::getBuffer(value)) &&
         llvm::all_of(before, [](int64_t size) { return size == 1; });
}

/// Simulates a stretch of the program with a region in chunks, without writing it.
class ChunkSimulator {
public:
  ChunkSimulator(const CostModel &model, bool always) : model(model), always(always) {}

  /// The schedule of the ops of `stretch`. Ops of the region run once for each chunk
  /// (`SplitRegion::bounds`; without bounds, whole). Valid until the simulator is destroyed.
  const Schedule &simulate(ArrayRef<Operation *> stretch, const SplitRegion &region);

private:
  unsigned add(int link, int64_t time, ArrayRef<unsigned> dependences);
  void require(SmallVectorImpl<unsigned> &dependences, Value value, int chunk);
  int64_t getTime(Operation *op, const ChunkOp *how, double share) const;
  std::string getKey() const;

  const CostModel &model;
  bool always;
  std::vector<ScheduleTask> tasks;
  /// The tasks that make a value: one, or one for each chunk.
  ProgramMap<Value, SmallVector<unsigned, 4>> made;
  /// The schedules of all tasks so far: layers of a model are alike.
  llvm::StringMap<Schedule> known;
};

unsigned ChunkSimulator::add(int link, int64_t time, ArrayRef<unsigned> dependences) {
  ScheduleTask task;
  task.link = link;
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
  if (model.getDevice().rates)
    return model.getLaunchTime() + int64_t(double(getComputeTime(op, model)) * share);
  Type type = cast<RankedTensorType>(op->getResult(0).getType()).getElementType();
  return model.getLaunchTime() + std::max(time, model.getComputeTime(getProductFlops(op) * share, type));
}

/// The bytes of all that the schedule of the tasks depends on.
std::string ChunkSimulator::getKey() const {
  std::string key;
  auto add = [&](int64_t number) { key.append(reinterpret_cast<const char *>(&number), sizeof(number)); };
  for (const ScheduleTask &task : tasks) {
    add(task.link);
    add(task.time);
    add(task.dependences.size());
    llvm::for_each(task.dependences, add);
  }
  return key;
}

const Schedule &ChunkSimulator::simulate(ArrayRef<Operation *> stretch, const SplitRegion &region) {
  tasks.clear();
  made.clear();
  unsigned chunks = std::max<size_t>(1, region.bounds.size());
  // The time to cut a value into chunks, or to join it.
  auto getMoveTime = [&](Value value) {
    return model.getMemoryTime(2 * getTensorBytes(value.getType()));
  };
  ProgramMap<Value, unsigned> cut;
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
  auto [it, isNew] = known.try_emplace(getKey());
  if (isNew)
    it->second = scheduleTasks(tasks);
  return it->second;
}

} // namespace

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

llvm::LogicalResult meshwright::parseOptionText(StringRef text, ChunkCount &count,
                                                OptionErrorHandler error) {
  if (text.getAsInteger(10, count.value) || count.value < 0 || count.value == 1)
    return error("expected 0 (as many as pay) or at least 2, got '" + text + "'");
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
  bool choose(SplitRegion &region, ChunkSimulator &simulator, ArrayRef<Operation *> order,
              const ProgramMap<Operation *, unsigned> &positions, Schedule &whole, Schedule &split);
};

/// Cuts the region into the number of chunks with the least simulated time. Returns false
/// if none takes less time than the whole.
bool SplitCollectivesPass::choose(SplitRegion &region, ChunkSimulator &simulator, ArrayRef<Operation *> order,
                                  const ProgramMap<Operation *, unsigned> &positions, Schedule &whole,
                                  Schedule &split) {
  unsigned first = positions.lookup(region.ops.front().op);
  unsigned last = positions.lookup(region.ops.back().op);
  ArrayRef<Operation *> stretch = order.slice(first, last - first + 1);
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
    const Schedule &schedule = simulator.simulate(stretch, region);
    // More chunks must gain a part in two hundred: the model leaves out costs of small
    // products.
    bool better = best.empty() || schedule.time < split.time - split.time / 200;
    worse = better ? 0 : worse + 1;
    if (better) {
      split = schedule;
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

/// The numbers of a decision on a region.
static std::vector<std::pair<std::string, double>>
getNumbers(const SplitRegion &region, const Schedule &whole, const Schedule &split) {
  int64_t collectives =
      llvm::count_if(region.ops, [](const ChunkOp &how) { return communicates(how.op); });
  return {{"chunks", double(region.bounds.size())},
          {"rows", double(region.rows)},
          {"collectives", double(collectives)},
          {"communication_seconds", double(whole.communication) * 1e-12},
          {"exposed_before_seconds", double(whole.exposed) * 1e-12},
          {"exposed_after_seconds", double(split.exposed) * 1e-12},
          {"before_seconds", double(whole.time) * 1e-12},
          {"after_seconds", double(split.time) * 1e-12}};
}

/// Writes the regions in chunks. Returns false, with the function as it was, if its placement cannot be derived
/// then: factors that pads, several axes and chunks make up may leave too many ways.
static bool writeProved(func::FuncOp func, ArrayRef<SplitRegion> regions) {
  OwningOpRef<func::FuncOp> whole = func.clone();
  writeInChunks(func.front(), regions);
  if (isPlacementProved(func))
    return true;
  func.getBody().takeBody(whole->getBody());
  return false;
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
        .add(kSplitCollectives.str(), Outcome::Declined, func.getLoc(),
             "collectives stay whole: the placement of the program cannot be derived");
    return;
  }
  MeshAttr mesh = placement->getMesh();
  if (failed(verifyDevice(mesh, func)))
    return signalPassFailure();
  CostModel model(mesh);
  ChunkSimulator simulator(model, always);
  DecisionLog &log = DistDialect::getDecisionLog(&getContext());

  // Values that depend on parameters only are no activations, so they have no rows.
  ProgramSet<Value> flowing;
  WeightFinder weights(func);
  for (BlockArgument argument : func.getArguments())
    if (!weights.find(argument))
      flowing.insert(argument);
  SmallVector<Operation *, 0> order;
  ProgramMap<Operation *, unsigned> positions;
  for (Operation &op : block.without_terminator()) {
    positions[&op] = order.size();
    order.push_back(&op);
    if (llvm::any_of(op.getOperands(), [&](Value v) { return flowing.contains(v); }))
      flowing.insert(op.result_begin(), op.result_end());
  }

  SplitRegionFinder finder(block, *placement);
  SmallVector<SplitRegion, 0> regions;
  // In the order of the program. Chunks are applied or not when all are written.
  SmallVector<Decision, 0> decisions;
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
      bool better = choose(candidate, simulator, order, positions, before, after);
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
        decisions.push_back({kSplitCollectives.str(), Outcome::Declined,
                             op->getName().getStringRef().str() + " stays whole: " + reason,
                             op->getLoc(), {}, {}});
      continue;
    }
    auto numbers = getNumbers(*best, whole, split);
    if (!pays) {
      decisions.push_back(
          {kSplitCollectives.str(), Outcome::Declined,
           whole.communication == 0
               ? "collectives stay whole: nothing runs beside them on this device"
               : "collectives stay whole: chunks take longer, as weights are read once for "
                 "each and each is launched; more rows or slower links would change that",
           op->getLoc(), std::move(numbers), {}});
      continue;
    }
    finder.claim(*best);
    regions.push_back(std::move(*best));
    decisions.push_back({kSplitCollectives.str(), Outcome::Applied,
                         "collectives and the products around them run in chunks of their rows: one "
                         "chunk's communication beside another's arithmetic",
                         op->getLoc(), std::move(numbers), {}});
  }
  bool isProved = regions.empty() || writeProved(func, regions);
  for (Decision &decision : decisions) {
    if (!isProved && decision.outcome == Outcome::Applied) {
      decision.outcome = Outcome::Declined;
      decision.message = "collectives stay whole: the placement of their chunks cannot be derived";
    }
    log.add(decision.pass, decision.outcome, decision.location, decision.message, decision.numbers);
  }
  if (regions.empty())
    markAllAnalysesPreserved();
}

} // namespace
