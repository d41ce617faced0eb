//===- Fetches.h - reports on weights in shards -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section of a report on weights that ranks store in shards and gather before they use them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_FETCHES_H
#define MESHWRIGHT_LIB_REPORT_FETCHES_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

/// Times are those of the cost model, in seconds; bytes are those of a rank.
struct FetchReport {
  /// One gather of a weight.
  struct Gather {
    /// The phase in which it is read first: forward, recompute or backward.
    std::string phase;
    int64_t bytes = 0;
    double seconds = 0;
    /// The part of them in which nothing else runs.
    double exposedSeconds = 0;
    /// Weights between the one in use when it begins and its own first reader.
    int64_t ahead = 0;
    /// The number of its place in the arena, and of the launches in which it is there.
    int64_t slot = 0, first = 0, last = 0;
  };
  /// The scatter of a gradient.
  struct Scatter {
    int64_t bytes = 0;
    double seconds = 0, exposedSeconds = 0;
  };
  struct Weight {
    std::string name;
    /// The form in which it travels: plain, mxfp8 or nvfp4.
    std::string kind = "plain";
    /// Rows of the weight as a rank uses it, and as it stores it.
    int64_t rows = 0, storedRows = 0;
    int64_t bytes = 0, storedBytes = 0;
    std::vector<Gather> gathers;
    std::optional<Scatter> scatter;
  };
  /// A place in the arena.
  struct Slot {
    int64_t offset = 0, bytes = 0;
  };

  std::vector<std::string> axes;
  int64_t ranks = 1;
  /// A shard has a multiple of so many rows.
  int64_t align = 1;
  std::vector<Weight> weights;
  std::vector<Slot> slots;
  /// The seconds of one call, with all of its runs.
  double gatherSeconds = 0, scatterSeconds = 0, exposedSeconds = 0;
  /// All of a rank's memory, the most that it may be, and the least that a plan needs, if it is
  /// known.
  int64_t peak = 0;
  std::optional<int64_t> ceiling, least;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_FETCHES_H
