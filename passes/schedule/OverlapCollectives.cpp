//===- OverlapCollectives.cpp - an order that hides communication ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/OverlapCollectives.h"

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/AheadScheduler.h"
#include "meshwright/passes/schedule/BufferPlan.h"
#include "meshwright/passes/schedule/JoinLaunches.h"
#include "meshwright/passes/schedule/LaunchTasks.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

namespace meshwright {
#define GEN_PASS_DEF_OVERLAPCOLLECTIVESPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kOverlapCollectives = "overlap-collectives";

/// A function of launches that is put into another order.
class Program {
public:
  Program(func::FuncOp func, const CostModel &model, RunBeside beside)
      : block(&func.front()), launches(func, model, beside) {}

  /// The same launches; no collective runs beside kernels.
  Program getBlocking() const {
    Program blocking = *this;
    for (ScheduleTask &task : blocking.launches.tasks) {
      task.link = 0;
      task.inTurn = task.frees = false;
    }
    return blocking;
  }

  ArrayRef<ScheduleTask> getTasks() const { return launches.tasks; }

  /// Writes the launches in the order of the schedule. A wait comes where the schedule says so,
  /// else before the first reader of its results, or directly behind its start if nothing runs
  /// beside it.
  void arrange(const Schedule &schedule, bool blocking = false);

private:
  rt::StartOp getStart(unsigned i) const { return dyn_cast<rt::StartOp>(launches.launches[i]); }
  void place(Operation *op);
  void placeOperands(Operation *op);

  Block *block;
  LaunchTasks launches;
  ProgramSet<Operation *> placed;
};

} // namespace

/// Puts an op at the end, and the producers of its operands before it.
void Program::place(Operation *op) {
  if (!placed.insert(op).second)
    return;
  placeOperands(op);
  op->moveBefore(block->getTerminator());
}

void Program::placeOperands(Operation *op) {
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      place(producer);
}

void Program::arrange(const Schedule &schedule, bool blocking) {
  ArrayRef<unsigned> order = schedule.order;
  placed.clear();
  const auto *wait = schedule.waits.data(), *end = wait + schedule.waits.size();
  for (unsigned i : order) {
    for (; !blocking && wait != end && wait->second == i; ++wait)
      for (Operation *op : getStart(wait->first).getFuture().getUsers())
        place(op);
    // A collective that reads a state ends before a kernel writes over it.
    for (unsigned read : launches.tasks[i].unread)
      if (rt::StartOp other = getStart(read))
        for (Operation *op : other.getFuture().getUsers())
          place(op);
    place(launches.launches[i]);
    rt::StartOp start = getStart(i);
    if (start && (blocking || launches.tasks[i].link == 0))
      for (Operation *wait : start.getFuture().getUsers())
        place(wait);
  }
  // Ops that only the function's results need, then waits whose results have no users.
  placeOperands(block->getTerminator());
  for (unsigned i : order)
    if (rt::StartOp start = getStart(i))
      for (Operation *wait : start.getFuture().getUsers())
        place(wait);
}

/// The bytes that a rank holds for other entries and for commits.
static int64_t getResidentBytes(func::FuncOp func) {
  auto attr = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kResidentAttr);
  return attr ? attr.getInt() : 0;
}

int64_t meshwright::getFixedBytes(func::FuncOp func) {
  int64_t bytes = getPackingBytes(func) - getSavedBytes(func) + getResidentBytes(func);
  for (Type type : func.getArgumentTypes())
    bytes += rt::getBufferBytes(type);
  return bytes;
}

namespace {

/// An order of launches, and how it is written.
struct Order {
  Schedule schedule;
  bool blocks = false;
  /// The bytes of its arena, once one is planned.
  int64_t bytes = std::numeric_limits<int64_t>::max();
};

/// Tries orders of a function under a budget of bytes.
class OrderSearch {
public:
  OrderSearch(func::FuncOp func, int64_t budget, int64_t communication)
      : func(func), budget(budget), communication(communication) {}

  /// Writes the order.
  void arrange(Program &program, const Order &order);
  /// Returns true if the order that is written fits.
  bool fits(ArrayRef<SearchEffort> efforts) {
    plan = planBuffersWithin(func, efforts, budget, budget);
    return getBytes() <= budget;
  }
  bool tryOrder(Program &program, const Order &order, SearchEffort effort) {
    arrange(program, order);
    return fits(effort);
  }
  /// Writes the order, and keeps it if no frugal order needs less.
  void measureFrugal(Program &program, Order order);
  /// Writes the order that takes the least time of those under memory limits up to `most`. Returns false if
  /// none fits. `blocking` has the same launches; none runs beside another.
  bool tryLimits(Program &program, Program &blocking, int64_t most);

