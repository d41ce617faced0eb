//===- AttentionEmitter.h - what attention's kernels share ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/Cpu/AttentionPlan.h"
#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/Cpu/VectorEmitter.h"
#include "meshwright/lib/Codegen/Processor.h"
#include "meshwright/lib/Codegen/RandomNumbers.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower {

/// The op, the processor and the plan of a kernel of attention.
struct AttentionKernel {
  nn::ScoresOpInterface op;
  const Processor &processor;
  AttentionPlan plan;
  /// The ops that compute the bias in the kernel; none if the kernel reads it.
  std::optional<KernelRegion> biasRegion;
};

/// Emits the kernel of one nn.attention or nn.attention_grad. This class has the parts that all
/// forms of the kernel share: the mask, and the running softmax.
class AttentionEmitter : public VectorEmitter, protected AttentionBuffers {
public:
  virtual ~AttentionEmitter() = default;

  /// The buffers of the kernel: inputs, then results, each with one dimension.
  SmallVector<Type> getBufferTypes();
  virtual int64_t getItems() const { return plan.getItems(); }
  /// Fills the function. Its arguments are the buffers, the first item, the item behind the
  /// last, and the workspace.
  void emit(mlir::func::FuncOp kernel);

protected:
  explicit AttentionEmitter(const AttentionKernel &kernel);

  /// Emits the work of one item.
  virtual void emitItem(Value item) = 0;

  //===--------------------------------------------------------------------===//
  // The scores
  //===--------------------------------------------------------------------===//

  double getFactor() { return getScoreFactor(op); }
  double getUnit() { return getScoreUnit(op); }
  /// Applies the soft cap to scores, which are products times the factor. The result has the
  /// unit.
  Value cap(Value scores) { return emitSoftCap(b, op, scores); }
  bool hasCap() { return op.getSoftCap().has_value(); }
  /// e^(scores - maximum), of scores in the unit.
  Value exponentiate(Value scores, Value maximum);
  /// log(sum) + maximum, as the log-sum-exp result has it.
  Value getLogSumExp(Value sum, Value maximum);
  /// The type in which positions are compared: 64 bits if they are operands.
  Type getPositionType() { return plan.hasPositions ? b.getI64Type() : b.getI32Type(); }
  Value toPosition(Value index);
  Value getPosition(int64_t position);

  /// The smallest and the largest of some positions. `lowestPosition` ignores negative ones, and
  /// is negative itself if there is no other.
  struct Bounds {
    Value lowest, lowestPosition, highest;
  };
  /// The bounds of `count` positions in a buffer.
  Bounds getBounds(Value buffer, Value first, Value count);
  /// Begins the work on a row of the batch.
  void startBatch(Value index);
  /// The position of a query and of a key of the row.
  Value getQueryPosition(Value query);
  Value getKeyPosition(Value key);
  /// The bounds of the positions of the queries, and of some keys, of the row.
  Bounds getBoundsOfQueries();
  Bounds getBoundsOfKeys(Value first, Value count);
  /// Emits a test of positions of keys, numbers or vectors: they are no padding, and below
  /// the row's length.
  Value isKey(Value position);
  /// Emits tests: some of the queries may see some of the keys, and all queries see all keys.
  Value isSeen(const Bounds &queries, const Bounds &keys);
  Value isWhollySeen(const Bounds &queries, const Bounds &keys);
  /// Emits a test: `position` is not negative, `first` is not behind the last key that the query at
  /// the highest position sees, and `last` is not before the first key that the query at the
  /// lowest position sees.
  Value isWithin(Value position, Value first, Value last, const Bounds &queries);

  /// Emits a test of indices of weights: they are kept.
  Value isKept(Value indices);

  /// Strides of the bias along batch, head, query and key; 0 broadcasts.
  std::array<int64_t, 4> biasStrides = {0, 0, 0, 0};
  /// Computes the bias, if the kernel does not read it.
  std::optional<RowEmitter> biasElements;

  nn::ScoresOpInterface op;
  AttentionPlan plan;
  const Processor &processor;
  /// The row of the batch.
  Value batchIndex;
  /// The number of keys that the row's queries may see: all keys, or up to the row's length if
  /// positions are indices.
  Value numKeysOfRow;

private:
  std::optional<KernelRegion> biasRegion;
  /// The numbers of dropout, loaded before all loops.
  RandomStream random;
  /// The index of the row's first positions, if it has its own.
  Value firstQueryPosition, firstKeyPosition;
  /// The row's length, if positions are operands: keys are below it.
  Value lengthOfRow;
};

/// Queries are lanes: for many queries.
std::unique_ptr<AttentionEmitter> makeAttentionBlocks(const AttentionKernel &kernel);
/// Features are lanes: for few queries.
std::unique_ptr<AttentionEmitter> makeAttentionRows(const AttentionKernel &kernel);
/// The backward pass.
std::unique_ptr<AttentionEmitter> makeAttentionGradient(const AttentionKernel &kernel);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H
