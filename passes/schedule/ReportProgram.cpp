//===- ReportProgram.cpp - launches and buffers of a plan -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ReportProgram.h"

#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Report/MovedRows.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/WeightModules.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/LaunchTasks.h"

#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The classes of kernels, as runs name them.
static constexpr const char *kClasses[] = {"rows", "gemm", "attention", "move"};

static MeshAttr getMeshOf(func::FuncOp func) {
  MeshAttr mesh = getSpmdMesh(func);
  return mesh ? mesh : MeshAttr::get(func.getContext(), {}, "");
}

namespace {

/// Reads one function.
///
/// Outline:
///  1. `readLaunches`: times by the order of the program, names and places of launches.
///  2. `readBuffers`: where the results are, and at which launches they are alive.
///  3. `findQueryWeight`: from the first scores of attention back to a product with a weight.
class ProgramReader {
public:
  explicit ProgramReader(func::FuncOp func)
      : func(func), mesh(getMeshOf(func)), model(mesh), finder(func), modules(func),
        launches(func, model, RunBeside::Always) {}
  ProgramFacts read(llvm::ArrayRef<TensorLayout> layouts);

private:
  void readLaunches();
  void readKernel(rt::KernelOp kernel, int64_t time, ProgramFacts::Launch &launch);
  void readCollective(rt::StartOp start, ProgramFacts::Launch &launch);
  void readBuffers();
  void addBuffers(Operation *op, int64_t launch, TypeRange types, std::optional<ArrayRef<int64_t>> offsets);
  void use(Operation *op, int64_t launch);
  void readLinks();
  std::string findQueryWeight() const;
  std::string findWeightBehind(Value query) const;

  func::FuncOp func;
  MeshAttr mesh;
  CostModel model;
  WeightFinder finder;
  WeightModules modules;
  LaunchTasks launches;
  ProgramFacts facts;
  /// The buffer of each value that owns one, by its number.
  ProgramMap<Value, int64_t> buffers;
};

} // namespace

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

/// The largest rate of a device: the one that it states, or the largest one of its tables.
static double getCeiling(double stated, llvm::ArrayRef<const RateTable *> tables) {
  for (const RateTable *table : tables)
    if (!table->empty())
      stated = std::max(stated, table->getLargestRate());
  return stated;
}

/// The seconds of a kernel at the ceilings of the device; none if the device states none.
static std::optional<double> getLeastSeconds(const KernelWork &work, const Device &device) {
  const Rates *rates = device.rates.get();
  double bandwidth = device.memoryBandwidth, arithmetic = 0;
  if (rates)
    bandwidth = getCeiling(bandwidth, {&rates->rows, &rates->moves, &rates->weights});
  for (auto &[flops, type] : work.flops) {
    double rate = device.getFlops(type);
    if (rates) {
      Rates::Type table = type.isBF16() ? Rates::BF16 : type.isF16() ? Rates::F16 : Rates::F32;
      rate = getCeiling(rate, {&rates->products[table], &rates->plainProducts[table], &rates->attention[table],
                               &rates->attentionGradients[table]});
    }
    arithmetic += rate > 0 ? work.visible * flops / rate : 0;
  }
  if (bandwidth <= 0)
    return arithmetic > 0 ? std::optional(arithmetic) : std::nullopt;
  return std::max(arithmetic, double(work.bytes - work.tableBytes) / bandwidth);
}

void ProgramReader::readKernel(rt::KernelOp kernel, int64_t time, ProgramFacts::Launch &launch) {
  KernelWork work = getWork(kernel, replacesRowsOfState(kernel, 0));
  launch.kind = kClasses[work.kind];
  for (auto &part : work.flops)
    launch.flops += work.visible * part.first;
  launch.bytes = work.bytes - work.tableBytes;
  launch.least = getLeastSeconds(work, model.getDevice());
  if (launch.least)
    launch.least = std::min(*launch.least, double(time) * 1e-12);
  for (Operation &op : kernel.getOps())
    launch.ops.push_back(op.getName().getStringRef().str());
  Operation *named = getNamedOp(kernel);
  launch.op = named->getName().getStringRef().str();
  launch.location = getSourceLocation(named->getLoc());
}

