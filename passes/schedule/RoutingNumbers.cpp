//===- RoutingNumbers.cpp - the numbers of routings in reports ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/RoutingNumbers.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "llvm/ADT/STLExtras.h"

#include <iterator>

using namespace mlir;
using namespace meshwright;

RoutingNumbers::RoutingNumbers(func::FuncOp func) : func(func) {
  for (auto [root, dispatch] : nn::getRoutings(func.front()))
    numbers.try_emplace(root, numbers.size());
}

void RoutingNumbers::numberLimits() {
  for (auto limit : func.front().getOps<nn::LimitOp>())
    if (auto number = numbers.find(nn::getChoicesRoot(limit.getResult())); number != numbers.end())
      limit.setLayer(number->second);
}

/// Finds where the slices start that lead from the root of choices to a value. Returns false if nothing does.
static bool findStarts(Value value, Value root, SmallVectorImpl<int64_t> &starts) {
  if (value == root)
    return true;
  Operation *op = value.getDefiningOp();
  auto leads = [&](Value operand) {
    return getElementTypeOrSelf(operand.getType()).isInteger() && findStarts(operand, root, starts);
  };
  if (!op || llvm::none_of(op->getOperands(), leads))
    return false;
  // Padding is left out from the start on.
  if (auto slice = dyn_cast<nn::SliceOp>(op))
    llvm::copy_if(slice.getStarts(), std::back_inserter(starts), [](int64_t start) { return start != 0; });
  return true;
}

int64_t RoutingNumbers::get(Value choices) {
  Value root = nn::getChoicesRoot(choices);
  int64_t number = numbers.lookup(root);
  if (!func->hasAttr(rt::RtDialect::kExpertChunksAttr))
    return number;
  SmallVector<int64_t> starts;
  findStarts(choices, root, starts);
  SmallVector<SmallVector<int64_t>> &known = chunks[root];
  int64_t chunk = llvm::find(known, starts) - known.begin();
  if (chunk == int64_t(known.size()))
    known.push_back(starts);
  return number + chunk * int64_t(numbers.size());
}
