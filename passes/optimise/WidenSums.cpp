//===- WidenSums.cpp - partial sums that leave products in f32 ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A partial sum in bf16 or f16 is rounded on each rank before the ranks add. Where parts nearly cancel,
// this rounding is much of the sum. The pass rewrites the ops between products and the reduction:
//
// - `gains` finds an addend of the partial sum that f32 has more digits of: a product, or a sum over
//   elements.
// - `widen` writes the partial sum again in f32, from such addends on. Other values are cast.
// - The reduction moves f32, and one cast behind it rounds.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/optimise/Passes.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

namespace meshwright {
#define GEN_PASS_DEF_WIDENSUMSPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

RankedTensorType getWide(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  return tensor.clone(getComputeType(tensor.getElementType()));
}

bool isNarrow(Type type) { return getWide(type) != type; }

/// A partial product of matrices, whose kernel may keep f32.
bool isProduct(Operation *op) { return op->hasTrait<Product>() && isa<MatrixOpInterface>(op); }

bool isSum(Operation *op) {
  auto reduce = dyn_cast<nn::ReduceOp>(op);
  return reduce && reduce.getKind() == nn::ReduceKind::Sum;
}

/// Returns true if the op passes partial sums on, and computes the same in f32 from operands of
/// f32: it moves elements, or is elementwise.
bool passesSums(Operation *op) {
  return op->getNumResults() == 1 && op->getNumRegions() == 0 && isPure(op) &&
         !isa<LookupOpInterface, CollectiveOpInterface>(op) &&
         (op->hasTrait<MovesOnly>() || op->hasTrait<Elementwise>());
}

/// Rewrites the partial sums of one function.
class SumWidener {
public:
  SumWidener(const PlacementAnalysis &placement, const ReduceTypes &types, DecisionLog &log)
      : placement(placement), types(types), log(log) {}

  void run(func::FuncOp func);

private:
  bool isPartial(Value value) const {
    const Layout *layout = placement.lookup(value);
    return layout && layout->isUnreduced();
  }
  /// Returns true if the partial sum has an addend that f32 has more digits of, and that the
  /// options want in f32.
  bool gains(Value value);
  /// Returns the value in f32.
  Value widen(Value value);
  /// Writes the op again with a result in f32.
  Value rewrite(Operation *op);
  Value rewriteProduct(OpBuilder &builder, Operation *op);
  void rewrite(CollectiveOpInterface collective);

  const PlacementAnalysis &placement;
  const ReduceTypes &types;
  DecisionLog &log;
  ProgramMap<Value, bool> known;
  ProgramMap<Value, Value> wide;
  /// Ops that the pass wrote again. They live until its end, so that no value takes the place of
  /// theirs in the maps, and longer if other users want their sums as they are.
  llvm::SetVector<Operation *> replaced;
};

} // namespace

static Value castTo(OpBuilder &builder, Location loc, Value value, Type type) {
  return nn::CastOp::create(builder, loc, type, value);
}

bool SumWidener::gains(Value value) {
  Operation *op = value.getDefiningOp();
  bool fitsF32 = isNarrow(value.getType()) || getElementTypeOrSelf(value.getType()).isF32();
  if (!op || !fitsF32 || !isPartial(value))
    return false;
  auto [entry, isNew] = known.try_emplace(value, false);
  if (!isNew)
    return entry->second;
  bool found = isProduct(op) || isSum(op)
                   ? isNarrow(value.getType()) && types.get(getSourceLocation(op->getLoc()).name) == ReduceType::F32
                   : passesSums(op) && llvm::any_of(op->getOperands(), [&](Value operand) {
                       return gains(operand);
                     });
  return known[value] = found;
}

Value SumWidener::rewriteProduct(OpBuilder &builder, Operation *op) {
  Operation *product = builder.clone(*op);
  product->getResult(0).setType(getWide(op->getResult(0).getType()));
  Value result = product->getResult(0);
  std::optional<unsigned> biasAt = cast<MatrixOpInterface>(op).getBiasOperand();
  if (!biasAt)
    return result;
  Value bias = op->getOperand(*biasAt);
  product->eraseOperand(*biasAt);
  return nn::AddOp::create(builder, op->getLoc(), result.getType(), result,
                           castTo(builder, op->getLoc(), bias, getWide(bias.getType())));
}

