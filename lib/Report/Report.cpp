//===- Report.cpp - what an SPMD program sends and holds ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Analysis/PlacementAnalysis.h"
#include "meshwright/lib/CostModel/CostModel.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/raw_ostream.h"

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
  Traffic traffic;
  std::vector<std::string> axes;
  std::vector<int64_t> dims;
  std::string dtype;
};

} // namespace

/// What `dims` of one launch says: the dimension all its tensors share, or one
/// for each.
static std::vector<int64_t> getDims(ArrayRef<int64_t> dims) {
  if (!dims.empty() && llvm::all_equal(dims))
    return {dims.front()};
  return dims.vec();
}

/// The types of the tensors of one launch, each once.
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

/// What `op` sends; none where it is no launch.
static std::optional<Traffic> getTraffic(Operation *op, const CostModel &model) {
  std::optional<Cost> cost = model.getCost(op);
  if (!cost || cost->launches == 0)
    return std::nullopt;
  return Traffic{cost->bytes, cost->launches};
}

/// The launch that `op` is; none for ops that send nothing by their nature.
static std::optional<Launch> getLaunch(Operation *op, const CostModel &model) {
  std::optional<Traffic> traffic = getTraffic(op, model);
  if (!traffic)
    return std::nullopt;
  Launch launch{op, *traffic, {}, {}, getDtype(op)};
  auto addAxes = [&](ArrayAttr axes) {
    for (auto axis : axes.getAsRange<AxisRefAttr>())
      if (std::string name = getName(axis); !llvm::is_contained(launch.axes, name))
        launch.axes.push_back(name);
  };
  llvm::TypeSwitch<Operation *>(op)
      .Case<AllReduceOp, PermuteOp>([&](auto op) { addAxes(op.getAxes()); })
      .Case<ReduceScatterOp, AllGatherOp>([&](auto op) {
        addAxes(op.getAxes());
        launch.dims = getDims(op.getDims());
      })
      .Case<AllToAllOp>([&](AllToAllOp op) {
        addAxes(op.getAxes());
        launch.dims = getDims(op.getFrom());
        llvm::append_range(launch.dims, getDims(op.getTo()));
      })
      .Case<RedistributeOp>([&](RedistributeOp op) {
        for (ArrayAttr shardings : {op.getFrom(), op.getTo()})
          for (auto sharding : shardings.getAsRange<ShardingAttr>())
            for (DimShardingAttr dim : sharding.getDims())
              for (FactorShardingAttr factor : dim.getFactors())
                for (AxisRefAttr axis : factor.getAxes())
                  if (std::string name = getName(axis); !llvm::is_contained(launch.axes, name))
                    launch.axes.push_back(name);
      });
  return launch;
}

namespace {

/// Sums launches up by kind and place. Attributes and locations are unique
/// objects of the context, so that most launches are found without spelling
/// anything.
class Collectives {
public:
  void add(const Launch &launch) {
    SourceLocation location = getSourceLocation(launch.op->getLoc());
    std::string key;
    llvm::raw_string_ostream os(key);
    StringRef kind = launch.op->getName().stripDialect();
    os << kind << '\0' << launch.dtype << '\0' << location.file << '\0' << location.line << '\0'
       << location.name;
    for (const std::string &axis : launch.axes)
      os << '\0' << axis;
    for (int64_t dim : launch.dims)
      os << '\0' << dim;
    auto [entry, isNew] = index.try_emplace(key, all.size());
    if (isNew)
      all.push_back({kind.str(), launch.axes, launch.dims, launch.dtype, {}, location});
    Traffic &traffic = all[entry->second].traffic;
    traffic.bytes += launch.traffic.bytes;
    traffic.launches += launch.traffic.launches;
  }

  std::vector<Report::Collective> take() { return std::move(all); }

private:
  llvm::StringMap<size_t> index;
  std::vector<Report::Collective> all;
};

} // namespace

//===----------------------------------------------------------------------===//
// Warnings
//===----------------------------------------------------------------------===//

