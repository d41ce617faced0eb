//===- Grouping.cpp - which ops are one kernel ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Grouping.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/FuseBiases.h"
#include "meshwright/passes/schedule/FuseProducts.h"
#include "meshwright/passes/schedule/Spans.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::lower;

static int64_t countOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// Returns true if each user may compute the op in its own kernel.
static bool isDuplicable(Operation *op) { return isFree(op) || isMovement(op) || rt::isView(op); }

namespace {

/// A kernel in the making. Ops are added backward.
struct Group {
  SmallVector<Operation *> ops;
  SmallVector<Value> results;
  /// True if a row kernel computes the group, so that it can take further ops.
  bool isRows = false;
  /// The first op of which other kernels read the result, and the last of the ops.
  Operation *firstResult = nullptr, *last = nullptr;
};

/// Grows kernels backward from their last ops: an op joins the kernel of its readers if
/// one kernel can compute them together without extra cost.
class Grouper {
public:
  Grouper(Block &body, const GroupingOptions &options)
      : body(body), options(options), spans(body) {}

  std::vector<KernelGroup> run();

private:
  void findLive();
  void place(Operation *op);
  bool joinAll(Operation *op, ArrayRef<size_t> readers);
  bool joinOne(Operation *op, ArrayRef<size_t> readers, bool isRead);
  /// Returns true if a group can take an op, as one of its results with `asResult`.
  /// Otherwise `reason` states why not.
  bool canTake(const Group &group, Operation *op, bool asResult, std::string &reason) const;
  void take(size_t index, Operation *op, bool asResult);
  llvm::DenseSet<size_t> getDependents(Operation *op, Operation *end) const;
  int64_t getTimesEvaluated(const Group &group, Operation *op) const;

  Block &body;
  GroupingOptions options;
  ProgramSet<Operation *> live;
  std::vector<Group> groups;
  /// From the first result to the last op of each group.
  Spans spans;
  /// The groups that compute an op.
  ProgramMap<Operation *, SmallVector<size_t, 2>> groupsOf;
  /// The number of elements of an op that its groups evaluate.
  ProgramMap<Operation *, int64_t> points;
};

} // namespace

int64_t Grouper::getTimesEvaluated(const Group &group, Operation *op) const {
  int64_t times = 0;
  // A group has few ops, and a mask may have users in all layers.
  for (Operation *user : group.ops) {
    if (llvm::none_of(user->getOperands(), [&](Value v) { return v.getDefiningOp() == op; }))
      continue;
    // A reduction reads each element of a row once; a rotation reads each twice.
    int64_t own = points.lookup(user);
    if (isRowReduction(user) && user->getOperand(0) == op->getResult(0))
      own = std::max(own, countOf(op->getResult(0)));
    times = std::max(times, isa<nn::RotaryOp>(user) ? 2 * own : own);
  }
  return times;
}

bool Grouper::canTake(const Group &group, Operation *op, bool asResult, std::string &reason) const {
  if (!group.isRows)
    return false;
  if (group.ops.size() >= options.target.getMaxKernelOps()) {
    reason = "the kernel has " + std::to_string(group.ops.size()) + " ops already";
    return false;
  }
  int64_t times = getTimesEvaluated(group, op), count = countOf(op->getResult(0));
  if (std::optional<int64_t> most = options.target.getMostEvaluations(op); most && times > *most * count) {
    reason = "it would be computed " + std::to_string(times / std::max<int64_t>(count, 1)) + " times";
    return false;
  }
  SmallVector<Operation *> ops = group.ops;
  ops.push_back(op);
  SmallVector<Value> results = group.results;
  if (asResult)
    results.push_back(op->getResult(0));
  RowPlanResult joined = options.target.planRows(KernelRegion::of(ops, results));
  if (!joined.plan) {
    reason = joined.reason;
    return false;
  }
  // Elements that are not contiguous are read one by one. Passes would repeat that.
  bool hasPasses = llvm::any_of(joined.plan->pieces,
                                [](const RowPiece &piece) { return !piece.statistics.empty(); });
  if (joined.plan->isScalar && hasPasses &&
      !options.target.planRows(KernelRegion::of(group.ops, group.results)).plan->isScalar) {
    reason = "it is computed element by element, and the kernel makes several passes over its rows";
    return false;
  }
  return true;
}

