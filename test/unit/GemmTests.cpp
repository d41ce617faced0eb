//===- GemmTests.cpp - generated matrix products --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelRunner.h"

#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Types.h"

#include "mlir/Dialect/Arith/IR/Arith.h"

#include "gtest/gtest.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

using namespace meshwright;
using namespace meshwright::lower;
using meshwright::rt::DType;

namespace {

/// Elements of f32 or bf16, and their values.
struct Elements {
  std::vector<float> values;
  std::vector<uint16_t> bits;

  Elements(int64_t count, bool isBf16, unsigned seed) : values(count) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float &value : values)
      value = uniform(random);
    if (isBf16) {
      bits.resize(count);
      rt::narrow(DType::BF16, values.data(), bits.data(), count);
      rt::widen(DType::BF16, bits.data(), values.data(), count);
    }
  }
  const void *data() const {
    return bits.empty() ? static_cast<const void *>(values.data()) : bits.data();
  }
};

struct Case {
  int64_t m, n, k;
  bool isBf16, transposed, hasBias;
  bool isResultBf16 = false;
};

class GemmTest : public ::testing::TestWithParam<const char *> {
protected:
  GemmTest() : context(test::makeContext()) { context->loadDialect<meshwright::rt::RtDialect>(); }

  void SetUp() override {
    target = llvm::cantFail(Processor::get(GetParam()));
    Processor host = Processor::host();
    if (target.vectorBytes > host.vectorBytes || (target.hasBf16Dot && !host.hasBf16Dot))
      GTEST_SKIP() << "this machine does not run code for " << GetParam();
  }

  mlir::Type getType(bool isBf16) {
    mlir::Builder builder(context.get());
    return isBf16 ? mlir::Type(builder.getBF16Type()) : builder.getF32Type();
  }

  /// Computes a product, compares it, and returns it as f32. `extra` goes to what
  /// is fused; `expected` says what becomes of a sum.
  std::vector<float> run(const Case &c,
                         llvm::function_ref<float(float, int64_t, int64_t)> expected = nullptr,
                         llvm::function_ref<float(float, int64_t, int64_t)> scaled = nullptr);

  /// Multiplies the rows of experts, which are `counts`, where there is room for `room` more, and compares
  /// the results.
  void runExperts(const std::vector<int64_t> &counts, int64_t room, const Case &c);

  std::unique_ptr<mlir::MLIRContext> context;
  Processor target;
  /// The time to compile the last kernel.
  double compileMilliseconds = 0;
  std::vector<float> extra;
};

