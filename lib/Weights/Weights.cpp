//===- Weights.cpp - which values are weights -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Weights/Weights.h"

#include "meshwright/dialects/Dist/OpTraits.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

static FunctionOpInterface getFunction(BlockArgument argument) {
  Block *block = argument.getOwner();
  auto func = dyn_cast_or_null<FunctionOpInterface>(block->getParentOp());
  return func && block->isEntryBlock() ? func : nullptr;
}

SmallVector<StringAttr, 1> Weight::getNames() const {
  SmallVector<StringAttr, 1> names{name};
  if (auto aliases = getFunction(stored).getArgAttrOfType<ArrayAttr>(stored.getArgNumber(),
                                                                     NnDialect::kAliasesAttr))
    llvm::append_range(names, aliases.getAsRange<StringAttr>());
  return names;
}

/// `lookupState` finds the state of a name.
static std::optional<Weight>
findWeight(Value value, llvm::function_ref<nn::StateOp(FunctionOpInterface, StringAttr)> lookupState) {
  Weight weight;
  while (auto result = dyn_cast<OpResult>(value = rt::getSource(value))) {
    Operation *op = result.getOwner();
    if (!op->hasTrait<dist::KeepsWeight>())
      return std::nullopt;
    weight.links.push_back(op);
    // A part of what a rank has, and not the rank's part of the whole.
    weight.isWhole &= !op->hasTrait<dist::TakesPart>() || isa<dist::CollectiveOpInterface>(op);
    value = op->getOperand(op->getNumResults() > 1 ? result.getResultNumber() : 0);
  }
  weight.stored = cast<BlockArgument>(value);
  FunctionOpInterface func = getFunction(weight.stored);
  if (!func)
    return std::nullopt;
  unsigned index = weight.stored.getArgNumber();
  weight.name = func.getArgAttrOfType<StringAttr>(index, NnDialect::kParameterAttr);
  auto state = func.getArgAttrOfType<StringAttr>(index, NnDialect::kStateAttr);
  weight.isState = bool(state);
  if (!weight.name && state)
    if (nn::StateOp op = lookupState(func, state); op && op.isTrained())
      weight.name = state;
  if (!weight.name)
    return std::nullopt;
  weight.offsets =
      func.getArgAttrOfType<DenseI64ArrayAttr>(index, NnDialect::kParameterOffsetsAttr);
  weight.isWhole &= !weight.offsets;
  std::reverse(weight.links.begin(), weight.links.end());
  return weight;
}

std::optional<Weight> meshwright::getWeight(Value value) {
  return findWeight(value, [](FunctionOpInterface func, StringAttr name) {
    return nn::lookupState(func, name);
  });
}

std::optional<Weight> WeightFinder::find(Value value) const {
  return findWeight(value,
                    [&](FunctionOpInterface, StringAttr name) { return states.lookup(name); });
}
