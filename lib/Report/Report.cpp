//===- Report.cpp - what an SPMD program sends and holds ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "MovedRows.h"
#include "Steps.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Placement/AttentionWork.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <map>
#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Sizes and names
//===----------------------------------------------------------------------===//

static int64_t getResultBytes(Operation *op) {
  int64_t bytes = 0;
  for (Type type : op->getResultTypes())
    bytes += getTensorBytes(type);
  return bytes;
}

static std::string getName(Type type) {
  std::string name;
  llvm::raw_string_ostream(name) << type;
  return name;
}

static std::string getName(AxisRefAttr axis) {
  std::string name = axis.getName().str();
  if (axis.getSubSize() != 0)
    name += ":(" + std::to_string(axis.getPreSize()) + ")" + std::to_string(axis.getSubSize());
  return name;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

namespace {

/// One launch.
struct Launch {
  Operation *op;
  Cost cost;
  std::vector<std::string> axes;
  CollectiveRole role;
  std::vector<int64_t> dims;
  std::string dtype;
};

} // namespace

/// The dimensions of a launch: one that all its tensors share, or one for each.
static std::vector<int64_t> getDims(ArrayRef<int64_t> dims) {
  if (!dims.empty() && llvm::all_equal(dims))
    return {dims.front()};
  return dims.vec();
}

/// The element types of a launch, each once.
static std::string getDtype(Operation *op) {
  std::string name;
  SmallVector<Type> seen;
  for (Type type : op->getOperandTypes()) {
    Type element = getElementTypeOrSelf(type);
    if (llvm::is_contained(seen, element))
      continue;
    name += (seen.empty() ? "" : ",") + getName(element);
    seen.push_back(element);
  }
  return name;
}

/// The cost of a launch; none for other ops.
static std::optional<Cost> getLaunchCost(Operation *op, const CostModel &model) {
  std::optional<Cost> cost = model.getCost(op);
  if (!cost || cost->launches == 0)
    return std::nullopt;
  cost->bytes = int64_t(double(cost->bytes) * getLoadShare(op));
  return cost;
}

namespace {

/// Adds up the bytes that ranks send, rank by rank if a permute leaves some ranks out.
class TrafficSum {
public:
  void add(Operation *op, const Cost &cost, MeshAttr mesh) {
    launches += cost.launches;
    ranks = mesh.getNumRanks();
    auto collective = cast<CollectiveOpInterface>(op);
    SmallVector<int64_t> receivers = getNumReceivers(collective, mesh);
    if (llvm::all_equal(receivers)) {
      even += cost.bytes;
      return;
    }
    int64_t bytes = getResultBytes(op);
    AxisList axes = collective.getGroupAxes(mesh);
    uneven.resize(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank)
      uneven[rank] += receivers[getCoordinate(rank, axes, mesh)] * bytes;
  }

  Traffic get() const {
    int64_t most = uneven.empty() ? 0 : *llvm::max_element(uneven);
    return {even + most, std::accumulate(uneven.begin(), uneven.end(), ranks * even), launches};
  }

private:
  int64_t ranks = 0, launches = 0;
  /// Bytes that every rank sends, and those that rank i sends in addition.
  int64_t even = 0;
  std::vector<int64_t> uneven;
};

} // namespace

/// Describes a launch; none for other ops.
static std::optional<Launch> getLaunch(Operation *op, const CostModel &model) {
  std::optional<Cost> cost = getLaunchCost(op, model);
  if (!cost)
    return std::nullopt;
  auto collective = cast<CollectiveOpInterface>(op);
  Launch launch{op, *cost, {}, collective.getRole(), {}, getDtype(op)};
  auto addAxis = [&](AxisRefAttr axis) {
    if (std::string name = getName(axis); !llvm::is_contained(launch.axes, name))
      launch.axes.push_back(name);
  };
  // Rows of experts have layouts over more axes than those along which they go.
  if (ArrayAttr axes = collective.getAxes()) {
    llvm::for_each(axes.getAsRange<AxisRefAttr>(), addAxis);
  } else if (movesRows(op)) {
    for (const Axis &axis : getCollectiveAxes(op, model.getMesh()))
      addAxis(getAxisRef(axis, model.getMesh()));
  }
  std::vector<ShardingAttr> from, to;
  SmallVector<int64_t> lost, gained;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    if (auto shardings = collective.getShardings(i)) {
      from.push_back(shardings->first);
      to.push_back(shardings->second);
    }
    if (std::optional<int64_t> dim = collective.getLostDim(i))
      lost.push_back(*dim);
    if (std::optional<int64_t> dim = collective.getGainedDim(i))
      gained.push_back(*dim);
  }
  for (ArrayRef<ShardingAttr> side : {ArrayRef(from), ArrayRef(to)})
    for (ShardingAttr sharding : movesRows(op) ? ArrayRef<ShardingAttr>() : side)
      for (DimShardingAttr dim : sharding.getDims())
        for (FactorShardingAttr factor : dim.getFactors())
          llvm::for_each(factor.getAxes(), addAxis);
  launch.dims = getDims(lost);
  llvm::append_range(launch.dims, getDims(gained));
  return launch;
}

