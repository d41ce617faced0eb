//===- ServeTest.h - a model that shows what it reads -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_UNIT_SERVETEST_H
#define MESHWRIGHT_TEST_UNIT_SERVETEST_H

#include "meshwright/runtime/src/serve/Scheduler.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace meshwright::rt::test {

inline uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9e3779b97f4a7c15;
  return state ^ state >> 29;
}

/// The choice of a token by all that the request has in the cache.
inline int64_t choose(uint64_t seen, double temperature, int64_t seed, int64_t position,
                      int64_t vocabulary) {
  if (temperature > 0) {
    float rounded = temperature;
    uint32_t bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    seen = mix(mix(mix(seen, bits), seed), position);
  }
  return int64_t(mix(seen, 1) % uint64_t(vocabulary));
}

/// The value of a token depends on all tokens before it.
inline uint64_t getValue(uint64_t before, int64_t token) { return mix(before, token + 1); }

struct Answer {
  std::vector<int64_t> tokens;
  const char *reason;
};

/// The new tokens of a request that is alone in the world.
inline Answer answer(std::vector<int64_t> sequence, const RequestOptions &options,
                     int64_t vocabulary) {
  size_t numPrompt = sequence.size();
  uint64_t value = 0, seen = 0;
  for (size_t i = 0;; ++i) {
    value = getValue(value, sequence[i]);
    seen = mix(seen, value);
    if (i + 1 < sequence.size())
      continue;
    int64_t token = choose(seen, options.temperature, options.seed, sequence.size(), vocabulary);
    sequence.push_back(token);
    bool stops = std::count(options.stop.begin(), options.stop.end(), token) > 0;
    if (stops || int64_t(sequence.size() - numPrompt) == options.maxNewTokens)
      return {{sequence.begin() + numPrompt, sequence.end()}, stops ? "stop" : "length"};
  }
}

/// A device with the caches of all groups. It runs a batch as a kernel would: it writes to slots
/// and reads through tables. It checks all that it reads and writes.
class Device {
public:
  explicit Device(const ServingSizes &sizes)
      : sizes(sizes), cells(sizes.groups * sizes.pages * sizes.pageSize) {}

  /// Returns the chosen tokens, [G, R]; -7 for rows without a choice.
  std::vector<int64_t> run(const Batch &batch, const Scheduler &scheduler) {
    ++step;
    int64_t rows = sizes.maxRequests, width = batch.tokensPerGroup;
    std::vector<int64_t> chosen(sizes.groups * rows, -7);
    for (int64_t group = 0; group < sizes.groups; ++group) {
      const int64_t *starts = &batch.starts[group * (rows + 1)];
      EXPECT_EQ(starts[0], 0);
      EXPECT_EQ(starts[rows], batch.counts[group]);
      std::set<int64_t> written;
      for (int64_t t = 0; t < width; ++t) {
        int64_t slot = batch.slots[group * width + t];
        EXPECT_EQ(slot >= 0, t < batch.counts[group]);
        if (slot < 0) {
          EXPECT_EQ(batch.tokens[group * width + t], 0);
          continue;
        }
        EXPECT_TRUE(written.insert(slot).second);
        EXPECT_EQ(scheduler.getPool(group).countReferences(slot / sizes.pageSize), 1);
        EXPECT_FALSE(scheduler.getPool(group).isRegistered(slot / sizes.pageSize));
      }
      for (int64_t row = 0; row < rows; ++row) {
        int64_t at = group * rows + row;
        uint64_t seen = runRow(batch, group, row);
        int64_t sampled = batch.sampled[at];
        EXPECT_TRUE(sampled == -1 ||
                    (sampled == starts[row + 1] - 1 && starts[row + 1] > starts[row]));
        if (sampled >= 0)
          chosen[at] = choose(seen, batch.temperatures[at], batch.seeds[at], batch.lengths[at],
                              sizes.vocabulary);
      }
    }
    return chosen;
  }

  /// Destroys all rows of pages that hold no token of a request that runs, nor of a kept page.
  void poison(const Scheduler &scheduler) {
    std::vector<bool> isHeld(cells.size());
    for (int64_t group = 0; group < sizes.groups; ++group)
      for (int64_t page = 0; page < sizes.pages; ++page)
        if (scheduler.getPool(group).isRegistered(page))
          for (int64_t i = 0; i < sizes.pageSize; ++i)
            isHeld[(group * sizes.pages + page) * sizes.pageSize + i] = true;
    for (const auto &request : scheduler.getRequests())
      for (int64_t i = 0; i < request->length; ++i)
        isHeld[(request->group * sizes.pages + request->pages[i / sizes.pageSize]) *
                   sizes.pageSize +
               i % sizes.pageSize] = true;
    for (size_t i = 0; i < cells.size(); ++i)
      if (!isHeld[i])
        cells[i] = {0xdead, -1, -1};
  }

private:
  struct Cell {
    uint64_t value = 0xdead;
    int64_t position = -1, step = -1;
  };

