//===- CausalForward.cpp - the program that a model serves ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/serve/CausalForward.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/serve/DistanceBias.h"
#include "meshwright/passes/serve/KeySlopes.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

//===----------------------------------------------------------------------===//
// Facts
//===----------------------------------------------------------------------===//

Value CausalForward::getLogits() const {
  return getFunction().front().getTerminator()->getOperand(0);
}
int64_t CausalForward::getVocabulary() const { return shapeOf(getLogits()).back(); }

bool CausalForward::dependsOnIds(Operation *op) const {
  return llvm::any_of(op->getOperands(), [&](Value value) { return dependsOnIds(value); });
}

FailureOr<int64_t> CausalForward::getTokenDim(Value value) const {
  int64_t found = -1;
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(value))) {
    if (!llvm::is_contained(classes, tokens))
      continue;
    if (found >= 0 || classes.size() != 1)
      return failure();
    found = d;
  }
  return found;
}

bool CausalForward::mixesTokens(Operation *op) const {
  const FactorAnalysis::OpFactors &own = factors.getFactors(op);
  return llvm::any_of(llvm::zip_equal(own.rule.factors, own.classes), [&](const auto &pair) {
    return std::get<0>(pair).kind != dist::FactorKind::Parallel && llvm::is_contained(std::get<1>(pair), tokens);
  });
}

StringRef CausalForward::getCacheName(Operation *op) const {
  auto it = cacheNames.find(op);
  return it == cacheNames.end() ? StringRef() : StringRef(it->second);
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

FailureOr<CausalForward> CausalForward::read(func::FuncOp func) {
  ProgramMap<Operation *, CachedBias> biases;
  for (auto op : func.front().getOps<nn::AttentionOp>()) {
    if (!op.getBias() || !op.getCausal() || op.getLse())
      continue;
    OpBuilder builder(op);
    nn::Writer w(builder, op.getLoc());
    if (Value slopes = writeKeySlopes(w, op))
      biases[op] = {slopes, Value()};
    else if (Value distances = writeDistanceBias(w, op))
      biases[op] = {Value(), distances};
  }
  FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
  if (failed(factors))
    return failure();
  CausalForward forward(func, std::move(*factors));
  forward.biases = std::move(biases);
  if (failed(forward.findIds()))
    return failure();
  forward.findDependent();
  if (failed(forward.check()))
    return failure();
  forward.nameCaches();
  forward.findHead();
  return forward;
}

/// Finds the only input, the ids of the tokens.
LogicalResult CausalForward::findIds() {
  for (BlockArgument arg : func.getArguments()) {
    Attribute name = func.getArgAttr(arg.getArgNumber(), NnDialect::kInputAttr);
    if (name && ids)
      return emitError(arg.getLoc())
             << "expected one input, the ids of tokens [1, length], got a second one, " << name;
    if (name)
      ids = arg;
  }
  auto type = ids ? cast<RankedTensorType>(ids.getType()) : RankedTensorType();
  if (!type || type.getRank() != 2 || type.getDimSize(0) != 1 ||
      !type.getElementType().isInteger(64)) {
    InFlightDiagnostic error = emitError(ids ? ids.getLoc() : func.getLoc())
                               << "expected ids of tokens of type tensor<1xLENGTHxi64> as input";
    if (type)
      error << ", got " << type;
    return error;
  }
  ArrayRef<int> classes = factors.getClasses(ids)[1];
  length = type.getDimSize(1);
  if (classes.size() != 1)
    return emitError(ids.getLoc())
           << "expected a program that leaves the dimension of the tokens whole";
  tokens = classes.front();
  return success();
}

void CausalForward::findDependent() {
  dependent.insert(ids);
  for (Operation &op : func.front().without_terminator())
    if (dependsOnIds(&op))
      dependent.insert(op.result_begin(), op.result_end());
}

/// Names the caches by the paths of the modules. A second attention of a path is `path@1`.
void CausalForward::nameCaches() {
  llvm::StringSet<> taken;
  for (auto op : func.front().getOps<nn::AttentionOp>()) {
    if (!dependsOnIds(op.getKey()))
      continue;
    std::string path = getSourceLocation(op.getLoc()).name;
    std::string stem = "cache." + (path.empty() ? "attention" : path), name = stem;
    for (int number = 1; !taken.insert(name).second; ++number)
      name = stem + "@" + std::to_string(number);
    cacheNames[op] = name;
  }
}

/// The ops that only the logits read, back to the first that reads two values of tokens.
void CausalForward::findHead() {
  Value value = getLogits();
  while (Operation *op = value.getDefiningOp()) {
    SmallVector<Value> read;
    for (Value operand : op->getOperands())
      if (dependent.contains(operand) && !llvm::is_contained(read, operand))
        read.push_back(operand);
    if (read.size() != 1 || isa<nn::AttentionOp>(op) || op->getNumResults() != 1 ||
        !llvm::all_of(value.getUsers(), [&](Operation *user) {
          return user == func.front().getTerminator() || head.contains(user);
        }))
      return;
    head.insert(op);
    value = read.front();
  }
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

/// Checks that an op computes each token by itself.
LogicalResult CausalForward::checkParallel(Operation *op) {
  if (mixesTokens(op))
    return op->emitOpError() << "mixes tokens: a model that serves does so in causal attention only";
  for (Value value : op->getResults())
    if (failed(getTokenDim(value)))
      return op->emitOpError() << "has a result whose dimension of tokens is taken apart, or twice";
  return success();
}

/// Checks that the mask is one that positions decide: causal, with a window or without.
LogicalResult CausalForward::checkAttention(nn::AttentionOp op) {
  auto refuse = [&](StringRef what) { return op.emitOpError() << what; };
  if (!op.getCausal())
    return refuse("sees later tokens: a model that serves has causal attention");
  if (op.getKeyPadding() || op.getKvLengths() || op.getKvLength() || op.getQPositions())
    return refuse(
        "has a mask other than a causal one and a window, which a model that serves may have");
  if (op.getWindowRight() || op.getDropRows())
    return refuse("has a window to the right or dropout, which a model that serves may not have");
  CachedBias bias = getBias(op);
  if (op.getBias() && !bias.slopes && !bias.distances)
    return refuse("has a bias that does not follow from the distance of the key or from its position, which serving does not support yet");
  if (bias.distances && dependsOnIds(bias.distances))
    return refuse("has a bias that depends on the tokens, which serving does not support yet");
  FailureOr<int64_t> queries = getTokenDim(op.getQuery()), keys = getTokenDim(op.getKey());
  if (failed(queries) || *queries != 2 || failed(keys) || *keys != 2)
    return refuse("has queries and keys that are not the tokens");
  return success();
}

LogicalResult CausalForward::check() {
  for (Operation &op : func.front().without_terminator()) {
    if (!dependsOnIds(&op))
      continue;
    auto attention = dyn_cast<nn::AttentionOp>(op);
    if (failed(attention ? checkAttention(attention) : checkParallel(&op)))
      return failure();
  }
  Value logits = getLogits();
  FailureOr<int64_t> dim = getTokenDim(logits);
  if (!dependent.contains(logits) || failed(dim) || *dim != 1 || typeOf(logits).getRank() != 3)
    return emitError(logits.getLoc())
           << "expected logits [1, length, vocabulary] as the first output, got "
           << logits.getType();
  return success();
}
