//===- CombineCollectives.cpp - fewer launches ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/DpAttention.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/passes/optimise/JoinDimensions.h"
#include "meshwright/passes/optimise/MergeReductions.h"
#include "meshwright/passes/optimise/Passes.h"
#include "meshwright/lib/Reshard/TokenSharding.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_COMBINECOLLECTIVESPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kCombineCollectives = "combine-collectives";

class Combiner {
public:
  Combiner(func::FuncOp func, const CostModel &model)
      : func(func), model(model), log(DistDialect::getDecisionLog(func.getContext())) {}

  /// Returns true if anything changed.
  bool run() {
    mergeEqual();
    foldInverse();
    joinLaunches();
    return changed;
  }

private:
  /// Equal collectives of the same values become one.
  void mergeEqual();
  /// Collectives that undo others go.
  void foldInverse();
  /// Collectives of equal kind and axes share launches.
  void joinLaunches();
  struct Group;
  void join(Group &group);

  func::FuncOp func;
  const CostModel &model;
  DecisionLog &log;
  bool changed = false;
};

/// Launches of one kind. No op has used their results yet, except `views`.
struct Combiner::Group {
  CollectiveKind kind;
  Attribute shared;
  SmallVector<CollectiveOpInterface, 4> members;
  /// Slices and reshapes of the results, which can wait for the last member.
  SmallVector<Operation *, 4> views;
  /// Work since the first member, which waits for none of them.
  int64_t between = 0;
};

void Combiner::mergeEqual() {
  DenseMap<std::pair<Value, Attribute>, SmallVector<Operation *, 1>> seen;
  for (Operation &op : llvm::make_early_inc_range(func.front())) {
    if (!isa<CollectiveOpInterface>(op))
      continue;
    SmallVector<Operation *, 1> &candidates = seen[{op.getOperand(0), op.getAttrDictionary()}];
    Operation **equal = llvm::find_if(candidates, [&](Operation *other) {
      return other->getName() == op.getName() && other->getOperands() == op.getOperands() &&
             other->getResultTypes() == op.getResultTypes();
    });
    if (equal == candidates.end()) {
      candidates.push_back(&op);
      continue;
    }
    std::optional<Cost> cost = model.getCost(&op);
    log.add(kCombineCollectives.str(), Outcome::Applied, op.getLoc(),
            op.getName().getStringRef().str() + " of the same value is done once",
            {{"bytes_saved", double(cost->bytes)}});
    op.replaceAllUsesWith(*equal);
    op.erase();
    changed = true;
  }
}

void Combiner::foldInverse() {
  for (Operation &op : llvm::make_early_inc_range(func.front())) {
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    SmallVector<OpFoldResult> sources;
    if (!collective || failed(op.fold(sources)) || sources.empty())
      continue;
    llvm::SmallSetVector<Operation *, 2> undone;
    for (Value operand : op.getOperands())
      undone.insert(operand.getDefiningOp());
    int64_t saved = model.getCost(collective).bytes;
    std::string message = op.getName().getStringRef().str() + " undoes the " +
                          undone.front()->getName().getStringRef().str() + " before it";
    Location location = op.getLoc();
    for (auto [result, source] : llvm::zip_equal(op.getResults(), sources))
      result.replaceAllUsesWith(cast<Value>(source));
    op.erase();
    changed = true;
    for (Operation *above : undone) {
      if (!isOpTriviallyDead(above))
        continue;
      saved += model.getCost(cast<CollectiveOpInterface>(above)).bytes;
      above->erase();
    }
    log.add(kCombineCollectives.str(), Outcome::Applied, location, message, {{"bytes_saved", double(saved)}});
  }
}

void Combiner::join(Group &group) {
  ArrayRef<CollectiveOpInterface> members = group.members;
  if (members.size() < 2)
    return;
  changed = true;
  OpBuilder builder(members.back());
  Operation *joint = joinCollectives(builder, members);
  Operation *after = joint;
  for (Operation *view : group.views) {
    moveOpAfter(view, after);
    after = view;
  }
  unsigned next = 0;
  for (CollectiveOpInterface member : members) {
    for (Value result : member->getResults())
      result.replaceAllUsesWith(joint->getResult(next++));
    member->erase();
  }
}

