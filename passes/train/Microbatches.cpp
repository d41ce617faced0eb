//===- Microbatches.cpp - entries that run on chunks of their inputs ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/Microbatches.h"

#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/train/RandomSteps.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

/// The number of the microbatch, from 0 on: a transient state.
constexpr StringLiteral kMicrobatchState = "microbatch";

Value Microbatches::readMicrobatch(Writer &w) {
  auto counter = RankedTensorType::get({}, w.getBuilder().getI64Type());
  return states.readZeros(w, kMicrobatchState, counter, "", /*isTransient=*/true);
}

/// Counts the microbatches before the last one if something depends on their number. The next step
/// begins at 0.
void Microbatches::countMicrobatches(func::FuncOp step, func::FuncOp repeated) {
  if (!states.has(kMicrobatchState))
    return;
  OpBuilder inside(repeated.front().getTerminator()), outside(step.front().getTerminator());
  Writer w(inside, repeated.getLoc()), end(outside, step.getLoc());
  states.write(w, kMicrobatchState, w.addNumber(readMicrobatch(w), 1));
  states.write(end, kMicrobatchState, end.number(0, end.getBuilder().getI64Type()));
}

/// Passes the states that the program writes from one microbatch to the next. The first microbatch
/// begins with the state. The others begin with a transient copy, which all but the last write. The
/// last one is a part of the step, which writes the state. So a step that fails leaves it as it
/// was.
void Microbatches::passStates(func::FuncOp step, func::FuncOp repeated) {
  llvm::MapVector<StringAttr, nn::WriteOp> writes;
  for (auto write : repeated.getOps<nn::WriteOp>())
    writes.insert({write.getStateAttr().getAttr(), write});
  for (auto [state, write] : writes) {
    std::string copy = ("microbatch." + state.getValue()).str();
    SmallVector<nn::ReadOp> reads;
    for (auto read : repeated.getOps<nn::ReadOp>())
      if (read.getState() == state.getValue())
        reads.push_back(read);
    OpBuilder builder = OpBuilder::atBlockBegin(&repeated.front());
    Writer w(builder, write.getLoc());
    RankedTensorType type = typeOf(write.getValue());
    Value passed = states.readZeros(w, copy, type, "", /*isTransient=*/true);
    Value isFirst = w.compare(nn::CompareKind::Eq, readMicrobatch(w), 0);
    Value value = w.select(isFirst, states.read(w, state, type), passed);
    for (nn::ReadOp read : reads) {
      read.getResult().replaceAllUsesWith(value);
      read.erase();
    }
    write.setState(copy);
    for (auto read : step.getOps<nn::ReadOp>())
      if (read.getState() == state.getValue())
        read.setState(copy);
  }
}

/// Adds a value to a sum over microbatches, which is a transient state.
void Microbatches::accumulate(Writer &w, const std::string &name, Value value, StringRef role) {
  Value sum = states.readZeros(w, name, typeOf(value), role, /*isTransient=*/true);
  states.write(w, name, w.add(sum, value));
}

/// The mean of a sum over microbatches and the value of the last one. Makes the sum zero for the
/// next call.
Value Microbatches::takeMean(Writer &w, const std::string &name, Value value) {
  RankedTensorType type = typeOf(value);
  Value sum = w.add(states.read(w, name, type), value);
  auto zeros = DenseElementsAttr::get(type, w.getBuilder().getZeroAttr(type.getElementType()));
  states.write(w, name, nn::ConstantOp::create(w.getBuilder(), w.getLoc(), zeros));
  return w.div(sum, w.number(double(count), type.getElementType()));
}

/// Says of each input that is not the batch that it is none: each microbatch has all of it.
static void stateWholeInputs(func::FuncOp entry) {
  OpBuilder builder(entry.getContext());
  SignatureAttrs signatures;
  for (auto [i, isBatch] : llvm::enumerate(nn::findBatchInputs(entry)))
    if (entry.getArgAttr(i, NnDialect::kInputAttr) && !isBatch)
      signatures.setArgument(entry, i, nn::kBatchAttr, builder.getBoolAttr(false));
}

