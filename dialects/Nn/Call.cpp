//===- Call.cpp - the steps of a call -------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Call.h"

#include "meshwright/dialects/Nn/Batch.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

static FunctionOpInterface lookupFunction(ModuleOp module, StringRef name) {
  for (auto function : module.getOps<FunctionOpInterface>())
    if (function.getName() == name && !function.isExternal())
      return function;
  return {};
}

SmallVector<CallStep> nn::getSteps(FunctionOpInterface entry) {
  SmallVector<CallStep> steps;
  auto call = entry->getAttrOfType<CallAttr>(kCallAttr);
  auto module = entry->getParentOfType<ModuleOp>();
  if (call && module)
    for (CallStepAttr step : call.getSteps().drop_back())
      if (FunctionOpInterface function =
              lookupFunction(module, step.getFunction().getValue()))
        steps.push_back({function, step.getChunks(), step.getTimes(),
                         step.getUntil() ? step.getUntil().getValue() : StringRef()});
  steps.push_back({entry});
  return steps;
}

SmallVector<FunctionOpInterface> nn::getRunFunctions(ArrayRef<FunctionOpInterface> entries) {
  SmallVector<FunctionOpInterface> functions(entries);
  for (FunctionOpInterface entry : entries)
    for (const CallStep &step : getSteps(entry))
      if (!llvm::is_contained(functions, step.function))
        functions.push_back(step.function);
  return functions;
}

//===----------------------------------------------------------------------===//
// Verification
//===----------------------------------------------------------------------===//

LogicalResult CallStepAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   FlatSymbolRefAttr function, int64_t chunks, int64_t times,
                                   StringAttr until) {
  int64_t runs;
  if (chunks < 1 || times < 1 || llvm::MulOverflow(chunks, times, runs))
    return emitError() << "step of '" << function.getValue()
                       << "': expected positive numbers with a product below 2^63, got " << chunks
                       << " chunks and " << times << " runs";
  if (until && (until.empty() || times == 1))
    return emitError() << "step of '" << function.getValue()
                       << "': expected several runs until a named output, got " << times
                       << " until " << until;
  return success();
}

LogicalResult CallAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<CallStepAttr> steps) {
  if (steps.empty())
    return emitError() << "call: expected at least one step, got none";
  return success();
}

LogicalResult nn::verifyCallAttr(Operation *op, Attribute value) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return op->emitOpError() << "expected " << kCallAttr << " on a function";
  auto call = dyn_cast<CallAttr>(value);
  if (!call)
    return op->emitOpError() << "expected " << kCallAttr
                             << " to be #nn.call<[<@function>, ...]>, got " << value;
  for (CallStepAttr step : call.getSteps().drop_back())
    if (step.getFunction().getValue() == function.getName())
      return op->emitOpError() << "runs itself in a step before the last one: expected another "
                                  "function";
  CallStepAttr last = call.getSteps().back();
  if (last != CallStepAttr::get(op->getContext(), FlatSymbolRefAttr::get(op), 1, 1, {}))
    return op->emitOpError() << "expected the last step <@" << function.getName()
                             << ">, the function itself, once, got " << last;
  return success();
}

/// The global type of an argument or a result.
static Type getGlobalType(Type type, Attribute global) {
  auto stated = dyn_cast_or_null<TypeAttr>(global);
  return stated ? stated.getValue() : type;
}

namespace {

/// An input or an output of a step's function.
struct StepPort {
  FunctionOpInterface function;
  Type type;
  /// True if each run is given all of it.
  bool isWhole = false;
};

/// Verifies that inputs, or outputs, of one name are alike in all steps.
class PortVerifier {
public:
  LogicalResult add(StringAttr name, StepPort port) {
    StepPort known = ports.try_emplace(name.getValue(), port).first->second;
    if (known.type != port.type)
      return port.function.emitError()
             << "'" << name.getValue() << "': expected one type, got " << port.type << " of '"
             << port.function.getName() << "' and " << known.type << " of '"
             << known.function.getName() << "'";
    if (known.isWhole != port.isWhole)
      return port.function.emitError()
             << "input '" << name.getValue() << "' of '" << port.function.getName() << "' "
             << (port.isWhole ? "has" : "lacks") << " nn.batch = false, which '"
             << known.function.getName() << "' " << (known.isWhole ? "has" : "lacks")
             << ": expected it in all steps of a call or in none";
    return success();
  }

private:
  llvm::StringMap<StepPort> ports;
};

} // namespace

/// Verifies a function of a step that is not the last one.
static LogicalResult verifyEarlierStep(FunctionOpInterface entry, CallStepAttr step) {
  auto refuse = [&] {
    return entry.emitError() << "'" << entry.getName() << "' runs '"
                             << step.getFunction().getValue() << "'";
  };
  auto module = entry->getParentOfType<ModuleOp>();
  FunctionOpInterface function = lookupFunction(module, step.getFunction().getValue());
  if (!function || function.isPublic())
    return refuse() << ": expected a private function with a body";
  if (function->hasAttr(kCallAttr))
    return refuse() << ", which has steps of its own: expected a function without " << kCallAttr;
  llvm::StringSet<> transient;
  for (auto state : module.getOps<StateOp>())
    if (state.getTransient())
      transient.insert(state.getSymName());
  SmallVector<StringRef> written;
  for (auto write : function.getFunctionBody().getOps<WriteOp>())
    written.push_back(write.getState());
  bool isNamed = !step.getUntil();
  for (unsigned i = 0; i < function.getNumResults(); ++i) {
    if (auto state = function.getResultAttrOfType<StringAttr>(i, NnDialect::kStateAttr))
      written.push_back(state.getValue());
    if (step.getUntil() && function.getResultAttr(i, NnDialect::kOutputAttr) == step.getUntil()) {
      isNamed = true;
      Type type = function.getResultTypes()[i];
      if (type != RankedTensorType::get({}, IntegerType::get(entry.getContext(), 1)))
        return refuse() << " until output " << step.getUntil() << ": expected tensor<i1>, got "
                        << type;
    }
  }
  if (!isNamed)
    return refuse() << " until " << step.getUntil() << ": expected the name of one of its outputs";
  for (StringRef state : written)
    if (!transient.contains(state))
      return refuse() << ", which writes the state '" << state
                      << "': expected writes of transient states alone";
  return success();
}

LogicalResult nn::verifyCall(FunctionOpInterface entry) {
  auto call = entry->getAttrOfType<CallAttr>(kCallAttr);
  if (!call)
    return success();
  for (CallStepAttr step : call.getSteps().drop_back())
    if (failed(verifyEarlierStep(entry, step)))
      return failure();
  PortVerifier inputs, outputs;
  for (const CallStep &step : getSteps(entry)) {
    FunctionOpInterface function = step.function;
    for (unsigned i = 0; i < function.getNumArguments(); ++i) {
      Type type = getGlobalType(function.getArgumentTypes()[i],
                                function.getArgAttr(i, dist::DistDialect::kGlobalAttr));
      auto name = function.getArgAttrOfType<StringAttr>(i, NnDialect::kInputAttr);
      if (name && failed(inputs.add(name, {function, type, getStatedBatch(function, i) == false})))
        return failure();
    }
    for (unsigned i = 0; i < function.getNumResults(); ++i) {
      Type type = getGlobalType(function.getResultTypes()[i],
                                function.getResultAttr(i, dist::DistDialect::kGlobalAttr));
      auto name = function.getResultAttrOfType<StringAttr>(i, NnDialect::kOutputAttr);
      if (name && failed(outputs.add(name, {function, type})))
        return failure();
    }
  }
  return success();
}
