//===- PlanBuffers.cpp - places in the arena ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block is bytes of the arena for a range of launches: a result, and those
// that are written over it. Each of several orders places the blocks one by one
// in the lowest gap among those that are needed at the same time; the plan with
// the smallest arena is kept.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Analysis/InPlace.h"
#include "meshwright/lib/Analysis/RaceAnalysis.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/Builders.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

namespace meshwright {
#define GEN_PASS_DEF_PLANBUFFERS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// How often, and for how many blocks in all, another order is tried after those
/// that are always tried.
constexpr int64_t kMaxRounds = 64, kMaxPlacements = 64 << 10;

struct BufferBlock {
  int64_t bytes;
  /// The first and the last launch that need it.
  int64_t begin, end;
  int64_t offset = 0;
};

class Planner {
public:
  explicit Planner(func::FuncOp func) : func(func) {
    findUses();
    makeBlocks();
  }
  void run();
  /// Without writing it.
  BufferPlan measure();
  /// Bytes that are needed at each step.
  std::vector<int64_t> getLive() const;

private:
  void findUses();
  void makeBlocks();
  int64_t place(ArrayRef<size_t> order, SmallVectorImpl<int64_t> &offsets) const;
  void plan();
  void write();

  func::FuncOp func;
  /// The launches (and all other ops) in order, and the last one that needs a
  /// buffer.
  int64_t numSteps = 0;
  DenseMap<Operation *, int64_t> steps;
  DenseMap<Value, int64_t> lastUse;
  std::vector<BufferBlock> blocks;
  /// The block of a buffer: a kernel's result, or a future with an index.
  DenseMap<std::pair<Value, unsigned>, size_t> blockOf;
  int64_t arena = 0, live = 0;
};

} // namespace

/// The value, and which result of a collective it is, that stands for a buffer.
static std::pair<Value, unsigned> getOwner(Value value) {
  value = rt::getBuffer(value);
  if (auto wait = value.getDefiningOp<rt::WaitOp>())
    return {wait.getFuture(), cast<OpResult>(value).getResultNumber()};
  return {value, 0};
}

void Planner::findUses() {
  for (Operation &op : func.getBody().front())
    steps[&op] = numSteps++;
  for (Operation &op : func.getBody().front()) {
    int64_t step = steps[&op];
    auto start = dyn_cast<rt::StartOp>(op);
    if (start)
      for (Operation *user : start.getFuture().getUsers())
        step = std::max(step, steps.lookup(user));
    // Views are no uses: what reads them is.
    if (rt::isView(&op))
      continue;
    for (Value operand : op.getOperands()) {
      int64_t &last = lastUse[rt::getBuffer(operand)];
      last = std::max(last, step);
    }
  }
}

void Planner::makeBlocks() {
  auto add = [&](Type type, int64_t begin, int64_t end) {
    int64_t bytes = llvm::alignTo(std::max<int64_t>(rt::getBufferBytes(type), 1), rt::kAlignment);
    blocks.push_back({bytes, begin, end});
    return blocks.size() - 1;
  };
  for (Operation &op : func.getBody().front()) {
    int64_t step = steps[&op];
    if (auto start = dyn_cast<rt::StartOp>(op)) {
      for (auto [i, type] : llvm::enumerate(start.getFuture().getType().getTypes())) {
        int64_t end = step;
        for (Operation *user : start.getFuture().getUsers())
          end = std::max({end, steps[user], lastUse.lookup(user->getResult(i))});
        blockOf[{start.getFuture(), i}] = add(type, step, end);
      }
      continue;
    }
    auto kernel = dyn_cast<rt::KernelOp>(op);
    if (!kernel)
      continue;
    llvm::SmallDenseSet<size_t> taken;
    for (OpResult result : kernel->getResults()) {
      int64_t end = std::max(step, lastUse.lookup(result));
      std::optional<size_t> over;
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
        over = known->second;
        break;
      }
      if (over) {
        taken.insert(*over);
        blocks[*over].end = end;
        blockOf[{result, 0}] = *over;
      } else {
        blockOf[{result, 0}] = add(result.getType(), step, end);
      }
    }
  }
}

