//===- DistDialect.td - layouts over devices ---------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DISTDIALECT_TD
#define MESHWRIGHT_DIALECTS_DIST_DISTDIALECT_TD

include "mlir/IR/OpBase.td"

def Dist_Dialect : Dialect {
  let name = "dist";
  let cppNamespace = "::meshwright::dist";
  let summary = "the layouts of values on devices, and the moves between them";
  let description = [{
    Meshes, shardings and collectives. A *global* program describes one device's
    computation and may carry `dist.sharding` on any value; an *SPMD* program
    (`dist.spmd = @mesh` on the function) describes what each rank does, with
    local shapes and explicit collectives.
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
    /// On any op of a global program: the sharding of its (only) result, or an
    /// array with one sharding per result. On function arguments and results
    /// too.
    static constexpr llvm::StringLiteral kShardingAttr = "dist.sharding";
    /// On arguments and results of an SPMD function: the global type.
    static constexpr llvm::StringLiteral kGlobalAttr = "dist.global";
    /// On a gather of a weight: the phase in which it is read first, "forward", "recompute" or
    /// "backward". For reports.
    static constexpr llvm::StringLiteral kPhaseAttr = "dist.phase";
    /// On a function: the mesh of the SPMD program.
    static constexpr llvm::StringLiteral kSpmdAttr = "dist.spmd";
    /// On a function: the rows that the fullest rank is expected to have over the mean, where
    /// their number depends on data (f64, from 1 on). Without it, 1.
    static constexpr llvm::StringLiteral kRowLoadAttr = "dist.row_load";
    /// On the `dist.mesh` of a composed program: for each stage the mesh, over the
    /// same ranks, that the stage's policies use (dictionary of meshes).
    static constexpr llvm::StringLiteral kStageMeshesAttr = "dist.stages";

    /// The decisions of the passes in this context, with their reasons.
    ::meshwright::DecisionLog &getDecisionLog() { return *decisionLog; }
    static ::meshwright::DecisionLog &getDecisionLog(::mlir::MLIRContext *context) {
      return context->getOrLoadDialect<DistDialect>()->getDecisionLog();
    }

    /// Results that outlive the pass that found them, one object for each type; null where none are kept. See
    /// `keepReshardPlans` and `TriedPrograms`.
    std::shared_ptr<void> &getKept(::mlir::TypeID type) { return kept[type]; }

  private:
    void registerAttributes();
    ::llvm::DenseMap<::mlir::TypeID, std::shared_ptr<void>> kept;
    std::unique_ptr<::meshwright::DecisionLog> decisionLog =
        std::make_unique<::meshwright::DecisionLog>();

  public:
  }];
}

#endif
