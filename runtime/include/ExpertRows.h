//===- ExpertRows.h - the load of experts in a run --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_EXPERTROWS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_EXPERTROWS_H

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// The rows that the experts of a rank had in a routing, of the experts from `first` on, and the choices
/// that a limit dropped.
struct ExpertRows {
  int64_t first = 0, dropped = 0;
  std::vector<int64_t> rows;
};

/// The load of a layer of experts in a call.
struct ExpertLoad {
  /// The number of the layer in the program.
  int64_t layer = 0;
  /// Rows that each rank computed: pairs of a token and an expert.
  std::vector<int64_t> rowsPerRank;
  /// The rows of each expert on the ranks.
  std::vector<int64_t> rowsPerExpert;
  int64_t dropped = 0;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_EXPERTROWS_H
