//===- CompactRows.cpp - rows of experts that exist -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A routed tensor [experts, tokens..., features...] becomes [capacity, 1..., features...], so most ops on
// rows become the same ops on another type. Operands that stretch along experts or tokens get a row for
// each row.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/Routings.h"
#include "meshwright/lib/Report/MovedRows.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/RoutingNumbers.h"

#include "mlir/IR/IRMapping.h"

#include <deque>

namespace meshwright {
#define GEN_PASS_DEF_COMPACTROWSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// Rewrites the routed values of a function.
class Compactor {
public:
  explicit Compactor(func::FuncOp func) : func(func), builder(func.getContext()), numbers(func) {}

  LogicalResult run() {
    SmallVector<Operation *> ops;
    for (Operation &op : func.getBody().front())
      if (isRouted(op.getOperandTypes()) || isRouted(op.getResultTypes()))
        ops.push_back(&op);
    if (!ops.empty() && failed(prove(llvm::any_of(ops, [](Operation *op) { return hasDimOfOne(op) || leavesOut(op); }))))
      return failure();
    numbers.numberLimits();
    for (Operation *op : ops) {
      builder.setInsertionPoint(op);
      if (failed(rewrite(op)))
        return failure();
    }
    for (Operation *op : llvm::reverse(ops))
      op->erase();
    return success();
  }

private:
  /// Rows of a routing: those of a rank's tokens, or those of its experts that other ranks sent.
  struct Route {
    /// The choices of the rows and the places of the choices. Null for other ranks' tokens.
    Value choices, places;
    /// The offsets of the rows by expert, and of all tokens' rows the parts by expert and rank.
    Value offsets, parts;
    int64_t experts, rows, tokens, group;
    /// The experts of all ranks, where a rank has some.
    IntegerAttr total;
    /// The number of the routing among those of the program.
    IntegerAttr layer;
    /// The dimensions of the tokens.
    SmallVector<int64_t> shape;
    /// The rows of the tokens, from which ranks sent these.
    const Route *home = nullptr;
    /// The rows that experts share, of which these are.
    const Route *outer = nullptr;
  };

  static bool isRouted(TypeRange types) {
    return llvm::any_of(types, [](Type type) { return bool(nn::getRouted(type)); });
  }

  /// Returns true if an operand that is not routed may stretch along a dimension, or be a rank's part of
  /// it.
  static bool hasDimOfOne(Operation *op) {
    return op->hasTrait<dist::Elementwise>() && llvm::any_of(op->getOperands(), [](Value operand) {
             return !nn::getRouted(operand.getType()) && llvm::is_contained(shapeOf(operand), 1);
           });
  }

  /// Returns true if an op leaves out experts or tokens of rows.
  static bool leavesOut(Operation *op) {
    if (!isa<nn::SliceOp>(op) || !nn::getRouted(op->getOperand(0).getType()))
      return false;
    int64_t dims = 1 + nn::getNumTokenDims(op->getOperand(0));
    return shapeOf(op->getOperand(0)).take_front(dims) != shapeOf(op->getResult(0)).take_front(dims);
  }

  LogicalResult prove(bool needsLayouts);
  const Route &addRoute(RankedTensorType type, Value indices, Value offset, Operation *op);
  const Route *findRoute(Operation *op, Value rows);
  const Route *findSent(const Route &route) const;
  RankedTensorType getCompact(Type type, const Route &route);
  RankedTensorType vector(int64_t size) { return RankedTensorType::get({size}, builder.getI64Type()); }
  LogicalResult rewrite(Operation *op);
  LogicalResult rewriteRowWise(Operation *op);
  LogicalResult rewritePadding(Operation *op);
  LogicalResult rewriteCollective(Operation *op);
  LogicalResult moveRows(dist::CollectiveOpInterface collective, unsigned i, const Route &route);
  LogicalResult reduce(nn::ReduceOp op, const Route &route);
  Value get(Value rows, const Route &route);
  /// Returns true if ranks have parts of a dimension of a value of the program as it was.
  bool isSharded(Value value, int64_t dim) const;
  FailureOr<Value> spread(Operation *op, Value operand, int64_t rank, const Route &route);
  /// Facts of the program stay. Those of the layouts of routed values are of no use.
  static void keepFacts(Operation *op, Operation *local) {
    for (StringRef name : {nn::NnDialect::kIdAttr, nn::NnDialect::kStageAttr, nn::NnDialect::kBackwardAttr})
      if (Attribute fact = op->getDiscardableAttr(name))
        local->setDiscardableAttr(name, fact);
  }
  void replace(Operation *op, Value value, const Route *route = nullptr) {
    keepFacts(op, value.getDefiningOp());
    replace(op->getResult(0), value, route);
  }
  void replace(Value from, Value to, const Route *route) {
    if (!nn::getRouted(from.getType()))
      return from.replaceAllUsesWith(to);
    compact.map(from, to);
    if (route)
      routeOf[from] = route;
  }

