//===- Scheduler.cpp - requests of serving, and the ends of steps ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Scheduler.h"

#include <algorithm>
#include <cmath>
#include <sstream>

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

namespace meshwright {

int64_t ServingSizes::countBlocks() const {
  int64_t blocks = (maxLength + pageSize - 1) / pageSize;
  return (blocks + deal - 1) / deal * deal;
}

std::vector<int64_t> getDefaultBuckets(int64_t maxRequests) {
  std::vector<int64_t> buckets = {512, maxRequests};
  for (int64_t tokens = 1; tokens < maxRequests; tokens *= 4)
    buckets.push_back(tokens);
  std::sort(buckets.begin(), buckets.end());
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

} // namespace meshwright

namespace meshwright::rt {

template <typename... Parts> static std::string say(const Parts &...parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

static std::string checkSizes(const ServingSizes &sizes, const std::vector<BatchEntry> &entries) {
  const std::pair<const char *, int64_t> counts[] = {
      {"groups", sizes.groups},
      {"max_length", sizes.maxLength},
      {"page_size", sizes.pageSize},
      {"pages", sizes.pages},
      {"max_requests", sizes.maxRequests},
      {"vocabulary", sizes.vocabulary},
      {"ranks over which pages are dealt", sizes.deal}};
  for (auto [name, count] : counts)
    if (count < 1)
      return say(name, ": expected at least 1, got ", count);
  if (sizes.pages % sizes.deal != 0)
    return say("pages: expected a multiple of ", sizes.deal,
               ", the ranks over which they are dealt, got ", sizes.pages);
  if (sizes.pages < sizes.countBlocks())
    return say("pages: expected at least ", sizes.countBlocks(),
               ", for a request of max_length = ", sizes.maxLength, " in pages of ", sizes.pageSize,
               ", got ", sizes.pages);
  if (entries.empty())
    return "buckets: expected at least one, got none";
  for (const BatchEntry &entry : entries) {
    if (entry.tokens < 1 || entry.sum < 1)
      return say("entry '", entry.name, "': expected room for at least 1 token, got ",
                 std::min(entry.tokens, entry.sum));
    if (!(entry.seconds > 0) || !std::isfinite(entry.seconds))
      return say("entry '", entry.name, "': expected a positive time, got ", entry.seconds);
  }
  return "";
}

Scheduler::Scheduler(const ServingSizes &sizes, std::vector<BatchEntry> entries)
    : sizes(sizes), entries(std::move(entries)), largest{0, 0}, queues(sizes.groups + 1),
      filled(sizes.groups * sizes.maxRequests) {
  for (const BatchEntry &entry : this->entries)
    if (std::pair(entry.tokens, entry.sum) > std::pair(largest.tokens, largest.sum))
      largest = {entry.tokens, entry.sum};
  for (int64_t group = 0; group < sizes.groups; ++group)
    pools.emplace_back(sizes.pages, sizes.pageSize, sizes.deal, sizes.sharesBeginnings);
  stats.calls.resize(this->entries.size());
  batch.tables.assign(sizes.groups * sizes.maxRequests * sizes.countBlocks(), -1);
}

std::unique_ptr<Scheduler> Scheduler::create(const ServingSizes &sizes,
                                             std::vector<BatchEntry> entries, std::string &error) {
  error = checkSizes(sizes, entries);
  if (!error.empty())
    return nullptr;
  return std::unique_ptr<Scheduler>(new Scheduler(sizes, std::move(entries)));
}

//===----------------------------------------------------------------------===//
// Requests
//===----------------------------------------------------------------------===//

/// Returns an empty string if the request can be served, else an error.
std::string Scheduler::check(const Request &request) const {
  const RequestOptions &options = request.options;
  auto findBad = [&](const char *name, const std::vector<int64_t> &tokens) -> std::string {
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] < 0 || tokens[i] >= sizes.vocabulary)
        return say(name, ": expected tokens of at least 0 and less than ", sizes.vocabulary,
                   ", got ", tokens[i], " at index ", i);
    return "";
  };
  if (request.numPrompt < 1)
    return "prompt: expected at least one token, got none";
  if (std::string bad = findBad("prompt", request.sequence); !bad.empty())
    return bad;
  if (std::string bad = findBad("stop", options.stop); !bad.empty())
    return bad;
  if (options.maxNewTokens < 1)
    return say("max_new_tokens: expected at least 1, got ", options.maxNewTokens);
  if (request.numPrompt > sizes.maxLength ||
      options.maxNewTokens > sizes.maxLength - request.numPrompt)
    return say("prompt and max_new_tokens: expected at most max_length = ", sizes.maxLength,
               " tokens together, got ", request.numPrompt, " and ", options.maxNewTokens);
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    return say("temperature: expected a finite number of at least 0, got ", options.temperature);
  if (options.group && (*options.group < 0 || *options.group >= sizes.groups))
    return say("group: expected 0 to ", sizes.groups - 1, ", got ", *options.group);
  return "";
}

Scheduler::Queue &Scheduler::getQueue(const Request &request) {
  return queues[request.options.group.value_or(sizes.groups)];
}

std::shared_ptr<const Request> Scheduler::submit(const std::vector<int64_t> &prompt,
                                                 RequestOptions options, std::string &error) {
  auto request = std::make_shared<Request>();
  request->id = nextId;
  request->options = std::move(options);
  request->sequence = prompt;
  request->numPrompt = prompt.size();
  error = check(*request);
  if (!error.empty())
    return nullptr;
  ++nextId;
  request->group = request->options.group.value_or(-1);
  getQueue(*request)[request->id] = request.get();
  live[request->id] = request;
  return request;
}

bool Scheduler::cancel(const Request &request, std::string &error) {
  if (isOpen) {
    error = "cancel: expected no step to be open";
    return false;
  }
  auto at = live.find(request.id);
  if (at == live.end() || at->second.get() != &request)
    return true;
  std::shared_ptr<Request> own = at->second;
  if (own->status == Request::Status::Waiting)
    getQueue(*own).erase(own->id);
  else
    running.erase(std::find(running.begin(), running.end(), own.get()));
  finish(*own, Request::Reason::Cancelled);
  return true;
}

std::vector<std::shared_ptr<const Request>> Scheduler::getRequests() const {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const auto &[id, request] : live)
    requests.push_back(request);
  return requests;
}