/// Makes a private copy of an entry. A call runs it on all microbatches but the last, and then the
/// entry.
func::FuncOp Microbatches::splitOff(func::FuncOp entry, IRMapping &map) {
  OpBuilder builder(entry.getContext());
  builder.setInsertionPointAfter(entry);
  auto repeated = cast<func::FuncOp>(builder.clone(*entry, map));
  repeated.setPrivate();
  repeated.setName(("repeated_" + entry.getName()).str());
  MLIRContext *context = builder.getContext();
  auto getStep = [&](func::FuncOp function, int64_t chunks) {
    return nn::CallStepAttr::get(context, FlatSymbolRefAttr::get(function), chunks, /*times=*/1,
                                 /*until=*/{});
  };
  entry->setAttr(nn::kCallAttr,
                 nn::CallAttr::get(context, {getStep(repeated, count - 1), getStep(entry, 1)}));
  return repeated;
}

/// Makes outputs without dimensions means over microbatches, which the entry returns.
LogicalResult Microbatches::sumOutputs(func::FuncOp repeated, func::FuncOp entry) {
  Operation *inner = repeated.front().getTerminator(), *outer = entry.front().getTerminator();
  OpBuilder inside(inner), outside(outer);
  Writer w(inside, repeated.getLoc()), end(outside, entry.getLoc());
  for (int i = repeated.getNumResults() - 1; i >= 0; --i) {
    auto output = repeated.getResultAttrOfType<StringAttr>(i, NnDialect::kOutputAttr);
    Value value = inner->getOperand(i);
    RankedTensorType type = typeOf(value);
    if (type.getRank() > 0)
      continue;
    if (!isa<FloatType>(type.getElementType()))
      return repeated.emitError() << "output '" << output.getValue()
                                  << "': expected a float, which has a mean over microbatches, "
                                     "or rows, got "
                                  << type;
    std::string sum = ("sum." + output.getValue()).str();
    accumulate(w, sum, value, "");
    outer->setOperand(i, takeMean(end, sum, outer->getOperand(i)));
    inner->eraseOperand(i);
    if (failed(repeated.eraseResult(i)))
      return failure();
  }
  return success();
}

/// Lets each microbatch draw other random numbers. The step knows the number of the last one.
void Microbatches::drawPerMicrobatch(func::FuncOp step, func::FuncOp repeated) {
  auto getFirst = [&](Writer &w, Value number) { return w.scale(number, double(count)); };
  renumberSteps(repeated, states, [&](Writer &w, Value number) {
    Value first = getFirst(w, number);
    return w.add(first, readMicrobatch(w));
  });
  renumberSteps(step, states, [&](Writer &w, Value number) {
    return w.addNumber(getFirst(w, number), double(count - 1));
  });
}

LogicalResult Microbatches::splitEvaluation(func::FuncOp evaluate) {
  stateWholeInputs(evaluate);
  IRMapping map;
  return sumOutputs(splitOff(evaluate, map), evaluate);
}

LogicalResult Microbatches::splitStep(func::FuncOp step, MutableArrayRef<Trained> trained) {
  stateWholeInputs(step);
  IRMapping map;
  func::FuncOp repeated = splitOff(step, map);
  passStates(step, repeated);
  drawPerMicrobatch(step, repeated);
  countMicrobatches(step, repeated);
  OpBuilder inside(repeated.front().getTerminator()), outside(step.front().getTerminator());
  for (Trained &parameter : trained) {
    Writer w(inside, parameter.argument.getLoc()), end(outside, parameter.argument.getLoc());
    std::string sum = ("grad." + parameter.name).str();
    accumulate(w, sum, map.lookup(parameter.gradient), "gradient");
    parameter.gradient = takeMean(end, sum, parameter.gradient);
  }
  return sumOutputs(repeated, step);
}
