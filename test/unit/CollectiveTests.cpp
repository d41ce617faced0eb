//===- CollectiveTests.cpp - facts about all collectives ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"

#include "mlir/IR/MLIRContext.h"

#include "gtest/gtest.h"

#include <set>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Calls `visit` with the interface of each registered collective.
template <typename Visit> void forEachCollective(Visit visit) {
  MLIRContext context;
  context.loadDialect<DistDialect>();
  for (RegisteredOperationName name : context.getRegisteredOperations())
    if (const auto *collective = name.getInterface<CollectiveOpInterface>())
      visit(name, *collective);
}

TEST(Collectives, EachKindIsOneOp) {
  std::set<CollectiveKind> kinds;
  forEachCollective([&](RegisteredOperationName name, const auto &collective) {
    EXPECT_TRUE(kinds.insert(collective.getKind()).second) << name.getStringRef().str();
    EXPECT_EQ(name.stripDialect(), stringifyCollectiveKind(collective.getKind()));
  });
  EXPECT_EQ(kinds.size(), size_t(getMaxEnumValForCollectiveKind()) + 1);
}

TEST(Collectives, OnlyThoseThatCommunicateCostBytesAndSteps) {
  forEachCollective([](RegisteredOperationName name, const auto &collective) {
    std::string op = name.getStringRef().str();
    EXPECT_EQ(getSteps(collective.getKind(), 4) > 0, collective.communicates()) << op;
    EXPECT_EQ(getBytesSent(collective.getKind(), 4, 1024) > 0, collective.communicates()) << op;
    EXPECT_EQ(getSteps(collective.getKind(), 1), 0) << op;
  });
}

TEST(Collectives, ThoseThatCommunicateHaveARole) {
  forEachCollective([](RegisteredOperationName name, const auto &collective) {
    EXPECT_EQ(llvm::is_contained(name.getAttributeNames(), "role"), collective.communicates())
        << name.getStringRef().str();
  });
}

TEST(Collectives, PerOperandAttributesAreAttributesOfTheOp) {
  forEachCollective([](RegisteredOperationName name, const auto &collective) {
    for (StringRef attribute : collective.getPerOperandAttributes())
      EXPECT_TRUE(llvm::is_contained(name.getAttributeNames(), attribute)) << attribute.str();
  });
}

} // namespace
