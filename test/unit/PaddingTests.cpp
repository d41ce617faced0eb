//===- PaddingTests.cpp - bounds on the elements of results ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Register/Register.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "gtest/gtest.h"

#include <cmath>
#include <map>
#include <random>
#include <set>

using namespace mlir;
using namespace meshwright;
using dist::Padding;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A tail of all operands, without padding that the op contracts.
class Tail : public padding::Operands {
public:
  Tail(ArrayRef<Padding> contents, ArrayRef<Padding> conditional, unsigned result)
      : Operands(contents, conditional, result) {}
  uint32_t getEvent(unsigned operand, StringRef) const override {
    return padding::EventTable::getCurrent().get("hidden", operand, 1);
  }
  uint32_t getSharedEvent(unsigned, StringRef) const override { return 0; }
  Padding getOverall(unsigned operand) const override { return getContents()[operand]; }
  bool isPaddingOf(unsigned) const override { return true; }
  bool isAlongResult(unsigned dim) const override { return dim == 1; }
  int64_t getReadCount() const override { return 1; }
  void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<Padding(unsigned)>)>) const override {}
};

class PaddingTest : public testing::Test {
protected:
  PaddingTest() {
    DialectRegistry registry;
    registerAllDialects(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  /// The bound on result `number` of the first op of a function, for these contents of its
  /// operands.
  Padding bound(const std::string &arguments, const std::string &op, ArrayRef<Padding> conditional,
                unsigned number = 0) {
    module = parseSourceString<ModuleOp>("func.func @f(" + arguments + ") {\n" + op + "\nreturn\n}",
                                         &context);
    EXPECT_TRUE(module);
    auto function = cast<func::FuncOp>(module->getBody()->front());
    SmallVector<Padding> contents;
    for (const Padding &content : conditional)
      contents.push_back(padding::getUnconditional(content));
    return cast<dist::PaddingOpInterface>(function.getBody().front().front())
        .getResultPadding(Tail(contents, conditional, number));
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  padding::EventTable events;
  padding::EventTable::Scope scope{events};
};

const std::string kAttentionArguments =
    "%q: tensor<1x2x5x4xf32>, %k: tensor<1x2x7x4xf32>, %v: tensor<1x2x7x4xf32>";
const std::string kAttention =
    "%o, %l = nn.attention %q, %k, %v scale 0.5 : (tensor<1x2x5x4xf32>, tensor<1x2x7x4xf32>, "
    "tensor<1x2x7x4xf32>) -> (tensor<1x2x5x4xf32>, tensor<1x2x5xf32>)";

/// Values that are not finite spoil the mean of values alone.
TEST_F(PaddingTest, ResultsOfAttentionDiffer) {
  Padding contents[] = {Padding::Zero, Padding::Zero, Padding::Arbitrary};
  EXPECT_EQ(bound(kAttentionArguments, kAttention, contents, 0), Padding::Arbitrary);
  Padding lse = bound(kAttentionArguments, kAttention, contents, 1);
  EXPECT_EQ(lse.lower, -kInfinity);
  EXPECT_GE(lse.upper, std::log(7.0));
  EXPECT_LE(lse.upper, 3);
  EXPECT_FALSE(lse.mayBeNaN);
  EXPECT_EQ(lse.cause, 0u);
}

/// The mean follows the values, the log-sum-exp the scores.
TEST_F(PaddingTest, BoundsOfAttentionDiffer) {
  Padding contents[] = {{-10, 10}, {-10, 10}, Padding::Zero};
  EXPECT_TRUE(padding::isZero(bound(kAttentionArguments, kAttention, contents, 0)));
  // A score is half of a sum of four products.
  Padding lse = bound(kAttentionArguments, kAttention, contents, 1);
  EXPECT_GE(lse.upper, 200 + std::log(7.0));
  EXPECT_LE(lse.upper, 210);
  // Another number may stand for a large score.
  contents[0] = contents[1] = {-1e10, 1e10};
  EXPECT_TRUE(padding::isZero(bound(kAttentionArguments, kAttention, contents, 0)));
  lse = bound(kAttentionArguments, kAttention, contents, 1);
  EXPECT_EQ(lse.upper, double(std::numeric_limits<float>::max()));
}

TEST_F(PaddingTest, AttentionOverNaNHasNoBounds) {
  Padding contents[] = {Padding::Arbitrary, Padding::Zero, Padding::Zero};
  for (unsigned result : {0, 1})
    EXPECT_EQ(bound(kAttentionArguments, kAttention, contents, result), Padding::Arbitrary);
}

/// A log-sum-exp has the condition of the mean beside it.
TEST_F(PaddingTest, ConditionsOfAttention) {
  uint32_t hidden = events.get("hidden", 4, 1), other = events.get("hidden", 8, 1);
  Padding zero{0, 0, false, hidden}, values{0, 0, false, other};
  Padding contents[] = {zero, Padding::Zero, values};
  Padding mean = bound(kAttentionArguments, kAttention, contents, 0);
  Padding lse = bound(kAttentionArguments, kAttention, contents, 1);
  EXPECT_TRUE(padding::isZero(mean));
  EXPECT_EQ(mean.cause, padding::joinCauses(hidden, other));
  EXPECT_EQ(lse.cause, mean.cause);
  // Values do not matter to a log-sum-exp of scores that are always finite.
  Padding finite[] = {Padding::Zero, Padding::Zero, values};
  EXPECT_EQ(bound(kAttentionArguments, kAttention, finite, 0).cause, other);
  EXPECT_EQ(bound(kAttentionArguments, kAttention, finite, 1).cause, 0u);
}

TEST_F(PaddingTest, ResultsOfAMergeDiffer) {
  std::string arguments = "%a: tensor<1x2x5x4xf32>, %la: tensor<1x2x5xf32>, "
                          "%b: tensor<1x2x5x4xf32>, %lb: tensor<1x2x5xf32>";
  std::string merge = "%o, %l = nn.merge_attention %a, %la, %b, %lb : (tensor<1x2x5x4xf32>, "
                      "tensor<1x2x5xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5xf32>) -> "
                      "(tensor<1x2x5x4xf32>, tensor<1x2x5xf32>)";
  Padding part{-kInfinity, 5};
  Padding contents[] = {Padding::Zero, part, Padding::Arbitrary, part};
  EXPECT_EQ(bound(arguments, merge, contents, 0), Padding::Arbitrary);
  Padding lse = bound(arguments, merge, contents, 1);
  EXPECT_EQ(lse.lower, -kInfinity);
  EXPECT_GE(lse.upper, 5 + std::log(2.0));
  EXPECT_LE(lse.upper, 7);
  contents[2] = Padding::Zero;
  contents[3] = Padding::Arbitrary;
  EXPECT_EQ(bound(arguments, merge, contents, 0), Padding::Arbitrary);
  EXPECT_EQ(bound(arguments, merge, contents, 1), Padding::Arbitrary);
}

/// The square of an infinity is plus infinity, and relu keeps it. It does not keep minus infinity.
TEST_F(PaddingTest, RisingConditions) {
  std::string argument = "%x: tensor<4xf32>", pair = argument + ", %y: tensor<4xf32>";
  uint32_t hidden = events.get("hidden", 4, 1);
  Padding contents[] = {{0, 0, false, hidden}, {1, 2}};
  Padding squares[] = {contents[0], contents[0]};
  Padding square = bound(argument, "%r = nn.mul %x, %x : (tensor<4xf32>, tensor<4xf32>) -> "
                                   "tensor<4xf32>",
                         squares);
  EXPECT_TRUE(padding::isConditionRising(square));
  EXPECT_TRUE(padding::isSameEvent(square.cause, hidden));
  Padding size = bound(argument, "%r = nn.abs %x : tensor<4xf32>", contents[0]);
  EXPECT_EQ(size.cause, square.cause);
  EXPECT_EQ(bound(argument, "%r = nn.relu %x : tensor<4xf32>", size), size);
  EXPECT_TRUE(bound(argument, "%r = nn.relu %x : tensor<4xf32>", contents[0]).mayBeNaN);
  std::string maximum =
      "%r = nn.maximum %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>";
  Padding clamped = bound(pair, maximum, {size, contents[1]});
  EXPECT_EQ(clamped, (Padding{1, 2, false, size.cause}));
  EXPECT_TRUE(bound(pair, maximum, contents).mayBeNaN);
  // Minus it is minus infinity or NaN.
  Padding negative = bound(argument, "%r = nn.neg %x : tensor<4xf32>", clamped);
  EXPECT_FALSE(padding::isConditionRising(negative));
  EXPECT_TRUE(padding::isSameEvent(negative.cause, hidden));
  // A quotient is not finite where its dividend is not.
  std::string quotient =
      "%r = nn.div %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>";
  EXPECT_EQ(bound(pair, quotient, {contents[0], clamped}), contents[0]);
  clamped.cause = events.get("hidden", 8, 1);
  EXPECT_FALSE(padding::isZero(bound(pair, quotient, {contents[0], clamped})));
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

/// Any two different descriptions are different events, and equal ones are one. A hash of 30 bits
/// would make some of these equal.
TEST_F(PaddingTest, EventsAreStoredOnce) {
  std::set<uint32_t> seen;
  for (size_t value = 0; value < 100000; ++value)
    EXPECT_TRUE(seen.insert(events.get("hidden", value, 1)).second);
  EXPECT_EQ(events.get("hidden", 7, 1), events.get("hidden", 7, 1));
  EXPECT_NE(events.get("hidden", 7, 1), events.get("divisor", 7, 1));
  EXPECT_NE(events.get("hidden", 7, 1), events.get("hidden", 7, 2));
}

TEST_F(PaddingTest, EventsJoin) {
  uint32_t a = events.get("hidden", 1, 1), b = events.get("hidden", 2, 1),
           c = events.get("hidden", 3, 1);
  EXPECT_EQ(padding::joinCauses(a, a), a);
  EXPECT_EQ(padding::joinCauses(a, 0), a);
  EXPECT_EQ(padding::joinCauses(a, b), padding::joinCauses(b, a));
  EXPECT_EQ(padding::joinCauses(padding::joinCauses(a, b), c),
            padding::joinCauses(a, padding::joinCauses(c, b)));
  EXPECT_NE(padding::joinCauses(a, b), padding::joinCauses(a, c));
  EXPECT_EQ(padding::joinCauses(padding::joinCauses(a, b), a), padding::joinCauses(a, b));
}

/// An event follows the dimensions of a value: a transpose and its inverse give the same one.
TEST_F(PaddingTest, EventsMove) {
  uint32_t rows = events.move(events.get("hidden", 1, 2), {0, -1});
  EXPECT_TRUE(events.dependsOn(rows, 0));
  EXPECT_FALSE(events.dependsOn(rows, 1));
  uint32_t turned = events.move(rows, {1, 0});
  EXPECT_NE(turned, rows);
  EXPECT_EQ(events.move(turned, {1, 0}), rows);
  // All rows are another event than each row, and all of all rows are all rows.
  uint32_t all = events.move(rows, {-1, -1});
  EXPECT_NE(all, rows);
  EXPECT_EQ(events.move(all, {1, 0}), all);
  // The bit of a rising condition stays.
  EXPECT_EQ(events.move(rows & ~1u, {1, 0}), turned & ~1u);
  // Parts move one by one.
  uint32_t other = events.move(events.get("hidden", 2, 2), {0, -1});
  EXPECT_EQ(events.move(padding::joinCauses(rows, other), {1, 0}),
            padding::joinCauses(turned, events.move(other, {1, 0})));
}

/// Rows that move make events of their own, equal for equal moves.
TEST_F(PaddingTest, EventsShift) {
  auto shift = [&](uint32_t cause, int64_t start) {
    return events.derive(cause, "slice", {0, 2, start, 1}, 1, [](unsigned) { return true; });
  };
  uint32_t event = events.get("hidden", 1, 1);
  EXPECT_NE(shift(event, 1), event);
  EXPECT_NE(shift(event, 1), shift(event, 0));
  EXPECT_EQ(shift(event, 1), shift(event, 1));
  EXPECT_EQ(shift(event & ~1u, 1), shift(event, 1) & ~1u);
}

/// Joins are sets: equal ones have one number, in any order of joins and moves.
TEST_F(PaddingTest, JoinsOfEventsAreSets) {
  using Coordinates = std::vector<int>;
  using Set = std::set<std::pair<size_t, Coordinates>>;
  constexpr int kRank = 3;
  std::mt19937 random(7);
  std::map<Set, uint32_t> numbers;
  std::map<uint32_t, Set> sets;
  auto note = [&](Set set, uint32_t number) {
    EXPECT_EQ(numbers.try_emplace(set, number).first->second, number);
    EXPECT_EQ(sets.try_emplace(number, set).first->second, set);
    for (int d = 0; d < kRank; ++d)
      EXPECT_EQ(events.dependsOn(number, d), llvm::any_of(set, [&](const auto &one) { return one.second[d] >= 0; }));
  };
  std::vector<std::pair<Set, uint32_t>> known;
  for (size_t value = 0; value < 12; ++value) {
    known.push_back({{{value, {0, 1, 2}}}, events.get("joined", value, kRank)});
    note(known.back().first, known.back().second);
  }
  for (int step = 0; step < 2000; ++step) {
    auto [set, number] = known[random() % known.size()];
    if (random() % 4) {
      auto [other, second] = known[random() % known.size()];
      set.insert(other.begin(), other.end());
      number = events.join(number, second);
    } else {
      Coordinates dims{0, 1, 2};
      std::shuffle(dims.begin(), dims.end(), random);
      dims[random() % kRank] = random() % 2 ? -1 : dims[0];
      Set moved;
      for (auto &[value, coordinates] : set) {
        Coordinates after;
        for (int d : dims)
          after.push_back(d < 0 ? -1 : coordinates[d]);
        moved.insert({value, after});
      }
      set = std::move(moved);
      number = events.move(number, SmallVector<int>(dims.begin(), dims.end()));
    }
    note(set, number);
    known.push_back({set, number});
  }
  EXPECT_GT(numbers.size(), 500u);
}

} // namespace
