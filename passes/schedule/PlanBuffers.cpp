//===- PlanBuffers.cpp - offsets in the arena -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block of the arena holds a result for an interval of launches, and the results that
// are written over it in place.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Launches/InPlace.h"
#include "meshwright/lib/Launches/RaceAnalysis.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/ArenaSearch.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/OverlapCollectives.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/Builders.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

namespace meshwright {
#define GEN_PASS_DEF_PLANBUFFERSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// Plans the arena of one function: finds the last use of each buffer, makes the blocks
/// (`makeBlocks`), and assigns offsets (ArenaSearch.h).
class Planner {
public:
  explicit Planner(func::FuncOp func) : func(func) {
    findUses();
    findUpdates();
    makeBlocks();
  }
  void run();
  /// The plan that no search can better.
  BufferPlan getLeast() const;
  /// Plans without writing offsets to the function.
  BufferPlan measure(SearchEffort effort, int64_t enough);
  /// For each op, the bytes that are needed while it runs.
  std::vector<int64_t> getLive() const;

private:
  void findUses();
  void findUpdates();
  void makeBlocks();
  void write(BufferPlan plan);

  func::FuncOp func;
  /// The launches in order, and the last launch that needs a buffer. Views and constants
  /// are no steps, because they take no time.
  int64_t numSteps = 0;
  ProgramMap<Operation *, int64_t> steps;
  ProgramMap<Value, int64_t> lastUse;
  std::vector<MemoryBlock> blocks;
  /// The block of a buffer: a kernel's result, or a future with an index.
  DenseMap<std::pair<Value, unsigned>, size_t> blockOf;
  /// The state that a result is written over, and the offset of its log.
  struct Over {
    StringAttr state;
    int64_t log;
  };
  ProgramMap<Value, Over> over;
  /// The bytes that undo these updates.
  int64_t recovery = 0;
};

} // namespace

/// The key of a buffer in `blockOf`: a value, and for a future the number of the result.
static std::pair<Value, unsigned> getOwner(Value value) {
  value = rt::getBuffer(value);
  if (auto wait = value.getDefiningOp<rt::WaitOp>())
    return {wait.getFuture(), cast<OpResult>(value).getResultNumber()};
  return {value, 0};
}

void Planner::findUses() {
  for (Operation &op : func.getBody().front())
    if (isa<rt::KernelOp, rt::StartOp, rt::WaitOp>(op) || op.hasTrait<OpTrait::IsTerminator>())
      steps[&op] = numSteps++;
  for (Operation &op : func.getBody().front()) {
    auto known = steps.find(&op);
    if (known == steps.end())
      continue;
    int64_t step = known->second;
    auto start = dyn_cast<rt::StartOp>(op);
    if (start)
      for (Operation *user : start.getFuture().getUsers())
        step = std::max(step, steps.lookup(user));
    for (Value operand : op.getOperands()) {
      int64_t &last = lastUse[rt::getBuffer(operand)];
      last = std::max(last, step);
    }
  }
}

/// Finds the results that are written over states.
void Planner::findUpdates() {
  for (const StateUpdate &update : findStateUpdates(func)) {
    bool isInOrder = true;
    for (size_t i = 0; i < update.values.size(); ++i) {
      Value old = update.getOld(i);
      isInOrder &= !old || lastUse.lookup(old) <= steps.lookup(update.getKernel(i));
    }
    if (!isInOrder)
      continue;
    int64_t log = 0;
    for (auto [i, value] : llvm::enumerate(update.values)) {
      rt::KernelOp kernel = update.getKernel(i);
      over[value] = {update.state, log};
      bool isRows = update.kinds[i] == UpdateKind::Rows;
      log += isRows ? getLogBytes(kernel) : 0;
      recovery += isRows ? getLogBytes(kernel) : rt::getBufferBytes(value.getType());
    }
  }
}

void Planner::makeBlocks() {
  auto add = [&](int64_t bytes, int64_t begin, int64_t end) {
    bytes = llvm::alignTo(std::max<int64_t>(bytes, 1), rt::kBufferAlignment);
    blocks.push_back({bytes, begin, end});
    return blocks.size() - 1;
  };
  for (Operation &op : func.getBody().front()) {
    int64_t step = steps.lookup(&op);
    if (auto start = dyn_cast<rt::StartOp>(op)) {
      for (auto [i, type] : llvm::enumerate(start.getFuture().getType().getTypes())) {
        int64_t end = step;
        for (Operation *user : start.getFuture().getUsers())
          end = std::max({end, steps[user], lastUse.lookup(user->getResult(i))});
        blockOf[{start.getFuture(), i}] = add(rt::getBufferBytes(type), step, end);
      }
      continue;
    }
    auto kernel = dyn_cast<rt::KernelOp>(op);
    if (!kernel)
      continue;
    llvm::SmallDenseSet<size_t> taken;
    for (OpResult result : kernel->getResults()) {
      if (over.contains(result))
        continue;
      int64_t end = std::max(step, lastUse.lookup(result));
      std::optional<size_t> inPlace;
      for (OpOperand &operand : kernel->getOpOperands()) {
        Value buffer = rt::getBuffer(operand.get());
        auto known = blockOf.find(getOwner(buffer));
        bool isOnlyReader = llvm::count_if(kernel.getInputs(), [&](Value other) {
                              return rt::getBuffer(other) == buffer;
                            }) == 1;
        if (known == blockOf.end() || lastUse[buffer] != step || !isOnlyReader ||
            taken.contains(known->second) ||
            !canWriteInPlace(kernel, operand.getOperandNumber(), result.getResultNumber()))
          continue;
        inPlace = known->second;
        break;
      }
      if (inPlace) {
        taken.insert(*inPlace);
        blocks[*inPlace].end = end;
        blockOf[{result, 0}] = *inPlace;
      } else {
        blockOf[{result, 0}] = add(rt::getBufferBytes(result), step, end);
      }
    }
  }
}

