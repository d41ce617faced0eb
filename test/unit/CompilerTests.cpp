//===- CompilerTests.cpp - the C++ facade ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/Compiler.h"

#include <gtest/gtest.h>

#include <numeric>

using namespace meshwright;

namespace {

constexpr const char *text = R"mlir(
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"},
                %u: tensor<8x4xf32> {nn.parameter = "up", nn.aliases = ["also"]},
                %d: tensor<4x8xf32> {nn.parameter = "down"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %u {nn.id = 0 : i64} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %1 = nn.relu %0 {nn.id = 1 : i64} : tensor<3x8xf32>
  %2 = nn.linear %1, %d {nn.id = 2 : i64} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  return %2 : tensor<3x4xf32>
}
)mlir";

std::string getMessages(const std::vector<Diagnostic> &diagnostics) {
  std::string messages;
  for (const Diagnostic &diagnostic : diagnostics)
    messages += diagnostic.message + "\n";
  return messages;
}

TEST(Compiler, PlansAndRuns) {
  Result<Program> program = Program::parse(text, "mlp.mlir");
  ASSERT_TRUE(program) << getMessages(program.getDiagnostics());
  ASSERT_EQ(program->getParameters().size(), 2u);
  EXPECT_EQ(program->getParameters()[0].aliases, std::vector<std::string>{"also"});
  EXPECT_EQ(program->getInputs()[0].shape, (std::vector<int64_t>{3, 4}));

  Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=2 sequence-parallel=on");
  ASSERT_TRUE(plan) << getMessages(plan.getDiagnostics());
  EXPECT_EQ(plan->getNumRanks(), 2);
  EXPECT_NE(plan->str(PlanPhase::Spmd)->find("dist.spmd"), std::string::npos);
  EXPECT_NE(plan->report(ReportFormat::Json).find("\"schema\": 1"), std::string::npos);

  std::vector<float> x(12), up(32), down(32), y(12), want(12);
  std::iota(x.begin(), x.end(), -5.0f);
  std::iota(up.begin(), up.end(), -16.0f);
  std::iota(down.begin(), down.end(), -8.0f);
  for (int i = 0; i < 3; ++i)
    for (int o = 0; o < 4; ++o)
      for (int h = 0; h < 8; ++h) {
        float inner = 0;
        for (int k = 0; k < 4; ++k)
          inner += x[i * 4 + k] * up[h * 4 + k];
        want[i * 4 + o] += std::max(inner, 0.0f) * down[o * 8 + h];
      }

  // By an alias too.
  EXPECT_TRUE(plan->setParameter("also", {ElementType::F32, {8, 4}, up.data()}));
  HostArray input{ElementType::F32, {3, 4}, x.data()};
  Result<bool> early = plan->run({input}, {y.data()});
  EXPECT_FALSE(early);
  EXPECT_NE(getMessages(early.getDiagnostics()).find("parameter 'down' has no value"),
            std::string::npos);
  EXPECT_TRUE(plan->setParameter("down", {ElementType::F32, {4, 8}, down.data()}));
  Result<bool> run = plan->run({input}, {y.data()});
  ASSERT_TRUE(run) << getMessages(run.getDiagnostics());
  EXPECT_EQ(y, want);
  Result<CheckResult> check = plan->check({input});
  ASSERT_TRUE(check) << getMessages(check.getDiagnostics());
  EXPECT_TRUE(check->passed);
}

TEST(Compiler, Errors) {
  EXPECT_FALSE(Program::parse("func.func @main("));
  EXPECT_FALSE(Program::parseFile("/nonexistent/model.mlir"));
  Result<Program> program = Program::parse(text, "mlp.mlir");
  ASSERT_TRUE(program);
  Result<Plan> none = Plan::parallelize(*program, "mesh=tp=2 tensor-parallel=model");
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.getDiagnostics().empty());

  Result<Plan> plan = Plan::parallelize(*program, "mesh=tp=2");
  ASSERT_TRUE(plan);
  std::vector<float> array(64);
  Result<bool> shape = plan->setParameter("up", {ElementType::F32, {4, 8}, array.data()});
  EXPECT_FALSE(shape);
  EXPECT_EQ(getMessages(shape.getDiagnostics()),
            "parameter 'up' is f32[4, 8]: expected f32[8, 4]\n");
  plan->setParameter("up", {ElementType::F32, {8, 4}, array.data()});
  plan->setParameter("down", {ElementType::F32, {4, 8}, array.data()});
  Result<bool> run = plan->run({{ElementType::I64, {3, 4}, array.data()}}, {array.data()});
  EXPECT_FALSE(run);
  EXPECT_EQ(getMessages(run.getDiagnostics()), "input 'x' is i64[3, 4]: expected f32[3, 4]\n");
  EXPECT_FALSE(plan->run({}, {}));
}

} // namespace
