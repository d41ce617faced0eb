//===- CountedRows.cpp - the true rows of groups, on CPUs -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"
#include "Reduce.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/ranks/CountedRows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace meshwright::rt {

/// Calls `move(from, to, counts, bytes)` with the buffers of a call, if the numbers of rows fit.
template <typename Move>
static bool moveCounted(const mw_rt_counted_rows &what, void *const *buffers, std::string &error, Move move) {
  const auto *counts = static_cast<const int64_t *>(buffers[1]);
  error = checkCounts(what, counts);
  if (!error.empty())
    return false;
  move(static_cast<const char *>(buffers[0]), static_cast<char *>(buffers[2]), counts,
       what.inner * sizeOf(DType(what.dtype)));
  return true;
}

bool CpuDevice::perform(const mw_rt_compact &call, void *const *buffers, std::string &error) {
  const mw_rt_counted_rows &what = call.rows;
  auto move = [&](const char *from, char *to, const int64_t *counts, int64_t bytes) {
    int64_t end = 0;
    forEachGroup(what, counts, [&](int64_t ofGroup, int64_t ofReplica, int64_t rows) {
      // Rows between the last replica's true ones and this one's.
      if (ofReplica > end)
        std::memset(to + end * bytes, 0, (ofReplica - end) * bytes);
      std::memcpy(to + ofReplica * bytes, from + ofGroup * bytes, rows * bytes);
      end = ofReplica + rows;
    });
    std::memset(to + end * bytes, 0, (what.outer * what.replicas * what.capacity - end) * bytes);
  };
  return moveCounted(what, buffers, error, move);
}

bool CpuDevice::perform(const mw_rt_expand &call, void *const *buffers, std::string &error) {
  const mw_rt_counted_rows &what = call.rows;
  auto move = [&](const char *from, char *to, const int64_t *counts, int64_t bytes) {
    forEachGroup(what, counts, [&](int64_t ofGroup, int64_t ofReplica, int64_t rows) {
      std::memcpy(to + ofGroup * bytes, from + ofReplica * bytes, rows * bytes);
      std::memset(to + (ofGroup + rows) * bytes, 0, (what.tokens - rows) * bytes);
    });
  };
  return moveCounted(what, buffers, error, move);
}

//===----------------------------------------------------------------------===//
// Between ranks
//===----------------------------------------------------------------------===//

static std::vector<int64_t> times(std::vector<int64_t> numbers, int64_t factor) {
  for (int64_t &number : numbers)
    number *= factor;
  return numbers;
}

static int64_t sumOf(const std::vector<int64_t> &numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t(0));
}

bool CpuDevice::perform(const Caller &caller, const mw_rt_all_gather_v &call, void *const *buffers,
                        std::string &error) {
  const mw_rt_exchanged_rows &what = call.what;
  const auto *counts = static_cast<const int64_t *>(buffers[1]);
  error = checkCounts(what.rows, counts);
  if (!error.empty())
    return false;
  int64_t bytes = what.rows.inner * sizeOf(DType(what.rows.dtype)), outer = what.rows.outer;
  std::vector<int64_t> rows = countOwn(what, counts);
  int64_t own = rows[coordinateOf(what.group.group, context.rank)], sum = sumOf(rows);
  // Each member gets the same rows.
  std::vector<char> leaving(rows.size() * outer * own * bytes), arrived(outer > 1 ? outer * sum * bytes : 0);
  const auto *from = static_cast<const char *>(buffers[0]);
  for (size_t i = 0; i < rows.size() * outer; ++i)
    std::memcpy(leaving.data() + i * own * bytes, from + i % outer * what.own * bytes, own * bytes);
  auto *to = static_cast<char *>(buffers[2]);
  std::vector<int64_t> sent(rows.size(), outer * own * bytes);
  if (!collectives->exchange(caller, what.group, leaving.data(), sent,
                             outer > 1 ? arrived.data() : to, times(rows, outer * bytes)))
    return false;
  const char *next = arrived.data();
  for (int64_t first = 0, member = 0; outer > 1 && member < int64_t(rows.size()); first += rows[member++])
    for (int64_t i = 0; i < outer; ++i, next += rows[member] * bytes)
      std::memcpy(to + (i * what.rows.capacity + first) * bytes, next, rows[member] * bytes);
  for (int64_t i = 0; i < outer; ++i)
    std::memset(to + (i * what.rows.capacity + sum) * bytes, 0, (what.rows.capacity - sum) * bytes);
  std::memcpy(buffers[3], counts, what.rows.groups * sizeof(int64_t));
  return true;
}

bool CpuDevice::perform(const Caller &caller, const mw_rt_reduce_scatter_v &call, void *const *buffers,
                        std::string &error) {
  const mw_rt_exchanged_rows &what = call.what;
  const auto *counts = static_cast<const int64_t *>(buffers[1]);
  error = checkCounts(what.rows, counts);
  if (!error.empty())
    return false;
  int64_t bytes = what.rows.inner * sizeOf(DType(what.rows.dtype)), outer = what.rows.outer;
  std::vector<int64_t> rows = countOwn(what, counts);
  int64_t self = 0, members = rows.size(), own = rows[coordinateOf(what.group.group, context.rank)];
  const auto *from = static_cast<const char *>(buffers[0]);
  // With one outer element the rows of the members follow each other already.
  std::vector<char> leaving;
  if (outer > 1) {
    for (int64_t first = 0, member = 0; member < members; first += rows[member++])
      for (int64_t i = 0; i < outer; ++i) {
        const char *begin = from + (i * what.rows.capacity + first) * bytes;
        leaving.insert(leaving.end(), begin, begin + rows[member] * bytes);
      }
    from = leaving.data();
  }
  std::vector<char> arrived(members * outer * own * bytes);
  std::vector<int64_t> received(members, outer * own * bytes);
  if (!collectives->exchange(caller, what.group, from,
                             times(rows, outer * bytes), arrived.data(), received))
    return false;
  std::vector<int64_t> ranks = groupOf(what.group.group, context.rank, self), order(members);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
  auto *to = static_cast<char *>(buffers[2]);
  for (int64_t i = 0; i < outer; ++i) {
    std::vector<const void *> parts;
    for (int64_t member : order)
      parts.push_back(arrived.data() + (member * outer + i) * own * bytes);
    char *begin = to + i * what.own * bytes;
    reduce(DType(what.rows.dtype), what.group.reduction, parts, {begin}, own * what.rows.inner);
    std::memset(begin + own * bytes, 0, (what.own - own) * bytes);
  }
  std::memcpy(buffers[3], counts, what.rows.groups * sizeof(int64_t));
  return true;
}

} // namespace meshwright::rt
