//===- Batch.h - the inputs of one step of serving --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SERVE_BATCH_H
#define MESHWRIGHT_RUNTIME_SRC_SERVE_BATCH_H

#include "meshwright/Serving.h"

#include <limits>
#include <string>

namespace meshwright::rt {

/// An entry of a program that serves.
struct BatchEntry {
  /// The sum of an entry without one.
  static constexpr int64_t kNoSum = std::numeric_limits<int64_t>::max();

  std::string name;
  /// The most tokens of a group, and of all groups together.
  int64_t tokens = 0, sum = kNoSum;
  /// The predicted time of a call.
  double seconds = 0;
};

/// The tokens of a request in a step.
struct BatchRow {
  /// Stays until the step is committed or aborted.
  const Request *request;
  int64_t group;
  /// The row of the group.
  int64_t row;
  /// The tokens [start, start + count) of the sequence.
  int64_t start, count;
  /// The last token of the sequence is among them: its logits choose the next one.
  bool isSampled;
};

/// The decisions of a step, and the inputs of its call. Dense arrays, row-major: G groups of T
/// tokens (the entry's) and R rows (requests at once); B blocks, the most pages of a request.
///
/// - The requests of a group take its rows from the first one on, and their tokens follow one
///   another in the order of the rows. The tokens of a row are the last ones of its length.
/// - A slot is where a token's keys and values go: page x page size + offset. No slot occurs twice
///   in a group, and none is in a page that two requests use.
/// - Padding has the token and position 0, the slot -1, the length 0, and no pages: -1.
struct Batch {
  /// The index of the entry, and T.
  int64_t entry = 0, tokensPerGroup = 0;
  /// The tokens of all groups that are computed: at least 1.
  int64_t numTokens = 0;
  /// In the order in which the tokens were dealt out.
  std::vector<BatchRow> rows;

  /// [G, T].
  std::vector<int64_t> tokens, positions, slots;
  /// [G, R, B]. With pages dealt over A ranks [G, A, R, B / A]: block b of a request is that of
  /// rank b mod A, and pages are counted in the rank's range.
  std::vector<int64_t> tables;
  /// [G, R + 1]: the first token of each row, and the end.
  std::vector<int64_t> starts;
  /// [G, R]: tokens of a request in the cache, with those of this step.
  std::vector<int64_t> lengths;
  /// [G]: tokens of each group.
  std::vector<int64_t> counts;
  /// [G, R]: the token, of the group's T, whose logits choose a token. -1 for rows without a
  /// choice.
  std::vector<int64_t> sampled;
  /// [G, R]. The noise of a choice depends on the seed and the position of the new token, which is
  /// the length.
  std::vector<float> temperatures;
  std::vector<int64_t> seeds;

  /// A hash of all decisions so far, those of this step included. Equal in all processes.
  uint64_t hash = 0;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SERVE_BATCH_H
