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
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/MovedRowModels.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// The bytes that a token has on its way to experts, or back, at the expected load. All are sent to the other
/// ranks alike.
struct RowBytes {
  /// Of tokens that each rank gathers, to make the rows of its experts.
  double gathered;
  /// Of a row for each choice.
  double perChoice;
  /// Of a row for each rank that has experts of the token, with its choices.
  double perRank;

  double getLeast() const { return std::min(perChoice, perRank); }
};

/// Moves the rows of a dispatch, and sums that come of them.
class RowMover {
public:
  RowMover(nn::DispatchOp dispatch, Partitioner &partitioner);

  /// The axes over which rows are made at their tokens, to be sent to their experts. None if tokens are
  /// gathered instead.
  const std::optional<Assignment> &getTokens() const { return tokens; }
  /// The axes over which rows of a sum return to their tokens. None if they do not.
  std::optional<Assignment> getReturn(nn::CombineOp op);
  /// Returns true if sums over the experts of a rank return, of rows that are in a sharding now.
  bool sumsFirst(nn::CombineOp op, const ValueSharding &rows);

  /// Returns true if the axes shard one dimension of the tokens.
  bool movesOneDim();
  LogicalResult send();
  /// Sums rows at their experts, moves the sums to the tokens, and sums these.
  LogicalResult combine(nn::CombineOp op, Partitioner::Local rows, const Assignment &atTokens);

private:
  const FactorRule &rule() const { return opFactors.rule; }
  const ValueSharding &getTarget(nn::DispatchOp op) const { return partitioner.getForm(op.getResult()).target; }
  std::optional<Assignment> findTokens(nn::DispatchOp leader);
  bool hasSentChoices() { return partitioner.getSentRows(dispatch.getIndices(), axes).perChoice; }
  RowBytes getBytes(RankedTensorType rows);
  ValueSharding getAtExperts();
  Assignment getAssignment(const FactorRule::ValueFactors &dims, const FactorAnalysis::OpFactors &factors,
                           const ValueSharding &sharding) const;
  Layout shareRows(Layout layout, bool isAtExperts) const;
  Value dispatchShared(Value tokens, Value choices);
  FailureOr<Value> sendChoices(Value choices);

  nn::DispatchOp dispatch;
  Partitioner &partitioner;
  const FactorAnalysis::OpFactors &opFactors;
  /// The axes that shard experts, and tokens where rows are made.
  AxisList axes;
  std::optional<Assignment> tokens;
};

} // namespace

/// Returns true if the target of the program sends rows to the ranks of their experts.
static bool canSendRows(Operation *op) {
  std::shared_ptr<const KernelTarget> target = getKernelTarget(op->getParentOfType<func::FuncOp>());
  return !target || llvm::is_contained(target->getCalls(), MW_RT_CALL_SEND_ROWS);
}

/// One dispatch of a routing decides for all of them, so that the rows of an expert are in one order: that of
/// the ranks that send them, and then that of the tokens.
RowMover::RowMover(nn::DispatchOp dispatch, Partitioner &partitioner)
    : dispatch(dispatch), partitioner(partitioner), opFactors(partitioner.getFactors().getFactors(dispatch)) {
  // Rows that experts share are of a program that sends a token once by itself.
  if (nn::getRouted(dispatch.getIndices().getType()) || nn::getRouted(dispatch.getType()).getShared() != 1)
    return;
  for (const AxisList &cls : getTarget(dispatch).dims[0])
    axes.append(cls.begin(), cls.end());
  // Numbers of choices are few bytes, and do not decide.
  nn::DispatchOp leader;
  std::optional<Assignment> found;
  for (Operation *user : dispatch.getIndices().getUsers()) {
    auto other = dyn_cast<nn::DispatchOp>(user);
    if (!other || nn::getRouted(other.getType()).getShared() != 1 ||
        getTarget(other).dims[0] != getTarget(dispatch).dims[0])
      continue;
    if (leader && (leader.getEach() == other.getEach() ? leader->isBeforeInBlock(other) : other.getEach()))
      continue;
    if (std::optional<Assignment> at = findTokens(other)) {
      leader = other;
      found = std::move(at);
    }
  }
  if (!leader)
    return;
  if (RowBytes bytes = getBytes(leader.getType()); !leader.getEach() && bytes.getLeast() >= bytes.gathered)
    return;
  if (!canSendRows(leader))
    return;
  const FactorAnalysis::OpFactors &from = partitioner.getFactors().getFactors(leader);
  Value indices = dispatch.getIndices();
  tokens = getAssignment(rule().results[0], opFactors, getTarget(dispatch));
  for (AxisList &cls : (*tokens)[rule().results[0][0].front()])
    cls.clear();
  forEachClass(rule().operands[1], partitioner.project(indices, from.rule.operands[1], from, *found), opFactors,
               [&](int factor, size_t cls, const AxisList &own) { (*tokens)[factor][cls] = own; });
}

