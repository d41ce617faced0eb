//===- ReportFetches.cpp - when weights are gathered ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ReportFetches.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/LaunchTasks.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

class FetchReader {
public:
  explicit FetchReader(func::FuncOp func);
  std::optional<FetchReport> read();

private:
  CollectiveOpInterface getCollective(unsigned i) const {
    auto start = dyn_cast<rt::StartOp>(launches.launches[i]);
    return start ? start.getCollective() : CollectiveOpInterface();
  }
  std::pair<unsigned, unsigned> getReaders(unsigned i, unsigned result) const;
  void addGathers(unsigned i, CollectiveOpInterface gather);
  void addScatters(unsigned i, CollectiveOpInterface scatter);
  FetchReport::Weight &getWeightOf(const Weight &weight);
  int64_t getSlot(int64_t offset, int64_t bytes);
  bool isStep(unsigned i) const;
  void addAxes(ArrayRef<Axis> axes);

  func::FuncOp func;
  MeshAttr mesh;
  CostModel model;
  WeightFinder finder;
  LaunchTasks launches;
  Schedule schedule;
  /// The first and the last reader of each task.
  std::vector<unsigned> firstReader, lastReader;
  /// The numbers of launches.
  ProgramMap<Operation *, unsigned> numbers;
  /// The first readers of all gathers of weights, in order.
  std::vector<unsigned> uses;
  llvm::MapVector<Location, FetchReport::Weight> weights;
  /// The results of gathers that another gather takes further, over another link.
  struct Step {
    FetchReport::Gather cost;
    AxisList axes;
  };
  ProgramMap<Value, Step> steps;
  FetchReport report;
};

} // namespace

FetchReader::FetchReader(func::FuncOp func)
    : func(func), mesh(getSpmdMesh(func)), model(mesh), finder(func),
      launches(func, model, RunBeside::Always) {
  std::vector<ScheduleTask> &tasks = launches.tasks;
  firstReader.assign(tasks.size(), tasks.size());
  lastReader.assign(tasks.size(), 0);
  for (auto [i, task] : llvm::enumerate(tasks))
    for (unsigned dependence : task.dependences) {
      if (!task.reads(dependence))
        continue;
      firstReader[dependence] = std::min<unsigned>(firstReader[dependence], i);
      lastReader[dependence] = std::max<unsigned>(lastReader[dependence], i);
    }
  for (auto [i, launch] : llvm::enumerate(launches.launches))
    numbers[launch] = i;
  launches.keepWaits();
  schedule = simulateInOrder(tasks);
}

/// Adds the launches that read a value, or a view of it.
static void findReaders(Value value, const ProgramMap<Operation *, unsigned> &numbers,
                        std::pair<unsigned, unsigned> &readers) {
  for (Operation *user : value.getUsers())
    if (auto known = numbers.find(user); known != numbers.end())
      readers = {std::min(readers.first, known->second), std::max(readers.second, known->second)};
    else
      for (Value result : user->getResults())
        findReaders(result, numbers, readers);
}

/// The first and the last reader of one result of a launch.
std::pair<unsigned, unsigned> FetchReader::getReaders(unsigned i, unsigned result) const {
  auto start = cast<rt::StartOp>(launches.launches[i]);
  if (start->getNumOperands() == 1)
    return {firstReader[i], lastReader[i]};
  std::pair<unsigned, unsigned> readers(launches.launches.size(), 0);
  for (Operation *wait : start.getFuture().getUsers())
    findReaders(wait->getResult(result), numbers, readers);
  return readers;
}

FetchReport::Weight &FetchReader::getWeightOf(const Weight &weight) {
  FetchReport::Weight &entry = weights[weight.stored.getLoc()];
  if (!entry.name.empty())
    return entry;
  entry.name = weight.name.str();
  auto type = cast<RankedTensorType>(weight.stored.getType());
  entry.storedRows = type.getDimSize(0);
  entry.storedBytes = getTensorBytes(type);
  return entry;
}

