//===- CallFacts.h - the work of a call, for traces and checks --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_CALLFACTS_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_CALLFACTS_H

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Trace.h"

#include <optional>

namespace meshwright::rt {

/// The first of `rows` rows exist: as many as `*number` says, or as there are choices before the first -1.
struct RowCount {
  int64_t rows = 0;
  const int64_t *number = nullptr, *choices = nullptr;

  /// The part of something of all rows that is of rows that exist. It is all of it where the host would have
  /// to wait for their number.
  int64_t getPart(const Device &device, int64_t ofAll) const;
};

/// The work of a call of `mw_rt_perform`, as its structure states it. It is the same on all
/// devices.
struct CallFacts {
  /// The class of the call in traces and reports. A call without one has no event: it writes
  /// numbers that the rank knows.
  std::optional<TraceKind> kind;
  /// The element type, the operations, and the bytes that the call reads and writes.
  int64_t dtype = -1, flops = 0, bytes = 0;
  /// The values that `--check-finite` looks at; null if there are none.
  const void *checked = nullptr;
  int64_t checkedType = -1, checkedCount = 0;
  /// Where operations, bytes and checked values above are those of all rows, of which some exist.
  RowCount rowCount;
  bool checksRows = false;
  /// The number of the call's buffers if it has a log to undo it by, else 0.
  int64_t logged = 0;
  /// Of a call in which ranks meet: the ranks, and the number of its buffers. Null and 0 for other calls.
  const mw_rt_collective *group = nullptr;
  int64_t exchanged = 0;
};

/// Returns the facts of a call, and no facts for a kind that this runtime does not know.
CallFacts getFacts(const mw_rt_call &what, void *const *buffers);

/// The offset of the rows in a log that begins with the indices of `count` rows.
inline int64_t getLoggedRows(int64_t count) {
  return (count * int64_t(sizeof(int64_t)) + kAlignment - 1) / kAlignment * kAlignment;
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_CALLFACTS_H
