//===- MovedRowModels.cpp - rows that go to their experts -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Where the ranks that share experts have tokens of their own, rows are made at the tokens and move to the
// experts, or each rank gathers the tokens and makes the rows of its experts.
//
// A token that has several experts on a rank goes there once. The experts of a rank share its row, which is
// dispatched to them on the rank:
//
//   r = dispatch(x, i) : E                 g = dispatch(x, i) : E/n, shared = n   moves
//                                          j = dispatch(i, i) : E/n, shared = n   moves, once for a routing
//                                          r = dispatch(g, j) : E
//   y = combine(r, i)                      g = combine(r, j) : E/n, shared = n    moves back
//                                          y = combine(g, i)
//
// A step of its own crosses slower links if that takes less time: the row goes to a rank of each group behind such a
// link, and that rank sends it on to the ranks of its group. So these two lines stand once for each step.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/MovedRowModels.h"

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/partition/SentRowModels.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Moves rows of so many experts, or groups of experts, from the ranks of some steps to those of others. The layout
/// is that of rows at their tokens.
FailureOr<Value> RowMover::move(Value rows, const Layout &atTokens, int64_t groups, size_t from, size_t to,
                                Location loc) {
  Layout before = place(atTokens, groups, from), after = place(atTokens, groups, to);
  if (!splitsTokens())
    return partitioner.reshard(rows, before, after, loc);
  // The resharder would give the parts of a factor dimensions of their own on the way.
  MeshAttr mesh = partitioner.getMesh();
  canonicalize(before, mesh);
  canonicalize(after, mesh);
  SmallVector<int64_t> shape;
  for (const DimLayout &dim : after.dims)
    shape.push_back(dim.getLocalSize());
  OpBuilder &builder = partitioner.getBuilder();
  Attribute source = getSharding(before, partitioner.getSymbol(), mesh);
  Attribute target = getSharding(after, partitioner.getSymbol(), mesh);
  Type type = cast<RankedTensorType>(rows.getType()).clone(shape);
  return RedistributeOp::create(builder, loc, type, rows, builder.getArrayAttr(source), builder.getArrayAttr(target))
      .getResult(0);
}

/// The first of a rank's experts, or groups of experts, of which each rank has so many after some steps. Null if each
/// rank has all.
Value RowMover::getOffset(size_t numSteps, int64_t local) {
  if (numSteps == 0)
    return nullptr;
  OpBuilder &builder = partitioner.getBuilder();
  return AxisIndexOp::create(builder, dispatch.getLoc(), RankedTensorType::get({}, builder.getI64Type()),
                             getAxesAttr(builder.getContext(), getAxes(numSteps), partitioner.getMesh()),
                             builder.getI64IntegerAttr(local));
}

/// States the experts, or groups of experts, of all ranks beside an offset.
void RowMover::stateAll(LookupOpInterface op, int64_t all) {
  if (op.getOffsetOperand())
    op->setAttr(nn::NnDialect::kTableRowsAttr, partitioner.getBuilder().getI64IntegerAttr(all));
}

/// Rows of tokens that groups of experts share, on the way to the ranks of a step.
Value RowMover::dispatchShared(Value tokens, Value choices, size_t step) {
  RankedTensorType type = dispatch.getType();
  int64_t groups = getNumGroups(step), local = getNumShards(steps[step - 1]);
  SmallVector<int64_t> shape(shapeOf(tokens).drop_front(step > 1 ? 1 : 0));
  shape.insert(shape.begin(), local);
  auto shared = RankedTensorType::get(shape, elementOf(tokens),
                                      nn::getShared(nn::getRouted(type), type.getDimSize(0) / groups));
  auto rows = nn::DispatchOp::create(partitioner.getBuilder(), dispatch.getLoc(), shared, tokens, choices,
                                     getOffset(step - 1, local), /*each=*/false);
  stateAll(rows, groups);
  return rows;
}

/// The choices of the tokens that have rows on a rank after so many steps, in the order of these. They move once for a
/// routing.
FailureOr<Value> RowMover::sendChoices(Value choices, size_t step) {
  if (step == 0)
    return choices;
  Value indices = dispatch.getIndices();
  Partitioner::SentRows &sent = partitioner.getSentRows(indices, getAxes(step));
  if (sent.choices)
    return sent.choices;
  FailureOr<Value> before = sendChoices(choices, step - 1);
  if (failed(before))
    return failure();
  OpBuilder &builder = partitioner.getBuilder();
  int64_t groups = getNumGroups(step), experts = dispatch.getType().getDimSize(0);
  auto type = cast<RankedTensorType>(before->getType());
  bool isLast = step == steps.size();
  DistDialect::getDecisionLog(builder.getContext())
      .add("partition", Outcome::Applied, dispatch.getLoc(),
           llvm::formatv("a token with {0} experts goes to {1} once: the {2} experts of {1} share its row",
                         type.getShape().back(), isLast ? "a rank" : "a group of ranks", experts / groups)
               .str(),
           {{"experts", double(experts)}, {isLast ? "ranks" : "groups", double(groups)}});
  Value narrow = *before;
  if (!type.getElementType().isInteger(32))
    narrow = nn::CastOp::create(builder, dispatch.getLoc(), type.clone(builder.getI32Type()), *before);
  Layout layout = partitioner.getLayout(
      indices, partitioner.project(indices, rule().operands[1], opFactors, *tokens));
  layout.dims.insert(layout.dims.begin(), DimLayout());
  auto moved = move(dispatchShared(narrow, *before, step), layout, groups, step - 1, step, dispatch.getLoc());
  if (succeeded(moved))
    sent.choices = *moved;
  return moved;
}

