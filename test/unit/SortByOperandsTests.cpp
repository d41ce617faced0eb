//===- SortByOperandsTests.cpp - definitions before uses ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SortByOperands.h"

#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <random>

using namespace mlir;

namespace {

/// A module of ops that read results of each other, in any order. Some ops read within a region.
struct Program {
  Program(MLIRContext &context, unsigned count, unsigned reach, std::mt19937 &random)
      : module(ModuleOp::create(UnknownLoc::get(&context))) {
    OpBuilder builder(&context);
    auto make = [&](ArrayRef<Value> operands, unsigned regions) {
      OperationState state(builder.getUnknownLoc(), "test.op");
      state.addOperands(operands);
      state.addTypes(builder.getI32Type());
      for (unsigned i = 0; i < regions; ++i)
        state.addRegion();
      return builder.create(state);
    };
    for (unsigned i = 0; i < count; ++i) {
      SmallVector<Value> operands;
      for (unsigned k = random() % 3; k > 0 && i > 0; --k)
        operands.push_back(ops[i - 1 - random() % std::min(i, reach)]->getResult(0));
      builder.setInsertionPointToEnd(module->getBody());
      bool isNested = random() % 8 == 0;
      ops.push_back(make(isNested ? ArrayRef<Value>() : operands, isNested));
      if (isNested) {
        builder.setInsertionPointToStart(&ops.back()->getRegion(0).emplaceBlock());
        make(operands, 0);
      }
    }
  }

  void arrange(ArrayRef<Operation *> order) {
    for (Operation *op : order)
      op->moveBefore(module->getBody(), module->getBody()->end());
  }
  std::vector<Operation *> getOrder() {
    std::vector<Operation *> order;
    for (Operation &op : *module->getBody())
      order.push_back(&op);
    return order;
  }

  OwningOpRef<ModuleOp> module;
  std::vector<Operation *> ops;
};

TEST(SortByOperands, GivesTheOrderOfSweeps) {
  MLIRContext context;
  context.allowUnregisteredDialects();
  std::mt19937 random(7);
  for (unsigned count : {0, 1, 2, 10, 60, 200})
    for (unsigned reach : {1, 3, 50}) {
      Program program(context, count, reach, random);
      std::vector<Operation *> start = program.ops;
      // All ops in any order, or some that stand behind their users.
      if (reach == 3)
        for (unsigned i = 0; i < count / 10; ++i)
          std::swap(start[random() % count], start[random() % count]);
      else
        std::shuffle(start.begin(), start.end(), random);
      program.arrange(start);
      ASSERT_TRUE(sortTopologically(program.module->getBody()));
      std::vector<Operation *> expected = program.getOrder();
      program.arrange(start);
      meshwright::sortByOperands(*program.module->getBody());
      EXPECT_EQ(program.getOrder(), expected) << count << " ops, reach " << reach;
    }
}

} // namespace