/// The groups that depend on the op through another group or op. Groups behind `end` may be
/// missing.
llvm::DenseSet<size_t> Grouper::getDependents(Operation *op, Operation *end) const {
  llvm::DenseSet<size_t> dependents, seenGroups;
  ProgramSet<Operation *> seen;
  // Ops, and the group whose result each reads, if it is one's.
  SmallVector<std::pair<Operation *, std::optional<size_t>>> open;
  // Follows the results of the groups of an op to their readers.
  auto follow = [&](Operation *user) {
    auto owners = groupsOf.find(user);
    if (owners == groupsOf.end()) {
      if (seen.insert(user).second && user->isBeforeInBlock(end))
        for (Operation *next : user->getUsers())
          open.push_back({next, std::nullopt});
      return;
    }
    for (size_t owner : owners->second)
      if (groups[owner].firstResult->isBeforeInBlock(end) && seenGroups.insert(owner).second)
        for (Value result : groups[owner].results)
          for (Operation *next : result.getUsers())
            open.push_back({next, owner});
  };
  for (Operation *user : op->getUsers())
    follow(user);
  while (!open.empty()) {
    auto [user, from] = open.pop_back_val();
    if (auto owners = groupsOf.find(user); owners != groupsOf.end())
      for (size_t owner : owners->second)
        if (owner != from)
          dependents.insert(owner);
    follow(user);
  }
  return dependents;
}

void Grouper::take(size_t index, Operation *op, bool asResult) {
  Group &group = groups[index];
  points[op] = std::max(points.lookup(op), getTimesEvaluated(group, op));
  group.ops.push_back(op);
  if (asResult)
    group.results.push_back(op->getResult(0));
  if (!group.last)
    group.last = op;
  bool isResult = llvm::any_of(group.results, [&](Value v) { return v.getDefiningOp() == op; });
  if (isResult && (!group.firstResult || op->isBeforeInBlock(group.firstResult))) {
    group.firstResult = op;
    spans.add(op, group.last);
  }
  groupsOf[op].push_back(index);
}

/// Adds the op to the kernel of each reader.
bool Grouper::joinAll(Operation *op, ArrayRef<size_t> readers) {
  std::string reason;
  for (size_t reader : readers)
    if (!canTake(groups[reader], op, /*asResult=*/false, reason))
      return false;
  for (size_t reader : readers)
    take(reader, op, /*asResult=*/false);
  return true;
}

/// Adds the op to the kernel of one reader; the others read its result.
bool Grouper::joinOne(Operation *op, ArrayRef<size_t> readers, bool isRead) {
  bool asResult = isRead || readers.size() > 1;
  std::string reason;
  llvm::DenseSet<size_t> dependents;
  Operation *known = nullptr;
  // Ops behind a group lead to it only through results of groups that stand before its end.
  auto getEnd = [&](size_t reader) { return spans.getEnd(groups[reader].last); };
  // Returns true if the group, with the op as one of its results, would depend on a group that
  // depends on this result.
  auto wouldCycle = [&](size_t reader) {
    Operation *end = getEnd(reader);
    if (!known || known->isBeforeInBlock(end)) {
      // Finds dependents for the first reader, then for all others at once: a scalar may have a
      // thousand.
      for (size_t other : known ? readers : ArrayRef<size_t>())
        if (Operation *last = getEnd(other); end->isBeforeInBlock(last))
          end = last;
      dependents = getDependents(op, end);
      known = end;
    }
    return dependents.contains(reader);
  };
  for (size_t reader : readers) {
    // The others would wait for all of the kernel: the updates of all weights for one of them.
    if (readers.size() > 1 && countOf(op->getResult(0)) == 1 &&
        llvm::any_of(groups[reader].results, [](Value result) { return countOf(result) > 1; }))
      continue;
    if (!groups[reader].isRows || (asResult && wouldCycle(reader)))
      continue;
    if (canTake(groups[reader], op, asResult, reason)) {
      take(reader, op, asResult);
      return true;
    }
  }
  if (!reason.empty() && !isDuplicable(op))
    logKernelDecision(
        op, Outcome::Declined,
        (op->getName().getStringRef() + " does not join the kernel that reads it: " + reason)
            .str());
  return false;
}