/// The axes of a dispatch at its tokens, if the same axes shard tokens and experts.
std::optional<Assignment> RowMover::findTokens(nn::DispatchOp leader) {
  const FactorAnalysis::OpFactors &own = partitioner.getFactors().getFactors(leader);
  const FactorRule &rule = own.rule;
  int experts = rule.results[0][0].front();
  if (axes.empty())
    return std::nullopt;
  Assignment assignment = getAssignment(rule.results[0], own, getTarget(leader));
  for (AxisList &cls : assignment[experts])
    cls.clear();
  // Classes of tokens that move are the major ones of their dimensions, so that a rank has tokens that follow
  // one another.
  AxisList moved;
  int64_t count = shapeOf(leader.getIndices()).size() - 1;
  const ValueSharding &input = partitioner.getForm(leader.getInput()).target;
  for (int64_t dim = 0; dim < count; ++dim) {
    bool isMajor = true;
    size_t next = 0;
    for (int factor : rule.operands[0][dim])
      for (auto [cls, index] : llvm::enumerate(own.classes[factor])) {
        const AxisList &have = input.dims[dim][next++];
        AxisList &list = assignment[factor][cls];
        if (have != list) {
          if (!list.empty() || !isMajor)
            return std::nullopt;
          moved.append(have);
          list = have;
        }
        isMajor &= partitioner.getFactors().getSize(index) == 1;
      }
  }
  return moved == axes ? std::optional(std::move(assignment)) : std::nullopt;
}

/// A gather also needs the choices of all tokens, which are not counted, and an all-to-all the counts of rows. In
/// a tie tokens are gathered.
RowBytes RowMover::getBytes(RankedTensorType rows) {
  nn::RoutedAttr routed = nn::getRouted(rows);
  int64_t ranks = getNumShards(axes), choices = routed.getChoices(), experts = rows.getDimSize(0);
  int64_t dims = dispatch.getIndices().getType().getRank();
  double bytes = double(getElementBytes(rows.getElementType())) *
                 double(ShapedType::getNumElements(rows.getShape().drop_front(dims)));
  double load = getRowLoad(dispatch);
  RowBytes all{bytes * double(ranks), load * bytes * double(choices), load * bytes * double(choices)};
  // A rank with one expert has one row of a token, unless choices repeat. Ranks with different numbers of experts
  // share no rows.
  if (choices == 1 || experts % ranks != 0 || (experts == ranks && !routed.getRepeats()))
    return all;
  SmallVector<int64_t> shape(rows.getShape().take_front(dims));
  shape.front() = ranks;
  auto shared = RankedTensorType::get(shape, rows.getElementType(), nn::getShared(routed, experts / ranks));
  double count = double(ShapedType::getNumElements(ArrayRef(shape).drop_front()));
  // At most a row for each rank.
  double sent = std::min(load * double(getExpectedElements(shared)) / count, double(ranks));
  all.perRank = sent * (bytes + double(choices) * sizeof(int32_t));
  return all;
}

