//===- Routings.cpp - rows are of one routing -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/Routings.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/lib/Placement/ValueNumbers.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/Threading.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Numbers of the global values of which local ones are parts.
class GlobalNumbers : public ValueNumbers {
public:
  explicit GlobalNumbers(const PlacementAnalysis *layouts) : layouts(layouts) {}

  /// The value from which ops make this one that move it between ranks, or change its padding alone.
  Value getSource(Value value) const override {
    for (;;) {
      value = meshwright::getSource(value);
      Operation *op = value.getDefiningOp();
      if (!op)
        return value;
      if (isa<CollectiveOpInterface>(op))
        value = op->getOperand(cast<OpResult>(value).getResultNumber());
      else if ((op->hasTrait<TouchesPadding>() && op->hasTrait<MovesOnly>()) ||
               (op->hasTrait<View>() && getType(value) == getType(op->getOperand(0))))
        value = op->getOperand(0);
      else
        return value;
    }
  }

protected:
  Type getType(Value result) const override {
    auto type = dyn_cast<RankedTensorType>(result.getType());
    const Layout *layout = layouts && type ? layouts->lookup(result) : nullptr;
    return layout ? type.clone(layout->getGlobalShape()) : result.getType();
  }

private:
  const PlacementAnalysis *layouts;
};

/// A routing is the value of its choices, or a value that has a routing of its own.
class RoutingProof {
public:
  explicit RoutingProof(const PlacementAnalysis *layouts) : layouts(layouts), numbers(layouts) {}

  LogicalResult visit(Operation *op) {
    if (auto routed = dyn_cast<nn::RoutedOpInterface>(op))
      return visitRouted(routed);
    return routings.empty() && !hasRoutedType(op) ? success() : visitRows(op);
  }

private:
  /// The number of an operand, and its routing.
  struct Member {
    unsigned operand;
    Value routing;
  };

  static bool isRouted(Value value) { return bool(nn::getRouted(value.getType())); }
  static bool hasRoutedType(Operation *op) {
    return llvm::any_of(op->getOperands(), isRouted) || llvm::any_of(op->getResults(), isRouted);
  }
  /// The routing of a value. Null for constants, and for values that are of none.
  Value lookup(Value value) const {
    value = numbers.getSource(value);
    if (Value routing = routings.lookup(value))
      return routing;
    Operation *op = value.getDefiningOp();
    return isRouted(value) && (!op || op->getNumOperands() != 0) ? value : Value();
  }
  /// Returns true if a value of no routing has a row for each row of any routing: it is a routed constant,
  /// or its rows are equal. Equal numbers are no places.
  bool fitsAll(Value value) const {
    if (isRouted(value))
      return true;
    if (!isa<FloatType>(getElementTypeOrSelf(value.getType())))
      return false;
    if (padding::getSplat(numbers.getSource(value)))
      return true;
    const Layout *layout = layouts ? layouts->lookup(value) : nullptr;
    return layout && layout->getRank() > 0 && llvm::all_of(layout->dims.front().factors,
                                  [](const LayoutFactor &factor) { return factor.uniform; });
  }

  LogicalResult join(Operation *op, Member member, std::optional<Member> &first);
  LogicalResult visitRouted(nn::RoutedOpInterface op);
  LogicalResult visitRows(Operation *op);
  LogicalResult refuse(Operation *op, Member first, Member second) const;

  const PlacementAnalysis *layouts;
  GlobalNumbers numbers;
  /// By the value that is of the routing, as `GlobalNumbers::getSource` gives it.
  DenseMap<Value, Value> routings;
  /// The routings that are choices.
  DenseSet<Value> choices;
};

/// Returns true if an op treats the rows of an operand, along its first dimension, one by one to give
/// those of a result.
bool keepsRows(const FactorRule &rule, Operation *op, unsigned operand, unsigned result) {
  auto from = dyn_cast<RankedTensorType>(op->getOperand(operand).getType());
  auto to = dyn_cast<RankedTensorType>(op->getResult(result).getType());
  return from && to && from.getRank() > 0 && to.getRank() > 0 && from.getDimSize(0) == to.getDimSize(0) &&
         rule.operands[operand].front() == rule.results[result].front();
}

} // namespace

