//===- ValueNumbers.cpp - which values are equal --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/ValueNumbers.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace meshwright;

Value meshwright::getSource(Value value) {
  for (;;) {
    value = rt::getSource(value);
    auto after = value.getDefiningOp<dist::AfterOp>();
    if (!after)
      return value;
    value = after.getInput();
  }
}

/// Returns true if the results of the op depend on its operands, its properties and the rank alone.
static bool isComputed(Operation *op) {
  return op && op->getNumRegions() == 0 &&
         (isa<dist::PaddingOpInterface>(op) || (op->hasTrait<dist::Generates>() && isMemoryEffectFree(op)));
}

bool ValueNumbers::isKnown(Value value) const {
  value = getSource(value);
  Operation *op = value.getDefiningOp();
  return !isComputed(op) || ops.contains(op);
}

/// Numbers an op whose operands are known.
void ValueNumbers::add(Operation *op) {
  auto getOperands = [&](Operation *of) {
    SmallVector<size_t> numbers;
    for (Value operand : of->getOperands())
      numbers.push_back(get(operand));
    if (of->hasTrait<OpTrait::IsCommutative>())
      llvm::sort(numbers);
    return numbers;
  };
  auto getTypes = [&](Operation *of) {
    SmallVector<Type> types;
    for (Value result : of->getResults())
      types.push_back(getType(result));
    return types;
  };
  SmallVector<size_t> operands = getOperands(op);
  SmallVector<Type> types = getTypes(op);
  size_t hash = llvm::hash_combine(op->getName(), op->hashProperties(), llvm::hash_combine_range(types),
                                   llvm::hash_combine_range(operands));
  SmallVector<Operation *, 1> &bucket = different[hash];
  for (Operation *other : bucket) {
    if (op->getName() != other->getName() || operands != getOperands(other) || types != getTypes(other) ||
        !op->getName().compareOpProperties(op->getPropertiesStorage(), other->getPropertiesStorage()))
      continue;
    size_t number = ops.lookup(other);
    ops.try_emplace(op, number);
    return;
  }
  bucket.push_back(op);
  ops.try_emplace(op, count++);
}

size_t ValueNumbers::get(Operation *op) {
  if (!isComputed(op))
    return ops.try_emplace(op, ops.contains(op) ? 0 : count++).first->second;
  // Chains of ops are long, so this does not recurse along them.
  SmallVector<Operation *> open = {op};
  while (!open.empty()) {
    Operation *next = open.back();
    size_t size = open.size();
    for (Value operand : next->getOperands())
      if (!isKnown(operand))
        open.push_back(getSource(operand).getDefiningOp());
    if (open.size() != size)
      continue;
    open.pop_back();
    if (!ops.contains(next))
      add(next);
  }
  return ops.lookup(op);
}

size_t ValueNumbers::get(Value value) {
  value = getSource(value);
  if (auto it = values.find(value); it != values.end())
    return it->second;
  size_t number;
  if (Operation *op = value.getDefiningOp(); isComputed(op)) {
    std::pair<size_t, unsigned> key(get(op), cast<OpResult>(value).getResultNumber());
    auto it = results.find(key);
    number = it == results.end() ? (results[key] = count++) : it->second;
  } else {
    number = count++;
  }
  values.try_emplace(value, number);
  return number;
}
