//===- StageMeshes.h - a mesh for each stage --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The stages of a composed program may have different meshes over the same ranks: a target
// (dp 2, tp 3), a draft (dp 3, sp 2). The mesh of the program then has the finest axes
// such that each axis of a stage is a part of one of them. Its attribute `dist.stages` has
// the meshes of the stages.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_STAGES_STAGEMESHES_H
#define MESHWRIGHT_LIB_STAGES_STAGEMESHES_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Stages/Stages.h"

namespace meshwright {

/// The mesh that the policies of a stage use.
struct StageMesh {
  /// Empty if the whole program has this mesh.
  llvm::StringRef stage;
  dist::MeshAttr mesh;

  /// Contains the ops of the stage: all ops if the program has one mesh.
  StageFilter getFilter() const {
    StageFilter filter;
    if (!stage.empty())
      filter.only.push_back(stage);
    return filter;
  }
};

/// The meshes of the stages, or the single mesh of a program without them.
llvm::SmallVector<StageMesh> getStageMeshes(dist::MeshOp meshOp);
inline bool hasStageMeshes(dist::MeshOp meshOp) {
  return meshOp->hasAttr(dist::DistDialect::kStageMeshesAttr);
}

/// Replaces the meshes of the stages, or the single mesh of a program without them.
void replaceStageMeshes(dist::MeshOp meshOp,
                        mlir::function_ref<dist::MeshAttr(dist::MeshAttr)> replace);

/// Removes the roles of all axes.
void clearRoles(dist::MeshOp meshOp);

/// An axis of a stage, as a part of an axis of the program's mesh. None if the stage has no
/// axis of this name. Only the size of an axis of size 1 has a meaning.
std::optional<dist::Axis> findAxis(dist::MeshOp meshOp, const StageMesh &view,
                                   llvm::StringRef name);

/// Returns true if some stage has an axis of this name.
bool anyHasAxis(dist::MeshOp meshOp, llvm::StringRef name);

/// Emits the error that no stage has the axis. `purpose` ends a sentence: "to fold over".
mlir::InFlightDiagnostic emitMissingAxis(dist::MeshOp meshOp, llvm::StringRef name,
                                         llvm::StringRef purpose);

/// The finest mesh such that each axis of a stage is a part of one of its axes.
mlir::FailureOr<dist::MeshAttr>
joinMeshes(mlir::ArrayRef<StageMesh> stages, llvm::StringRef device,
           mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// Checks that each of the function's stages has a mesh, and each mesh a stage.
mlir::LogicalResult checkStageMeshes(mlir::func::FuncOp func, dist::MeshOp meshOp);

/// The stage of an input of the pipeline, which its name begins with: `target.input_ids`.
llvm::StringRef getStage(mlir::BlockArgument input);

/// Returns true if the op gives its stage a value, or an input, of another stage.
bool isCrossing(dist::ConstrainOp op);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_STAGES_STAGEMESHES_H
