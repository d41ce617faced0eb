//===- FactorRulesTests.cpp - how the dimensions of each op are tied ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Register/Register.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/raw_ostream.h"
#include "gtest/gtest.h"

#include <array>
#include <map>
#include <random>

using namespace mlir;
using namespace meshwright;
using dist::FactorKind;
using dist::FactorRule;

namespace {

/// Spells a rule as an einsum: factors are letters, in the order in which they
/// occur; a dimension of several is in parentheses, one of none a dot. Then the
/// factors' sizes (+ summed, ^ of which the maximum is taken, ! special, ? expandable), then
/// the linear operands.
std::string spell(const FactorRule &rule) {
  std::map<int, char> letters;
  std::string text;
  llvm::raw_string_ostream stream(text);
  auto letter = [&](int factor) {
    return letters.try_emplace(factor, 'a' + letters.size()).first->second;
  };
  auto values = [&](ArrayRef<FactorRule::ValueFactors> values) {
    llvm::interleave(
        values, stream,
        [&](const FactorRule::ValueFactors &dims) {
          llvm::interleave(
              dims, stream,
              [&](const FactorRule::DimFactors &factors) {
                if (factors.size() > 1)
                  stream << '(';
                for (int factor : factors)
                  stream << letter(factor);
                if (factors.size() > 1)
                  stream << ')';
                if (factors.empty())
                  stream << '.';
              },
              " ");
        },
        ", ");
  };
  values(rule.operands);
  stream << " -> ";
  values(rule.results);
  stream << " {";
  std::map<char, int> order;
  for (auto [factor, letter] : letters)
    order[letter] = factor;
  llvm::interleaveComma(order, stream, [&](std::pair<char, int> entry) {
    const dist::RuleFactor &factor = rule.factors[entry.second];
    bool isMax = factor.getReduction(0) == dist::ReductionKind::Max;
    stream << entry.first << '=' << factor.size
           << (isMax                                   ? "^"
               : factor.kind == FactorKind::Contracted ? "+"
               : factor.kind == FactorKind::Special    ? "!"
               : factor.kind == FactorKind::Expandable ? "?"
                                                       : "")
           << (factor.isReducedBy(dist::ReductionKind::Merge) ? "~" : "");
  });
  stream << '}';
  if (!rule.linearOperands.empty()) {
    stream << " linear " << (rule.jointlyLinear ? "together " : "");
    llvm::interleaveComma(rule.linearOperands, stream);
  }
  return text;
}

/// Every dimension is the product of its factors, or of size 1 in the operands'
/// case without any.
void expectSizes(const FactorRule &rule, Operation *op) {
  ASSERT_EQ(rule.operands.size(), op->getNumOperands());
  ASSERT_EQ(rule.results.size(), op->getNumResults());
  auto check = [&](ArrayRef<FactorRule::ValueFactors> values, TypeRange types) {
    for (auto [dims, type] : llvm::zip_equal(values, types)) {
      ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
      ASSERT_EQ(dims.size(), shape.size());
      for (auto [factors, size] : llvm::zip_equal(dims, shape)) {
        int64_t product = 1;
        for (int factor : factors) {
          ASSERT_LT(static_cast<size_t>(factor), rule.factors.size());
          product *= rule.factors[factor].size;
        }
        EXPECT_EQ(product, size);
      }
    }
  };
  check(rule.operands, op->getOperandTypes());
  check(rule.results, op->getResultTypes());
  for (int operand : rule.linearOperands)
    EXPECT_LT(static_cast<size_t>(operand), rule.operands.size());
}

class FactorRules : public testing::Test {
protected:
  FactorRules() {
    DialectRegistry registry;
    registerAllDialects(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  /// The rule of the op `text`, whose operands are %0, %1, ... of `types`.
  std::string rule(StringRef types, StringRef text) {
    std::string source = "func.func @f(";
    llvm::raw_string_ostream stream(source);
    SmallVector<StringRef> list;
    types.split(list, ' ', -1, false);
    for (auto [i, type] : llvm::enumerate(list))
      stream << (i ? ", " : "") << "%a" << i << ": tensor<" << type << ">";
    stream << ") {\n  " << text << "\n  return\n}\n";
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(source, &context);
    if (!module)
      return "does not parse";
    std::string result;
    module->walk([&](dist::ShardingRuleOpInterface op) {
      FactorRule rule = op.getFactorRule();
      expectSizes(rule, op);
      result = spell(rule);
    });
    return result;
  }

  MLIRContext context;
};

TEST_F(FactorRules, Elementwise) {
  EXPECT_EQ(rule("2x7xf32", "nn.silu %a0 : tensor<2x7xf32>"), "a b -> a b {a=2, b=7}");
  EXPECT_EQ(rule("2x7xf32", "nn.neg %a0 : tensor<2x7xf32>"), "a b -> a b {a=2, b=7} linear 0");
  EXPECT_EQ(rule("2x7xf32 7xf32",
                 "nn.add %a0, %a1 : (tensor<2x7xf32>, tensor<7xf32>) -> tensor<2x7xf32>"),
            "a b, b -> a b {a=2, b=7} linear together 0, 1");
  EXPECT_EQ(rule("2x1xf32 1x7xf32",
                 "nn.mul %a0, %a1 : (tensor<2x1xf32>, tensor<1x7xf32>) -> tensor<2x7xf32>"),
            "a ., . b -> a b {a=2, b=7} linear 0, 1");
  // A dimension of size 1 may be a chunk of a larger one.
  EXPECT_EQ(rule("1x7xf32 1x1xf32",
                 "nn.sub %a0, %a1 : (tensor<1x7xf32>, tensor<1x1xf32>) -> tensor<1x7xf32>"),
            "a b, a . -> a b {a=1, b=7} linear together 0, 1");
  EXPECT_EQ(
      rule("2xf32 2xf32", "nn.div %a0, %a1 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>"),
      "a, a -> a {a=2} linear 0");
  EXPECT_EQ(
      rule("2xi64 2xi64", "nn.div %a0, %a1 : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64>"),
      "a, a -> a {a=2}");
  EXPECT_EQ(rule("2xf32 2xf32",
                 "nn.compare lt %a0, %a1 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>"),
            "a, a -> a {a=2}");
  EXPECT_EQ(rule("7xi1 2x7xf32 f32", "nn.select %a0, %a1, %a2 : (tensor<7xi1>, tensor<2x7xf32>, "
                                     "tensor<f32>) -> tensor<2x7xf32>"),
            "a, b a,  -> b a {a=7, b=2} linear together 1, 2");
}

TEST_F(FactorRules, Cast) {
  auto cast = [&](StringRef from, StringRef to) {
    std::string type = ("2x" + from).str();
    return rule(type, ("nn.cast %a0 : (tensor<2x" + from + ">) -> tensor<2x" + to + ">").str());
  };
  std::string linear = "a -> a {a=2} linear 0", none = "a -> a {a=2}";
  EXPECT_EQ(cast("bf16", "f32"), linear);
  EXPECT_EQ(cast("f32", "f32"), linear);
  EXPECT_EQ(cast("i32", "i64"), linear);
  EXPECT_EQ(cast("f32", "bf16"), none);
  EXPECT_EQ(cast("bf16", "f16"), none);
  EXPECT_EQ(cast("i64", "i32"), none);
  EXPECT_EQ(cast("i1", "i64"), none);
  EXPECT_EQ(cast("i32", "f32"), none);
}

TEST_F(FactorRules, ConstantsAndShapes) {
  EXPECT_EQ(rule("", "nn.constant dense<1.0> : tensor<2x7xf32>"), " -> a b {a=2, b=7}");
  EXPECT_EQ(rule("", "nn.constant dense<[1, 2]> : tensor<2xi64>"), " -> a {a=2!}");
  EXPECT_EQ(rule("", "nn.iota dim 1 : tensor<2x7xi64>"), " -> a b {a=2, b=7!}");
  EXPECT_EQ(
      rule("2x7x8xf32", "nn.transpose %a0 [2, 0, 1] : (tensor<2x7x8xf32>) -> tensor<8x2x7xf32>"),
      "a b c -> c a b {a=2, b=7, c=8} linear 0");
  EXPECT_EQ(rule("2x7xf32", "nn.slice %a0 starts [0, 1] limits [2, 7] strides [1, 1] : "
                            "(tensor<2x7xf32>) -> tensor<2x6xf32>"),
            "a b -> a c {a=2, b=7!, c=6!} linear 0");
  EXPECT_EQ(rule("2x7xf32 2x3xf32", "nn.concat %a0, %a1 dim 1 : (tensor<2x7xf32>, "
                                    "tensor<2x3xf32>) -> tensor<2x10xf32>"),
            "a b, a c -> a d {a=2, b=7!, c=3!, d=10!} linear together 0, 1");
  EXPECT_EQ(rule("2x1xf32", "nn.broadcast %a0 : (tensor<2x1xf32>) -> tensor<5x2x7xf32>"),
            "a . -> b a c {a=2, b=5, c=7} linear 0");
  EXPECT_EQ(rule("2x7x8xf32 3x5xi64", "nn.gather %a0, %a1 dim 1 : (tensor<2x7x8xf32>, "
                                      "tensor<3x5xi64>) -> tensor<2x3x5x8xf32>"),
            "a b c, d e -> a d e c {a=2, b=7!, c=8, d=3, e=5} linear 0");
  EXPECT_EQ(rule("2x7x8xf32 2x3x8xi64", "nn.take_along %a0, %a1 dim 1 : (tensor<2x7x8xf32>, "
                                        "tensor<2x3x8xi64>) -> tensor<2x3x8xf32>"),
            "a b c, a d c -> a d c {a=2, b=7!, c=8, d=3} linear 0");
  EXPECT_EQ(rule("2x7x8xf32 3xi64 2x3x8xf32",
                 "nn.index_copy %a0, %a1, %a2 dim 1 : (tensor<2x7x8xf32>, tensor<3xi64>, "
                 "tensor<2x3x8xf32>) -> tensor<2x7x8xf32>"),
            "a b c, d, a d c -> a b c {a=2, b=7!, c=8, d=3!} linear together 0, 2");
}

TEST_F(FactorRules, Gradients) {
  EXPECT_EQ(rule("2x7x16xbf16 2x7x8xbf16", "nn.weight_grad %a0, %a1 : (tensor<2x7x16xbf16>, "
                                           "tensor<2x7x8xbf16>) -> tensor<16x8xf32>"),
            "a b c, a b d -> c d {a=2+, b=7+, c=16, d=8} linear 0, 1");
  EXPECT_EQ(rule("5x2x7x8xf32 2x7xi64", "nn.scatter_add %a0, %a1 dim 1 : (tensor<5x2x7x8xf32>, "
                                        "tensor<2x7xi64>) -> tensor<5x32x8xf32>"),
            "a b c d, b c -> a e d {a=5, b=2+, c=7+, d=8, e=32} linear 0");
  EXPECT_EQ(rule("2x7xf32 2x7xi64 i64",
                 "nn.scatter_add %a0, %a1 offset %a2 dim 1 {along} : (tensor<2x7xf32>, "
                 "tensor<2x7xi64>, tensor<i64>) -> tensor<2x9xf32>"),
            "a b, a b,  -> a c {a=2, b=7+, c=9} linear 0");
  EXPECT_EQ(rule("2x3xf32", "nn.pad %a0 low [0, 1] high [0, 0] interior [0, 0] : "
                            "(tensor<2x3xf32>) -> tensor<2x4xf32>"),
            "a b -> a c {a=2, b=3!, c=4!} linear 0");
}

TEST_F(FactorRules, Reshape) {
  auto reshape = [](ArrayRef<int64_t> from, ArrayRef<int64_t> to) {
    return spell(nn::getReshapeFactorRule(from, to));
  };
  EXPECT_EQ(reshape({2, 7, 72}, {2, 7, 6, 12}),
            "a b (cd) -> a b c d {a=2, b=7, c=6, d=12} linear 0");
  EXPECT_EQ(reshape({2, 7, 6, 12}, {14, 72}),
            "a b c d -> (ab) (cd) {a=2, b=7, c=6, d=12} linear 0");
  EXPECT_EQ(reshape({4, 6}, {2, 12}), "(ab) c -> a (bc) {a=2, b=2, c=6} linear 0");
  EXPECT_EQ(reshape({1, 7, 1}, {7}), ". a . -> a {a=7} linear 0");
  EXPECT_EQ(reshape({1}, {}), ". ->  {} linear 0");
  EXPECT_EQ(reshape({6, 4}, {8, 3}), "a b -> c d {a=6!, b=4!, c=8!, d=3!} linear 0");
  // Factors common before and after such a dimension are kept.
  EXPECT_EQ(reshape({2, 6, 4, 5}, {2, 8, 15}),
            "a b c d -> a e (fd) {a=2, b=6!, c=4!, d=5, e=8!, f=3!} linear 0");
  EXPECT_EQ(reshape({2, 6, 4}, {16, 3}), "a b c -> (ad) e {a=2, b=6!, c=4!, d=8!, e=3!} linear 0");
  EXPECT_EQ(reshape({0, 4}, {2, 0}), "a b -> c d {a=0!, b=4!, c=2!, d=0!} linear 0");
}

/// Coordinates of an element along the factors of a value's dimensions.
std::map<int, int64_t> coordinates(const FactorRule &rule, const FactorRule::ValueFactors &dims,
                                   int64_t element) {
  std::map<int, int64_t> result;
  for (const FactorRule::DimFactors &factors : llvm::reverse(dims))
    for (int factor : llvm::reverse(factors)) {
      result[factor] = element % rule.factors[factor].size;
      element /= rule.factors[factor].size;
    }
  return result;
}

TEST(ReshapeFactorRule, TiedFactorsNameTheSameElements) {
  std::mt19937 random(0);
  auto pick = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  // Random groupings of the same primes, in orders that may differ.
  for (int round = 0; round < 2000; ++round) {
    SmallVector<int64_t> primes;
    for (int64_t count = pick(7); count > 0; --count)
      primes.push_back(std::array<int64_t, 3>{2, 3, 5}[pick(3)]);
    SmallVector<int64_t> shapes[2];
    for (SmallVector<int64_t> &shape : shapes) {
      if (pick(2) && primes.size() > 1)
        std::swap(primes[pick(primes.size())], primes[pick(primes.size())]);
      for (int64_t prime : primes) {
        if (shape.empty() || pick(2))
          shape.push_back(1);
        shape.back() *= prime;
        if (pick(8) == 0)
          shape.push_back(1);
      }
    }
    FactorRule rule = nn::getReshapeFactorRule(shapes[0], shapes[1]);
    int64_t elements = 1;
    for (int64_t prime : primes)
      elements *= prime;
    for (int side : {0, 1}) {
      const FactorRule::ValueFactors &dims = side ? rule.results.front() : rule.operands.front();
      ASSERT_EQ(dims.size(), shapes[side].size());
      for (auto [factors, size] : llvm::zip_equal(dims, shapes[side])) {
        int64_t product = 1;
        for (int factor : factors)
          product *= rule.factors[factor].size;
        ASSERT_EQ(product, size);
      }
    }
    for (int64_t element = 0; element < elements; ++element) {
      auto from = coordinates(rule, rule.operands.front(), element);
      auto to = coordinates(rule, rule.results.front(), element);
      for (auto [factor, coordinate] : from) {
        bool special = rule.factors[factor].kind == FactorKind::Special;
        ASSERT_EQ(to.count(factor), special ? 0u : 1u);
        if (!special) {
          ASSERT_EQ(to[factor], coordinate);
        }
      }
    }
  }
}

/// A factor states how the parts of each result combine.
TEST_F(FactorRules, ReductionsPerResult) {
  dist::RuleFactor factor{FactorKind::Contracted, 8, {}};
  EXPECT_EQ(factor.getReduction(1), dist::ReductionKind::Sum);
  factor.reductions = {dist::ReductionKind::Max};
  EXPECT_EQ(factor.getReduction(1), dist::ReductionKind::Max);
  factor.reductions = {dist::ReductionKind::Max, dist::ReductionKind::Sum};
  EXPECT_EQ(factor.getReduction(0), dist::ReductionKind::Max);
  EXPECT_EQ(factor.getReduction(1), dist::ReductionKind::Sum);
  EXPECT_FALSE(factor.isReducedBy(dist::ReductionKind::Merge));
  factor.reductions = {dist::ReductionKind::Merge};
  EXPECT_TRUE(factor.isReducedBy(dist::ReductionKind::Merge));
}

TEST_F(FactorRules, Reductions) {
  EXPECT_EQ(
      rule("2x7x8xf32", "nn.reduce sum %a0 dims [1] : (tensor<2x7x8xf32>) -> tensor<2x8xf32>"),
      "a b c -> a c {a=2, b=7+, c=8} linear 0");
  EXPECT_EQ(rule("2x7xf32",
                 "nn.reduce mean %a0 dims [1] {keep_dims} : (tensor<2x7xf32>) -> tensor<2x1xf32>"),
            "a b -> a . {a=2, b=7?} linear 0");
  EXPECT_EQ(rule("2x7xf32", "nn.reduce max %a0 dims [0] : (tensor<2x7xf32>) -> tensor<7xf32>"),
            "a b -> b {a=2^, b=7}");
  EXPECT_EQ(rule("2x7xf32", "nn.cumsum %a0 dim 0 : tensor<2x7xf32>"),
            "a b -> a b {a=2!, b=7} linear 0");
  EXPECT_EQ(rule("2x7xf32", "nn.softmax %a0 dim 1 : tensor<2x7xf32>"), "a b -> a b {a=2, b=7?}");
  EXPECT_EQ(rule("2x7x8xf32 2x8xi64",
                 "nn.cross_entropy %a0, %a1 dim 1 : (tensor<2x7x8xf32>, tensor<2x8xi64>) -> "
                 "tensor<2x8xf32>"),
            "a b c, a c -> a c {a=2, b=7?, c=8}");
}

TEST_F(FactorRules, Layers) {
  EXPECT_EQ(rule("2x4x7x16xf32 2x1x9x16xf32",
                 "nn.matmul %a0, %a1 {transpose_rhs} : (tensor<2x4x7x16xf32>, "
                 "tensor<2x1x9x16xf32>) -> tensor<2x4x7x9xf32>"),
            "a b c d, a . e d -> a b c e {a=2, b=4, c=7, d=16+, e=9} linear 0, 1");
  EXPECT_EQ(rule("16x7xf32 2x16x9xf32", "nn.matmul %a0, %a1 {transpose_lhs} : (tensor<16x7xf32>, "
                                        "tensor<2x16x9xf32>) -> tensor<2x7x9xf32>"),
            "a b, c a d -> c b d {a=16+, b=7, c=2, d=9} linear 0, 1");
  EXPECT_EQ(
      rule("2x7x8xf32 16x8xf32",
           "nn.linear %a0, %a1 : (tensor<2x7x8xf32>, tensor<16x8xf32>) -> tensor<2x7x16xf32>"),
      "a b c, d c -> a b d {a=2, b=7, c=8+, d=16} linear 0, 1");
  EXPECT_EQ(rule("7x8xf32 8x16xf32 16xf32",
                 "nn.linear %a0, %a1 bias %a2 {in_out} : (tensor<7x8xf32>, tensor<8x16xf32>, "
                 "tensor<16xf32>) -> tensor<7x16xf32>"),
            "a b, b c, c -> a c {a=7, b=8+, c=16}");
  EXPECT_EQ(rule("2x7xi64 32x8xf32 i64",
                 "nn.embedding %a0, %a1 offset %a2 : (tensor<2x7xi64>, tensor<32x8xf32>, "
                 "tensor<i64>) -> tensor<2x7x8xf32>"),
            "a b, c d,  -> a b d {a=2, b=7, c=32+, d=8} linear 1");
  EXPECT_EQ(rule("2x8xf32 8xf32", "nn.rms_norm %a0 weight %a1 eps 0.0 : (tensor<2x8xf32>, "
                                  "tensor<8xf32>) -> tensor<2x8xf32>"),
            "a b, b -> a b {a=2, b=8!}");
  EXPECT_EQ(rule("2x8xf32 8xf32", "nn.layer_norm %a0 bias %a1 eps 0.0 : (tensor<2x8xf32>, "
                                  "tensor<8xf32>) -> tensor<2x8xf32>"),
            "a b, b -> a b {a=2, b=8!}");
  EXPECT_EQ(rule("2x4x7x16xf32 1x7x16xf32 1x7x16xf32",
                 "nn.rotary %a0, %a1, %a2 : (tensor<2x4x7x16xf32>, tensor<1x7x16xf32>, "
                 "tensor<1x7x16xf32>) -> tensor<2x4x7x16xf32>"),
            "a b c d, . c d, . c d -> a b c d {a=2, b=4, c=7, d=16!} linear 0");
  EXPECT_EQ(rule("7x16xf32 7x8xf32 8xf32", "nn.rotary %a0, %a1, %a2 : (tensor<7x16xf32>, "
                                           "tensor<7x8xf32>, tensor<8xf32>) -> tensor<7x16xf32>"),
            "a b, a c, c -> a b {a=7, b=16!, c=8!} linear 0");
}

TEST_F(FactorRules, Attention) {
  std::string types = "3x4x7x16xf32 3x2x9x16xf32 3x2x9x8xf32";
  StringRef signature = "(tensor<3x4x7x16xf32>, tensor<3x2x9x16xf32>, tensor<3x2x9x8xf32>";
  EXPECT_EQ(rule(types, ("nn.attention %a0, %a1, %a2 scale 1.0 : " + signature +
                         ") -> tensor<3x4x7x8xf32>")
                            .str()),
            "a (bc) d e, a b f e, a b f g -> a (bc) d g "
            "{a=3, b=2, c=2, d=7, e=16!, f=9!~, g=8}");
  // Positions are needed: the queries stay whole.
  for (StringRef mask : {"causal", "window_left = 3 : i64", "window_right = 3 : i64"})
    EXPECT_EQ(rule(types, ("nn.attention %a0, %a1, %a2 scale 1.0 {" + mask + "} : " + signature +
                           ") -> tensor<3x4x7x8xf32>")
                              .str()),
              "a (bc) d e, a b f e, a b f g -> a (bc) d g "
              "{a=3, b=2, c=2, d=7!, e=16!, f=9!~, g=8}");
  EXPECT_EQ(rule(types + " 3x9xi1 4x1x9xf32",
                 ("nn.attention %a0, %a1, %a2 key_padding %a3 bias %a4 scale 1.0 : " + signature +
                  ", tensor<3x9xi1>, tensor<4x1x9xf32>) -> tensor<3x4x7x8xf32>")
                     .str()),
            "a (bc) d e, a b f e, a b f g, a f, (bc) . f -> a (bc) d g "
            "{a=3, b=2, c=2, d=7, e=16!, f=9!~, g=8}");
  // Positions that are operands are cut like what they belong to.
  EXPECT_EQ(
      rule(types + " 7xi64 9xi64",
           ("nn.attention %a0, %a1, %a2 positions %a3, %a4 scale 1.0 {causal} : " + signature +
            ", tensor<7xi64>, tensor<9xi64>) -> (tensor<3x4x7x8xf32>, tensor<3x4x7xf32>)")
               .str()),
      "a (bc) d e, a b f e, a b f g, d, f -> a (bc) d g, a (bc) d "
      "{a=3, b=2, c=2, d=7, e=16!, f=9!~, g=8}");
  // Positions and lengths of each row of the batch.
  EXPECT_EQ(rule(types + " 3x7xi64 3x9xi64 3xi64",
                 ("nn.attention %a0, %a1, %a2 positions %a3, %a4 kv_lengths %a5 scale 1.0 : " +
                  signature + ", tensor<3x7xi64>, tensor<3x9xi64>, tensor<3xi64>) -> "
                              "tensor<3x4x7x8xf32>")
                     .str()),
            "a (bc) d e, a b f e, a b f g, a d, a f, a -> a (bc) d g "
            "{a=3, b=2, c=2, d=7, e=16!, f=9!~, g=8}");
  // Multi-query: the key's one head is a factor of size 1.
  EXPECT_EQ(rule("1x4x7x16xf32 1x1x7x16xf32 1x1x7x16xf32",
                 "nn.attention %a0, %a1, %a2 scale 1.0 : (tensor<1x4x7x16xf32>, "
                 "tensor<1x1x7x16xf32>, tensor<1x1x7x16xf32>) -> tensor<1x4x7x16xf32>"),
            "a (bc) d e, a b f e, a b f g -> a (bc) d g "
            "{a=1, b=1, c=4, d=7, e=16!, f=7!~, g=16}");
}

TEST_F(FactorRules, AttentionGrad) {
  std::string types = "3x4x7x16xf32 3x2x9x16xf32 3x2x9x8xf32 3x4x7xf32 3x4x7xf32 3x4x7x8xf32";
  std::string own = "lse %a3 delta %a4 cotangent %a5 scale 1.0";
  std::string operands = "tensor<3x4x7x16xf32>, tensor<3x2x9x16xf32>, tensor<3x2x9x8xf32>";
  std::string ownTypes = "tensor<3x4x7xf32>, tensor<3x4x7xf32>, tensor<3x4x7x8xf32>";
  std::string results = ") -> (" + operands;
  // Gradients of queries are sums over keys, the others over queries and heads of a group.
  EXPECT_EQ(rule(types, "%r:3 = nn.attention_grad %a0, %a1, %a2 " + own + " : (" + operands + ", " +
                            ownTypes + results + ")"),
            "a (bc) d e, a b f e, a b f g, a (bc) d, a (bc) d, a (bc) d g -> "
            "a (bc) d e, a b f e, a b f g {a=3, b=2, c=2+, d=7+, e=16!, f=9+, g=8!}");
  for (StringRef mask : {"causal", "window_left = 3 : i64", "window_right = 3 : i64"})
    EXPECT_EQ(rule(types, "%r:3 = nn.attention_grad %a0, %a1, %a2 " + own + " {" + mask.str() +
                              "} : (" + operands + ", " + ownTypes + results + ")"),
              "a (bc) d e, a b f e, a b f g, a (bc) d, a (bc) d, a (bc) d g -> "
              "a (bc) d e, a b f e, a b f g {a=3, b=2, c=2+, d=7!, e=16!, f=9!, g=8!}");
  // Keys are counted by index.
  EXPECT_EQ(rule(types, "%r:3 = nn.attention_grad %a0, %a1, %a2 " + own +
                            " {kv_length = 5 : i64} : (" + operands + ", " + ownTypes + results +
                            ")"),
            "a (bc) d e, a b f e, a b f g, a (bc) d, a (bc) d, a (bc) d g -> "
            "a (bc) d e, a b f e, a b f g {a=3, b=2, c=2+, d=7+, e=16!, f=9!, g=8!}");
  EXPECT_EQ(rule(types + " 7xi64 9xi64",
                 "%r:3 = nn.attention_grad %a0, %a1, %a2 positions %a6, %a7 " + own +
                     " {causal} : (" + operands + ", tensor<7xi64>, tensor<9xi64>, " + ownTypes +
                     results + ")"),
            "a (bc) d e, a b f e, a b f g, d, f, a (bc) d, a (bc) d, a (bc) d g -> "
            "a (bc) d e, a b f e, a b f g {a=3, b=2, c=2+, d=7+, e=16!, f=9+, g=8!}");
  // The gradient of a bias is a sum where the bias broadcasts.
  EXPECT_EQ(rule(types + " 4x1x9xf32",
                 "%r:4 = nn.attention_grad %a0, %a1, %a2 bias %a6 " + own + " : (" + operands +
                     ", tensor<4x1x9xf32>, " + ownTypes + results + ", tensor<4x1x9xf32>)"),
            "a (bc) d e, a b f e, a b f g, (bc) . f, a (bc) d, a (bc) d, a (bc) d g -> "
            "a (bc) d e, a b f e, a b f g, (bc) . f {a=3+, b=2, c=2+, d=7+, e=16!, f=9+, g=8!}");
}

} // namespace
