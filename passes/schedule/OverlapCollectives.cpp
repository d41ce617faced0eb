//===- OverlapCollectives.cpp - an order that hides communication ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/optimise/TokenSharding.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/ListScheduler.h"
#include "meshwright/passes/schedule/Passes.h"

#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_OVERLAPCOLLECTIVES
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kPass = "overlap-collectives";

/// A function of launches as tasks: kernels, and collectives with their waits.
/// What is between launches (views, constants, prepared parameters) goes with
/// its readers.
class Program {
public:
  /// `always`, `never`: whether collectives run beside kernels, whatever the
  /// links are.
  Program(func::FuncOp func, const CostModel &model, bool always, bool never);

  ArrayRef<ScheduleTask> getTasks() const { return tasks; }
  bool isBeside(unsigned i) const { return tasks[i].stream != 0; }

  /// Writes the launches in this order. Waits come where their results are
  /// first read, or directly behind the starts where nothing runs beside.
  void arrange(ArrayRef<unsigned> order, bool blocking = false);

private:
  int64_t getKernelTime(rt::KernelOp kernel) const;
  void addDependences(ScheduleTask &task, Operation *op);
  void place(Operation *op);
  void placeOperands(Operation *op);

  Block &block;
  const CostModel &model;
  std::vector<ScheduleTask> tasks;
  std::vector<Operation *> launches;
  /// The task of a launch, or of a wait.
  DenseMap<Operation *, unsigned> numbers;
  DenseSet<Operation *> placed;
};

} // namespace

int64_t Program::getKernelTime(rt::KernelOp kernel) const {
  int64_t bytes = 0, arithmetic = 0;
  for (ValueRange values : {ValueRange(kernel->getOperands()), ValueRange(kernel->getResults())})
    for (Value value : values)
      bytes += rt::getBufferBytes(value.getType());
  for (Operation &op : kernel.getOps())
    if (double flops = getFlops(&op))
      arithmetic += model.getComputeTime(
          flops, cast<RankedTensorType>(op.getResult(0).getType()).getElementType());
  return model.getLaunchTime() + std::max(arithmetic, model.getMemoryTime(bytes));
}

/// What makes the operands, seen through what is between launches.
void Program::addDependences(ScheduleTask &task, Operation *op) {
  llvm::SmallSetVector<unsigned, 4> dependences;
  SmallVector<Operation *, 4> worklist{op};
  while (!worklist.empty())
    for (Value operand : worklist.pop_back_val()->getOperands())
      if (Operation *producer = operand.getDefiningOp()) {
        if (auto it = numbers.find(producer); it != numbers.end())
          dependences.insert(it->second);
        else
          worklist.push_back(producer);
      }
  task.dependences.append(dependences.begin(), dependences.end());
}

Program::Program(func::FuncOp func, const CostModel &model, bool always, bool never)
    : block(func.front()), model(model) {
  for (Operation &op : block) {
    auto kernel = dyn_cast<rt::KernelOp>(op);
    auto start = dyn_cast<rt::StartOp>(op);
    if (auto wait = dyn_cast<rt::WaitOp>(op))
      numbers[&op] = numbers.lookup(wait.getStart());
    if (!kernel && !start)
      continue;
    ScheduleTask task;
    addDependences(task, &op);
    if (kernel) {
      task.time = getKernelTime(kernel);
      for (Value result : kernel->getResults())
        task.bytes += rt::getBufferBytes(result.getType());
    } else {
      Operation *collective = start.getCollective();
      if (!never && (always || model.runsBeside(getCollectiveAxes(collective, model.getMesh()))))
        task.stream = start.getStream();
      if (std::optional<Cost> cost = model.getCost(collective))
        task.time = cost->time;
      for (Type type : start.getFuture().getType().getTypes())
        task.bytes += rt::getBufferBytes(type);
    }
    numbers[&op] = tasks.size();
    tasks.push_back(std::move(task));
    launches.push_back(&op);
  }
}

/// Puts an op at the end, what it needs before it.
void Program::place(Operation *op) {
  if (!placed.insert(op).second)
    return;
  placeOperands(op);
  op->moveBefore(block.getTerminator());
}

void Program::placeOperands(Operation *op) {
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      place(producer);
}