  func::FuncOp func;
  OpBuilder builder;
  IRMapping compact;
  /// The layouts of the program as it was, where shapes do not tell all.
  std::optional<PlacementAnalysis> layouts;
  RoutingNumbers numbers;
  std::deque<Route> routes;
  /// By the choices, the rank's first expert and the type of a row.
  llvm::DenseMap<std::tuple<Value, Attribute, Type>, const Route *> known;
  /// The route of a routed value of the program.
  ProgramMap<Value, const Route *> routeOf;
};

} // namespace

/// Proves that ops join rows of one routing, of which one route is taken, and derives layouts where shapes
/// do not tell all.
LogicalResult Compactor::prove(bool needsLayouts) {
  if (!dist::getSpmdMesh(func))
    return verifyRoutings(func);
  if (!needsLayouts && areRoutingsProved(func))
    return success();
  FailureOr<PlacementAnalysis> analysis = PlacementAnalysis::run(func);
  if (failed(analysis))
    return failure();
  if (needsLayouts)
    layouts.emplace(std::move(*analysis));
  return success();
}

/// The route of the rows that go to experts from tokens, or from rows that the experts share.
const Compactor::Route &Compactor::addRoute(RankedTensorType type, Value indices, Value offset, Operation *op) {
  const Route *outer = routeOf.lookup(indices);
  SmallVector<int64_t> chosen(outer ? shapeOf(compact.lookup(indices)) : shapeOf(indices));
  int64_t tokens = chosen.size() - (outer ? 2 : 1), experts = type.getDimSize(0);
  auto shape = type.getShape().take_front(tokens + 1);
  nn::RoutedAttr routed = nn::getRouted(type);
  auto rows = RankedTensorType::get(shape, builder.getI64Type(), routed);
  // Each op has a coordinate of its own.
  Operation *index = offset ? offset.getDefiningOp() : nullptr;
  Attribute first = index ? index->getPropertiesAsAttribute() : Attribute();
  const Route *&found = known[{indices, first, rows}];
  if (found)
    return *found;
  IntegerAttr total, shared, layer;
  if (offset)
    if (std::optional<int64_t> all = nn::getTableRows(cast<dist::LookupOpInterface>(op)))
      total = builder.getI64IntegerAttr(*all);
  // Reports count the rows of experts.
  if (routed.getShared() != 1)
    shared = builder.getI64IntegerAttr(routed.getShared());
  else
    layer = builder.getI64IntegerAttr(numbers.get(indices));
  auto route = nn::RouteOp::create(
      builder, op->getLoc(),
      TypeRange{vector(experts + 1), vector(dist::getStoredElements(rows)),
                RankedTensorType::get(chosen, builder.getI64Type())},
      outer ? compact.lookup(indices) : indices, offset, outer ? outer->offsets : Value(),
      builder.getI64IntegerAttr(experts), total, shared, layer);
  if (int64_t expected = getExpectedRows(rows, total, dist::getRowLoad(op)); expected < dist::getStoredElements(rows))
    route->setDiscardableAttr(nn::kExpectedRowsAttr, builder.getI64IntegerAttr(expected));
  Route &added =
      routes.emplace_back(Route{route.getChoices(), route.getPlaces(), route.getOffsets(), Value(), experts,
                                dist::getStoredElements(rows), tokens, chosen.back(), total, layer, {}});
  added.shape.assign(shape.begin() + 1, shape.end());
  added.outer = outer;
  return *(found = &added);
}

/// The route of rows. Null, after an error, if they are of no dispatch.
const Compactor::Route *Compactor::findRoute(Operation *op, Value rows) {
  const Route *route = routeOf.lookup(rows);
  if (!route)
    op->emitOpError("has routed tensors that are of no nn.dispatch of this function");
  return route;
}

/// The type of the rows that exist.
RankedTensorType Compactor::getCompact(Type type, const Route &route) {
  auto tensor = cast<RankedTensorType>(type);
  SmallVector<int64_t> shape(tensor.getShape());
  shape[0] = route.rows;
  for (int64_t dim = 1; dim <= route.tokens; ++dim)
    shape[dim] = 1;
  return RankedTensorType::get(shape, tensor.getElementType());
}

