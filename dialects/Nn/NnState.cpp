//===- NnState.cpp - memory that outlives a call --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/IR/SymbolTable.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

using dist::FactorRule;
using dist::Padding;

SmallVector<FunctionOpInterface> nn::getEntries(ModuleOp module) {
  SmallVector<FunctionOpInterface> entries;
  for (auto function : module.getOps<FunctionOpInterface>())
    if (function.isPublic() && !function.isExternal())
      entries.push_back(function);
  auto isMain = [](FunctionOpInterface function) { return function.getName() == "main"; };
  if (auto main = llvm::find_if(entries, isMain); main != entries.end())
    std::rotate(entries.begin(), main, main + 1);
  return entries;
}

bool nn::isElement(TypedAttr number, Type elementType) {
  return number.getType() == elementType && isa<FloatAttr, IntegerAttr>(number);
}

std::string nn::getElementBytes(TypedAttr number) {
  auto real = dyn_cast<FloatAttr>(number);
  APInt bits = real ? real.getValue().bitcastToAPInt() : cast<IntegerAttr>(number).getValue();
  // All elements that share a byte.
  if (getElementsPerByte(number.getType()) > 1)
    bits = bits.concat(bits);
  std::string bytes(std::max<size_t>(bits.getBitWidth() / 8, 1), '\0');
  std::memcpy(bytes.data(), bits.getRawData(), bytes.size());
  return bytes;
}

llvm::DenseMap<StringAttr, StateOp> nn::getStates(Operation *from) {
  llvm::DenseMap<StringAttr, StateOp> states;
  auto module = dyn_cast<ModuleOp>(from);
  if (!module)
    module = from->getParentOfType<ModuleOp>();
  if (module)
    for (StateOp state : module.getOps<StateOp>())
      states[state.getSymNameAttr()] = state;
  return states;
}

StateOp nn::lookupState(Operation *from, StringAttr name) {
  auto module = from->getParentOfType<ModuleOp>();
  if (!module)
    return {};
  // Compares names of states only. A general look-up searches the attributes of every op.
  for (StateOp state : module.getOps<StateOp>())
    if (state.getSymNameAttr() == name)
      return state;
  return {};
}

//===----------------------------------------------------------------------===//
// Invariants
//===----------------------------------------------------------------------===//

/// Checks that
///  - the state has a name;
///  - it starts as a parameter or with a fill, not both;
///  - the fill is one element of the state;
///  - a transient state has a fill;
///  - its role is one of training.
LogicalResult StateOp::verify() {
  if (getSymName().empty())
    return emitOpError() << "has an empty name";
  if (getParameterAttr() && getFillAttr())
    return emitOpError() << "@" << getSymName() << ": expected one initial value, got parameter "
                         << getParameterAttr() << " and fill " << getFillAttr();
  if (getParameterAttr() && getParameterAttr().empty())
    return emitOpError() << "@" << getSymName() << " starts as a parameter without a name";
  Type element = getMemoryType().getElementType();
  TypedAttr fill = getFillAttr();
  if (fill && !isElement(fill, element))
    return emitOpError() << "@" << getSymName() << ": expected a fill that is a number of type "
                         << element << ", got " << fill;
  if (getTransient() && !fill)
    return emitOpError() << "@" << getSymName()
                         << " is transient and has no fill: expected the value that it begins with";
  if (auto role = getRole(); role && *role != "parameter" && *role != "master" &&
                             *role != "optimizer" && *role != "gradient" && *role != "cache")
    return emitOpError() << "@" << getSymName()
                         << ": expected the role \"parameter\", \"master\", \"optimizer\", "
                            "\"gradient\" or \"cache\", got \""
                         << *role << "\"";
  return success();
}

RankedTensorType StateOp::getMemoryType() { return cast<RankedTensorType>(getType()); }

StringRef StateOp::getInitialParameter() {
  if (getFillAttr())
    return {};
  return getParameter().value_or(getSymName());
}

/// Checks a read or a write:
///  - the module has the state;
///  - the value has the state's type;
///  - the function is a global program.
static LogicalResult verifyUse(Operation *op, FlatSymbolRefAttr name, Type type,
                               SymbolTableCollection &tables) {
  auto state = tables.lookupNearestSymbolFrom<StateOp>(op, name);
  if (!state)
    return op->emitOpError() << "names " << name
                             << ", which is no state: expected an nn.state of that name in the module";
  if (state.getMemoryType() != type) {
    InFlightDiagnostic error = op->emitOpError()
                               << "expected a value of type " << state.getMemoryType()
                               << ", the type of " << name << ", got " << type;
    error.attachNote(state.getLoc()) << "the state";
    return error;
  }
  if (dist::getSpmdMeshSymbol(op))
    return op->emitOpError() << "is in an SPMD function: expected an argument or a result with "
                             << NnDialect::kStateAttr;
  return success();
}

