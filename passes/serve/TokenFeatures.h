//===- TokenFeatures.h - elements of one token, and their origin -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A value with a dimension of tokens has features for each token. Ops that move elements, such as
// reshapes, slices and joins, leave features as they are. TokenFeatures says for each feature which
// element of which other op's result it is.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_TOKENFEATURES_H
#define MESHWRIGHT_PASSES_SERVE_TOKENFEATURES_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include <optional>
#include <vector>

namespace meshwright {

/// A feature of a value. The index counts elements row by row, without the dimension of tokens.
struct Feature {
  mlir::Value value;
  int64_t index = 0;
  bool operator==(const Feature &other) const {
    return value == other.value && index == other.index;
  }
  bool operator!=(const Feature &other) const { return !(*this == other); }
};

/// A product of the features of a token and a matrix without tokens. Feature i of the result is the
/// sum over `inner` elements of the input, times a row of the matrix, plus an element of the bias.
///
/// - The matrix has one dimension that is summed. Its rows are counted in the order of the others.
/// - The op's other factors are parallel, so it treats all positions alike.
struct TokenProduct {
  mlir::Operation *op = nullptr;
  mlir::Value input, matrix, bias;
  int64_t inner = 0, rows = 0;
  /// The dimension of the matrix that is summed.
  int64_t innerDim = 0;
  /// For each feature of the result: features of the input are first[i] + k * stride.
  std::vector<int64_t> first;
  int64_t stride = 1;
  /// For each feature of the result: its row of the matrix.
  std::vector<int64_t> row;
};

class TokenFeatures {
public:
  TokenFeatures(const FactorAnalysis &factors, int tokens) : factors(factors), tokens(tokens) {}

  /// The dimension of tokens; nothing if the value has none, or takes it apart.
  std::optional<int64_t> getTokenDim(mlir::Value value) const;
  /// The features in terms of results of ops that do not move elements. The value has a dimension
  /// of tokens.
  const std::vector<Feature> &resolve(mlir::Value value);
  /// The op as a product of a token's features and a matrix. Null if it is none.
  const TokenProduct *getProduct(mlir::Operation *op);

private:
  std::vector<Feature> trace(mlir::Value value);
  std::optional<TokenProduct> read(mlir::Operation *op) const;

  const FactorAnalysis &factors;
  int tokens;
  ProgramMap<mlir::Value, std::unique_ptr<std::vector<Feature>>> resolved;
  ProgramMap<mlir::Operation *, std::unique_ptr<TokenProduct>> products;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_TOKENFEATURES_H