  int64_t getBytes() const { return plan.arena + plan.recovery; }
  int64_t getLive() const { return plan.live + plan.recovery; }

  Order frugal;
  /// The schedule of the order that is written.
  Schedule schedule;

private:
  /// Steps between the memory of a frugal order and that of the order that hides most; of list schedules, half
  /// as many.
  static constexpr int64_t kSteps = 32;
  /// Steps below the memory of a frugal order, each a part of so many of it. The fullest places stay as they are
  /// under these limits: if others fill up, blocks find places less easily.
  static constexpr int64_t kBelow = 16, kPart = 32;
  /// So many orders are tried under limits below the highest one whose order fits, if they take less time.
  static constexpr size_t kLower = 3;
  /// Other orders of kernels are tried if more than one part of so many of the communication shows.
  static constexpr int64_t kMostShown = 20;

  using MakeSchedule = llvm::function_ref<Schedule(int64_t step)>;

  bool attempt(Program &program, Schedule schedule);
  int64_t bisect(Program &program, int64_t first, int64_t last, MakeSchedule make);
  void tryAhead(Program &program, const Schedule &base, int64_t most);
  void tryLists(Program &program, int64_t least, int64_t most);
  bool showsMuch() const { return !best || best->schedule.exposed > best->schedule.communication / kMostShown; }

  func::FuncOp func;
  int64_t budget, communication;
  BufferPlan plan;
  /// The best order under a limit, and the smallest order that exceeds the budget only because of gaps between
  /// blocks.
  std::optional<Order> best, nearest;
};

} // namespace

void OrderSearch::arrange(Program &program, const Order &order) {
  schedule = order.schedule;
  if (order.blocks)
    schedule.exposed = schedule.communication = communication;
  program.arrange(schedule, order.blocks);
}

void OrderSearch::measureFrugal(Program &program, Order order) {
  arrange(program, order);
  plan = planBuffers(func, SearchEffort::Much, budget);
  order.bytes = getBytes();
  if (order.bytes < frugal.bytes)
    frugal = std::move(order);
}

/// Keeps a schedule if it fits and takes less time than the best. Returns true if it fits.
bool OrderSearch::attempt(Program &program, Schedule schedule) {
  Order order{std::move(schedule)};
  bool holds = tryOrder(program, order, SearchEffort::Some);
  order.bytes = getBytes();
  if (holds && (!best || order.schedule.time < best->schedule.time))
    best = std::move(order);
  else if (!holds && getLive() <= budget && (!nearest || order.bytes < nearest->bytes))
    nearest = std::move(order);
  return holds;
}

/// Tries the schedules of some steps. Returns the last one that fits: an order uses what its limit allows. One
/// before the first if none does.
int64_t OrderSearch::bisect(Program &program, int64_t first, int64_t last, MakeSchedule make) {
  int64_t low = first - 1, high = last + 1;
  for (int64_t step = last; high - low > 1; step = low + (high - low) / 2)
    (attempt(program, make(step)) ? low : high) = step;
  return low;
}

/// Tries the kernels in the order of `base`, in which nothing runs beside them, with collectives ahead. The
/// limits do not depend on the ceiling, so that a higher one takes an order that hides no less.
void OrderSearch::tryAhead(Program &program, const Schedule &base, int64_t most) {
  auto make = [&](int64_t step) {
    int64_t limit = step < 0 ? base.peak + base.peak / kPart * step
                             : base.peak + int64_t(double(most - base.peak) * double(step) / kSteps);
    return scheduleAhead(program.getTasks(), base.order, std::max<int64_t>(1, limit));
  };
  int64_t highest = bisect(program, -kBelow, kSteps, make);
  // A collective that begins early may keep the place of one that is needed sooner.
  SmallVector<Schedule> lower;
  for (int64_t step = -kBelow; step < highest; ++step)
    if (Schedule schedule = make(step); schedule.time < best->schedule.time)
      lower.push_back(std::move(schedule));
  llvm::sort(lower, [](const Schedule &a, const Schedule &b) {
    return std::pair(a.time, a.peak) < std::pair(b.time, b.peak);
  });
  for (Schedule &schedule : MutableArrayRef(lower).take_front(kLower))
    if (schedule.time < best->schedule.time)
      attempt(program, std::move(schedule));
}

