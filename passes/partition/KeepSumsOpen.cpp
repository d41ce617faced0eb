//===- KeepSumsOpen.cpp - sums over calls that are reduced once -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/partition/Partitioner.h"
#include "meshwright/passes/partition/Passes.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_KEEPSUMSOPENPASS
#include "meshwright/passes/partition/Passes.h.inc"
} // namespace meshwright

namespace {

class OpenSums {
public:
  OpenSums(MeshAttr mesh, const FactorAnalysis &factors) : mesh(mesh), factors(factors) {}

  /// The axes over which the terms of a state differ. None if the state is no sum over calls.
  FailureOr<AxisList> getAxes(const SharedValue &state);

private:
  FailureOr<ValueSharding> getSharding(Value value) {
    return readSharding(getShardingAttr(value), value, factors, mesh,
                        [&] { return emitError(value.getLoc()); });
  }
  LogicalResult addContractedAxes(OpResult value, AxisList &axes);
  LogicalResult addPartialAxes(Value value, AxisList &axes);

  MeshAttr mesh;
  const FactorAnalysis &factors;
};

} // namespace

static void join(AxisList &axes, ArrayRef<Axis> more) {
  for (const Axis &axis : more)
    if (!anyOverlap(axes, {axis}))
      axes.push_back(axis);
}

/// Adds the axes of the operands' factors that the op contracts by a sum.
LogicalResult OpenSums::addContractedAxes(OpResult value, AxisList &axes) {
  Operation *op = value.getOwner();
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  const FactorRule &rule = opFactors.rule;
  unsigned result = value.getResultNumber();
  for (auto [operand, dims] : llvm::zip(op->getOperands(), rule.operands)) {
    FailureOr<ValueSharding> sharding = getSharding(operand);
    if (failed(sharding))
      return failure();
    forEachClass(dims, *sharding, opFactors, [&](int factor, size_t, const AxisList &own) {
      if (rule.isReducedIn(factor, result) &&
          rule.factors[factor].getReduction(result) == ReductionKind::Sum)
        join(axes, own);
    });
  }
  return success();
}

/// Adds the axes over which the partitioner can leave a value as partial sums.
LogicalResult OpenSums::addPartialAxes(Value value, AxisList &axes) {
  auto result = dyn_cast<OpResult>(value);
  if (!result || !value.hasOneUse())
    return success();
  Operation *op = result.getOwner();
  bool joins = joinsPartials(op, factors.getFactors(op).rule);
  auto model = dyn_cast<LocalOpInterface>(op);
  bool reduces = model && model.reducesParts();
  for (OpOperand &operand : op->getOpOperands())
    if (joins || reduces || passesPartial(op, operand.getOperandNumber()))
      if (failed(addPartialAxes(operand.get(), axes)))
        return failure();
  return joins ? success() : addContractedAxes(result, axes);
}

FailureOr<AxisList> OpenSums::getAxes(const SharedValue &state) {
  AxisList axes;
  for (OpOperand *written : state.written) {
    Operation *def = written->get().getDefiningOp();
    if (isa_and_nonnull<nn::ConstantOp>(def))
      continue;
    if (!def || getJoinedParts(def) != ReductionKind::Sum || !def->hasOneUse())
      return AxisList();
    auto isSum = [&](Value operand) {
      return llvm::is_contained(state.arguments, operand) && operand.hasOneUse();
    };
    Value lhs = def->getOperand(0), rhs = def->getOperand(1);
    bool isLeft = isSum(lhs);
    Value term = isLeft ? rhs : lhs;
    if ((!isLeft && !isSum(rhs)) || term.getType() != def->getResult(0).getType())
      return AxisList();
    if (failed(addPartialAxes(term, axes)))
      return failure();
  }
  FailureOr<ValueSharding> sharding = getSharding(state.getFirst());
  if (failed(sharding))
    return failure();
  AxisList sharded = sharding->getAxes();
  llvm::erase_if(axes, [&](const Axis &axis) { return anyOverlap(sharded, {axis}); });
  llvm::sort(axes);
  canonicalizeAxes(axes, mesh);
  return axes;
}

namespace {
struct KeepSumsOpenPass : meshwright::impl::KeepSumsOpenPassBase<KeepSumsOpenPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    ModuleOp module = getOperation();
    llvm::DenseSet<StringAttr> transient;
    for (auto state : module.getOps<nn::StateOp>())
      if (state.getTransient() && isa<FloatType>(state.getMemoryType().getElementType()))
        transient.insert(state.getSymNameAttr());
    if (transient.empty())
      return;
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    auto &factors = SharedFactorAnalysis::get(getAnalysisManager(), functions);
    if (failed(factors))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    OpenSums sums(mesh, *factors);
    int64_t open = 0;
    SignatureAttrs signatures;
    for (const SharedValue &value : factors->getSharedValues()) {
      if (!value.state || !transient.contains(value.name))
        continue;
      ShardingAttr attr = getShardingAttr(value.getFirst());
      if (!attr || !attr.getUnreduced().empty())
        continue;
      FailureOr<AxisList> axes = sums.getAxes(value);
      if (failed(axes))
        return signalPassFailure();
      if (axes->empty())
        continue;
      SmallVector<AxisRefAttr> unreduced;
      for (const Axis &axis : *axes)
        unreduced.push_back(getAxisRef(axis, mesh));
      setSharding(value,
                  ShardingAttr::get(attr.getContext(), attr.getMesh(), attr.getDims(), unreduced,
                                    ReductionKind::Sum),
                  signatures);
      ++open;
    }
    if (open)
      DistDialect::getDecisionLog(module.getContext())
          .add("keep-sums-open", Outcome::Applied, module.getLoc(),
               llvm::formatv("{0} sums over calls are reduced where they are read", open).str(),
               {{"sums", double(open)}});
  }
};
} // namespace