LogicalResult ReadOp::verifySymbolUses(SymbolTableCollection &tables) {
  return verifyUse(*this, getStateAttr(), getType(), tables);
}

/// Checks that a block writes no state twice. Does so once, for the first of its writes: programs
/// that train have a thousand.
static LogicalResult verifyWrittenOnce(WriteOp write, FunctionOpInterface function) {
  for (Operation *before = write->getPrevNode(); before; before = before->getPrevNode())
    if (isa<WriteOp>(before))
      return success();
  llvm::DenseMap<StringAttr, WriteOp> known;
  for (auto other : write->getBlock()->getOps<WriteOp>()) {
    auto [first, isNew] = known.try_emplace(other.getStateAttr().getAttr(), other);
    if (isNew)
      continue;
    InFlightDiagnostic error = other.emitOpError()
                               << "is the second one of " << other.getStateAttr() << " in '"
                               << function.getName() << "': expected one";
    error.attachNote(first->second.getLoc()) << "the first";
    return error;
  }
  return success();
}

/// In addition checks that
///  - the write is in the entry block of a function;
///  - it is the function's only write of the state.
LogicalResult WriteOp::verifySymbolUses(SymbolTableCollection &tables) {
  if (failed(verifyUse(*this, getStateAttr(), getValue().getType(), tables)))
    return failure();
  auto function = dyn_cast<FunctionOpInterface>((*this)->getParentOp());
  if (!function || (*this)->getBlock() != &function.front())
    return emitOpError() << "of " << getStateAttr()
                         << " may not happen in every call: expected it in the entry block of a "
                            "function";
  return verifyWrittenOnce(*this, function);
}

/// Checks the arguments or results of a function that stand for states:
///  - the module has the state;
///  - the value has the state's type, globally;
///  - the function has no other argument or result for it.
/// Does so once, for the first of them: programs that train have a thousand states.
LogicalResult nn::verifyBoundState(FunctionOpInterface function, unsigned index, bool isResult,
                                   StringRef) {
  ArrayAttr all = isResult ? function.getResAttrsAttr() : function.getArgAttrsAttr();
  auto key = StringAttr::get(function.getContext(), NnDialect::kStateAttr);
  auto global = StringAttr::get(function.getContext(), dist::DistDialect::kGlobalAttr);
  for (unsigned i = 0; i < index; ++i)
    if (cast<DictionaryAttr>(all[i]).get(key))
      return success();
  llvm::DenseMap<StringAttr, StateOp> states = getStates(function);
  ArrayRef<Type> types = isResult ? function.getResultTypes() : function.getArgumentTypes();
  StringRef noun = isResult ? "result" : "argument";
  llvm::DenseMap<StringAttr, unsigned> known;
  for (unsigned i = index; i < types.size(); ++i) {
    auto attrs = cast<DictionaryAttr>(all[i]);
    auto name = dyn_cast_or_null<StringAttr>(attrs.get(key));
    if (!name)
      continue;
    StateOp state = states.lookup(name);
    if (!state)
      return function.emitOpError()
             << "has " << noun << " " << i << " for the state '" << name.getValue()
             << "': expected an nn.state of that name in the module";
    auto whole = dyn_cast_or_null<TypeAttr>(attrs.get(global));
    if (Type type = whole ? whole.getValue() : types[i]; type != state.getMemoryType()) {
      InFlightDiagnostic error = function.emitOpError()
                                 << "expected " << noun << " " << i << " of type "
                                 << state.getMemoryType() << " for the state '" << name.getValue()
                                 << "', got " << type;
      error.attachNote(state.getLoc()) << "the state";
      return error;
    }
    auto [first, isNew] = known.try_emplace(name, i);
    if (!isNew)
      return function.emitOpError()
             << "expected one " << noun << " for the state '" << name.getValue() << "', got " << noun
             << " " << first->second << " and " << noun << " " << i;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Facts
//===----------------------------------------------------------------------===//

FactorRule StateOp::getFactorRule() { return {}; }
Padding StateOp::getResultPadding(const padding::Operands &) { return Padding::Arbitrary; }
double StateOp::getFlops() { return 0; }

FactorRule ReadOp::getFactorRule() {
  FactorRule rule;
  rule.results.push_back(rule.addFactors(shapeOf(getResult())));
  return rule;
}

Padding ReadOp::getResultPadding(const padding::Operands &) { return Padding::Arbitrary; }

FactorRule WriteOp::getFactorRule() {
  FactorRule rule;
  rule.operands.push_back(rule.addFactors(shapeOf(getValue())));
  return rule;
}

Padding WriteOp::getResultPadding(const padding::Operands &) { return Padding::Arbitrary; }
