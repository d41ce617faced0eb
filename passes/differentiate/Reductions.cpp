//===- Reductions.cpp - derivatives of reductions, norms and losses -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

static int64_t getLastDim(Value value) { return typeOf(value).getRank() - 1; }

/// The sum over a dimension, which stays with size 1.
static Value sumOver(Writer &w, Value x, int64_t dim) {
  return w.reduce(ReduceKind::Sum, x, {dim});
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

static LogicalResult differentiateReduce(ReduceOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  ArrayRef<int64_t> shape = shapeOf(op.getInput());
  SmallVector<int64_t> kept(shape);
  int64_t count = 1;
  for (int64_t dim : op.getDims()) {
    count *= kept[dim];
    kept[dim] = 1;
  }
  switch (op.getKind()) {
  case ReduceKind::Sum:
    vjp.add(0, w.broadcast(w.reshape(vjp.getCotangent(), kept), shape));
    return success();
  case ReduceKind::Mean: {
    Value dy = w.reshape(vjp.getWideCotangent(), kept);
    vjp.add(0, w.broadcast(w.div(dy, w.number(double(count), elementOf(dy))), shape));
    return success();
  }
  case ReduceKind::Max:
  case ReduceKind::Min: {
    Value dy = w.reshape(vjp.getWideCotangent(), kept);
    Value isExtreme =
        w.compare(CompareKind::Eq, op.getInput(), w.reshape(op.getResult(), kept));
    Value ties = w.reduce(ReduceKind::Sum, w.cast(isExtreme, elementOf(dy)), op.getDims());
    vjp.add(0, w.keepWhere(isExtreme, w.div(dy, ties)));
    return success();
  }
  }
  llvm_unreachable("unknown reduction");
}

/// The elements along a dimension, the last one first.
static Value reverse(Writer &w, Value x, int64_t dim) {
  int64_t size = shapeOf(x)[dim];
  Value number = w.iota(0, RankedTensorType::get({size}, w.getBuilder().getI64Type()));
  Value last = w.number(double(size - 1), w.getBuilder().getI64Type());
  return GatherOp::create(w.getBuilder(), w.getLoc(), x.getType(), x, w.sub(last, number), dim);
}

/// An element is a term of its own sum and all later ones. They are summed from the end: the
/// difference of two sums would be NaN where both are infinite.
static LogicalResult differentiateCumsum(CumsumOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  int64_t dim = op.getDim();
  Value dy = reverse(w, vjp.getWideCotangent(), dim);
  Value sums = CumsumOp::create(w.getBuilder(), w.getLoc(), dy.getType(), dy, dim);
  vjp.add(0, reverse(w, sums, dim));
  return success();
}

static LogicalResult differentiateSoftmax(SoftmaxOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), y = vjp.getWide(op.getResult());
  Value product = w.mul(dy, y);
  vjp.add(0, w.sub(product, w.mul(y, sumOver(w, product, op.getDim()))));
  return success();
}

//===----------------------------------------------------------------------===//
// Norms
//===----------------------------------------------------------------------===//

/// The cotangent of x, given that of x r with r = 1 / sqrt(mean(x^2) + eps). `normed` is x r.
static Value ofNormed(Writer &w, Value cotangent, Value normed, Value r) {
  int64_t dim = getLastDim(normed);
  double count = double(shapeOf(normed)[dim]);
  Value mean = w.scale(sumOver(w, w.mul(cotangent, normed), dim), 1 / count);
  return w.mul(r, w.sub(cotangent, w.mul(normed, mean)));
}

static Value getScale(Writer &w, Value x, const APFloat &eps) {
  int64_t dim = getLastDim(x);
  Value mean = w.scale(sumOver(w, w.mul(x, x), dim), 1 / double(shapeOf(x)[dim]));
  return w.unary<RsqrtOp>(w.addNumber(mean, eps.convertToDouble()));
}