namespace {

/// Adds up launches of equal kind, axes, role, dimensions, types and source location.
class Collectives {
public:
  explicit Collectives(MeshAttr mesh) : mesh(mesh) {}
  void add(const Launch &launch) {
    SourceLocation location = getSourceLocation(launch.op->getLoc());
    std::string key;
    llvm::raw_string_ostream os(key);
    std::string kind =
        movesRows(launch.op) ? "all_to_all_v" : launch.op->getName().stripDialect().str();
    os << kind << '\0' << launch.dtype << '\0' << location.file << '\0' << location.line << '\0'
       << location.name << '\0' << stringifyCollectiveRole(launch.role);
    for (const std::string &axis : launch.axes)
      os << '\0' << axis;
    for (int64_t dim : launch.dims)
      os << '\0' << dim;
    auto [entry, isNew] = index.try_emplace(key, all.size());
    if (isNew) {
      all.push_back(
          {kind, launch.axes, launch.role, launch.dims, launch.dtype, {}, location});
      sums.emplace_back();
    }
    sums[entry->second].add(launch.op, launch.cost, mesh);
    if (std::optional<int64_t> &most = all[entry->second].bytesAtCapacity; movesRows(launch.op))
      most = most.value_or(0) + getBytesAtCapacity(launch.op);
  }

  std::vector<Report::Collective> take() {
    for (auto [entry, sum] : llvm::zip_equal(all, sums))
      entry.traffic = sum.get();
    return std::move(all);
  }

private:
  MeshAttr mesh;
  llvm::StringMap<size_t> index;
  std::vector<Report::Collective> all;
  std::vector<TrafficSum> sums;
};

} // namespace

//===----------------------------------------------------------------------===//
// Warnings
//===----------------------------------------------------------------------===//

/// The global type of result `i` if the collective leaves the whole of a sharded tensor on
/// every rank; null otherwise.
static Type getGatheredType(Operation *op, unsigned i, const PlacementAnalysis &placement) {
  if (!communicates(op))
    return nullptr;
  const Layout *from = placement.lookup(op->getOperand(i));
  const Layout *to = placement.lookup(op->getResult(i));
  if (!from || !to || from->getShardedAxes().empty() || !to->getShardedAxes().empty())
    return nullptr;
  return RankedTensorType::get(to->getGlobalShape(),
                               getElementTypeOrSelf(op->getResult(i).getType()));
}

/// One warning for each source location and type.
static std::vector<Report::Warning> getWarnings(FunctionOpInterface function,
                                                const PlacementAnalysis &placement,
                                                const CostModel &model) {
  std::vector<Report::Warning> warnings;
  llvm::StringMap<size_t> index;
  function->walk([&](Operation *op) {
    for (unsigned i = 0; i < op->getNumResults(); ++i) {
      Type type = getGatheredType(op, i, placement);
      if (!type)
        continue;
      std::string shape;
      llvm::raw_string_ostream os(shape);
      llvm::interleave(cast<RankedTensorType>(type).getShape(), os, "x");
      Report::Warning warning{"gathers the whole of a " + shape + " tensor of " +
                                  getName(getElementTypeOrSelf(type)) + " on every rank",
                              getSourceLocation(op->getLoc()), 0};
      std::string key = warning.message + '\0' + warning.location.file + '\0' +
                        std::to_string(warning.location.line) + '\0' + warning.location.name;
      auto [entry, isNew] = index.try_emplace(key, warnings.size());
      if (isNew)
        warnings.push_back(std::move(warning));
      // A launch of several tensors has one cost, shared out by their bytes.
      double share = double(getTensorBytes(op->getResult(i).getType())) /
                     std::max<int64_t>(getResultBytes(op), 1);
      warnings[entry->second].bytes += std::llround(getLaunchCost(op, model)->bytes * share);
    }
  });
  return warnings;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// The local type of a state.
static Type getLocalType(nn::StateOp state, MeshAttr mesh) {
  RankedTensorType type = state.getMemoryType();
  auto sharding = state->getAttrOfType<ShardingAttr>(DistDialect::kShardingAttr);
  if (!mesh || !sharding)
    return type;
  auto layout = getLayout(sharding, mesh, type.getShape(), [&] { return state.emitOpError(); });
  return succeeded(layout) ? Type(type.clone(layout->getLocalShape())) : type;
}

/// The bytes of the copies that a commit makes: of states that become the value before the call
/// of another state.
static int64_t countStaged(FunctionOpInterface function) {
  int64_t bytes = 0;
  if (function.getFunctionBody().empty())
    return bytes;
  Operation *terminator = function.getFunctionBody().front().getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    Attribute name = function.getResultAttr(i, nn::NnDialect::kStateAttr);
    auto argument = dyn_cast<BlockArgument>(skipViews(value));
    if (!name || !argument)
      continue;
    Attribute from = function.getArgAttr(argument.getArgNumber(), nn::NnDialect::kStateAttr);
    if (from && from != name)
      bytes += getTensorBytes(value.getType());
  }
  return bytes;
}