/// Offsets for the blocks in an order; returns the arena's size.
int64_t Planner::place(ArrayRef<size_t> order, SmallVectorImpl<int64_t> &offsets) const {
  offsets.assign(blocks.size(), 0);
  // The placed blocks that are needed at each step, and that begin there.
  std::vector<SmallVector<size_t, 8>> neededAt(numSteps), beginAt(numSteps);
  int64_t peak = 0;
  SmallVector<size_t> others;
  for (size_t i : order) {
    const BufferBlock &block = blocks[i];
    others.assign(neededAt[block.begin].begin(), neededAt[block.begin].end());
    for (int64_t step = block.begin + 1; step <= block.end; ++step)
      others.append(beginAt[step].begin(), beginAt[step].end());
    llvm::sort(others, [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
    int64_t offset = 0;
    for (size_t other : others) {
      if (offsets[other] - offset >= block.bytes)
        break;
      offset = std::max(offset, offsets[other] + blocks[other].bytes);
    }
    offsets[i] = offset;
    peak = std::max(peak, offset + block.bytes);
    beginAt[block.begin].push_back(i);
    for (int64_t step = block.begin; step <= block.end; ++step)
      neededAt[step].push_back(i);
  }
  return peak;
}

std::vector<int64_t> Planner::getLive() const {
  std::vector<int64_t> bytes(numSteps + 1);
  for (const BufferBlock &block : blocks) {
    bytes[block.begin] += block.bytes;
    bytes[block.end + 1] -= block.bytes;
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  bytes.pop_back();
  return bytes;
}

void Planner::plan() {
  std::vector<int64_t> bytes = getLive();
  live = *std::max_element(bytes.begin(), bytes.end());
  arena = -1;
  std::vector<size_t> best;
  auto attempt = [&](const std::vector<size_t> &order) {
    SmallVector<int64_t> offsets;
    int64_t peak = place(order, offsets);
    // As good is as good: the next step starts from elsewhere.
    if (arena >= 0 && peak > arena)
      return;
    arena = peak;
    best = order;
    for (auto [block, offset] : llvm::zip_equal(blocks, offsets))
      block.offset = offset;
  };
  auto attemptBy = [&](auto before) {
    if (arena == live)
      return;
    std::vector<size_t> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return before(blocks[a], blocks[b]); });
    attempt(order);
  };
  auto span = [](const BufferBlock &block) { return block.end - block.begin + 1; };
  // As they come; the largest first; those needed longest first; the most bytes
  // times steps first.
  attemptBy([](const BufferBlock &a, const BufferBlock &b) { return a.begin < b.begin; });
  attemptBy([](const BufferBlock &a, const BufferBlock &b) {
    return std::make_pair(-a.bytes, a.begin) < std::make_pair(-b.bytes, b.begin);
  });
  attemptBy([&](const BufferBlock &a, const BufferBlock &b) {
    return std::make_tuple(-span(a), -a.bytes) < std::make_tuple(-span(b), -b.bytes);
  });
  attemptBy([&](const BufferBlock &a, const BufferBlock &b) {
    return double(a.bytes) * span(a) > double(b.bytes) * span(b);
  });
  // What lies on top was placed too late: before all others it gets a place below.
  int64_t rounds = std::min<int64_t>(kMaxRounds, kMaxPlacements / (blocks.size() + 1));
  for (int64_t round = 0; round < rounds && arena - live > live / 100; ++round) {
    std::vector<size_t> order = best;
    std::stable_partition(order.begin(), order.end(), [&](size_t block) {
      return blocks[block].offset + blocks[block].bytes == arena;
    });
    attempt(order);
  }
}

void Planner::write() {
  for (Operation &op : func.getBody().front()) {
    SmallVector<int64_t> offsets;
    if (auto kernel = dyn_cast<rt::KernelOp>(op)) {
      for (Value result : kernel->getResults())
        offsets.push_back(blocks[blockOf.at({result, 0})].offset);
      kernel.setOffsets(offsets);
    } else if (auto start = dyn_cast<rt::StartOp>(op)) {
      for (size_t i = 0; i < start.getFuture().getType().getTypes().size(); ++i)
        offsets.push_back(blocks[blockOf.at({start.getFuture(), i})].offset);
      start.setOffsets(offsets);
    }
  }
  Builder builder(func.getContext());
  func->setAttr(rt::RtDialect::kArenaAttr, builder.getI64IntegerAttr(arena));
  func->setAttr(rt::RtDialect::kLiveAttr, builder.getI64IntegerAttr(live));
}

BufferPlan Planner::measure() {
  plan();
  return {arena, live};
}

void Planner::run() {
  measure();
  write();
}

/// Every value that is computed is computed in a launch.
static LogicalResult checkFormed(func::FuncOp func) {
  if (!func.getBody().hasOneBlock())
    return emitError(func.getLoc(), "'")
           << func.getName() << "' has " << func.getBody().getBlocks().size()
           << " blocks, expected one";
  for (Operation &op : func.getBody().front().without_terminator())
    if (!isa<rt::RtDialect>(op.getDialect()) && !isa<nn::ConstantOp>(op) && !rt::isView(&op))
      return op.emitOpError("is not in a launch: expected '--form-kernels' to have run");
  return success();
}

BufferPlan meshwright::planBuffers(func::FuncOp func) { return Planner(func).measure(); }

std::vector<int64_t> meshwright::getLiveBytes(func::FuncOp func) { return Planner(func).getLive(); }

namespace {

struct PlanBuffersPass : meshwright::impl::PlanBuffersBase<PlanBuffersPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    // What is there of a plan goes; that starts and waits pair up is needed here.
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