  /// The cell of a position, by the table.
  Cell &getCell(const Batch &batch, int64_t group, int64_t row, int64_t position) {
    int64_t block = position / sizes.pageSize, width = sizes.countBlocks() / sizes.deal;
    int64_t range = block % sizes.deal;
    int64_t local = batch.tables[((group * sizes.deal + range) * sizes.maxRequests + row) * width +
                                 block / sizes.deal];
    int64_t perRange = sizes.pages / sizes.deal;
    EXPECT_TRUE(local >= 0 && local < perRange);
    int64_t page = range * perRange + local;
    return cells[(group * sizes.pages + page) * sizes.pageSize + position % sizes.pageSize];
  }

  uint64_t runRow(const Batch &batch, int64_t group, int64_t row) {
    int64_t rows = sizes.maxRequests, length = batch.lengths[group * rows + row];
    const int64_t *starts = &batch.starts[group * (rows + 1) + row];
    int64_t count = starts[1] - starts[0], blocks = (length + sizes.pageSize - 1) / sizes.pageSize;
    EXPECT_EQ(count > 0, length > 0);
    for (int64_t block = blocks; block < sizes.countBlocks(); ++block)
      EXPECT_EQ(batch.tables[((group * sizes.deal + block % sizes.deal) * rows + row) *
                                 (sizes.countBlocks() / sizes.deal) +
                             block / sizes.deal],
                -1);
    for (int64_t t = 0; t < count; ++t) {
      int64_t at = group * batch.tokensPerGroup + starts[0] + t, position = length - count + t;
      EXPECT_EQ(batch.positions[at], position);
      uint64_t before = position > 0 ? getCell(batch, group, row, position - 1).value : 0;
      Cell &cell = cells[group * sizes.pages * sizes.pageSize + batch.slots[at]];
      EXPECT_EQ(&cell, &getCell(batch, group, row, position));
      cell = {getValue(before, batch.tokens[at]), position, step};
    }
    uint64_t seen = 0;
    for (int64_t position = 0; position < length; ++position) {
      Cell &cell = getCell(batch, group, row, position);
      EXPECT_EQ(cell.position, position);
      // Rows of this step are the request's own.
      EXPECT_EQ(cell.step == step, position >= length - count);
      seen = mix(seen, cell.value);
    }
    return seen;
  }

  ServingSizes sizes;
  std::vector<Cell> cells;
  int64_t step = 0;
};

/// Checks the invariants of pages against the requests.
inline void checkPages(const Scheduler &scheduler) {
  const ServingSizes &sizes = scheduler.getSizes();
  std::vector<std::vector<int64_t>> references(sizes.groups, std::vector<int64_t>(sizes.pages));
  int64_t used = 0;
  for (const auto &request : scheduler.getRequests()) {
    if (request->status != Request::Status::Running) {
      EXPECT_EQ(request->status, Request::Status::Waiting);
      EXPECT_EQ(request->group, request->options.group.value_or(-1));
      EXPECT_TRUE(request->pages.empty() && request->length == 0);
      continue;
    }
    EXPECT_EQ(request->group, request->options.group.value_or(request->group));
    EXPECT_LE(request->length, int64_t(request->pages.size()) * sizes.pageSize);
    EXPECT_LE(request->numShared * sizes.pageSize, request->length);
    EXPECT_GE(request->countMissing(), 1);
    for (size_t block = 0; block < request->pages.size(); ++block) {
      int64_t page = request->pages[block];
      used += references[request->group][page]++ == 0;
      EXPECT_EQ(page / (sizes.pages / sizes.deal), int64_t(block) % sizes.deal);
      EXPECT_EQ(scheduler.getPool(request->group).isRegistered(page),
                int64_t(block) < request->numShared);
    }
  }
  for (int64_t group = 0; group < sizes.groups; ++group)
    for (int64_t page = 0; page < sizes.pages; ++page) {
      const PagePool &pool = scheduler.getPool(group);
      EXPECT_EQ(pool.countReferences(page), references[group][page]);
      EXPECT_TRUE(pool.countReferences(page) <= 1 || pool.isRegistered(page));
    }
  ServingStats stats = scheduler.getStats();
  EXPECT_EQ(stats.pages, sizes.groups * sizes.pages);
  EXPECT_EQ(stats.freePages, stats.pages - used);
}

} // namespace meshwright::rt::test

#endif // MESHWRIGHT_TEST_UNIT_SERVETEST_H
