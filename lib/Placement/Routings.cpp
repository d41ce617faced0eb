//===- Routings.cpp - rows are of one routing -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/Routings.h"

#include "meshwright/dialects/Nn/Choices.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/lib/Placement/ValueNumbers.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/Threading.h"

#include <numeric>

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
      Value before = getBefore(value);
      if (!before)
        return value;
      value = before;
    }
  }

  /// The value from which one such op makes this one. Null for other ops.
  Value getBefore(Value value) const {
    Operation *op = value.getDefiningOp();
    if (!op)
      return nullptr;
    if (isa<CollectiveOpInterface>(op) && !isa<nn::RoutedOpInterface>(op))
      return op->getOperand(cast<OpResult>(value).getResultNumber());
    if (Value whole = nn::getJoined(op, [this](Value piece) { return getSource(piece); }))
      return whole;
    bool isForm = (op->hasTrait<TouchesPadding>() && op->hasTrait<MovesOnly>()) ||
                  (op->hasTrait<View>() && getType(value) == getType(op->getOperand(0))) || isStrip(op);
    return isForm ? op->getOperand(0) : Value();
  }

  /// Returns true if a slice leaves out padding alone.
  bool isStrip(Operation *op) const {
    if (!layouts || !isa<nn::SliceOp>(op))
      return false;
    const Layout *from = layouts->lookup(op->getOperand(0)), *to = layouts->lookup(op->getResult(0));
    return from && to && from->getGlobalShape() == to->getGlobalShape();
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

/// A routing is the value of its choices, or a value that has a routing of its own, and the number of experts
/// that share a row.
struct Routing {
  Value choices;
  int64_t shared = 1;

  explicit operator bool() const { return bool(choices); }
};

class RoutingProof {
public:
  explicit RoutingProof(const PlacementAnalysis *layouts) : layouts(layouts), numbers(layouts) {}

  LogicalResult visit(Operation *op) {
    if (auto routed = dyn_cast<nn::RoutedOpInterface>(op))
      return visitRouted(routed);
    if (auto collective = dyn_cast<CollectiveOpInterface>(op))
      return layouts && hasRoutedType(op) ? visitMove(collective) : success();
    return routings.empty() && !hasRoutedType(op) ? success() : visitRows(op);
  }

private:
  /// The number of an operand, its routing, and the order of its rows.
  struct Member {
    unsigned operand;
    Routing routing;
    size_t order = 0;
  };

  static bool isRouted(Value value) { return bool(nn::getRouted(value.getType())); }
  static bool hasRoutedType(Operation *op) {
    return llvm::any_of(op->getOperands(), isRouted) || llvm::any_of(op->getResults(), isRouted);
  }
  /// The routing of a value. Null for constants, and for values that are of none.
  Routing lookup(Value value) const {
    value = numbers.getSource(value);
    if (auto known = routings.find(value); known != routings.end())
      return known->second;
    Operation *op = value.getDefiningOp();
    bool isOwn = isRouted(value) && (!op || op->getNumOperands() != 0);
    return isOwn ? Routing{value, nn::getRouted(value.getType()).getShared()} : Routing();
  }
  /// The value of which these choices are a form.
  Value getChoices(Value value) const;
  bool isSame(Routing a, Routing b) {
    return a.shared == b.shared && (a.choices == b.choices || numbers.get(a.choices) == numbers.get(b.choices));
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

  /// The order of the rows of each expert: 0 if it is that of the tokens, which other values have. Rows that
  /// ranks send are in the order of the ranks, and then of the tokens.
  size_t getOrder(Value value) const;
  size_t getSentOrder(ArrayRef<LayoutFactor> tokens, ArrayRef<Axis> axes);
  size_t getOrderBehind(Operation *send, const nn::RoutingUse &use);
  LogicalResult visitMove(CollectiveOpInterface op);
  LogicalResult join(Operation *op, Member member, std::optional<Member> &first);
  LogicalResult visitRouted(nn::RoutedOpInterface op);
  FailureOr<Routing> readChoices(nn::RoutedOpInterface op, const nn::RoutingUse &use);
  LogicalResult checkTokens(nn::RoutedOpInterface op, const nn::RoutingUse &use, Member want);
  void noteChoices(nn::RoutedOpInterface op, const nn::RoutingUse &use, Routing routing);
  LogicalResult visitRows(Operation *op);
  LogicalResult refuse(Operation *op, Member first, Member second) const;

  const PlacementAnalysis *layouts;
  GlobalNumbers numbers;
  /// By the value that is of the routing, as `GlobalNumbers::getSource` gives it.
  ProgramMap<Value, Routing> routings;
  /// The routings that are choices.
  ProgramSet<Value> choices;
  /// The orders of rows, where they are not 0.
  ProgramMap<Value, size_t> orders;
  /// The choices that rows are, which were dispatched by themselves.
  ProgramMap<Value, Value> rowsOfChoices;
  /// The routing of the tokens of which places or choices are, where these are rows themselves.
  ProgramMap<Value, Routing> tokens;
};

/// Returns true if an op reads elements along the first dimension of an operand together.
bool readsAll(const FactorRule &rule, unsigned operand) {
  return !rule.operands[operand].empty() && llvm::any_of(rule.operands[operand].front(), [&](int factor) {
    return rule.factors[factor].kind != FactorKind::Parallel;
  });
}

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
  if (first.order != second.order)
    return error << "expected operands " << first.operand << " and " << second.operand
                 << " to be of rows in one order, got two: rows that other ranks sent are in the order of these";
  if (routed && routed.getRoutingUse().choices == second.operand)
    error << "expected operand " << second.operand << " to be the choices by which operand " << first.operand
          << " was dispatched, got other choices";
  else
    error << "expected operands " << first.operand << " and " << second.operand
          << " to be of one routing, got two";
  for (Member member : {first, second})
    error.attachNote(member.routing.choices.getLoc())
        << "operand " << member.operand
        << (choices.contains(member.routing.choices) ? " is of the choices from here"
                                             : " is from here, and no op of the function routes it");
  return error;
}

/// Adds an operand to those of one routing, of which `first` is the first.
LogicalResult RoutingProof::join(Operation *op, Member member, std::optional<Member> &first) {
  if (!first) {
    first = member;
    return success();
  }
  bool isAlike = isSame(member.routing, first->routing) && member.order == first->order;
  return isAlike ? success() : refuse(op, *first, member);
}

size_t RoutingProof::getOrder(Value value) const {
  for (;;) {
    value = meshwright::getSource(value);
    if (auto known = orders.find(value); known != orders.end())
      return known->second;
    Value before = numbers.getBefore(value);
    if (!before)
      return 0;
    value = before;
  }
}

/// The order of rows behind a move from the ranks of tokens, whose factors are given, to those of experts. It is
/// that of the tokens if all before a factor that the axes shard is one token on a rank.
size_t RoutingProof::getSentOrder(ArrayRef<LayoutFactor> tokens, ArrayRef<Axis> axes) {
  int64_t before = 1;
  bool isKept = true;
  ValueNumbers::Words words, order;
  for (const LayoutFactor &factor : tokens) {
    if (factor.padded == 1)
      continue;
    words.push_back(factor.padded);
    words.push_back(int64_t(factor.axes.size()));
    for (const Axis &axis : factor.axes)
      words.insert(words.end(), {axis.axis, axis.pre, axis.size});
    if (anyOverlap(factor.axes, axes)) {
      isKept &= before == 1;
      order = words;
    }
    before *= factor.getLocalSize();
  }
  return isKept ? 0 : numbers.intern(std::move(order)) + 1;
}

/// The order of rows that exist behind an op that sends them. The factors of the experts, of which a rank has some,
/// are the major ones of their layout.
size_t RoutingProof::getOrderBehind(Operation *send, const nn::RoutingUse &use) {
  const Layout *rows = layouts->lookup(send->getOperand(use.operands.front()));
  if (!rows)
    return 0;
  SmallVector<LayoutFactor> tokens(rows->dims.front().factors);
  for (int64_t experts = use.sentTo; experts > 1 && !tokens.empty();) {
    LayoutFactor &head = tokens.front();
    int64_t local = head.getLocalSize(), part = std::gcd(experts, local);
    if (part == 1 && local != 1)
      break;
    experts /= part;
    head.padded = local / part;
    head.axes.clear();
    if (head.padded == 1)
      tokens.erase(tokens.begin());
  }
  return getSentOrder(tokens, dist::getAxes(use.sentAlong, layouts->getMesh()));
}

/// Lets tokens have none of the axes along which their rows go, and returns these in the order of the tokens. They are
/// the first ones of their factors. None if those of a rank are no product of tokens.
static std::optional<AxisList> leaveTokens(MutableArrayRef<DimLayout> tokens, ArrayRef<Axis> along, MeshAttr mesh) {
  AxisList gone;
  auto isGone = [&](const Axis &axis) {
    return llvm::any_of(along, [&](const Axis &whole) {
      return whole.axis == axis.axis && whole.pre <= axis.pre && axis.pre * axis.size <= whole.pre * whole.size;
    });
  };
  for (DimLayout &dim : tokens) {
    SmallVector<LayoutFactor, 1> factors;
    for (LayoutFactor factor : dim.factors) {
      ArrayRef<Axis> lead = ArrayRef(factor.axes).take_while(isGone);
      gone.append(lead.begin(), lead.end());
      if (!lead.empty() && lead.size() < factor.axes.size()) {
        LayoutFactor upper, lower;
        if (!splitFactor(factor, factor.padded / getNumShards(lead), mesh, upper, lower))
          return std::nullopt;
        upper.axes.clear();
        factors.push_back(upper);
        factor = lower;
      } else if (!lead.empty()) {
        factor.axes.clear();
      }
      factors.push_back(factor);
    }
    dim.factors = std::move(factors);
  }
  return gone;
}

/// Returns true if dimensions are sharded alike. Padding may differ.
static bool areShardedAlike(ArrayRef<DimLayout> dims, ArrayRef<DimLayout> others, MeshAttr mesh) {
  Layout first, second;
  first.dims.assign(dims.begin(), dims.end());
  second.dims.assign(others.begin(), others.end());
  canonicalize(first, mesh);
  canonicalize(second, mesh);
  return llvm::equal(first.dims, second.dims, [](const DimLayout &a, const DimLayout &b) {
    return llvm::equal(a.factors, b.factors, [](const LayoutFactor &x, const LayoutFactor &y) {
      return x.size == y.size && x.axes == y.axes;
    });
  });
}

/// Rows that leave their tokens, or that return to them, in the order in which they came.
LogicalResult RoutingProof::visitMove(CollectiveOpInterface op) {
  MeshAttr mesh = layouts->getMesh();
  for (auto [i, operand, result] : llvm::enumerate(op->getOperands(), op->getResults())) {
    const Layout *from = layouts->lookup(operand), *to = layouts->lookup(result);
    if (!isRouted(operand) || !from || !to)
      continue;
    AxisList have = from->dims.front().getAxes(), want = to->dims.front().getAxes();
    bool leaves = getNumShards(have) < getNumShards(want);
    if (have == want)
      continue;
    // The layout of the rows at their tokens, and the layout at their experts.
    const Layout &home = leaves ? *from : *to, &away = leaves ? *to : *from;
    const AxisList &all = leaves ? want : have, &before = leaves ? have : want;
    std::optional<AxisList> along = subtract(all, before);
    int64_t count = nn::getNumTokenDims(operand);
    SmallVector<DimLayout> tokens(ArrayRef(home.dims).slice(1, count));
    std::optional<AxisList> gone = along ? leaveTokens(tokens, *along, mesh) : std::nullopt;
    // A rank may also take the rows of some of its experts.
    if (gone && gone->empty())
      continue;
    AxisList order = before;
    if (gone)
      order.append(*gone);
    canonicalizeAxes(order, mesh);
    if (!gone || order != all || !areShardedAlike(tokens, ArrayRef(away.dims).slice(1, count), mesh))
      return op->emitOpError() << "expected the tokens of operand " << i << " to have axes that the experts "
                               << (leaves ? "take" : "leave") << ", got rows of layout " << toString(*from, mesh)
                               << " that become " << toString(*to, mesh);
    SmallVector<LayoutFactor> factors;
    for (const DimLayout &dim : ArrayRef(home.dims).slice(1, count))
      factors.append(dim.factors.begin(), dim.factors.end());
    size_t sent = getSentOrder(factors, *gone), now = getOrder(operand);
    if (leaves && now != 0)
      return op->emitOpError() << "expected rows of operand " << i
                               << " in the order of their tokens, got rows in the order of ranks that sent them";
    if (!leaves && now != sent)
      return op->emitOpError() << "expected rows of operand " << i
                               << " to return in the order in which ranks sent them, got another order";
    orders[result] = leaves ? sent : 0;
  }
  return success();
}

/// Choices may be narrower.
Value RoutingProof::getChoices(Value value) const {
  for (;;) {
    value = numbers.getSource(value);
    Value cast = nn::getCastChoices(value);
    if (!cast)
      return value;
    value = cast;
  }
}

/// The routing of an op by its choices. Choices that are rows are those by which these rows were dispatched.
FailureOr<Routing> RoutingProof::readChoices(nn::RoutedOpInterface op, const nn::RoutingUse &use) {
  Value operand = op->getOperand(*use.choices);
  Routing outer = lookup(operand);
  if (!outer)
    return Routing{getChoices(operand), use.shared};
  Value choices = rowsOfChoices.lookup(getChoices(operand));
  // The number of rows that exist is known of types, or is an operand.
  if (!isRouted(operand) && !use.tokens)
    return op->emitOpError() << "expected the offsets of the rows that operand " << *use.choices << " is";
  if (!choices)
    return op->emitOpError() << "expected operand " << *use.choices
                             << ", which is routed, to be the choices by which it was dispatched";
  return Routing{choices, use.shared};
}

/// Checks that an operand on the side of the tokens is of the routing of these, or of none.
LogicalResult RoutingProof::checkTokens(nn::RoutedOpInterface op, const nn::RoutingUse &use, Member choices) {
  if (!use.tokens)
    return success();
  Value operand = op->getOperand(*use.tokens);
  Routing have = lookup(operand), want = choices.routing;
  if (Member tokens{*use.tokens, have, getOrder(operand)}; have && tokens.order != choices.order)
    return refuse(op, tokens, choices);
  if ((!have && (!want || fitsAll(operand))) || (have && want && isSame(have, want)))
    return success();
  InFlightDiagnostic error = op->emitOpError() << "expected operand " << *use.tokens << " to be "
                                               << (want ? "rows of the routing of its choices" : "tokens")
                                               << ", got " << (have ? "rows of another routing" : "other values");
  if (have)
    error.attachNote(have.choices.getLoc()) << "operand " << *use.tokens << " is of the routing from here";
  if (want)
    error.attachNote(want.choices.getLoc()) << "the choices are of the routing from here";
  return error;
}

/// Notes what is known of results: that rows are choices, and of which tokens places are.
void RoutingProof::noteChoices(nn::RoutedOpInterface op, const nn::RoutingUse &use, Routing routing) {
  if (!use.givesRouted || !op->hasTrait<MovesOnly>())
    return;
  // Rows that are taken of tokens, or go on as they are.
  Value from = op->getOperand(0), choices = rowsOfChoices.lookup(getChoices(from));
  if (use.tokens && !lookup(from) && isSame({getChoices(from), 1}, {routing.choices, 1}))
    choices = routing.choices;
  if (choices && (use.tokens || llvm::is_contained(use.operands, 0u)))
    rowsOfChoices[op->getResult(0)] = choices;
}

LogicalResult RoutingProof::visitRouted(nn::RoutedOpInterface op) {
  nn::RoutingUse use = op.getRoutingUse();
  std::optional<Member> first;
  Routing outer;
  // Rows that return go to the places that the last operand counts, and other rows stay where they are.
  bool returns = op->hasTrait<nn::CountsRows>() && op->hasTrait<MovesOnly>() && use.operands.size() > 2;
  for (unsigned i : use.operands) {
    Value operand = op->getOperand(i);
    Routing routing = lookup(operand);
    if (!routing && fitsAll(operand))
      continue;
    bool isPlace = returns && first && i == use.operands.back();
    Member member{i, routing ? routing : Routing{numbers.getSource(operand)},
                  isPlace ? first->order : getOrder(operand)};
    if (failed(join(op, member, first)))
      return failure();
    if (Routing of = tokens.lookup(numbers.getSource(operand)))
      outer = of;
  }
  if (use.choices) {
    FailureOr<Routing> routing = readChoices(op, use);
    if (failed(routing))
      return failure();
    choices.insert(routing->choices);
    if (failed(join(op, {*use.choices, *routing, getOrder(op->getOperand(*use.choices))}, first)))
      return failure();
    outer = lookup(op->getOperand(*use.choices));
  }
  if (first && failed(checkTokens(op, use, {first->operand, outer, first->order})))
    return failure();
  if (use.givesTokens && outer)
    for (Value result : op->getResults()) {
      routings[result] = outer;
      orders[result] = first->order;
    }
  if (!use.givesRouted || !first)
    return success();
  size_t order = returns ? getOrder(op->getOperand(use.operands.back())) : first->order;
  if (use.sentAlong && layouts) {
    if (order != 0)
      return op->emitOpError(
          "expected rows in the order of their tokens, got rows in the order of ranks that sent them");
    order = getOrderBehind(op, use);
  }
  for (Value result : op->getResults()) {
    routings[result] = first->routing;
    orders[result] = order;
    if (use.choices && outer)
      tokens[result] = outer;
  }
  noteChoices(op, use, first->routing);
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
    if (Routing routing = lookup(op->getOperand(i)))
      if (failed(join(op, {i, routing, getOrder(op->getOperand(i))}, first)))
        return failure();
  if (!first)
    return success();
  if (hasRoutedType(op)) {
    for (Value result : op->getResults())
      if (isRouted(result)) {
        routings[result] = first->routing;
        orders[result] = first->order;
      }
    return success();
  }
  FactorRule rule = interface.getFactorRule();
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    if (lookup(op->getOperand(i)) && readsAll(rule, i))
      return op->emitOpError() << "expected rows of operand " << i
                               << " to be read one by one, got a dimension that is read whole: rows behind the last "
                                  "one are of no token";
  for (unsigned result = 0; result < op->getNumResults(); ++result) {
    if (!keepsRows(rule, op, first->operand, result))
      continue;
    for (unsigned i = 0; layouts && i < op->getNumOperands(); ++i) {
      Value operand = op->getOperand(i);
      if (keepsRows(rule, op, i, result) && shapeOf(operand).front() != 1 && !lookup(operand) &&
          !fitsAll(operand))
        return refuse(op, *first, {i, Routing{operand}});
    }
    routings[op->getResult(result)] = first->routing;
    orders[op->getResult(result)] = first->order;
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