Resident meshwright::countResident(FunctionOpInterface function) {
  auto module = function->getParentOfType<ModuleOp>();
  Resident bytes;
  bytes.state = countStaged(function);
  if (!module)
    return bytes;
  // A parameter, or a part of a stored tensor.
  llvm::DenseSet<std::pair<Attribute, Attribute>> parameters;
  llvm::DenseSet<Attribute> states;
  WeightFinder weights(function);
  auto visit = [&](FunctionOpInterface from, bool isOwn) {
    for (unsigned i = 0; i < from.getNumArguments(); ++i) {
      if (Attribute name = from.getArgAttr(i, nn::NnDialect::kStateAttr)) {
        if (isOwn)
          states.insert(name);
      } else if (std::optional<Weight> weight = weights.find(from.getArgument(i))) {
        if (parameters.insert({weight->name, weight->offsets}).second && !isOwn)
          bytes.weights += getTensorBytes(weight->stored.getType());
      }
    }
  };
  visit(function, /*isOwn=*/true);
  for (auto other : module.getOps<FunctionOpInterface>())
    if (other != function && !other.isExternal() &&
        getSpmdMeshSymbol(other) == getSpmdMeshSymbol(function))
      visit(other, /*isOwn=*/false);
  for (auto state : module.getOps<nn::StateOp>())
    if (!states.contains(state.getSymNameAttr()))
      bytes.state += getTensorBytes(getLocalType(state, getSpmdMesh(function)));
  return bytes;
}

/// The most bytes of inputs, results and intermediate values alive at one time. A value is
/// alive from its definition to its last use, an input always. Calls `visit` with each op
/// and the bytes alive at it.
static int64_t getActivationsPeak(FunctionOpInterface function,
                                  llvm::function_ref<void(Operation *, int64_t)> visit) {
  int64_t alive = 0;
  WeightFinder weights(function);
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (!function.getArgAttr(i, nn::NnDialect::kStateAttr) && !weights.find(function.getArgument(i)))
      alive += getTensorBytes(function.getArgument(i).getType());
  if (function.getFunctionBody().empty())
    return alive;

  Block &body = function.getFunctionBody().front();
  // A use in a region counts as a use by the op of the block.
  ProgramMap<Value, Operation *> lastUse;
  for (Operation &op : body)
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands()) {
        Value buffer = skipViews(operand);
        if (buffer.getDefiningOp() && buffer.getParentBlock() == &body)
          lastUse[buffer] = &op;
      }
    });
  int64_t peak = alive;
  llvm::SmallDenseSet<Value> freed;
  for (Operation &op : body) {
    if (op.hasTrait<View>() && lastUse.count(skipViews(op.getResult(0))) == 0 && op.use_empty())
      continue;
    if (!op.hasTrait<View>())
      for (Value result : op.getResults())
        alive += getTensorBytes(result.getType());
    peak = std::max(peak, alive);
    visit(&op, alive);
    freed.clear();
    for (Value operand : op.getOperands()) {
      Value buffer = skipViews(operand);
      auto use = lastUse.find(buffer);
      if (use != lastUse.end() && use->second == &op && freed.insert(buffer).second)
        alive -= getTensorBytes(buffer.getType());
    }
    for (Value result : op.getResults())
      if (result.use_empty())
        alive -= getTensorBytes(result.getType());
  }
  return peak;
}