static LogicalResult differentiateRmsNorm(RmsNormOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), x = vjp.getWide(op.getInput());
  Value r = getScale(w, x, op.getEps()), normed = w.mul(x, r);
  if (op.getWeight() && vjp.wants(1))
    vjp.add(1, w.mul(dy, normed));
  if (!vjp.wants(0))
    return success();
  if (op.getWeight()) {
    Value weight = vjp.getWide(op.getWeight());
    dy = w.mul(dy, op.getUnitOffset() ? w.addNumber(weight, 1) : weight);
  }
  vjp.add(0, ofNormed(w, dy, normed, r));
  return success();
}

static LogicalResult differentiateLayerNorm(LayerNormOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), x = vjp.getWide(op.getInput());
  int64_t dim = getLastDim(x);
  double count = double(shapeOf(x)[dim]);
  Value centred = w.sub(x, w.scale(sumOver(w, x, dim), 1 / count));
  Value r = getScale(w, centred, op.getEps()), normed = w.mul(centred, r);
  unsigned next = 1;
  if (op.getWeight()) {
    unsigned weight = next++;
    if (vjp.wants(weight))
      vjp.add(weight, w.mul(dy, normed));
  }
  if (op.getBias())
    vjp.add(next, dy);
  if (!vjp.wants(0))
    return success();
  if (op.getWeight())
    dy = w.mul(dy, vjp.getWide(op.getWeight()));
  Value ofCentred = ofNormed(w, dy, normed, r);
  // The mean is subtracted from each element.
  vjp.add(0, w.sub(ofCentred, w.scale(sumOver(w, ofCentred, dim), 1 / count)));
  return success();
}

//===----------------------------------------------------------------------===//
// Losses
//===----------------------------------------------------------------------===//

/// The softmax of the logits, less one at the label. With smoothing s it is less 1 - s at the
/// label, and less s / classes everywhere.
static LogicalResult differentiateCrossEntropy(CrossEntropyOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), z = vjp.getWide(op.getLogits());
  int64_t dim = op.getDim(), rank = typeOf(z).getRank();
  int64_t classes = shapeOf(z)[dim];
  Type wide = elementOf(z), index = elementOf(op.getLabels());
  SmallVector<int64_t> row(shapeOf(z)), column(rank - dim, 1);
  row[dim] = 1;
  column.front() = classes;

  Value labels = w.reshape(op.getLabels(), row), scale = w.reshape(w.cast(dy, wide), row);
  if (std::optional<int64_t> ignored = op.getIgnoreIndex()) {
    Value isIgnored = w.compare(CompareKind::Eq, labels, double(*ignored));
    scale = w.select(isIgnored, w.number(0, wide), scale);
  }
  double smoothing = op.getLabelSmoothing() ? op.getLabelSmoothing()->convertToDouble() : 0;
  Value chances = SoftmaxOp::create(w.getBuilder(), w.getLoc(), z.getType(), z, dim);
  Value number = w.iota(0, RankedTensorType::get(column, index));
  Value isLabel = w.compare(CompareKind::Eq, number, labels);
  // One less the chance of the label is the sum of the others: where the model is sure, the
  // difference would be rounding alone.
  Value others = w.reduce(ReduceKind::Sum, w.select(isLabel, w.number(0, wide), chances), {dim});
  Value ofLabel = w.addNumber(w.neg(others), smoothing - smoothing / double(classes));
  Value ofOthers = w.addNumber(chances, -smoothing / double(classes));
  vjp.add(0, w.mul(w.select(isLabel, ofLabel, ofOthers), scale));
  return success();
}

void meshwright::attachReductionModels(MLIRContext *context) {
  attachVjp<ReduceOp, differentiateReduce>(context);
  attachVjp<CumsumOp, differentiateCumsum>(context);
  attachVjp<SoftmaxOp, differentiateSoftmax>(context);
  attachVjp<RmsNormOp, differentiateRmsNorm>(context);
  attachVjp<LayerNormOp, differentiateLayerNorm>(context);
  attachVjp<CrossEntropyOp, differentiateCrossEntropy>(context);
}
