//===- LaunchTasks.cpp - launches as tasks with times ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/LaunchTasks.h"

#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Reshard/TokenSharding.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/schedule/Links.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

Operation *meshwright::getNamedOp(rt::KernelOp launch) {
  for (Operation &op : launch.getOps())
    if (op.hasTrait<Product>())
      return &op;
  return launch.getYielded().front().getDefiningOp();
}

namespace {
/// A tensor has room for so many rows, of which a share is expected to exist.
struct ExpectedRows {
  int64_t room;
  double share;
};
} // namespace

/// The rows that a kernel gives or sums, if numbers count them.
static std::optional<ExpectedRows> findCountedRows(rt::KernelOp kernel) {
  Value offsets, rows = kernel->getResult(0);
  if (std::optional<uint64_t> counter = kernel.getCountedBy())
    offsets = kernel->getOperand(*counter);
  else if (auto counted = dyn_cast_or_null<nn::CountedRowsOpInterface>(rt::getOnlyOp(kernel));
           counted && !counted.givesRows()) {
    offsets = counted.getOffsetsOfRows();
    rows = counted->getOperand(0);
  }
  // The places of a token's rows are of their route.
  if (auto sum = dyn_cast_or_null<nn::SumRowsOp>(rt::getOnlyOp(kernel))) {
    offsets = sum.getPlaces();
    rows = sum.getRows();
  }
  Operation *source = offsets ? rt::getSource(offsets).getDefiningOp() : nullptr;
  std::optional<int64_t> expected = source ? nn::getExpectedRows(source) : std::nullopt;
  int64_t room = shapeOf(rows).empty() ? 0 : shapeOf(rows).front();
  if (!expected || room == 0)
    return std::nullopt;
  return ExpectedRows{room, std::min(1.0, double(*expected) / double(room))};
}

/// Returns true if the value is the matrix of a product of the kernel.
static bool isMatrix(rt::KernelOp kernel, Value value) {
  auto product = dyn_cast_or_null<dist::MatrixOpInterface>(rt::getOnlyOp(kernel));
  return product && rt::getOuterValue(product->getOperand(product.getMatrixOperand())) == value;
}

KernelWork meshwright::getWork(rt::KernelOp kernel, bool replacesRows) {
  KernelWork work;
  if (replacesRows) {
    // It reads new rows and writes them. The log of old rows, which caches do not have, is left out.
    unsigned table = *getReplacedOperand(kernel);
    for (auto [i, operand] : llvm::enumerate(kernel->getOperands()))
      if (i != table)
        work.bytes += 2 * rt::getBufferBytes(operand.getType());
    return work;
  }
  for (Operation &op : kernel.getOps())
    addWork(&op, work);
  std::optional<ExpectedRows> expected = findCountedRows(kernel);
  double share = expected ? expected->share : 1;
  for (ValueRange values : {ValueRange(kernel->getOperands()), ValueRange(kernel->getResults())})
    for (Value value : values) {
      ArrayRef<int64_t> shape = shapeOf(value);
      bool isRows = expected && !shape.empty() && shape.front() == expected->room && !isMatrix(kernel, value);
      work.bytes += int64_t(double(rt::getBufferBytes(value.getType())) * (isRows ? share : 1));
    }
  for (auto &[flops, type] : work.flops)
    flops *= share;
  for (double *count : {&work.rows, &work.cheapElements, &work.costlyElements})
    *count *= share;
  return work;
}

/// Adds the tasks that make the operands, seen through the ops between launches, and the tasks that
/// the op waits for. `numbers` maps launches and waits to their tasks.
static void addDependences(ScheduleTask &task, Operation *op,
                           const ProgramMap<Operation *, unsigned> &numbers) {
  llvm::SmallSetVector<unsigned, 4> dependences;
  llvm::SmallDenseSet<unsigned, 4> read;
  SmallVector<std::pair<Operation *, bool>, 4> worklist{{op, true}};
  while (!worklist.empty()) {
    auto [user, reads] = worklist.pop_back_val();
    for (OpOperand &operand : user->getOpOperands()) {
      Operation *producer = operand.get().getDefiningOp();
      if (!producer)
        continue;
      bool isRead = reads && !(isa<AfterOp>(user) && operand.getOperandNumber() > 0);
      if (auto it = numbers.find(producer); it != numbers.end()) {
        dependences.insert(it->second);
        if (isRead)
          read.insert(it->second);
      } else {
        worklist.emplace_back(producer, isRead);
      }
    }
  }
  for (unsigned dependence : dependences) {
    task.dependences.push_back(dependence);
    if (!read.contains(dependence))
      task.unread.push_back(dependence);
  }
}

/// Adds the tasks before a kernel that read the value over which it may write a state.
static void addReaders(ScheduleTask &task, Value old,
                       const ProgramMap<Operation *, unsigned> &numbers) {
  for (Operation *user : old.getUsers())
    if (rt::isView(user))
      addReaders(task, user->getResult(0), numbers);
    else if (auto it = numbers.find(user);
             it != numbers.end() && !llvm::is_contained(task.dependences, it->second)) {
      task.dependences.push_back(it->second);
      task.unread.push_back(it->second);
    }
}

