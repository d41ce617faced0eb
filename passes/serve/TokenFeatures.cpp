//===- TokenFeatures.cpp - elements of one token, and their origin --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/TokenFeatures.h"

#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/Utils/IndexingUtils.h"

using namespace mlir;
using namespace meshwright;
using dist::FactorKind;
using dist::FactorRule;

using Coordinates = SmallVector<int64_t>;

/// The operand's element that an op moves to these coordinates of its result. Null for other ops.
static std::pair<Value, Coordinates> getMoved(Operation *op, ArrayRef<int64_t> at) {
  if (auto reshape = dyn_cast<nn::ReshapeOp>(op)) {
    int64_t index = linearize(at, computeStrides(shapeOf(reshape.getResult())));
    return {reshape.getInput(), delinearize(index, computeStrides(shapeOf(reshape.getInput())))};
  }
  if (auto transpose = dyn_cast<nn::TransposeOp>(op)) {
    Coordinates from(at.size());
    for (auto [d, p] : llvm::enumerate(transpose.getPermutation()))
      from[p] = at[d];
    return {transpose.getInput(), from};
  }
  if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    Coordinates from(at);
    for (auto [d, x] : llvm::enumerate(from))
      x = slice.getStarts()[d] + x * slice.getStrides()[d];
    return {slice.getInput(), from};
  }
  if (auto broadcast = dyn_cast<nn::BroadcastOp>(op)) {
    ArrayRef<int64_t> shape = shapeOf(broadcast.getInput());
    Coordinates from(at.take_back(shape.size()));
    for (auto [d, x] : llvm::enumerate(from))
      x = shape[d] == 1 ? 0 : x;
    return {broadcast.getInput(), from};
  }
  if (auto concat = dyn_cast<nn::ConcatOp>(op)) {
    Coordinates from(at);
    for (Value input : concat.getInputs()) {
      int64_t size = shapeOf(input)[concat.getDim()];
      if (from[concat.getDim()] < size)
        return {input, from};
      from[concat.getDim()] -= size;
    }
  }
  return {};
}

/// A shape without the dimension of tokens.
static SmallVector<int64_t> dropDim(ArrayRef<int64_t> shape, int64_t dim) {
  SmallVector<int64_t> rest(shape);
  rest.erase(rest.begin() + dim);
  return rest;
}

std::optional<int64_t> TokenFeatures::getTokenDim(Value value) const {
  std::optional<int64_t> found;
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(value))) {
    if (!llvm::is_contained(classes, tokens))
      continue;
    if (found || classes.size() != 1)
      return std::nullopt;
    found = d;
  }
  return found;
}

const std::vector<Feature> &TokenFeatures::resolve(Value value) {
  // The table may grow while operands are resolved.
  if (auto it = resolved.find(value); it != resolved.end())
    return *it->second;
  auto features = std::make_unique<std::vector<Feature>>(trace(value));
  return *(resolved[value] = std::move(features));
}

std::vector<Feature> TokenFeatures::trace(Value value) {
  int64_t dim = *getTokenDim(value);
  ArrayRef<int64_t> shape = shapeOf(value);
  SmallVector<int64_t> strides = computeStrides(dropDim(shape, dim));
  int64_t count = typeOf(value).getNumElements() / shape[dim], token = shape[dim] - 1;
  std::vector<Feature> own(count), moved(count);
  bool isMoved = true;
  for (int64_t i = 0; i < count; ++i) {
    own[i] = {value, i};
    if (!isMoved)
      continue;
    Coordinates at = delinearize(i, strides);
    at.insert(at.begin() + dim, token);
    Operation *op = value.getDefiningOp();
    auto [operand, from] = op ? getMoved(op, at) : std::pair<Value, Coordinates>();
    std::optional<int64_t> operandDim = operand ? getTokenDim(operand) : std::nullopt;
    // A slice of fewer tokens, or a constant beside the tokens, is where the search ends.
    isMoved =
        operandDim && shapeOf(operand)[*operandDim] == shape[dim] && from[*operandDim] == token;
    if (!isMoved)
      continue;
    from.erase(from.begin() + *operandDim);
    int64_t index = linearize(from, computeStrides(dropDim(shapeOf(operand), *operandDim)));
    moved[i] = resolve(operand)[index];
  }
  return isMoved ? moved : own;
}

