//===- PartsModels.cpp - ops on parts of values ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/passes/partition/Partitioner.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Handles an addition with a partial sum among its operands. Adds partial sums to each
/// other, and defers other operands until the sum is reduced. Returns false if no operand is
/// a partial sum.
static FailureOr<bool> joinSum(nn::AddOp op, Partitioner &partitioner) {
  Value result = op.getResult();
  SmallVector<Value, 2> partials, others;
  for (Value operand : op.getOperands()) {
    Partitioner::LocalForm &form = partitioner.getForm(operand);
    if (form.isDeferred && form.local.unreduced.reduction == ReductionKind::Sum &&
        operand.getType() == result.getType())
      partials.push_back(operand);
    else
      others.push_back(operand);
  }
  if (partials.empty())
    return false;
  Partitioner::Local sum = partitioner.getForm(partials[0]).local;
  SmallVector<Value, 2> rest = partitioner.getForm(partials[0]).rest;
  if (partials.size() == 2) {
    const Partitioner::LocalForm &second = partitioner.getForm(partials[1]);
    Partitioner::Local other = second.local;
    partitioner.widenPartial(sum, other.unreduced.axes, op.getLoc());
    partitioner.widenPartial(other, sum.unreduced.axes, op.getLoc());
    if (other.unreduced.axes == sum.unreduced.axes && other.sharding == sum.sharding) {
      sum.value =
          nn::AddOp::create(partitioner.getBuilder(), op.getLoc(), sum.value.getType(), sum.value,
                                    other.value);
      rest.append(second.rest.begin(), second.rest.end());
    } else {
      others.push_back(partials[1]);
    }
  }
  // A broadcast partial sum (of positions, for example) joins if its layout fits.
  for (Value &other : others) {
    Partitioner::LocalForm &form = partitioner.getForm(other);
    if (!form.isDeferred || form.local.unreduced.axes != sum.unreduced.axes ||
        form.local.unreduced.reduction != ReductionKind::Sum || !form.rest.empty() ||
        !(form.local.sharding == partitioner.projectBroadcast(other, result, sum.sharding)))
      continue;
    sum.value =
        nn::AddOp::create(partitioner.getBuilder(), op.getLoc(), sum.value.getType(), sum.value,
                                  form.local.value);
    other = {};
  }
  for (Value other : others) {
    if (!other)
      continue;
    if (!nn::getRouted(result.getType())) {
      rest.push_back(other);
      continue;
    }
    // Rows of experts are reduced behind the sum over experts. One rank adds the other value.
    ValueSharding sharding = partitioner.projectBroadcast(other, result, sum.sharding);
    auto value = partitioner.use(other, sharding, op.getLoc());
    if (failed(value))
      return failure();
    Partitioner::Local part{*value, sharding, {}};
    partitioner.widenPartial(part, sum.unreduced.axes, op.getLoc());
    sum.value = nn::AddOp::create(partitioner.getBuilder(), op.getLoc(), sum.value.getType(),
                                  sum.value, part.value);
  }
  if (failed(partitioner.define(result, std::move(sum), std::move(rest))))
    return failure();
  return true;
}

/// Handles the larger of two values of which one or both are parts of a maximum: the parts of the
/// result are the larger ones of their parts. Returns false if no operand is such parts.
static FailureOr<bool> joinMaximum(nn::MaximumOp op, Partitioner &partitioner) {
  Value result = op.getResult();
  auto isPart = [&](Value operand) {
    const Partitioner::LocalForm &form = partitioner.getForm(operand);
    return form.isDeferred && form.local.unreduced.reduction == ReductionKind::Max &&
           operand.getType() == result.getType();
  };
  bool isLhs = isPart(op.getLhs());
  if (!isLhs && !isPart(op.getRhs()))
    return false;
  Partitioner::Local largest = partitioner.getForm(isLhs ? op.getLhs() : op.getRhs()).local;
  Value other = isLhs ? op.getRhs() : op.getLhs();
  Value term;
  if (isPart(other) && partitioner.getForm(other).local.unreduced.axes == largest.unreduced.axes &&
      partitioner.getForm(other).local.sharding == largest.sharding) {
    term = partitioner.getForm(other).local.value;
  } else {
    auto reduced = partitioner.use(
        other, partitioner.projectBroadcast(other, result, largest.sharding), op.getLoc());
    if (failed(reduced))
      return failure();
    term = *reduced;
  }
  Value operands[] = {largest.value, term};
  largest.value = partitioner.emit(op, operands, largest.value.getType())->getResult(0);
  if (failed(partitioner.define(result, std::move(largest))))
    return failure();
  return true;
}

namespace {

template <typename OpT, ReductionKind reduction,
          FailureOr<bool> (*join)(OpT, Partitioner &)>
struct JoinModel : LocalOpInterface::ExternalModel<JoinModel<OpT, reduction, join>, OpT> {
  std::optional<ReductionKind> getJoinedParts(Operation *) const { return reduction; }
  FailureOr<bool> joinParts(Operation *op, Partitioner &partitioner) const {
    return join(cast<OpT>(op), partitioner);
  }
};

/// A product with one number, or with one for each row of experts: there are more rows than tokens, so
/// their sum is cheaper behind the sum over experts.
struct ScaleModel : LocalOpInterface::ExternalModel<ScaleModel, nn::MulOp> {
  bool passesPart(Operation *op, unsigned operand) const {
    auto type = cast<RankedTensorType>(op->getOperand(1 - operand).getType());
    return type.getNumElements() == 1 || (nn::getRouted(type) && type.getShape().back() == 1);
  }
  bool mayOverflow(Operation *op, unsigned operand) const {
    std::optional<double> factor = padding::getSplat(op->getOperand(1 - operand));
    return !factor || !(std::fabs(*factor) <= 1);
  }
};

} // namespace

void local_models::attachPartsModels(MLIRContext *context) {
  nn::AddOp::attachInterface<JoinModel<nn::AddOp, ReductionKind::Sum, joinSum>>(*context);
  nn::MaximumOp::attachInterface<JoinModel<nn::MaximumOp, ReductionKind::Max, joinMaximum>>(
      *context);
  nn::MulOp::attachInterface<ScaleModel>(*context);
}
