//===- Serving.h - programs that serve requests -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_SERVING_H
#define MESHWRIGHT_SERVING_H

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace meshwright {

/// How the tokens of all groups meet, where all ranks share a layer.
enum class TokenGather {
  /// As `Max` or as `Sum`, step by step.
  Auto,
  /// Each group is padded to its capacity.
  Max,
  /// The groups are compacted to the capacity of their sum.
  Sum
};

/// How a causal language model serves requests. All numbers but `groups` are those of one group.
struct ServeOptions {
  /// The groups of requests: the ranks of data parallelism times those of data-parallel attention.
  int64_t groups = 1;
  /// The ranks over which a group's pages are dealt; 1: its ranks shard the heads.
  int64_t deal = 1;
  /// Rows of a page.
  int64_t pageSize = 16;
  /// Pages of a cache; 0: enough for all requests at full length.
  int64_t pages = 0;
  /// The most requests that run at once.
  int64_t maxRequests = 64;
  /// Tokens of a step, ascending, an entry for each; empty: `getDefaultBuckets`.
  std::vector<int64_t> buckets;
  /// Of several groups: entries by the capacity of a group, by those of a group and of all, or both.
  TokenGather gather = TokenGather::Max;
  /// Whole pages of equal beginnings are shared.
  bool sharesBeginnings = false;
};

/// The sizes of a program that serves. All but the first are those of one group.
struct ServingSizes {
  int64_t groups = 1;
  /// The most tokens of a request: prompt and new ones.
  int64_t maxLength = 0;
  int64_t pageSize = 0, pages = 0;
  /// The most requests that run at once.
  int64_t maxRequests = 0;
  /// The tokens are 0 to vocabulary - 1.
  int64_t vocabulary = 0;
  /// The ranks over which a group's pages are dealt: 1 for a cache by kv heads.
  int64_t deal = 1;
  /// Whole pages of equal beginnings are shared.
  bool sharesBeginnings = false;

  /// The most pages of a request, B: a multiple of `deal`.
  int64_t countBlocks() const;
};

/// The buckets of tokens that `serve` has by default: 1, 4, 16, ... below the requests of a group,
/// these, and 512; ascending.
std::vector<int64_t> getDefaultBuckets(int64_t maxRequests);

/// Returns true for a parameter that is no weight of the model, but a table that the import computed, such as
/// rotary positions: "constant.0". Its shape may depend on the most tokens of a request.
inline bool isComputedTable(std::string_view name) {
  constexpr std::string_view prefix = "constant.";
  return name.size() > prefix.size() && name.substr(0, prefix.size()) == prefix &&
         name.find_first_not_of("0123456789", prefix.size()) == name.npos;
}

/// Numbers since the scheduler was created.
struct ServingStats {
  int64_t steps = 0;
  /// Tokens of prompts that were computed: once more after a preemption, and not where they are
  /// shared.
  int64_t promptTokens = 0;
  int64_t generated = 0;
  /// How often a request lost its pages to others.
  int64_t preempted = 0;
  /// Calls by entry.
  std::vector<int64_t> calls;
  /// Of all groups. Kept pages count as free.
  int64_t pages = 0, freePages = 0;
  int64_t waiting = 0, running = 0;
};

/// A user states these beside the prompt.
struct RequestOptions {
  int64_t maxNewTokens = 32;
  /// Each ends the request, and is its last token.
  std::vector<int64_t> stop;
  /// 0 chooses the token with the largest logit.
  double temperature = 0;
  int64_t seed = 0;
  /// The user asks for the logits that chose the tokens.
  bool wantsLogits = false;
  /// The group that computes the request; none leaves the choice to the scheduler.
  std::optional<int64_t> group;
};

/// A request. Users read it, and the scheduler changes it.
///
/// - A request waits, runs, or is done, and has a reason only when it is done.
/// - `length` tokens of the sequence are in the cache, in `pages`, in order. A request that runs
///   has more tokens than that: the rest is to be computed. One that does not run has no pages.
/// - A request that waits has the group that the user stated, or none. One that is done keeps the
///   group in which it ran last, if it did.
/// - Between steps, the first `numShared` pages are whole and registered, and other requests may
///   have them too. All others belong to this request alone. With shared beginnings all whole pages
///   are registered.
struct Request {
  enum class Status { Waiting, Running, Done };
  enum class Reason { None, Length, Stop, Cancelled };

  /// Ascending in the order of submission.
  int64_t id = 0;
  RequestOptions options;
  Status status = Status::Waiting;
  Reason reason = Reason::None;
  /// The prompt, and the new tokens behind it.
  std::vector<int64_t> sequence;
  int64_t numPrompt = 0;
  int64_t group = -1;
  std::vector<int64_t> pages;
  int64_t numShared = 0;
  int64_t length = 0;

  int64_t countNew() const { return int64_t(sequence.size()) - numPrompt; }
  const int64_t *getNew() const { return sequence.data() + numPrompt; }
  /// The tokens that are not in the cache.
  int64_t countMissing() const { return int64_t(sequence.size()) - length; }
  bool isDone() const { return status == Status::Done; }
};

/// Returns "length", "stop" or "cancelled"; null for a request that is not done.
inline const char *nameOf(Request::Reason reason) {
  switch (reason) {
  case Request::Reason::Length:
    return "length";
  case Request::Reason::Stop:
    return "stop";
  case Request::Reason::Cancelled:
    return "cancelled";
  case Request::Reason::None:
    break;
  }
  return nullptr;
}

} // namespace meshwright

#endif // MESHWRIGHT_SERVING_H
