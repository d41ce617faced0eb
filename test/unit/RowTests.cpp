//===- RowTests.cpp - row kernels of much memory --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// test/exec compares row kernels with PyTorch. These tests compare variants of a kernel: with
// stores past the caches and without, and with elements of even columns first and in order.
// The bits are the same, wherever results are stored.
//
//===----------------------------------------------------------------------===//

#include "KernelRunner.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

#include "llvm/Support/SaveAndRestore.h"

#include "gtest/gtest.h"

#include <cstring>
#include <random>

using namespace meshwright;

namespace {

/// The kernel of a module's one launch.
struct BuiltKernel {
  lower::KernelInfo info;
  KernelSource source;
  std::unique_ptr<test::Kernel> kernel;
};

class RowTest : public ::testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    target = llvm::cantFail(Processor::get(GetParam()));
    if (target.vectorBytes > Processor::host().vectorBytes)
      GTEST_SKIP() << "this machine does not run code for " << GetParam();
    context = test::makeContext();
    context
        ->loadDialect<nn::NnDialect, dist::DistDialect, rt::RtDialect, mlir::func::FuncDialect>();
  }

  BuiltKernel build(rt::KernelOp launch, int64_t l3Bytes) {
    target.l3Bytes = l3Bytes;
    lower::CpuTarget cpu("cpu:" + target.cpu, target);
    lower::CpuKernelBuilder kernels(context.get(), cpu);
    std::optional<lower::KernelInfo> info = kernels.build(launch);
    if (!info)
      llvm::report_fatal_error("not a kernel of rows");
    std::vector<KernelSource> sources = kernels.takeSources();
    std::unique_ptr<test::Kernel> kernel = test::Kernel::compile(sources[0], target);
    return {*info, sources[0], std::move(kernel)};
  }

  /// Runs `body` over rows x columns with and without streams, results at a vector
  /// and an element further on, and, of bf16, in the order of the columns. `inputs`:
  /// x for a matrix, w for a row.
  void compare(const char *inputs, const char *body, const char *results, int64_t rows,
               int64_t columns, const char *type, bool expectStreams);

  std::unique_ptr<mlir::MLIRContext> context;
  Processor target;
};

std::string replaceAll(std::string text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

void RowTest::compare(const char *inputs, const char *body, const char *results, int64_t rows,
                      int64_t columns, const char *type, bool expectStreams) {
  std::string row = "tensor<" + std::to_string(columns) + "x" + type + ">";
  std::string matrix =
      "tensor<" + std::to_string(rows) + "x" + std::to_string(columns) + "x" + type + ">";
  std::string arguments, types = matrix;
  for (size_t i = 0; inputs[i]; ++i)
    arguments +=
        (i ? ", %in" : "%in") + std::to_string(i) + ": " + (inputs[i] == 'x' ? matrix : row);
  for (const char *at = results; (at = std::strchr(at, ',')); ++at)
    types += ", " + matrix;
  std::string text = "func.func @main(" + arguments + ") -> (" + types + ") {\n" + body +
                     "\nreturn " + results + " : " + types + "\n}\n";
  text = replaceAll(replaceAll(text, "X", matrix), "W", row);
  SCOPED_TRACE(text);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, context.get());
  ASSERT_TRUE(module);
  mlir::PassManager manager(context.get());
  manager.addNestedPass<mlir::func::FuncOp>(createFormKernelsPass());
  ASSERT_TRUE(succeeded(manager.run(*module)));
  std::vector<rt::KernelOp> launches;
  module->walk([&](rt::KernelOp launch) { launches.push_back(launch); });
  ASSERT_EQ(launches.size(), 1u);

  BuiltKernel plain = build(launches[0], int64_t(1) << 40), streams = build(launches[0], 0);
  EXPECT_EQ(plain.source.text.find("nontemporal"), std::string::npos);
  EXPECT_EQ(streams.source.text.find("nontemporal") != std::string::npos, expectStreams);
  EXPECT_NE(streams.source.text.find("sfence"), std::string::npos);

  std::mt19937 random(1);
  std::vector<std::vector<uint16_t>> operands;
  auto bytesOf = [](mlir::Value value) {
    auto tensor = mlir::cast<mlir::RankedTensorType>(value.getType());
    return tensor.getNumElements() * tensor.getElementTypeBitWidth() / 8;
  };
  int64_t size = mlir::cast<mlir::RankedTensorType>(launches[0].getResult(0).getType())
                     .getElementTypeBitWidth() /
                 8;
  for (mlir::Value input : plain.info.inputs) {
    // Numbers around one, for any type.
    std::vector<uint16_t> &bits = operands.emplace_back(bytesOf(input) / 2);
    uint16_t high = size == 2 ? 0x3c00 : 0x3f80;
    for (size_t i = 0; i < bits.size(); ++i)
      bits[i] = (i + 1) % (size / 2) == 0 ? high + random() % 128 : random();
  }
  auto run = [&](const BuiltKernel &built, int64_t shift, int64_t grain) {
    int64_t bytes = bytesOf(launches[0].getResult(0));
    std::vector<const void *> buffers;
    for (const auto &operand : operands)
      buffers.push_back(operand.data());
    std::vector<std::vector<char>> outputs;
    for (size_t i = 0; i < launches[0].getNumResults(); ++i) {
      std::vector<char> &output = outputs.emplace_back(bytes + 192, char(0xff));
      uintptr_t begin = llvm::alignTo(reinterpret_cast<uintptr_t>(output.data()), 64) + shift;
      buffers.push_back(reinterpret_cast<const void *>(begin));
    }
    std::vector<char> workspace(built.info.workspaceBytes + 64);
    void *aligned =
        reinterpret_cast<void *>(llvm::alignTo(reinterpret_cast<uintptr_t>(workspace.data()), 64));
    for (int64_t at = 0; at < built.info.items; at += grain)
      (*built.kernel)(buffers, at, std::min(built.info.items, at + grain), aligned);
    std::string written;
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto *begin = static_cast<const char *>(buffers[operands.size() + i]);
      written.append(begin, bytes);
      std::memset(const_cast<char *>(begin), 0xff, bytes);
      for (char byte : outputs[i])
        EXPECT_EQ(byte, char(0xff)) << "written beside the result";
    }
    return written;
  };
  std::string expected = run(plain, 0, plain.info.items);
  for (int64_t shift : {int64_t(0), size, int64_t(32)})
    for (int64_t grain : {int64_t(1), streams.info.items})
      EXPECT_EQ(run(streams, shift, grain), expected) << "results at " << shift;
  if (target.narrowsPairs() && llvm::StringRef(type) == "bf16") {
    llvm::SaveAndRestore<bool> scope(target.hasBf16Dot, false);
    BuiltKernel ordered = build(launches[0], int64_t(1) << 40);
    EXPECT_EQ(run(ordered, 0, ordered.info.items), expected) << "in order";
  }
}

