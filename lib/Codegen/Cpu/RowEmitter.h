//===- RowEmitter.h - elements of a kernel, in vectors ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Emits what a kernel computes at consecutive columns of a row as vectors, and what
// a row's columns share as scalars, ahead of the loop over them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ROWEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ROWEMITTER_H

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/RowPlan.h"

namespace meshwright::lower {

/// The type of an element in the buffers of row kernels: bf16 lies there as
/// integers, since LLVM cannot move all vectors of it.
mlir::Type getRowStorageType(mlir::Type element);
/// An element as it lies there, and back.
mlir::Value toRowStorage(Builder &builder, mlir::Value value);
mlir::Value fromRowStorage(Builder &builder, mlir::Value value, mlir::Type element);

class RowEmitter {
public:
  RowEmitter(Builder &builder, const KernelRegion &region) : builder(builder), region(region) {}

  /// The flat buffer of an input or output.
  void setBuffer(mlir::Value value, mlir::Value buffer) { buffers[value] = buffer; }
  mlir::Value getBuffer(mlir::Value value) const { return buffers.lookup(value); }

  /// Has vectors of this width in f32 with elements of even columns first, if they
  /// come from bf16 and end as it.
  void setEvenFirst(int64_t width) { evenFirstWidth = width; }
  LaneOrder getOrder() const {
    return width && width == evenFirstWidth ? LaneOrder::EvenFirst : LaneOrder::Same;
  }
  /// Starts a row: an index for each dimension, null for those that others
  /// stand for.
  void startRow(const LoopSpace &space, llvm::ArrayRef<mlir::Value> indices);
  /// Starts columns column .. column + width, all within begin .. end, where all
  /// concatenations and rotary ops are one thing. What does not depend on
  /// columns is emitted before `anchor`, if there is one.
  void startColumns(int64_t begin, int64_t end, mlir::Value column, int64_t width,
                    mlir::Operation *anchor);
  /// Fetches into the cache what is read of inputs, in the row that is `further`
  /// along a dimension: 1, or 0 at the last. When all columns are gone through, one
  /// of `parts` of the row has been fetched.
  void prefetchRead(unsigned dimension, mlir::Value further, int64_t part, int64_t parts);
  /// The same for what will be written, in this row.
  void prefetchWritten(mlir::Value buffer, const Access &access, int64_t part, int64_t parts);
  /// Ends them: what follows is for the row.
  void endColumns() { width = 0; }

  /// The element of a value that a point reads, in its own type: a vector, or a
  /// scalar where all columns read the same one.
  mlir::Value emit(mlir::Value value, const Access &access);
  /// The same as a vector in any case.
  mlir::Value emitVector(mlir::Value value, const Access &access);
  /// Gives an element that is known at these columns, in the value's type.
  void setElement(mlir::Value value, const Access &access, mlir::Value element) {
    columnValues.set(value, access, element);
  }
  /// Stores an element, where `access` says, in a flat buffer.
  void store(mlir::Value element, mlir::Value buffer, const Access &access);
  /// The same past the caches, for what nothing reads soon: in whole vectors, if
  /// `isAligned` says at run time that the buffer begins at one.
  void stream(mlir::Value element, mlir::Value buffer, const Access &access, mlir::Value isAligned,
              int64_t vectorBytes);
  /// Loads from a flat buffer.
  mlir::Value load(mlir::Value buffer, const Access &access);
  /// The linear function's value at the first column.
  mlir::Value emitIndexOf(const Access &access);

  /// Gives a statistic of the row, in its compute type.
  void setStatistic(mlir::Operation *op, unsigned stage, const Access &row, mlir::Value value);
  /// Makes later reads come from a flat buffer.
  void setKept(mlir::Value value, const Access &access, mlir::Value buffer, const Access &at);
  /// The exponentials of a softmax, before they are divided by their sum.
  void setExponentials(mlir::Operation *op, const Access &row, mlir::Value buffer);

  /// The terms that a statistic sums up, from elements of its operand.
  mlir::Value emitTerm(const Statistic &statistic);

  Builder &builder;

private:
  struct KeptBuffer {
    mlir::Value buffer;
    Access at;
  };

  mlir::Value convert(mlir::Value value, mlir::Type type) {
    return emitCast(builder, value, type, getOrder());
  }
  mlir::Value emitNew(mlir::Value value, const Access &access);
  mlir::Value emitRowReduction(mlir::Operation *op, const Access &access);
  mlir::Value emitPart(mlir::Operation *op, const Access &access);
  mlir::Value emitIota(nn::IotaOp op, const Access &access);
  mlir::Value emitOperand(mlir::Operation *op, mlir::Value operand, const Access &access);
  mlir::Value toVector(mlir::Value value);
  mlir::Value getStatistic(mlir::Operation *op, unsigned stage, const Access &row);
  void prefetchLines(mlir::Value buffer, const Access &access, mlir::Value shift, bool isWritten,
                     int64_t part, int64_t parts);

  const KernelRegion &region;
  llvm::DenseMap<mlir::Value, mlir::Value> buffers;
  LoopSpace space;
  llvm::SmallVector<mlir::Value> indices;
  mlir::Value column;
  /// 0 outside of columns.
  int64_t width = 0, evenFirstWidth = 0;
  mlir::Operation *anchor = nullptr;
  /// What has been read of inputs in the row's order.
  llvm::SmallVector<std::pair<mlir::Value, Access>> streamed;
  NodeMap<mlir::Value> rowValues, columnValues;
  NodeMap<KeptBuffer> kept, exponentials;
  std::map<unsigned, NodeMap<mlir::Value>> statistics;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ROWEMITTER_H
