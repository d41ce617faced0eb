//===- Attention.cpp - derivatives of attention and rotations -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// A table with the two features of each pair exchanged.
static Value exchangePairs(Writer &w, Value table, bool isInterleaved) {
  SmallVector<int64_t> shape(Writer::shapeOf(table));
  int64_t dim = shape.size() - 1, features = shape.back();
  if (!isInterleaved)
    return w.concat({w.slice(table, dim, features / 2, features),
                     w.slice(table, dim, 0, features / 2)},
                    dim);
  SmallVector<int64_t> pairs(shape);
  pairs.back() = features / 2;
  pairs.push_back(2);
  Value split = w.reshape(table, pairs);
  Value turned =
      w.concat({w.slice(split, dim + 1, 1, 2), w.slice(split, dim + 1, 0, 1)}, dim + 1);
  return w.reshape(turned, shape);
}

/// A rotation by the opposite angle. With y = x cos + rotate(x) sin, the transpose of the second
/// term is -rotate(dy sin), which is -rotate(dy) times sin with its pairs exchanged.
static LogicalResult differentiateRotary(RotaryOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  Type type = Writer::elementOf(dy);
  auto rotate = [&](Value x, Value cos, Value sin) {
    return RotaryOp::create(w.getBuilder(), w.getLoc(), x.getType(), x, cos, sin,
                            op.getInterleaved());
  };
  if (vjp.wants(0)) {
    Value sin = w.neg(exchangePairs(w, op.getSin(), op.getInterleaved()));
    vjp.add(0, rotate(dy, w.cast(op.getCos(), type), w.cast(sin, type)));
  }
  if (!vjp.wants(1) && !vjp.wants(2))
    return success();
  Value wideDy = vjp.getWideCotangent(), x = vjp.getWide(op.getInput());
  int64_t dim = Writer::typeOf(x).getRank() - 1, rotated = Writer::shapeOf(op.getCos()).back();
  wideDy = w.slice(wideDy, dim, 0, rotated);
  x = w.slice(x, dim, 0, rotated);
  if (vjp.wants(1))
    vjp.add(1, w.mul(wideDy, x));
  if (vjp.wants(2)) {
    auto table = RankedTensorType::get({rotated}, Writer::elementOf(x));
    vjp.add(2, w.mul(wideDy, rotate(x, w.fill(0, table), w.fill(1, table))));
  }
  return success();
}

void meshwright::attachAttentionModels(MLIRContext *context) {
  attachVjp<RotaryOp, differentiateRotary>(context);
  attachRefused<AttentionOp, MergeAttentionOp, GradientOp>(context);
}
