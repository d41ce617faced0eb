//===- PlacementAnalysis.cpp - how an SPMD program's values lie -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/PlacementAnalysis.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/LayoutTransferDetail.h"
#include "meshwright/lib/Placement/ReadingSearch.h"
#include "meshwright/lib/Support/OpSignature.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Combinations of readings of one op's operands that are looked at.
constexpr size_t kMaxCombinations = 256;

bool sameFactor(const LayoutFactor &a, const LayoutFactor &b) {
  bool contentCounts = a.isPadded() || a.uniform;
  return a.sameShardingAs(b) && a.uniform == b.uniform &&
         (!contentCounts || a.padding == b.padding);
}

bool sameLayout(const Layout &a, const Layout &b) {
  return a.corner == b.corner && a.unreduced == b.unreduced && a.reduction == b.reduction &&
         a.keys == b.keys && a.missing == b.missing &&
         llvm::equal(a.dims, b.dims, [](const DimLayout &x, const DimLayout &y) {
           return llvm::equal(x.factors, y.factors, sameFactor);
         });
}

} // namespace

namespace meshwright {

/// The walk that fills an analysis.
class PlacementDerivation {
public:
  PlacementDerivation(func::FuncOp func, PlacementAnalysis &analysis)
      : func(func), analysis(analysis), mesh(analysis.mesh) {}
  LogicalResult run();

private:
  /// Layouts that an op gives its results, and those of the other readings of its one
  /// result.
  struct Outcome {
    SmallVector<Reading, 1> results, alternatives;
  };

  Reading intern(const Layout &layout);
  FailureOr<Outcome> transferOnce(Operation *op, ArrayRef<Reading> operands,
                                  function_ref<InFlightDiagnostic()> emitError,
                                  function_ref<void(InFlightDiagnostic &, unsigned)> note);
  /// Null for an op without a rule.
  const FactorRule *getRule(Operation *op);
  FailureOr<Layout> getBoundary(DictionaryAttr attributes, Type type, StringRef what, unsigned i);
  LogicalResult addArguments();
  LogicalResult visitBlock(Block &block);
  LogicalResult visit(Operation *op);
  LogicalResult visitReadings(Operation *op);
  Readings getPlausible(Operation *op, unsigned operand);
  SmallVector<SmallVector<Reading, 4>> combineReadings(Operation *op);
  LogicalResult visitIf(scf::IfOp op);
  LogicalResult visitLaunch(Operation *op, Block &block);
  /// Gives values the layouts of others that they are under another name.
  LogicalResult passOn(Operation *op, ValueRange from, ValueRange to);
  LogicalResult visitReturn(func::ReturnOp op);
  /// Follows scalars that differ between ranks.
  LogicalResult visitRankDependent(Operation *op, bool &handled);
  LogicalResult checkCollective(Operation *op);
  LogicalResult resolve();

  void set(Value value, Reading reading) { analysis.layouts[value] = reading; }
  Reading get(Value value) const { return analysis.layouts.lookup(value); }
  Readings getReadings(Value value) const {
    auto it = ambiguous.find(value);
    return it == ambiguous.end() ? Readings{get(value)} : it->second;
  }
  void explain(InFlightDiagnostic &diagnostic, Operation *op, unsigned operand) const;

  func::FuncOp func;
  PlacementAnalysis &analysis;
  MeshAttr mesh;
  DenseMap<size_t, SmallVector<Reading, 1>> interned;
  /// Transfers so far, for each signature by the operands' layouts, and factor rules.
  DenseMap<Operation *, SmallVector<std::pair<SmallVector<Reading, 4>, Outcome>, 1>, OpSignature>
      outcomes;
  DenseMap<Operation *, std::optional<FactorRule>, OpSignature> rules;
  /// Values with several readings, and the ops they pass through, in order.
  DenseMap<Value, Readings> ambiguous;
  SmallVector<ReadingLink> links;
  /// Scalars that differ between the ranks along these axes, and where from.
  struct Dependence {
    AxisList axes;
    Value index;
  };
  DenseMap<Value, Dependence> dependent;
  /// The conditions around the op that differ between ranks.
  SmallVector<Value, 2> conditions;
};

} // namespace meshwright

Reading PlacementDerivation::intern(const Layout &layout) {
  SmallVector<Reading, 1> &bucket = interned[static_cast<size_t>(hash_value(layout))];
  for (Reading reading : bucket)
    if (sameLayout(*reading, layout))
      return reading;
  analysis.storage.push_back(layout);
  bucket.push_back(&analysis.storage.back());
  return bucket.back();
}

