//===- TokenSharding.h - ops on a shard of their rows -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs an op of an SPMD program on one rank's shard of a dimension, the tokens, instead of
// on all of it: matching, rewriting, cost.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H
#define MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H

#include "meshwright/dialects/Dist/FactorRule.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/Builders.h"

namespace meshwright {

/// The tokens of a local value and the axes that would shard them. Local dimension `dim` is
/// outer x size x inner. Each of the k ranks of `axes` takes padded / k of the `size` tokens.
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

/// The tokens within one factor of an op's rule, which is outer x tokens x inner.
struct TokenFactor {
  int factor;
  int64_t outer, inner;
};

/// The factor, among `factors` of the tokens' dimension, that holds the tokens.
std::optional<TokenFactor> findTokens(const dist::FactorRule &rule, llvm::ArrayRef<int> factors,
                                      const TokenDim &token);

/// The tokens in a value with these factors; none if it lacks the factor.
std::optional<TokenDim> placeTokens(const dist::FactorRule &rule,
                                    const dist::FactorRule::ValueFactors &dims,
                                    const TokenFactor &where, const TokenDim &token);

/// How an op runs on a shard.
struct TokenOp {
  enum Kind {
    /// The same op, on shards.
    Compute,
    /// The op pads the tokens, or strips their padding: the shard stays the operand's.
    Forward,
    /// The op is a slice that cuts out the same shard.
    TakeShard,
  };
  Kind kind = Compute;
  /// The tokens of each operand; none for an operand that every rank reads whole.
  llvm::SmallVector<std::optional<TokenDim>, 3> operands;
  llvm::SmallVector<TokenDim, 1> results;
};

class TokenSharding {
public:
  TokenSharding(mlir::Block &block, const PlacementAnalysis &placement, const CostModel &model)
      : placement(placement), model(model), mesh(placement.getMesh()),
        inMemory(getValuesInMemory(block)) {}

  /// How `op` runs if operand `operand` is sharded by `token`; none if it cannot.
  std::optional<TokenOp> match(mlir::Operation *op, unsigned operand, const TokenDim &token) const;

  /// Writes `op` on shards.
  mlir::Operation *runOnShard(mlir::OpBuilder &builder, mlir::Operation *op, const TokenOp &how,
                              mlir::ValueRange operands) const;
  /// Writes a rank's shard of `whole`. If its tokens are equal elements, the slice states that they
  /// have the layout that dimension `besideDim` of `beside` has, an operand of the same op.
  mlir::Value slice(mlir::OpBuilder &builder, mlir::Location location, mlir::Value whole,
                    const TokenDim &token, mlir::Value beside, int64_t besideDim) const;
  /// Writes the gathered value of `shard`. It replaces `whole`, which the analysis knows. With
  /// `statesShard` the gather states the layout of the shard, whose elements may be equal.
  mlir::Value gather(mlir::OpBuilder &builder, mlir::Value whole, mlir::Value shard,
                     const TokenDim &token, bool statesShard) const;

  /// Cost of gathering a value.
  Cost getGatherCost(mlir::Value whole, const TokenDim &token) const;
  /// Picoseconds of the op that running on the shard saves. Ops between products are fused.
  int64_t getSaving(mlir::Operation *op, const TokenOp &how) const;

  const CostModel &getModel() const { return model; }

private:
  void stateTokens(mlir::Operation *slice, mlir::Value whole, const TokenDim &token,
                   mlir::Value beside, int64_t besideDim) const;
  void stateShard(mlir::Operation *gather, mlir::Value whole, const TokenDim &token) const;
  void stateShards(mlir::Operation *sharded, const TokenOp &how) const;

  const PlacementAnalysis &placement;
  const CostModel &model;
  dist::MeshAttr mesh;
  ProgramSet<mlir::Value> inMemory;
};

/// The tokens of a value that is reduced over `axes`. They are the last dimension but one,
/// or the first dimension if only that has as many elements as the group has ranks. None
/// for values of less than two dimensions.
std::optional<TokenDim> chooseTokens(mlir::RankedTensorType type, dist::AxisList axes);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_RESHARD_TOKENSHARDING_H
