//===- SortByOperands.cpp - definitions before uses -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SortByOperands.h"

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/OpDefinition.h"
#include "llvm/ADT/STLExtras.h"

#include <numeric>
#include <vector>

using namespace mlir;

void meshwright::sortByOperands(Block &block) {
  bool hasTerminator = !block.empty() && block.back().hasTrait<OpTrait::IsTerminator>();
  Block::iterator end = hasTerminator ? std::prev(block.end()) : block.end();
  std::vector<Operation *> ops;
  for (Operation &op : llvm::make_range(block.begin(), end))
    ops.push_back(&op);
  ProgramMap<Operation *, unsigned> numbers;
  numbers.reserve(ops.size());
  for (auto [i, op] : llvm::enumerate(ops))
    numbers[op] = i;
  // For each op the users of its results, once for each use, and the number of uses that it waits for.
  std::vector<SmallVector<unsigned, 4>> users(ops.size());
  std::vector<unsigned> missing(ops.size()), sweep(ops.size());
  bool isSorted = true;
  for (auto [i, op] : llvm::enumerate(ops))
    op->walk([&, i = unsigned(i)](Operation *inner) {
      for (Value operand : inner->getOperands()) {
        Operation *def = operand.getDefiningOp();
        def = def ? block.findAncestorOpInBlock(*def) : nullptr;
        auto number = def ? numbers.find(def) : numbers.end();
        if (number == numbers.end() || number->second == i)
          continue;
        users[number->second].push_back(i);
        ++missing[i];
        isSorted &= number->second < i;
      }
    });
  if (isSorted)
    return;
  std::vector<unsigned> open;
  for (unsigned i = 0; i < ops.size(); ++i)
    if (missing[i] == 0)
      open.push_back(i);
  while (!open.empty()) {
    unsigned i = open.back();
    open.pop_back();
    for (unsigned user : users[i]) {
      // A sweep passes an op that is before one of its operands.
      sweep[user] = std::max(sweep[user], sweep[i] + (i > user));
      if (--missing[user] == 0)
        open.push_back(user);
    }
  }
  std::vector<unsigned> order(ops.size());
  std::iota(order.begin(), order.end(), 0);
  llvm::stable_sort(order, [&](unsigned a, unsigned b) { return sweep[a] < sweep[b]; });
  for (unsigned i : order)
    ops[i]->moveBefore(&block, end);
}
