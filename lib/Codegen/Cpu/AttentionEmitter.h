//===- AttentionEmitter.h - what attention's kernels share ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H

#include "meshwright/lib/Codegen/AttentionBias.h"
#include "meshwright/lib/Codegen/Cpu/AttentionPlan.h"
#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Cpu/RowEmitter.h"
#include "meshwright/lib/Codegen/Processor.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower {

using llvm::ArrayRef;
using llvm::function_ref;
using llvm::SmallVector;
using mlir::Type;
using mlir::Value;
using mlir::ValueRange;

/// 2^x of a vector, zero for what is no normal number; x is not above 1.
Value emitExp2(mlir::ImplicitLocOpBuilder &builder, Value x);

/// What a kernel of attention is made for.
struct AttentionKernel {
  nn::AttentionOp op;
  const Processor &processor;
  AttentionPlan plan;
  /// The ops that compute the bias in the kernel; none where it is read.
  std::optional<KernelRegion> biasRegion;
};

/// Emits the kernel of one nn.attention: arithmetic on indices and vectors, the
/// mask, and the running softmax that both ways of emitting it share.
class AttentionEmitter {
public:
  virtual ~AttentionEmitter() = default;

  /// The values that the kernel reads: query, key, value, key padding and bias where
  /// the op has them, or what the bias is computed from.
  SmallVector<Value> getInputs();
  /// The buffers of the kernel: inputs, then results, each with one dimension.
  SmallVector<Type> getBufferTypes();
  /// For each thread.
  int64_t getWorkspaceBytes() const { return workspaceBytes; }
  /// Fills the function: its arguments are the buffers, the first item, the one
  /// behind the last, and the workspace.
  void emit(mlir::func::FuncOp kernel);

protected:
  explicit AttentionEmitter(const AttentionKernel &kernel);

  /// The work of one item.
  virtual void emitItem(Value item) = 0;

  //===--------------------------------------------------------------------===//
  // Workspace
  //===--------------------------------------------------------------------===//

  /// A part of the workspace.
  struct Region {
    int64_t offset = 0, count = 0;
    Type type;
    Value buffer;
  };
  /// Sets one aside; `count` elements of `type`.
  void reserve(Region &region, int64_t count, Type type);

  //===--------------------------------------------------------------------===//
  // Indices and control flow
  //===--------------------------------------------------------------------===//

  Value getIndex(int64_t value);
  Value add(Value a, Value c);
  Value add(Value a, int64_t c) { return add(a, getIndex(c)); }
  Value sub(Value a, Value c);
  Value mul(Value a, int64_t c);
  Value div(Value a, int64_t c);
  Value rem(Value a, int64_t c);
  Value min(Value a, Value c);
  Value min(Value a, int64_t c) { return min(a, getIndex(c)); }
  Value max(Value a, Value c);
  Value isBelow(Value a, Value c);
  Value both(Value a, Value c);

  using LoopBody = function_ref<SmallVector<Value>(Value, ValueRange)>;
  SmallVector<Value> loop(Value from, Value to, int64_t step, ValueRange inits, LoopBody body);
  void loop(Value from, Value to, int64_t step, function_ref<void(Value)> body);
  void when(Value condition, function_ref<void()> body, function_ref<void()> otherwise = nullptr);
  SmallVector<Value> choose(Value condition, function_ref<SmallVector<Value>()> body,
                            function_ref<SmallVector<Value>()> otherwise);

  //===--------------------------------------------------------------------===//
  // Vectors
  //===--------------------------------------------------------------------===//

