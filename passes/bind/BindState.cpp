//===- BindState.cpp - state as arguments and results ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SignatureAttrs.h"
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

namespace {

/// Arguments or results to add to a function, all at once: programs that train have a thousand.
struct Added {
  SmallVector<unsigned> indices;
  SmallVector<Type> types;
  SmallVector<DictionaryAttr> attributes;
  SmallVector<Location> places;

  void push_back(unsigned index, nn::StateOp state) {
    indices.push_back(index);
    types.push_back(state.getType());
    attributes.push_back(getBoundAttrs(state));
    places.push_back(state.getLoc());
  }
};

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
  llvm::DenseMap<Attribute, unsigned> argumentOf, resultOf;
  unsigned numArguments = func.getNumArguments(), numResults = func.getNumResults();
  for (unsigned i = 0; i < numArguments; ++i)
    if (Attribute name = func.getArgAttr(i, NnDialect::kStateAttr))
      argumentOf[name] = i;
  for (unsigned i = 0; i < numResults; ++i)
    if (Attribute name = func.getResultAttr(i, NnDialect::kStateAttr))
      resultOf[name] = i;
  Added arguments, results;
  SmallVector<nn::WriteOp> writes;
  for (nn::StateOp state : states) {
    auto found = uses.find(state.getSymNameAttr());
    if (found == uses.end())
      continue;
    unsigned next = numArguments + arguments.indices.size();
    if (!found->second.reads.empty() && argumentOf.try_emplace(state.getSymNameAttr(), next).second)
      arguments.push_back(numArguments, state);
    nn::WriteOp write = found->second.write;
    if (!write)
      continue;
    if (auto other = resultOf.find(state.getSymNameAttr()); other != resultOf.end())
      return write.emitOpError() << "is of the state '" << state.getSymName()
                                 << "', which is result " << other->second << " of '"
                                 << func.getName() << "' already: expected one write";
    results.push_back(numResults, state);
    writes.push_back(write);
  }
  if (failed(func.insertArguments(arguments.indices, arguments.types, arguments.attributes,
                                  arguments.places)) ||
      failed(func.insertResults(results.indices, results.types, results.attributes)))
    return failure();
  for (nn::StateOp state : states)
    for (nn::ReadOp read : uses.lookup(state.getSymNameAttr()).reads)
      replaceRead(read, func.getArgument(argumentOf.lookup(state.getSymNameAttr())));
  Operation *terminator = func.front().getTerminator();
  for (nn::WriteOp write : writes) {
    terminator->insertOperands(terminator->getNumOperands(), write.getValue());
    write.erase();
  }
  return success();
}

/// Makes a parameter that has the name of a state the state's argument. Fails if a state has
/// another name of a parameter, or the name of one that the function has in parts.
static LogicalResult bindParameters(func::FuncOp func,
                                    const llvm::DenseMap<StringAttr, nn::StateOp> &states) {
  SignatureAttrs signatures;
  WeightFinder weights(func);
  for (BlockArgument argument : func.getArguments()) {
    unsigned i = argument.getArgNumber();
    std::optional<Weight> weight = weights.find(argument);
    if (!weight)
      continue;
    StringAttr parameter = weight->name;
    for (StringAttr name : weight->getNames()) {
      nn::StateOp state = states.lookup(name);
      if (!state)
        continue;
      bool isPart = bool(weight->offsets);
      if (name == parameter && !isPart) {
        signatures.setArgument(func, i, NnDialect::kStateAttr, name);
        if (Attribute sharding = state->getAttr(dist::DistDialect::kShardingAttr);
            sharding && !func.getArgAttr(i, dist::DistDialect::kShardingAttr))
          signatures.setArgument(func, i, dist::DistDialect::kShardingAttr, sharding);
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
    llvm::DenseMap<StringAttr, nn::StateOp> byName = nn::getStates(getOperation());
    for (auto func : getOperation().getOps<func::FuncOp>())
      if (!func.isExternal() && (failed(bindParameters(func, byName)) || failed(bind(func, states))))
        return signalPassFailure();
  }
};
} // namespace