/// Adds a dimension of a number for each choice.
static void addNumbers(Layout &layout, int64_t choices) {
  LayoutFactor numbers;
  numbers.size = numbers.padded = choices;
  layout.dims.push_back(DimLayout(numbers));
}

LogicalResult RowMover::send() {
  RowBytes bytes = getBytes(dispatch.getType());
  bool perChoice = dispatch.getEach() || bytes.perChoice <= bytes.perRank;
  if (perChoice)
    partitioner.getSentRows(dispatch.getIndices(), axes).perChoice = true;
  if (perChoice && !hasSteps())
    return partitioner.partitionByRule(dispatch, *tokens);
  Value result = dispatch.getResult();
  SmallVector<Value, 3> operands;
  for (auto [operand, dims] : llvm::zip(dispatch->getOperands(), rule().operands)) {
    auto value = partitioner.use(operand, partitioner.project(operand, dims, opFactors, *tokens), dispatch.getLoc());
    if (failed(value))
      return failure();
    operands.push_back(*value);
  }
  if (failed(partitioner.maskIndices(dispatch, *tokens, operands)))
    return failure();
  Layout layout = partitioner.getLayout(
      result, partitioner.project(result, rule().results[0], opFactors, *tokens));
  Layout shared = layout;
  if (dispatch.getEach())
    addNumbers(shared, shapeOf(operands[1]).back());
  Value rows = operands[0], choices = operands[1];
  // Rows of choices take the last step by themselves.
  size_t numShared = steps.size() - (perChoice ? 1 : 0);
  for (size_t step = 1; step <= numShared; ++step) {
    auto sent = sendChoices(operands[1], step);
    if (failed(sent))
      return failure();
    int64_t groups = getNumGroups(step);
    auto moved = move(dispatchShared(rows, choices, step), shared, groups, step - 1, step, dispatch.getLoc());
    if (failed(moved))
      return failure();
    rows = *moved;
    choices = *sent;
  }
  int64_t experts = dispatch.getType().getDimSize(0), local = experts / getNumGroups(numShared);
  SmallVector<int64_t> shape(shapeOf(dispatch.getEach() ? choices : rows));
  shape.front() = local;
  if (dispatch.getEach())
    shape.pop_back();
  operands = {rows, choices, getOffset(numShared, local)};
  auto type = RankedTensorType::get(shape, elementOf(rows), nn::getRouted(dispatch.getType()));
  Operation *op = partitioner.emit(dispatch, operands, type);
  stateAll(cast<LookupOpInterface>(op), experts);
  rows = op->getResult(0);
  if (perChoice) {
    auto moved = move(rows, layout, experts, numShared, steps.size(), dispatch.getLoc());
    if (failed(moved))
      return failure();
    rows = *moved;
  }
  return partitioner.define(result, {rows, getAtExperts(), {}});
}

LogicalResult RowMover::combine(nn::CombineOp op, Partitioner::Local rows, const Assignment &atTokens) {
  OpBuilder &builder = partitioner.getBuilder();
  const FactorAnalysis::OpFactors &own = partitioner.getFactors().getFactors(op);
  Value indices = op.getIndices();
  auto chosen = partitioner.use(indices, partitioner.project(indices, own.rule.operands[1], own, atTokens),
                                op.getLoc());
  if (failed(chosen))
    return failure();
  SmallVector<Value, 2> operands{rows.value, *chosen};
  if (failed(partitioner.maskIndices(op, atTokens, operands)))
    return failure();
  ValueSharding at = partitioner.project(op.getRows(), own.rule.operands[0], own, atTokens);
  Layout layout = partitioner.getLayout(op.getRows(), at, rows.unreduced);
  size_t step = steps.size();
  int64_t count = dispatch.getType().getDimSize(0);
  Value value = operands[0];
  auto takeBack = [&]() -> LogicalResult {
    auto moved = move(value, layout, count, step, step - 1, op.getLoc());
    if (failed(moved))
      return failure();
    value = *moved;
    --step;
    return success();
  };
  // Rows of choices take the last step back as they are.
  if (!sumsFirst(op) && failed(takeBack()))
    return failure();
  bool each = op.getEach();
  while (step > 0) {
    // Sums over the experts of a group, or a number for each choice, which is zero for those of other groups.
    auto choices = sendChoices(operands[1], step);
    if (failed(choices))
      return failure();
    SmallVector<int64_t> shape(shapeOf(each ? *choices : value));
    shape.front() = 1;
    auto shared = RankedTensorType::get(shape, elementOf(value), nn::getRouted(choices->getType()));
    auto sums = nn::CombineOp::create(builder, op.getLoc(), shared, value, *choices,
                                      getOffset(step, shapeOf(value).front()), each);
    stateAll(sums, count);
    if (std::exchange(each, false))
      addNumbers(layout, shape.back());
    value = sums;
    count = getNumGroups(step);
    if (failed(takeBack()))
      return failure();
  }
  operands.front() = value;
  Value result = op.getResult();
  ValueSharding sharding = partitioner.project(result, own.rule.results[0], own, atTokens);
  auto sum = cast<nn::CombineOp>(partitioner.emit(op, operands, partitioner.getLocalType(result, sharding)));
  sum.setEach(false);
  return partitioner.define(result, {sum.getResult(), sharding, rows.unreduced});
}