constexpr const char *kNorm = "%r = nn.rms_norm %in0 weight %in1 eps 1.0e-5 : (X, W) -> X";
constexpr const char *kAddNorm = "%h = nn.add %in0, %in1 : (X, X) -> X\n"
                                 "%r = nn.rms_norm %h weight %in2 eps 1.0e-5 : (X, W) -> X";
constexpr const char *kGated = "%a = nn.silu %in0 : X\n%r = nn.mul %a, %in1 : (X, X) -> X";
constexpr const char *kSoftmax = "%r = nn.softmax %in0 dim 1 : X";
constexpr const char *kRotated = "%r = nn.rotary %in0, %in1, %in2 {interleaved} : (X, W, W) -> X";
constexpr const char *kTwice =
    "%s = nn.softmax %in0 dim 1 : X\n%a = nn.add %in1, %s : (X, X) -> X\n"
    "%r = nn.layer_norm %a weight %in2 eps 1.0e-5 : (X, W) -> X";

TEST_P(RowTest, StreamsTheSame) {
  for (const char *type : {"f32", "bf16", "f16", "f64"})
    for (int64_t columns : {128, 192, 4096}) {
      compare("xw", kNorm, "%r", 5, columns, type, true);
      compare("xxw", kAddNorm, "%h, %r", 3, columns, type, true);
      compare("xx", kGated, "%r", 4, columns, type, true);
      compare("x", kSoftmax, "%r", 5, columns, type, true);
    }
}

TEST_P(RowTest, StreamsWholeVectorsOnly) {
  // Rows begin anywhere.
  for (int64_t columns : {1, 7, 97, 1001}) {
    compare("xw", kNorm, "%r", 5, columns, "f32", false);
    compare("xx", kGated, "%r", 5, columns, "bf16", false);
  }
}

TEST_P(RowTest, OrderDoesNotShow) {
  for (int64_t columns : {32, 90, 352}) {
    compare("xxw", kTwice, "%a, %r", 3, columns, "bf16", columns % 32 == 0);
    compare("xww", kRotated, "%r", 3, columns, "bf16", columns % 32 == 0);
  }
}

/// A result of elementwise ops may be in the place of an operand. A norm reads rows several times,
/// so its result never is.
TEST_P(RowTest, NoAliasOfBuffersThatDoNotOverlap) {
  struct Case {
    const char *inputs, *body;
    size_t noAlias;
  };
  // The workspace overlaps no buffer.
  for (const Case &c : {Case{"%in0: X, %in1: X", kGated, 1}, {"%in0: X, %in1: W", kNorm, 4}}) {
    std::string text = std::string("func.func @main(") + c.inputs + ") -> X {\n" + c.body +
                       "\nreturn %r : X\n}\n";
    text = replaceAll(replaceAll(text, "X", "tensor<4x64xf32>"), "W", "tensor<64xf32>");
    auto module = mlir::parseSourceString<mlir::ModuleOp>(text, context.get());
    ASSERT_TRUE(module) << text;
    mlir::PassManager manager(context.get());
    manager.addNestedPass<mlir::func::FuncOp>(createFormKernelsPass());
    ASSERT_TRUE(succeeded(manager.run(*module)));
    module->walk([&](rt::KernelOp launch) {
      BuiltKernel built = build(launch, int64_t(1) << 40);
      EXPECT_EQ(llvm::StringRef(built.source.text).count("llvm.noalias"), c.noAlias)
          << built.source.text;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RowTest, ::testing::Values("host", "x86-64-v3"),
                         [](const auto &info) { return replaceAll(info.param, "-", "_"); });

} // namespace