std::optional<OnOffAuto> meshwright::getRequestedOverlap(func::FuncOp func) {
  auto asked = func->getAttrOfType<StringAttr>(rt::RtDialect::kOverlapAttr);
  return asked ? parseSpelling<OnOffAuto>(asked) : std::nullopt;
}

/// Returns true if no weight is gathered before the one in use: each gather waits.
static bool getsNoWeightAhead(func::FuncOp func) {
  auto most = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kPrefetchAttr);
  return most && most.getInt() == 0;
}

/// Decides which kernels drain. `drains` marks those whose results take next to no memory. The mark is
/// removed where another task reads a result.
static void findDraining(std::vector<ScheduleTask> &tasks) {
  std::vector<bool> onlyDrain(tasks.size(), true);
  for (size_t i = tasks.size(); i-- > 0;) {
    ScheduleTask &task = tasks[i];
    task.drains &= onlyDrain[i];
    for (unsigned dependence : task.dependences)
      if (!task.drains && task.reads(dependence))
        onlyDrain[dependence] = false;
  }
}

LaunchTasks::LaunchTasks(func::FuncOp func, const CostModel &model, RunBeside beside) {
  ProgramMap<Operation *, unsigned> numbers;
  ProgramMap<Operation *, SmallVector<Value, 1>> overwritten;
  llvm::SmallDenseSet<Value> overStates;
  for (const StateUpdate &update : findStateUpdates(func)) {
    overStates.insert_range(update.values);
    if (update.old)
      overwritten[update.getKernel(0)].push_back(update.old);
  }
  SmallVector<CollectiveOpInterface> collectives;
  for (auto start : func.front().getOps<rt::StartOp>())
    collectives.push_back(start.getCollective());
  SmallVector<int64_t> links = numberLinks(collectives, model.getMesh());
  const int64_t *link = links.begin();
  int64_t weights = getWeightBytes(func);
  for (Operation &op : func.front()) {
    auto kernel = dyn_cast<rt::KernelOp>(op);
    auto start = dyn_cast<rt::StartOp>(op);
    if (auto wait = dyn_cast<rt::WaitOp>(op))
      numbers[&op] = numbers.lookup(wait.getStart());
    if (!kernel && !start)
      continue;
    ScheduleTask task;
    addDependences(task, &op, numbers);
    for (Value old : overwritten.lookup(&op))
      addReaders(task, old, numbers);
    if (kernel) {
      bool replacesRows = getReplacedOperand(kernel) && overStates.contains(kernel->getResult(0));
      task.time = model.getLaunchTime() + model.getKernelTime(getWork(kernel, replacesRows), weights);
      task.drains = true;
      for (Value result : kernel->getResults()) {
        if (overStates.contains(result))
          continue;
        task.bytes += rt::getBufferBytes(result);
        // Single elements, such as the rate of an optimizer.
        task.drains &= cast<RankedTensorType>(result.getType()).getNumElements() == 1;
      }
    } else {
      Operation *collective = start.getCollective();
      bool waits = getsNoWeightAhead(func) && start.getCollective().getRole() == CollectiveRole::Weights;
      if (!waits && (beside == RunBeside::Always ||
                     (beside == RunBeside::ByLink &&
                      model.runsBeside(getCollectiveAxes(collective, model.getMesh())))))
        task.link = *link;
      ++link;
      if (std::optional<Cost> cost = model.getCost(collective))
        task.time = cost->time;
      task.inTurn = task.link != 0 && start.getCollective().getRole() == CollectiveRole::Weights;
      task.frees = task.link != 0 && start.getCollective().getRole() == CollectiveRole::Gradients;
      for (Type type : start.getFuture().getType().getTypes())
        task.bytes += rt::getBufferBytes(type);
    }
    numbers[&op] = tasks.size();
    tasks.push_back(std::move(task));
    launches.push_back(&op);
  }
  findDraining(tasks);
}

void LaunchTasks::keepWaits() {
  ProgramMap<Operation *, unsigned> numbers;
  for (auto [i, launch] : llvm::enumerate(launches))
    numbers[launch] = i;
  SmallVector<unsigned> waited;
  if (launches.empty())
    return;
  for (Operation &op : *launches.front()->getBlock()) {
    if (auto wait = dyn_cast<rt::WaitOp>(op)) {
      unsigned ended = numbers.lookup(wait.getStart());
      if (op.getPrevNode() == launches[ended])
        tasks[ended].link = 0;
      waited.push_back(ended);
      continue;
    }
    auto known = numbers.find(&op);
    if (known == numbers.end())
      continue;
    ScheduleTask &task = tasks[known->second];
    for (unsigned ended : waited)
      if (!llvm::is_contained(task.dependences, ended)) {
        task.dependences.push_back(ended);
        task.unread.push_back(ended);
      }
    waited.clear();
  }
}
