//===- JoinLaunches.cpp - small neighbours of an order travel together ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A joint gather begins where its first member did, and is waited for where the first of them is read. A joint
// scatter begins where its last member did, and is waited for where that one was, or where a result is read.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/JoinLaunches.h"

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/CostModel/JointLaunches.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/BufferPlan.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Finds and writes joint launches.
///
/// Outline:
///  1. `collect` walks over the launches in order. A launch joins the open one of its kind, role, axes and stream
///     if that has room (`JointLaunches`), and `mayGather` or `mayScatter` holds: operands are there, the memory
///     at the places that a result or an operand takes in addition stays below a limit, and no launch that waits
///     for the link waits longer.
///  2. `write` makes the joint launches.
class LaunchJoiner {
public:
  LaunchJoiner(func::FuncOp func, const CostModel &model, RunBeside beside);

  /// Returns false if nothing may be joined under the limit of bytes.
  bool collect(int64_t limit);
  /// Returns the number of launches that the program has less than before.
  int64_t write();

  bool hasSmall() const { return small > 1; }
  int64_t getPeak() const { return live.whileRuns.empty() ? 0 : *llvm::max_element(live.whileRuns); }
  /// The bytes beside the arena.
  int64_t getRecovery() const { return live.recovery; }
  int64_t getTime() const { return schedule.time; }

private:
  struct Group {
    SmallVector<unsigned, 4> members;
    JointLaunches::Group size;
    /// The launch waits before this op.
    Operation *waitBefore = nullptr;
  };

  rt::StartOp getStart(unsigned task) const { return dyn_cast<rt::StartOp>(launches.launches[task]); }
  Operation *getWait(unsigned task) const { return *getStart(task).getFuture().getUsers().begin(); }
  int64_t getPlace(Operation *op) const { return places.lookup(op); }
  CollectiveOpInterface getCandidate(unsigned task) const;
  int64_t getTimeBehind(Operation *wait) const;
  bool hasRoom(const std::vector<int64_t> &present, int64_t begin, int64_t end, int64_t bytes, int64_t limit) const;
  bool sharesLink(unsigned other, unsigned task, ArrayRef<unsigned> members) const;
  int64_t getShown(unsigned task) const;
  bool delaysOthers(unsigned first, unsigned last, ArrayRef<unsigned> members, int64_t time) const;
  bool mayGather(Group &group, unsigned task, std::vector<int64_t> &present, int64_t limit) const;
  bool mayScatter(Group &group, unsigned task, std::vector<int64_t> &present, int64_t limit) const;
  bool isThereBefore(Value value, Operation *op) const;
  void join(const Group &group, SmallVectorImpl<Operation *> &replaced);

  func::FuncOp func;
  JointLaunches joint;
  LaunchTasks launches;
  Schedule schedule;
  std::optional<int64_t> ahead;
  /// The places of ops in the block, the op at each, and the number of the first launch from there on.
  ProgramMap<Operation *, int64_t> places;
  std::vector<unsigned> launchFrom;
  /// The bytes that are needed at each place.
  LiveBytes live;
  std::vector<Group> groups;
  int64_t small = 0;
};

} // namespace

/// The bytes that a buffer takes in the arena.
static int64_t getBytes(Type type) {
  return llvm::alignTo(std::max<int64_t>(rt::getBufferBytes(type), 1), rt::kBufferAlignment);
}

/// The schedule of the order as it stands, with the collectives that block kernels.
static Schedule simulatePresent(ArrayRef<ScheduleTask> tasks, ArrayRef<Operation *> launches) {
  Schedule schedule = simulateInOrder(tasks);
  for (auto [task, launch] : llvm::zip_equal(tasks, launches))
    if (task.link == 0 && isa<rt::StartOp>(launch)) {
      schedule.communication += task.time;
      schedule.exposed += task.time;
    }
  return schedule;
}

