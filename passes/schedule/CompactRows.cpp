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

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/IRMapping.h"

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
  explicit Compactor(func::FuncOp func) : func(func), builder(func.getContext()) {}

  LogicalResult run() {
    SmallVector<Operation *> ops;
    for (Operation &op : func.getBody().front())
      if (isRouted(op.getOperandTypes()) || isRouted(op.getResultTypes()))
        ops.push_back(&op);
    if (dist::getSpmdMesh(func) && llvm::any_of(ops, hasDimOfOne)) {
      FailureOr<PlacementAnalysis> analysis = PlacementAnalysis::run(func);
      if (failed(analysis))
        return failure();
      layouts.emplace(std::move(*analysis));
    }
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
  /// The rows of a routing.
  struct Route {
    nn::RouteOp op;
    int64_t tokens, choices;
    /// The dimensions of the tokens.
    SmallVector<int64_t> shape;
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

  Route getRoute(nn::DispatchOp dispatch);
  RankedTensorType getCompact(Type type, Route &route);
  LogicalResult rewrite(Operation *op);
  LogicalResult rewriteRowWise(Operation *op);
  LogicalResult rewriteCollective(Operation *op);
  LogicalResult reduce(nn::ReduceOp op, Route &route);
  Value get(Value rows, Route &route);
  /// Returns true if ranks have parts of a dimension of a value of the program as it was.
  bool isSharded(Value value, int64_t dim) const;
  FailureOr<Value> spread(Operation *op, Value operand, int64_t rank, Route &route);
  /// Facts of the program stay. Those of the layouts of routed values are of no use.
  static void keepFacts(Operation *op, Operation *local) {
    for (StringRef name : {nn::NnDialect::kIdAttr, nn::NnDialect::kStageAttr, nn::NnDialect::kBackwardAttr})
      if (Attribute fact = op->getDiscardableAttr(name))
        local->setDiscardableAttr(name, fact);
  }
  void replace(Operation *op, Value value) {
    keepFacts(op, value.getDefiningOp());
    if (nn::getRouted(op->getResult(0).getType()))
      compact.map(op->getResult(0), value);
    else
      op->getResult(0).replaceAllUsesWith(value);
  }

  func::FuncOp func;
  OpBuilder builder;
  IRMapping compact;
  /// The layouts of the program as it was, where shapes do not tell all.
  std::optional<PlacementAnalysis> layouts;
  /// By the choices, the rank's first expert and the type of a row.
  llvm::DenseMap<std::tuple<Value, Attribute, Type>, nn::RouteOp> routes;
};

} // namespace

Compactor::Route Compactor::getRoute(nn::DispatchOp dispatch) {
  auto type = cast<RankedTensorType>(dispatch.getType());
  Value indices = dispatch.getIndices(), offset = dispatch.getOffset();
  ArrayRef<int64_t> chosen = shapeOf(indices);
  int64_t tokens = chosen.size() - 1, experts = type.getDimSize(0);
  auto shape = type.getShape().take_front(tokens + 1);
  auto rows = RankedTensorType::get(shape, builder.getI64Type(), type.getEncoding());
  // Each op has a coordinate of its own.
  Operation *index = offset ? offset.getDefiningOp() : nullptr;
  Attribute first = index ? index->getPropertiesAsAttribute() : Attribute();
  nn::RouteOp &route = routes[{indices, first, rows}];
  if (!route) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(dispatch);
    auto vector = [&](int64_t size) { return RankedTensorType::get({size}, builder.getI64Type()); };
    IntegerAttr total;
    if (offset)
      if (std::optional<int64_t> all = nn::getTableRows(dispatch))
        total = builder.getI64IntegerAttr(*all);
    route = nn::RouteOp::create(
        builder, dispatch.getLoc(),
        TypeRange{vector(experts + 1), vector(dist::getStoredElements(rows)),
                  RankedTensorType::get(chosen, builder.getI64Type())},
        indices, offset, builder.getI64IntegerAttr(experts), total);
  }
  return {route, tokens, chosen.back(), SmallVector<int64_t>(chosen.drop_back())};
}