void Program::arrange(ArrayRef<unsigned> order, bool blocking) {
  placed.clear();
  for (unsigned i : order) {
    place(launches[i]);
    auto start = dyn_cast<rt::StartOp>(launches[i]);
    if (start && (blocking || !isBeside(i)))
      for (Operation *wait : start.getFuture().getUsers())
        place(wait);
  }
  // What only the function's results need, or nobody.
  placeOperands(block.getTerminator());
  for (unsigned i : order)
    if (auto start = dyn_cast<rt::StartOp>(launches[i]))
      for (Operation *wait : start.getFuture().getUsers())
        place(wait);
}

namespace {

struct OverlapCollectivesPass : meshwright::impl::OverlapCollectivesBase<OverlapCollectivesPass> {
  using OverlapCollectivesBase::OverlapCollectivesBase;

  LogicalResult initialize(MLIRContext *context) override {
    if (when != "auto" && when != "always" && when != "never")
      return emitError(UnknownLoc::get(context))
             << kPass << ": option 'when' is '" << when << "', expected auto, always or never";
    return success();
  }

  void runOnOperation() override;
  /// Finds an order within the ceiling; the schedule, where it has one.
  LogicalResult fit(func::FuncOp func, int64_t ceiling, Program &program, Schedule &schedule);
};

} // namespace

LogicalResult OverlapCollectivesPass::fit(func::FuncOp func, int64_t ceiling, Program &program,
                                          Schedule &schedule) {
  int64_t fixed = 0;
  for (Type type : func.getArgumentTypes())
    fixed += rt::getBufferBytes(type);
  int64_t budget = ceiling - fixed, first = planBuffers(func).arena, least = first;
  if (first <= budget)
    return success();
  // Orders that keep to less and less, whatever the ceiling: so the least of them
  // is one that a ceiling can ask for. The arena may need more than the sum of
  // what is in it at once.
  auto tryOrder = [&](Schedule next, bool blocking) {
    schedule = std::move(next);
    if (blocking)
      schedule.exposed = schedule.communication;
    program.arrange(schedule.order, blocking);
    int64_t arena = planBuffers(func).arena;
    least = std::min(least, arena);
    return arena <= budget;
  };
  for (int64_t tenths = 9; tenths > 0; --tenths)
    if (tryOrder(scheduleTasks(program.getTasks(), std::max<int64_t>(1, first / 10 * tenths)),
                 /*blocking=*/false))
      return success();
  // As it came, and with the least that each step may take.
  if (tryOrder(playInOrder(program.getTasks()), /*blocking=*/true) ||
      tryOrder(scheduleTasks(program.getTasks(), 1), /*blocking=*/true))
    return success();
  return emitError(func.getLoc(), "'")
         << func.getName() << "' needs " << fixed + least << " bytes on a rank, " << fixed
         << " for parameters and inputs and " << least
         << " for what it computes, in the most frugal order: expected at most " << ceiling
         << ", the memory ceiling";
}

void OverlapCollectivesPass::runOnOperation() {
  func::FuncOp func = getOperation();
  if (func.isExternal() || !func.getBody().hasOneBlock())
    return;
  MeshAttr mesh = getSpmdMesh(func);
  if (!mesh)
    mesh = MeshAttr::get(&getContext(), {}, "");
  if (failed(verifyDevice(mesh, [&] { return func.emitError() << "mesh: "; })))
    return signalPassFailure();
  CostModel model(mesh);
  auto asked = func->getAttrOfType<StringAttr>(rt::RtDialect::kOverlapAttr);
  bool always = asked ? asked == "on" : when == "always";
  bool never = asked ? asked == "off" : when == "never";
  int64_t ceiling = memoryCeiling;
  if (auto attr = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kCeilingAttr); attr && !ceiling)
    ceiling = attr.getInt();
  Program program(func, model, always, never);
  ArrayRef<ScheduleTask> tasks = program.getTasks();
  bool anyBeside = llvm::any_of(tasks, [](const ScheduleTask &task) { return task.stream != 0; });
  Schedule schedule;
  if (anyBeside) {
    schedule = scheduleTasks(tasks);
    program.arrange(schedule.order);
  }
  if (ceiling && failed(fit(func, ceiling, program, schedule)))
    return signalPassFailure();
  if (!anyBeside)
    return;
  DistDialect::getDecisionLog(&getContext())
      .add(kPass.str(), Outcome::Note, func.getLoc(),
           "collectives start when their operands are there and are waited for where their "
           "results are read",
           {{"communication_seconds", double(schedule.communication) * 1e-12},
            {"exposed_seconds", double(schedule.exposed) * 1e-12},
            {"hidden_seconds",
             double(std::max<int64_t>(0, schedule.communication - schedule.exposed)) * 1e-12},
            {"seconds", double(schedule.time) * 1e-12}});
}