bool Compactor::isSharded(Value value, int64_t dim) const {
  const dist::Layout *layout = layouts ? layouts->lookup(value) : nullptr;
  return layout && layout->dims[dim].isSharded();
}

/// An operand of an op on rows that is not routed, and that has so many dimensions as the rows or fewer:
/// a row for each row where it differs from expert to expert, or token to token.
FailureOr<Value> Compactor::spread(Operation *op, Value operand, int64_t rank, const Route &route) {
  RankedTensorType type = typeOf(operand);
  int64_t missing = rank - type.getRank();
  auto sizeOf = [&](int64_t dim) { return dim < missing ? 1 : type.getDimSize(dim - missing); };
  // One element may be the part of a sharded dimension that a rank has.
  auto differs = [&](int64_t dim) {
    return sizeOf(dim) != 1 || (dim >= missing && isSharded(operand, dim - missing));
  };
  bool ofExperts = differs(0), ofTokens = false;
  SmallVector<int64_t> features;
  for (int64_t dim = 1; dim < rank; ++dim) {
    if (dim > route.tokens)
      features.push_back(sizeOf(dim));
    else
      ofTokens |= differs(dim);
  }
  if (!ofExperts && !ofTokens)
    return operand;
  if (ofExperts && ofTokens)
    return op->emitOpError() << "has an operand that differs from expert to expert and from token to "
                                "token, and is not routed: expected nn.dispatch";
  nn::Writer w(builder, op->getLoc());
  SmallVector<int64_t> shape(rank, 1);
  llvm::copy(features, shape.end() - features.size());
  if (ofExperts) {
    shape[0] = sizeOf(0);
    Value table = w.reshape(operand, shape);
    shape[0] = route.rows;
    auto result = RankedTensorType::get(shape, type.getElementType());
    return nn::RepeatRowsOp::create(builder, op->getLoc(), result, table, route.offsets)
        .getResult();
  }
  if (!route.choices || route.outer)
    return op->emitOpError() << "has an operand that differs from token to token, and rows that other ranks "
                                "sent: expected nn.dispatch";
  // Dimensions of tokens along which it stretches are written out.
  SmallVector<int64_t> tokens(route.shape);
  llvm::append_range(tokens, features);
  SmallVector<int64_t> own;
  for (int64_t dim = 1; dim < rank; ++dim)
    own.push_back(sizeOf(dim));
  Value input = w.broadcast(w.reshape(operand, own), tokens);
  shape[0] = route.rows;
  auto result = RankedTensorType::get(shape, type.getElementType());
  return nn::TakeRowsOp::create(builder, op->getLoc(), result, input, route.choices, route.group,
                                route.tokens, /*each=*/false, /*nested=*/false)
      .getResult();
}

/// A sum over the tokens of each expert, and over further dimensions.
LogicalResult Compactor::reduce(nn::ReduceOp op, const Route &route) {
  for (int64_t dim = 1; dim <= route.tokens; ++dim)
    if (!llvm::is_contained(op.getDims(), dim))
      return op.emitOpError() << "sums over some dimensions of the tokens of routed rows: expected all "
                              << route.tokens;
  if (op.getKind() != nn::ReduceKind::Sum)
    return op.emitOpError("reduces the tokens of routed rows otherwise than by a sum");
  nn::Writer w(builder, op.getLoc());
  Value rows = get(op.getInput(), route);
  SmallVector<int64_t> shape(shapeOf(rows));
  shape[0] = route.experts;
  auto type = RankedTensorType::get(shape, op.getType().getElementType());
  Value sum = nn::SumGroupsOp::create(builder, op.getLoc(), type, rows, route.offsets, route.total);
  SmallVector<int64_t> rest;
  for (int64_t dim : op.getDims())
    if (dim == 0 || dim > route.tokens)
      rest.push_back(dim);
  if (!rest.empty())
    sum = w.reduce(nn::ReduceKind::Sum, sum, rest, /*keep=*/true);
  sum = w.reshape(sum, shapeOf(op));
  replace(op, sum);
  return success();
}

/// The axes that shard a dimension.
static SmallVector<Attribute> takeAxes(dist::DimShardingAttr dim) {
  SmallVector<Attribute> axes;
  for (dist::FactorShardingAttr factor : dim.getFactors())
    axes.append(factor.getAxes().begin(), factor.getAxes().end());
  return axes;
}