Value SumWidener::rewrite(Operation *op) {
  OpBuilder builder(op->getContext());
  builder.setInsertionPointAfter(op);
  Type type = getWide(op->getResult(0).getType());
  if (isProduct(op))
    return rewriteProduct(builder, op);
  if (isSum(op)) {
    Operation *sum = builder.clone(*op);
    builder.setInsertionPoint(sum);
    Value addends = op->getOperand(0);
    sum->setOperand(0, castTo(builder, op->getLoc(), addends, getWide(addends.getType())));
    sum->getResult(0).setType(type);
    return sum->getResult(0);
  }
  SmallVector<Value> operands;
  for (Value operand : op->getOperands())
    operands.push_back(widen(operand));
  builder.setInsertionPointAfter(op);
  Operation *copy = builder.clone(*op);
  copy->setOperands(operands);
  copy->getResult(0).setType(type);
  return copy->getResult(0);
}

Value SumWidener::widen(Value value) {
  if (Value found = wide.lookup(value))
    return found;
  OpBuilder builder(value.getContext());
  builder.setInsertionPointAfterValue(value);
  Operation *op = value.getDefiningOp();
  if (!op || !gains(value)) {
    if (!isNarrow(value.getType()))
      return value;
    Value result = castTo(builder, value.getLoc(), value, getWide(value.getType()));
    wide[value] = result;
    return result;
  }
  // A cast of a partial sum widens, or else the proof rejects it.
  Value result = isa<nn::CastOp>(op) ? widen(op->getOperand(0)) : rewrite(op);
  wide[value] = result;
  replaced.insert(op);
  return result;
}

void SumWidener::rewrite(CollectiveOpInterface collective) {
  for (OpOperand &operand : collective->getOpOperands()) {
    Value before = operand.get();
    if (!gains(before))
      continue;
    Value result = collective->getResult(operand.getOperandNumber());
    Type type = result.getType();
    operand.set(widen(before));
    if (!isNarrow(type))
      continue;
    result.setType(getWide(type));
    OpBuilder builder(collective->getContext());
    builder.setInsertionPointAfter(collective);
    Value rounded = castTo(builder, collective->getLoc(), result, type);
    result.replaceAllUsesExcept(rounded, rounded.getDefiningOp());
    int64_t bytes = getTensorBytes(before.getType());
    log.add("widen-sums", Outcome::Applied, collective->getLoc(),
            "partial sums are added in f32 and round once",
            {{"bytes_before", double(bytes)}, {"bytes_after", double(2 * bytes)}});
  }
}

void SumWidener::run(func::FuncOp func) {
  SmallVector<CollectiveOpInterface> reductions;
  for (Operation &op : func.front())
    if (auto collective = dyn_cast<CollectiveOpInterface>(op);
        collective && collective.communicates() && collective.getReduction() == ReductionKind::Sum)
      reductions.push_back(collective);
  for (CollectiveOpInterface reduction : reductions)
    rewrite(reduction);
  // Users first.
  for (bool isChanged = true; isChanged;) {
    isChanged = false;
    for (Operation *op : llvm::to_vector(replaced))
      if (op->use_empty()) {
        replaced.remove(op);
        op->erase();
        isChanged = true;
      }
  }
}

namespace {
struct WidenSumsPass : meshwright::impl::WidenSumsPassBase<WidenSumsPass> {
  using WidenSumsPassBase::WidenSumsPassBase;

  void runOnOperation() override {
    const ReduceTypes &wanted = types.getValue();
    if (wanted.rules.empty())
      return markAllAnalysesPreserved();
    ModuleOp module = getOperation();
    SmallVector<bool> matched(wanted.rules.size(), false);
    for (auto func : module.getOps<func::FuncOp>()) {
      if (!getSpmdMeshSymbol(func) || func.isDeclaration())
        continue;
      llvm::StringSet<> names;
      func.walk([&](Operation *op) {
        std::string name = getSourceLocation(op->getLoc()).name;
        if (names.insert(name).second)
          if (std::optional<size_t> rule = wanted.find(name))
            matched[*rule] = true;
      });
      FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(func);
      if (failed(placement))
        return signalPassFailure();
      SumWidener(*placement, wanted, DistDialect::getDecisionLog(&getContext())).run(func);
    }
    for (auto [rule, isMatched] : llvm::zip_equal(wanted.rules, matched))
      if (!isMatched && rule.pattern != "*")
        module.emitWarning() << "rule \"" << rule.pattern << "\" of reduce-type matches no op";
  }
};
} // namespace
