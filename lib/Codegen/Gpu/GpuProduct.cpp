//===- GpuProduct.cpp - a matrix product for kernels of GPUs --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuProduct.h"

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace meshwright::lower {

/// For each batch dimension of the result, the matrices that the operand advances: 0 where it is
/// stretched.
static SmallVector<int64_t> getBatchStrides(ArrayRef<int64_t> batch, ArrayRef<int64_t> operand) {
  SmallVector<int64_t> strides(batch.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < operand.size(); ++i) {
    int64_t size = operand[operand.size() - 1 - i];
    strides[batch.size() - 1 - i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

std::optional<MatrixProduct> getProduct(Operation *op) {
  MatrixProduct product;
  if (auto linear = dyn_cast<nn::LinearOp>(op)) {
    ArrayRef<int64_t> input = shapeOf(linear.getInput()), weight = shapeOf(linear.getWeight());
    product.m = ShapedType::getNumElements(input.drop_back());
    product.n = weight[linear.getInOut() ? 1 : 0];
    product.k = input.back();
    product.lhs = {linear.getInput(), product.m, true, {}};
    product.rhs = {linear.getWeight(), product.n, !linear.getInOut(), {}};
    product.bias = linear.getBias();
  } else if (auto matmul = dyn_cast<nn::MatmulOp>(op)) {
    ArrayRef<int64_t> lhs = shapeOf(matmul.getLhs()), rhs = shapeOf(matmul.getRhs());
    ArrayRef<int64_t> result = shapeOf(matmul.getResult());
    llvm::append_range(product.batch, result.drop_back(2));
    product.m = result[result.size() - 2];
    product.n = result.back();
    product.k = lhs[lhs.size() - (matmul.getTransposeLhs() ? 2 : 1)];
    product.lhs = {matmul.getLhs(), product.m, !matmul.getTransposeLhs(),
                   getBatchStrides(product.batch, lhs.drop_back(2))};
    product.rhs = {matmul.getRhs(), product.n, matmul.getTransposeRhs(),
                   getBatchStrides(product.batch, rhs.drop_back(2))};
  } else if (auto grad = dyn_cast<nn::WeightGradOp>(op)) {
    ArrayRef<int64_t> result = shapeOf(grad.getResult());
    product.m = result[0];
    product.n = result[1];
    product.k = ShapedType::getNumElements(shapeOf(grad.getLhs()).drop_back());
    product.lhs = {grad.getLhs(), product.m, false, {}};
    product.rhs = {grad.getRhs(), product.n, false, {}};
  } else if (auto grouped = dyn_cast<nn::GroupedProductOp>(op)) {
    product.m = shapeOf(grouped.getRows()).front();
    product.n = shapeOf(grouped.getResult()).back();
    product.k = shapeOf(grouped.getRows()).back();
    product.batch = {shapeOf(grouped.getWeight()).front()};
    product.lhs = {grouped.getRows(), product.m, true, {0}};
    product.rhs = {grouped.getWeight(), product.n, !grouped.getInOut(), {1}};
    product.offsets = grouped.getOffsets();
  } else if (auto outer = dyn_cast<nn::GroupedOuterOp>(op)) {
    ArrayRef<int64_t> result = shapeOf(outer.getResult());
    product.m = result[1];
    product.n = result[2];
    product.k = shapeOf(outer.getLhs()).front();
    product.batch = {result[0]};
    product.lhs = {outer.getLhs(), product.m, false, {0}};
    product.rhs = {outer.getRhs(), product.n, false, {0}};
    product.offsets = outer.getOffsets();
    product.sumsRows = true;
  } else {
    return std::nullopt;
  }
  product.result = op->getResult(0);
  return product;
}

ProductEmitter::ProductEmitter(const MatrixProduct &given, FusedRows *epilogue)
    : LoopEmitter(given.result.getContext()), product(given), element(given.getElement()),
      compute(getComputeType(element)), stored(getRowStorageType(element)),
      resultElement(getElementTypeOrSelf(given.result.getType())), epilogue(epilogue) {}

void ProductEmitter::start(func::FuncOp kernel) {
  b.setInsertionPointToStart(&kernel.getBody().front());
  sumBegin = getIndex(0);
  sumEnd = getIndex(product.k);
  if (epilogue)
    return;
  if (product.bias)
    bias = kernel.getArgument(2);
  if (product.offsets)
    offsets = kernel.getArgument(2);
  result = kernel.getArgument(product.bias || product.offsets ? 3 : 2);
}

Value ProductEmitter::getBase(const ProductFactor &factor) {
  Value at = getIndex(0), rest = matrix;
  for (size_t i = product.batch.size(); i-- > 0;) {
    at = add(at, mul(rem(rest, product.batch[i]), factor.strides[i]));
    rest = div(rest, product.batch[i]);
  }
  return mul(at, factor.rows * product.k);
}

void ProductEmitter::findRowsOfExpert(Value tile, int64_t tileRows) {
  int64_t experts = product.getNumMatrices();
  ExpertTile found = emitExpertTile(b, offsets, product.m, experts, tileRows, tile);
  matrix = found.expert;
  firstRow = found.firstRow;
  endOfRows = found.endOfExpert;
  b.setInsertionPointToStart(scf::IfOp::create(b, found.exists).thenBlock());
}

void ProductEmitter::startResult() {
  if (product.hasRowsOfExperts())
    matrix = getIndex(0);
}

void ProductEmitter::store(ArrayRef<Value> sums, Value row, Value column, Value exists) {
  auto emit = [&] {
    int64_t count = sums.size();
    Value all = vector::FromElementsOp::create(b, VectorType::get(count, compute), sums);
    if (epilogue)
      return epilogue->emitEpilogue(b, all, {row, column, count, count});
    if (bias) {
      Value terms = vector::LoadOp::create(b, VectorType::get(count, stored), bias, column);
      all = arith::AddFOp::create(b, all, emitCast(b, fromRowStorage(b, terms, element), compute));
    }
    Value at = add(mul(add(mul(matrix, product.m), row), product.n), column);
    vector::StoreOp::create(b, toRowStorage(b, emitCast(b, all, resultElement)), result, at);
  };
  exists ? when(exists, emit) : emit();
}

} // namespace meshwright::lower
