//===- AnnotatePass.td - the base of policies --------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_ANNOTATEPASS_TD
#define MESHWRIGHT_PASSES_ANNOTATE_ANNOTATEPASS_TD

include "mlir/Pass/PassBase.td"

class AnnotatePass<string name> : Pass<name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
