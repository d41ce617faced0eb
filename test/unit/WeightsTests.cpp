//===- WeightsTests.cpp - which values are weights ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OpTraits.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Driver/Register/Register.h"
#include "meshwright/lib/Weights/Weights.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/FormatVariadic.h"
#include "gtest/gtest.h"

#include <set>

using namespace mlir;
using namespace meshwright;

namespace {

/// A matrix of so many rows and four columns.
struct Matrix {
  int rows;
  std::string element;

  std::string spell() const { return llvm::formatv("tensor<{0}x4x{1}>", rows, element).str(); }
};

/// An op that keeps weights: its text from a value to another one, and the type of the result.
struct Link {
  std::string text;
  Matrix result;
  bool takesPart = false;
};

using MakeLink = std::function<Link(const Matrix &)>;

std::string types(const Matrix &from, const Matrix &to) {
  return "(" + from.spell() + ") -> " + to.spell();
}

const std::vector<std::pair<std::string, MakeLink>> &getLinks(bool isSpmd) {
  static const std::vector<std::pair<std::string, MakeLink>> both = {
      {"view", [](const Matrix &m) { return Link{"nn.reshape {0} : " + types(m, m), m}; }},
      {"transpose",
       [](const Matrix &m) { return Link{"nn.transpose {0} [0, 1] : " + types(m, m), m}; }},
      {"cast",
       [](const Matrix &m) {
         Matrix to{m.rows, m.element == "f32" ? "bf16" : "f32"};
         return Link{"nn.cast {0} : " + types(m, to), to};
       }},
      {"prepare",
       [](const Matrix &m) {
         Matrix to{m.rows, m.element == "f32" ? "bf16" : "f32"};
         return Link{"rt.prepare {0} at load : " + m.spell() + " -> " + to.spell(), to};
       }},
      {"dequantisation",
       [](const Matrix &m) {
         Matrix to{m.rows, "f32"};
         return Link{"nn.dequantize {0}, %x {{block = [4, 1]} : (" + m.spell() +
                         ", tensor<4x4xf32>) -> " + to.spell(),
                     to};
       }},
      {"part",
       [](const Matrix &m) {
         Matrix to{m.rows / 2, m.element};
         return Link{"nn.slice {0} starts [0, 0] limits [" + std::to_string(to.rows) +
                         ", 4] strides [1, 1] : " + types(m, to),
                     to, true};
       }},
      {"after", [](const Matrix &m) {
         return Link{"dist.after {0}, %x : " + m.spell() + ", tensor<4x4xf32>", m};
       }}};
  static const auto global = [] {
    auto links = both;
    links.push_back({"constraint", [](const Matrix &m) {
                       return Link{"dist.constrain {0} <@mesh, [{{}, {{}]> : " + m.spell(), m};
                     }});
    links.push_back({"fetch", [](const Matrix &m) {
                       return Link{"dist.fetch {0} : " + m.spell(), m};
                     }});
    return links;
  }();
  static const auto spmd = [] {
    auto links = both;
    links.push_back({"gather", [](const Matrix &m) {
                       Matrix to{2 * m.rows, m.element};
                       return Link{"dist.all_gather {0} axes [\"x\"] dims [0] : " + types(m, to), to};
                     }});
    links.push_back({"chunk", [](const Matrix &m) {
                       Matrix to{m.rows / 2, m.element};
                       return Link{"dist.slice {0} axes [\"x\"] dims [0] : " + types(m, to), to};
                     }});
    links.push_back({"exchange", [](const Matrix &m) {
                       return Link{"dist.all_to_all {0} axes [\"x\"] from [0] to [0] : " + types(m, m), m};
                     }});
    links.push_back({"permutation", [](const Matrix &m) {
                       return Link{"dist.permute {0} axes [\"x\"] shift 1 : " + types(m, m), m};
                     }});
    links.push_back({"redistribution", [](const Matrix &m) {
                       return Link{"dist.redistribute {0} from [#dist.sharding<@mesh, [{{}, {{}]>] to "
                                   "[#dist.sharding<@mesh, [{{}, {{}]>] : " + types(m, m), m};
                     }});
    links.push_back({"rounding", [](const Matrix &m) {
                       return Link{"dist.round {0} form <mxfp8> : " + m.spell(), m};
                     }});
    links.push_back({"encoding", [](const Matrix &m) {
                       Matrix to{m.rows, "f8E4M3FN, #dist.form<mxfp8 along 1>"};
                       return Link{"dist.encode {0} : " + types(m, to), to};
                     }});
    links.push_back({"decoding", [](const Matrix &m) {
                       Matrix to{m.rows, "f32"};
                       return Link{"dist.decode {0} : " + types(m, to), to};
                     }});
    return links;
  }();
  return isSpmd ? spmd : global;
}

class Weights : public ::testing::Test {
protected:
  Weights() : context(getRegistry()) { context.loadAllAvailableDialects(); }