LogicalResult RoutingProof::refuse(Operation *op, Member first, Member second) const {
  auto routed = dyn_cast<nn::RoutedOpInterface>(op);
  InFlightDiagnostic error = op->emitOpError();
  if (routed && routed.getRoutingUse().choices == second.operand)
    error << "expected operand " << second.operand << " to be the choices by which operand " << first.operand
          << " was dispatched, got other choices";
  else
    error << "expected operands " << first.operand << " and " << second.operand
          << " to be of one routing, got two";
  for (Member member : {first, second})
    error.attachNote(member.routing.getLoc())
        << "operand " << member.operand
        << (choices.contains(member.routing) ? " is of the choices from here"
                                             : " is from here, and no op of the function routes it");
  return error;
}

/// Adds an operand to those of one routing, of which `first` is the first.
LogicalResult RoutingProof::join(Operation *op, Member member, std::optional<Member> &first) {
  if (!first) {
    first = member;
    return success();
  }
  bool isSame = member.routing == first->routing || numbers.get(member.routing) == numbers.get(first->routing);
  return isSame ? success() : refuse(op, *first, member);
}

LogicalResult RoutingProof::visitRouted(nn::RoutedOpInterface op) {
  nn::RoutingUse use = op.getRoutingUse();
  std::optional<Member> first;
  for (unsigned i : use.operands) {
    Value operand = op->getOperand(i), routing = lookup(operand);
    if (!routing && fitsAll(operand))
      continue;
    if (failed(join(op, {i, routing ? routing : numbers.getSource(operand)}, first)))
      return failure();
  }
  if (use.choices) {
    Value routing = numbers.getSource(op->getOperand(*use.choices));
    choices.insert(routing);
    if (failed(join(op, {*use.choices, routing}, first)))
      return failure();
  }
  if (use.givesRouted && first)
    for (Value result : op->getResults())
      routings[result] = first->routing;
  return success();
}

/// An op that treats rows one by one. The types of routed tensors tell which values are rows. Of the rows
/// that exist the factor rule does.
LogicalResult RoutingProof::visitRows(Operation *op) {
  // Other ops are seen through, or end regions.
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface)
    return success();
  std::optional<Member> first;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    if (Value routing = lookup(op->getOperand(i)))
      if (failed(join(op, {i, routing}, first)))
        return failure();
  if (!first)
    return success();
  if (hasRoutedType(op)) {
    for (Value result : op->getResults())
      if (isRouted(result))
        routings[result] = first->routing;
    return success();
  }
  FactorRule rule = interface.getFactorRule();
  for (unsigned result = 0; result < op->getNumResults(); ++result) {
    if (!keepsRows(rule, op, first->operand, result))
      continue;
    for (unsigned i = 0; layouts && i < op->getNumOperands(); ++i) {
      Value operand = op->getOperand(i);
      if (keepsRows(rule, op, i, result) && shapeOf(operand).front() != 1 && !lookup(operand) &&
          !fitsAll(operand))
        return refuse(op, *first, {i, operand});
    }
    routings[op->getResult(result)] = first->routing;
  }
  return success();
}

LogicalResult meshwright::verifyRoutings(func::FuncOp func, const PlacementAnalysis *layouts) {
  RoutingProof proof(layouts);
  return success(!func.walk([&](Operation *op) {
                        return failed(proof.visit(op)) ? WalkResult::interrupt() : WalkResult::advance();
                      }).wasInterrupted());
}

bool meshwright::areRoutingsProved(func::FuncOp func) {
  uint64_t thread = llvm::get_threadid();
  ScopedDiagnosticHandler ignore(func.getContext(), [&](Diagnostic &) {
    return success(llvm::get_threadid() == thread);
  });
  return succeeded(verifyRoutings(func));
}
