//===- SinkAllGather.cpp - all-gathers move to where they are needed ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One walk in program order. It keeps track of the values of which each rank has a shard. An
// op that can run on shards is repeated on them, and its result is gathered for the users
// that need it whole. Ops without users are erased at the end.
//
// A slice of a gathered value pads with zeros, and so does a pad. The shard may have anything
// there, which few readers see. So the shard takes their place first, and the program is proved. If
// the proof fails, the pass starts anew and keeps the ops that pad.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/optimise/GatherPlan.h"
#include "meshwright/passes/optimise/Passes.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace meshwright {
#define GEN_PASS_DEF_SINKALLGATHERPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kSinkAllGather = "sink-all-gather";

class Sinker {
public:
  Sinker(func::FuncOp func, const TokenSharding &sharding,
         const llvm::MapVector<Value, TokenDim> &seeds, bool keepsPadding)
      : func(func), block(func.front()), sharding(sharding), seeds(seeds),
        plan(block, sharding, seeds, GatherPlan::Joins::None), keepsPadding(keepsPadding) {}

  /// Returns true if the program changed.
  bool run();
  /// The program before a shard took the place of an op that pads. None if no shard did.
  OwningOpRef<func::FuncOp> takeProgramBefore() { return std::move(before); }
  const DecisionLog &getLog() const { return log; }

private:
  void visit(Operation *op);
  bool runsOnShard(Operation *op, const TokenOp &how) const;
  Value getShard(OpBuilder &builder, Operation *op, Value value, const TokenDim &token,
                 unsigned source, const TokenDim &sourceToken);
  void report();

  func::FuncOp func;
  Block &block;
  const TokenSharding &sharding;
  const llvm::MapVector<Value, TokenDim> &seeds;
  GatherPlan plan;
  /// True if ops that pad stay.
  bool keepsPadding;
  OwningOpRef<func::FuncOp> before;
  mutable DecisionLog log;

  /// The shards of whole values.
  ProgramMap<Value, Value> shards;
  /// The gather that a shard comes from, and the number of ops that each gather has passed.
  ProgramMap<Value, Value> origin;
  llvm::MapVector<Value, int64_t> passed;
  /// Shards that are slices of whole values.
  ProgramMap<Value, SmallVector<std::pair<TokenDim, Value>, 1>> slices;
  /// Whole values that are gathered from their shards.
  SmallVector<Value> gathered;
};

/// Decides if an op that can run on shards does.
bool Sinker::runsOnShard(Operation *op, const TokenOp &how) const {
  Value only;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!how.operands[i] || !shards.contains(operand) || operand == only)
      continue;
    // An op that joins two shards runs on them.
    if (only)
      return true;
    only = operand;
  }
  if (!only)
    return false;
  // If another user needs the operand whole, running on the shard must save more time than a launch is worth.
  if (!plan.getEntry(only).gatherHere())
    return true;
  int64_t extra = plan.getExtraBeside(op);
  if (extra < 0)
    return true;
  const GatherPlan::Entry &entry = plan.getEntry(only);
  log.add(kSinkAllGather.str(), Outcome::Declined, op->getLoc(),
          entry.isNeeded ? "all-gather stays above " + op->getName().getStringRef().str() +
                               ": its operand is needed whole by another op"
                         : "all-gather stays above " + op->getName().getStringRef().str() +
                               ": more bytes would be gathered behind it",
          {{"gather_above_seconds", double(entry.here) * 1e-12},
           {"gather_below_seconds", double(entry.below) * 1e-12},
           {"extra_seconds", double(extra) * 1e-12}});
  return false;
}

/// The shard of an operand of `op`, beside operand `source`, whose shard is known.
Value Sinker::getShard(OpBuilder &builder, Operation *op, Value value, const TokenDim &token,
                       unsigned source, const TokenDim &sourceToken) {
  if (Value shard = shards.lookup(value))
    return shard;
  for (auto &[known, slice] : slices[value])
    if (known == token)
      return slice;
  Value slice = sharding.slice(builder, op->getLoc(), value, token, op->getOperand(source),
                               sourceToken.dim);
  slices[value].push_back({token, slice});
  return slice;
}