int64_t FetchReader::getSlot(int64_t offset, int64_t bytes) {
  for (auto [i, slot] : llvm::enumerate(report.slots))
    if (slot.offset == offset) {
      slot.bytes = std::max(slot.bytes, bytes);
      return i;
    }
  report.slots.push_back({offset, bytes});
  return report.slots.size() - 1;
}

/// Shares of the cost of a launch, by the bytes of each of its tensors.
static double getShare(Operation *op, unsigned i) {
  int64_t all = 0;
  for (Type type : op->getResultTypes())
    all += getTensorBytes(type);
  return double(getTensorBytes(op->getResult(i).getType())) / std::max<int64_t>(all, 1);
}

/// Returns true for a gather that another gather takes further.
bool FetchReader::isStep(unsigned i) const {
  unsigned reader = firstReader[i];
  return reader < launches.launches.size() && getCollective(reader) &&
         getCollective(reader).getRole() == CollectiveRole::Weights;
}

void FetchReader::addAxes(ArrayRef<Axis> axes) {
  for (const Axis &axis : axes)
    if (std::string name = mesh.getAxes()[axis.axis].getName().str();
        !llvm::is_contained(report.axes, name))
      report.axes.push_back(name);
}

void FetchReader::addGathers(unsigned i, CollectiveOpInterface gather) {
  auto start = cast<rt::StartOp>(launches.launches[i]);
  const ScheduleTask &task = launches.tasks[i];
  Cost cost = model.getCost(gather);
  int64_t shown = task.link == 0 ? task.time : schedule.shown[i];
  AxisList axes = getCollectiveAxes(gather, mesh);
  for (auto [n, operand] : llvm::enumerate(start->getOperands())) {
    std::optional<Weight> weight = finder.find(operand);
    if (!weight)
      continue;
    FetchReport::Weight &entry = getWeightOf(*weight);
    if (FormAttr form = getForm(operand.getType()))
      entry.kind = stringify(form.getKind()).str();
    Step step = steps.lookup(rt::getBuffer(operand));
    step.axes.append(axes);
    auto whole = cast<RankedTensorType>(gather->getResult(n).getType());
    ShardingAttr sharding = func.getArgAttrOfType<ShardingAttr>(
        weight->stored.getArgNumber(), DistDialect::kShardingAttr);
    auto global = func.getArgAttrOfType<TypeAttr>(weight->stored.getArgNumber(),
                                                  DistDialect::kGlobalAttr);
    // The padding behind the rows of a part that a rank uses.
    entry.rows = whole.getDimSize(0);
    if (sharding && global)
      if (auto layout = getLayout(sharding, mesh,
                                  cast<RankedTensorType>(global.getValue()).getShape(),
                                  [&] { return func.emitError(); });
          succeeded(layout)) {
        const LayoutFactor &rows = layout->dims[0].factors.back();
        // Other ranks may share the way over a slow link.
        llvm::erase_if(step.axes, [&](const Axis &axis) { return !contains(rows.axes, axis); });
        if (getNumShards(rows.axes) == getNumShards(step.axes))
          entry.rows = entry.rows / rows.padded * rows.size;
      }
    entry.bytes = double(entry.rows) / whole.getDimSize(0) * getTensorBytes(whole);
    double share = getShare(gather, n);
    FetchReport::Gather &own = step.cost;
    if (auto phase = gather->getAttrOfType<StringAttr>(DistDialect::kPhaseAttr))
      own.phase = phase.str();
    auto [first, last] = getReaders(i, n);
    own.ahead += llvm::lower_bound(uses, first) - llvm::lower_bound(uses, i + 1);
    own.bytes += std::llround(cost.bytes * share);
    own.seconds += task.time * share * 1e-12;
    own.exposedSeconds += shown * share * 1e-12;
    if (isStep(i)) {
      for (Operation *user : start.getFuture().getUsers())
        steps[user->getResult(n)] = step;
      continue;
    }
    addAxes(step.axes);
    report.ranks = std::max(report.ranks, getNumShards(step.axes));
    own.first = i;
    own.last = std::max<int64_t>(last, i);
    if (std::optional<ArrayRef<int64_t>> offsets = start.getOffsets())
      own.slot = getSlot((*offsets)[n], getTensorBytes(whole));
    entry.gathers.push_back(own);
  }
  report.gatherSeconds += task.time * 1e-12;
  report.exposedSeconds += shown * 1e-12;
}

