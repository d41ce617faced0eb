//===- TokenSharding.h - ops on a shard of their rows -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What it takes to run an op of an SPMD program on one rank's share of a
// dimension ("tokens") instead of on all of it.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H
#define MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H

#include "meshwright/dialects/Dist/FactorRule.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/CostModel/ProgramCost.h"

#include "mlir/IR/Builders.h"

namespace meshwright {

/// Where tokens stand in a local value and how they would be shared out: local
/// dimension `dim` is outer x size x inner, of which the ranks of `axes` take
/// padded / k rows each.
struct TokenDim {
  int64_t dim = 0;
  int64_t outer = 1, size = 1, inner = 1;
  int64_t padded = 1;
  dist::AxisList axes;

  int64_t getChunk() const { return padded / dist::getNumShards(axes); }
  bool operator==(const TokenDim &other) const {
    return dim == other.dim && outer == other.outer && size == other.size && inner == other.inner &&
           padded == other.padded && axes == other.axes;
  }
};

/// Tokens within one factor of an op's rule: what lies above and below them inside
/// the factor.
struct TokenFactor {
  int factor;
  int64_t outer, inner;
};

/// The factor, of those of the tokens' dimension, that has the tokens.
std::optional<TokenFactor> findTokens(const dist::FactorRule &rule, llvm::ArrayRef<int> factors,
                                      const TokenDim &token);

/// The tokens in a value with these factors; none where it has not the factor.
std::optional<TokenDim> placeTokens(const dist::FactorRule &rule,
                                    const dist::FactorRule::ValueFactors &dims,
                                    const TokenFactor &where, const TokenDim &token);

/// How an op runs on a shard.
struct TokenOp {
  enum Kind {
    /// The same op, on shards.
    Compute,
    /// Pads or strips the tokens' padding: the shard is the operand's.
    Forward,
    /// Cuts the same shard out: it is the shard.
    TakeShard,
  };
  Kind kind = Compute;
  /// For each operand where its tokens are; none where it has none.
  llvm::SmallVector<std::optional<TokenDim>, 3> operands;
  llvm::SmallVector<TokenDim, 1> results;
};

class TokenSharding {
public:
  TokenSharding(const PlacementAnalysis &placement, const CostModel &model)
      : placement(placement), model(model), mesh(placement.getMesh()) {}

  /// How `op` would run if operand `operand` were shared out by `token`; none
  /// if it cannot.
  std::optional<TokenOp> match(mlir::Operation *op, unsigned operand, const TokenDim &token) const;

  /// Writes: the op on shards, a rank's shard of a whole value, the whole value
  /// of a shard (in place of `whole`, which is known to the analysis).
  mlir::Operation *runOnShard(mlir::OpBuilder &builder, mlir::Operation *op, const TokenOp &how,
                              mlir::ValueRange operands) const;
  mlir::Value slice(mlir::OpBuilder &builder, mlir::Location location, mlir::Value whole,
                    const TokenDim &token) const;
  mlir::Value gather(mlir::OpBuilder &builder, mlir::Value whole, mlir::Value shard,
                     const TokenDim &token) const;

  /// Cost of gathering a value.
  Cost getGatherCost(mlir::Value whole, const TokenDim &token) const;
  /// Picoseconds of the op that running on the shard saves.
  int64_t getSaving(mlir::Operation *op, const TokenOp &how) const;

  const CostModel &getModel() const { return model; }

private:
  const PlacementAnalysis &placement;
  const CostModel &model;
  dist::MeshAttr mesh;
};

/// The tokens of a value that is reduced over `axes`: the last dimension but
/// one; the first, where that is shorter than the group and the first is not.
/// None for values of less than two dimensions.
std::optional<TokenDim> chooseTokens(mlir::RankedTensorType type, dist::AxisList axes);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H
