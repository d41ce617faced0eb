//===- Indexing.cpp - derivatives of reads and sums by index --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Selections.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// The sums of the rows of `updates` by index, in a value of this shape.
static Value scatter(Writer &w, Value updates, Value indices, ArrayRef<int64_t> shape, int64_t dim,
                     bool along = false) {
  auto type = RankedTensorType::get(shape, getComputeType(elementOf(updates)));
  return ScatterAddOp::create(w.getBuilder(), w.getLoc(), type, updates, indices,
                              /*offset=*/Value(), dim, along);
}

static LogicalResult differentiateGather(GatherOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  ArrayRef<int64_t> shape = shapeOf(op.getData());
  int64_t dim = op.getDim();
  Value dy = vjp.getCotangent();
  if (op.getIndices().getType().getNumElements() != 1) {
    vjp.add(0, scatter(w, dy, op.getIndices(), shape, dim));
    return success();
  }
  SmallVector<int64_t> row(shape);
  row[dim] = 1;
  vjp.add(0, placeOne(w, w.reshape(dy, row), w.reshape(op.getIndices(), {}), dim, shape[dim]));
  return success();
}

static LogicalResult differentiateTakeAlong(TakeAlongOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  ArrayRef<int64_t> shape = shapeOf(op.getData());
  int64_t dim = op.getDim();
  Value dy = vjp.getCotangent();
  if (op.getType().getDimSize(dim) == 1)
    vjp.add(0, placeOne(w, dy, op.getIndices(), dim, shape[dim]));
  else
    vjp.add(0, scatter(w, dy, op.getIndices(), shape, dim, /*along=*/true));
  return success();
}

static LogicalResult differentiateEmbedding(EmbeddingOp op, Vjp &vjp) {
  if (op.getOffset())
    return op.emitOpError("cannot be differentiated with an offset, as in a local program");
  vjp.add(1, scatter(vjp.getWriter(), vjp.getCotangent(), op.getIds(),
                     shapeOf(op.getTable()), 0));
  return success();
}

/// Rows that are replaced have no derivative. Equal indices have the derivative of the last one
/// each: the index of a row must differ from those of the others, as in PyTorch.
static LogicalResult differentiateIndexCopy(IndexCopyOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  RankedTensorType source = typeOf(dy).clone(shapeOf(op.getSource()));
  if (vjp.wants(0))
    vjp.add(0, IndexCopyOp::create(w.getBuilder(), w.getLoc(), dy.getType(), dy, op.getIndices(),
                                   w.fill(0, source), op.getDim()));
  if (vjp.wants(2))
    vjp.add(2, GatherOp::create(w.getBuilder(), w.getLoc(), source, dy, op.getIndices(),
                                op.getDim()));
  return success();
}

static LogicalResult differentiateScatterAdd(ScatterAddOp op, Vjp &vjp) {
  if (op.getOffset())
    return op.emitOpError("cannot be differentiated with an offset, as in a local program");
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  RankedTensorType type = typeOf(dy).clone(shapeOf(op.getUpdates()));
  if (op.getAlong())
    vjp.add(0, TakeAlongOp::create(w.getBuilder(), w.getLoc(), type, dy, op.getIndices(),
                                   op.getDim()));
  else
    vjp.add(0,
            GatherOp::create(w.getBuilder(), w.getLoc(), type, dy, op.getIndices(), op.getDim()));
  return success();
}

void meshwright::attachIndexingModels(MLIRContext *context) {
  attachVjp<GatherOp, differentiateGather>(context);
  attachVjp<TakeAlongOp, differentiateTakeAlong>(context);
  attachVjp<EmbeddingOp, differentiateEmbedding>(context);
  attachVjp<IndexCopyOp, differentiateIndexCopy>(context);
  attachVjp<ScatterAddOp, differentiateScatterAdd>(context);
}
