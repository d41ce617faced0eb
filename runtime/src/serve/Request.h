//===- Request.h - a prompt and its new tokens ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SERVE_REQUEST_H
#define MESHWRIGHT_RUNTIME_SRC_SERVE_REQUEST_H

#include <cstdint>
#include <optional>
#include <vector>

namespace meshwright::rt {

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

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SERVE_REQUEST_H
