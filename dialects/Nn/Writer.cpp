//===- Writer.cpp - ops whose types follow from their operands ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"

#include "meshwright/lib/Support/ElementTypes.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

RankedTensorType Writer::join(ArrayRef<Value> values, Type element) {
  SmallVector<ArrayRef<int64_t>> shapes;
  for (Value value : values)
    shapes.push_back(shapeOf(value));
  auto routed = llvm::find_if(values, [](Value value) { return getRouted(value.getType()); });
  Attribute encoding = routed == values.end() ? Attribute() : typeOf(*routed).getEncoding();
  return RankedTensorType::get(*broadcastShapes(shapes), element, encoding);
}

Value Writer::cast(Value x, Type element) {
  return elementOf(x) == element
             ? x
             : CastOp::create(builder, loc, typeOf(x).clone(element), x).getResult();
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

Value Writer::fill(double value, RankedTensorType type) {
  Type element = type.getElementType();
  Attribute attr = isa<FloatType>(element)
                       ? Attribute(builder.getFloatAttr(element, value))
                       : Attribute(builder.getIntegerAttr(element, int64_t(value)));
  return ConstantOp::create(builder, loc, DenseElementsAttr::get(type, attr));
}

Value Writer::reshape(Value x, ArrayRef<int64_t> shape) {
  return shapeOf(x) == shape
             ? x
             : ReshapeOp::create(builder, loc, typeOf(x).clone(shape), x).getResult();
}

Value Writer::broadcast(Value x, ArrayRef<int64_t> shape) {
  return shapeOf(x) == shape
             ? x
             : BroadcastOp::create(builder, loc, typeOf(x).clone(shape), x).getResult();
}

Value Writer::transpose(Value x, ArrayRef<int64_t> permutation) {
  SmallVector<int64_t> shape;
  for (int64_t dim : permutation)
    shape.push_back(shapeOf(x)[dim]);
  return TransposeOp::create(builder, loc, typeOf(x).clone(shape), x, permutation);
}

Value Writer::slice(Value x, int64_t dim, int64_t start, int64_t limit) {
  SmallVector<int64_t> starts(typeOf(x).getRank(), 0), limits(shapeOf(x)), shape(shapeOf(x));
  SmallVector<int64_t> strides(starts.size(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  shape[dim] = limit - start;
  if (shapeOf(x) == ArrayRef(shape))
    return x;
  return SliceOp::create(builder, loc, typeOf(x).clone(shape), x, starts, limits, strides);
}

Value Writer::repeat(Value x, int64_t dim, int64_t times, int64_t count) {
  SmallVector<int64_t> shape(shapeOf(x));
  int64_t size = shape[dim];
  shape.insert(shape.begin() + dim + 1, 1);
  x = reshape(x, shape);
  shape[dim + 1] = times;
  x = broadcast(x, shape);
  shape.erase(shape.begin() + dim);
  shape[dim] = size * times;
  return slice(reshape(x, shape), dim, 0, count);
}

Value Writer::concat(ArrayRef<Value> values, int64_t dim) {
  if (values.size() == 1)
    return values.front();
  SmallVector<int64_t> shape(shapeOf(values.front()));
  shape[dim] = 0;
  for (Value value : values)
    shape[dim] += shapeOf(value)[dim];
  return ConcatOp::create(builder, loc, typeOf(values.front()).clone(shape), values, dim);
}

//===----------------------------------------------------------------------===//
// Reductions and products
//===----------------------------------------------------------------------===//

Value Writer::reduce(ReduceKind kind, Value x, ArrayRef<int64_t> dims, bool keep) {
  SmallVector<int64_t> shape;
  for (auto [d, size] : llvm::enumerate(shapeOf(x)))
    if (!llvm::is_contained(dims, int64_t(d)))
      shape.push_back(size);
    else if (keep)
      shape.push_back(1);
  RankedTensorType type = typeOf(x).clone(shape);
  // A sum over the tokens of routed rows is of the experts, or of all of them.
  if (getRouted(type) && llvm::is_contained(dims, 1))
    type = RankedTensorType::get(shape, type.getElementType());
  return ReduceOp::create(builder, loc, type, kind, x, dims, keep);
}

Value Writer::sumTo(Value x, RankedTensorType like) {
  ArrayRef<int64_t> shape = like.getShape();
  // A value beside routed rows is one for all tokens, also where there is one token.
  int64_t tokens = getRouted(like) ? 0 : getNumTokenDims(x);
  int64_t missing = shapeOf(x).size() - shape.size();
  SmallVector<int64_t> dims;
  bool stretches = false;
  for (auto [d, size] : llvm::enumerate(shapeOf(x))) {
    bool isMissing = int64_t(d) < missing;
    bool isToken = int64_t(d) > 0 && int64_t(d) <= tokens;
    bool isStretched = !isMissing && (isToken || shape[d - missing] != size);
    stretches |= isStretched;
    if (isMissing || isStretched)
      dims.push_back(d);
  }
  if (dims.empty())
    return x;
  bool keep = stretches && missing == 0;
  return reshape(reduce(ReduceKind::Sum, x, dims, keep), shape);
}

Value Writer::matmul(Value x, Value y, bool transposeX, bool transposeY) {
  ArrayRef<int64_t> left = shapeOf(x), right = shapeOf(y);
  SmallVector<int64_t> shape = *broadcastShapes({left.drop_back(2), right.drop_back(2)});
  shape.push_back(left[left.size() - (transposeX ? 1 : 2)]);
  shape.push_back(right[right.size() - (transposeY ? 2 : 1)]);
  return MatmulOp::create(builder, loc, typeOf(x).clone(shape), x, y, transposeX, transposeY);
}

Value Writer::linear(Value x, Value weight, bool inOut) {
  SmallVector<int64_t> shape(shapeOf(x));
  shape.back() = shapeOf(weight)[inOut ? 1 : 0];
  return LinearOp::create(builder, loc, typeOf(x).clone(shape), x, weight, Value(), inOut);
}

Value Writer::weightGrad(Value x, Value y) {
  auto type = RankedTensorType::get({shapeOf(x).back(), shapeOf(y).back()}, getComputeType(elementOf(x)));
  return WeightGradOp::create(builder, loc, type, x, y);
}
