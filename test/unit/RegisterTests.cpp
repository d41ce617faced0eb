//===- RegisterTests.cpp - dialects and passes are found by name ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "gtest/gtest.h"

namespace {

TEST(Register, DialectsLoadByName) {
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  EXPECT_NE(context.getOrLoadDialect("dist"), nullptr);
  EXPECT_NE(context.getOrLoadDialect("nn"), nullptr);
}

// Factor rules alone would prove wrong programs.
TEST(Register, ProofNeedsModels) {
  mlir::MLIRContext context;
  context.loadDialect<meshwright::dist::DistDialect, meshwright::nn::NnDialect,
                      mlir::func::FuncDialect>();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(R"mlir(
    dist.mesh @mesh = <["tp"=2]>
    func.func @main() attributes {dist.spmd = @mesh} {
      return
    })mlir",
                                                        &context);
  ASSERT_TRUE(module);
  std::string error;
  mlir::ScopedDiagnosticHandler handler(
      &context, [&](mlir::Diagnostic &diagnostic) { error = diagnostic.str(); });
  auto func = *module->getOps<mlir::func::FuncOp>().begin();
  EXPECT_TRUE(mlir::failed(meshwright::verifyPlacement(func)));
  EXPECT_EQ(error, "'func.func' op expected the models of its ops (see registerAllDialects)");
}

// A registered fold-encoder prices: test/passes/annotate/fold-encoder.mlir.
TEST(Register, FoldEncoderWithoutPricesIsAnError) {
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(R"mlir(
    dist.mesh @mesh = <["sp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "a.x"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
      %y = nn.relu %x {nn.stage = "a"} : tensor<4x8xf32>
      return %y : tensor<4x8xf32>
    })mlir",
                                                        &context);
  ASSERT_TRUE(module);
  std::string error;
  mlir::ScopedDiagnosticHandler handler(
      &context, [&](mlir::Diagnostic &diagnostic) { error = diagnostic.str(); });
  meshwright::FoldEncoderPassOptions options;
  options.stage = "a";
  options.mode = meshwright::FoldMode::Auto;
  options.ulysses = meshwright::AxisChoice::get("sp");
  mlir::PassManager manager(&context);
  manager.addPass(meshwright::createFoldEncoderPass(options));
  EXPECT_TRUE(mlir::failed(manager.run(*module)));
  EXPECT_EQ(error, "fold mode 'auto' for stage 'a' needs prices: expected createFoldEncoderPass "
                   "with a function that prices, got none");
}

} // namespace