const TokenProduct *TokenFeatures::getProduct(Operation *op) {
  if (!op)
    return nullptr;
  auto [it, inserted] = products.try_emplace(op);
  if (inserted)
    if (std::optional<TokenProduct> product = read(op))
      it->second = std::make_unique<TokenProduct>(std::move(*product));
  return it->second.get();
}

std::optional<TokenProduct> TokenFeatures::read(Operation *op) const {
  auto matrixOp = dyn_cast<dist::MatrixOpInterface>(op);
  if (!matrixOp || !op->hasTrait<dist::Product>() || op->getNumResults() != 1)
    return std::nullopt;
  const FactorRule &rule = factors.getFactors(op).rule;
  TokenProduct product;
  product.op = op;
  std::optional<unsigned> biasAt = matrixOp.getBiasOperand();
  int inputAt = -1, matrixAt = -1;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    bool hasTokens = llvm::any_of(factors.getClasses(operand), [&](const FactorClasses &classes) {
      return llvm::is_contained(classes, tokens);
    });
    if (biasAt == i && !hasTokens)
      product.bias = operand;
    else if (int &at = hasTokens ? inputAt : matrixAt; at < 0)
      at = i;
    else
      return std::nullopt;
  }
  if (inputAt < 0 || matrixAt < 0)
    return std::nullopt;
  product.input = op->getOperand(inputAt);
  product.matrix = op->getOperand(matrixAt);
  std::optional<int64_t> inputDim = getTokenDim(product.input), dim = getTokenDim(op->getResult(0));
  if (!inputDim || !dim || elementOf(product.input) != elementOf(op->getResult(0)))
    return std::nullopt;

  // The one summed factor, which both operands have as a dimension.
  int summed = -1;
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    if (factor.kind == FactorKind::Parallel)
      continue;
    if (factor.kind != FactorKind::Contracted || summed >= 0)
      return std::nullopt;
    summed = f;
  }
  auto getDim = [&](const FactorRule::ValueFactors &dims) {
    auto *it = llvm::find(dims, FactorRule::DimFactors{summed});
    return it == dims.end() ? -1 : it - dims.begin();
  };
  const auto &inputFactors = rule.operands[inputAt], &matrixFactors = rule.operands[matrixAt];
  int64_t inputInner = getDim(inputFactors);
  product.innerDim = getDim(matrixFactors);
  if (summed < 0 || inputInner < 0 || product.innerDim < 0)
    return std::nullopt;
  product.inner = rule.factors[summed].size;
  product.rows = typeOf(product.matrix).getNumElements() / product.inner;
  SmallVector<int64_t> inputStrides = computeStrides(shapeOf(product.input));
  // Strides of features, without the tokens.
  {
    SmallVector<int64_t> rest = computeStrides(dropDim(shapeOf(product.input), *inputDim));
    rest.insert(rest.begin() + *inputDim, 0);
    inputStrides = rest;
  }
  SmallVector<int64_t> rowStrides =
      computeStrides(dropDim(shapeOf(product.matrix), product.innerDim));
  rowStrides.insert(rowStrides.begin() + product.innerDim, 0);
  product.stride = inputStrides[inputInner];

  // The coordinate of each factor, then of each operand.
  ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  SmallVector<int64_t> strides = computeStrides(dropDim(shape, *dim));
  const auto &resultFactors = rule.results.front();
  auto locate = [&](const FactorRule::ValueFactors &dims, ArrayRef<int64_t> strides,
                    ArrayRef<int64_t> at) {
    int64_t index = 0;
    for (auto [d, own] : llvm::enumerate(dims))
      for (auto [r, factors] : llvm::enumerate(resultFactors))
        if (!own.empty() && own == factors)
          index += at[r] * strides[d];
    return index;
  };
  for (const auto *dims : {&inputFactors, &matrixFactors, &resultFactors})
    for (const FactorRule::DimFactors &own : *dims)
      if (own.size() > 1)
        return std::nullopt;
  int64_t count = typeOf(op->getResult(0)).getNumElements() / shape[*dim];
  for (int64_t i = 0; i < count; ++i) {
    Coordinates at = delinearize(i, strides);
    at.insert(at.begin() + *dim, 0);
    product.first.push_back(locate(inputFactors, inputStrides, at));
    product.row.push_back(locate(matrixFactors, rowStrides, at));
  }
  return product;
}
