//===- StoredColumns.cpp - stored matrices as the library reads them ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StoredColumns.h"

#include "Codes.h"

#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

/// The groups of a block, which the library reads whole.
static constexpr int64_t kBlockGroups = 16;

int64_t getPanelGroup(DType type) { return type == DType::BF16 ? 2 : 1; }

/// The groups of k rows, those of the last block included.
static int64_t countPanelGroups(DType type, int64_t k) {
  int64_t rows = kBlockGroups * getPanelGroup(type);
  return (k + rows - 1) / rows * kBlockGroups;
}

static int64_t sizeOfPanel(DType type, int64_t k) {
  return countPanelGroups(type, k) * getPanelGroup(type) * kPanelColumns * sizeOf(type);
}

int64_t sizeOfPanels(DType type, int64_t k, int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * sizeOfPanel(type, k);
}

/// Packs columns that are stored as rows of k: a few of them, a piece of each after the other.
static void turnColumns(const StoredMatrix &b, DType type, int64_t k, int64_t first, int64_t columns,
                        char *panel, void *scratch) {
  int64_t size = sizeOf(type), group = getPanelGroup(type), rows = kPieceBytes / (kTurnRows * size);
  for (int64_t column = 0; column < columns; column += kTurnRows)
    for (int64_t row = 0; row < k; row += rows) {
      int64_t width = std::min(kTurnRows, columns - column), some = std::min(rows, k - row);
      b.decode({first + column, width, row, some}, type, scratch);
      auto *to = reinterpret_cast<uint32_t *>(panel) + row / group * kPanelColumns + column;
      getCodeKernels().turn(static_cast<const uint32_t *>(scratch), width, some / group, to);
    }
}

/// Packs rows of k, or columns that do not end with a whole group.
static void packColumns(const StoredMatrix &b, bool transposed, DType type, int64_t k, int64_t first,
                        int64_t columns, char *panel, void *scratch) {
  int64_t rows = kPieceBytes / (kPanelColumns * sizeOf(type));
  for (int64_t row = 0; row < k; row += rows) {
    mw_rt_packing part = {};
    part.stored = part.dtype = int64_t(type);
    part.k = std::min(rows, k - row);
    part.n = columns;
    part.transposed = transposed;
    part.panel = kPanelColumns;
    part.group = getPanelGroup(type);
    FormBlock block{row, part.k, first, columns}, turned{first, columns, row, part.k};
    b.decode(transposed ? turned : block, type, scratch);
    packPanels(part, scratch, panel, 0, 1);
    panel += sizeOfPacked(part);
  }
}

void decodePanels(const StoredMatrix &b, bool transposed, DType type, int64_t k, int64_t first,
                  int64_t columns, void *to, void *scratch) {
  int64_t size = sizeOfPanel(type, k), group = getPanelGroup(type), bytes = kPanelColumns * sizeOf(type);
  for (int64_t column = 0; column < columns; column += kPanelColumns) {
    char *panel = static_cast<char *>(to) + column / kPanelColumns * size;
    int64_t width = std::min(kPanelColumns, columns - column), whole = k / group * group;
    if (width < kPanelColumns)
      std::memset(panel, 0, size);
    else
      std::memset(panel + whole * bytes, 0, size - whole * bytes);
    if (transposed && whole == k)
      turnColumns(b, type, k, first + column, width, panel, scratch);
    else
      packColumns(b, transposed, type, k, first + column, width, panel, scratch);
  }
}

} // namespace meshwright::rt