const FactorRule *PlacementDerivation::getRule(Operation *op) {
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface)
    return nullptr;
  std::optional<FactorRule> &rule = rules[op];
  if (!rule)
    rule = interface.getFactorRule();
  return &*rule;
}

/// Whether a transfer through the op depends on its signature and the layouts of its
/// operands alone. It depends on more where it looks at the ops that define operands:
/// - constants, of which it reads the value,
/// - positions, indices and offsets, which are integers.
static bool dependsOnLayoutsOnly(Operation *op) {
  return op->getNumRegions() == 0 && llvm::all_of(op->getOperands(), [](Value operand) {
           auto type = dyn_cast<RankedTensorType>(operand.getType());
           return type && isa<FloatType>(type.getElementType()) &&
                  !rt::getSource(operand).getDefiningOp<nn::ConstantOp>();
         });
}

/// Transfers layouts through the op, or recalls what an equal op gave for the same ones.
/// Errors are not remembered: each names its op.
FailureOr<PlacementDerivation::Outcome> PlacementDerivation::transferOnce(
    Operation *op, ArrayRef<Reading> operands, function_ref<InFlightDiagnostic()> emitError,
    function_ref<void(InFlightDiagnostic &, unsigned)> note) {
  bool isShared = dependsOnLayoutsOnly(op);
  if (isShared)
    if (auto it = outcomes.find(op); it != outcomes.end())
      for (const auto &[known, outcome] : it->second)
        if (known == operands)
          return outcome;
  SmallVector<Layout, 1> alternatives;
  FailureOr<ResultLayouts> results =
      transfer({op, operands, mesh, emitError, note}, &alternatives);
  if (failed(results))
    return failure();
  Outcome outcome;
  for (const Layout &layout : *results) {
    // Parts of attention name the values that they are parts of.
    isShared &= !layout.keys.isPart();
    outcome.results.push_back(intern(layout));
  }
  for (const Layout &layout : alternatives)
    outcome.alternatives.push_back(intern(layout));
  if (isShared)
    outcomes[op].push_back({SmallVector<Reading, 4>(operands), outcome});
  return outcome;
}

//===----------------------------------------------------------------------===//
// The signature
//===----------------------------------------------------------------------===//

FailureOr<Layout> PlacementDerivation::getBoundary(DictionaryAttr attributes, Type type,
                                                   StringRef what, unsigned i) {
  auto emit = [&] { return func.emitOpError() << what << " " << i << ": "; };
  auto local = dyn_cast<RankedTensorType>(type);
  if (!local || !local.hasStaticShape())
    return LogicalResult(emit() << "expected a tensor of static shape, got " << type);
  auto sharding = attributes ? attributes.getAs<ShardingAttr>(DistDialect::kShardingAttr) : nullptr;
  auto global = attributes ? attributes.getAs<TypeAttr>(DistDialect::kGlobalAttr) : nullptr;
  auto globalType = global ? dyn_cast<RankedTensorType>(global.getValue()) : RankedTensorType();
  if (!sharding || !globalType || !globalType.hasStaticShape())
    return LogicalResult(emit() << "expected 'dist.sharding' and 'dist.global', which say how it "
                                   "lies");
  return getLayout(sharding, mesh, globalType.getShape(), local.getShape(), Padding::Zero, emit);
}

LogicalResult PlacementDerivation::addArguments() {
  for (BlockArgument argument : func.getArguments()) {
    unsigned i = argument.getArgNumber();
    FailureOr<Layout> layout =
        getBoundary(func.getArgAttrDict(i), argument.getType(), "argument", i);
    if (failed(layout))
      return failure();
    set(argument, intern(*layout));
  }
  return success();
}