/// The axes along which operand `i` of a collective goes from the ranks of tokens to those of experts, or
/// back. Fails if it moves otherwise.
static FailureOr<ArrayAttr> getSentAxes(dist::CollectiveOpInterface collective, unsigned i, int64_t tokens,
                                        bool back) {
  if (auto shardings = collective.getShardings(i)) {
    auto [from, to] = back ? std::pair(shardings->second, shardings->first) : *shardings;
    SmallVector<Attribute> lost, gained;
    for (auto [dim, before, after] : llvm::enumerate(from.getDims(), to.getDims())) {
      if (before == after)
        continue;
      if (int64_t(dim) > tokens)
        return failure();
      // Experts gain axes, and tokens lose them.
      SmallVector<Attribute> fewer = takeAxes(dim == 0 ? before : after), more = takeAxes(dim == 0 ? after : before);
      for (Attribute axis : fewer)
        if (!llvm::is_contained(more, axis))
          return failure();
      llvm::erase_if(more, [&](Attribute axis) { return llvm::is_contained(fewer, axis); });
      (dim == 0 ? gained : lost).append(more);
    }
    if (lost != gained || lost.empty())
      return failure();
    return ArrayAttr::get(collective->getContext(), lost);
  }
  std::optional<int64_t> lost = collective.getLostDim(i), gained = collective.getGainedDim(i);
  if (back)
    std::swap(lost, gained);
  if (!collective.getAxes() || gained != 0 || !lost || *lost == 0 || *lost > tokens)
    return failure();
  return collective.getAxes();
}

/// The route of rows that other ranks sent, of the routing of these. Rows of one routing are in one order, also
/// rows that experts of a rank shared on their way. Null if none were sent.
const Compactor::Route *Compactor::findSent(const Route &route) const {
  if (route.home)
    return &route;
  auto isSent = [&](const Route &other) {
    return other.home && other.layer && other.layer == route.layer && other.experts == route.experts;
  };
  auto found = llvm::find_if(routes, isSent);
  return route.outer && found != routes.end() ? &*found : nullptr;
}

/// Rows that go from the ranks of their tokens to those of their experts, or back.
LogicalResult Compactor::moveRows(dist::CollectiveOpInterface collective, unsigned i, const Route &route) {
  Operation *op = collective.getOperation();
  Location loc = op->getLoc();
  Value from = op->getOperand(i), result = op->getResult(i), rows = compact.lookup(from);
  FailureOr<ArrayAttr> toExperts = getSentAxes(collective, i, route.tokens, /*back=*/false);
  if (succeeded(toExperts) && !route.parts) {
    ArrayAttr axes = *toExperts;
    auto type = cast<RankedTensorType>(result.getType());
    int64_t own = type.getDimSize(0), ranks = dist::getNumShards(dist::getAxes(axes, dist::getSpmdMesh(func)));
    Route at = route;
    at.choices = at.places = nullptr;
    at.experts = own;
    at.total = route.total ? route.total : builder.getI64IntegerAttr(route.experts);
    at.shape.assign(type.getShape().begin() + 1, type.getShape().begin() + 1 + route.tokens);
    // Tokens of padding have no rows.
    SmallVector<int64_t> room(type.getShape().take_front(1 + route.tokens));
    const dist::Layout *layout = layouts ? layouts->lookup(result) : nullptr;
    for (int64_t dim = 1; layout && dim <= route.tokens; ++dim)
      if (!layout->dims[dim].isSharded())
        room[dim] = layout->dims[dim].getGlobalSize();
    at.rows = dist::getStoredElements(RankedTensorType::get(room, builder.getI64Type(), type.getEncoding()));
    auto send = nn::SendRowsOp::create(
        builder, loc, TypeRange{getCompact(type, at), vector(own * ranks + 1), vector(own + 1)}, rows,
        route.offsets, axes, route.layer);
    keepFacts(op, send);
    send->setDiscardableAttr(nn::kExpectedRowsAttr,
                             builder.getI64IntegerAttr(getExpectedRows(op, i, route.tokens)));
    at.offsets = send.getOwn();
    at.parts = send.getParts();
    at.home = &route;
    routes.push_back(at);
    replace(result, send.getResult(), &routes.back());
    return success();
  }
  FailureOr<ArrayAttr> toTokens = getSentAxes(collective, i, route.tokens, /*back=*/true);
  if (const Route *sent = findSent(route); succeeded(toTokens) && sent) {
    const Route &home = *sent->home;
    auto back = nn::ReturnRowsOp::create(builder, loc, getCompact(result.getType(), home), rows, sent->parts,
                                         home.offsets, *toTokens);
    keepFacts(op, back);
    back->setDiscardableAttr(nn::kExpectedRowsAttr,
                             builder.getI64IntegerAttr(getExpectedRows(op, i, route.tokens)));
    replace(result, back.getResult(), &home);
    return success();
  }
  return op->emitOpError("moves rows of experts between ranks, which cannot be computed yet");
}

