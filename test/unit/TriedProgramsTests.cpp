//===- TriedProgramsTests.cpp - programs that are tried once --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/TriedPrograms.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace meshwright;

namespace {

constexpr StringLiteral kProgram = R"mlir(
dist.mesh @mesh = <["tp"=2], device = "h100">
func.func @main(
    %x: tensor<8x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x4xf32>},
    %y: tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x4xf32>})
    -> (tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x4xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<8x4xf32>) -> tensor<16x4xf32>
  %1 = nn.sub %0, %y : (tensor<16x4xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
  %2 = nn.exp %1 : tensor<16x4xf32>
  return %2 : tensor<16x4xf32>
}
)mlir";

class TriedProgramsTest : public ::testing::Test {
protected:
  TriedProgramsTest() : context(getRegistry()), module(parse(context)), tried(TriedPrograms::of(&context)) {}

  static DialectRegistry getRegistry() {
    DialectRegistry registry;
    registerAllDialects(registry);
    return registry;
  }
  static OwningOpRef<ModuleOp> parse(MLIRContext &context) { return parseSourceString<ModuleOp>(kProgram, &context); }

  static func::FuncOp getMain(ModuleOp module) { return module.lookupSymbol<func::FuncOp>("main"); }
  static Operation *getSub(ModuleOp module) { return &*std::next(getMain(module).front().begin()); }
  static ProgramDigest digest(ModuleOp module) { return getDigest({module.getOperation()}); }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  TriedPrograms &tried;
};

TEST_F(TriedProgramsTest, EqualContentsHaveOneDigest) {
  OwningOpRef<ModuleOp> clone(module->clone());
  EXPECT_EQ(digest(*module), digest(*clone));
  EXPECT_EQ(digest(*tried.getContext().copy(*module)), digest(*tried.getContext().copy(*clone)));
}

TEST_F(TriedProgramsTest, OtherContentsHaveOther) {
  ProgramDigest original = digest(*module);
  auto expectOther = [&](function_ref<void(ModuleOp)> change) {
    OwningOpRef<ModuleOp> clone(module->clone());
    change(*clone);
    EXPECT_NE(digest(*clone), original);
  };
  Builder builder(&context);
  expectOther([](ModuleOp clone) {
    Value first = getSub(clone)->getOperand(0);
    getSub(clone)->setOperand(0, getSub(clone)->getOperand(1));
    getSub(clone)->setOperand(1, first);
  });
  expectOther([&](ModuleOp clone) { getSub(clone)->setAttr("other", builder.getUnitAttr()); });
  expectOther([&](ModuleOp clone) { getMain(clone).setResultAttr(0, "other", builder.getUnitAttr()); });
  expectOther([&](ModuleOp clone) { getSub(clone)->setLoc(NameLoc::get(builder.getStringAttr("other"))); });
  expectOther([](ModuleOp clone) { getSub(clone)->moveBefore(&getMain(clone).front().front()); });
  expectOther([](ModuleOp clone) { clone.getBody()->front().erase(); });
}

TEST_F(TriedProgramsTest, TriedProgramsShareTheContext) {
  EXPECT_EQ(&TriedPrograms::of(&context), &tried);
  EXPECT_EQ(&TriedPrograms::of(tried.getContext().get()), &tried);
  MLIRContext other(getRegistry());
  EXPECT_NE(&TriedPrograms::of(&other), &tried);
}

TEST_F(TriedProgramsTest, LaunchesAreFormedOnce) {
  OwningOpRef<ModuleOp> copy = tried.getContext().copy(*module), again = tried.getContext().copy(*module);
  ModuleOp launches = tried.getLaunches(getMain(*copy), digest(*copy));
  ASSERT_TRUE(launches);
  EXPECT_EQ(tried.getLaunches(getMain(*again), digest(*again)), launches);
  TriedPrograms::dropLaunches(&context);
  EXPECT_TRUE(tried.getLaunches(getMain(*again), digest(*again)));
}

TEST_F(TriedProgramsTest, PlansAreThoseOfANewContext) {
  func::FuncOp main = getMain(*module);
  int64_t least = *findLeastCeiling(*module);
  // The second round knows each order.
  for (int round = 0; round < 2; ++round)
    for (int64_t ceiling : {int64_t(1), least - 1, least, least + 4096, int64_t(1) << 30, int64_t(0)}) {
      MLIRContext other(getRegistry());
      OwningOpRef<ModuleOp> alone = parse(other);
      PlannedMemory expected = planMemory(getMain(*alone), ceiling), planned = planMemory(main, ceiling);
      PlannedMemory order = planOrder(main, ceiling);
      EXPECT_EQ(planned.refusal, expected.refusal);
      EXPECT_EQ(planned.refusal.empty(), ceiling == 0 || ceiling >= least);
      EXPECT_EQ(planned.needed, expected.needed);
      EXPECT_EQ(planned.memory.getAll(), expected.memory.getAll());
      EXPECT_EQ(planned.time, expected.time);
      EXPECT_EQ(order.refusal, expected.refusal);
      EXPECT_EQ(order.needed, expected.needed);
      if (expected.refusal.empty()) {
        EXPECT_EQ(order.time, expected.time);
      }
    }
}

} // namespace