/// The location of one operand of a launch: a joint one has those of its members.
static Location getOperandLoc(Operation *op, unsigned operand) {
  auto fused = dyn_cast<FusedLoc>(op->getLoc());
  bool isJoint = fused && op->getNumOperands() > 1 && fused.getLocations().size() == op->getNumOperands();
  return isJoint ? fused.getLocations()[operand] : op->getLoc();
}

/// A gradient has the location of the weight that it is of.
void FetchReader::addScatters(unsigned i, CollectiveOpInterface scatter) {
  const ScheduleTask &task = launches.tasks[i];
  Cost cost = model.getCost(scatter);
  int64_t shown = task.link == 0 ? task.time : schedule.shown[i];
  report.scatterSeconds += task.time * 1e-12;
  report.exposedSeconds += shown * 1e-12;
  for (unsigned n = 0; n < scatter->getNumResults(); ++n) {
    auto known = weights.find(getOperandLoc(scatter, n));
    if (known == weights.end())
      continue;
    // Ranks that hold the same shards sum them, too.
    if (llvm::none_of(getCollectiveAxes(scatter, mesh), [&](const Axis &axis) {
          return llvm::is_contained(report.axes, mesh.getAxes()[axis.axis].getName().str());
        }))
      continue;
    std::optional<FetchReport::Scatter> &sum = known->second.scatter;
    if (!sum)
      sum.emplace();
    double share = getShare(scatter, n);
    sum->bytes += std::llround(cost.bytes * share);
    sum->seconds += task.time * share * 1e-12;
    sum->exposedSeconds += shown * share * 1e-12;
  }
}

std::optional<FetchReport> FetchReader::read() {
  auto isOf = [&](unsigned i, CollectiveRole role) {
    CollectiveOpInterface collective = getCollective(i);
    return collective && collective.getRole() == role;
  };
  unsigned count = launches.launches.size();
  for (unsigned i = 0; i < count; ++i)
    if (isOf(i, CollectiveRole::Weights) && firstReader[i] < count && !isStep(i))
      for (unsigned n = 0; n < launches.launches[i]->getNumOperands(); ++n)
        uses.push_back(getReaders(i, n).first);
  llvm::sort(uses);
  for (unsigned i = 0; i < count; ++i)
    if (isOf(i, CollectiveRole::Weights))
      addGathers(i, getCollective(i));
  if (weights.empty())
    return std::nullopt;
  llvm::sort(report.axes, [&](StringRef a, StringRef b) {
    return mesh.getAxisIndex(a) < mesh.getAxisIndex(b);
  });
  for (unsigned i = 0; i < count; ++i)
    if (isOf(i, CollectiveRole::Gradients))
      addScatters(i, getCollective(i));
  for (auto &[location, weight] : weights)
    report.weights.push_back(std::move(weight));
  return std::move(report);
}

std::optional<FetchReport> meshwright::reportFetches(func::FuncOp func) {
  if (!getSpmdMesh(func))
    return std::nullopt;
  std::optional<FetchReport> report = FetchReader(func).read();
  if (!report)
    return std::nullopt;
  report->gatherSeconds = report->scatterSeconds = report->exposedSeconds = 0;
  for (nn::CallStep step : nn::getSteps(func)) {
    std::optional<FetchReport> part = FetchReader(cast<func::FuncOp>(*step.function)).read();
    if (!part)
      continue;
    double runs = step.getRuns();
    report->gatherSeconds += runs * part->gatherSeconds;
    report->scatterSeconds += runs * part->scatterSeconds;
    report->exposedSeconds += runs * part->exposedSeconds;
  }
  return report;
}