void Grouper::place(Operation *op) {
  bool isView = rt::isView(op) && !isFree(op);
  if (dist::communicates(op) || isa<dist::AfterOp>(op) || op->getNumResults() != 1 ||
      (op->hasTrait<OpTrait::ConstantLike>() && !isFree(op)))
    return;
  bool canJoin = isRowOp(op) && !isa<dist::PadOp>(op);
  // The readers: kernels (`readers`) and other ops (`isRead`).
  SmallVector<size_t> readers;
  bool isRead = options.keepProbed && op->hasAttr(nn::NnDialect::kIdAttr);
  SmallVector<Operation *> users(op->user_begin(), op->user_end());
  llvm::sort(users, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *user : users) {
    if (!live.contains(user))
      continue;
    auto owners = groupsOf.find(user);
    isRead |= owners == groupsOf.end();
    if (owners != groupsOf.end())
      for (size_t owner : owners->second)
        if (!llvm::is_contained(readers, owner) && !llvm::is_contained(groups[owner].ops, op))
          readers.push_back(owner);
  }
  // All readers compute the op already.
  if (groupsOf.contains(op) && readers.empty() && !isRead)
    return;
  if (isView) {
    // A view is between kernels, or in a kernel that also has the op before it.
    Operation *producer = op->getOperand(0).getDefiningOp();
    bool joins = rt::getBuffer(op->getResult(0)).getDefiningOp() && isRowOp(producer) &&
                 !isFree(producer) && !producer->hasTrait<OpTrait::ConstantLike>();
    if (joins && !isRead)
      joinAll(op, readers);
    return;
  }
  if (canJoin && !readers.empty()) {
    bool isShared = isDuplicable(op) && !isRead;
    if (isShared && joinAll(op, readers))
      return;
    if (isFree(op)) {
      // Computed in each reader that can take it, and once for the others.
      SmallVector<size_t> rest;
      std::string reason;
      for (size_t reader : readers) {
        if (canTake(groups[reader], op, /*asResult=*/false, reason))
          take(reader, op, /*asResult=*/false);
        else
          rest.push_back(reader);
      }
      if (rest.empty() && !isRead)
        return;
    } else if (joinOne(op, readers, isRead)) {
      return;
    }
  }
  Group group;
  group.isRows =
      isRowOp(op) && options.target.planRows(KernelRegion::of({op}, {op->getResult(0)})).plan.has_value();
  groups.push_back(group);
  points[op] = std::max(points.lookup(op), countOf(op->getResult(0)));
  take(groups.size() - 1, op, /*asResult=*/true);
}

/// Finds the ops that the function's results or a probe need.
void Grouper::findLive() {
  for (Operation &op : llvm::reverse(body))
    if (op.hasTrait<OpTrait::IsTerminator>() ||
        (options.keepProbed && op.hasAttr(nn::NnDialect::kIdAttr)) ||
        llvm::any_of(op.getUsers(), [&](Operation *user) { return live.contains(user); }))
      live.insert(&op);
}

std::vector<KernelGroup> Grouper::run() {
  findLive();
  auto biases = fuseBiases(body, live, options);
  ProgramSet<Operation *> fused;
  for (auto &[attention, ops] : biases)
    for (Operation *op : ops)
      if (!isFree(op))
        fused.insert(op);
  for (Operation &op : llvm::reverse(body)) {
    if (!live.contains(&op) || op.hasTrait<OpTrait::IsTerminator>() || fused.contains(&op))
      continue;
    bool hasBias = biases.contains(&op);
    if (op.getNumResults() == 1 && !hasBias) {
      place(&op);
      continue;
    }
    if (dist::communicates(&op))
      continue;
    Group group;
    group.results.assign(op.result_begin(), op.result_end());
    groups.push_back(group);
    take(groups.size() - 1, &op, /*asResult=*/false);
    for (Operation *other : biases.lookup(&op))
      take(groups.size() - 1, other, /*asResult=*/false);
  }
  std::vector<KernelGroup> result;
  for (Group &group : groups) {
    auto isBefore = [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); };
    llvm::sort(group.ops, isBefore);
    llvm::sort(group.results, [&](Value a, Value b) {
      return a.getDefiningOp() == b.getDefiningOp()
                 ? cast<OpResult>(a).getResultNumber() < cast<OpResult>(b).getResultNumber()
                 : isBefore(a.getDefiningOp(), b.getDefiningOp());
    });
    result.push_back({group.ops, group.results});
  }
  fuseProducts(body, result, options);
  return result;
}

std::vector<KernelGroup> meshwright::groupKernels(func::FuncOp func,
                                                  const GroupingOptions &options) {
  return Grouper(func.getBody().front(), options).run();
}

void meshwright::logKernelDecision(Operation *op, Outcome outcome, std::string message,
                                   std::vector<std::pair<std::string, double>> numbers) {
  dist::DistDialect::getDecisionLog(op->getContext())
      .add("form-kernels", outcome, op->getLoc(), std::move(message), std::move(numbers), {},
           Subject::Kernels);
}