std::optional<Assignment> RowMover::getReturn(nn::CombineOp op) {
  if (!tokens)
    return std::nullopt;
  const ValueSharding &rows = partitioner.getForm(op.getRows()).local.sharding;
  if (rows.dims[0] != getTarget(dispatch).dims[0])
    return std::nullopt;
  ValueSharding atTokens = partitioner.project(dispatch.getResult(), rule().results[0], opFactors, *tokens);
  ValueSharding at = rows;
  for (int64_t dim = 0; dim <= nn::getNumTokenDims(op.getRows()); ++dim)
    at.dims[dim] = atTokens.dims[dim];
  const FactorAnalysis::OpFactors &own = partitioner.getFactors().getFactors(op);
  return getAssignment(own.rule.operands[0], own, at);
}

bool RowMover::sumsFirst(nn::CombineOp op, const ValueSharding &rows) {
  for (int64_t dim = 0; dim <= nn::getNumTokenDims(op.getRows()); ++dim)
    if (rows.dims[dim] != getTarget(dispatch).dims[dim])
      return false;
  // Rows of choices return by the counts of the rows that came.
  if (op.getEach() || !hasSentChoices())
    return !hasSentChoices();
  RowBytes bytes = getBytes(cast<RankedTensorType>(op.getRows().getType()));
  return bytes.perRank < bytes.perChoice;
}

bool RowMover::movesOneDim() {
  ValueSharding at = partitioner.project(dispatch.getResult(), rule().results[0], opFactors, *tokens);
  int64_t moved = 0;
  for (int64_t dim = 1; dim < dispatch.getIndices().getType().getRank(); ++dim)
    moved += at.dims[dim] != getTarget(dispatch).dims[dim];
  return moved == 1;
}

/// The sharding of rows at their experts, features as at their tokens.
ValueSharding RowMover::getAtExperts() {
  ValueSharding sharding = partitioner.project(dispatch.getResult(), rule().results[0], opFactors, *tokens);
  for (int64_t dim = 0; dim < dispatch.getIndices().getType().getRank(); ++dim)
    sharding.dims[dim] = getTarget(dispatch).dims[dim];
  return sharding;
}

/// The axes of factors of which a value in a sharding has some.
Assignment RowMover::getAssignment(const FactorRule::ValueFactors &dims, const FactorAnalysis::OpFactors &factors,
                                   const ValueSharding &sharding) const {
  Assignment assignment;
  for (const FactorClasses &classes : factors.classes)
    assignment.emplace_back(classes.size());
  forEachClass(dims, sharding, factors,
               [&](int factor, size_t cls, const AxisList &list) { assignment[factor][cls] = list; });
  return assignment;
}

/// The layout of the rows that the experts of a rank share, from that of the rows of the experts.
Layout RowMover::shareRows(Layout layout, bool isAtExperts) const {
  LayoutFactor groups;
  groups.size = groups.padded = getNumShards(axes);
  if (isAtExperts)
    groups.axes = axes;
  layout.dims.front() = DimLayout(groups);
  return layout;
}

/// Rows of tokens that the experts of a rank share.
Value RowMover::dispatchShared(Value tokens, Value choices) {
  RankedTensorType type = dispatch.getType();
  int64_t ranks = getNumShards(axes);
  SmallVector<int64_t> shape(shapeOf(tokens));
  shape.insert(shape.begin(), ranks);
  auto shared = RankedTensorType::get(shape, elementOf(tokens),
                                      nn::getShared(nn::getRouted(type), type.getDimSize(0) / ranks));
  return nn::DispatchOp::create(partitioner.getBuilder(), dispatch.getLoc(), shared, tokens, choices, Value(),
                                /*each=*/false);
}

