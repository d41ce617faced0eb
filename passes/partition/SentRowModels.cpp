//===- SentRowModels.cpp - which rows go to experts, and how --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/SentRowModels.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

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
  if (!canSendRows(leader))
    return;
  steps.push_back(axes);
  if (!leader.getEach()) {
    RowBytes bytes = getBytes(leader.getType());
    chooseSteps(leader, *found, bytes);
    if (!hasSteps() && bytes.getLeast() >= bytes.gathered)
      return;
  }
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
  all.perRank = getNumSent(rows, ranks) * (bytes + double(choices) * sizeof(int32_t));
  return all;
}

/// The rows that a token has if so many groups of experts share them, at the expected load.
double RowMover::getNumSent(RankedTensorType rows, int64_t groups) {
  SmallVector<int64_t> shape(rows.getShape().take_front(dispatch.getIndices().getType().getRank()));
  shape.front() = groups;
  auto shared = RankedTensorType::get(shape, rows.getElementType(),
                                      nn::getShared(nn::getRouted(rows), rows.getDimSize(0) / groups));
  double count = double(ShapedType::getNumElements(ArrayRef(shape).drop_front()));
  return std::min(getRowLoad(dispatch) * double(getExpectedElements(shared)) / count, double(groups));
}

/// The time, in picoseconds, in which the rows of so many tokens a rank go to their experts in steps.
int64_t RowMover::getTime(RankedTensorType rows, const RowBytes &bytes, int64_t numTokens,
                          ArrayRef<AxisList> steps) {
  CostModel model(partitioner.getMesh());
  double row = bytes.gathered / double(getNumShards(axes)) +
               double(nn::getRouted(rows).getChoices()) * sizeof(int32_t);
  int64_t time = 0, groups = 1;
  for (const AxisList &step : steps) {
    int64_t ranks = getNumShards(step);
    groups *= ranks;
    double sent = groups == getNumShards(axes) ? bytes.getLeast() : getNumSent(rows, groups) * row;
    // Numbers go before rows.
    time += model.getTime(step, int64_t(sent * double(numTokens * (ranks - 1)) / double(ranks)), 2 * (ranks - 1));
  }
  return time;
}

/// Returns true if the links along some axes are slower than those along others.
static bool isSlower(const CostModel &model, ArrayRef<Axis> axes, ArrayRef<Axis> others) {
  constexpr int64_t kBytes = int64_t(1) << 30;
  return model.getTime(axes, kBytes, /*steps=*/0) > model.getTime(others, kBytes, /*steps=*/0);
}

/// Crosses slower links by themselves, once for each group of ranks, if that takes the least time. Ranks of a group
/// send more rows in all then. Rows go directly over links of one kind.
void RowMover::chooseSteps(nn::DispatchOp leader, const Assignment &atTokens, const RowBytes &bytes) {
  RankedTensorType rows = leader.getType();
  int64_t ranks = getNumShards(axes);
  if (axes.size() < 2 || nn::getRouted(rows).getChoices() == 1 || rows.getDimSize(0) % ranks != 0)
    return;
  const FactorAnalysis::OpFactors &own = partitioner.getFactors().getFactors(leader);
  Layout layout = partitioner.getLayout(
      leader.getResult(), partitioner.project(leader.getResult(), own.rule.results[0], own, atTokens));
  if (layout.dims.front().isPadded())
    return;
  int64_t numTokens = 1;
  for (const DimLayout &dim : ArrayRef(layout.dims).slice(1, nn::getNumTokenDims(leader.getResult())))
    numTokens *= dim.getLocalSize();
  CostModel model(partitioner.getMesh());
  int64_t least =
      bytes.getLeast() < bytes.gathered
          ? getTime(rows, bytes, numTokens, steps)
          : model.getTime(axes, int64_t(bytes.gathered) * numTokens * (ranks - 1) / ranks, ranks - 1);
  for (size_t first = 1; first < axes.size(); ++first) {
    SmallVector<AxisList, 2> two{AxisList(ArrayRef(axes).take_front(first)),
                                 AxisList(ArrayRef(axes).drop_front(first))};
    Layout behind = layout;
    if (!isSlower(model, two.front(), two.back()) || !leaveTokens(behind, two.front()))
      continue;
    if (int64_t time = getTime(rows, bytes, numTokens, two); time < least) {
      least = time;
      steps = std::move(two);
    }
  }
}