std::vector<float> GemmTest::run(const Case &c,
                                 llvm::function_ref<float(float, int64_t, int64_t)> expected,
                                 llvm::function_ref<float(float, int64_t, int64_t)> scaled) {
  Elements a(c.m * c.k, c.isBf16, 1), b(c.k * c.n, c.isBf16, 2), bias(c.n, c.isBf16, 3);
  mlir::Type type = getType(c.isBf16);
  mw_rt_packing packing = choosePacking(type, c.k, c.n, c.transposed, target);
  // Memory around a buffer must not matter.
  std::vector<char> packed(rt::sizeOfPacked(packing), char(0xff));
  auto form = rt::PackingAttr::get(type.getContext(), packing.k, packing.n, packing.transposed != 0,
                                   packing.panel, packing.group, packing.batch);
  EXPECT_EQ(form.getBytes(type), rt::sizeOfPacked(packing));
  rt::pack(packing, b.data(), packed.data(), 2);

  GemmSpec spec{type, getType(c.isResultBf16), c.m, c.n, c.k, c.hasBias, nullptr, nullptr};
  mlir::Value extraBuffer, resultBuffer;
  // sum * extra[row, column], as a gated activation has it.
  if (expected)
    spec.epilogue = [&](mlir::ImplicitLocOpBuilder &builder, mlir::Value sums,
                        const GemmPoint &point) {
      mlir::Value other = point.load(builder, extraBuffer, c.n);
      point.store(builder, mlir::arith::MulFOp::create(builder, sums, other), resultBuffer, c.n);
    };
  if (scaled)
    spec.prologue = [&](mlir::ImplicitLocOpBuilder &builder, mlir::Value element,
                        const GemmPoint &point) -> mlir::Value {
      mlir::Value other = point.load(builder, extraBuffer, c.k, /*byRow=*/false);
      return mlir::arith::MulFOp::create(builder, element, other);
    };
  GemmPlan plan = planGemm(spec, packing.panel, target);
  auto buffer = [&](int64_t count, mlir::Type element) {
    return mlir::MemRefType::get({count}, element);
  };
  mlir::Builder builder(context.get());
  int64_t elements = packed.size() / (c.isBf16 ? 2 : 4);
  mlir::Type index = builder.getIndexType();
  auto kernel = test::Kernel::build(
      {mlir::MemRefType::get({c.m, c.k}, type), buffer(elements, type), buffer(c.n, type),
       buffer(std::max<int64_t>(1, extra.size()), builder.getF32Type()),
       mlir::MemRefType::get({c.m, c.n}, spec.resultType), index, index,
       buffer(plan.workspaceBytes, builder.getI8Type())},
      target, [&](mlir::ImplicitLocOpBuilder &builder, mlir::ValueRange arguments) {
        extraBuffer = arguments[3];
        resultBuffer = arguments[4];
        emitGemm(builder, spec, plan,
                 {arguments[0], arguments[1], arguments[2], arguments[4], arguments[5],
                  arguments[6], arguments[7]});
      });
  compileMilliseconds = kernel->compileMilliseconds;
  int64_t size = c.isResultBf16 ? 2 : 4;
  // Two more rows than the product has: it must not write there.
  auto execute = [&](int64_t grain) {
    std::vector<char> result((c.m * c.n + 64) * size, char(0xff));
    // The workspace holds what was there before.
    std::vector<char> workspace(plan.workspaceBytes + 64, char(0xff));
    char *aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
    for (int64_t at = 0; at < plan.items; at += grain)
      (*kernel)({a.data(), packed.data(), bias.data(), extra.data(), result.data()}, at,
                std::min(plan.items, at + grain), aligned);
    for (int64_t i = c.m * c.n * size; i < int64_t(result.size()); ++i)
      EXPECT_EQ(result[i], char(0xff)) << "written behind the result";
    result.resize(c.m * c.n * size);
    return result;
  };
  std::vector<char> whole = execute(plan.items);
  EXPECT_EQ(whole, execute(1)) << "depends on how items are cut";
  EXPECT_EQ(whole, execute(5)) << "depends on how items are cut";

  std::vector<float> result(c.m * c.n);
  if (c.isResultBf16)
    rt::widen(DType::BF16, whole.data(), result.data(), result.size());
  else
    std::memcpy(result.data(), whole.data(), whole.size());
  double worst = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.hasBias ? bias.values[j] : 0;
      for (int64_t k = 0; k < c.k; ++k) {
        float element = a.values[i * c.k + k];
        if (scaled)
          element = scaled(element, i, k);
        sum += double(element) * b.values[c.transposed ? j * c.k + k : k * c.n + j];
      }
      if (expected)
        sum = expected(sum, i, j);
      double error = std::abs(sum - result[i * c.n + j]) / (1 + std::abs(sum));
      // NaN counts as wrong.
      worst = error <= worst ? worst : error;
    }
  double allowed = c.isResultBf16 ? 1.0 / 256 : 1e-6 * std::sqrt(double(c.k) + 1);
  EXPECT_LE(worst, allowed) << c.m << "x" << c.n << "x" << c.k << (c.isBf16 ? " bf16" : " f32")
                            << (c.transposed ? " transposed" : "");
  return result;
}

TEST_P(GemmTest, ShapesOfAllKinds) {
  const int64_t shapes[][3] = {
      {1, 1, 1},      {1, 31, 7},  {1, 64, 256},  {7, 33, 5},    {8, 32, 64},
      {8, 129, 97},   {17, 16, 9}, {17, 95, 130}, {97, 65, 127}, {128, 37, 1031},
      {128, 96, 515}, {3, 1, 12},  {600, 40, 33}, {29, 4200, 6}, {40, 1100, 2300},
  };
  int variant = 0;
  for (auto [m, n, k] : shapes)
    for (bool isBf16 : {false, true}) {
      run({m, n, k, isBf16, variant % 2 == 0, variant % 3 == 0, isBf16 && variant % 4 < 2});
      ++variant;
    }
}

TEST_P(GemmTest, FusesWhatFollows) {
  for (bool isBf16 : {false, true})
    for (auto [m, n, k] : {std::tuple{5, 19, 70}, std::tuple{61, 67, 1037}}) {
      extra = Elements(m * n, false, 4).values;
      run({m, n, k, isBf16, true, true, isBf16},
          [&, n = n](float sum, int64_t i, int64_t j) { return sum * extra[i * n + j]; });
    }
}

TEST_P(GemmTest, FusesWhatPrecedes) {
  for (bool isBf16 : {false, true})
    for (auto [m, n, k] : {std::tuple{5, 19, 70}, std::tuple{61, 67, 1037}}) {
      extra = Elements(k, false, 4).values;
      run({m, n, k, isBf16, true, false, false}, nullptr, [&](float element, int64_t i, int64_t k) {
        float product = element * extra[k];
        return isBf16 ? rt::bf16ToFloat(rt::floatToBf16(product)) : product;
      });
    }
}