//===----------------------------------------------------------------------===//
// The report
//===----------------------------------------------------------------------===//

static FailureOr<MeshAttr> getMesh(FunctionOpInterface function) {
  if (!getSpmdMeshSymbol(function))
    return emitError(function.getLoc(), "report on '")
           << function.getName() << "': expected an SPMD function, one with 'dist.spmd'";
  MeshAttr mesh = getSpmdMesh(function);
  if (!mesh)
    return emitError(function.getLoc(), "report on '")
           << function.getName() << "': there is no mesh " << getSpmdMeshSymbol(function);
  return mesh;
}

FailureOr<Traffic> meshwright::countTraffic(FunctionOpInterface function) {
  FailureOr<MeshAttr> mesh = getMesh(function);
  if (failed(mesh))
    return failure();
  TrafficSum traffic;
  CostModel model(*mesh);
  function->walk([&](Operation *op) {
    if (std::optional<Cost> cost = getLaunchCost(op, model))
      traffic.add(op, *cost, *mesh);
  });
  return traffic.get();
}

/// The stages of the body's ops, in the order in which they run.
static std::vector<Memory::Module> getModules(Block &body) {
  std::vector<Memory::Module> modules;
  llvm::StringSet<> seen;
  for (Operation &op : body)
    if (StringRef stage = getStage(&op); !stage.empty() && seen.insert(stage).second)
      modules.push_back({stage.str(), 0, 0});
  return modules;
}

/// Counts states that have a role under it.
static void countRoles(FunctionOpInterface function, Memory &memory) {
  auto module = function->getParentOfType<ModuleOp>();
  if (!module)
    return;
  for (auto state : module.getOps<nn::StateOp>()) {
    StringRef role = state.getRole().value_or("");
    if (role.empty())
      continue;
    int64_t bytes = getTensorBytes(getLocalType(state, getSpmdMesh(function)));
    memory.state -= bytes;
    (role == "parameter"   ? memory.weights
     : role == "optimizer" ? memory.optimizer
     : role == "master"    ? memory.masters
     : role == "cache"     ? memory.cache
                           : memory.gradients) += bytes;
  }
}

Memory meshwright::countMemory(FunctionOpInterface function) {
  Memory memory;
  if (!function.getFunctionBody().empty())
    memory.modules = getModules(function.getFunctionBody().front());
  auto find = [&](StringRef name) -> Memory::Module * {
    auto it = llvm::find_if(memory.modules, [&](auto &module) { return module.name == name; });
    return it == memory.modules.end() ? nullptr : &*it;
  };
  Resident others = countResident(function);
  memory.weights = others.weights;
  memory.state = others.state;
  WeightFinder weights(function);
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    int64_t bytes = getTensorBytes(function.getArgument(i).getType());
    if (function.getArgAttr(i, nn::NnDialect::kStateAttr)) {
      memory.state += bytes;
    } else if (std::optional<Weight> weight = weights.find(function.getArgument(i))) {
      memory.weights += bytes;
      // Composed programs name parameters "stage.name".
      if (Memory::Module *module = find(weight->name.getValue().split('.').first))
        module->weights += bytes;
    }
  }
  countRoles(function, memory);
  Memory::Module *current = nullptr;
  memory.activationsPeak = getActivationsPeak(function, [&](Operation *op, int64_t alive) {
    // Moves between stages belong to the earlier stage.
    if (Memory::Module *module = find(getStage(op)))
      current = module;
    if (current)
      current->activationsPeak = std::max(current->activationsPeak, alive);
  });
  return memory;
}