LaunchJoiner::LaunchJoiner(func::FuncOp func, const CostModel &model, RunBeside beside)
    : func(func), joint(model), launches(func, model, beside) {
  for (unsigned i = 0; i < launches.launches.size(); ++i)
    if (CollectiveOpInterface op = getCandidate(i))
      joint.note(op);
  for (unsigned i = 0; i < launches.launches.size(); ++i)
    if (CollectiveOpInterface op = getCandidate(i))
      small += joint.isSmall(op);
  if (!hasSmall())
    return;
  if (auto most = func->getAttrOfType<IntegerAttr>(rt::RtDialect::kPrefetchAttr))
    ahead = most.getInt();
  launches.keepWaits();
  schedule = simulatePresent(launches.tasks, launches.launches);
  live = getLiveBytes(func);
  unsigned launch = 0;
  for (Operation &op : func.front()) {
    places[&op] = launchFrom.size();
    launchFrom.push_back(launch);
    launch += launch < launches.launches.size() && launches.launches[launch] == &op;
  }
}

/// The collective of a launch that may be joined; null for other launches.
CollectiveOpInterface LaunchJoiner::getCandidate(unsigned task) const {
  rt::StartOp start = getStart(task);
  if (!start || !JointLaunches::isCandidate(start.getCollective()))
    return {};
  Block &block = start.getBlock();
  Operation *op = start.getCollective();
  bool isAlone = llvm::hasSingleElement(block.without_terminator()) && op->getOperands() == block.getArguments() &&
                 start.getYielded() == op->getResults();
  return isAlone ? start.getCollective() : CollectiveOpInterface();
}

/// The time at which the launch behind a wait begins.
int64_t LaunchJoiner::getTimeBehind(Operation *wait) const {
  unsigned next = launchFrom[getPlace(wait)];
  return next < launches.tasks.size() ? schedule.finish[next] - launches.tasks[next].time : schedule.time;
}

bool LaunchJoiner::hasRoom(const std::vector<int64_t> &present, int64_t begin, int64_t end, int64_t bytes,
                           int64_t limit) const {
  for (int64_t place = begin; place < end; ++place)
    if (present[place] + bytes > limit)
      return false;
  return true;
}

/// Returns true for a collective that takes turns with a task and is no member.
bool LaunchJoiner::sharesLink(unsigned other, unsigned task, ArrayRef<unsigned> members) const {
  return launches.tasks[other].link == launches.tasks[task].link && getStart(other) &&
         !llvm::is_contained(members, other);
}

/// The part of the time of a launch without bytes that shows.
int64_t LaunchJoiner::getShown(unsigned task) const {
  return schedule.shown.empty() ? 0 : std::min(schedule.shown[task], joint.getFixedTime(getCandidate(task)));
}

/// Returns true if a launch between two shows that is `time` later on the link of the first.
bool LaunchJoiner::delaysOthers(unsigned first, unsigned last, ArrayRef<unsigned> members, int64_t time) const {
  for (unsigned other = first + 1; other < last; ++other)
    if (sharesLink(other, first, members) && schedule.finish[other] + time > getTimeBehind(getWait(other)))
      return true;
  return false;
}

/// Returns true if a value, seen through what moves nothing, is there before an op.
bool LaunchJoiner::isThereBefore(Value value, Operation *op) const {
  Operation *maker = value.getDefiningOp();
  if (!maker || getPlace(maker) < getPlace(op))
    return true;
  if (isa<AfterOp>(maker) || rt::isView(maker))
    return isThereBefore(maker->getOperand(0), op);
  return false;
}