/// The type of the rows that exist.
RankedTensorType Compactor::getCompact(Type type, Route &route) {
  auto tensor = cast<RankedTensorType>(type);
  SmallVector<int64_t> shape(tensor.getShape());
  shape[0] = route.op.getChoices().getType().getDimSize(0);
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
FailureOr<Value> Compactor::spread(Operation *op, Value operand, int64_t rank, Route &route) {
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
  int64_t rows = route.op.getChoices().getType().getDimSize(0);
  if (ofExperts) {
    shape[0] = sizeOf(0);
    Value table = w.reshape(operand, shape);
    shape[0] = rows;
    auto result = RankedTensorType::get(shape, type.getElementType());
    return nn::RepeatRowsOp::create(builder, op->getLoc(), result, table, route.op.getOffsets())
        .getResult();
  }
  // Dimensions of tokens along which it stretches are written out.
  SmallVector<int64_t> tokens(route.shape);
  llvm::append_range(tokens, features);
  SmallVector<int64_t> own;
  for (int64_t dim = 1; dim < rank; ++dim)
    own.push_back(sizeOf(dim));
  Value input = w.broadcast(w.reshape(operand, own), tokens);
  shape[0] = rows;
  auto result = RankedTensorType::get(shape, type.getElementType());
  return nn::TakeRowsOp::create(builder, op->getLoc(), result, input, route.op.getChoices(),
                                route.choices, route.tokens, /*each=*/false)
      .getResult();
}

/// A sum over the tokens of each expert, and over further dimensions.
LogicalResult Compactor::reduce(nn::ReduceOp op, Route &route) {
  for (int64_t dim = 1; dim <= route.tokens; ++dim)
    if (!llvm::is_contained(op.getDims(), dim))
      return op.emitOpError() << "sums over some dimensions of the tokens of routed rows: expected all "
                              << route.tokens;
  if (op.getKind() != nn::ReduceKind::Sum)
    return op.emitOpError("reduces the tokens of routed rows otherwise than by a sum");
  nn::Writer w(builder, op.getLoc());
  Value rows = get(op.getInput(), route);
  SmallVector<int64_t> shape(shapeOf(rows));
  shape[0] = route.op.getExperts();
  auto type = RankedTensorType::get(shape, op.getType().getElementType());
  Value sum = nn::SumGroupsOp::create(builder, op.getLoc(), type, rows, route.op.getOffsets(),
                                    route.op.getTotalAttr());
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

/// A collective that leaves experts and tokens where they are. The ranks of a group have the same rows.
LogicalResult Compactor::rewriteCollective(Operation *op) {
  auto collective = cast<dist::CollectiveOpInterface>(op);
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    nn::DispatchOp dispatch = nn::getDispatch(operand);
    if (!dispatch) {
      operands.push_back(operand);
      types.push_back(op->getResult(i).getType());
      continue;
    }
    Route route = getRoute(dispatch);
    auto isFeature = [&](std::optional<int64_t> dim) { return !dim || *dim > route.tokens; };
    if (!isFeature(collective.getLostDim(i)) || !isFeature(collective.getGainedDim(i)) ||
        collective.getShardings(i))
      return op->emitOpError("moves rows of experts between ranks, which cannot be computed yet");
    operands.push_back(get(operand, route));
    types.push_back(getCompact(op->getResult(i).getType(), route));
  }
  OperationState state(op->getLoc(), op->getName(), operands, types, {});
  state.propertiesAttr = op->getPropertiesAsAttribute();
  Operation *local = builder.create(state);
  keepFacts(op, local);
  for (auto [from, to] : llvm::zip_equal(op->getResults(), local->getResults()))
    if (nn::getRouted(from.getType()))
      compact.map(from, to);
    else
      from.replaceAllUsesWith(to);
  return success();
}

/// The same op on rows that exist.
LogicalResult Compactor::rewriteRowWise(Operation *op) {
  auto routed = llvm::find_if(op->getOperands(), [](Value v) { return nn::getRouted(v.getType()); });
  nn::DispatchOp dispatch = routed == op->getOperands().end() ? nn::DispatchOp() : nn::getDispatch(*routed);
  if (!dispatch)
    return op->emitOpError("has routed tensors that are of no nn.dispatch of this function");
  Route route = getRoute(dispatch);
  if (auto sum = dyn_cast<nn::ReduceOp>(op); sum && !nn::getRouted(sum.getType()))
    return reduce(sum, route);
  if (isa<dist::CollectiveOpInterface>(op))
    return rewriteCollective(op);
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
  compact.map(op->getResult(0), local->getResult(0));
  return success();
}

LogicalResult Compactor::rewrite(Operation *op) {
  Location loc = op->getLoc();
  if (auto dispatch = dyn_cast<nn::DispatchOp>(op)) {
    Route route = getRoute(dispatch);
    replace(op, nn::TakeRowsOp::create(builder, loc, getCompact(dispatch.getType(), route),
                                       dispatch.getInput(), route.op.getChoices(), route.choices,
                                       route.tokens, dispatch.getEach()));
    return success();
  }
  // Users write constants of their own.
  if (isa<nn::ConstantOp>(op))
    return success();
  if (isa<dist::AfterOp>(op)) {
    SmallVector<Value, 2> operands;
    for (Value operand : op->getOperands())
      operands.push_back(nn::getRouted(operand.getType()) ? compact.lookup(operand) : operand);
    replace(op, dist::AfterOp::create(builder, loc, operands[0], operands[1]));
    return success();
  }
  auto getRows = [&](Value rows) -> FailureOr<Route> {
    if (nn::DispatchOp dispatch = nn::getDispatch(rows))
      return getRoute(dispatch);
    return LogicalResult(
        op->emitOpError("has routed tensors that are of no nn.dispatch of this function"));
  };
  if (auto combine = dyn_cast<nn::CombineOp>(op)) {
    FailureOr<Route> route = getRows(combine.getRows());
    if (failed(route))
      return failure();
    replace(op, nn::SumRowsOp::create(builder, loc, combine.getType(), get(combine.getRows(), *route),
                                      route->op.getPlaces(), combine.getEach()));
    return success();
  }
  if (auto linear = dyn_cast<nn::GroupedLinearOp>(op)) {
    FailureOr<Route> route = getRows(linear.getRows());
    if (failed(route))
      return failure();
    replace(op, nn::GroupedProductOp::create(builder, loc, getCompact(linear.getType(), *route),
                                             get(linear.getRows(), *route), linear.getWeight(),
                                             route->op.getOffsets(), linear.getInOut()));
    return success();
  }
  if (auto grad = dyn_cast<nn::GroupedWeightGradOp>(op)) {
    FailureOr<Route> route = getRows(grad.getLhs());
    if (failed(route))
      return failure();
    replace(op, nn::GroupedOuterOp::create(builder, loc, grad.getType(), get(grad.getLhs(), *route),
                                           get(grad.getRhs(), *route), route->op.getOffsets(),
                                           route->op.getTotalAttr()));
    return success();
  }
  return rewriteRowWise(op);
}

/// The rows that exist of a routed value. A constant is written for them.
Value Compactor::get(Value rows, Route &route) {
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
