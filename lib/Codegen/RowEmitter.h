//===- RowEmitter.h - elements of a kernel, in vectors ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Emits the elements that a kernel computes at consecutive columns of a row, as vectors.
// Elements that all columns of a row share are scalars, computed before the loop over columns.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ROWEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_ROWEMITTER_H

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/RowPlan.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

namespace meshwright::lower {

/// The type of an element in the buffers of row kernels. bf16 is stored as integers there, since
/// LLVM cannot move all vectors of bf16.
mlir::Type getRowStorageType(mlir::Type element);
/// The buffer that a kernel makes positions of: the index of the rank's first element.
inline mlir::MemRefType getFirstBufferType(mlir::Value positions) {
  return mlir::MemRefType::get({1}, mlir::getElementTypeOrSelf(positions.getType()));
}
/// Casts an element to its type in buffers, and back.
mlir::Value toRowStorage(Builder &builder, mlir::Value value);
mlir::Value fromRowStorage(Builder &builder, mlir::Value value, mlir::Type element);

/// Emits the elements of one kernel.
///
/// - `startRow` begins a row, and `startColumns` some consecutive columns of it. Elements that
///   are emitted between `startColumns` and `endColumns` are vectors; all others are scalars of
///   the row.
/// - `emit` computes a value at a point, which an `Access` (Access.h) states as an index that
///   is linear in the row and the column. It emits the ops that lead to the value, too.
/// - An element is emitted once for each point: later reads find it.
class RowEmitter {
public:
  RowEmitter(Builder &builder, const KernelRegion &region) : builder(builder), region(region) {}

  /// The flat buffer of an input or output, or the one number that positions are made of.
  void setBuffer(mlir::Value value, mlir::Value buffer) { buffers[value] = buffer; }
  mlir::Value getBuffer(mlir::Value value) const { return buffers.lookup(value); }

  /// Stores the elements of even columns before those of odd ones in vectors of f32 of this
  /// width. Vectors of bf16 are widened and narrowed faster so.
  void setEvenFirst(int64_t width) { evenFirstWidth = width; }
  LaneOrder getOrder() const {
    return width && width == evenFirstWidth ? LaneOrder::EvenFirst : LaneOrder::Same;
  }
  /// Starts a row: an index for each dimension, null for dimensions that are part of another
  /// loop.
  void startRow(const LoopSpace &space, llvm::ArrayRef<mlir::Value> indices);
  /// Starts columns column .. column + width, all within begin .. end, where each concatenation
  /// and rotary op has one section. Elements that do not depend on columns are emitted before
  /// `anchor`, if it is not null.
  void startColumns(int64_t begin, int64_t end, mlir::Value column, int64_t width,
                    mlir::Operation *anchor);
  /// Prefetches the inputs of the row that is `further` along a dimension: 1, or 0 at the last
  /// row. A loop over all columns prefetches one of `shares` shares of the row.
  void prefetchRead(unsigned dimension, mlir::Value further, int64_t share, int64_t shares);
  /// The same for the elements of this row that will be written.
  void prefetchWritten(mlir::Value buffer, const Access &access, int64_t share, int64_t shares);
  /// Ends the columns. Later elements are scalars of the row.
  void endColumns() { width = 0; }
  /// The elements of the columns since `startColumns`. After another `startColumns` of the same
  /// columns, `resumeColumns` makes them known again. They must dominate it.
  NodeMap<mlir::Value> takeColumns() { return std::move(columnValues); }
  void resumeColumns(NodeMap<mlir::Value> values) { columnValues = std::move(values); }

  /// The element of a value that a point reads, in the value's type: a vector, or a scalar if
  /// all columns read the same element.
  mlir::Value emit(mlir::Value value, const Access &access);
  /// The same, always as a vector.
  mlir::Value emitVector(mlir::Value value, const Access &access);
  /// Sets an element at these columns, in the value's type.
  void setElement(mlir::Value value, const Access &access, mlir::Value element) {
    columnValues.set(value, access, element);
  }
  /// Stores an element in a flat buffer, at the index of `access`.
  void store(mlir::Value element, mlir::Value buffer, const Access &access);
  /// The same past the caches, for elements that no op reads soon. Stores are whole vectors if
  /// `isAligned`, at run time, states that the buffer is aligned to them.
  void stream(mlir::Value element, mlir::Value buffer, const Access &access, mlir::Value isAligned,
              int64_t vectorBytes);
  /// Loads from a flat buffer.
  mlir::Value load(mlir::Value buffer, const Access &access);
  /// The index of `access` at the first column.
  mlir::Value emitIndexOf(const Access &access);

  /// Sets a statistic of the row, in its compute type.
  void setStatistic(mlir::Operation *op, unsigned stage, const Access &row, mlir::Value value);
  /// Makes later reads come from a flat buffer.
  void setKept(mlir::Value value, const Access &access, mlir::Value buffer, const Access &at);
  /// Sets the buffer with the exponentials of a softmax, not yet divided by their sum. Without
  /// one, elements of the softmax compute their exponential again.
  void setExponentials(mlir::Operation *op, const Access &row, mlir::Value buffer);

  /// The terms of a statistic, from elements of its operand.
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
  mlir::Value emitSection(mlir::Operation *op, const Access &access);
  mlir::Value emitIota(nn::IotaOp op, const Access &access);
  /// The number of the element in each column, along a dimension.
  mlir::Value emitCount(const Access &along, mlir::Type type, bool evenFirst = false);
  mlir::Value emitPositions(dist::PositionsOp op, const Access &access);
  mlir::Value emitIsTrue(dist::PositionsOp op, const Access &access);
  /// The index of the rank's first element in the padded dimension.
  mlir::Value emitFirst(dist::PositionsOp op);
  mlir::Value emitSize(dist::PositionsOp op);
  mlir::Value emitOperand(mlir::Operation *op, mlir::Value operand, const Access &access);
  mlir::Value toVector(mlir::Value value);
  mlir::Value emitExponential(mlir::Operation *op, const Access &row, mlir::Value x);
  mlir::Value getStatistic(mlir::Operation *op, unsigned stage, const Access &row);
  void prefetchLines(mlir::Value buffer, const Access &access, mlir::Value shift, bool isWritten,
                     int64_t share, int64_t shares);

  const KernelRegion &region;
  ProgramMap<mlir::Value, mlir::Value> buffers;
  LoopSpace space;
  llvm::SmallVector<mlir::Value> indices;
  mlir::Value column;
  /// `width` is 0 between `endColumns` and `startColumns`.
  int64_t width = 0, evenFirstWidth = 0;
  mlir::Operation *anchor = nullptr;
  /// Inputs that columns have read in the order of the row.
  llvm::SmallVector<std::pair<mlir::Value, Access>> streamed;
  NodeMap<mlir::Value> rowValues, columnValues;
  ProgramMap<mlir::Operation *, mlir::Value> firsts, sizes;
  NodeMap<KeptBuffer> kept, exponentials;
  std::map<unsigned, NodeMap<mlir::Value>> statistics;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ROWEMITTER_H