/// Takes memory for the result from the begin of the first member on.
bool LaunchJoiner::mayGather(Group &group, unsigned task, std::vector<int64_t> &present, int64_t limit) const {
  unsigned first = group.members.front();
  Operation *begin = launches.launches[first], *own = launches.launches[task];
  // Where the number of weights ahead is limited, the gather waits for the launch that states it.
  auto after = own->getOperand(0).getDefiningOp<AfterOp>();
  if (!isThereBefore(own->getOperand(0), begin) || (ahead && after && !isThereBefore(after.getEarlier(), begin)))
    return false;
  Operation *wait = getWait(task);
  if (getPlace(group.waitBefore) < getPlace(wait))
    wait = group.waitBefore;
  CollectiveOpInterface collective = getCandidate(task);
  int64_t more = group.size.transfer - joint.getTransferTime(getCandidate(first)) + joint.getTransferTime(collective);
  // The first member may show for longer if others show for less.
  int64_t saved = getShown(task);
  for (unsigned member : llvm::drop_begin(group.members))
    saved += getShown(member);
  bool isLate = schedule.finish[first] + more > getTimeBehind(wait) + saved ||
                delaysOthers(first, task, group.members, more);
  // One that blocks kernels takes no more of their time in a joint launch.
  if (launches.tasks[task].link != 0 && isLate)
    return false;
  int64_t bytes = getBytes(getStart(task).getFuture().getType().getTypes().front());
  if (!hasRoom(present, getPlace(begin), getPlace(own), bytes, limit))
    return false;
  for (int64_t place = getPlace(begin); place < getPlace(own); ++place)
    present[place] += bytes;
  group.waitBefore = wait;
  return true;
}

/// Keeps the gradients of the members before until the wait of the joint launch.
bool LaunchJoiner::mayScatter(Group &group, unsigned task, std::vector<int64_t> &present, int64_t limit) const {
  Operation *own = launches.launches[task], *wait = getWait(task);
  SmallVector<unsigned> members = llvm::to_vector(group.members);
  members.push_back(task);
  for (unsigned member : members)
    for (Operation *user : getWait(member)->getUsers())
      if (getPlace(user) < getPlace(wait))
        wait = user;
  if (getPlace(wait) <= getPlace(own))
    return false;
  // Without the members before, the link is free earlier.
  int64_t begin = 0;
  bool isFree = false, hasKernel = false;
  for (unsigned i = task; i-- > 0 && !(isFree && hasKernel);) {
    bool isBefore = launches.tasks[i].link == 0 ? !hasKernel : !isFree && sharesLink(i, task, group.members);
    if (!isBefore)
      continue;
    begin = std::max(begin, schedule.finish[i]);
    (launches.tasks[i].link == 0 ? hasKernel : isFree) = true;
  }
  int64_t finish = begin + launches.tasks[task].time + group.size.transfer;
  bool isLate = finish > getTimeBehind(wait) ||
                delaysOthers(task, launchFrom[getPlace(wait)], members, finish - schedule.finish[task]);
  if (launches.tasks[task].link != 0 && isLate)
    return false;
  int64_t bytes = 0, before = getPlace(group.waitBefore);
  for (unsigned member : group.members)
    bytes += getBytes(launches.launches[member]->getOperand(0).getType());
  if (!hasRoom(present, before, getPlace(wait), bytes, limit))
    return false;
  for (int64_t place = before; place < getPlace(wait); ++place)
    present[place] += bytes;
  group.waitBefore = wait;
  return true;
}

bool LaunchJoiner::collect(int64_t limit) {
  std::vector<int64_t> present = live.whileRuns;
  llvm::MapVector<std::tuple<StringAttr, Attribute, int64_t>, Group> open;
  auto close = [&](Group &group) {
    if (group.members.size() > 1)
      groups.push_back(std::move(group));
    group = Group();
  };
  for (unsigned i = 0; i < launches.launches.size(); ++i) {
    CollectiveOpInterface op = getCandidate(i);
    if (!op)
      continue;
    Group &group = open[{op->getName().getIdentifier(), op.getSharedAttributes(), getStart(i).getStream()}];
    if (!joint.isSmall(op)) {
      close(group);
      continue;
    }
    bool isGather = op.getRole() == CollectiveRole::Weights;
    if (!group.members.empty() &&
        (!joint.hasRoom(group.size, op, ahead) || !(isGather ? mayGather(group, i, present, limit)
                                                             : mayScatter(group, i, present, limit))))
      close(group);
    if (group.members.empty())
      group.waitBefore = getWait(i);
    group.members.push_back(i);
    joint.add(group.size, op);
  }
  for (auto &[key, group] : open)
    close(group);
  return !groups.empty();
}

/// Moves what brings a value to a reader before an op. Returns the value as the reader gets it, without what it
/// waited for.
static Value moveBefore(Value value, Operation *op) {
  while (auto after = value.getDefiningOp<AfterOp>())
    value = after.getInput();
  Operation *view = value.getDefiningOp();
  if (!view || view->isBeforeInBlock(op))
    return value;
  view->setOperand(0, moveBefore(view->getOperand(0), op));
  moveOpBefore(view, op);
  return value;
}