LogicalResult PlacementDerivation::visitReturn(func::ReturnOp op) {
  for (auto [i, value] : llvm::enumerate(op.getOperands())) {
    FailureOr<Layout> promised =
        getBoundary(func.getResultAttrDict(i), value.getType(), "result", i);
    if (failed(promised))
      return failure();
    if (dependent.contains(value))
      return LogicalResult(op.emitOpError() << "result " << i << " differs between ranks");
    Readings fitting;
    for (Reading reading : getReadings(value))
      if (isLayout(*reading, *promised, mesh))
        fitting.push_back(reading);
    if (fitting.empty()) {
      InFlightDiagnostic diagnostic =
          op.emitOpError() << "result " << i << " lies as " << toString(*get(value), mesh)
                           << ", but the signature promises " << toString(*promised, mesh);
      auto sizes = [](ArrayRef<int64_t> shape) {
        std::string text;
        llvm::raw_string_ostream os(text);
        llvm::interleave(shape, os, "x");
        return text;
      };
      if (get(value)->getGlobalShape() != promised->getGlobalShape())
        diagnostic << "; of global shape " << sizes(get(value)->getGlobalShape()) << ", not "
                   << sizes(promised->getGlobalShape());
      explain(diagnostic, op, i);
      return diagnostic;
    }
    if (auto it = ambiguous.find(value); it != ambiguous.end())
      it->second = fitting;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// Where an operand's unreduced axes come from, or else the operand itself.
void PlacementDerivation::explain(InFlightDiagnostic &diagnostic, Operation *op,
                                  unsigned operand) const {
  Value value = op->getOperand(operand);
  Reading layout = get(value);
  if (!layout)
    return;
  if (!layout->isUnreduced()) {
    diagnostic.attachNote(value.getLoc())
        << "operand " << operand << " is from here, and lies as " << toString(*layout, mesh);
    return;
  }
  while (Operation *from = rt::getSource(value).getDefiningOp()) {
    Value next;
    for (Value candidate : from->getOperands())
      if (Reading own = get(candidate); own && own->unreduced == layout->unreduced)
        next = candidate;
    if (!next)
      break;
    value = next;
  }
  diagnostic.attachNote(rt::getSource(value).getLoc())
      << "operand " << operand << " is unreduced over " << toString(layout->unreduced, mesh)
      << " from here on";
}

LogicalResult PlacementDerivation::checkCollective(Operation *op) {
  // These act on the rank's own data.
  if (!isa<DistDialect>(op->getDialect()) ||
      isa<AxisIndexOp, MaskPaddingOp, PadOp, PositionsOp, ReorderOp, dist::SliceOp, PartialOp>(
          op) ||
      conditions.empty())
    return success();
  const Dependence &dependence = dependent.find(conditions.back())->second;
  InFlightDiagnostic diagnostic =
      op->emitOpError() << "is a collective under control flow that depends on the rank's "
                           "coordinate along "
                        << toString(dependence.axes, mesh) << ": not all ranks would issue it";
  diagnostic.attachNote(dependence.index.getLoc()) << "the coordinate is from here";
  return diagnostic;
}

LogicalResult PlacementDerivation::visitRankDependent(Operation *op, bool &handled) {
  handled = false;
  Dependence dependence;
  for (Value operand : op->getOperands())
    if (auto it = dependent.find(operand); it != dependent.end()) {
      dependence.axes.append(it->second.axes.begin(), it->second.axes.end());
      dependence.index = it->second.index;
    }
  if (auto index = dyn_cast<AxisIndexOp>(op)) {
    dependence.axes = getAxes(index.getAxes(), mesh);
    dependence.index = index.getResult();
  }
  if (!dependence.index)
    return success();
  llvm::sort(dependence.axes);
  dependence.axes.erase(std::unique(dependence.axes.begin(), dependence.axes.end()),
                        dependence.axes.end());
  // An embedding's offset is checked against its table, where it is a coordinate.
  if (auto embedding = dyn_cast<nn::EmbeddingOp>(op);
      embedding && !dependent.contains(embedding.getIds()) &&
      !dependent.contains(embedding.getTable()) &&
      rt::getSource(embedding.getOffset()).getDefiningOp<AxisIndexOp>())
    return success();
  auto scalar = [](Value value) {
    auto tensor = dyn_cast<ShapedType>(value.getType());
    return !tensor || (tensor.hasRank() && tensor.getRank() == 0);
  };
  if (isa<scf::IfOp>(op))
    return success();
  if (op->getNumRegions() != 0 || !llvm::all_of(op->getOperands(), scalar) ||
      !llvm::all_of(op->getResults(), scalar) ||
      (isa<DistDialect>(op->getDialect()) && !isa<AxisIndexOp>(op))) {
    InFlightDiagnostic diagnostic = op->emitOpError()
                                    << "mixes a value that depends on the rank's coordinate along "
                                    << toString(dependence.axes, mesh) << " into data";
    diagnostic.attachNote(dependence.index.getLoc()) << "the coordinate is from here";
    return diagnostic;
  }
  for (Value result : op->getResults())
    dependent[result] = dependence;
  return success();
}

LogicalResult PlacementDerivation::visitIf(scf::IfOp op) {
  auto dependence = dependent.find(op.getCondition());
  bool differs = dependence != dependent.end();
  AxisList axes = differs ? dependence->second.axes : AxisList();
  if (differs)
    conditions.push_back(op.getCondition());
  for (Region *region : {&op.getThenRegion(), &op.getElseRegion()})
    for (Block &block : *region)
      if (failed(visitBlock(block)))
        return failure();
  if (differs)
    conditions.pop_back();
  for (unsigned i = 0; i < op.getNumResults(); ++i) {
    Reading first = get(op.thenYield()->getOperand(i)), second = get(op.elseYield()->getOperand(i));
    Layout joined = *first;
    if (!isLayout(*first, *second, mesh)) {
      joined = *second;
      if (!isLayout(*second, *first, mesh))
        return LogicalResult(op.emitOpError()
                             << "result " << i << " lies as " << toString(*first, mesh)
                             << " from one branch and as " << toString(*second, mesh)
                             << " from the other");
    }
    // On ranks that take different branches it must be a different part.
    for (const Axis &axis : axes) {
      AxisList digits, sharded = joined.getShardedAxes();
      layout_transfer::appendPrimes(axis, digits);
      if (!layout_transfer::removeAxes(sharded, digits))
        return LogicalResult(op.emitOpError() << "result " << i << " would be replicated over "
                                              << toString(axis, mesh)
                                              << ", but the condition differs between its ranks");
    }
    for (DimLayout &dim : joined.dims)
      for (LayoutFactor &factor : dim.factors) {
        factor.padding = Padding::Arbitrary;
        if (factor.uniform)
          factor.uniform = false;
      }
    joined.corner = Padding::Arbitrary;
    set(op.getResult(i), intern(joined));
    for (auto [yield, reading] :
         {std::pair(op.thenYield(), first), std::pair(op.elseYield(), second)}) {
      Value from = yield->getOperand(i);
      // No other user may read it otherwise.
      if (auto it = ambiguous.find(from); it != ambiguous.end())
        it->second = {reading};
      if (auto it = dependent.find(from); it != dependent.end()) {
        Dependence own = it->second;
        own.axes.append(dependent[op.getResult(i)].axes);
        dependent[op.getResult(i)] = std::move(own);
      }
    }
  }
  return success();
}

LogicalResult PlacementDerivation::passOn(Operation *op, ValueRange from, ValueRange to) {
  for (auto [source, target] : llvm::zip_equal(from, to)) {
    if (!get(source))
      return op->emitOpError() << "uses a value from outside the function";
    set(target, get(source));
    // Copies: assignment may move what a map holds.
    if (auto it = ambiguous.find(source); it != ambiguous.end()) {
      Readings readings = it->second;
      ReadingLink link{op, {source}, {target}, {}};
      for (Reading reading : readings)
        link.combinations.push_back({{reading}, {reading}});
      links.push_back(std::move(link));
      ambiguous[target] = std::move(readings);
      analysis.ambiguous.insert(target);
    }
    if (auto it = dependent.find(source); it != dependent.end()) {
      Dependence dependence = it->second;
      dependent[target] = std::move(dependence);
    }
  }
  return success();
}

/// What a launch does is what its region does.
LogicalResult PlacementDerivation::visitLaunch(Operation *op, Block &block) {
  if (failed(passOn(op, op->getOperands(), block.getArguments())))
    return failure();
  return visitBlock(block);
}

LogicalResult PlacementDerivation::visit(Operation *op) {
  if (auto branch = dyn_cast<scf::IfOp>(op))
    return visitIf(branch);
  if (auto kernel = dyn_cast<rt::KernelOp>(op)) {
    if (failed(visitLaunch(op, kernel.getBlock())))
      return failure();
    return passOn(op, kernel.getYielded(), kernel.getResults());
  }
  if (auto start = dyn_cast<rt::StartOp>(op))
    return visitLaunch(op, start.getBlock());
  if (auto wait = dyn_cast<rt::WaitOp>(op))
    return passOn(op, wait.getStart().getYielded(), wait.getResults());
  if (auto prepare = dyn_cast<rt::PrepareOp>(op))
    return passOn(op, prepare.getParameter(), prepare.getResult());
  bool handled;
  if ((isa<AxisIndexOp>(op) || !dependent.empty()) && failed(visitRankDependent(op, handled)))
    return failure();
  if (failed(checkCollective(op)))
    return failure();
  bool several = isa<nn::ReshapeOp>(op);
  SmallVector<Reading, 4> operands;
  for (Value operand : op->getOperands()) {
    several |= !ambiguous.empty() && ambiguous.contains(operand);
    operands.push_back(get(operand));
    if (!operands.back())
      return op->emitOpError() << "uses a value from outside the function";
  }
  if (several)
    return visitReadings(op);
  FailureOr<Outcome> outcome = transferOnce(
      op, operands, [&] { return op->emitOpError(); },
      [&](InFlightDiagnostic &diagnostic, unsigned i) { explain(diagnostic, op, i); });
  if (failed(outcome))
    return failure();
  if (!outcome->alternatives.empty())
    return visitReadings(op);
  for (auto [result, reading] : llvm::zip_equal(op->getResults(), outcome->results))
    set(result, reading);
  return success();
}

/// The readings of an operand without those that shard what the op reads whole, or
/// lie in blocks that it cannot take.
Readings PlacementDerivation::getPlausible(Operation *op, unsigned operand) {
  Readings readings = getReadings(op->getOperand(operand));
  if (readings.size() < 2 || isa<nn::ReshapeOp, nn::ReduceOp>(op))
    return readings;
  const FactorRule *known = getRule(op);
  if (!known)
    return readings;
  const FactorRule &rule = *known;
  // Keys may be sharded around a ring.
  auto attention = dyn_cast<nn::AttentionOp>(op);
  int keys = attention ? rule.operands[1][2].front() : -1;
  bool takesBlocks = layout_transfer::keepsBlocks(op) ||
                     (attention && op->getOperand(operand) == attention.getBias());
  Readings plausible;
  for (Reading reading : readings) {
    bool reads = !takesBlocks && reading->isBlockwise();
    for (auto [factors, dim] : llvm::zip_equal(rule.operands[operand], reading->dims))
      reads |= factors.size() == 1 && factors[0] != keys &&
               rule.factors[factors[0]].kind == FactorKind::Special && dim.isSharded();
    if (!reads)
      plausible.push_back(reading);
  }
  return plausible.empty() ? Readings{readings.front()} : plausible;
}

/// Readings of all operands. Those come first that agree on how a factor of the
/// op's rule is sharded: there may be too many to look at all.
SmallVector<SmallVector<Reading, 4>> PlacementDerivation::combineReadings(Operation *op) {
  const FactorRule *rule = isa<nn::ReshapeOp>(op) ? nullptr : getRule(op);
  // Values that are moved together mostly lie alike.
  bool isMove = isa<DistDialect>(op->getDialect());
  auto agrees = [&](ArrayRef<Reading> prefix, Reading reading) {
    if (isMove && !prefix.empty())
      return llvm::equal(
          prefix.front()->dims, reading->dims,
          [](const DimLayout &a, const DimLayout &b) { return a.getAxes() == b.getAxes(); });
    if (!rule || rule->operands.empty())
      return true;
    llvm::SmallDenseMap<int, AxisList> known;
    auto add = [&](unsigned operand, Reading own) {
      for (auto [factors, dim] : llvm::zip_equal(rule->operands[operand], own->dims))
        if (factors.size() == 1) {
          auto [it, isNew] = known.try_emplace(factors.front(), dim.getAxes());
          if (!isNew && it->second != dim.getAxes())
            return false;
        }
      return true;
    };
    for (auto [i, own] : llvm::enumerate(prefix))
      add(i, own);
    return add(prefix.size(), reading);
  };
  SmallVector<SmallVector<Reading, 4>> combinations(1);
  for (OpOperand &operand : op->getOpOperands()) {
    SmallVector<SmallVector<Reading, 4>> longer, others;
    for (Reading reading : getPlausible(op, operand.getOperandNumber()))
      for (const auto &prefix : combinations) {
        auto &list = agrees(prefix, reading) ? longer : others;
        if (list.size() == kMaxCombinations)
          continue;
        list.push_back(prefix);
        list.back().push_back(reading);
      }
    longer.append(others.begin(), others.end());
    longer.truncate(std::min(longer.size(), kMaxCombinations));
    combinations = std::move(longer);
  }
  return combinations;
}

/// An op whose operands have several readings, or a reshape, which makes them.
LogicalResult PlacementDerivation::visitReadings(Operation *op) {
  SmallVector<SmallVector<Reading, 4>> combinations = combineReadings(op);
  ReadingLink link{op, op->getOperands(), op->getResults(), {}};
  bool single = combinations.size() == 1;
  for (const auto &operands : combinations) {
    // One combination among several may well be wrong.
    auto emit = [&] {
      if (single)
        return op->emitOpError();
      InFlightDiagnostic silent = emitError(op->getLoc());
      silent.abandon();
      return silent;
    };
    auto note = [&](InFlightDiagnostic &diagnostic, unsigned i) {
      if (single)
        explain(diagnostic, op, i);
    };
    FailureOr<Outcome> outcome = transferOnce(op, operands, emit, note);
    if (failed(outcome)) {
      if (single)
        return failure();
      continue;
    }
    link.combinations.push_back({operands, outcome->results});
    for (Reading alternative : outcome->alternatives)
      link.combinations.push_back({operands, {alternative}});
  }
  // Operands that are read as sharded over the same axes in different dimensions
  // give blocks: seldom what is meant, and the more of them the fewer others are
  // looked at.
  auto isBlockwise = [](const auto &combination) {
    return llvm::any_of(combination.second, [](Reading r) { return r->isBlockwise(); });
  };
  if (!llvm::all_of(link.combinations, isBlockwise))
    llvm::erase_if(link.combinations, isBlockwise);
  if (link.combinations.empty()) {
    // Report what is wrong with the likeliest reading.
    FailureOr<ResultLayouts> results =
        transfer({op, combinations.front(), mesh, [&] { return op->emitOpError(); },
                  [&](InFlightDiagnostic &diagnostic, unsigned i) { explain(diagnostic, op, i); }});
    return success(succeeded(results));
  }
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Readings readings;
    for (const auto &combination : link.combinations)
      if (!llvm::is_contained(readings, combination.second[i]))
        readings.push_back(combination.second[i]);
    set(result, readings.front());
    if (readings.size() > 1) {
      ambiguous[result] = std::move(readings);
      analysis.ambiguous.insert(result);
    }
  }
  bool constrains =
      llvm::any_of(op->getOperands(), [&](Value operand) { return ambiguous.contains(operand); });
  if (constrains || link.combinations.size() > 1)
    links.push_back(std::move(link));
  return success();
}

/// Keeps of all readings those that the uses agree with, and chooses one.
LogicalResult PlacementDerivation::resolve() {
  if (auto conflict = chooseReadings(links, ambiguous, [&](Value value) { return get(value); })) {
    const ReadingLink &link = links[*conflict];
    size_t i = 0;
    while (i + 1 < link.operands.size() && !ambiguous.contains(link.operands[i]))
      ++i;
    InFlightDiagnostic diagnostic = link.op->emitOpError() << "reads operand " << i
                                                           << " otherwise than its other users do";
    diagnostic.attachNote(link.operands[i].getLoc()) << "the operand is from here";
    return diagnostic;
  }
  for (auto &[value, readings] : ambiguous)
    set(value, readings.front());
  return success();
}

LogicalResult PlacementDerivation::visitBlock(Block &block) {
  for (Operation &op : block) {
    if (auto terminator = dyn_cast<func::ReturnOp>(op)) {
      if (failed(visitReturn(terminator)))
        return failure();
      continue;
    }
    if (!isa<scf::YieldOp, rt::YieldOp>(op) && failed(visit(&op)))
      return failure();
  }
  return success();
}

LogicalResult PlacementDerivation::run() {
  if (!func.getBody().hasOneBlock())
    return func.emitOpError() << "expected a body of one block";
  analysis.layouts.reserve(func.getBody().front().getOperations().size() * 2);
  if (failed(addArguments()) || failed(visitBlock(func.getBody().front())))
    return failure();
  return links.empty() ? success() : resolve();
}

FailureOr<PlacementAnalysis> PlacementAnalysis::run(func::FuncOp func) {
  PlacementAnalysis analysis;
  analysis.mesh = getSpmdMesh(func);
  if (!analysis.mesh)
    return LogicalResult(func.emitOpError() << "expected an SPMD function with 'dist.spmd'");
  if (failed(PlacementDerivation(func, analysis).run()))
    return failure();
  return analysis;
}

LogicalResult meshwright::verifyPlacement(func::FuncOp func) {
  if (!func->hasAttr(DistDialect::kSpmdAttr) || func.isExternal())
    return success();
  return success(succeeded(PlacementAnalysis::run(func)));
}