FailureOr<bool> meshwright::sendRows(Operation *dispatch, Partitioner &partitioner) {
  RowMover mover(cast<nn::DispatchOp>(dispatch), partitioner);
  if (!mover.getTokens())
    return false;
  if (failed(mover.send()))
    return failure();
  return true;
}

/// Sums rows that are parts of a sum.
static LogicalResult combineParts(nn::CombineOp op, Partitioner &partitioner, Partitioner::Local rows,
                                  const std::optional<Assignment> &returned) {
  const FactorAnalysis::OpFactors &opFactors = partitioner.getFactors().getFactors(op);
  const FactorRule &rule = opFactors.rule;
  Assignment assignment;
  if (returned) {
    assignment = *returned;
    ValueSharding at = partitioner.project(op.getRows(), rule.operands[0], opFactors, assignment);
    auto moved = partitioner.reshard(op.getRows(), rows, at, op.getLoc(), rows.unreduced);
    if (failed(moved))
      return failure();
    rows.value = *moved;
    rows.sharding = std::move(at);
  } else {
    for (const FactorClasses &classes : opFactors.classes)
      assignment.emplace_back(classes.size());
    forEachClass(rule.operands[0], rows.sharding, opFactors,
                 [&](int factor, size_t cls, const AxisList &axes) { assignment[factor][cls] = axes; });
  }
  auto indices = partitioner.use(
      op.getIndices(), partitioner.project(op.getIndices(), rule.operands[1], opFactors, assignment),
      op.getLoc());
  if (failed(indices))
    return failure();
  SmallVector<Value, 3> operands{rows.value, *indices};
  if (failed(partitioner.maskIndices(op, assignment, operands)))
    return failure();
  ValueSharding sharding =
      partitioner.project(op.getResult(), rule.results[0], opFactors, assignment);
  Type type = partitioner.getLocalType(op.getResult(), sharding);
  auto model = cast<LocalOpInterface>(*op);
  model.addOperands(partitioner, assignment, type, operands);
  Operation *local = partitioner.emit(op, operands, type);
  model.fitFacts(partitioner, assignment, local);
  Part sum = rows.unreduced;
  sum.axes.append(partitioner.getContractedAxes(rule, assignment, /*result=*/0));
  llvm::sort(sum.axes);
  canonicalizeAxes(sum.axes, partitioner.getMesh());
  return partitioner.define(op.getResult(), {local->getResult(0), sharding, std::move(sum)});
}

FailureOr<bool> meshwright::combineRows(Operation *combine, Partitioner &partitioner) {
  auto op = cast<nn::CombineOp>(combine);
  Value from = op.getRows();
  std::optional<RowMover> mover;
  std::optional<Assignment> returned;
  if (nn::DispatchOp dispatch = nn::getDispatch(from))
    returned = mover.emplace(dispatch, partitioner).getReturn(op);
  const Partitioner::LocalForm &form = partitioner.getForm(from);
  bool arePartial = form.isDeferred && form.rest.empty() && from.hasOneUse() &&
                    form.local.unreduced.reduction == ReductionKind::Sum;
  // One launch moves rows of tokens along several dimensions, and no parts.
  arePartial &= !returned || mover->movesOneDim();
  if (!arePartial && !returned)
    return false;
  Partitioner::Local rows = form.local;
  if (!arePartial)
    rows = {Value(), form.target, {}};
  if (returned && mover->areAtExperts(op, rows.sharding) && (mover->hasSteps() || mover->sumsFirst(op))) {
    if (!arePartial) {
      auto whole = partitioner.use(from, rows.sharding, op.getLoc());
      if (failed(whole))
        return failure();
      rows.value = *whole;
    }
    if (failed(mover->combine(op, rows, *returned)))
      return failure();
    return true;
  }
  if (failed(arePartial ? combineParts(op, partitioner, rows, returned)
                        : partitioner.partitionByRule(op, *returned)))
    return failure();
  return true;
}