  static DialectRegistry getRegistry() {
    DialectRegistry registry;
    registerAllDialects(registry);
    return registry;
  }

  /// The first result of the last op of a body, else the weight w. The body also has an input x, p, a
  /// part of a stored tensor, a trained state t and another state m. The text is not verified.
  Value parse(const std::string &body) {
    std::string text = "dist.mesh @mesh = <[\"x\"=2]>\n"
                       "nn.state @t {role = \"parameter\"} : tensor<16x4xf32>\n"
                       "nn.state @m {role = \"optimizer\", fill = 0.0 : f32} : tensor<16x4xf32>\n"
                       "func.func @main(%w: tensor<16x4xf32> {nn.parameter = \"w\", nn.aliases = [\"v\"]}, "
                       "%x: tensor<4x4xf32> {nn.input = \"x\"}, "
                       "%p: tensor<8x4xf32> {nn.parameter = \"p\", nn.parameter_offsets = array<i64: 8, 0>}, "
                       "%t: tensor<16x4xf32> {nn.state = \"t\"}, %m: tensor<16x4xf32> {nn.state = \"m\"}) {\n" +
                       body + "\nfunc.return\n}\n";
    module = parseSourceString<ModuleOp>(text, ParserConfig(&context, /*verifyAfterParse=*/false));
    if (!module)
      return {};
    auto func = *module->getOps<func::FuncOp>().begin();
    Operation *last = func.front().getTerminator()->getPrevNode();
    return last ? last->getResult(0) : Value(func.getArgument(0));
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

TEST_F(Weights, OfEachLinkAndEachPair) {
  const Matrix stored{16, "f32"};
  for (const std::string from : {"w", "t"})
    for (bool isSpmd : {false, true})
      for (const auto &[firstName, first] : getLinks(isSpmd))
        for (const auto &[secondName, second] : getLinks(isSpmd)) {
          SCOPED_TRACE(from + ", " + firstName + ", " + secondName);
          Link a = first(stored), b = second(a.result);
          std::string body = "%a = " + llvm::formatv(a.text.c_str(), "%" + from).str();
          std::optional<Weight> weight = getWeight(parse(body));
          ASSERT_TRUE(weight);
          EXPECT_EQ(weight->name.getValue(), from);
          EXPECT_EQ(weight->isState, from == "t");
          EXPECT_EQ(weight->links.size(), 1u);
          EXPECT_EQ(weight->isWhole, !a.takesPart);
          body += "\n%b = " + llvm::formatv(b.text.c_str(), "%a").str();
          Value value = parse(body);
          weight = getWeight(value);
          ASSERT_TRUE(weight);
          EXPECT_EQ(weight->name.getValue(), from);
          ASSERT_EQ(weight->links.size(), 2u);
          EXPECT_EQ(weight->links[1], value.getDefiningOp());
          EXPECT_EQ(weight->links[0], value.getDefiningOp()->getOperand(0).getDefiningOp());
          EXPECT_EQ(weight->isWhole, !a.takesPart && !b.takesPart);
          EXPECT_FALSE(weight->isStored());
        }
}

/// A new op that keeps weights needs a link above.
TEST_F(Weights, OfEachOpThatKeepsThem) {
  std::set<StringRef> tried, keep;
  for (bool isSpmd : {false, true})
    for (const auto &[name, link] : getLinks(isSpmd)) {
      SCOPED_TRACE(name);
      Value value = parse("%a = " + llvm::formatv(link({16, "f32"}).text.c_str(), "%w").str());
      ASSERT_TRUE(value);
      tried.insert(value.getDefiningOp()->getName().getStringRef());
    }
  for (RegisteredOperationName name : context.getRegisteredOperations())
    if (name.hasTrait<dist::KeepsWeight>())
      keep.insert(name.getStringRef());
  EXPECT_EQ(tried, keep);
}

TEST_F(Weights, OfArguments) {
  Value whole = parse("");
  ASSERT_TRUE(getWeight(whole));
  EXPECT_TRUE(getWeight(whole)->isStored());
  EXPECT_TRUE(getWeight(whole)->isWhole);
  SmallVector<StringAttr, 1> names = getWeight(whole)->getNames();
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[1].getValue(), "v");
  auto block = cast<BlockArgument>(whole).getOwner();
  EXPECT_FALSE(getWeight(block->getArgument(1)));
  std::optional<Weight> part = getWeight(block->getArgument(2));
  ASSERT_TRUE(part);
  EXPECT_FALSE(part->isWhole);
  EXPECT_EQ(part->offsets.asArrayRef()[0], 8);
  std::optional<Weight> trained = getWeight(block->getArgument(3));
  ASSERT_TRUE(trained);
  EXPECT_TRUE(trained->isState && trained->isStored() && trained->isWhole);
  EXPECT_EQ(trained->getNames().size(), 1u);
  EXPECT_FALSE(getWeight(block->getArgument(4)));
}

/// Launches and waits are no links: the chain goes through them.
TEST_F(Weights, OfLaunches) {
  for (const std::string from : {"w", "t"}) {
    std::string body = llvm::formatv(R"(
      %f = rt.start %{0} stream 1 : (tensor<16x4xf32>) -> !rt.future<tensor<32x4xf32>> {{
      ^bb0(%a: tensor<16x4xf32>):
        %g = dist.all_gather %a axes ["x"] dims [0] : (tensor<16x4xf32>) -> tensor<32x4xf32>
        rt.yield %g : tensor<32x4xf32>
      }
      %1 = rt.wait %f : !rt.future<tensor<32x4xf32>>
      %2 = rt.kernel %1 : (tensor<32x4xf32>) -> tensor<32x4xbf16> {{
      ^bb0(%a: tensor<32x4xf32>):
        %c = nn.cast %a : (tensor<32x4xf32>) -> tensor<32x4xbf16>
        rt.yield %c : tensor<32x4xbf16>
      }
      %3 = rt.kernel %2 : (tensor<32x4xbf16>) -> tensor<32x4xbf16> {{
      ^bb0(%a: tensor<32x4xbf16>):
        %r = rt.prepare %a <k = 4, n = 32, transposed = true, panel = 16, group = 2> at use : tensor<32x4xbf16>
        rt.yield %r : tensor<32x4xbf16>
      })", from).str();
    std::optional<Weight> weight = getWeight(parse(body));
    ASSERT_TRUE(weight);
    EXPECT_EQ(weight->name.getValue(), from);
    ASSERT_EQ(weight->links.size(), 3u);
    EXPECT_TRUE(isa<dist::AllGatherOp>(weight->links[0]));
    EXPECT_TRUE(isa<nn::CastOp>(weight->links[1]));
    EXPECT_TRUE(isa<rt::PrepareOp>(weight->links[2]));
    EXPECT_TRUE(weight->isWhole);
    // The same from within a launch.
    EXPECT_EQ(getWeight(weight->links[2]->getOperand(0))->links.size(), 2u);
  }
  EXPECT_FALSE(getWeight(parse(R"(
      %1 = rt.kernel %w : (tensor<16x4xf32>) -> tensor<16x4xf32> {
      ^bb0(%a: tensor<16x4xf32>):
        %n = nn.neg %a : tensor<16x4xf32>
        rt.yield %n : tensor<16x4xf32>
      })")));
}

TEST_F(Weights, OfOtherOps) {
  EXPECT_FALSE(getWeight(parse("%a = nn.neg %w : tensor<16x4xf32>")));
  EXPECT_FALSE(getWeight(parse("%a = nn.reshape %x : (tensor<4x4xf32>) -> tensor<16xf32>")));
  EXPECT_FALSE(getWeight(parse("%a = nn.neg %w : tensor<16x4xf32>\n"
                               "%b = nn.reshape %a : (tensor<16x4xf32>) -> tensor<64xf32>")));
}

/// Each operand of a collective has its own result.
TEST_F(Weights, OfSeveralResults) {
  Value first = parse("%a:2 = dist.all_gather %x, %w axes [\"x\"] dims [0, 0] : "
                      "(tensor<4x4xf32>, tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<32x4xf32>)");
  EXPECT_FALSE(getWeight(first));
  std::optional<Weight> second = getWeight(first.getDefiningOp()->getResult(1));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->name.getValue(), "w");
}

} // namespace