  mlir::VectorType getVector(int64_t size, Type type) { return mlir::VectorType::get(size, type); }
  mlir::VectorType getVector() { return getVector(plan.lanes, plan.compute); }
  Value getScalar(double value);
  Value getSplat(double value);
  Value splat(Value scalar);
  /// a b + c.
  Value fma(Value a, Value c, Value d);
  /// a b + c for each pair of bf16 of `a` and `c`.
  Value dot(Value a, Value c, Value d);
  /// `size` lanes at an index.
  Value load(Value buffer, Value index, int64_t size);
  Value load(Value buffer, Value index) { return load(buffer, index, plan.lanes); }
  Value loadScalar(Value buffer, Value index);
  void store(Value value, Value buffer, Value index);
  /// To and from the type of arithmetic.
  Value widen(Value value) { return emitCast(b, value, plan.compute); }
  Value narrow(Value value) { return emitCast(b, value, plan.element); }
  /// Fewer lanes, or more: zeros.
  Value resize(Value vector, int64_t size);
  Value shuffle(Value a, Value c, ArrayRef<int64_t> lanes);
  /// The larger one, `c` where one is no number.
  Value larger(Value a, Value c);
  /// Lanes of vectors to vectors of lanes; as many vectors as lanes.
  void transpose(SmallVector<Value> &vectors);
  /// Lane i of the result is the sum over vector i.
  Value sumEach(SmallVector<Value> vectors);
  Value exp2(Value x) { return emitExp2(b, x); }

  //===--------------------------------------------------------------------===//
  // The scores
  //===--------------------------------------------------------------------===//

  /// What products of queries and keys are multiplied by, before the cap.
  double getFactor();
  /// Scores are kept in this unit: log2 e where they are exponents of two, 1
  /// where a bias is added to them that could overflow.
  double getUnit();
  /// The soft cap, in that unit; the scores that come are products times the
  /// factor.
  Value cap(Value scores);
  bool hasCap() { return op.getSoftCap().has_value(); }
  /// 2^(exponents of two that scores minus maximum are).
  Value exponentiate(Value scores, Value maximum);
  /// The maximum to subtract: zero where there is no score.
  Value guard(Value maximum);
  /// 1 / sum, zero for zero.
  Value invert(Value sum);
  /// log(sum) + maximum, as lse has it.
  Value getLogSumExp(Value sum, Value maximum);

  /// An index as places are compared: a number of 64 bits where they are operands.
  Type getPlaceType() { return plan.hasPositions ? b.getI64Type() : b.getI32Type(); }
  Value toPlace(Value index);
  Value getPlace(int64_t place);

  /// The smallest and the largest of some places; `lowestPlace` leaves out negative
  /// ones (and is negative itself where there is no other).
  struct Bounds {
    Value lowest, lowestPlace, highest;
  };
  /// Of `count` places in a buffer.
  Bounds getBounds(Value buffer, Value first, Value count);
  /// Whether some of the queries may see some of the keys, and whether all see all.
  Value isSeen(const Bounds &queries, const Bounds &keys);
  Value isWhollySeen(const Bounds &queries, const Bounds &keys);
  /// Whether `place` is not negative, `first` not behind what the query at the highest
  /// place sees, and `last` not before what the one at the lowest sees.
  Value isWithin(Value place, Value first, Value last, const Bounds &queries);

  /// Of the bias, strides of batch, head, query and key; 0 broadcasts.
  std::array<int64_t, 4> biasStrides = {0, 0, 0, 0};
  /// Computes the bias, where it is not read.
  std::optional<RowEmitter> biasElements;

  nn::AttentionOp op;
  AttentionPlan plan;
  const Processor &processor;
  mlir::ImplicitLocOpBuilder b;
  Value query, key, value, padding, bias, queryPositions, keyPositions, result, lse;

private:
  /// The tensors that are read, and those that are written, and the members that hold
  /// their buffers; none for what the bias is computed from.
  SmallVector<std::pair<Value, Value *>> getInputBuffers();
  SmallVector<std::pair<Value, Value *>> getOutputBuffers();

  std::optional<KernelRegion> biasRegion;

  SmallVector<Region *> regions;
  int64_t workspaceBytes = 0;
};

/// Queries are lanes: for many of them.
std::unique_ptr<AttentionEmitter> makeAttentionBlocks(const AttentionKernel &kernel);
/// Features are lanes: for few queries.
std::unique_ptr<AttentionEmitter> makeAttentionRows(const AttentionKernel &kernel);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONEMITTER_H
