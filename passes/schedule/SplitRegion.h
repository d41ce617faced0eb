//===- SplitRegion.h - what can run in chunks -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Around a collective of an SPMD program, the ops that compute each row (token,
// or sequence of a batch) on its own: found through their factor rules, up to
// ops that mix rows. They can run chunk by chunk of those rows.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H
#define MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H

#include "meshwright/lib/Reshard/TokenSharding.h"

#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// How an op runs on a chunk of the rows. A TokenDim says where the rows are in
/// a value: `size` of them on this rank, as the outermost factor of a dimension
/// (`outer` is 1), scattered over `axes` by collectives of the region.
struct ChunkOp {
  mlir::Operation *op = nullptr;
  /// None: reads the operand whole.
  llvm::SmallVector<std::optional<TokenDim>, 3> operands;
  llvm::SmallVector<TokenDim, 1> results;
};

/// Rows, over all ranks that they are scattered over, padding included.
inline int64_t getRows(const TokenDim &place) {
  return place.size * dist::getNumShards(place.axes);
}

/// Products, beside which communication can hide.
bool isHeavy(mlir::Operation *op);
/// Whether the op is a launch on the links.
bool isCollective(mlir::Operation *op);

struct SplitRegion {
  /// In the program's order.
  llvm::SmallVector<ChunkOp, 0> ops;
  /// The op's number in `ops`.
  llvm::DenseMap<mlir::Operation *, unsigned> index;
  llvm::DenseMap<mlir::Value, TokenDim> places;
  /// Values to be cut or joined whose rows are sharded: each rank cuts its own.
  llvm::DenseSet<mlir::Value> sharded;
  /// Where chunks begin: the first begins at 0. All but the last chunk have true
  /// rows alone.
  llvm::SmallVector<int64_t, 4> bounds;
  /// True rows that every value has, and of what each bound is a multiple.
  int64_t rows = 0;
  int64_t multiple = 1;

  const ChunkOp *lookup(mlir::Operation *op) const {
    auto it = index.find(op);
    return it == index.end() ? nullptr : &ops[it->second];
  }
  /// Whether this use reads a chunk.
  bool readsChunk(mlir::OpOperand &use) const {
    const ChunkOp *how = lookup(use.getOwner());
    return how && how->operands[use.getOperandNumber()].has_value();
  }
  /// Makes `count` chunks; false where there are not enough rows.
  bool cut(int64_t count);
  /// Local rows of chunk `i` of a value.
  int64_t getSize(const TokenDim &place, unsigned i) const;
};

class SplitRegionFinder {
public:
  SplitRegionFinder(mlir::Block &block, const PlacementAnalysis &placement)
      : block(block), placement(placement), mesh(placement.getMesh()) {}

  /// The regions around a collective, one for each dimension along which it can
  /// be cut, but for those found before. Where there is none `reason` says why.
  llvm::SmallVector<SplitRegion, 2> find(mlir::Operation *collective, std::string &reason);

  /// No other region may have these ops.
  void claim(const SplitRegion &region);
  bool isClaimed(mlir::Operation *op) const { return claimed.contains(op); }

private:
  struct Growth;
  class Trimmer;
  bool getMovedAxes(dist::RedistributeOp op, unsigned number, int64_t dim, dist::AxisList &gained,
                    dist::AxisList &lost) const;
  std::optional<TokenDim> matchMove(mlir::Operation *op, bool isResult, unsigned number,
                                    const TokenDim &place) const;
  std::optional<ChunkOp> match(mlir::Operation *op, bool isResult, unsigned number,
                               const TokenDim &place, std::string &reason) const;
  void visit(mlir::Operation *op, bool isResult, unsigned number, const TokenDim &place,
             Growth &growth, llvm::SmallVectorImpl<mlir::Value> &worklist) const;
  void grow(mlir::Value seed, const TokenDim &place, Growth &growth) const;
  bool trim(const Growth &growth, SplitRegion &region, std::string &reason) const;
  bool addValues(SplitRegion &region, std::string &reason) const;
  bool addBoundary(mlir::Value value, const TokenDim &place, SplitRegion &region,
                   std::string &reason) const;
  int64_t getTrueRows(mlir::Value value, const TokenDim &place) const;

  mlir::Block &block;
  const PlacementAnalysis &placement;
  dist::MeshAttr mesh;
  llvm::DenseSet<mlir::Operation *> claimed;
  /// Collectives around which a region was tried along a dimension of an operand,
  /// and why there was none.
  llvm::DenseMap<std::tuple<mlir::Operation *, unsigned, int64_t>, std::string> tried;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_SPLITREGION_H
