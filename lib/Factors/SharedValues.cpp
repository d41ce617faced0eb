//===- SharedValues.cpp - values that all functions share -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/SharedValues.h"

#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using nn::NnDialect;

std::string SharedValue::describe() const {
  return (state ? "state '" : "parameter '") + name.str() + "'";
}

static func::FuncOp getFunction(BlockArgument argument) {
  return cast<func::FuncOp>(argument.getOwner()->getParentOp());
}

static func::FuncOp getFunction(const OpOperand &written) {
  return written.getOwner()->getParentOfType<func::FuncOp>();
}

/// Checks that all arguments of a value have one type. The verifier of `nn.state` arguments
/// compares those of states.
static LogicalResult checkTypes(const SharedValue &value) {
  if (value.arguments.empty())
    return success();
  BlockArgument first = value.arguments.front();
  for (BlockArgument other : value.arguments) {
    if (other.getType() == first.getType())
      continue;
    InFlightDiagnostic error = emitError(other.getLoc())
                               << value.describe() << " in '" << getFunction(other).getName()
                               << "': expected " << first.getType() << ", as in '"
                               << getFunction(first).getName() << "', got " << other.getType();
    error.attachNote(first.getLoc()) << "the other place";
    return error;
  }
  return success();
}

FailureOr<std::vector<SharedValue>>
meshwright::getSharedValues(ArrayRef<func::FuncOp> functions) {
  // A single function without state shares nothing, as most programs. An SPMD program has no global
  // functions.
  if (functions.empty() ||
      (functions.size() == 1 &&
       functions.front()->getParentOfType<ModuleOp>().getOps<nn::StateOp>().empty()))
    return std::vector<SharedValue>();
  llvm::DenseMap<StringAttr, nn::StateOp> declared = nn::getStates(functions.front());
  // Keyed by the name and, for a part of a stored tensor, by its place there.
  llvm::MapVector<std::pair<Attribute, Attribute>, SharedValue> states, parameters;
  for (func::FuncOp func : functions) {
    for (BlockArgument argument : func.getArguments()) {
      DictionaryAttr attrs = func.getArgAttrDict(argument.getArgNumber());
      if (!attrs)
        continue;
      if (auto name = attrs.getAs<StringAttr>(NnDialect::kStateAttr)) {
        SharedValue &state = states[{name, {}}];
        state.name = name;
        state.arguments.push_back(argument);
        continue;
      }
      std::optional<Weight> weight = getWeight(argument);
      if (functions.size() == 1 || !weight)
        continue;
      SharedValue &parameter = parameters[{weight->name, weight->offsets}];
      parameter.name = weight->name;
      if (parameter.arguments.empty() || getFunction(parameter.arguments.back()) != func)
        parameter.arguments.push_back(argument);
    }
    Operation *terminator = func.front().getTerminator();
    for (OpOperand &operand : terminator->getOpOperands())
      if (auto name =
              func.getResultAttrOfType<StringAttr>(operand.getOperandNumber(), NnDialect::kStateAttr)) {
        SharedValue &state = states[{name, {}}];
        state.name = name;
        state.written.push_back(&operand);
      }
  }
  std::vector<SharedValue> values;
  for (auto &[key, state] : states) {
    state.state = declared.lookup(state.name);
    values.push_back(std::move(state));
  }
  for (auto &[key, parameter] : parameters)
    if (parameter.arguments.size() > 1)
      values.push_back(std::move(parameter));
  for (const SharedValue &value : values)
    if (failed(checkTypes(value)))
      return failure();
  return values;
}

SmallVector<StatedSharding> meshwright::getStatedShardings(const SharedValue &value) {
  SmallVector<StatedSharding> stated;
  auto add = [&](Attribute attr, Location place) {
    if (attr)
      stated.push_back({attr, place});
  };
  if (nn::StateOp state = value.state)
    add(state->getAttr(DistDialect::kShardingAttr), state.getLoc());
  for (BlockArgument argument : value.arguments)
    add(getFunction(argument).getArgAttr(argument.getArgNumber(), DistDialect::kShardingAttr),
        argument.getLoc());
  for (OpOperand *operand : value.written)
    add(getFunction(*operand).getResultAttr(operand->getOperandNumber(),
                                            DistDialect::kShardingAttr),
        operand->getOwner()->getLoc());
  return stated;
}

FailureOr<std::optional<StatedSharding>>
meshwright::getStatedSharding(const SharedValue &value) {
  SmallVector<StatedSharding> stated = getStatedShardings(value);
  if (stated.empty())
    return std::optional<StatedSharding>();
  const StatedSharding &first = stated.front();
  for (const StatedSharding &other : stated) {
    if (other.attr == first.attr)
      continue;
    InFlightDiagnostic error = emitError(other.place)
                               << value.describe() << ": expected the sharding " << first.attr
                               << ", as in another place, got " << other.attr << " here";
    error.attachNote(first.place) << "the other place";
    return error;
  }
  return std::optional<StatedSharding>(first);
}

void meshwright::setSharding(const SharedValue &value, Attribute attr, SignatureAttrs &signatures) {
  if (nn::StateOp state = value.state)
    state->setAttr(DistDialect::kShardingAttr, attr);
  for (BlockArgument argument : value.arguments)
    signatures.setArgument(getFunction(argument), argument.getArgNumber(),
                           DistDialect::kShardingAttr, attr);
  for (OpOperand *operand : value.written)
    signatures.setResult(getFunction(*operand), operand->getOperandNumber(),
                         DistDialect::kShardingAttr, attr);
}
