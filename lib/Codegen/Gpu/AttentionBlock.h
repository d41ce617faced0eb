//===- AttentionBlock.h - a block of scores, on GPUs ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rows of queries of a block of threads, a tile of keys, the mask and the bias of their scores,
// and copies of tiles to shared memory: the parts that nn.attention and nn.attention_grad share.
//
// The scores of a row of a tile are held by four neighbouring lanes. Of each 8 keys a lane has two.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONBLOCK_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONBLOCK_H

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/AttentionShape.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RandomNumbers.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <functional>

namespace meshwright::lower {

/// How attention is cut into blocks of threads.
///
/// Query heads that share a key head are stored consecutively, so their rows are one matrix. A
/// unit is a query head, or, if the rows of a head do not fill a block, all query heads of a key
/// head. A block of threads computes some rows of a unit, and a slice of the result's features.
///
/// A backward pass multiplies by FMA, and its units are query heads.
struct AttentionTilePlan : AttentionShape {
  /// `hasWgmma`: the chip has wgmma and tensor maps, which may describe query, key and value.
  AttentionTilePlan(nn::ScoresOpInterface op, bool hasWgmma);
  /// A plan of other rows: `headsPerUnit` heads of queries are a unit, and `blocks` is the most blocks that a unit
  /// may have. No kernel of it uses wgmma.
  AttentionTilePlan(const AttentionShape &shape, const ScoreRules &rules, int64_t headsPerUnit);

  /// The threads that compute the same rows, and those of a block.
  static constexpr int64_t threads = 128;
  int64_t blockThreads;
  /// Products by mma.sync or by wgmma, rather than by FMA.
  bool usesMma, usesWgmma;
  /// Heads whose rows are one unit, units of the whole op, rows of a unit.
  int64_t headsPerUnit, units, rows;
  /// Rows of a block, and keys of a tile.
  int64_t blockRows, blockKeys;
  /// Rows and keys of a tile whose scores one thread has.
  int64_t rowsOfThread, keysOfThread;
  /// Features of the result that a block computes, and the slices of all of them.
  int64_t sliceFeatures, slices;
  /// Blocks of a unit and a slice, if each goes over all keys.
  int64_t blocks;
  /// Blocks that share the keys of such a block.
  int64_t splits = 1;
  /// Scores, and how they become weights.
  ScoreRules rules;
  /// The type of the result in memory.
  Type resultElement;

  int64_t getNumBlocks() const { return units * slices * blocks * splits; }
  /// Returns true if the rows of a unit are queries at positions 0, 1, ..., and keys are at such
  /// positions, too.
  bool isOrdered() const { return !hasPositions && headsPerUnit == 1; }
  /// Cuts the keys of each block into splits if that gives blocks to idle multiprocessors.
  void splitKeys();

private:
  void cutFeatures();
};

/// The base of emitters of attention.
class AttentionBlock : protected LoopEmitter, protected AttentionBuffers {
public:
  virtual ~AttentionBlock() = default;

