//===- RequestSchedule.cpp - requests for the schedule of a program -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

#include <limits>

namespace meshwright {
#define GEN_PASS_DEF_REQUESTSCHEDULEPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// More chunks of tokens than this are not tried. Each reads the weights of its experts.
constexpr int64_t kMostExpertChunks = 64;

struct RequestSchedulePass : meshwright::impl::RequestSchedulePassBase<RequestSchedulePass> {
  using RequestSchedulePassBase::RequestSchedulePassBase;

  void runOnOperation() override {
    Builder builder(&getContext());
    SmallVector<func::FuncOp> functions;
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (!dist::getSpmdMeshSymbol(func))
        continue;
      functions.push_back(func);
      if (overlap != OnOffAuto::Auto)
        func->setAttr(rt::RtDialect::kOverlapAttr,
                      builder.getStringAttr(stringify(overlap.getValue())));
      if (prefetch.number)
        func->setAttr(rt::RtDialect::kPrefetchAttr, builder.getI64IntegerAttr(*prefetch.number));
    }
    if (!memoryCeiling)
      return;
    MemoryPlanner planner;
    bool hasSecondBuffers = writesStates(getOperation()) && llvm::all_of(functions, [&](auto func) {
                              return func.isExternal() ||
                                     planner.fitsBesideSecondBuffers(func, memoryCeiling);
                            });
    if (!hasSecondBuffers && writesStates(getOperation()))
      copyStates(functions);
    for (func::FuncOp func : functions)
      planner.setCeiling(func, memoryCeiling, func);
    if (hasSecondBuffers)
      return;
    // One error: of the function that needs most.
    PlannedMemory worst;
    func::FuncOp refused;
    for (func::FuncOp func : functions)
      if (PlannedMemory planned = chooseExpertChunks(func, planner);
          !planned.refusal.empty() && (!refused || planned.needed > worst.needed)) {
        worst = std::move(planned);
        refused = func;
      }
    if (!refuses || !refused)
      return;
    emitError(refused.getLoc()) << worst.refusal;
    signalPassFailure();
  }
  void copyStates(ArrayRef<func::FuncOp> functions);
  PlannedMemory chooseExpertChunks(func::FuncOp func, MemoryPlanner &planner);
  PlannedMemory chooseOrder(func::FuncOp func, MemoryPlanner &planner);
  PlannedMemory chooseChunks(func::FuncOp func, MemoryPlanner &planner);
};

/// Lets commits copy the states of all functions. New values in the arena share its memory; second
/// buffers save the copies.
void RequestSchedulePass::copyStates(ArrayRef<func::FuncOp> functions) {
  for (func::FuncOp func : functions)
    func->setAttr(rt::RtDialect::kCopiesAttr, UnitAttr::get(&getContext()));
  dist::DistDialect::getDecisionLog(&getContext())
      .add("request-schedule", Outcome::Note, getOperation().getLoc(),
           "new values of states are copied when a call commits: second buffers for them need more "
           "memory than the ceiling leaves",
           {{"memory_ceiling_bytes", double(memoryCeiling)}});
}

/// Chooses between the chunks that pay, none, and all, under the memory ceiling. Chunks can
/// need more memory, because many are in flight, or less, because each is smaller. Takes
/// the first choice that fits, else the one that needs least.
PlannedMemory RequestSchedulePass::chooseChunks(func::FuncOp func, MemoryPlanner &planner) {
  StringRef name = rt::RtDialect::kChunksAttr;
  StringAttr best;
  PlannedMemory result;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (StringRef chunks : {"", "none", "all"}) {
    StringAttr choice = chunks.empty() ? nullptr : StringAttr::get(&getContext(), chunks);
    func->removeAttr(name);
    if (choice)
      func->setAttr(name, choice);
    PlannedMemory planned = planner.planMemory(func, memoryCeiling, MemoryPlanner::Depth::Fit);
    if (planned.refusal.empty() || planned.needed < least) {
      best = choice;
      result = planned;
    }
    if (planned.refusal.empty())
      break;
    least = std::min(least, planned.needed);
  }
  func->removeAttr(name);
  if (!best)
    return result;
  func->setAttr(name, best);
  dist::DistDialect::getDecisionLog(&getContext())
      .add("request-schedule", Outcome::Note, func.getLoc(),
           best == "all"
               ? "collectives run in chunks wherever they can: so the program needs less "
                 "memory, of which the ceiling leaves too little otherwise"
               : "collectives stay whole: chunks need more memory than the ceiling leaves",
           {{"memory_ceiling_bytes", double(memoryCeiling)}});
  return result;
}

/// Schedules a function as far as that decides anything: chunks of collectives, and whether it is refused.
PlannedMemory RequestSchedulePass::chooseOrder(func::FuncOp func, MemoryPlanner &planner) {
  if (overlap == OnOffAuto::Auto && !func->hasAttr(rt::RtDialect::kChunksAttr))
    return chooseChunks(func, planner);
  return refuses && !func.isExternal() ? planner.planMemory(func, memoryCeiling, MemoryPlanner::Depth::Fit) : PlannedMemory();
}

/// Chooses the number of chunks of tokens for which experts run: as few as the ceiling leaves room for, else
/// the number that needs least. Returns the plan of the chosen number.
PlannedMemory RequestSchedulePass::chooseExpertChunks(func::FuncOp func, MemoryPlanner &planner) {
  StringRef name = rt::RtDialect::kExpertChunksAttr, chunks = rt::RtDialect::kChunksAttr;
  Attribute given = func->getAttr(chunks);
  PlannedMemory best = chooseOrder(func, planner);
  if (best.refusal.empty() || func->hasAttr(name) || func.isExternal() ||
      nn::getRoutings(func.front()).empty())
    return best;
  Builder builder(&getContext());
  int64_t least = best.needed, found = 1;
  Attribute own = func->getAttr(chunks);
  auto set = [&](int64_t count, Attribute how) {
    how ? func->setAttr(chunks, how) : void(func->removeAttr(chunks));
    count > 1 ? func->setAttr(name, builder.getI64IntegerAttr(count)) : void(func->removeAttr(name));
  };
  for (int64_t count = 2; count <= kMostExpertChunks && !best.refusal.empty(); count *= 2) {
    set(count, given);
    PlannedMemory planned = chooseOrder(func, planner);
    if (!planned.refusal.empty() && planned.needed >= best.needed)
      continue;
    best = planned;
    found = count;
    own = func->getAttr(chunks);
  }
  set(found, own);
  if (found > 1)
    dist::DistDialect::getDecisionLog(&getContext())
        .add("request-schedule", Outcome::Note, func.getLoc(),
             "experts run for one chunk of tokens after the other: the rows of all need more memory than the "
             "ceiling leaves",
             {{"chunks", double(found)},
              {"memory_ceiling_bytes", double(memoryCeiling)},
              {"whole_bytes", double(least)}});
  return best;
}

} // namespace