/// The choices of the tokens that have rows on a rank, in the order of these. They move once for a routing.
FailureOr<Value> RowMover::sendChoices(Value choices) {
  Value indices = dispatch.getIndices();
  Partitioner::SentRows &sent = partitioner.getSentRows(indices, axes);
  if (sent.choices)
    return sent.choices;
  OpBuilder &builder = partitioner.getBuilder();
  int64_t ranks = getNumShards(axes), experts = dispatch.getType().getDimSize(0);
  auto type = cast<RankedTensorType>(choices.getType());
  DistDialect::getDecisionLog(builder.getContext())
      .add("partition", Outcome::Applied, dispatch.getLoc(),
           llvm::formatv("a token with {0} experts goes to a rank once: the {1} experts of a rank share its row",
                         type.getShape().back(), experts / ranks)
               .str(),
           {{"experts", double(experts)}, {"ranks", double(ranks)}});
  Value narrow = choices;
  if (!type.getElementType().isInteger(32))
    narrow = nn::CastOp::create(builder, dispatch.getLoc(), type.clone(builder.getI32Type()), choices);
  auto layoutOf = [&](const Assignment &assignment) {
    Layout layout = partitioner.getLayout(
        indices, partitioner.project(indices, rule().operands[1], opFactors, assignment));
    layout.dims.insert(layout.dims.begin(), DimLayout());
    return layout;
  };
  Assignment atExperts = getAssignment(rule().results[0], opFactors, getAtExperts());
  auto moved = partitioner.reshard(dispatchShared(narrow, choices), shareRows(layoutOf(*tokens), false),
                                   shareRows(layoutOf(atExperts), true), dispatch.getLoc());
  if (succeeded(moved))
    sent.choices = *moved;
  return moved;
}

LogicalResult RowMover::send() {
  RowBytes bytes = getBytes(dispatch.getType());
  if (dispatch.getEach() || bytes.perChoice <= bytes.perRank) {
    partitioner.getSentRows(dispatch.getIndices(), axes).perChoice = true;
    return partitioner.partitionByRule(dispatch, *tokens);
  }
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
  auto choices = sendChoices(operands[1]);
  if (failed(choices))
    return failure();
  ValueSharding at = getAtExperts();
  ValueSharding before = partitioner.project(result, rule().results[0], opFactors, *tokens);
  auto moved = partitioner.reshard(dispatchShared(operands[0], operands[1]),
                                   shareRows(partitioner.getLayout(result, before), false),
                                   shareRows(partitioner.getLayout(result, at), true), dispatch.getLoc());
  if (failed(moved))
    return failure();
  Type type = partitioner.getLocalType(result, at);
  auto model = cast<LocalOpInterface>(*dispatch);
  Assignment atExperts = getAssignment(rule().results[0], opFactors, at);
  operands = {*moved, *choices};
  model.addOperands(partitioner, atExperts, type, operands);
  Operation *local = partitioner.emit(dispatch, operands, type);
  model.fitFacts(partitioner, atExperts, local);
  return partitioner.define(result, {local->getResult(0), at, {}});
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
  auto choices = sendChoices(operands[1]);
  if (failed(choices))
    return failure();
  // Sums over the experts of a rank, or a number for each choice, which is zero for those of other ranks.
  Assignment atExperts = getAssignment(own.rule.operands[0], own, rows.sharding);
  SmallVector<int64_t> shape(shapeOf(op.getEach() ? *choices : rows.value));
  shape.front() = 1;
  auto shared = RankedTensorType::get(shape, elementOf(rows.value), nn::getRouted(choices->getType()));
  SmallVector<Value, 3> local{rows.value, *choices};
  auto model = cast<LocalOpInterface>(*op);
  model.addOperands(partitioner, atExperts, shared, local);
  auto sums = nn::CombineOp::create(builder, op.getLoc(), shared, local[0], local[1], local[2], op.getEach());
  model.fitFacts(partitioner, atExperts, sums);
  ValueSharding at = partitioner.project(op.getRows(), own.rule.operands[0], own, atTokens);
  auto layoutOf = [&](const ValueSharding &sharding) {
    Layout layout = partitioner.getLayout(op.getRows(), sharding, rows.unreduced);
    if (op.getEach()) {
      LayoutFactor numbers;
      numbers.size = numbers.padded = shape.back();
      layout.dims.push_back(DimLayout(numbers));
    }
    return layout;
  };
  auto moved = partitioner.reshard(sums.getResult(), shareRows(layoutOf(rows.sharding), true),
                                   shareRows(layoutOf(at), false), op.getLoc());
  if (failed(moved))
    return failure();
  operands.front() = *moved;
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
  if (returned && mover->sumsFirst(op, rows.sharding)) {
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
