//===- CountedRows.h - the numbers of true rows of groups -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_COUNTEDROWS_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_COUNTEDROWS_H

#include "meshwright-c/Runtime.h"

#include "meshwright/runtime/include/Axes.h"

#include <algorithm>
#include <string>
#include <vector>

namespace meshwright::rt {

/// Returns the error of numbers of true rows that do not fit; empty if they do.
inline std::string checkCounts(const mw_rt_counted_rows &what, const int64_t *counts) {
  for (int64_t replica = 0; replica < what.replicas; ++replica) {
    int64_t sum = 0;
    for (int64_t i = 0; i < what.groups; ++i) {
      int64_t count = counts[replica * what.groups + i];
      if (count < 0 || count > what.tokens)
        return "expected 0 to " + std::to_string(what.tokens) + " rows of group " +
               std::to_string(replica * what.groups + i) + ", got " + std::to_string(count);
      sum += count;
    }
    if (sum > what.capacity)
      return "expected at most " + std::to_string(what.capacity) + " rows of all groups, got " +
             std::to_string(sum);
  }
  return "";
}

/// Calls `visit(ofGroup, ofReplica, rows)` for each group and each `outer`: its first row among those of
/// all groups and among the true ones, and its number of true rows.
template <typename Visit>
void forEachGroup(const mw_rt_counted_rows &what, const int64_t *counts, Visit visit) {
  for (int64_t outer = 0; outer < what.outer; ++outer)
    for (int64_t replica = 0; replica < what.replicas; ++replica) {
      int64_t part = outer * what.replicas + replica, to = part * what.capacity;
      for (int64_t i = 0; i < what.groups; ++i) {
        int64_t count = counts[replica * what.groups + i];
        visit((part * what.groups + i) * what.tokens, to, count);
        to += count;
      }
    }
}

/// The true rows that each member has of its part.
inline std::vector<int64_t> countOwn(const mw_rt_exchanged_rows &what, const int64_t *counts) {
  std::vector<int64_t> rows(sizeOfGroup(what.group.group));
  for (size_t member = 0; member < rows.size(); ++member) {
    int64_t first = int64_t(member) * what.own;
    int64_t count = counts[first / what.rows.tokens] - first % what.rows.tokens;
    rows[member] = std::clamp<int64_t>(count, 0, what.own);
  }
  return rows;
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_COUNTEDROWS_H
