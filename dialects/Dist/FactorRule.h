//===- FactorRule.h - how dimensions of an op are tied ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_FACTORRULE_H
#define MESHWRIGHT_DIALECTS_DIST_FACTORRULE_H

#include "meshwright/dialects/Dist/Enums.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/ErrorHandling.h"

namespace mlir {
class Operation;
} // namespace mlir

namespace meshwright::dist {

enum class FactorKind {
  /// Each index is computed on its own.
  Parallel,
  /// Reduced in the results that it is absent from. If it is sharded, these are unreduced. A
  /// result that has it computes each index on its own.
  Contracted,
  /// Read as a whole, as by norms and slices. It must not be sharded.
  Special,
  /// Read as a whole, but maxima and sums of its parts give the result as well. If it is
  /// sharded, the partitioner replaces the op by its expansion (see ExpandOpInterface).
  Expandable,
};

/// A factor of a rule: its size, and how the op uses it.
struct RuleFactor {
  FactorKind kind;
  int64_t size;
  /// How each result combines if the factor is sharded. One entry holds for all results; no
  /// entry is a sum. A special factor that merges may be sharded, if all parts are merged.
  mlir::SmallVector<ReductionKind, 1> reductions;
  /// If it is sharded, a shard has a multiple of so many elements.
  int64_t align = 1;

  ReductionKind getReduction(unsigned result) const {
    if (reductions.empty())
      return ReductionKind::Sum;
    return reductions.size() == 1 ? reductions.front() : reductions[result];
  }
  bool isReducedBy(ReductionKind kind) const {
    return llvm::is_contained(reductions, kind);
  }
};

/// Ties the dimensions of an op's operands and results through factors, as the
/// letters of an einsum do. A dimension is a product of factors, major to
/// minor; an empty list is a dimension tied to nothing (size 1, broadcast).
struct FactorRule {
  using DimFactors = mlir::SmallVector<int, 1>;
  using ValueFactors = mlir::SmallVector<DimFactors, 4>;

  mlir::SmallVector<RuleFactor, 8> factors;
  mlir::SmallVector<ValueFactors, 3> operands;
  mlir::SmallVector<ValueFactors, 1> results;

  /// Operands in which the op is linear. If one of them is unreduced, the result is
  /// unreduced; the other operands have to be reduced. If the op is `jointlyLinear`, as an
  /// addition is, all of them have to be unreduced over the same axes instead.
  mlir::SmallVector<int, 2> linearOperands;
  bool jointlyLinear = false;
  /// Operands of which the op may take parts of a maximum: the maximum of its results for all
  /// parts is its result for the maxima. Each of them may be such parts, or reduced.
  mlir::SmallVector<int, 2> maximumOperands;
  /// Results that have the dimensions of an operand that broadcasts, with the operand. Such a
  /// result is summed where the operand broadcasts. A local type does not tell whether a
  /// dimension of size 1 does (see ShardingRuleOpInterface::mayBroadcast).
  struct BroadcastResult {
    int result, operand;
  };
  mlir::SmallVector<BroadcastResult, 1> broadcastResults;

  /// Returns true if the op takes parts of an operand that combine by `kind`, as the lists say.
  bool takesParts(int operand, ReductionKind kind) const {
    switch (kind) {
    case ReductionKind::Sum:
      return llvm::is_contained(linearOperands, operand);
    case ReductionKind::Max:
      return llvm::is_contained(maximumOperands, operand);
    case ReductionKind::Merge:
    case ReductionKind::Place:
      return false;
    }
    llvm_unreachable("unknown reduction");
  }
  /// Returns true if a dimension of a value has the factor.
  static bool hasFactor(const ValueFactors &dims, int factor) {
    return llvm::any_of(dims, [&](const DimFactors &dim) { return llvm::is_contained(dim, factor); });
  }
  /// Returns true if the op contracts the factor for a result.
  bool isReducedIn(int factor, unsigned result) const {
    return factors[factor].kind == FactorKind::Contracted && !hasFactor(results[result], factor);
  }

  int addFactor(int64_t size, FactorKind kind = FactorKind::Parallel) {
    factors.push_back({kind, size, {}, 1});
    return factors.size() - 1;
  }
  /// A factor of its own for every dimension of a value of this shape.
  ValueFactors addFactors(mlir::ArrayRef<int64_t> shape, FactorKind kind = FactorKind::Parallel);
};

/// The factors of an operand that broadcasts, by NumPy's rules, against a value of shape
/// `target` with factors `dims`. A dimension that stretches has none.
FactorRule::ValueFactors broadcastFactors(mlir::ArrayRef<int64_t> shape,
                                          mlir::ArrayRef<int64_t> target,
                                          mlir::ArrayRef<FactorRule::DimFactors> dims);

/// The rule of an elementwise op: one parallel factor for each dimension of its result,
/// against which the operands broadcast. Linear in no operand.
FactorRule getElementwiseRule(mlir::Operation *op);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_FACTORRULE_H