ServingStats Scheduler::getStats() const {
  ServingStats all = stats;
  for (const PagePool &pool : pools) {
    all.pages += pool.countPages();
    all.freePages += pool.countFree();
  }
  all.running = running.size();
  all.waiting = int64_t(live.size()) - all.running;
  return all;
}

//===----------------------------------------------------------------------===//
// Ends
//===----------------------------------------------------------------------===//

/// Forgets the cache of a request. Its pages are released before.
void Scheduler::stopRunning(Request &request, Request::Status status) {
  request.status = status;
  if (status == Request::Status::Waiting)
    request.group = request.options.group.value_or(-1);
  request.length = request.numShared = 0;
  request.pages = {};
}

/// Ends a request, which may be deleted by this. It is in no list of requests that wait or run any
/// more.
void Scheduler::finish(Request &request, Request::Reason reason) {
  if (request.group >= 0) {
    pools[request.group].release(request.pages);
    pools[request.group].keep();
  }
  stopRunning(request, Request::Status::Done);
  request.reason = reason;
  live.erase(request.id);
}

/// Registers the pages that the request has filled.
void Scheduler::enterPages(Request &request) {
  while (sizes.sharesBeginnings && (request.numShared + 1) * sizes.pageSize <= request.length) {
    int64_t block = request.numShared++;
    int64_t parent = block > 0 ? request.pages[block - 1] : -1;
    int64_t &page = request.pages[block];
    page = pools[request.group].enter(parent, &request.sequence[block * sizes.pageSize], page);
  }
}

bool Scheduler::commit(const std::vector<int64_t> &chosen, std::string &error) {
  if (!isOpen) {
    error = "commit: expected an open step";
    return false;
  }
  auto getChosen = [&](const BatchRow &row) {
    return chosen[row.group * sizes.maxRequests + row.row];
  };
  std::string problem;
  if (int64_t(chosen.size()) != sizes.groups * sizes.maxRequests)
    problem =
        say("commit: expected ", sizes.groups * sizes.maxRequests, " tokens, got ", chosen.size());
  else
    for (const BatchRow &row : batch.rows)
      if (row.isSampled && (getChosen(row) < 0 || getChosen(row) >= sizes.vocabulary))
        problem = say("entry '", entries[batch.entry].name,
                      "': expected a token of at least 0 and less than ", sizes.vocabulary,
                      " for request ", row.request->id, ", got ", getChosen(row));
  if (!problem.empty()) {
    abort();
    error = std::move(problem);
    return false;
  }
  for (const Undo &change : undoLog)
    stats.preempted += change.change == Undo::Change::Preempted;
  undoLog.clear();
  for (PagePool &pool : pools)
    pool.keep();
  isOpen = false;
  hash = batch.hash;
  ++stats.steps;
  ++stats.calls[batch.entry];

  // Pages are registered before any are released: those of a request that ends here are kept.
  for (const BatchRow &row : batch.rows) {
    Request &request = const_cast<Request &>(*row.request);
    stats.promptTokens += std::clamp<int64_t>(request.numPrompt - row.start, 0, row.count);
    request.length += row.count;
    enterPages(request);
    if (!row.isSampled)
      continue;
    int64_t token = getChosen(row);
    request.sequence.push_back(token);
    ++stats.generated;
    const std::vector<int64_t> &stop = request.options.stop;
    if (std::find(stop.begin(), stop.end(), token) != stop.end())
      request.reason = Request::Reason::Stop;
    else if (request.countNew() == request.options.maxNewTokens)
      request.reason = Request::Reason::Length;
  }
  auto isOver = [](const Request *request) { return request->reason != Request::Reason::None; };
  running.erase(std::remove_if(running.begin(), running.end(), isOver), running.end());
  for (const BatchRow &row : batch.rows)
    if (isOver(row.request))
      finish(const_cast<Request &>(*row.request), row.request->reason);
  batch.rows.clear();
  return true;
}

} // namespace meshwright::rt
