//===- AttentionEmitter.h - attention on GPUs -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block of threads computes some rows of queries, and goes over the keys tile by tile. It keeps
// the running maximum and sum of each row, and the result so far, in registers.
//
// The scores of a row of a tile are held by four neighbouring lanes. Masks, maxima and sums need
// only that, so they are the same for both ways to multiply (`AttentionFma`, `AttentionMma`).
//
// A tile whose scores are all hidden is left out: the block finds out by one barrier, before it
// reads keys. So masks of all kinds leave out blocks, also those that come from memory.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/AttentionShape.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <memory>

namespace meshwright::lower {

/// How attention is cut into blocks of threads.
///
/// Query heads that share a key head are stored consecutively, so their rows are one matrix. A
/// unit is a query head, or, if the rows of a head do not fill a block, all query heads of a key
/// head. A block of threads computes some rows of a unit, and a slice of the result's features.
struct AttentionTilePlan : AttentionShape {
  explicit AttentionTilePlan(nn::AttentionOp op);

  static constexpr int64_t threads = 128;
  /// Products by mma.sync, rather than by FMA.
  bool usesMma;
  /// Heads whose rows are one unit, units of the whole op, rows of a unit.
  int64_t headsPerUnit, units, rows;
  /// Rows of a block, and keys of a tile.
  int64_t blockRows, blockKeys;
  /// Rows and keys of a tile whose scores one thread has.
  int64_t rowsOfThread, keysOfThread;
  /// Features of the result that a block computes, and the slices of all of them.
  int64_t sliceFeatures, slices;
  /// Blocks of a unit and a slice.
  int64_t blocks;

  int64_t getNumBlocks() const { return units * slices * blocks; }
  /// Returns true if the rows of a unit are queries at positions 0, 1, ..., and keys are at such
  /// positions, too.
  bool isOrdered() const { return !hasPositions && headsPerUnit == 1; }
};

/// Emits the kernel of one nn.attention.
class AttentionTiles : protected LoopEmitter, protected AttentionBuffers {
public:
  virtual ~AttentionTiles() = default;

  virtual int64_t getSharedBytes() const = 0;
  /// Fills the function, whose arguments are the buffers and the shared memory.
  void emit(mlir::func::FuncOp kernel);

protected:
  AttentionTiles(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  //===--------------------------------------------------------------------===//
  // The products
  //===--------------------------------------------------------------------===//

  /// The row of the block, and the key of the tile, of a row and a key of the thread.
  virtual Value getRowOffset(int64_t row) = 0;
  virtual Value getKeyOffset(int64_t key) = 0;
  /// Prepares the queries of the block.
  virtual void emitQueries() = 0;
  /// The registers of the result, all zeros.
  virtual SmallVector<Value> getZeros() = 0;
  /// Products of the thread's rows and keys, `keysOfThread` for each row. Other threads may still
  /// read shared memory of a tile before this, but not behind it.
  virtual SmallVector<Value> emitProducts() = 0;
  /// The result times the scale of each row, plus shares times values.
  virtual SmallVector<Value> emitValues(ValueRange shares, ValueRange scales,
                                        ValueRange result) = 0;
  /// Stores the result times the factor of each row.
  virtual void emitResult(ValueRange factors, ValueRange result) = 0;

  //===--------------------------------------------------------------------===//
  // Memory
  //===--------------------------------------------------------------------===//

  /// A flat buffer in shared memory.
  Value getShared(int64_t offset, int64_t count, Type type);
  /// The columns of a row-major matrix that one access moves: 16 bytes where the number of
  /// columns allows it.
  static int64_t getWidth(Type element, int64_t columns);
  /// For each chunk of a tile of `rows` rows of `columns` columns, the row, the first column and
  /// the width. Threads take turns.
  void forEachChunk(int64_t rows, int64_t columns, int64_t width,
                    function_ref<void(Value row, Value column)> body);
  /// A tile of a matrix with `columns` columns: rows from `firstRow` up to `endRow` (null: all
  /// are there), and columns from `firstColumn` on.
  struct Tile {
    Value buffer, base, firstRow, endRow, firstColumn;
    int64_t rows, tileColumns, columns;
  };
  /// Copies a tile to shared memory, with zeros beyond the matrix. Elements are cast to `element`
  /// unless it is the buffer's own type.
  void copyTile(const Tile &tile, Value to, int64_t stride, Type element);
  Tile getQueryTile();
  Tile getKeyTile();
  Tile getValueTile();
  Value loadElement(Value buffer, Value index, Type element);

  //===--------------------------------------------------------------------===//
  // The present block and tile
  //===--------------------------------------------------------------------===//

  nn::AttentionOp op;
  AttentionTilePlan plan;
  Value shared, thread, quad;
  /// The unit, its key head, the row of the batch, the first row of the block in the unit, and the
  /// first feature of its slice.
  Value unit, keyUnit, batchIndex, firstRow, firstFeature;
  Value firstKey;
  /// A row of the thread. Rows behind the last one repeat it, and do not `exist` (null: all do).
  struct Row {
    Value index, exists, head, query, place, lowest, highest;
  };
  SmallVector<Row> rows;

private:
  void emitBlock(Value block);
  void startRows();
  std::pair<Value, Value> getKeyRange();
  Type getPlaceType() { return plan.hasPositions ? b.getI64Type() : b.getI32Type(); }
  Value getPlace(int64_t place);
  Value compare(mlir::arith::CmpIPredicate predicate, Value lhs, Value rhs);
  /// Returns true if keys of a tile may be behind the row's last key.
  bool hasRest() const;
  /// Returns true if tiles may be hidden that the range of keys does not leave out.
  bool mayHide() const;
  /// Whether the key of the tile may be seen at all, and, by row, whether the row sees it. Null:
  /// yes.
  void emitMask();
  Value isKey(Value key, Value &place);
  void emitBiases(ArrayRef<Value> keys);
  SmallVector<Value> emitTile(ValueRange state);
  SmallVector<Value> emitUpdate(ValueRange state);
  Value emitScore(Value product, size_t i);
  Value exponentiate(Value score, Value maximum);
  void emitEnd(ValueRange state);
  Value getScalar(double value) { return emitConstant(b, plan.compute, value); }

  std::optional<KernelRegion> biasRegion;
  std::optional<RowEmitter> biasElements;
  std::optional<BiasPoints> biasPoints;
  std::array<int64_t, 4> biasStrides = {0, 0, 0, 0};
  /// The number of keys that the row of the batch has, by index, and its length, by position.
  Value numKeys, length;
  /// For each score of the thread: whether it is seen, and its bias. Null: yes, and none.
  SmallVector<Value> seen, biases;
};

/// Products by FMA, for all types and all sizes of heads.
std::unique_ptr<AttentionTiles> makeAttentionFma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);
/// Products by mma.sync, for bf16 and f16.
std::unique_ptr<AttentionTiles> makeAttentionMma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H
