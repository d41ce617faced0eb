//===- JoinFetches.cpp - small weights travel together --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/CostModel/JointLaunches.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/recompute/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_JOINFETCHESPASS
#include "meshwright/passes/recompute/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Collectives of one role, kind and axes, in the order of the program.
struct Neighbours {
  SmallVector<CollectiveOpInterface, 4> members;
  JointLaunches::Group group;
};

class FetchJoiner {
public:
  FetchJoiner(func::FuncOp func, const CostModel &model, std::optional<int64_t> ahead);
  /// Returns the number of launches that the program has less than before.
  int64_t run();
  int64_t getSavedTime() const { return saved; }

private:
  void collect();
  bool joinAtFirst(Neighbours &group);
  bool joinAtLast(Neighbours &group);
  void replace(Neighbours &group, OpBuilder &builder);
  bool isBefore(Operation *a, Operation *b) const;

  func::FuncOp func;
  JointLaunches joint;
  std::optional<int64_t> ahead;
  SmallVector<Neighbours> groups;
  /// Bits of the room between the places of two ops, for ops that move there.
  static constexpr int kRoom = 20;
  /// The places of ops. New ops make a block number all its ops again, so its order is asked for ops without room only.
  ProgramMap<Operation *, int64_t> numbers;
  int64_t saved = 0;
};

} // namespace

FetchJoiner::FetchJoiner(func::FuncOp func, const CostModel &model, std::optional<int64_t> ahead)
    : func(func), joint(model), ahead(ahead) {
  for (Operation &op : func.front()) {
    numbers[&op] = int64_t(numbers.size()) << kRoom;
    if (auto collective = dyn_cast<CollectiveOpInterface>(op); collective && JointLaunches::isCandidate(collective))
      joint.note(collective);
  }
}

bool FetchJoiner::isBefore(Operation *a, Operation *b) const {
  auto first = numbers.find(a), second = numbers.find(b);
  return first != numbers.end() && second != numbers.end() ? first->second < second->second : a->isBeforeInBlock(b);
}

/// Finds neighbours. Of one role, kind and axes, one that is not small ends a group: those behind it are
/// read later.
void FetchJoiner::collect() {
  llvm::MapVector<std::pair<StringAttr, Attribute>, Neighbours> open;
  auto close = [&](Neighbours &group) {
    if (group.members.size() > 1)
      groups.push_back(std::move(group));
    group = Neighbours();
  };
  for (auto op : func.getOps<CollectiveOpInterface>()) {
    if (!JointLaunches::isCandidate(op))
      continue;
    Neighbours &group = open[{op->getName().getIdentifier(), op.getSharedAttributes()}];
    if (!joint.isSmall(op)) {
      close(group);
      continue;
    }
    // A joint gather brings as many weights as may be there before the one in use.
    if (!joint.hasRoom(group.group, op, ahead))
      close(group);
    group.members.push_back(op);
    joint.add(group.group, op);
  }
  for (auto &[key, group] : open)
    close(group);
}

void FetchJoiner::replace(Neighbours &group, OpBuilder &builder) {
  saved += (group.members.size() - 1) * joint.getFixedTime(group.members.front());
  CollectiveOpInterface joined = joinCollectives(builder, group.members);
  // It stands beside the member whose place it takes.
  Operation *place = joined->getNextNode() == group.members.front() ? group.members.front() : group.members.back();
  if (auto number = numbers.find(place); number != numbers.end())
    numbers[joined] = number->second;
  for (auto [i, member] : llvm::enumerate(group.members)) {
    member->getResult(0).replaceAllUsesWith(joined->getResult(i));
    numbers.erase(member);
    member->erase();
  }
}

/// Gathers all weights before the reader of the first. Their shards have to be there.
bool FetchJoiner::joinAtFirst(Neighbours &group) {
  Operation *first = group.members.front();
  for (CollectiveOpInterface member : group.members)
    if (Operation *maker = member->getOperand(0).getDefiningOp();
        maker && !isBefore(maker, first))
      return false;
  OpBuilder builder(first);
  replace(group, builder);
  return true;
}

/// Scatters all gradients behind the last. Readers of the others wait, so the last one must not need them.
bool FetchJoiner::joinAtLast(Neighbours &group) {
  Operation *last = group.members.back();
  llvm::SmallPtrSet<Operation *, 8> members, waiting;
  for (CollectiveOpInterface member : group.members)
    members.insert(member);
  SmallVector<Operation *> readers;
  for (Operation *op = group.members.front(); op != last->getNextNode(); op = op->getNextNode()) {
    bool waits = false;
    op->walk([&](Operation *inner) {
      waits |= llvm::any_of(inner->getOperands(), [&](Value operand) {
        Operation *maker = operand.getDefiningOp();
        return maker && (members.contains(maker) || waiting.contains(maker));
      });
    });
    if (!waits)
      continue;
    if (members.contains(op))
      return false;
    waiting.insert(op);
    readers.push_back(op);
  }
  OpBuilder builder(last->getContext());
  builder.setInsertionPointAfter(last);
  replace(group, builder);
  Operation *joined = builder.getInsertionPoint()->getPrevNode(), *behind = &*builder.getInsertionPoint();
  auto place = numbers.find(joined), end = numbers.find(behind);
  bool hasRoom = place != numbers.end() && end != numbers.end() &&
                 end->second - place->second > int64_t(readers.size());
  int64_t number = hasRoom ? place->second : 0;
  for (Operation *reader : readers) {
    if (hasRoom)
      numbers[reader] = ++number;
    else
      numbers.erase(reader);
    moveOpBefore(reader, behind);
  }
  return true;
}

int64_t FetchJoiner::run() {
  collect();
  int64_t fewer = 0;
  for (Neighbours &group : groups) {
    int64_t size = group.members.size();
    bool isGather = group.members.front().getRole() == CollectiveRole::Weights;
    // Other groups may have moved the members.
    llvm::sort(group.members, [&](Operation *a, Operation *b) { return isBefore(a, b); });
    if (isGather ? joinAtFirst(group) : joinAtLast(group))
      fewer += size - 1;
  }
  return fewer;
}

namespace {
struct JoinFetchesPass : meshwright::impl::JoinFetchesPassBase<JoinFetchesPass> {
  using JoinFetchesPassBase::JoinFetchesPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    MeshAttr mesh = getSpmdMesh(func);
    if (!mesh || func.isExternal() || !func.getBody().hasOneBlock())
      return markAllAnalysesPreserved();
    if (failed(verifyDevice(mesh, func)))
      return signalPassFailure();
    CostModel model(mesh);
    FetchJoiner joiner(func, model, ahead.number);
    int64_t fewer = joiner.run();
    if (!fewer)
      return markAllAnalysesPreserved();
    DistDialect::getDecisionLog(&getContext())
        .add("join-fetches", Outcome::Applied, func.getLoc(),
             llvm::formatv("{0} small weights and gradients travel in the launch of a neighbour", fewer).str(),
             {{"launches_saved", double(fewer)}, {"saved_seconds", double(joiner.getSavedTime()) * 1e-12}});
  }
};
} // namespace