/// Adds the work of attention on each rank, by source location and in all. Counts rank by
/// rank, so meshes with too many ranks are left out.
static void addAttention(FunctionOpInterface function, const PlacementAnalysis &placement,
                         Report &report) {
  constexpr int64_t kMostRanks = 1 << 24;
  if (report.ranks > kMostRanks)
    return;
  std::vector<int64_t> total(report.ranks);
  // Steps of a ring, and layers of a loop, have the same source location.
  llvm::StringMap<size_t> index;
  std::vector<std::vector<int64_t>> byPlace;
  // Layers share their layouts, which the analysis holds once each.
  std::map<std::tuple<const Layout *, const Layout *, bool, int64_t, int64_t>, AttentionWork> known;
  function->walk([&](nn::AttentionOp op) {
    std::tuple like(placement.lookup(op.getQuery()), placement.lookup(op.getKey()), op.getCausal(),
                    op.getWindowLeft().value_or(-1), op.getWindowRight().value_or(-1));
    auto found = known.find(like);
    if (found == known.end())
      found = known.emplace(like, getAttentionWork(op, placement)).first;
    const AttentionWork &work = found->second;
    SourceLocation location = getSourceLocation(op.getLoc());
    std::string order = stringify(work.order).str();
    std::string key =
        order + '\0' + location.file + '\0' + std::to_string(location.line) + '\0' + location.name;
    auto [entry, isNew] = index.try_emplace(key, byPlace.size());
    if (isNew) {
      byPlace.emplace_back(report.ranks);
      report.attention.push_back({order, 0, 0, location});
    }
    for (int64_t rank = 0; rank < report.ranks; ++rank) {
      byPlace[entry->second][rank] += work.perRank[rank];
      total[rank] += work.perRank[rank];
    }
  });
  for (auto [entry, perRank] : llvm::zip_equal(report.attention, byPlace)) {
    AttentionWork work{perRank};
    entry.largest = work.getLargest();
    entry.mean = work.getMean();
  }
  report.attentionBalance = AttentionWork{total}.getLargestOverMean();
}

/// Reports one run of a function, apart from the names of what it runs on and from decisions.
static FailureOr<Report> reportRun(FunctionOpInterface function, MeshAttr mesh) {
  Report report;
  report.ranks = mesh.getNumRanks();
  Collectives collectives(mesh);
  TrafficSum total;
  CostModel model(mesh);
  function->walk([&](Operation *op) {
    std::optional<Launch> launch = getLaunch(op, model);
    if (!launch)
      return;
    collectives.add(*launch);
    total.add(op, launch->cost, mesh);
  });
  report.total = total.get();
  report.collectives = collectives.take();
  if (auto func = dyn_cast<func::FuncOp>(*function)) {
    FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(func);
    if (failed(placement))
      return failure();
    report.warnings = getWarnings(function, *placement, model);
    addAttention(function, *placement, report);
  }
  report.memory = countMemory(function);
  return report;
}

FailureOr<Report> meshwright::buildReport(FunctionOpInterface function) {
  FailureOr<MeshAttr> mesh = getMesh(function);
  if (failed(mesh))
    return failure();
  Report report;
  report.ranks = mesh->getNumRanks();
  for (MeshAxisAttr axis : mesh->getAxes())
    report.mesh.push_back({axis.getName().str(), axis.getSize()});
  report.device = getDeviceName(mesh->getDevice());
  if (auto target = function->getAttrOfType<StringAttr>(rt::RtDialect::kTargetAttr))
    report.target = target.str();
  for (const nn::CallStep &step : nn::getSteps(function)) {
    FailureOr<Report> run = reportRun(step.function, *mesh);
    if (failed(run))
      return failure();
    addStep(std::move(*run), step.getRuns(), report);
  }
  if (auto module = function->getParentOfType<ModuleOp>())
    report.isTrained = llvm::any_of(module.getOps<nn::StateOp>(), [](nn::StateOp state) {
      StringRef role = state.getRole().value_or("");
      return !role.empty() && role != "cache";
    });
  report.layouts = listLayouts(function);
  report.serving = buildServingReport(function, report.memory.cache);
  Operation *meshOp = SymbolTable::lookupNearestSymbolFrom(function, getSpmdMeshSymbol(function));
  for (MeshAxisAttr axis : getIdleAxes(function))
    report.warnings.push_back({describeIdleAxis(axis), getSourceLocation(meshOp->getLoc()), 0});
  addDecisions(report, function->getContext(), [](const Decision &) { return true; });
  addAlternatives(report);
  return report;
}

const Report::Decision *meshwright::getDeviceDecision(const Report &report) {
  const Report::Decision *found = llvm::find_if(
      llvm::ArrayRef(report.decisions), [](const Report::Decision &decision) { return decision.pass == "declare-mesh"; });
  return found == report.decisions.data() + report.decisions.size() ? nullptr : found;
}

void meshwright::addDecisions(Report &report, MLIRContext *context,
                              llvm::function_ref<bool(const Decision &)> wanted) {
  for (Decision &decision : DistDialect::getDecisionLog(context).get())
    if (wanted(decision))
      report.decisions.push_back({decision.pass, decision.outcome, decision.message,
                                  getSourceLocation(decision.location), decision.numbers,
                                  decision.alternatives});
}
