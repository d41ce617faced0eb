//===- Register.cpp - all dialects and passes -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Register/Register.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Driver/Register/ForeignDialects.h"
#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/passes/Pipeline.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/Extensions/AllExtensions.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/DialectRegistry.h"

using namespace mlir;

void meshwright::registerAllDialects(DialectRegistry &registry) {
  registry.insert<dist::DistDialect, nn::NnDialect, rt::RtDialect, func::FuncDialect,
                  arith::ArithDialect, scf::SCFDialect, tensor::TensorDialect>();
  registerForeignDialects(registry);
  func::registerAllExtensions(registry);
  registerPlacementModels(registry);
  registerModels(registry);
}

void meshwright::registerAllPasses() {
  registerPasses();
  registerPipelines();
}
