//===- NnExpansions.cpp - ops by maxima and sums --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Implements ExpandOpInterface. An expansion reads the dimension by elementwise ops, and by
// reductions of kind `max` and `sum`, whose partial results combine.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <limits>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

namespace {

/// The indices themselves, by a lookup that fails where one is not in [0, size).
Value lookUpIndex(Writer &w, Value indices, int64_t size) {
  auto table = RankedTensorType::get({size}, elementOf(indices));
  return GatherOp::create(w.getBuilder(), w.getLoc(), indices.getType(), w.iota(0, table), indices,
                          0);
}

/// log(1 + x) for finite x >= 0, exact for small x, too.
Value log1p(Writer &w, Value x) {
  // The logarithm of the rounded sum, and to the first order of what the rounding lost.
  Value sum = w.addNumber(x, 1), lost = w.sub(x, w.addNumber(sum, -1));
  return w.add(w.unary<LogOp>(sum), w.div(lost, sum));
}

/// A row less its largest element, and the exponentials of that.
struct Exponentials {
  Value centred, powers;

  Exponentials(Writer &w, Value x, int64_t dim) {
    // The largest element of a row of minus infinity alone is replaced by a finite number:
    // infinity less itself is NaN.
    Type type = elementOf(x);
    double least = type.isF64() ? std::numeric_limits<double>::lowest()
                                : double(std::numeric_limits<float>::lowest());
    Value top = w.binary<MaximumOp>(w.reduce(ReduceKind::Max, x, {dim}), w.number(least, type));
    centred = w.binary<SubOp>(x, top);
    powers = w.unary<ExpOp>(centred);
  }
};

} // namespace

//===----------------------------------------------------------------------===//
// nn.reduce
//===----------------------------------------------------------------------===//

SmallVector<int64_t, 2> ReduceOp::getExpandedDims() { return SmallVector<int64_t, 2>(getDims()); }

int64_t ReduceOp::getNumStatistics() { return 1; }

Value ReduceOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Value x = getInput();
  Type type = elementOf(x);
  if (getKind() == ReduceKind::Min)
    return w.unary<NegOp>(
        w.reduce(ReduceKind::Max, w.unary<NegOp>(x), getDims(), getKeepDims()));
  if (getKind() != ReduceKind::Mean || !isa<FloatType>(type))
    return {};
  int64_t count = 1;
  for (int64_t dim : getDims())
    count *= getInput().getType().getDimSize(dim);
  Value sum = w.reduce(ReduceKind::Sum, w.cast(x, getComputeType(type)), getDims(), getKeepDims());
  return w.cast(w.binary<DivOp>(sum, w.number(double(count), getComputeType(type))), type);
}

//===----------------------------------------------------------------------===//
// nn.softmax
//===----------------------------------------------------------------------===//

SmallVector<int64_t, 2> SoftmaxOp::getExpandedDims() { return {int64_t(getDim())}; }

int64_t SoftmaxOp::getNumStatistics() { return 2; }

Value SoftmaxOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Type type = elementOf(getInput());
  Exponentials row(w, w.cast(getInput(), getComputeType(type)), getDim());
  // The sum is at least one, or zero for a row of minus infinity alone.
  Value sum = w.binary<MaximumOp>(w.reduce(ReduceKind::Sum, row.powers, {int64_t(getDim())}),
                                  w.number(1, getComputeType(type)));
  return w.cast(w.binary<DivOp>(row.powers, sum), type);
}

//===----------------------------------------------------------------------===//
// nn.cross_entropy
//===----------------------------------------------------------------------===//

SmallVector<int64_t, 2> CrossEntropyOp::getExpandedDims() { return {int64_t(getDim())}; }

int64_t CrossEntropyOp::getNumStatistics() { return getLabelSmoothing() ? 4 : 3; }

bool CrossEntropyOp::needsExpansion() { return true; }

Value CrossEntropyOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  int64_t dim = getDim();
  RankedTensorType logits = getLogits().getType(), labels = getLabels().getType();
  Type wide = getComputeType(logits.getElementType()), index = labels.getElementType();
  int64_t classes = logits.getDimSize(dim);
  Value z = w.cast(getLogits(), wide);

  // The class of each logit, and the label of each row, in the shape of the logits.
  SmallVector<int64_t> column(logits.getRank() - dim, 1), row(logits.getShape());
  column.front() = classes;
  row[dim] = 1;
  Value zero = w.number(0, wide), given = w.reshape(getLabels(), row), isIgnored;
  Value checked = getLabels();
  if (std::optional<int64_t> ignored = getIgnoreIndex()) {
    isIgnored = w.compare(CompareKind::Eq, given, w.number(double(*ignored), index));
    checked = w.select(w.compare(CompareKind::Eq, checked, w.number(double(*ignored), index)),
                       w.number(0, index), checked);
  }
  Value label = w.reshape(lookUpIndex(w, checked, classes), row);
  Value number = IotaOp::create(builder, getLoc(), RankedTensorType::get(column, index), 0);

  // Where the model is sure, the loss is far smaller than the logits and than one: the sum is that
  // of the other classes, and one joins it inside the logarithm.
  Exponentials powers(w, z, dim);
  Value isLabel = w.compare(CompareKind::Eq, number, label);
  Value own = w.reduce(ReduceKind::Sum, w.keepWhere(isLabel, powers.centred), {dim});
  Value others = w.reduce(ReduceKind::Sum, w.select(isLabel, zero, powers.powers), {dim});
  Value sum = w.add(others, w.unary<ExpOp>(own));
  Value isLargest = w.compare(CompareKind::Eq, own, zero);
  Value loss = w.select(isLargest, log1p(w, others), w.unary<LogOp>(sum));
  if (std::optional<APFloat> smoothing = getLabelSmoothing()) {
    // Terms of one sign: infinities add up.
    double s = smoothing->convertToDouble();
    Value all = w.reduce(ReduceKind::Sum, powers.centred, {dim});
    loss = w.sub(w.sub(loss, w.scale(own, 1 - s)), w.scale(all, s / double(classes)));
  } else {
    loss = w.sub(loss, own);
  }

  if (isIgnored)
    loss = w.select(isIgnored, zero, loss);
  RankedTensorType type = getType();
  return w.cast(w.reshape(loss, type.getShape()), type.getElementType());
}