void GemmTest::runExperts(const std::vector<int64_t> &counts, int64_t room, const Case &c) {
  int64_t experts = counts.size(), used = std::accumulate(counts.begin(), counts.end(), int64_t(0));
  int64_t rows = used + room;
  Elements a(rows * c.k, c.isBf16, 1), b(experts * c.k * c.n, c.isBf16, 2);
  // Rows of no expert must not matter.
  for (int64_t i = used * c.k; i < rows * c.k; ++i) {
    a.values[i] = std::numeric_limits<float>::quiet_NaN();
    if (c.isBf16)
      a.bits[i] = 0x7fc0;
  }
  std::vector<int64_t> offsets = {0};
  std::partial_sum(counts.begin(), counts.end(), std::back_inserter(offsets));
  mlir::Type type = getType(c.isBf16);
  mw_rt_packing packing = choosePacking(type, c.k, c.n, c.transposed, target);
  packing.batch = experts;
  std::vector<char> packed(rt::sizeOfPacked(packing), char(0xff));
  rt::pack(packing, b.data(), packed.data(), 2);

  GemmSpec spec{type, getType(c.isResultBf16), rows, c.n, c.k, false, nullptr, nullptr, experts};
  GemmPlan plan = planGemm(spec, packing.panel, target);
  mlir::Builder builder(context.get());
  mlir::Type index = builder.getIndexType();
  int64_t elements = packed.size() / (c.isBf16 ? 2 : 4);
  auto kernel = test::Kernel::build(
      {mlir::MemRefType::get({rows, c.k}, type), mlir::MemRefType::get({elements}, type),
       mlir::MemRefType::get({experts + 1}, builder.getI64Type()),
       mlir::MemRefType::get({rows, c.n}, spec.resultType), index, index,
       mlir::MemRefType::get({plan.workspaceBytes}, builder.getI8Type())},
      target, [&](mlir::ImplicitLocOpBuilder &builder, mlir::ValueRange arguments) {
        emitGemm(builder, spec, plan,
                 {arguments[0], arguments[1], mlir::Value(), arguments[3], arguments[4], arguments[5],
                  arguments[6], arguments[2]});
      });
  auto execute = [&](int64_t grain) {
    std::vector<char> result(rows * c.n * (c.isResultBf16 ? 2 : 4), char(0xff));
    std::vector<char> workspace(plan.workspaceBytes + 64, char(0xff));
    char *aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
    for (int64_t at = 0; at < plan.items; at += grain)
      (*kernel)({a.data(), packed.data(), offsets.data(), result.data()}, at,
                std::min(plan.items, at + grain), aligned);
    return result;
  };
  std::vector<char> whole = execute(plan.items);
  EXPECT_EQ(whole, execute(1)) << "depends on how items are cut";
  std::vector<float> result(rows * c.n);
  if (c.isResultBf16)
    rt::widen(DType::BF16, whole.data(), result.data(), result.size());
  else
    std::memcpy(result.data(), whole.data(), whole.size());

  // Nothing is written behind the rows of experts.
  for (size_t i = used * c.n * whole.size() / (rows * c.n); i < whole.size(); ++i)
    ASSERT_EQ(whole[i], char(0xff)) << "byte " << i;
  double worst = 0;
  for (int64_t i = 0, expert = 0; i < used; ++i) {
    while (i >= offsets[expert + 1])
      ++expert;
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < c.k; ++k)
        sum += double(a.values[i * c.k + k]) *
               b.values[expert * c.k * c.n + (c.transposed ? j * c.k + k : k * c.n + j)];
      double error = std::abs(sum - result[i * c.n + j]) / (1 + std::abs(sum));
      worst = error <= worst ? worst : error;
    }
  }
  EXPECT_LE(worst, c.isResultBf16 ? 1.0 / 256 : 1e-6 * std::sqrt(double(c.k) + 1))
      << rows << " rows of " << experts << " experts, " << c.n << "x" << c.k;
}

TEST_P(GemmTest, RowsOfExperts) {
  for (bool isBf16 : {false, true})
    for (bool transposed : {false, true}) {
      runExperts({1, 0, 1}, 0, {0, 40, 70, isBf16, transposed, false, isBf16});
      runExperts({0, 0, 0}, 2, {0, 33, 9, isBf16, transposed, false});
      runExperts({5, 0, 37, 8, 1}, 30, {0, 67, 130, isBf16, transposed, false, isBf16});
    }
  // Blocks of rows, and blocks of k.
  runExperts({3, 530, 0, 20}, 11, {0, 70, 45, false, true, false});
  runExperts({21, 9}, 3, {0, 97, 2300, false, true, false});
  runExperts({21, 9}, 3, {0, 97, 2300, true, false, false, true});
}

INSTANTIATE_TEST_SUITE_P(Targets, GemmTest,
                         ::testing::Values("host", "x86-64-v3", "skylake-avx512"),
                         [](const auto &info) {
                           std::string name = info.param;
                           for (char &c : name)
                             c = isalnum(c) ? c : '_';
                           return name;
                         });

} // namespace