/// Tries other orders of kernels, which list schedules make.
void OrderSearch::tryLists(Program &program, int64_t least, int64_t most) {
  auto make = [&](int64_t step) {
    int64_t limit = least + int64_t(double(most - least) * double(2 * step) / kSteps);
    return scheduleTasks(program.getTasks(), std::max<int64_t>(1, limit));
  };
  int64_t highest = bisect(program, 0, kSteps / 2, make);
  for (int64_t below = 1; below <= highest && showsMuch(); below *= 2)
    if (Schedule schedule = make(highest - below); schedule.time < best->schedule.time)
      attempt(program, std::move(schedule));
}

bool OrderSearch::tryLimits(Program &program, Program &blocking, int64_t most) {
  if (most <= frugal.schedule.peak)
    return false;
  const Schedule base = frugal.schedule;
  tryAhead(program, base, most);
  // Another order of kernels may hide more.
  if (showsMuch())
    for (const Schedule &other : {simulateInOrder(blocking.getTasks()), scheduleTasks(blocking.getTasks(), 1)})
      if (other.order != base.order && other.peak < most)
        tryAhead(program, other, most);
  if (showsMuch())
    tryLists(program, base.peak, most);
  // A larger search may find what the small one did not.
  if (!best)
    return nearest && tryOrder(program, *nearest, SearchEffort::Much);
  return tryOrder(program, *best, SearchEffort::Some);
}

/// Finds an order within the ceiling, and its schedule. `plain` has the same launches,
/// but no collective runs beside kernels; null if none does in `program`.
///
/// Outline, until an arena fits into the bytes that arguments and packing leave:
///  1. the present order, with a small and a large search budget;
///  2. the frugal orders, in which nothing runs beside kernels: the original one, and if that exceeds them,
///     the one with the least memory per step, each with a large budget. If neither fits, no order does:
///     the error names the smallest arena so far;
///  3. `tryLimits`: the kernels of the frugal orders with collectives ahead, and list schedules, under memory
///     limits up to that of the present order;
///  4. the best frugal order.
static OverlapResult fit(func::FuncOp func, int64_t ceiling, Program &program, Program *plain,
                         Schedule &schedule) {
  int64_t packing = getPackingBytes(func), resident = getResidentBytes(func);
  int64_t fixed = getFixedBytes(func);
  int64_t budget = ceiling - fixed;
  OrderSearch search(func, budget, schedule.communication);
  // An arena can be larger than the largest sum of live buffers, so it is planned, if those fit.
  if (search.fits({SearchEffort::Some, SearchEffort::Much}))
    return {success()};
  const Order present{schedule};
  const int64_t live = search.getLive();
  Program &blocking = plain ? *plain : program;
  search.measureFrugal(blocking, {simulateInOrder(blocking.getTasks()), /*blocks=*/true});
  if (search.frugal.bytes > budget)
    search.measureFrugal(blocking, {scheduleTasks(blocking.getTasks(), 1), /*blocks=*/true});
  Order &frugal = search.frugal;
  bool found = frugal.bytes <= budget && (search.tryLimits(program, blocking, present.schedule.peak) ||
                                          search.tryOrder(blocking, frugal, SearchEffort::Much));
  schedule = search.schedule;
  if (found)
    return {success(), /*needed=*/0, /*time=*/0, /*hidesMost=*/false};
  if (live < frugal.bytes)
    search.measureFrugal(program, present);
  const int64_t least = frugal.bytes;
  InFlightDiagnostic error = emitError(func.getLoc(), "'")
                             << func.getName() << "' needs " << fixed + least
                             << " bytes on a rank, " << fixed << " for parameters and inputs";
  if (packing)
    error << " (" << packing << " of them for packing)";
  if (resident)
    error << " (" << resident << " of them for other entries and commits)";
  error << " and " << least << " for what it computes, in the most frugal order: expected at most "
        << ceiling << ", the memory ceiling";
  if (getRequestedOverlap(func) == OnOffAuto::On)
    error << "; 'overlap=on' cuts collectives into chunks wherever it can, 'overlap=auto' may need "
             "less";
  return {error, fixed + least};
}

