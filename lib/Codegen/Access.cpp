//===- Access.cpp - elements of buffers as functions of loops -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Access.h"

#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;

namespace meshwright::lower {

static SmallVector<int64_t> getStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i])
    strides[i] = stride;
  return strides;
}

std::optional<SmallVector<Access>> delinearize(const Access &access, ArrayRef<int64_t> shape,
                                               const LoopSpace &space) {
  SmallVector<int64_t> strides = getStrides(shape);
  size_t rank = shape.size(), numRows = space.rows.size();
  SmallVector<Access> dims(rank);
  // The element at the first point, and the largest index in each dimension.
  int64_t base = access.offset + access.column * space.begin;
  SmallVector<int64_t> furthest(rank, 0);
  for (size_t d = 0; d < rank; ++d) {
    dims[d].rows.assign(numRows, 0);
    if (shape[d] == 0)
      return std::nullopt;
    dims[d].offset = base / strides[d] % shape[d];
    furthest[d] = dims[d].offset;
  }
  if (base < 0)
    return std::nullopt;
  auto addTerm = [&](int64_t coefficient, int64_t size, auto assign) {
    if (coefficient == 0 || size <= 1)
      return true;
    for (size_t d = 0; d < rank; ++d) {
      if (shape[d] == 1 || strides[d] > coefficient || coefficient % strides[d] != 0)
        continue;
      int64_t step = coefficient / strides[d];
      furthest[d] += step * (size - 1);
      assign(dims[d], step);
      return furthest[d] < shape[d];
    }
    return false;
  };
  for (size_t i = 0; i < numRows; ++i)
    if (!addTerm(access.rows[i], space.rows[i],
                 [&](Access &dim, int64_t step) { dim.rows[i] = step; }))
      return std::nullopt;
  if (!addTerm(access.column, space.end - space.begin, [&](Access &dim, int64_t step) {
        dim.column = step;
        dim.offset -= step * space.begin;
      }))
    return std::nullopt;
  return dims;
}

Access linearize(ArrayRef<Access> dims, ArrayRef<int64_t> shape, size_t numRows) {
  SmallVector<int64_t> strides = getStrides(shape);
  Access access;
  access.rows.assign(numRows, 0);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (shape[d] == 1)
      continue;
    for (size_t i = 0; i < numRows; ++i)
      access.rows[i] += strides[d] * dims[d].rows[i];
    access.column += strides[d] * dims[d].column;
    access.offset += strides[d] * dims[d].offset;
  }
  return access;
}

std::optional<Access> getOperandAccess(Operation *op, Value operand, const Access &access,
                                       const LoopSpace &space) {
  auto shape = cast<RankedTensorType>(operand.getType()).getShape();
  auto resultShape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
  auto transpose = dyn_cast<nn::TransposeOp>(op);
  auto slice = dyn_cast<nn::SliceOp>(op);
  bool keepsOrder = op->hasTrait<dist::View>();
  if (keepsOrder || (!transpose && !slice && shape == resultShape))
    return access;
  auto result = delinearize(access, resultShape, space);
  if (!result)
    return std::nullopt;
  SmallVector<Access> dims(shape.size());
  if (transpose) {
    for (auto [i, from] : llvm::enumerate(transpose.getPermutation()))
      dims[from] = (*result)[i];
  } else if (slice) {
    for (size_t i = 0; i < shape.size(); ++i) {
      dims[i] = (*result)[i];
      int64_t stride = slice.getStrides()[i];
      for (int64_t &coefficient : dims[i].rows)
        coefficient *= stride;
      dims[i].column *= stride;
      dims[i].offset = dims[i].offset * stride + slice.getStarts()[i];
    }
  } else {
    size_t missing = resultShape.size() - shape.size();
    for (size_t i = 0; i < shape.size(); ++i)
      dims[i] = (*result)[missing + i];
  }
  return linearize(dims, shape, space.rows.size());
}

} // namespace meshwright::lower
