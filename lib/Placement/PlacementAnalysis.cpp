//===- PlacementAnalysis.cpp - layouts of an SPMD program's values --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/FormUses.h"
#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/LayoutTransferDetail.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Placement/PlacementDerivation.h"
#include "meshwright/lib/Placement/Routings.h"

#include "llvm/Support/Threading.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

/// Notes where the unreduced axes of an operand come from, or where the operand comes from
/// if it has none.
void PlacementDerivation::explain(InFlightDiagnostic &diagnostic, Operation *op,
                                  unsigned operand) const {
  Value value = op->getOperand(operand);
  LayoutRef layout = get(value);
  if (!layout)
    return;
  if (!layout->isUnreduced()) {
    diagnostic.attachNote(value.getLoc())
        << "operand " << operand << " is from here, and has layout " << toString(*layout, mesh);
    return;
  }
  while (Operation *from = rt::getSource(value).getDefiningOp()) {
    Value next;
    for (Value candidate : from->getOperands())
      if (LayoutRef own = get(candidate); own && own->getUnreduced() == layout->getUnreduced())
        next = candidate;
    if (!next)
      break;
    value = next;
  }
  diagnostic.attachNote(rt::getSource(value).getLoc())
      << "operand " << operand << " is unreduced over " << toString(layout->getUnreduced(), mesh)
      << " from here on";
}

LogicalResult PlacementDerivation::checkCollective(Operation *op) {
  if (!communicates(op) || conditions.empty())
    return success();
  const Dependence &dependence = dependent.find(conditions.back())->second;
  InFlightDiagnostic diagnostic =
      op->emitOpError() << "is a collective under control flow that depends on the rank's "
                           "coordinate along "
                        << toString(dependence.axes, mesh) << ": not all ranks would issue it";
  diagnostic.attachNote(dependence.index.getLoc()) << "the coordinate is from here";
  return diagnostic;
}

/// The number of the rank's first row of a table, or of its first expert. Null if the op reads none.
static Value getOffset(Operation *op) {
  if (auto model = dyn_cast<LayoutOpInterface>(op))
    if (Value offset = model.getCheckedOffset())
      return offset;
  auto lookup = dyn_cast<LookupOpInterface>(op);
  return lookup && lookup.takesOffset() ? lookup.getTableOffset() : Value();
}

LogicalResult PlacementDerivation::visitRankDependent(Operation *op, bool &handled) {
  handled = false;
  Dependence dependence;
  // A value that waits for another one does not depend on its elements.
  for (Value operand : op->getOperands().take_front(isa<AfterOp>(op) ? 1 : op->getNumOperands()))
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
  // The transfer of a lookup, or a routing, checks an offset that is a coordinate against the table.
  if (Value offset = getOffset(op)) {
    bool isOffsetAlone = llvm::all_of(op->getOperands(), [&](Value operand) {
      return operand == offset || !dependent.contains(operand);
    });
    if (isOffsetAlone && rt::getSource(offset).getDefiningOp<AxisIndexOp>())
      return success();
  }
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
    LayoutRef first = get(op.thenYield()->getOperand(i)),
              second = get(op.elseYield()->getOperand(i));
    Layout joined = *first;
    if (!isLayout(*first, *second, mesh)) {
      joined = *second;
      if (!isLayout(*second, *first, mesh))
        return LogicalResult(op.emitOpError()
                             << "result " << i << ": expected one layout from both branches, got "
                             << toString(*first, mesh) << " and " << toString(*second, mesh));
    }
    // Ranks that take different branches must hold different parts of the result.
    for (const Axis &axis : axes) {
      AxisList digits, sharded = joined.getShardedAxes();
      layout_transfer::appendPrimes(axis, digits);
      if (!layout_transfer::removeAxes(sharded, digits))
        return LogicalResult(op.emitOpError()
                             << "result " << i << ": expected different parts along "
                             << toString(axis, mesh)
                             << ", between whose ranks the condition differs, got a replicated one");
    }
    for (DimLayout &dim : joined.dims)
      for (LayoutFactor &factor : dim.factors) {
        factor.padding = padding::ofType(getElementTypeOrSelf(op.getResult(i).getType()));
        if (factor.uniform)
          factor.uniform = false;
      }
    joined.data = joined.corner =
        padding::ofType(getElementTypeOrSelf(op.getResult(i).getType()));
    set(op.getResult(i), memo.intern(joined));
    for (auto [yield, candidate] :
         {std::pair(op.thenYield(), first), std::pair(op.elseYield(), second)}) {
      Value from = yield->getOperand(i);
      // Other users must agree with this layout.
      if (auto it = ambiguous.find(from); it != ambiguous.end())
        it->second = {candidate};
      if (auto it = dependent.find(from); it != dependent.end()) {
        Dependence own = it->second;
        own.axes.append(dependent[op.getResult(i)].axes);
        dependent[op.getResult(i)] = std::move(own);
      }
    }
  }
  return success();
}

