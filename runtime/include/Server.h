//===- Server.h - a session that serves requests ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_SERVER_H
#define MESHWRIGHT_RUNTIME_INCLUDE_SERVER_H

#include "meshwright/Serving.h"
#include "meshwright/runtime/include/Session.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::rt {

class Scheduler;
struct Batch;
struct BatchRow;

/// A request and its logits, which both grow with its steps.
struct ServedRequest {
  std::shared_ptr<const Request> request;
  /// The rows of logits that chose the new tokens, in `Server::getLogitsType`. Null if the request
  /// did not ask for them.
  std::shared_ptr<const std::vector<char>> logits;
};

/// Serves requests by calls of a session, whose entries are steps of serving.
///
/// - A step that fails changes no request.
/// - With ranks in several processes, all processes make the same calls in the same order; each
///   decides alike, and a step fails in all of them if it fails in one.
/// - Any thread may call it. Calls wait for one another.
class Server {
public:
  /// Returns null, with an error, if the session's program does not serve. Goes on with the
  /// requests of the state that the session started from. `options` are those of its calls.
  static std::unique_ptr<Server> create(std::shared_ptr<Session> session, const RunOptions &options,
                                        std::string &error);
  ~Server();

  const ServingSizes &getSizes() const;
  DType getLogitsType() const { return logitsType; }
  /// The names of the entries, in the order of `ServingStats::calls`.
  std::vector<std::string> getEntries() const;

  /// Adds a request. Returns one without a request, with an error, if it cannot be served.
  ServedRequest submit(const std::vector<int64_t> &prompt, RequestOptions options,
                       std::string &error);
  /// Ends a request; one that is done stays as it is.
  bool cancel(const Request &request, std::string &error);
  /// The requests that wait or run, in the order of submission.
  std::vector<ServedRequest> getRequests() const;
  ServingStats getStats() const;

  /// Runs one batch. Returns the tokens that it computed, 0 if no request waits or runs, and -1,
  /// with an error, after a failure.
  int64_t step(std::string &error);
  /// Runs each entry once without requests, so that weights are in the form that it reads.
  bool warmUp(std::string &error);
  /// Writes caches and requests to a folder, whole or not at all. A session of any plan of the model
  /// that starts from it goes on with the requests.
  bool save(const std::string &folder, std::string &error);

private:
  /// An entry, and where its inputs and outputs are.
  struct Entry {
    int64_t index;
    int64_t tokens;
    std::vector<ProgramValue> inputs;
    size_t numOutputs, next, logits;
  };

  Server(std::shared_ptr<Session> session, const RunOptions &options);
  bool readEntries(std::string &error);
  bool call(const Entry &entry, const Batch &batch, bool wantsLogits, std::string &error);
  bool choose(const Batch &batch, std::string &error);
  const char *getRow(const BatchRow &row) const;

  std::shared_ptr<Session> session;
  RunOptions options;
  std::vector<Entry> entries;
  std::unique_ptr<Scheduler> scheduler;
  /// The logits of requests that wait or run, by the number of the request.
  std::map<int64_t, std::shared_ptr<std::vector<char>>> logitsOf;
  /// The outputs of a call: the tokens that the program chose [groups, requests], and the logits of
  /// these rows.
  std::vector<int64_t> chosen;
  std::vector<char> logits;
  DType logitsType = DType::F32;
  mutable std::mutex mutex;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SERVER_H
