//===- ExpertRows.h - the expert of a row, on GPUs --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_EXPERTROWS_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_EXPERTROWS_H

#include "meshwright/lib/Codegen/Elements.h"

namespace meshwright::lower {

/// The number of rows that exist, an index: the last of the offsets that count them. Other numbers than 0 to `rows`
/// are those of all rows.
mlir::Value emitExistingRows(Builder &builder, mlir::Value offsets, int64_t rows);
/// The number of items that have an element of the first `existing` rows. All `items` items go over all `rows` rows in
/// their order.
mlir::Value emitExistingItems(Builder &builder, mlir::Value existing, int64_t rows, int64_t items);

/// The first row of an expert, an index. That of `experts` is the number of all rows.
mlir::Value emitFirstRow(Builder &builder, mlir::Value offsets, mlir::Value expert);
/// The expert whose rows contain the row. Rows that do not exist have the expert `experts`.
mlir::Value emitExpertOfRow(Builder &builder, mlir::Value offsets, int64_t experts,
                            mlir::Value row);

/// Some consecutive rows of one expert, all indices.
struct ExpertTile {
  mlir::Value expert;
  /// The first row, and the end of the expert's rows. There may be more rows between them than a
  /// tile has.
  mlir::Value firstRow, endOfExpert;
  /// True if the tile has a row. The other numbers are those of such a tile alone.
  mlir::Value exists;
};
/// How many tiles of `tileRows` rows contain all rows that may exist in a tensor of `capacity` rows, each those of
/// one expert, in each routing. A tile finds its expert by the offsets alone: the number of the
/// first tile of an expert is firstRow / tileRows + expert. Where experts are more than rows, the
/// number of a tile is that of its first row, and other numbers have none.
int64_t getNumExpertTiles(int64_t capacity, int64_t experts, int64_t tileRows);
ExpertTile emitExpertTile(Builder &builder, mlir::Value offsets, int64_t capacity, int64_t experts,
                          int64_t tileRows, mlir::Value tile);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_EXPERTROWS_H
