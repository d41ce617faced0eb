//===- BindState.cpp - state as arguments and results ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/bind/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

namespace meshwright {
#define GEN_PASS_DEF_BINDSTATEPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

/// The attributes of an argument or a result that stands for a state.
static DictionaryAttr getBoundAttrs(nn::StateOp state) {
  Builder builder(state.getContext());
  NamedAttrList attrs;
  attrs.set(NnDialect::kStateAttr, state.getSymNameAttr());
  if (Attribute sharding = state->getAttr(dist::DistDialect::kShardingAttr))
    attrs.set(dist::DistDialect::kShardingAttr, sharding);
  return attrs.getDictionary(state.getContext());
}

/// The argument of a bound function that stands for the state, or null.
static Value findArgument(func::FuncOp func, nn::StateOp state) {
  for (BlockArgument argument : func.getArguments())
    if (func.getArgAttr(argument.getArgNumber(), NnDialect::kStateAttr) == state.getSymNameAttr())
      return argument;
  return {};
}

namespace {

/// The reads and the write of one state in a function.
struct Uses {
  SmallVector<nn::ReadOp> reads;
  nn::WriteOp write;
};

} // namespace

/// Replaces a read by the state's argument.
static void replaceRead(nn::ReadOp read, Value argument) {
  auto sharding = read->getAttrOfType<dist::ShardingAttr>(dist::DistDialect::kShardingAttr);
  if (sharding) {
    OpBuilder builder(read);
    argument = dist::ConstrainOp::create(builder, read.getLoc(), argument.getType(), argument,
                                         sharding);
  }
  read.getResult().replaceAllUsesWith(argument);
  read.erase();
}

static LogicalResult bind(func::FuncOp func, ArrayRef<nn::StateOp> states) {
  llvm::DenseMap<StringAttr, Uses> uses;
  func.walk([&](Operation *op) {
    if (auto read = dyn_cast<nn::ReadOp>(op))
      uses[read.getStateAttr().getAttr()].reads.push_back(read);
    else if (auto write = dyn_cast<nn::WriteOp>(op))
      uses[write.getStateAttr().getAttr()].write = write;
  });
  if (uses.empty())
    return success();
  if (!func.getBody().hasOneBlock())
    return func.emitOpError() << "reads or writes state: expected one block, got "
                              << func.getBody().getBlocks().size();
  Operation *terminator = func.front().getTerminator();
  for (nn::StateOp state : states) {
    auto found = uses.find(state.getSymNameAttr());
    if (found == uses.end())
      continue;
    Uses &own = found->second;
    if (!own.reads.empty()) {
      Value argument = findArgument(func, state);
      if (!argument) {
        unsigned index = func.getNumArguments();
        if (failed(func.insertArgument(index, state.getType(), getBoundAttrs(state),
                                       state.getLoc())))
          return failure();
        argument = func.getArgument(index);
      }
      for (nn::ReadOp read : own.reads)
        replaceRead(read, argument);
    }
    if (!own.write)
      continue;
    unsigned index = func.getNumResults();
    for (unsigned i = 0; i < index; ++i)
      if (func.getResultAttr(i, NnDialect::kStateAttr) == state.getSymNameAttr())
        return own.write.emitOpError()
               << "is of the state '" << state.getSymName() << "', which is result " << i << " of '"
               << func.getName() << "' already: expected one write";
    if (failed(func.insertResult(index, state.getType(), getBoundAttrs(state))))
      return failure();
    terminator->insertOperands(index, own.write.getValue());
    own.write.erase();
  }
  return success();
}

/// Makes a parameter that has the name of a state the state's argument. Fails if a state has
/// another name of a parameter, or the name of one that the function has in parts.
static LogicalResult bindParameters(func::FuncOp func,
                                    const llvm::DenseMap<StringAttr, nn::StateOp> &states) {
  for (BlockArgument argument : func.getArguments()) {
    unsigned i = argument.getArgNumber();
    std::optional<Weight> weight = getWeight(argument);
    if (!weight)
      continue;
    StringAttr parameter = weight->name;
    for (StringAttr name : weight->getNames()) {
      nn::StateOp state = states.lookup(name);
      if (!state)
        continue;
      bool isPart = bool(weight->offsets);
      if (name == parameter && !isPart) {
        func.setArgAttr(i, NnDialect::kStateAttr, name);
        if (Attribute sharding = state->getAttr(dist::DistDialect::kShardingAttr);
            sharding && !func.getArgAttr(i, dist::DistDialect::kShardingAttr))
          func.setArgAttr(i, dist::DistDialect::kShardingAttr, sharding);
        continue;
      }
      InFlightDiagnostic error = emitError(argument.getLoc())
                                 << "parameter '" << parameter.getValue() << "' of '"
                                 << func.getName() << "' is "
                                 << (isPart ? "a part of" : "another name of") << " the state '"
                                 << name.getValue() << "': expected nn.read @" << name.getValue();
      error.attachNote(state.getLoc()) << "the state";
      return error;
    }
  }
  return success();
}

namespace {
struct BindStatePass : meshwright::impl::BindStatePassBase<BindStatePass> {
  void runOnOperation() override {
    auto states = llvm::to_vector(getOperation().getOps<nn::StateOp>());
    if (states.empty())
      return markAllAnalysesPreserved();
    llvm::DenseMap<StringAttr, nn::StateOp> byName;
    for (nn::StateOp state : states)
      byName[state.getSymNameAttr()] = state;
    for (auto func : getOperation().getOps<func::FuncOp>())
      if (!func.isExternal() && (failed(bindParameters(func, byName)) || failed(bind(func, states))))
        return signalPassFailure();
  }
};
} // namespace