LogicalResult PlacementDerivation::visitStatedParts(Operation *op) {
  SmallVector<LayoutRef, 4> operands;
  for (Value operand : op->getOperands())
    operands.push_back(get(operand));
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!statedParts.contains(operand))
      continue;
    auto emit = [&] { return op->emitOpError(); };
    auto note = [&](InFlightDiagnostic &diagnostic, unsigned i) { explain(diagnostic, op, i); };
    TransferContext context{op, operands, mesh, emit, note};
    context.rule = memo.getRule(op);
    if (failed(checkStatedParts(context, i)))
      return failure();
    for (Value result : op->getResults())
      if (LayoutRef own = get(result); own && own->isUnreduced())
        statedParts.insert(result);
  }
  return success();
}

LogicalResult PlacementDerivation::passOn(Operation *op, ValueRange from, ValueRange to) {
  for (auto [source, target] : llvm::zip_equal(from, to)) {
    if (!get(source))
      return op->emitOpError() << "uses a value from outside the function";
    set(target, get(source));
    if (statedParts.contains(source))
      statedParts.insert(target);
    // Copies, since an insertion may move the entries of the map.
    if (auto it = ambiguous.find(source); it != ambiguous.end()) {
      Candidates candidates = it->second;
      CandidateLink link{op, {source}, {target}, {}};
      for (LayoutRef candidate : candidates)
        link.combinations.push_back({{candidate}, {candidate}});
      links.push_back(std::move(link));
      ambiguous[target] = std::move(candidates);
      analysis.ambiguous.insert(target);
    }
    if (auto it = dependent.find(source); it != dependent.end()) {
      Dependence dependence = it->second;
      dependent[target] = std::move(dependence);
    }
  }
  return success();
}

/// A launch runs the ops of its region on its operands.
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
    return passOn(op, prepare.getWeight(), prepare.getResult());
  if (isa<rt::GraphBeginOp, rt::GraphEndOp>(op))
    return success();
  bool handled;
  if ((isa<AxisIndexOp>(op) || !dependent.empty()) && failed(visitRankDependent(op, handled)))
    return failure();
  if (failed(checkCollective(op)))
    return failure();
  bool several = mayHaveCandidates(op);
  SmallVector<LayoutRef, 4> operands;
  for (Value operand : op->getOperands()) {
    several |= !ambiguous.empty() && ambiguous.contains(operand);
    operands.push_back(get(operand));
    if (!operands.back())
      return op->emitOpError() << "uses a value from outside the function";
  }
  if (several)
    return visitCandidates(op);
  FailureOr<TransferMemo::Outcome> outcome = memo.transfer(
      op, operands, [&] { return op->emitOpError(); },
      [&](InFlightDiagnostic &diagnostic, unsigned i) { explain(diagnostic, op, i); });
  if (failed(outcome))
    return failure();
  if (!outcome->alternatives.empty())
    return visitCandidates(op);
  for (auto [result, candidate] : llvm::zip_equal(op->getResults(), outcome->results))
    set(result, candidate);
  return success();
}

LogicalResult PlacementDerivation::visitBlock(Block &block) {
  for (Operation &op : block) {
    if (auto terminator = dyn_cast<func::ReturnOp>(op)) {
      if (failed(visitReturn(terminator)))
        return failure();
      continue;
    }
    if (isa<scf::YieldOp, rt::YieldOp>(op))
      continue;
    if (failed(visit(&op)) || (!statedParts.empty() && failed(visitStatedParts(&op))))
      return failure();
  }
  return success();
}

/// Returns true if an argument is parts of a sum. Then the bounds on factors matter.
static bool takesParts(func::FuncOp func) {
  for (unsigned i = 0; i < func.getNumArguments(); ++i)
    if (auto sharding = func.getArgAttrOfType<ShardingAttr>(i, DistDialect::kShardingAttr))
      if (!sharding.getUnreduced().empty() && sharding.getReduction() == ReductionKind::Sum)
        return true;
  return false;
}

LogicalResult PlacementDerivation::run(bool isExhaustive) {
  if (!func.getBody().hasOneBlock())
    return func.emitOpError() << "expected a body of one block";
  memo.tracksPadding = mayPad(func, mesh) || takesParts(func);
  memo.isExhaustive = isExhaustive;
  analysis.layouts.reserve(func.getBody().front().getOperations().size() * 2);
  if (failed(addArguments()) || failed(visitBlock(func.getBody().front())))
    return failure();
  if (!links.empty() && failed(resolve()))
    return failure();
  return success(succeeded(verifyRoutings(func, &analysis)) && succeeded(verifyForms(func)));
}