  virtual int64_t getNumBlocks() const { return plan.getNumBlocks(); }
  virtual int64_t getSharedBytes() const = 0;
  /// The bytes of scratch memory, through which blocks that share keys combine their results.
  virtual int64_t getScratchBytes() { return 0; }
  /// Fills the function, whose arguments are the buffers and the shared memory.
  void emit(mlir::func::FuncOp kernel);

protected:
  AttentionBlock(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  /// Emits the block of this number.
  virtual void emitBlock(Value block) = 0;
  /// The row of the block, and the key of the tile, of a row and a key of the thread. Key i + 2 is
  /// 8 behind key i.
  virtual Value getRowOffset(int64_t row) = 0;
  virtual Value getKeyOffset(int64_t key) = 0;
  /// Takes the buffers of operands and results, the first arguments. Returns their number.
  virtual unsigned bindBuffers(mlir::Block &entry);
  /// The number of rows of the unit. Null if they fill all blocks.
  virtual Value getEndOfRows();
  /// The place of a row of the unit among all rows of the result.
  virtual Value getResultRow(Value row);

  //===--------------------------------------------------------------------===//
  // The mask
  //===--------------------------------------------------------------------===//

  /// Reads the length of the row of the batch.
  void startBatch();
  /// Fills `rows` with the rows of the thread in the block that begins at `firstRow` of the unit.
  void startRows();
  /// Fills `seen` and `biases` for the tile that begins at `firstKey`.
  virtual void emitMask();
  /// The keys that rows of the block may see.
  std::pair<Value, Value> getKeyRange();
  /// Returns true if tiles may be hidden that the range of keys does not leave out.
  virtual bool mayHide() { return plan.hasPositions || padding || op.getBias(); }
  /// Returns true if keys of a tile may be behind the row's last key.
  virtual bool hasRest() const;
  Value compare(mlir::arith::CmpIPredicate predicate, Value lhs, Value rhs);
  /// Products times the factor, bounded by the soft cap.
  Value emitCapped(Value product);
  /// The exponential of the score, in its unit, less the maximum.
  Value exponentiate(Value score, Value maximum);
  /// 2^exponent, for an exponent of at most 1.
  Value emitPower(Value exponent);
  Value getScalar(double value) { return emitConstant(b, plan.compute, value); }

  //===--------------------------------------------------------------------===//
  // Dropout
  //===--------------------------------------------------------------------===//

  /// Fills `kept` for the tile that begins at `firstKey`.
  void emitDropout();
  /// The number for score i of the thread, or zero if its weight is dropped.
  Value drop(Value number, size_t i);

  //===--------------------------------------------------------------------===//
  // Memory
  //===--------------------------------------------------------------------===//

  /// A flat buffer in shared memory.
  Value getShared(int64_t offset, int64_t count, Type type);
  /// The columns of a row-major matrix that one access moves: 16 bytes where the number of
  /// columns allows it.
  static int64_t getWidth(Type element, int64_t columns);
  /// For each chunk of a tile of `rows` rows of `columns` columns in shared memory, the row and the
  /// first column. Threads take turns. `bytes` are those of an element there, and `line` those of a
  /// row of the matrix in global memory. If rows begin at odd multiples of 16 bytes, threads whose
  /// chunks of 16 bytes are served together are in different banks.
  void forEachChunk(int64_t rows, int64_t columns, int64_t width, int64_t bytes, int64_t line,
                    function_ref<void(Value row, Value column)> body);
  /// A tile of a matrix with `columns` columns: rows from `firstRow` up to `endRow` (null: all
  /// are there), and columns from `firstColumn` on. Row i is row `place(i)` of the buffer, or, without a function,
  /// the i-th behind the element `base`.
  struct Tile {
    Value buffer, base, firstRow, endRow, firstColumn;
    int64_t rows, tileColumns, columns;
    std::function<Value(Value)> place = nullptr;
  };
  /// Copies a tile to shared memory, with zeros beyond the matrix. Elements are cast to `element`
  /// unless it is the buffer's own type.
  void copyTile(const Tile &tile, Value to, int64_t stride, Type element);
  virtual Tile getQueryTile();
  virtual Tile getKeyTile();
  virtual Tile getValueTile();
  Value loadElement(Value buffer, Value index, Type element);

  //===--------------------------------------------------------------------===//
  // The present block and tile
  //===--------------------------------------------------------------------===//

  /// Null in kernels of other ops.
  nn::ScoresOpInterface op;
  AttentionTilePlan plan;
  Value shared, scratch, thread, quad;
  /// The unit, its key head, the row of the batch, the first row of the block in the unit, and the
  /// first feature of its slice.
  Value unit, keyUnit, batchIndex, firstRow, firstFeature;
  Value firstKey;
  /// A row of the thread. Rows behind the last one repeat it, and do not `exist` (null: all do).
  struct Row {
    Value index, exists, head, query, position, lowest, highest;
  };
  SmallVector<Row> rows;
  /// The number of keys that the row of the batch has, by index.
  Value numKeys;
  /// For each score of the thread: whether it is seen, and its bias. Null: yes, and none.
  SmallVector<Value> seen, biases;
  /// For each row of the thread, a word whose bit i is set if the weight of its key i is kept.
  SmallVector<Value> kept;

private:
  Type getPositionType() { return plan.hasPositions ? b.getI64Type() : b.getI32Type(); }
  Value getPosition(int64_t position);
  /// A truth value: the key may be seen at all. Null if it always may. Sets its position.
  Value isKey(Value key, Value &position);
  void emitBiases(ArrayRef<Value> keys);

  std::optional<KernelRegion> biasRegion;
  std::optional<RowEmitter> biasElements;
  std::optional<BiasPoints> biasPoints;
  std::array<int64_t, 4> biasStrides = {0, 0, 0, 0};
  /// The length of the row of the batch, by position.
  Value length;
  /// The numbers of dropout, loaded before all loops.
  RandomStream random;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONBLOCK_H
