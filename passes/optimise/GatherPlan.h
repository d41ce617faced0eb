//===- GatherPlan.h - where to gather sharded values ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Given values of which each rank could have a shard (seeds), finds the values that could
// be computed on shards, and the values at which an all-gather costs least.
//
// - Downward, in program order: ops whose operands are sharded run on shards if
//   TokenSharding can match them.
// - Upward, in reverse order: `evaluate` compares, for each sharded value, a gather of the
//   value itself (`here`) with gathers of the values that are computed from it (`below`).
//
// Both walks are linear in the number of uses.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H
#define MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H

#include "meshwright/lib/Reshard/TokenSharding.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/MapVector.h"

namespace meshwright {

class GatherPlan {
public:
  /// The operand whose entry counts the cost of an op that joins two sharded values: the one
  /// that is computed last, so that each seed has a cost of its own; or none, as the op runs
  /// on shards in any case.
  enum class Joins { Last, None };

  GatherPlan(mlir::Block &block, const TokenSharding &sharding,
             const llvm::MapVector<mlir::Value, TokenDim> &seeds, Joins joins);

  /// How the op runs on shards; null if it cannot.
  const TokenOp *lookup(mlir::Operation *op) const {
    auto it = ops.find(op);
    return it == ops.end() ? nullptr : &it->second;
  }
  const TokenDim *lookup(mlir::Value value) const {
    auto it = tokens.find(value);
    return it == tokens.end() ? nullptr : &it->second;
  }

  struct Entry {
    /// Picoseconds of the gathers, less the time that shards save, such that all values
    /// that some op needs whole are whole. `here` gathers the value itself; `below`
    /// gathers values that are computed from it. If an op needs the value itself whole,
    /// only `here` is possible.
    int64_t here = 0, below = 0;
    /// Some op needs the value itself whole.
    bool isNeeded = false;
    /// Users of the value that would run on shards.
    int64_t shardedUsers = 0;

    bool gatherHere() const { return isNeeded || here < below; }
    int64_t getBest() const { return gatherHere() ? here : below; }
  };
  const Entry &getEntry(mlir::Value value) const { return entries.find(value)->second; }

  /// Picoseconds that the op takes more on shards than on whole values; negative if it takes
  /// less.
  int64_t getExtra(mlir::Operation *op) const;
  /// The same where an operand is gathered for other users. The gathers behind the op are then launches more, at
  /// which all ranks wait for one another, so they have to save twice their time.
  int64_t getExtraBeside(mlir::Operation *op) const;

private:
  int64_t getResultTime(mlir::Operation *op) const;
  bool isJoin(mlir::Operation *op) const;
  bool accounts(mlir::Operation *op, mlir::Value value) const;
  void evaluate(mlir::Value value);

  const TokenSharding &sharding;
  Joins joins;
  ProgramMap<mlir::Value, TokenDim> tokens;
  ProgramMap<mlir::Operation *, TokenOp> ops;
  ProgramMap<mlir::Value, Entry> entries;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_GATHERPLAN_H