FailureOr<PlacementAnalysis> PlacementAnalysis::run(func::FuncOp func) {
  MeshAttr mesh = getSpmdMesh(func);
  if (!mesh)
    return LogicalResult(func.emitOpError() << "expected an SPMD function with 'dist.spmd'");
  if (!layout_transfer::hasModels(func.getContext()))
    return LogicalResult(func.emitOpError()
                         << "expected the models of its ops (see registerAllDialects)");
  // A few reshapes have more candidates than the likely ones. They cost time, so they are tried
  // where the likely ones give no proof. The errors are those of the likely ones.
  std::vector<Diagnostic> errors;
  for (bool isExhaustive : {false, true}) {
    PlacementAnalysis analysis;
    analysis.mesh = mesh;
    uint64_t thread = llvm::get_threadid();
    ScopedDiagnosticHandler hold(func.getContext(), [&](Diagnostic &diagnostic) {
      if (llvm::get_threadid() != thread)
        return failure();
      if (!isExhaustive)
        errors.push_back(std::move(diagnostic));
      return success();
    });
    if (succeeded(PlacementDerivation(func, analysis).run(isExhaustive)))
      return analysis;
    auto hasChoice = [](Operation *op) {
      return mayHaveCandidates(op) ? WalkResult::interrupt() : WalkResult::advance();
    };
    if (!func.walk(hasChoice).wasInterrupted())
      break;
  }
  for (Diagnostic &error : errors)
    func.getContext()->getDiagEngine().emit(std::move(error));
  return failure();
}

/// Returns true if the op states that an operand is padded.
static bool statesPadding(Operation *op, MeshAttr mesh) {
  if (!op->hasAttr(kOperandsAttr))
    return false;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    for (const std::optional<DimLayout> &dim : getStatedDims(op, i, mesh))
      if (dim && dim->isPadded())
        return true;
  return false;
}

bool meshwright::mayPad(func::FuncOp func, MeshAttr mesh) {
  auto isPadded = [&](DictionaryAttr attributes, Type type) {
    auto sharding = attributes.getAs<ShardingAttr>(DistDialect::kShardingAttr);
    auto global = attributes.getAs<TypeAttr>(DistDialect::kGlobalAttr);
    auto local = dyn_cast<RankedTensorType>(type);
    if (!sharding || !global || !local)
      return true;
    int64_t shards = 1;
    for (DimShardingAttr dim : sharding.getDims())
      for (FactorShardingAttr factor : dim.getFactors()) {
        if (factor.getRuntimeSize())
          return true;
        for (AxisRefAttr axis : factor.getAxes())
          shards *= getAxis(axis, mesh).size;
      }
    auto whole = dyn_cast<RankedTensorType>(global.getValue());
    return !whole || local.getNumElements() * shards != whole.getNumElements();
  };
  for (unsigned i = 0; i < func.getNumArguments(); ++i)
    if (isPadded(func.getArgAttrDict(i), func.getArgumentTypes()[i]))
      return true;
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    if (isPadded(func.getResultAttrDict(i), func.getResultTypes()[i]))
      return true;
  auto addsPadding = [&](Operation *op) {
    if (op->hasTrait<TouchesPadding>() || statesPadding(op, mesh))
      return true;
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (!collective || !collective.padsChunks())
      return false;
    // A redistribute states whole layouts instead of axes that a dimension gains.
    if (!collective.getGainedDim(0))
      return true;
    int64_t shards = getNumShards(dist::getAxes(collective.getAxes(), mesh));
    for (auto [i, operand, result] : llvm::enumerate(op->getOperands(), op->getResults())) {
      std::optional<int64_t> dim = collective.getGainedDim(i);
      auto from = cast<RankedTensorType>(operand.getType());
      auto to = cast<RankedTensorType>(result.getType());
      if (dim && to.getDimSize(*dim) * shards != from.getDimSize(*dim))
        return true;
    }
    return false;
  };
  return func.walk([&](Operation *op) {
               return addsPadding(op) ? WalkResult::interrupt() : WalkResult::advance();
             })
      .wasInterrupted();
}

LogicalResult meshwright::verifyPlacement(func::FuncOp func) {
  if (!func->hasAttr(DistDialect::kSpmdAttr) || func.isExternal())
    return success();
  return success(succeeded(PlacementAnalysis::run(func)));
}

bool meshwright::isPlacementProved(func::FuncOp func) {
  uint64_t thread = llvm::get_threadid();
  ScopedDiagnosticHandler ignore(func.getContext(), [&](Diagnostic &) {
    return success(llvm::get_threadid() == thread);
  });
  return succeeded(verifyPlacement(func));
}