void LaunchJoiner::join(const Group &group, SmallVectorImpl<Operation *> &replaced) {
  SmallVector<CollectiveOpInterface> collectives;
  for (unsigned member : group.members)
    collectives.push_back(getCandidate(member));
  bool isGather = collectives.front().getRole() == CollectiveRole::Weights;
  Operation *place = launches.launches[isGather ? group.members.front() : group.members.back()];
  SmallVector<Value> inputs;
  SmallVector<Type> types;
  for (unsigned member : group.members) {
    Operation *launch = launches.launches[member];
    Value input = launch->getOperand(0);
    inputs.push_back(launch == place || !isGather ? input : moveBefore(input, place));
    llvm::append_range(types, getStart(member).getFuture().getType().getTypes());
  }
  OpBuilder builder(place);
  OpBuilder inside(builder.getContext());
  Block *block = new Block;
  inside.setInsertionPointToEnd(block);
  CollectiveOpInterface joined = joinCollectives(inside, collectives);
  auto start = rt::StartOp::create(builder, joined.getLoc(), rt::FutureType::get(builder.getContext(), types), inputs,
                                   cast<rt::StartOp>(place).getStreamAttr(), /*offsets=*/nullptr);
  start.getBody().push_back(block);
  for (auto [operand, input] : llvm::zip_equal(joined->getOpOperands(), inputs))
    operand.set(block->addArgument(input.getType(), input.getLoc()));
  rt::YieldOp::create(inside, joined.getLoc(), joined->getResults());
  builder.setInsertionPoint(group.waitBefore);
  auto wait = rt::WaitOp::create(builder, joined.getLoc(), start.getFuture());
  for (auto [member, result] : llvm::zip_equal(group.members, wait.getResults())) {
    getWait(member)->getResult(0).replaceAllUsesWith(result);
    replaced.append({getWait(member), launches.launches[member]});
  }
}

int64_t LaunchJoiner::write() {
  SmallVector<Operation *> replaced;
  for (const Group &group : groups)
    join(group, replaced);
  // A wait may stand before a launch that is replaced, too.
  for (Operation *op : replaced) {
    SmallVector<Value> operands(op->getOperands());
    op->erase();
    for (Value operand : operands)
      if (auto after = operand.getDefiningOp<AfterOp>(); after && after->use_empty())
        after->erase();
  }
  return int64_t(replaced.size()) / 2 - int64_t(groups.size());
}

std::optional<Schedule> meshwright::joinLaunches(func::FuncOp func, const CostModel &model, RunBeside beside,
                                                 int64_t budget) {
  // An arena may have gaps. Then the places stay at most as full as the fullest one is without joint launches.
  for (bool isLower : {false, true}) {
    LaunchJoiner joiner(func, model, beside);
    int64_t limit = budget - joiner.getRecovery();
    if (!joiner.hasSmall() || !joiner.collect(isLower ? std::min(limit, joiner.getPeak()) : limit))
      return std::nullopt;
    Region before;
    IRMapping mapping;
    func.getBody().cloneInto(&before, mapping);
    int64_t fewer = joiner.write();
    BufferPlan plan = planBuffersWithin(func, SearchEffort::Some, budget, budget);
    LaunchTasks launches(func, model, beside);
    launches.keepWaits();
    Schedule schedule = simulatePresent(launches.tasks, launches.launches);
    if (plan.arena + plan.recovery <= budget && schedule.time <= joiner.getTime()) {
      DistDialect::getDecisionLog(func.getContext())
          .add("join-fetches", Outcome::Applied, func.getLoc(),
               llvm::formatv("{0} small weights and gradients travel in the launch of a neighbour", fewer).str(),
               {{"launches_saved", double(fewer)}, {"saved_seconds", double(joiner.getTime() - schedule.time) * 1e-12}});
      return schedule;
    }
    func.getBody().takeBody(before);
  }
  return std::nullopt;
}
