//===- GatherPlan.h - where to gather shared-out values ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// From values of which each rank has a shard (seeds), which others could be
// computed on shards, and at which of them a gather for those who need the whole
// value costs least.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H
#define MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H

#include "meshwright/lib/Reshard/TokenSharding.h"

#include "llvm/ADT/MapVector.h"

namespace meshwright {

class GatherPlan {
public:
  /// Who accounts for an op that joins two shared-out values: the one that is
  /// computed last (so that each seed's cost can be told), or nobody (it runs on
  /// shards either way).
  enum class Joins { Last, Nobody };

  GatherPlan(mlir::Block &block, const TokenSharding &sharding,
             const llvm::MapVector<mlir::Value, TokenDim> &seeds, Joins joins);

  /// How the op runs on shards; null where it cannot.
  const TokenOp *lookup(mlir::Operation *op) const {
    auto it = ops.find(op);
    return it == ops.end() ? nullptr : &it->second;
  }
  const TokenDim *lookup(mlir::Value value) const {
    auto it = tokens.find(value);
    return it == tokens.end() ? nullptr : &it->second;
  }

  struct Entry {
    /// Time, less what shards save, to have whole all that is needed whole of
    /// the value and of what follows from it: with a gather of the value itself
    /// (if somebody needs it whole, that is needed anyhow), or gathering what
    /// follows from it.
    int64_t here = 0, below = 0;
    /// Somebody needs the value itself whole.
    bool isNeeded = false;
    /// Ops that would run on shards, this value's users.
    int64_t shardedUsers = 0;

    bool gatherHere() const { return isNeeded || here < below; }
    int64_t getBest() const { return gatherHere() ? here : below; }
  };
  const Entry &getEntry(mlir::Value value) const { return entries.find(value)->second; }

  /// What running the op on shards adds, over running it whole where its
  /// operand is whole; negative if it saves.
  int64_t getExtra(mlir::Operation *op) const;

private:
  bool isJoin(mlir::Operation *op) const;
  bool accounts(mlir::Operation *op, mlir::Value value) const;
  void evaluate(mlir::Value value);

  const TokenSharding &sharding;
  Joins joins;
  llvm::DenseMap<mlir::Value, TokenDim> tokens;
  llvm::DenseMap<mlir::Operation *, TokenOp> ops;
  llvm::DenseMap<mlir::Value, Entry> entries;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H