void Sinker::visit(Operation *op) {
  if (op->getNumResults() == 1 && seeds.contains(op->getResult(0))) {
    shards[op->getResult(0)] = op->getOperand(0);
    origin[op->getResult(0)] = op->getResult(0);
    passed.insert({op->getResult(0), 0});
    return;
  }
  const TokenOp *how = plan.lookup(op);
  if (!how)
    return;
  std::optional<unsigned> first;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (how->operands[i] && shards.contains(operand) && !first)
      first = i;
  if (!first)
    return;
  Value source = op->getOperand(*first);
  // Copies, as insertions below move the entries of the maps.
  Value seed = origin.lookup(source), shard = shards.lookup(source);
  bool pads = isa<PadOp>(op);
  if (how->kind == TokenOp::TakeShard)
    pads = llvm::any_of(how->operands, [](const std::optional<TokenDim> &token) {
      return token && token->size != token->padded;
    });
  if (pads && keepsPadding)
    return;
  // The ops that run on shards so far have no users yet.
  if (pads && !before)
    before = func.clone();
  if (how->kind == TokenOp::TakeShard) {
    op->getResult(0).replaceAllUsesWith(shard);
    ++passed[seed];
    return;
  }
  if (how->kind == TokenOp::Forward) {
    shards[op->getResult(0)] = shard;
  } else {
    if (!runsOnShard(op, *how))
      return;
    OpBuilder builder(op);
    SmallVector<Value> operands(op->getOperands());
    for (auto [i, operand] : llvm::enumerate(operands))
      if (how->operands[i])
        operand = getShard(builder, op, operand, *how->operands[i], *first, *how->operands[*first]);
    Operation *sharded = sharding.runOnShard(builder, op, *how, operands);
    for (auto [result, own] : llvm::zip_equal(op->getResults(), sharded->getResults()))
      shards[result] = own;
    if (op->hasTrait<Product>()) {
      const GatherPlan::Entry &entry = plan.getEntry(source);
      log.add(kSinkAllGather.str(), Outcome::Applied, op->getLoc(),
              "all-gather moves past a projection with a whole weight",
              {{"gather_above_seconds", double(entry.here) * 1e-12},
               {"gather_below_seconds", double(entry.below) * 1e-12}});
    }
    // All gathers that meet in the op have passed it.
    llvm::SmallDenseSet<Value, 2> seen;
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (Value other = how->operands[i] ? origin.lookup(operand) : Value();
          other && seen.insert(other).second)
        ++passed[other];
  }
  for (Value result : op->getResults()) {
    origin[result] = seed;
    gathered.push_back(result);
  }
}

void Sinker::report() {
  for (auto &[seed, count] : passed) {
    Cost cost = sharding.getGatherCost(seed, seeds.find(seed)->second);
    if (count)
      log.add(kSinkAllGather.str(), Outcome::Applied, seed.getLoc(),
              "all-gather moves past " + std::to_string(count) +
                  (count == 1 ? " op, which runs on the shard" : " ops, which run on the shard"),
              {{"bytes", double(cost.bytes)}, {"ops", double(count)}});
    else
      log.add(kSinkAllGather.str(), Outcome::Declined, seed.getLoc(),
              "all-gather stays: its users need the whole value",
              {{"bytes", double(cost.bytes)}});
  }
}