/// A collective that leaves experts and tokens where they are, or moves rows. The ranks of a group have
/// the same rows.
LogicalResult Compactor::rewriteCollective(Operation *op) {
  auto collective = cast<dist::CollectiveOpInterface>(op);
  SmallVector<Value> operands;
  SmallVector<Type> types;
  SmallVector<const Route *> own;
  bool moves = false;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    own.push_back(nullptr);
    if (!nn::getRouted(operand.getType())) {
      operands.push_back(operand);
      types.push_back(op->getResult(i).getType());
      continue;
    }
    const Route *route = own.back() = findRoute(op, operand);
    if (!route)
      return failure();
    auto isFeature = [&](std::optional<int64_t> dim) { return !dim || *dim > route->tokens; };
    moves |= !isFeature(collective.getLostDim(i)) || !isFeature(collective.getGainedDim(i)) ||
             collective.getShardings(i);
    operands.push_back(get(operand, *route));
    types.push_back(getCompact(op->getResult(i).getType(), *route));
  }
  if (moves) {
    for (auto [i, route] : llvm::enumerate(own))
      if (!route)
        return op->emitOpError("moves rows of experts beside other values, which cannot be computed yet");
      else if (failed(moveRows(collective, i, *route)))
        return failure();
    return success();
  }
  OperationState state(op->getLoc(), op->getName(), operands, types, {});
  state.propertiesAttr = op->getPropertiesAsAttribute();
  Operation *local = builder.create(state);
  keepFacts(op, local);
  for (auto [from, to, route] : llvm::zip_equal(op->getResults(), local->getResults(), own))
    replace(from, to, route);
  return success();
}

/// An op that adds padding to experts or tokens, which has no rows, or leaves it out.
LogicalResult Compactor::rewritePadding(Operation *op) {
  Value from = op->getOperand(0), to = op->getResult(0);
  const Route *route = findRoute(op, from);
  if (!route)
    return failure();
  ArrayRef<int64_t> before = shapeOf(from), after = shapeOf(to);
  const dist::Layout *layout = layouts ? layouts->lookup(from) : nullptr;
  for (int64_t dim = 0; dim < int64_t(before.size()); ++dim) {
    if (before[dim] == after[dim])
      continue;
    if (dim > route->tokens)
      return op->emitOpError("changes features and padding of routed rows at once, which cannot be computed yet");
    if (after[dim] < before[dim] && !(layout && layout->dims[dim].getGlobalSize() <= after[dim]))
      return op->emitOpError() << "leaves out experts or tokens of routed rows: expected padding behind "
                               << after[dim] << " of dimension " << dim << ", of size " << before[dim];
  }
  replace(to, compact.lookup(from), route);
  return success();
}

/// The same op on rows that exist.
LogicalResult Compactor::rewriteRowWise(Operation *op) {
  if (isa<dist::CollectiveOpInterface>(op))
    return rewriteCollective(op);
  if (isa<dist::PadOp>(op) || leavesOut(op))
    return rewritePadding(op);
  auto routed = llvm::find_if(op->getOperands(), [&](Value v) { return routeOf.contains(v); });
  const Route *found = findRoute(op, routed == op->getOperands().end() ? Value() : *routed);
  if (!found)
    return failure();
  const Route &route = *found;
  if (auto sum = dyn_cast<nn::ReduceOp>(op); sum && !nn::getRouted(sum.getType()))
    return reduce(sum, route);
  if (op->getNumRegions() != 0 || !isa<nn::NnDialect>(op->getDialect()))
    return op->emitOpError("cannot be computed on the rows of experts that exist");
  int64_t rank = cast<RankedTensorType>(op->getResult(0).getType()).getRank();
  SmallVector<Value> operands;
  for (Value operand : op->getOperands()) {
    if (nn::getRouted(operand.getType())) {
      operands.push_back(get(operand, route));
      continue;
    }
    FailureOr<Value> rows = op->hasTrait<dist::Elementwise>() ? spread(op, operand, rank, route) : operand;
    if (failed(rows))
      return failure();
    operands.push_back(*rows);
  }
  OperationState state(op->getLoc(), op->getName(), operands,
                       {getCompact(op->getResult(0).getType(), route)}, {});
  state.propertiesAttr = op->getPropertiesAsAttribute();
  Operation *local = builder.create(state);
  keepFacts(op, local);
  if (auto slice = dyn_cast<nn::SliceOp>(local)) {
    SmallVector<int64_t> limits(slice.getLimits());
    ArrayRef<int64_t> shape = shapeOf(slice.getInput());
    for (int64_t dim = 0; dim <= route.tokens; ++dim)
      limits[dim] = shape[dim];
    slice.setLimits(limits);
  }
  replace(op->getResult(0), local->getResult(0), &route);
  return success();
}

