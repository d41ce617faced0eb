//===- RingChunks.h - chunks of keys in the steps of a ring -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In a step of a ring a rank has one chunk of the keys and values. Masks, biases and positions
// are there for all keys, and the piece that belongs to the chunk is cut out in each step.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_RINGCHUNKS_H
#define MESHWRIGHT_PASSES_PARTITION_RINGCHUNKS_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright {

/// The dimension of the keys. One class of it is sharded around the ring.
struct KeyDim {
  /// The sharded class.
  dist::LayoutFactor factor;
  /// The number of true elements of the factor, if it has a run-time size; else null.
  mlir::Value size = {};
  /// The numbers of elements of the classes above and below it.
  int64_t above = 1, below = 1;

  int64_t getLocalSize() const { return above * factor.getLocalSize() * below; }
};

/// Writes the pieces of masks, biases and positions that belong to a chunk of the keys, and joins
/// the pieces of a bias's gradient.
class ChunkWriter {
public:
  ChunkWriter(mlir::OpBuilder &builder, mlir::Location loc, dist::MeshAttr mesh, const KeyDim &keys)
      : builder(builder), loc(loc), mesh(mesh), keys(keys) {}

  /// Pads a value that has all keys in dimension `dim`, and puts it in the order of the keys,
  /// as `cut` needs it.
  mlir::Value prepare(mlir::Value whole, int64_t dim);
  /// The piece of a prepared value that belongs to the chunk with that shift.
  mlir::Value cut(mlir::Value prepared, int64_t dim, int64_t shift);
  /// The reverse of `prepare` and `cut`: a value with all keys in dimension `dim`, of blocks that
  /// have one chunk each, those with `shifts`. Zeros for the other chunks.
  mlir::Value join(mlir::ValueRange blocks, int64_t dim, mlir::ArrayRef<int64_t> shifts);
  /// The positions of a chunk's keys. They are negative in padding.
  mlir::Value getPositions(int64_t shift);
  /// The piece of prepared positions that belongs to the chunk. They are negative in padding.
  mlir::Value cutPositions(mlir::Value prepared, int64_t shift);

private:
  mlir::Value reshape(mlir::Value value, mlir::ArrayRef<int64_t> shape);
  /// Puts the true keys of a whole dimension in another order.
  mlir::Value reorder(mlir::Value whole, int64_t dim, bool toContiguous);

  mlir::OpBuilder &builder;
  mlir::Location loc;
  dist::MeshAttr mesh;
  const KeyDim &keys;
};

/// The local operands of attention around a ring; absent ones are null. Masks, biases and
/// positions are those of all keys, as `ChunkWriter::prepare` makes them.
struct RingOperands {
  mlir::Value query, key, value, keyPadding, bias, queryPositions;
  /// Positions of the keys that the program gives. Otherwise they are those of the chunk, if
  /// queries have positions.
  mlir::Value keyPositions, lengths;
  /// The operands of dropout: the terms of indices of all keys, for `cut`.
  mlir::Value dropRows, dropKeys, seed, step;
  /// The dimension of the keys in the bias, and whether the bias has one.
  int64_t biasDim = 0;
  bool cutsBias = false;

  /// The operands of the step in which the chunk was shifted by `shift`, with the keys and values
  /// that are there.
  RingOperands cut(ChunkWriter &chunks, int64_t shift) const;
};

/// Adds what hides keys in each step, and what drops weights, from the local operands behind
/// query, key and value. `queries` are the factors of the queries if the mask compares indices,
/// else none.
void addMasks(mlir::OpBuilder &builder, nn::ScoresOpInterface op, dist::MeshAttr mesh,
              const KeyDim &keys, mlir::ArrayRef<dist::LayoutFactor> queries, ChunkWriter &chunks,
              mlir::ArrayRef<mlir::Value> masks, RingOperands &operands);

} // namespace meshwright

#endif
