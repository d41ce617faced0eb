//===- JointLaunches.cpp - small collectives in one launch ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/JointLaunches.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

bool JointLaunches::isCandidate(CollectiveOpInterface op) {
  CollectiveRole role = op.getRole();
  return (role == CollectiveRole::Weights || role == CollectiveRole::Gradients) && op.communicates() &&
         op->getNumOperands() == 1 && op->getNumResults() == 1 && !op.countsRows() && !op.getShardings(0);
}

int64_t JointLaunches::getWholeBytes(Operation *op) {
  return std::max(getTensorBytes(op->getOperand(0).getType()), getTensorBytes(op->getResult(0).getType()));
}

int64_t JointLaunches::getFixedTime(CollectiveOpInterface op) const {
  AxisList axes = getCollectiveAxes(op, model.getMesh());
  return model.getTime(axes, 0, getSteps(op.getKind(), getNumShards(axes)));
}

int64_t JointLaunches::getTransferTime(CollectiveOpInterface op) const {
  return std::max<int64_t>(0, model.getCost(op).time - getFixedTime(op));
}

void JointLaunches::note(CollectiveOpInterface op) {
  int64_t &bytes = largest[op.getRole()];
  bytes = std::max(bytes, getWholeBytes(op));
}

bool JointLaunches::isSmall(CollectiveOpInterface op) const {
  return getTransferTime(op) <= kSmall * getFixedTime(op);
}

void JointLaunches::add(Group &group, CollectiveOpInterface op) const {
  ++group.members;
  group.bytes += getWholeBytes(op);
  group.transfer += getTransferTime(op);
}

bool JointLaunches::hasRoom(const Group &group, CollectiveOpInterface op, std::optional<int64_t> ahead) const {
  CollectiveRole role = op.getRole();
  return group.bytes + getWholeBytes(op) <= largest.lookup(role) &&
         group.transfer + getTransferTime(op) <= kJoint * getFixedTime(op) &&
         (!ahead || role != CollectiveRole::Weights || group.members < *ahead);
}
