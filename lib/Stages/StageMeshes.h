//===- StageMeshes.h - a mesh for each stage --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The models of a composed program may see the same ranks as different meshes: a
// target as (dp 2, tp 3), a draft as (dp 3, sp 2). The program's mesh then has an
// axis for each run of ranks that all of them cut at both ends, and `dist.stages`
// on it says what each stage makes of these. An axis of a stage is a part of an
// axis of the mesh.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_STAGES_STAGEMESHES_H
#define MESHWRIGHT_LIB_STAGES_STAGEMESHES_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Stages/Stages.h"

namespace meshwright {

/// The axes that the policies of a stage know.
struct StageMesh {
  /// Empty: the whole program has this one.
  llvm::StringRef stage;
  dist::MeshAttr mesh;

  /// The stage's ops, which are all where there is one mesh.
  StageFilter getFilter() const {
    StageFilter filter;
    if (!stage.empty())
      filter.only.push_back(stage);
    return filter;
  }
};

/// The meshes of a program's stages, or the one that it has.
llvm::SmallVector<StageMesh> getStageMeshes(dist::MeshOp meshOp);
inline bool hasStageMeshes(dist::MeshOp meshOp) {
  return meshOp->hasAttr(dist::DistDialect::kStageMeshesAttr);
}

/// A stage's axis as a part of the mesh's; none where the stage has no axis of the
/// name. Of an axis of size 1 the size is all that counts.
std::optional<dist::Axis> findAxis(dist::MeshOp meshOp, const StageMesh &view,
                                   llvm::StringRef name);

/// Whether any stage has an axis of the name.
bool anyHasAxis(dist::MeshOp meshOp, llvm::StringRef name);

/// The error that none has; `purpose` as in "to fold over".
mlir::InFlightDiagnostic emitMissingAxis(dist::MeshOp meshOp, llvm::StringRef name,
                                         llvm::StringRef purpose);

/// The mesh of which all stages' axes are parts.
mlir::FailureOr<dist::MeshAttr>
joinMeshes(mlir::ArrayRef<StageMesh> stages, llvm::StringRef device,
           mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// Checks that each of the function's stages has a mesh, and each mesh a stage.
mlir::LogicalResult checkStageMeshes(mlir::func::FuncOp func, dist::MeshOp meshOp);

/// The stage that a pipeline's input belongs to: `target.input_ids`.
llvm::StringRef getStage(mlir::BlockArgument input);

/// Whether the op gives a stage what another stage or an input of another made.
bool isCrossing(dist::ConstrainOp op);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_STAGES_STAGEMESHES_H
