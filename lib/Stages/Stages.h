//===- Stages.h - the stages of a composed program --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A composed program joins several models, its stages. Each op carries the name of the model
// that it comes from: `nn.stage = "encoder"`. Policies may treat stages differently.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_STAGES_STAGES_H
#define MESHWRIGHT_LIB_STAGES_STAGES_H

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"

namespace meshwright {

/// The stage of an op; empty if it has none, as in a program of one model.
inline llvm::StringRef getStage(mlir::Operation *op) {
  auto stage = op->getAttrOfType<mlir::StringAttr>(nn::NnDialect::kStageAttr);
  return stage ? stage.getValue() : llvm::StringRef();
}

/// The stages in the order of their first ops.
inline llvm::SmallVector<llvm::StringRef> getStages(mlir::func::FuncOp func) {
  llvm::SmallVector<llvm::StringRef> stages;
  llvm::StringSet<> seen;
  for (mlir::Operation &op : func.getBody().front())
    if (llvm::StringRef stage = getStage(&op); !stage.empty() && seen.insert(stage).second)
      stages.push_back(stage);
  return stages;
}

/// The stages that a policy annotates.
struct StageFilter {
  /// If not empty, only these stages.
  llvm::SmallVector<llvm::StringRef> only;
  /// Never these stages.
  llvm::SmallVector<llvm::StringRef> except;

  bool contains(mlir::Operation *op) const {
    llvm::StringRef stage = getStage(op);
    return (only.empty() || llvm::is_contained(only, stage)) && !llvm::is_contained(except, stage);
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_STAGES_STAGES_H