namespace {

/// The launches of a function, and the order that hides most.
struct Launches {
  Launches(func::FuncOp func, const CostModel &model, RunBeside beside, int64_t slack)
      : program(func, model, beside), plain(program.getBlocking()) {
    anyBeside = llvm::any_of(program.getTasks(),
                             [](const ScheduleTask &task) { return task.link != 0; });
    if (!anyBeside)
      return;
    schedule = scheduleTasks(program.getTasks(), /*memory=*/0, slack);
    program.arrange(schedule);
  }

  Program program, plain;
  /// True if any collective runs beside kernels.
  bool anyBeside;
  Schedule schedule;
};

} // namespace

static RunBeside getRunBeside(OnOffAuto mode) {
  return mode == OnOffAuto::On    ? RunBeside::Always
         : mode == OnOffAuto::Off ? RunBeside::Never
                                  : RunBeside::ByLink;
}

/// Returns true if the present order fits beside second buffers for the states.
static bool fitsPresent(func::FuncOp func, int64_t ceiling) {
  int64_t budget = ceiling - getFixedBytes(func);
  BufferPlan plan = planBuffersWithin(func, {SearchEffort::Some, SearchEffort::Much}, budget, budget);
  return plan.arena + plan.recovery <= budget;
}

OverlapResult meshwright::overlapCollectives(func::FuncOp func, OnOffAuto mode, int64_t ceiling,
                                             bool bestOnly, bool fitOnly) {
  if (func.isExternal() || !func.getBody().hasOneBlock())
    return {success()};
  MeshAttr mesh = getSpmdMesh(func);
  if (!mesh)
    mesh = MeshAttr::get(func.getContext(), {}, "");
  if (failed(verifyDevice(mesh, func)))
    return {failure()};
  CostModel model(mesh);
  RunBeside beside = getRunBeside(getRequestedOverlap(func).value_or(mode));
  if (auto attr = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kCeilingAttr); attr && !ceiling)
    ceiling = attr.getInt();
  const int64_t asked = ceiling;
  const int64_t slack = asked ? kTightSlack : kLooseSlack;
  Launches launches(func, model, beside, slack);
  OverlapResult result{success()};
  auto mayCopy = [&] { return !func->hasAttr(rt::RtDialect::kCopiesAttr) && !findStateUpdates(func).empty(); };
  if (bestOnly || (ceiling && mayCopy())) {
    if (fitsPresent(func, ceiling))
      ceiling = 0;
    else if (bestOnly)
      return {failure()};
    else
      func->setAttr(rt::RtDialect::kCopiesAttr, UnitAttr::get(func.getContext()));
    if (ceiling)
      launches = Launches(func, model, beside, slack);
  }
  if (ceiling)
    result = fit(func, ceiling, launches.program, launches.anyBeside ? &launches.plain : nullptr,
                 launches.schedule);
  if (failed(result.status))
    return result;
  Schedule &schedule = launches.schedule;
  result.time = launches.anyBeside ? schedule.time : simulateInOrder(launches.plain.getTasks()).time;
  // Without a ceiling they travel together before launches are formed.
  if (asked && !fitOnly)
    if (auto joined = joinLaunches(func, model, beside, asked - getFixedBytes(func))) {
      schedule = std::move(*joined);
      result.time = schedule.time;
    }
  if (!launches.anyBeside)
    return result;
  DistDialect::getDecisionLog(func.getContext())
      .add(kOverlapCollectives.str(), Outcome::Note, func.getLoc(),
           "collectives start when their operands are there and are waited for where their "
           "results are read",
           {{"communication_seconds", double(schedule.communication) * 1e-12},
            {"exposed_seconds", double(schedule.exposed) * 1e-12},
            {"hidden_seconds",
             double(std::max<int64_t>(0, schedule.communication - schedule.exposed)) * 1e-12},
            {"seconds", double(schedule.time) * 1e-12}});
  return result;
}

namespace {

struct OverlapCollectivesPass
    : meshwright::impl::OverlapCollectivesPassBase<OverlapCollectivesPass> {
  using OverlapCollectivesPassBase::OverlapCollectivesPassBase;

  void runOnOperation() override {
    if (failed(overlapCollectives(getOperation(), when, memoryCeiling).status))
      signalPassFailure();
  }
};

} // namespace
