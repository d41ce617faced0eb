//===- MovedRows.h - rows that go to experts and back -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank has its tokens' rows by member of the group, and then by expert of that member. It has its
// experts' rows by expert, and then by the member that sent them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_MOVEDROWS_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_MOVEDROWS_H

#include "meshwright-c/Runtime.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace meshwright::rt {

/// Numbers of rows: of so many experts for each member of a group.
class RowCounts {
public:
  RowCounts() = default;
  RowCounts(int64_t members, int64_t experts)
      : members(members), experts(experts), numbers(members * experts) {}

  int64_t getNumMembers() const { return members; }
  int64_t getNumExperts() const { return experts; }
  int64_t &at(int64_t member, int64_t expert) { return numbers[member * experts + expert]; }
  int64_t at(int64_t member, int64_t expert) const { return numbers[member * experts + expert]; }
  int64_t ofMember(int64_t member) const {
    auto first = numbers.begin() + member * experts;
    return std::accumulate(first, first + experts, int64_t(0));
  }
  int64_t ofAll() const { return std::accumulate(numbers.begin(), numbers.end(), int64_t(0)); }
  /// The sums by member times `factor`.
  std::vector<int64_t> times(int64_t factor) const {
    std::vector<int64_t> sums;
    for (int64_t member = 0; member < members; ++member)
      sums.push_back(ofMember(member) * factor);
    return sums;
  }
  void *data() { return numbers.data(); }

private:
  int64_t members = 0, experts = 0;
  std::vector<int64_t> numbers;
};

/// The rows that a rank has for the experts of each member, from the offsets of all experts. Experts beyond
/// the last one are padding.
inline RowCounts countSent(const mw_rt_moved_rows &what, int64_t members, const int64_t *offsets) {
  RowCounts counts(members, what.own);
  for (int64_t expert = 0; expert < what.experts; ++expert)
    counts.at(expert / what.own, expert % what.own) = offsets[expert + 1] - offsets[expert];
  return counts;
}

/// Calls `visit(byMember, byExpert, rows)` with the first row of each part in either order, and its rows.
template <typename Visit> void forEachPart(const RowCounts &counts, Visit visit) {
  std::vector<int64_t> starts(counts.getNumMembers(), 0);
  for (int64_t member = 1; member < counts.getNumMembers(); ++member)
    starts[member] = starts[member - 1] + counts.ofMember(member - 1);
  int64_t next = 0;
  for (int64_t expert = 0; expert < counts.getNumExperts(); ++expert)
    for (int64_t member = 0; member < counts.getNumMembers(); ++member) {
      int64_t rows = counts.at(member, expert);
      visit(starts[member], next, rows);
      starts[member] += rows;
      next += rows;
    }
}

/// Writes where the rows of each part begin, and those of each expert, and both ends. Returns the number of
/// all rows.
inline int64_t placeParts(const RowCounts &received, int64_t *parts, int64_t *own) {
  int64_t total = 0;
  for (int64_t expert = 0; expert < received.getNumExperts(); ++expert) {
    *own++ = total;
    for (int64_t member = 0; member < received.getNumMembers(); ++member) {
      *parts++ = total;
      total += received.at(member, expert);
    }
  }
  *parts = *own = total;
  return total;
}

/// The error if more rows came than there is room for; empty if they fit.
inline std::string checkRoom(const mw_rt_moved_rows &what, int64_t total) {
  return total <= what.to_capacity ? ""
                                   : "expected at most " + std::to_string(what.to_capacity) +
                                         " rows from other ranks, got " + std::to_string(total);
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_MOVEDROWS_H
