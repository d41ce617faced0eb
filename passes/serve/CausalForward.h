//===- CausalForward.h - the program that a model serves --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_CAUSALFORWARD_H
#define MESHWRIGHT_PASSES_SERVE_CAUSALFORWARD_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/serve/CachedAttention.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// The forward pass of a causal language model: ids of tokens [1, length] give logits [1, length,
/// vocabulary]. Each op that depends on the ids computes each token by itself, or is causal
/// attention.
class CausalForward {
public:
  /// Reads a function, to which it adds what stands for biases. It is an error if the function is no
  /// such forward pass.
  static mlir::FailureOr<CausalForward> read(mlir::func::FuncOp func);

  mlir::func::FuncOp getFunction() const { return func; }
  int64_t getLength() const { return length; }
  mlir::Value getLogits() const;
  int64_t getVocabulary() const;

  /// Returns true if a value depends on the ids of the tokens.
  bool dependsOnIds(mlir::Value value) const { return dependent.contains(value); }
  bool dependsOnIds(mlir::Operation *op) const;
  /// The dimension of a value that is the tokens; -1 if it has none. Fails if several are, or a
  /// product with other factors is.
  mlir::FailureOr<int64_t> getTokenDim(mlir::Value value) const;
  /// Returns true if an op does not compute each token by itself.
  bool mixesTokens(mlir::Operation *op) const;
  /// Returns true if the op's results are computed for the last token of each request alone.
  bool isHead(mlir::Operation *op) const { return head.contains(op); }
  /// The name that the states of a cached attention begin with; empty for another op.
  llvm::StringRef getCacheName(mlir::Operation *op) const;

  /// The bias of an attention op, as values of the function. No values if there is no bias, or another one.
  CachedBias getBias(mlir::Operation *op) const { return biases.lookup(op); }

private:
  CausalForward(mlir::func::FuncOp func, FactorAnalysis factors)
      : func(func), factors(std::move(factors)) {}

  mlir::LogicalResult findIds();
  void findDependent();
  void nameCaches();
  void findHead();
  mlir::LogicalResult check();
  mlir::LogicalResult checkAttention(nn::AttentionOp op);
  mlir::LogicalResult checkParallel(mlir::Operation *op);

  mlir::func::FuncOp func;
  FactorAnalysis factors;
  mlir::BlockArgument ids;
  /// The class of the tokens, and the number of positions.
  int tokens = -1;
  int64_t length = 0;
  ProgramSet<mlir::Value> dependent;
  /// For each attention whose keys are tokens.
  ProgramMap<mlir::Operation *, std::string> cacheNames;
  ProgramMap<mlir::Operation *, CachedBias> biases;
  ProgramSet<mlir::Operation *> head;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_CAUSALFORWARD_H