void ProgramReader::readCollective(rt::StartOp start, ProgramFacts::Launch &launch) {
  CollectiveOpInterface collective = start.getCollective();
  launch.kind = "collective";
  launch.op = collective->getName().getStringRef().str();
  launch.ops.push_back(launch.op);
  launch.location = modules.locate(collective->getLoc());
  launch.stream = start.getStream();
  launch.role = stringifyCollectiveRole(collective.getRole()).str();
  for (const Axis &axis : collective.getGroupAxes(mesh)) {
    std::string name = mesh.getAxes()[axis.axis].getName().str();
    if (!llvm::is_contained(launch.axes, name))
      launch.axes.push_back(name);
  }
  if (std::optional<Cost> cost = model.getCost(collective.getOperation()))
    launch.bytes = int64_t(double(cost->bytes) * getLoadShare(collective));
}

void ProgramReader::readLaunches() {
  launches.keepWaits();
  Schedule schedule = simulateInOrder(launches.tasks);
  facts.seconds = double(schedule.time) * 1e-12;
  for (auto [i, op] : llvm::enumerate(launches.launches)) {
    const ScheduleTask &task = launches.tasks[i];
    ProgramFacts::Launch launch;
    if (auto kernel = dyn_cast<rt::KernelOp>(op))
      readKernel(kernel, task.time, launch);
    else
      readCollective(cast<rt::StartOp>(op), launch);
    launch.layer = getLayerName(launch.location.name);
    launch.seconds = double(task.time) * 1e-12;
    launch.begin = double(schedule.finish[i] - task.time) * 1e-12;
    if (launch.kind == "collective")
      launch.exposed = double(task.link == 0           ? task.time
                              : schedule.shown.empty() ? 0
                                                       : std::min(task.time, schedule.shown[i])) *
                       1e-12;
    for (unsigned dependence : task.dependences)
      if (task.reads(dependence))
        launch.makers.push_back(dependence);
    llvm::sort(launch.makers);
    launch.wait = int64_t(i);
    facts.launches.push_back(std::move(launch));
  }
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

/// Adds the results of a launch that are in the arena.
void ProgramReader::addBuffers(Operation *op, int64_t launch, TypeRange types,
                               std::optional<ArrayRef<int64_t>> offsets) {
  auto kernel = dyn_cast<rt::KernelOp>(op);
  Operation *waits = kernel ? nullptr : *op->getResult(0).getUsers().begin();
  for (auto [i, type] : llvm::enumerate(types)) {
    if (!offsets || i >= offsets->size() || (kernel && kernel.getOverState(i)))
      continue;
    buffers[kernel ? kernel->getResult(i) : waits->getResult(i)] = facts.buffers.size();
    facts.buffers.push_back(
        {launch, formatTensor(type), (*offsets)[i], rt::getBufferBytes(type), launch, launch});
  }
}

/// Keeps the operands of an op alive up to a launch.
void ProgramReader::use(Operation *op, int64_t launch) {
  for (Value operand : op->getOperands())
    if (auto known = buffers.find(rt::getBuffer(operand)); known != buffers.end())
      facts.buffers[known->second].last = std::max(facts.buffers[known->second].last, launch);
}

void ProgramReader::readBuffers() {
  ProgramMap<Operation *, int64_t> numbers;
  for (auto [i, op] : llvm::enumerate(launches.launches))
    numbers[op] = i;
  int64_t next = 0;
  for (Operation &op : func.front()) {
    if (auto kernel = dyn_cast<rt::KernelOp>(op)) {
      use(&op, next);
      addBuffers(&op, next++, kernel->getResultTypes(), kernel.getOffsets());
    } else if (auto start = dyn_cast<rt::StartOp>(op)) {
      use(&op, next);
      addBuffers(&op, next++, start.getFuture().getType().getTypes(), start.getOffsets());
    } else if (auto wait = dyn_cast<rt::WaitOp>(op)) {
      // Until the wait, operands and results are in use.
      int64_t launch = numbers.lookup(wait.getStart()), last = std::max(launch, next - 1);
      facts.launches[launch].wait = next;
      use(wait.getStart(), last);
      for (Value result : wait->getResults())
        if (auto known = buffers.find(result); known != buffers.end())
          facts.buffers[known->second].last = std::max(facts.buffers[known->second].last, last);
    } else if (op.hasTrait<OpTrait::IsTerminator>()) {
      use(&op, std::max<int64_t>(0, next - 1));
    }
  }
  auto get = [&](StringRef name) {
    auto number = func->getAttrOfType<IntegerAttr>(name);
    return number ? number.getInt() : 0;
  };
  facts.arena = get(rt::RtDialect::kArenaAttr);
  facts.live = get(rt::RtDialect::kLiveAttr);
}

//===----------------------------------------------------------------------===//
// Links, and the weight of queries
//===----------------------------------------------------------------------===//

/// The model has the links that the mesh states, else those of the device.
void ProgramReader::readLinks() {
  constexpr int64_t kBytes = 1'000'000'000;
  for (auto [i, attr] : llvm::enumerate(mesh.getAxes())) {
    AxisList axes{Axis{int(i), /*pre=*/1, attr.getSize()}};
    int64_t none = model.getTime(axes, 0, 0);
    double perByte = double(model.getTime(axes, kBytes, 0) - none) * 1e-12;
    ProgramFacts::Link link{attr.getName().str()};
    // A mesh without device and links takes a picosecond for a byte.
    bool isKnown = !mesh.getDevice().empty() || attr.getBandwidth() > 0;
    link.bandwidth = isKnown && perByte > 0 ? double(kBytes) / perByte : 0;
    link.latency = double(model.getTime(axes, 0, 1) - none) * 1e-12;
    facts.links.push_back(std::move(link));
  }
}

/// Goes back from the queries of attention, nearest values first, to a product with a weight of two or
/// more dimensions.
std::string ProgramReader::findWeightBehind(Value query) const {
  std::vector<Value> front{query};
  llvm::SmallDenseSet<Value> seen;
  while (!front.empty()) {
    std::vector<Value> behind;
    for (Value value : front) {
      Value source = rt::getSource(rt::getOuterValue(value));
      Operation *op = source.getDefiningOp();
      if (!op || !seen.insert(source).second)
        continue;
      for (Value operand : op->getOperands()) {
        std::optional<Weight> weight = op->hasTrait<Product>() ? finder.find(operand) : std::nullopt;
        if (weight && cast<RankedTensorType>(weight->stored.getType()).getRank() >= 2)
          return weight->name.str();
        behind.push_back(operand);
      }
    }
    front = std::move(behind);
  }
  return "";
}

std::string ProgramReader::findQueryWeight() const {
  Value query;
  func->walk([&](Operation *op) {
    if (auto scores = dyn_cast<nn::ScoresOpInterface>(op))
      query = scores.getQuery();
    else if (auto paged = dyn_cast<nn::PagedAttentionOp>(op))
      query = paged.getQuery();
    return query ? WalkResult::interrupt() : WalkResult::advance();
  });
  return query ? findWeightBehind(query) : "";
}

ProgramFacts ProgramReader::read(llvm::ArrayRef<TensorLayout> layouts) {
  facts.entry = func.getName().str();
  facts.otherFunctions = int64_t(nn::getSteps(func).size()) - 1;
  readLaunches();
  readBuffers();
  readLinks();
  facts.peak = findPeak(facts);
  facts.layers = addUpLayers(facts, layouts);
  facts.queryWeight = findQueryWeight();
  return std::move(facts);
}

ProgramFacts meshwright::reportProgram(func::FuncOp func, llvm::ArrayRef<TensorLayout> layouts) {
  return ProgramReader(func).read(layouts);
}
