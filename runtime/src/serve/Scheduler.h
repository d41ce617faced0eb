//===- Scheduler.h - requests, pages and the choice of batches --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step of serving: `plan` decides which tokens of which requests are computed and fills the
// inputs of one entry. The caller runs it, and reports the tokens that it chose by `commit`, or a
// failure by `abort`. docs/rationale/serving-scheduler.md gives the reasons for the decisions.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SERVE_SCHEDULER_H
#define MESHWRIGHT_RUNTIME_SRC_SERVE_SCHEDULER_H

#include "meshwright/runtime/src/serve/Batch.h"
#include "meshwright/runtime/src/serve/PagePool.h"

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// Holds requests and pages, and chooses batches.
///
/// - Decisions are a function of what was submitted, cancelled and chosen, in this order. There is
///   no clock, no randomness, and no loop over an unordered container. Processes that make the same
///   calls decide alike, and `Batch::hash` shows it.
/// - An aborted step changes nothing: no request, no list of pages, no statistics. The next plan is
///   the same one.
/// - If a request waits or runs, `plan` has a step, and each request is done after a finite number
///   of them.
/// - No request that waits is passed by a later one, except into groups in which it may not run.
/// - A page is registered after the step that wrote it is committed.
/// - Memory depends on the sizes and on the requests that wait or run, not on past ones. A step
///   takes time for the requests that run, their pages, and the tokens of the entry.
///
/// Not safe to use from several threads at once.
class Scheduler {
public:
  /// Returns null, with an error, if sizes or entries do not fit together.
  static std::unique_ptr<Scheduler> create(const ServingSizes &sizes,
                                           std::vector<BatchEntry> entries, std::string &error);

  const ServingSizes &getSizes() const { return sizes; }
  const std::vector<BatchEntry> &getEntries() const { return entries; }
  const PagePool &getPool(int64_t group) const { return pools[group]; }

  /// Adds a request. Returns null, with an error, for one that cannot be served. A step may be
  /// open.
  std::shared_ptr<const Request> submit(const std::vector<int64_t> &prompt, RequestOptions options,
                                        std::string &error);
  /// Ends a request; one that is done stays as it is. Returns false, with an error, while a step is
  /// open.
  bool cancel(const Request &request, std::string &error);
  /// The requests that wait or run, in the order of submission.
  std::vector<std::shared_ptr<const Request>> getRequests() const;
  /// Returns true if a request of that number waits or runs.
  bool isLive(int64_t id) const { return live.count(id) > 0; }
  ServingStats getStats() const;

  /// Opens a step and returns its batch, which stays until the step ends, or null if no request
  /// waits or runs. A step that is open is aborted before.
  const Batch *plan();
  bool hasOpenStep() const { return isOpen; }
  /// Ends the open step. `chosen` is [G, R]: the token that each row of `Batch::sampled` chose;
  /// others are not read. Returns false, with an error, if a token is out of range; the step is
  /// then aborted.
  bool commit(const std::vector<int64_t> &chosen, std::string &error);
  void abort();

  /// Writes all requests and pages as text. Returns false, with an error, while a step is open.
  bool save(std::string &text, std::string &error) const;
  /// Sets the requests of a scheduler that has none from a text of `save`. Where groups, pages,
  /// page size and sharing are equal and the caller has set the caches (`hasCaches`), they go on
  /// with their pages; otherwise all wait, and their caches are computed again. A request of a
  /// group that is not there may run in any. Changes nothing after an error: a text of another
  /// model, a request that does not fit.
  bool restore(const std::string &text, bool hasCaches, std::string &error);

private:
  /// Requests that wait, by id.
  using Queue = std::map<int64_t, Request *>;
  /// The most tokens of a group and of all, for a schedule.
  struct Limits {
    int64_t tokens, sum;
  };
  /// A change of a request that `abort` takes back.
  struct Undo {
    enum class Change { Admitted, Preempted, Grown } change;
    Request *request;
    /// Of a request that was preempted: its index among those that ran, and its cache.
    size_t index = 0;
    int64_t group = -1, length = 0, numShared = 0;
    std::vector<int64_t> pages = {};
  };

  Scheduler(const ServingSizes &sizes, std::vector<BatchEntry> entries);
  Scheduler &operator=(Scheduler &&) = default;
  std::string check(const Request &request) const;
  Queue &getQueue(const Request &request);

  int64_t countBlocks(int64_t tokens) const {
    return (tokens + sizes.pageSize - 1) / sizes.pageSize;
  }
  bool mayGrow(const Request &request) const;

  void schedule(Limits limits);
  void count(const Request &request, int64_t sign);
  bool hasRoom(int64_t group) const;
  void deal(Request &request);
  bool grow(Request &request);
  Request *preempt(int64_t group);
  void admit();
  Queue *findFirst();
  int64_t chooseGroup(const Request &request);
  void findBeginning(const Request &request, int64_t group);
  bool fits(const Request &request, int64_t group) const;
  void start(Request &request, int64_t group);
  void undo();

  bool canServe(const BatchEntry &entry) const;
  const BatchEntry &choosePace() const;
  int64_t chooseEntry() const;
  void fill();
  void fillTable(int64_t group, int64_t row, const int64_t *pages, int64_t blocks);
  void hashDecisions();

  std::string readRequests(const nlohmann::ordered_json &json);
  std::string readCaches(const nlohmann::ordered_json &json);

  void stopRunning(Request &request, Request::Status status);
  void enterPages(Request &request);
  void finish(Request &request, Request::Reason reason);

  ServingSizes sizes;
  std::vector<BatchEntry> entries;
  Limits largest;
  std::vector<PagePool> pools;

  /// The requests that wait or run.
  std::map<int64_t, std::shared_ptr<Request>> live;
  /// By group that the user stated; the last one has those without.
  std::vector<Queue> queues;
  /// In the order of admission.
  std::vector<Request *> running;
  int64_t nextId = 0;
  ServingStats stats;
  uint64_t hash = 0;

  /// The open step.
  bool isOpen = false;
  Batch batch;
  std::vector<Undo> undoLog;
  Limits limits = {};
  /// By group: the tokens that are dealt out, how many of them are of requests with one missing
  /// token, and the rows of the batch.
  std::vector<int64_t> dealt, decoding, numRows;
  int64_t dealtSum = 0;
  /// By group: the requests that run, how many of them may take more pages, and their missing
  /// tokens.
  std::vector<int64_t> numRunning, numGrowing, numMissing;
  /// By group: true if no further request may start in this step.
  std::vector<char> isClosed;
  /// By group and row: how many blocks `Batch::tables` has.
  std::vector<int64_t> filled;
  /// Pages of a request's beginning in the group that is looked at, and in the best one so far.
  std::vector<int64_t> beginning, found;
  std::vector<int64_t> words;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SERVE_SCHEDULER_H
