//===- RoutingFaults.cpp - rows and choices of other experts --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Values of another routing in the place of rows, choices, places and numbers of rows. They have the same
// type and layout, so nothing but the routing tells. Choices that equal ops compute are of one routing.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/ValueNumbers.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::test;

using Faults = std::vector<Fault>;

namespace {

/// An operand that is of a routing.
struct Use {
  Operation *op;
  unsigned operand;
  bool areChoices;

  Value getValue() const { return op->getOperand(operand); }
};

/// Finds the choices by which values are routed.
class Choices {
public:
  Value find(Use use) { return use.areChoices ? nn::getChoicesRoot(use.getValue()) : find(use.getValue()); }
  /// Null for a value that is not routed. Rows that exist are as many as those of which they are made.
  Value find(Value value) {
    if (auto it = known.find(value); it != known.end())
      return it->second;
    Value found;
    if (Operation *op = value.getDefiningOp()) {
      if (auto routed = dyn_cast<nn::RoutedOpInterface>(op)) {
        nn::RoutingUse use = routed.getRoutingUse();
        if (use.givesRouted)
          found = use.choices ? nn::getChoicesRoot(op->getOperand(*use.choices))
                              : find(op->getOperand(use.operands.back()));
      } else {
        for (Value operand : op->getOperands())
          if (!found && hasRowsOf(operand, value))
            found = find(operand);
      }
    }
    known[value] = found;
    return found;
  }

private:
  static bool hasRowsOf(Value operand, Value value) {
    auto from = dyn_cast<RankedTensorType>(operand.getType()), to = dyn_cast<RankedTensorType>(value.getType());
    return from && to && from.getRank() > 0 && to.getRank() > 0 && from.getDimSize(0) == to.getDimSize(0) &&
           bool(nn::getRouted(from)) == bool(nn::getRouted(to));
  }

  DenseMap<Value, Value> known;
};

} // namespace

static SmallVector<Use> getUses(Operation *op, Choices &choices) {
  SmallVector<Use> uses;
  if (auto routed = dyn_cast<nn::RoutedOpInterface>(op)) {
    nn::RoutingUse own = routed.getRoutingUse();
    for (unsigned i : own.operands)
      uses.push_back({op, i, false});
    if (own.choices)
      uses.push_back({op, *own.choices, true});
    return uses;
  }
  for (OpOperand &operand : op->getOpOperands())
    if (isa<dist::ShardingRuleOpInterface>(op) && choices.find(operand.get()))
      uses.push_back({op, operand.getOperandNumber(), false});
  return uses;
}

void meshwright::test::wrongRouting(func::FuncOp func, const PlacementAnalysis &analysis, Faults &faults) {
  auto isAlike = [&](Value a, Value b) {
    return a != b && a.getType() == b.getType() &&
           analysis.getLayout(a).sameShardingAs(analysis.getLayout(b));
  };
  ValueNumbers numbers;
  Choices choices;
  auto isOther = [&](Value a, Value b) { return a != b && numbers.get(a) != numbers.get(b); };
  // Values that ops before have read, with what they are of, and the ops that read choices.
  SmallVector<std::tuple<Value, Value, bool>> seen;
  SmallVector<Use> chosen;
  for (Operation &op : func.getBody().front()) {
    SmallVector<Use> uses = getUses(&op, choices);
    // All rows that exist of a routing are of the choices of one op, so others make another program.
    bool routesAll = isa<nn::RoutedOpInterface>(op) && uses.size() == 1 && uses.front().areChoices &&
                     !nn::getRouted(op.getResult(0).getType());
    for (Use use : uses) {
      Value value = use.getValue(), routing = choices.find(use);
      std::string where = "operand " + std::to_string(use.operand) + " of " + op.getName().getStringRef().str();
      for (auto [other, others, areChoices] : seen)
        if (routing && areChoices == use.areChoices && isOther(others, routing) && isAlike(other, value))
          faults.push_back({where + " is of another routing", op.getLoc(),
                            [use, other = other] { use.op->setOperand(use.operand, other); },
                            routesAll ? "routes all rows" : ""});
      if (!use.areChoices)
        continue;
      for (Use before : chosen) {
        Value other = before.getValue();
        if (!isOther(choices.find(before), routing) || !isAlike(other, value) ||
            (value.getDefiningOp() && !value.getDefiningOp()->isBeforeInBlock(before.op)))
          continue;
        faults.push_back({where + " changes places with that of another routing", op.getLoc(), [=] {
                            use.op->setOperand(use.operand, other);
                            before.op->setOperand(before.operand, value);
                          }});
      }
      chosen.push_back(use);
    }
    for (Use use : uses) {
      std::tuple<Value, Value, bool> entry(use.getValue(), choices.find(use), use.areChoices);
      if (std::get<1>(entry) && !llvm::is_contained(seen, entry))
        seen.push_back(entry);
    }
  }
}
