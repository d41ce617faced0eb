//===- Stages.h - the models that a program was composed of -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An op of a composed program says which model it comes from, `nn.stage =
// "encoder"`. Policies may treat stages differently.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_STAGES_STAGES_H
#define MESHWRIGHT_LIB_STAGES_STAGES_H

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"

namespace meshwright {

/// The stage of an op; empty in a program that is one model.
inline llvm::StringRef getStage(mlir::Operation *op) {
  auto stage = op->getAttrOfType<mlir::StringAttr>(nn::NnDialect::kStageAttr);
  return stage ? stage.getValue() : llvm::StringRef();
}

/// Stages in the order of their first op, each once.
inline llvm::SmallVector<llvm::StringRef> getStages(mlir::func::FuncOp func) {
  llvm::SmallVector<llvm::StringRef> stages;
  llvm::StringSet<> seen;
  for (mlir::Operation &op : func.getBody().front())
    if (llvm::StringRef stage = getStage(&op); !stage.empty() && seen.insert(stage).second)
      stages.push_back(stage);
  return stages;
}

/// Which stages a pass is for.
struct StageFilter {
  /// Those only; empty: all.
  llvm::SmallVector<llvm::StringRef> only;
  /// But for those.
  llvm::SmallVector<llvm::StringRef> except;

  bool contains(mlir::Operation *op) const {
    llvm::StringRef stage = getStage(op);
    return (only.empty() || llvm::is_contained(only, stage)) && !llvm::is_contained(except, stage);
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_STAGES_STAGES_H
