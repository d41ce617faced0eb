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
#include "Uses.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/ValueNumbers.h"
#include "meshwright/lib/Support/TensorValues.h"

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

/// The choices by which a value is routed, and the experts that share a row. Choices are null for a value that is
/// not routed.
using Routing = std::pair<Value, int64_t>;

/// Finds the routings of values.
class Choices {
public:
  /// Choices are the same for all experts that share rows.
  Routing find(Use use) {
    return use.areChoices ? Routing{getRoot(use.getValue()), 1} : find(use.getValue());
  }
  /// Rows that exist are as many as those of which they are made.
  Routing find(Value value) {
    if (auto it = known.find(value); it != known.end())
      return it->second;
    Routing found;
    if (Operation *op = value.getDefiningOp()) {
      if (auto routed = dyn_cast<nn::RoutedOpInterface>(op)) {
        nn::RoutingUse use = routed.getRoutingUse();
        if (use.givesRouted)
          found = use.choices ? Routing{getRoot(op->getOperand(*use.choices)), use.shared}
                              : find(op->getOperand(use.operands.back()));
        else if (use.givesTokens)
          found = findTokens(op);
      } else {
        for (Value operand : op->getOperands())
          if (!found.first && hasRowsOf(operand, value))
            found = find(operand);
      }
    }
    known[value] = found;
    return found;
  }

private:
  /// The choices that these are, where they go with rows too.
  static Value getRoot(Value choices) {
    for (;;) {
      choices = nn::getChoicesRoot(choices);
      Operation *op = choices.getDefiningOp();
      if (!isa_and_nonnull<nn::RoutedOpInterface>(op) || !op->hasTrait<dist::MovesOnly>())
        return choices;
      choices = op->getOperand(0);
    }
  }
  /// The routing of the rows that a sum of rows at their places gives.
  Routing findTokens(Operation *op) {
    Operation *route = op->getOperand(1).getDefiningOp();
    return find(isa_and_nonnull<nn::RouteOp>(route) ? route->getOperand(0) : op->getOperand(1));
  }
  static bool hasRowsOf(Value operand, Value value) {
    auto from = dyn_cast<RankedTensorType>(operand.getType()), to = dyn_cast<RankedTensorType>(value.getType());
    return from && to && from.getRank() > 0 && to.getRank() > 0 && from.getDimSize(0) == to.getDimSize(0) &&
           bool(nn::getRouted(from)) == bool(nn::getRouted(to));
  }

  DenseMap<Value, Routing> known;
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
    if (own.tokens && choices.find(op->getOperand(*own.tokens)).first)
      uses.push_back({op, *own.tokens, false});
    return uses;
  }
  for (OpOperand &operand : op->getOpOperands())
    if (isa<dist::ShardingRuleOpInterface>(op) && choices.find(operand.get()).first)
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
  auto isOther = [&](Routing a, Routing b) {
    return a.second != b.second || (a.first != b.first && numbers.get(a.first) != numbers.get(b.first));
  };
  // Values that ops before have read, with what they are of, and the ops that read choices.
  SmallVector<std::tuple<Value, Routing, bool>> seen;
  SmallVector<Use> chosen;
  for (Operation &op : func.getBody().front()) {
    SmallVector<Use> uses = getUses(&op, choices);
    // All rows that exist of a routing are of the choices of one op, so others make another program.
    bool routesAll = isa<nn::RoutedOpInterface>(op) && uses.size() == 1 && uses.front().areChoices &&
                     !nn::getRouted(op.getResult(0).getType());
    for (Use use : uses) {
      Value value = use.getValue();
      Routing routing = choices.find(use);
      std::string where = "operand " + std::to_string(use.operand) + " of " + op.getName().getStringRef().str();
      for (auto [other, others, areChoices] : seen)
        if (routing.first && areChoices == use.areChoices && isOther(others, routing) && isAlike(other, value))
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
      std::tuple<Value, Routing, bool> entry(use.getValue(), choices.find(use), use.areChoices);
      if (std::get<1>(entry).first && !llvm::is_contained(seen, entry))
        seen.push_back(entry);
    }
  }
}

/// Rows of other experts than those of the rank.
static void wrongExperts(Operation *op, Faults &faults) {
  if (!isa<nn::RoutedOpInterface>(op))
    return;
  for (OpOperand &operand : op->getOpOperands()) {
    auto index = operand.get().getDefiningOp<dist::AxisIndexOp>();
    if (!index)
      continue;
    Location loc = op->getLoc();
    auto change = [&](StringRef what, auto make) {
      faults.push_back({what.str() + " of " + op->getName().getStringRef().str(), loc, [op, index, &operand, make] {
                          OpBuilder builder(op);
                          operand.set(make(builder, index));
                        }});
    };
    change("first expert for another number of experts", [](OpBuilder &builder, dist::AxisIndexOp index) {
      auto other = cast<dist::AxisIndexOp>(builder.clone(*index));
      other.setChunk(index.getChunk() + 1);
      return other.getResult();
    });
    change("experts of the next rank", [loc](OpBuilder &builder, dist::AxisIndexOp index) -> Value {
      RankedTensorType type = index.getType();
      auto number = builder.getIntegerAttr(type.getElementType(), index.getChunk());
      Value chunk = nn::ConstantOp::create(builder, loc, DenseElementsAttr::get(type, ArrayRef<Attribute>{number}));
      return nn::AddOp::create(builder, loc, type, index.getResult(), chunk);
    });
  }
}

/// Rows that no choice has are read, or rows at other places.
static void wrongRows(Value rows, Faults &faults) {
  auto type = dyn_cast<RankedTensorType>(rows.getType());
  if (!type || !isa<FloatType>(type.getElementType()) || nn::getRouted(type) || type.getDimSize(0) < 2 ||
      rows.use_empty())
    return;
  Location loc = rows.getLoc();
  auto change = [&](StringRef what, auto make) {
    faults.push_back({what.str(), loc, [=] {
                        rewire(rows, make);
                      }});
  };
  change("rows read behind the last one", [=](OpBuilder &builder) {
    return nn::SoftmaxOp::create(builder, loc, type, rows, 0).getResult();
  });
  change("rows of other places", [=](OpBuilder &builder) {
    auto cut = [&](int64_t begin, int64_t end) -> Value {
      SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape()), strides(type.getRank(), 1);
      starts[0] = begin;
      limits[0] = end;
      SmallVector<int64_t> shape(type.getShape());
      shape[0] = end - begin;
      return nn::SliceOp::create(builder, loc, type.clone(shape), rows, starts, limits, strides);
    };
    Value last = cut(1, type.getDimSize(0)), first = cut(0, 1);
    return nn::ConcatOp::create(builder, loc, type, ValueRange{last, first}, 0).getResult();
  });
}

void meshwright::test::misreadRows(func::FuncOp func, const PlacementAnalysis &, Faults &faults) {
  for (Operation &op : func.getBody().front()) {
    wrongExperts(&op, faults);
    auto routed = dyn_cast<nn::RoutedOpInterface>(op);
    if (routed && routed.getRoutingUse().givesRouted)
      wrongRows(op.getResult(0), faults);
  }
}