std::vector<int64_t> Planner::getLive() const {
  std::vector<int64_t> changes(numSteps + 1), bytes;
  for (const MemoryBlock &block : blocks) {
    changes[block.begin] += block.bytes;
    changes[block.end + 1] -= block.bytes;
  }
  std::partial_sum(changes.begin(), changes.end(), changes.begin());
  for (Operation &op : func->getRegion(0).front()) {
    auto step = steps.find(&op);
    bytes.push_back(step == steps.end() ? 0 : changes[step->second]);
  }
  return bytes;
}

void Planner::write(BufferPlan plan) {
  Builder builder(func.getContext());
  for (Operation &op : func.getBody().front()) {
    SmallVector<int64_t> offsets;
    if (auto kernel = dyn_cast<rt::KernelOp>(op)) {
      SmallVector<StringRef> states;
      for (Value result : kernel->getResults()) {
        auto known = over.find(result);
        bool isOver = known != over.end();
        states.push_back(isOver ? known->second.state.getValue() : StringRef());
        offsets.push_back(isOver ? known->second.log : blocks[blockOf.at({result, 0})].offset);
      }
      kernel.setOffsets(offsets);
      kernel.removeOverAttr();
      if (!llvm::all_of(states, [](StringRef state) { return state.empty(); }))
        kernel.setOverAttr(builder.getStrArrayAttr(states));
    } else if (auto start = dyn_cast<rt::StartOp>(op)) {
      for (size_t i = 0; i < start.getFuture().getType().getTypes().size(); ++i)
        offsets.push_back(blocks[blockOf.at({start.getFuture(), i})].offset);
      start.setOffsets(offsets);
    }
  }
  func->setAttr(rt::RtDialect::kArenaAttr, builder.getI64IntegerAttr(plan.arena));
  func->setAttr(rt::RtDialect::kLiveAttr, builder.getI64IntegerAttr(plan.live));
}

BufferPlan Planner::getLeast() const {
  int64_t live = getLargestLiveSet(blocks);
  return {live, live, recovery};
}

BufferPlan Planner::measure(SearchEffort effort, int64_t enough) {
  int64_t live = getLargestLiveSet(blocks);
  return {assignOffsets(blocks, effort, enough - recovery), live, recovery};
}

void Planner::run() {
  // Under a ceiling, a large search is for arenas that do not fit otherwise.
  auto ceiling = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kCeilingAttr);
  int64_t budget = ceiling ? ceiling.getInt() - getFixedBytes(func) : 0;
  BufferPlan plan = ceiling ? measure(SearchEffort::Some, /*enough=*/0) : BufferPlan();
  if (!ceiling || plan.arena + plan.recovery > budget)
    plan = measure(SearchEffort::Much, budget);
  write(plan);
}

/// Checks that every computed value is computed in a launch.
static LogicalResult checkFormed(func::FuncOp func) {
  if (!func.getBody().hasOneBlock())
    return emitError(func.getLoc(), "'")
           << func.getName() << "': expected one block, got " << func.getBody().getBlocks().size();
  for (Operation &op : func.getBody().front().without_terminator())
    if (!isa<rt::RtDialect>(op.getDialect()) && !op.hasTrait<OpTrait::ConstantLike>() &&
        !rt::isView(&op))
      return op.emitOpError("is not in a launch: expected '--form-kernels' to have run");
  return success();
}

BufferPlan meshwright::planBuffers(func::FuncOp func, SearchEffort effort, int64_t enough) {
  return Planner(func).measure(effort, enough);
}

BufferPlan meshwright::planBuffersWithin(func::FuncOp func, ArrayRef<SearchEffort> efforts, int64_t enough,
                                         int64_t bound) {
  Planner planner(func);
  BufferPlan plan = planner.getLeast();
  if (plan.arena + plan.recovery > bound)
    return plan;
  for (SearchEffort effort : efforts)
    if (plan = planner.measure(effort, enough); plan.arena + plan.recovery <= bound)
      break;
  return plan;
}

LiveBytes meshwright::getLiveBytes(func::FuncOp func) {
  Planner planner(func);
  return {planner.getLive(), planner.getLeast().recovery};
}

namespace {

struct PlanBuffersPass : meshwright::impl::PlanBuffersPassBase<PlanBuffersPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    if (!getKernelTarget(func))
      return signalPassFailure();
    // Removes an earlier plan. Then checks that starts and waits pair up, as the planner
    // needs.
    func->removeAttr(rt::RtDialect::kArenaAttr);
    if (failed(verifyRaces(func)))
      return signalPassFailure();
    if (failed(checkFormed(func)))
      return signalPassFailure();
    Planner(func).run();
    if (failed(verifyRaces(func)))
      signalPassFailure();
  }
};

} // namespace