/// The axes over which ranks have sent rows after so many steps.
AxisList RowMover::getAxes(size_t numSteps) const {
  AxisList list;
  for (const AxisList &step : ArrayRef(steps).take_front(numSteps))
    list.append(step.begin(), step.end());
  return list;
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

bool RowMover::areAtExperts(nn::CombineOp op, const ValueSharding &rows) {
  for (int64_t dim = 0; dim <= nn::getNumTokenDims(op.getRows()); ++dim)
    if (rows.dims[dim] != getTarget(dispatch).dims[dim])
      return false;
  return true;
}

bool RowMover::sumsFirst(nn::CombineOp op) {
  // Rows of choices return by the counts of the rows that came.
  if (op.getEach() || !hasSentChoices())
    return !hasSentChoices();
  RowBytes bytes = getBytes(cast<RankedTensorType>(op.getRows().getType()));
  return bytes.perRank < bytes.perChoice;
}

bool RowMover::movesOneDim() {
  ValueSharding at = partitioner.project(dispatch.getResult(), rule().results[0], opFactors, *tokens);
  return !splitsTokens() && llvm::all_of(steps, [&](const AxisList &step) {
    auto moves = [&](const auto &dim) {
      return llvm::any_of(dim, [&](const AxisList &have) { return anyOverlap(have, step); });
    };
    return llvm::count_if(ArrayRef(at.dims).slice(1, nn::getNumTokenDims(dispatch.getResult())), moves) == 1;
  });
}

/// Returns true if axes of several steps shard one factor of the tokens.
bool RowMover::splitsTokens() {
  ValueSharding at = partitioner.project(dispatch.getResult(), rule().results[0], opFactors, *tokens);
  auto isSplit = [&](const AxisList &have) {
    return llvm::count_if(steps, [&](const AxisList &step) { return anyOverlap(have, step); }) > 1;
  };
  return llvm::any_of(ArrayRef(at.dims).slice(1, nn::getNumTokenDims(dispatch.getResult())),
                      [&](const auto &dim) { return llvm::any_of(dim, isSplit); });
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

/// Lets the tokens of rows have no axes that a step moves. Returns false if rows of a rank would be of tokens in
/// another order, or of no product of tokens.
bool RowMover::leaveTokens(Layout &layout, const AxisList &gone) {
  int64_t before = 1;
  bool isKept = true;
  for (DimLayout &dim : MutableArrayRef(layout.dims).slice(1, nn::getNumTokenDims(dispatch.getResult()))) {
    SmallVector<LayoutFactor, 1> factors;
    for (LayoutFactor factor : dim.factors) {
      int64_t local = factor.getLocalSize();
      auto isGone = [&](const Axis &axis) { return llvm::is_contained(gone, axis); };
      size_t lead = llvm::find_if_not(factor.axes, isGone) - factor.axes.begin();
      isKept &= lead == 0 || before == 1;
      if (lead > 0 && lead == factor.axes.size()) {
        factor.axes.clear();
        factor.padded = factor.size;
      } else if (lead > 0) {
        LayoutFactor upper, lower;
        int64_t shards = getNumShards(ArrayRef(factor.axes).take_front(lead));
        if (factor.isPadded() || !splitFactor(factor, factor.padded / shards, partitioner.getMesh(), upper, lower))
          return false;
        upper.axes.clear();
        factors.push_back(upper);
        factor = lower;
      }
      factors.push_back(factor);
      before *= local;
    }
    dim.factors = std::move(factors);
  }
  return isKept;
}

/// The layout of rows of so many experts, or groups of experts, that are with the ranks of so many steps. The given one
/// is that of rows at their tokens.
Layout RowMover::place(Layout layout, int64_t rows, size_t numSteps) {
  for (const AxisList &step : ArrayRef(steps).take_front(numSteps))
    leaveTokens(layout, step);
  LayoutFactor experts;
  experts.size = experts.padded = rows;
  experts.axes = getAxes(numSteps);
  layout.dims.front() = DimLayout(experts);
  return layout;
}
