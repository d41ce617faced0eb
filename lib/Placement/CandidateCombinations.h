//===- CandidateCombinations.h - candidates of operands, combined -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_CANDIDATECOMBINATIONS_H
#define MESHWRIGHT_LIB_PLACEMENT_CANDIDATECOMBINATIONS_H

#include "meshwright/lib/Placement/TransferMemo.h"

namespace meshwright {

/// One candidate layout for each operand of an op.
using CandidateCombination = mlir::SmallVector<LayoutRef, 4>;

/// Combines the candidates of an op's operands, in the order of the fewest disagreements on the
/// axes of a factor of the op's rule. A value that the op reads several times has one layout.
/// Leaves out all but the first few hundred combinations. `rule` is null for an op without a rule
/// that helps.
mlir::SmallVector<CandidateCombination> combineCandidates(mlir::ValueRange operands,
                                                          mlir::ArrayRef<Candidates> candidates,
                                                          const dist::FactorRule *rule);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_CANDIDATECOMBINATIONS_H
