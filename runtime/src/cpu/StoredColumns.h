//===- StoredColumns.h - stored matrices as the library reads them -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_STOREDCOLUMNS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_STOREDCOLUMNS_H

#include "Gemm.h"

namespace meshwright::rt {

/// The columns of a panel. The library packs a matrix b to panels itself, for each product: for each group
/// of rows, which one instruction multiplies, the group of each column of the panel.
constexpr int64_t kPanelColumns = 64;

/// The rows of a group.
int64_t getPanelGroup(DType type);
/// The bytes of the panels of so many columns of k rows.
int64_t sizeOfPanels(DType type, int64_t k, int64_t columns);
/// The bytes of scratch memory that `decodePanels` needs.
constexpr int64_t kPieceBytes = 16 << 10;
/// Decodes columns [first, first + columns) of b, which has k rows and is stored transposed or not, to
/// panels. Columns and rows that fill panels up are 0.
void decodePanels(const StoredMatrix &b, bool transposed, DType type, int64_t k, int64_t first,
                  int64_t columns, void *to, void *scratch);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_STOREDCOLUMNS_H