bool Sinker::run() {
  for (Operation &op : llvm::make_early_inc_range(block))
    visit(&op);
  report();
  if (llvm::all_of(passed, [](const auto &entry) { return entry.second == 0; }))
    return false;
  for (Value whole : gathered) {
    if (whole.use_empty())
      continue;
    Value shard = shards[whole];
    // After the op that it replaces: all operands of the shard are defined there.
    OpBuilder builder(whole.getContext());
    builder.setInsertionPointAfterValue(whole);
    // Equal elements stay equal behind an elementwise op.
    bool states = origin.lookup(whole).getDefiningOp()->hasAttr(kOperandsAttr);
    Value result = sharding.gather(builder, whole, shard, *plan.lookup(whole), states);
    whole.replaceAllUsesWith(result);
  }
  llvm::DenseSet<Attribute> names;
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();
  // If a value is computed whole and on shards, one of the two ops keeps the id.
  for (Operation &op : block)
    if (Attribute name = op.getAttr(nn::NnDialect::kIdAttr); name && !names.insert(name).second)
      op.removeAttr(nn::NnDialect::kIdAttr);
  return true;
}

struct SinkAllGatherPass : meshwright::impl::SinkAllGatherPassBase<SinkAllGatherPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!getSpmdMeshSymbol(func) || func.isDeclaration())
      return markAllAnalysesPreserved();
    if (func.front().getOps<AllGatherOp>().empty())
      return markAllAnalysesPreserved();
    const FailureOr<PlacementAnalysis> &placement =
        getAnalysis<SharedPlacementAnalysis>().placement;
    if (failed(placement) || failed(verifyDevice(placement->getMesh(), func)))
      return signalPassFailure();
    Result result = sink(func, *placement, /*keepsPadding=*/false);
    if (result == Result::Same)
      return markAllAnalysesPreserved();
    if (result == Result::Restored) {
      FailureOr<PlacementAnalysis> again = PlacementAnalysis::run(func);
      if (failed(again))
        return signalPassFailure();
      sink(func, *again, /*keepsPadding=*/true);
    }
    if (result != Result::Proved && failed(verifyPlacement(func)))
      signalPassFailure();
  }

private:
  enum class Result { Same, Changed, Proved, Restored };

  llvm::MapVector<Value, TokenDim> collectSeeds(func::FuncOp func, MeshAttr mesh);
  Result sink(func::FuncOp func, const PlacementAnalysis &placement, bool keepsPadding);
};

} // namespace

/// The gathers that may move, and the dimension that each of them gathers.
llvm::MapVector<Value, TokenDim> SinkAllGatherPass::collectSeeds(func::FuncOp func, MeshAttr mesh) {
  llvm::MapVector<Value, TokenDim> seeds;
  for (auto op : func.front().getOps<AllGatherOp>()) {
    AxisList axes = getCollectiveAxes(op, mesh);
    if (op->getNumResults() != 1 || axes.empty())
      continue;
    // A weight that is gathered before its use stays sharded until then.
    if (op.getRole() != CollectiveRole::Data || getWeight(op.getInputs()[0]))
      continue;
    TokenDim token;
    token.dim = op.getDims()[0];
    token.size = token.padded =
        cast<RankedTensorType>(op.getResult(0).getType()).getDimSize(token.dim);
    token.axes = std::move(axes);
    if (token.size > 0)
      seeds.insert({op.getResult(0), std::move(token)});
  }
  return seeds;
}

/// Moves the gathers. Restores the program if it is not right with the padding of shards.
SinkAllGatherPass::Result SinkAllGatherPass::sink(func::FuncOp func,
                                                  const PlacementAnalysis &placement,
                                                  bool keepsPadding) {
  CostModel model(placement.getMesh());
  TokenSharding sharding(func.front(), placement, model);
  llvm::MapVector<Value, TokenDim> seeds = collectSeeds(func, placement.getMesh());
  if (seeds.empty())
    return Result::Same;
  Sinker sinker(func, sharding, seeds, keepsPadding);
  bool changed = sinker.run();
  OwningOpRef<func::FuncOp> before = sinker.takeProgramBefore();
  if (before && !isPlacementProved(func)) {
    func.getBody().takeBody(before->getBody());
    return Result::Restored;
  }
  DistDialect::getDecisionLog(func.getContext()).append(sinker.getLog());
  if (!changed)
    return Result::Same;
  return before ? Result::Proved : Result::Changed;
}