void Combiner::joinLaunches() {
  SmallVector<Group> open, closed;
  for (Operation &op : func.front()) {
    // A user, in a region too, ends a group; a view waits with it.
    llvm::SmallPtrSet<Operation *, 8> producers;
    op.walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (Operation *producer = operand.getDefiningOp())
          producers.insert(producer);
    });
    auto isUsed = [&](Operation *producer) { return producers.contains(producer); };
    bool isView = op.hasTrait<View>() || (op.hasTrait<Reindexes>() && op.hasTrait<TakesPart>());
    for (size_t i = 0; i < open.size();) {
      Group &group = open[i];
      bool uses = llvm::any_of(group.members, isUsed) || llvm::any_of(group.views, isUsed);
      if (uses && isView)
        group.views.push_back(&op);
      if (!uses || isView) {
        ++i;
        continue;
      }
      closed.push_back(std::move(group));
      open.erase(open.begin() + i);
    }
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    // A collective that states layouts keeps its launch. Weights travel just before they are used, and
    // their gradients when they are there.
    if (!collective || !collective.communicates() || collective.countsRows() || collective.getShardings(0) ||
        collective.getRole() != CollectiveRole::Data) {
      int64_t time = isView ? 0 : getComputeTime(&op, model);
      for (Group &group : open)
        group.between += time;
      continue;
    }
    Attribute shared = collective.getSharedAttributes();
    CollectiveKind kind = collective.getKind();
    Group *group = llvm::find_if(
        open, [&](Group &group) { return group.kind == kind && group.shared == shared; });
    if (group == open.end()) {
      open.push_back({kind, shared, {collective}, {}, 0});
      continue;
    }
    // The first could have run beside the work in between.
    Cost earlier;
    for (CollectiveOpInterface member : group->members)
      earlier = earlier + model.getCost(member);
    AxisList axes = getCollectiveAxes(&op, model.getMesh());
    int64_t saved = model.getTime(axes, 0, getSteps(kind, getNumShards(axes)));
    int64_t lost = std::min(earlier.time, group->between);
    std::vector<std::pair<std::string, double>> numbers = {
        {"saved_seconds", double(saved) * 1e-12}, {"overlap_lost_seconds", double(lost) * 1e-12}};
    if (lost > saved) {
      log.add(kCombineCollectives.str(), Outcome::Declined, op.getLoc(),
              op.getName().getStringRef().str() +
                  " keeps its own launch: the one before can run beside the work in between",
              std::move(numbers));
      closed.push_back(std::move(*group));
      *group = {kind, shared, {collective}, {}, 0};
      continue;
    }
    log.add(kCombineCollectives.str(), Outcome::Applied, op.getLoc(),
            op.getName().getStringRef().str() + " joins the launch of another one",
            std::move(numbers));
    group->members.push_back(collective);
  }
  for (Group &group : closed)
    join(group);
  for (Group &group : open)
    join(group);
}

struct CombineCollectivesPass
    : meshwright::impl::CombineCollectivesPassBase<CombineCollectivesPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!getSpmdMeshSymbol(func) || func.isDeclaration())
      return markAllAnalysesPreserved();
    MeshAttr mesh = getSpmdMesh(func);
    if (failed(verifyDevice(mesh, func)))
      return signalPassFailure();
    CostModel model(mesh);
    bool merged = mergeReductions(func, model, kCombineCollectives);
    // Groups of ranks that share a batch split two dimensions of the tokens.
    auto meshOp = SymbolTable::lookupNearestSymbolFrom<MeshOp>(func, getSpmdMeshSymbol(func));
    if (meshOp && getDpAttention(meshOp))
      merged |= joinDimensions(func, model, kCombineCollectives);
    if (!Combiner(func, model).run() && !merged)
      return markAllAnalysesPreserved();
    if (failed(verifyPlacement(func)))
      signalPassFailure();
  }
};

} // namespace