LogicalResult Compactor::rewrite(Operation *op) {
  Location loc = op->getLoc();
  if (auto dispatch = dyn_cast<nn::DispatchOp>(op)) {
    const Route &route = addRoute(dispatch.getType(), dispatch.getIndices(), dispatch.getOffset(), op);
    Value input = dispatch.getInput();
    if (route.outer)
      input = get(input, *route.outer);
    replace(op,
            nn::TakeRowsOp::create(builder, loc, getCompact(dispatch.getType(), route), input, route.choices,
                                   route.group, route.tokens, dispatch.getEach(), /*nested=*/bool(route.outer)),
            &route);
    return success();
  }
  // Users write constants of their own.
  if (isa<nn::ConstantOp>(op))
    return success();
  if (isa<dist::AfterOp>(op)) {
    SmallVector<Value, 2> operands;
    for (Value operand : op->getOperands())
      operands.push_back(nn::getRouted(operand.getType()) ? compact.lookup(operand) : operand);
    replace(op, dist::AfterOp::create(builder, loc, operands[0], operands[1]),
            routeOf.lookup(op->getOperand(0)));
    return success();
  }
  if (auto combine = dyn_cast<nn::CombineOp>(op)) {
    const Route *route = findRoute(op, combine.getRows());
    if (!route)
      return failure();
    Value rows = get(combine.getRows(), *route), indices = combine.getIndices();
    if (const Route *outer = routeOf.lookup(indices)) {
      // Rows that moved as they are have no places among the rows that experts share.
      if (route->outer != outer)
        route = &addRoute(cast<RankedTensorType>(combine.getRows().getType()), indices, combine.getOffset(), op);
      replace(op,
              nn::SumRowsOp::create(builder, loc, getCompact(combine.getType(), *outer), rows, route->places,
                                    combine.getEach(), /*nested=*/true),
              outer);
      return success();
    }
    if (!route->places || route->outer)
      return op->emitOpError("sums rows that other ranks sent: expected them at their tokens");
    replace(op, nn::SumRowsOp::create(builder, loc, combine.getType(), rows, route->places, combine.getEach(),
                                      /*nested=*/false));
    return success();
  }
  if (auto linear = dyn_cast<nn::GroupedLinearOp>(op)) {
    const Route *route = findRoute(op, linear.getRows());
    if (!route)
      return failure();
    replace(op,
            nn::GroupedProductOp::create(builder, loc, getCompact(linear.getType(), *route),
                                         get(linear.getRows(), *route), linear.getWeight(), route->offsets,
                                         linear.getInOut()),
            route);
    return success();
  }
  if (auto grad = dyn_cast<nn::GroupedWeightGradOp>(op)) {
    const Route *route = findRoute(op, grad.getLhs());
    if (!route)
      return failure();
    replace(op, nn::GroupedOuterOp::create(builder, loc, grad.getType(), get(grad.getLhs(), *route),
                                           get(grad.getRhs(), *route), route->offsets, route->total));
    return success();
  }
  return rewriteRowWise(op);
}

/// The rows that exist of a routed value. A constant is written for them.
Value Compactor::get(Value rows, const Route &route) {
  if (auto constant = rows.getDefiningOp<nn::ConstantOp>()) {
    auto elements = cast<DenseElementsAttr>(constant.getValue());
    RankedTensorType type = getCompact(rows.getType(), route);
    return nn::ConstantOp::create(builder, constant.getLoc(), elements.resizeSplat(type));
  }
  return compact.lookup(rows);
}

namespace {

struct CompactRowsPass : meshwright::impl::CompactRowsPassBase<CompactRowsPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal() || !func.getBody().hasOneBlock())
      return;
    if (failed(Compactor(func).run()))
      signalPassFailure();
  }
};

} // namespace
