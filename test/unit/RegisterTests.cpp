//===- RegisterTests.cpp - dialects and passes are found by name ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Register/Register.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "gtest/gtest.h"

namespace {

TEST(Register, DialectsLoadByName) {
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  EXPECT_NE(context.getOrLoadDialect("dist"), nullptr);
  EXPECT_NE(context.getOrLoadDialect("nn"), nullptr);
}

} // namespace