/// The global type of what `op` makes of operand `i`, where it leaves the whole
/// of a tensor on every rank; null otherwise.
static Type getGatheredType(Operation *op, unsigned i, const PlacementAnalysis &placement) {
  if (!isa<AllGatherOp, RedistributeOp>(op))
    return nullptr;
  const Layout *from = placement.lookup(op->getOperand(i));
  const Layout *to = placement.lookup(op->getResult(i));
  if (!from || !to || from->getShardedAxes().empty() || !to->getShardedAxes().empty())
    return nullptr;
  return RankedTensorType::get(to->getGlobalShape(),
                               getElementTypeOrSelf(op->getResult(i).getType()));
}

/// A warning for each place and type.
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
      // A launch of several tensors sends them together.
      warnings[entry->second].bytes += getTraffic(op, model)->bytes *
                                       getTensorBytes(op->getResult(i).getType()) /
                                       std::max<int64_t>(getResultBytes(op), 1);
    }
  });
  return warnings;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// The value whose memory `value` shares: reshapes move nothing.
static Value getBuffer(Value value) {
  while (auto reshape = value.getDefiningOp<nn::ReshapeOp>())
    value = reshape.getInput();
  return value;
}

/// The most bytes of inputs, results and intermediate values alive at one time,
/// each from its definition to its last use. Inputs live throughout.
static int64_t getActivationsPeak(FunctionOpInterface function) {
  int64_t alive = 0;
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (!function.getArgAttr(i, nn::NnDialect::kParameterAttr))
      alive += getTensorBytes(function.getArgument(i).getType());
  if (function.getFunctionBody().empty())
    return alive;

  Block &body = function.getFunctionBody().front();
  // Values of ops nested in regions are held against the op around them.
  llvm::DenseMap<Value, Operation *> lastUse;
  for (Operation &op : body)
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands()) {
        Value buffer = getBuffer(operand);
        if (buffer.getDefiningOp() && buffer.getParentBlock() == &body)
          lastUse[buffer] = &op;
      }
    });
  int64_t peak = alive;
  llvm::SmallDenseSet<Value> freed;
  for (Operation &op : body) {
    if (isa<nn::ReshapeOp>(op) && lastUse.count(getBuffer(op.getResult(0))) == 0 && op.use_empty())
      continue;
    if (!isa<nn::ReshapeOp>(op))
      for (Value result : op.getResults())
        alive += getTensorBytes(result.getType());
    peak = std::max(peak, alive);
    freed.clear();
    for (Value operand : op.getOperands()) {
      Value buffer = getBuffer(operand);
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
  Traffic traffic;
  CostModel model(*mesh);
  function->walk([&](Operation *op) {
    if (std::optional<Traffic> launch = getTraffic(op, model)) {
      traffic.bytes += launch->bytes;
      traffic.launches += launch->launches;
    }
  });
  return traffic;
}

Memory meshwright::countMemory(FunctionOpInterface function) {
  Memory memory;
  for (unsigned i = 0; i < function.getNumArguments(); ++i)
    if (function.getArgAttr(i, nn::NnDialect::kParameterAttr))
      memory.weights += getTensorBytes(function.getArgument(i).getType());
  memory.activationsPeak = getActivationsPeak(function);
  return memory;
}

FailureOr<Report> meshwright::buildReport(FunctionOpInterface function) {
  FailureOr<MeshAttr> mesh = getMesh(function);
  if (failed(mesh))
    return failure();
  Report report;
  report.ranks = mesh->getNumRanks();
  for (MeshAxisAttr axis : mesh->getAxes())
    report.mesh.push_back({axis.getName().str(), axis.getSize()});
  report.device = mesh->getDevice().str();

  Collectives collectives;
  CostModel model(*mesh);
  function->walk([&](Operation *op) {
    std::optional<Launch> launch = getLaunch(op, model);
    if (!launch)
      return;
    collectives.add(*launch);
    report.total.bytes += launch->traffic.bytes;
    report.total.launches += launch->traffic.launches;
  });
  report.collectives = collectives.take();
  if (auto func = dyn_cast<func::FuncOp>(*function)) {
    FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(func);
    if (failed(placement))
      return failure();
    report.warnings = getWarnings(function, *placement, model);
  }

  report.memory = countMemory(function);

  for (Decision &decision : DistDialect::getDecisionLog(function->getContext()).get())
    report.decisions.push_back({decision.pass, decision.outcome, decision.message,
                                getSourceLocation(decision.location), decision.numbers});
  return report;
}
