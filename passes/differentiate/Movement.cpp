//===- Movement.cpp - derivatives of ops that move elements ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Selections.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

Value nn::placeOne(Writer &w, Value cotangent, Value position, int64_t dim, int64_t size) {
  SmallVector<int64_t> column(typeOf(cotangent).getRank() - dim, 1);
  column.front() = size;
  Value number = w.iota(0, RankedTensorType::get(column, elementOf(position)));
  return w.keepWhere(w.compare(CompareKind::Eq, number, position), cotangent);
}

static LogicalResult differentiateReshape(ReshapeOp op, Vjp &vjp) {
  vjp.add(0, vjp.getWriter().reshape(vjp.getCotangent(), shapeOf(op.getInput())));
  return success();
}

/// Padding has no part in the gradient of the elements before the cut, and none is true behind it.
static LogicalResult differentiateCut(CutOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  vjp.add(0, UncutOp::create(w.getBuilder(), w.getLoc(), vjp.getCotangent().getType(),
                             vjp.getCotangent(), op.getSizes()));
  return success();
}

static LogicalResult differentiateUncut(UncutOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  vjp.add(0, CutOp::create(w.getBuilder(), w.getLoc(), vjp.getCotangent().getType(),
                           vjp.getCotangent(), op.getSizes()));
  return success();
}

static LogicalResult differentiateTranspose(TransposeOp op, Vjp &vjp) {
  SmallVector<int64_t> inverse(op.getPermutation().size());
  for (auto [to, from] : llvm::enumerate(op.getPermutation()))
    inverse[from] = to;
  vjp.add(0, vjp.getWriter().transpose(vjp.getCotangent(), inverse));
  return success();
}

static LogicalResult differentiateBroadcast(BroadcastOp op, Vjp &vjp) {
  vjp.add(0, vjp.getCotangent());
  return success();
}

/// Dimensions of which the slice takes one element come first: a selection. Zeros are then added
/// along the others.
static LogicalResult differentiateSlice(SliceOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  ArrayRef<int64_t> from = shapeOf(op.getInput()), to = op.getType().getShape();
  // No element is read.
  if (llvm::is_contained(to, 0))
    return success();
  Value value = vjp.getCotangent();
  SmallVector<int64_t> low(from.size(), 0), high(low), interior(low), shape(from);
  for (size_t d = 0; d < from.size(); ++d) {
    int64_t start = op.getStarts()[d], stride = op.getStrides()[d];
    if (from[d] == to[d])
      continue;
    if (to[d] == 1) {
      Value position = w.number(double(start), w.getBuilder().getI64Type());
      value = placeOne(w, value, position, d, from[d]);
      continue;
    }
    low[d] = start;
    interior[d] = stride - 1;
    high[d] = from[d] - start - (to[d] - 1) * stride - 1;
  }
  RankedTensorType type = typeOf(value).clone(from);
  if (typeOf(value) != type)
    value = PadOp::create(w.getBuilder(), w.getLoc(), type, value, low, high, interior);
  vjp.add(0, value);
  return success();
}

static LogicalResult differentiatePad(PadOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  ArrayRef<int64_t> from = shapeOf(op.getInput());
  if (llvm::is_contained(from, 0))
    return success();
  SmallVector<int64_t> limits, strides;
  for (auto [size, low, interior] : llvm::zip_equal(from, op.getLow(), op.getInterior())) {
    strides.push_back(interior + 1);
    limits.push_back(low + (size - 1) * (interior + 1) + 1);
  }
  Value dy = vjp.getCotangent();
  vjp.add(0, SliceOp::create(w.getBuilder(), w.getLoc(), typeOf(dy).clone(from), dy,
                             op.getLow(), limits, strides));
  return success();
}

static LogicalResult differentiateConcat(ConcatOp op, Vjp &vjp) {
  int64_t dim = op.getDim(), start = 0;
  for (auto [i, input] : llvm::enumerate(op.getInputs())) {
    int64_t limit = start + shapeOf(input)[dim];
    if (vjp.wants(i))
      vjp.add(i, vjp.getWriter().slice(vjp.getCotangent(), dim, start, limit));
    start = limit;
  }
  return success();
}

void meshwright::attachMovementModels(MLIRContext *context) {
  attachVjp<ReshapeOp, differentiateReshape>(context);
  attachVjp<CutOp, differentiateCut>(context);
  attachVjp<UncutOp, differentiateUncut>(context);
  attachVjp<TransposeOp, differentiateTranspose>(context);
  attachVjp<BroadcastOp, differentiateBroadcast>(context);
  attachVjp<SliceOp, differentiateSlice>(context);
  attachVjp<PadOp, differentiatePad>(context);
  attachVjp<ConcatOp, differentiateConcat>(context);
  attachConstant<ConstantOp, IotaOp, StateOp, ReadOp, WriteOp>(context);
}
