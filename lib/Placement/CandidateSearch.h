//===- CandidateSearch.h - one candidate layout of each value ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to lib/Placement.
//
// A local dimension of size 1 leaves several candidate layouts for a value (see
// `transfer`). The ops that use the value rule some of them out. The search chooses one
// candidate of each value such that every op is right.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_CANDIDATESEARCH_H
#define MESHWRIGHT_LIB_PLACEMENT_CANDIDATESEARCH_H

#include "meshwright/lib/Placement/TransferMemo.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseMap.h"

namespace meshwright {

/// An op, and the combinations of candidates of its operands and results with which it
/// is right.
struct CandidateLink {
  /// Layouts of the operands, and those that they give the results.
  using Combination = std::pair<mlir::SmallVector<LayoutRef, 4>, mlir::SmallVector<LayoutRef, 1>>;

  mlir::Operation *op;
  mlir::SmallVector<mlir::Value, 4> operands;
  mlir::SmallVector<mlir::Value, 1> results;
  mlir::SmallVector<Combination> combinations;
};

/// Reduces the candidates of each value in `ambiguous` to one, such that the layouts of the
/// values of each link are one of its combinations. `get` returns the layout of a value
/// that is not ambiguous. Returns the index of a link that has no combination left, where
/// there is no such choice.
std::optional<unsigned> chooseCandidates(mlir::ArrayRef<CandidateLink> links,
                                         ProgramMap<mlir::Value, Candidates> &ambiguous,
                                         mlir::function_ref<LayoutRef(mlir::Value)> get);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_CANDIDATESEARCH_H
