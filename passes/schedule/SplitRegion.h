//===- SplitRegion.h - ops that can run in chunks ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Finds the ops around a collective that can run in chunks of rows (tokens, heads or
// sequences of a batch): the ops whose factor rules (FactorRule.h) state that they compute
// each row separately. An op that mixes rows ends the region.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H
#define MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H

#include "meshwright/lib/Reshard/TokenSharding.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// The rows of an op's operands and results. Rows are the outermost factor of dimension
/// `dim` (`outer` is 1). A rank has `size` of them. `axes` are the axes over which collectives
/// of the region scatter them, and none for values that enter or leave the region.
struct ChunkOp {
  mlir::Operation *op = nullptr;
  /// None if the op reads the operand whole.
  llvm::SmallVector<std::optional<TokenDim>, 3> operands;
  llvm::SmallVector<TokenDim, 1> results;
};

/// The number of rows on all ranks of `token.axes` together, padding included.
inline int64_t getRows(const TokenDim &token) {
  return token.size * dist::getNumShards(token.axes);
}

/// Returns true for matrix products and attention. Communication can hide behind them.
bool isHeavy(mlir::Operation *op);

struct SplitRegion {
  /// The ops, in the program's order.
  llvm::SmallVector<ChunkOp, 0> ops;
  /// The op's number in `ops`.
  ProgramMap<mlir::Operation *, unsigned> index;
  /// The rows of all operands and results that are cut.
  ProgramMap<mlir::Value, TokenDim> tokens;
  /// Values that enter or leave the region with sharded rows. Each rank cuts its own rows.
  ProgramSet<mlir::Value> sharded;
  /// The first row of each chunk, counted as by `getRows`. Only the last chunk has padding.
  llvm::SmallVector<int64_t, 4> bounds;
  /// The number of rows without padding, the least over all values.
  int64_t rows = 0;
  /// Each bound is a multiple of this, so each rank gets the same number of rows of a chunk.
  int64_t multiple = 1;

  const ChunkOp *lookup(mlir::Operation *op) const {
    auto it = index.find(op);
    return it == index.end() ? nullptr : &ops[it->second];
  }
  /// Returns true if this use reads a chunk.
  bool readsChunk(mlir::OpOperand &use) const {
    const ChunkOp *how = lookup(use.getOwner());
    return how && how->operands[use.getOperandNumber()].has_value();
  }
  /// Makes `count` chunks. Returns false if there are not enough rows.
  bool cut(int64_t count);
  /// The number of local rows in chunk `i` of a value.
  int64_t getSize(const TokenDim &token, unsigned i) const;
};

/// Finds the regions of a block that can run in chunks.
///
/// Outline of `find`, for each dimension of the collective's operands:
///  1. `grow` starts at the side of the collective on which a rank has all rows. It visits
///     the producers and users of each value and takes in the ops that `match` (by a factor
///     rule) or `matchMove` (collectives, and ops that add, mask or strip padding) accepts.
///     If rows reach only some operands of a collective, it is excluded and `grow` restarts.
///  2. `trim` keeps the collectives and the ops between them. It keeps the nearest products
///     before and behind these, too, and the ops on the way to them.
///  3. `addBoundary` checks that each value that enters or leaves the region can be cut into
///     chunks or joined from them.
///
/// Complexity: a growth is linear in the uses of its values, times the number of excluded
/// collectives. `tried` prevents a second growth from a collective and dimension, so all
/// calls together are linear in the block if regions do not overlap.
class SplitRegionFinder {
public:
  SplitRegionFinder(mlir::Block &block, const PlacementAnalysis &placement)
      : block(block), placement(placement), mesh(placement.getMesh()) {}

  /// The regions around a collective, one for each dimension along which it can be cut,
  /// except those found before. If there is none, `reason` states why.
  llvm::SmallVector<SplitRegion, 2> find(mlir::Operation *collective, std::string &reason);

  /// Reserves the ops of a region: no other region gets them.
  void claim(const SplitRegion &region);
  bool isClaimed(mlir::Operation *op) const { return claimed.contains(op); }

private:
  struct Growth;
  class Trimmer;
  bool getMovedAxes(dist::CollectiveOpInterface op, unsigned number, int64_t dim,
                    dist::AxisList &gained, dist::AxisList &lost) const;
  std::optional<TokenDim> matchMove(mlir::Operation *op, bool isResult, unsigned number,
                                    const TokenDim &token) const;
  std::optional<ChunkOp> match(mlir::Operation *op, bool isResult, unsigned number,
                               const TokenDim &token, std::string &reason) const;
  void visit(mlir::Operation *op, bool isResult, unsigned number, const TokenDim &token,
             Growth &growth, llvm::SmallVectorImpl<mlir::Value> &worklist) const;
  void grow(mlir::Value seed, const TokenDim &token, Growth &growth) const;
  bool trim(const Growth &growth, SplitRegion &region, std::string &reason) const;
  bool addValues(SplitRegion &region, std::string &reason) const;
  bool addBoundary(mlir::Value value, const TokenDim &token, SplitRegion &region,
                   std::string &reason) const;
  int64_t getTrueRows(mlir::Value value, const TokenDim &token) const;

  mlir::Block &block;
  const PlacementAnalysis &placement;
  dist::MeshAttr mesh;
  ProgramSet<mlir::Operation *> claimed;
  /// The attempts so far, by collective, operand and dimension, and why each gave no region; none if the
  /// collective moves other values, too, that have no such rows.
  llvm::DenseMap<std::tuple<mlir::Operation *, unsigned, int64_t>, std::optional<std::string>> tried;
  /// Moves that a growth excluded, by operand and dimension, with the rows that reached them. Growth goes both
  /// ways, so the same rows reach the same values from any seed, and would exclude the move again.
  llvm::DenseMap<std::tuple<mlir::Operation *, unsigned, int64_t>, TokenDim> alone;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H
