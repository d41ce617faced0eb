//===- Planning.cpp - the decisions of a step of serving ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `plan` deals tokens out to requests within the limits of the largest entry (`schedule`):
// - one to each request that decodes, in the order of admission. `grow` takes a page where a
//   request needs one, and `preempt` takes pages from the request that was admitted last;
// - then to prompts that have begun, in the order of admission;
// - then to requests that wait (`admit`), in the order of submission.
//
// If smaller steps read the prompts sooner (`choosePace`), it takes all back and schedules again
// within a smaller entry. `chooseEntry` finds the cheapest entry that holds the tokens, and `fill`
// writes its inputs.
//
//===----------------------------------------------------------------------===//

#include "Scheduler.h"

#include "meshwright/runtime/src/bundle/Manifest.h"

#include <algorithm>
#include <cfloat>

namespace meshwright::rt {

const Batch *Scheduler::plan() {
  if (isOpen)
    abort();
  schedule(largest);
  if (batch.rows.empty()) {
    undo();
    return nullptr;
  }
  const BatchEntry &pace = choosePace();
  if (!canServe(pace)) {
    undo();
    schedule({pace.tokens, pace.sum});
  }
  batch.entry = chooseEntry();
  fill();
  hashDecisions();
  isOpen = true;
  return &batch;
}

void Scheduler::abort() {
  if (isOpen)
    undo();
  isOpen = false;
}

//===----------------------------------------------------------------------===//
// Tokens for requests that run
//===----------------------------------------------------------------------===//

/// Returns true if the request may need more pages than it has. Its last token is never in the
/// cache.
bool Scheduler::mayGrow(const Request &request) const {
  int64_t end = request.numPrompt + request.options.maxNewTokens - 1;
  return int64_t(request.pages.size()) < countBlocks(end);
}

/// Adds a request that runs to the numbers of its group, or removes it.
void Scheduler::count(const Request &request, int64_t sign) {
  numRunning[request.group] += sign;
  numGrowing[request.group] += sign * mayGrow(request);
  numMissing[request.group] += sign * request.countMissing();
}

void Scheduler::schedule(Limits limits) {
  this->limits = limits;
  batch.rows.clear();
  dealtSum = 0;
  for (auto *numbers : {&dealt, &decoding, &numRows, &numRunning, &numGrowing, &numMissing})
    numbers->assign(sizes.groups, 0);
  isClosed.assign(sizes.groups, false);
  for (const Request *request : running)
    count(*request, 1);
  for (size_t i = 0; i < running.size();) {
    Request &request = *running[i];
    if (request.countMissing() == 1 && hasRoom(request.group)) {
      // If the request itself lost its pages, the next one has its index.
      if (!grow(request))
        continue;
      deal(request);
    }
    ++i;
  }
  for (Request *request : running)
    if (request->countMissing() > 1 && hasRoom(request->group))
      deal(*request);
  admit();
}

bool Scheduler::hasRoom(int64_t group) const {
  return dealt[group] < limits.tokens && dealtSum < limits.sum;
}

/// Deals as many of the missing tokens as there is room for.
void Scheduler::deal(Request &request) {
  int64_t group = request.group, missing = request.countMissing();
  int64_t count = std::min({missing, limits.tokens - dealt[group], limits.sum - dealtSum});
  batch.rows.push_back(
      {&request, group, numRows[group]++, request.length, count, count == missing});
  dealt[group] += count;
  dealtSum += count;
  decoding[group] += missing == 1;
}

/// Takes a page for the next token of a request, if it needs one. Returns false if the request lost
/// its own pages: all others of its group were admitted earlier.
bool Scheduler::grow(Request &request) {
  int64_t block = request.pages.size();
  if (request.length < block * sizes.pageSize)
    return true;
  int64_t page;
  while ((page = pools[request.group].take(block)) < 0)
    if (preempt(request.group) == &request)
      return false;
  count(request, -1);
  request.pages.push_back(page);
  count(request, 1);
  undoLog.push_back({Undo::Change::Grown, &request});
  return true;
}

/// Takes all pages of the request of a group that was admitted last. It waits, and its cache is
/// computed again.
Request *Scheduler::preempt(int64_t group) {
  size_t index = running.size() - 1;
  while (running[index]->group != group)
    --index;
  Request &request = *running[index];
  running.erase(running.begin() + index);
  count(request, -1);
  pools[group].release(request.pages);
  undoLog.push_back({Undo::Change::Preempted, &request, index, group, request.length,
                     request.numShared, std::move(request.pages)});
  stopRunning(request, Request::Status::Waiting);
  getQueue(request)[request.id] = &request;
  return &request;
}

//===----------------------------------------------------------------------===//
// Admission
//===----------------------------------------------------------------------===//

/// Starts requests that wait. If one cannot start, the groups in which it may run are closed: no
/// later one passes it.
void Scheduler::admit() {
  while (Queue *queue = findFirst()) {
    Request &request = *queue->begin()->second;
    int64_t group = chooseGroup(request);
    if (group >= 0) {
      start(request, group);
      deal(request);
    } else if (request.options.group) {
      isClosed[*request.options.group] = true;
    } else {
      isClosed.assign(sizes.groups, true);
    }
  }
}

/// Returns the queue whose first request was submitted first, of those that an open group serves.
Scheduler::Queue *Scheduler::findFirst() {
  Queue *first = nullptr;
  bool isAnyOpen = false;
  auto consider = [&](Queue &queue) {
    if (!queue.empty() && (!first || queue.begin()->first < first->begin()->first))
      first = &queue;
  };
  for (int64_t group = 0; group < sizes.groups; ++group)
    if (!isClosed[group]) {
      isAnyOpen = true;
      consider(queues[group]);
    }
  if (isAnyOpen)
    consider(queues.back());
  return first;
}

/// Returns the open group that has the fewest tokens to compute until the request's first new one,
/// or -1 if the request fits in none. Of equal ones the group with more free pages is chosen, then
/// the first. `found` becomes the pages of the request's beginning that are there.
int64_t Scheduler::chooseGroup(const Request &request) {
  int64_t best = -1, bestTokens = 0, bestFree = 0;
  for (int64_t group = 0; group < sizes.groups; ++group) {
    if (isClosed[group] || group != request.options.group.value_or(group))
      continue;
    findBeginning(request, group);
    if (!fits(request, group))
      continue;
    int64_t tokens =
        numMissing[group] + request.countMissing() - int64_t(beginning.size()) * sizes.pageSize;
    int64_t free = pools[group].countFree();
    if (best < 0 || tokens < bestTokens || (tokens == bestTokens && free > bestFree)) {
      best = group, bestTokens = tokens, bestFree = free;
      found.swap(beginning);
    }
  }
  return best;
}

/// Finds the pages of a request's beginning in a group. The last token is computed in any case,
/// because its logits choose the next one.
void Scheduler::findBeginning(const Request &request, int64_t group) {
  beginning.clear();
  int64_t whole = (int64_t(request.sequence.size()) - 1) / sizes.pageSize;
  for (int64_t block = 0, page = -1; block < whole; ++block) {
    page = pools[group].find(page, request.sequence.data() + block * sizes.pageSize);
    if (page < 0)
      return;
    beginning.push_back(page);
  }
}

/// Returns true if a group has a row, tokens and pages for a request: pages for all tokens that are
/// known, and one more for each request that runs and may need it.
bool Scheduler::fits(const Request &request, int64_t group) const {
  if (numRunning[group] == sizes.maxRequests || !hasRoom(group))
    return false;
  const PagePool &pool = pools[group];
  int64_t first = beginning.size(), last = countBlocks(request.sequence.size());
  if (!pool.canTake(first, last, beginning))
    return false;
  int64_t kept = std::count_if(beginning.begin(), beginning.end(),
                               [&](int64_t page) { return pool.countReferences(page) == 0; });
  return pool.countFree() - kept - (last - first) >= numGrowing[group];
}

/// Starts a request in a group, with the pages that `chooseGroup` found there.
void Scheduler::start(Request &request, int64_t group) {
  getQueue(request).erase(request.id);
  PagePool &pool = pools[group];
  for (int64_t page : found)
    pool.share(page);
  request.pages = found;
  for (int64_t block = found.size(); block < countBlocks(request.sequence.size()); ++block)
    request.pages.push_back(pool.take(block));
  request.sequence.reserve(request.numPrompt + request.options.maxNewTokens);
  request.status = Request::Status::Running;
  request.group = group;
  request.numShared = found.size();
  request.length = request.numShared * sizes.pageSize;
  running.push_back(&request);
  count(request, 1);
  undoLog.push_back({Undo::Change::Admitted, &request});
}

/// Takes all changes of the schedule back, in reverse.
void Scheduler::undo() {
  for (; !undoLog.empty(); undoLog.pop_back()) {
    Undo &last = undoLog.back();
    Request &request = *last.request;
    switch (last.change) {
    case Undo::Change::Grown:
      request.pages.pop_back();
      break;
    case Undo::Change::Admitted:
      running.pop_back();
      stopRunning(request, Request::Status::Waiting);
      getQueue(request)[request.id] = &request;
      break;
    case Undo::Change::Preempted:
      getQueue(request).erase(request.id);
      running.insert(running.begin() + last.index, &request);
      request.status = Request::Status::Running;
      request.group = last.group;
      request.length = last.length;
      request.numShared = last.numShared;
      request.pages = std::move(last.pages);
      break;
    }
  }
  for (PagePool &pool : pools)
    pool.undo();
}

//===----------------------------------------------------------------------===//
// Entries
//===----------------------------------------------------------------------===//

/// Returns true if an entry holds the tokens that are dealt out.
bool Scheduler::canServe(const BatchEntry &entry) const {
  return *std::max_element(dealt.begin(), dealt.end()) <= entry.tokens && dealtSum <= entry.sum;
}

/// Returns the entry by which the prompts of the schedule would be read soonest beside all requests
/// that decode: the one with the least product of steps and time of a step. A large entry that is
/// mostly padding may take longer than two small ones.
const BatchEntry &Scheduler::choosePace() const {
  const BatchEntry *best = nullptr;
  double bestTime = 0;
  int64_t bestSteps = 0;
  for (const BatchEntry &entry : entries) {
    int64_t steps = 1, decodingSum = 0;
    bool holds = true;
    // Prompts of so many tokens go through what `capacity` leaves beside the tokens that decode.
    auto read = [&](int64_t tokens, int64_t decoding, int64_t capacity) {
      int64_t prompts = tokens - decoding, room = capacity - decoding;
      holds &= room >= (prompts > 0);
      if (holds && prompts > 0)
        steps = std::max(steps, prompts / room + (prompts % room != 0));
    };
    for (int64_t group = 0; group < sizes.groups; ++group) {
      read(dealt[group], decoding[group], entry.tokens);
      decodingSum += decoding[group];
    }
    read(dealtSum, decodingSum, entry.sum);
    double time = double(steps) * entry.seconds;
    if (holds && (!best || time < bestTime || (time == bestTime && steps < bestSteps)))
      best = &entry, bestTime = time, bestSteps = steps;
  }
  return *best;
}

/// Returns the index of the cheapest entry that holds the tokens; of equal ones the first.
int64_t Scheduler::chooseEntry() const {
  int64_t best = -1;
  for (size_t i = 0; i < entries.size(); ++i)
    if (canServe(entries[i]) && (best < 0 || entries[i].seconds < entries[best].seconds))
      best = i;
  return best;
}

//===----------------------------------------------------------------------===//
// Inputs
//===----------------------------------------------------------------------===//

void Scheduler::fill() {
  int64_t groups = sizes.groups, rows = sizes.maxRequests, width = entries[batch.entry].tokens;
  batch.tokensPerGroup = width;
  batch.numTokens = dealtSum;
  batch.counts = dealt;
  batch.tokens.assign(groups * width, 0);
  batch.positions.assign(groups * width, 0);
  batch.slots.assign(groups * width, -1);
  batch.lengths.assign(groups * rows, 0);
  batch.sampled.assign(groups * rows, -1);
  batch.temperatures.assign(groups * rows, 0);
  batch.seeds.assign(groups * rows, 0);
  batch.starts.resize(groups * (rows + 1));
  for (int64_t group = 0; group < groups; ++group) {
    auto starts = batch.starts.begin() + group * (rows + 1);
    starts[0] = 0;
    std::fill(starts + numRows[group] + 1, starts + rows + 1, dealt[group]);
    // Pages of rows that the last batch had.
    for (int64_t row = numRows[group]; row < rows; ++row)
      fillTable(group, row, nullptr, 0);
  }
  for (const BatchRow &row : batch.rows) {
    const Request &request = *row.request;
    int64_t *starts = &batch.starts[row.group * (rows + 1) + row.row];
    int64_t at = row.group * width + starts[0], end = row.start + row.count;
    starts[1] = starts[0] + row.count;
    for (int64_t position = row.start; position < end; ++position, ++at) {
      batch.tokens[at] = request.sequence[position];
      batch.positions[at] = position;
      batch.slots[at] =
          request.pages[position / sizes.pageSize] * sizes.pageSize + position % sizes.pageSize;
    }
    int64_t index = row.group * rows + row.row;
    batch.lengths[index] = end;
    batch.sampled[index] = row.isSampled ? starts[1] - 1 : -1;
    batch.temperatures[index] = float(std::min<double>(request.options.temperature, FLT_MAX));
    batch.seeds[index] = request.options.seed;
    fillTable(row.group, row.row, request.pages.data(), countBlocks(end));
  }
}

/// Writes the blocks of a row, and clears those that the last batch had behind them.
void Scheduler::fillTable(int64_t group, int64_t row, const int64_t *pages, int64_t blocks) {
  int64_t deal = sizes.deal, width = sizes.countBlocks() / deal, pagesOfRange = sizes.pages / deal;
  int64_t &old = filled[group * sizes.maxRequests + row];
  for (int64_t range = 0; range < deal; ++range) {
    int64_t *to = &batch.tables[((group * deal + range) * sizes.maxRequests + row) * width];
    int64_t block = range;
    for (; block < blocks; block += deal)
      *to++ = pages[block] - range * pagesOfRange;
    for (; block < old; block += deal)
      *to++ = -1;
  }
  old = blocks;
}

void Scheduler::hashDecisions() {
  words.assign({int64_t(hash), batch.entry, batch.numTokens});
  for (const BatchRow &row : batch.rows)
    words.insert(words.end(), {row.request->id, row.group, row.start, row.count});
  Hash all;
  for (const auto *numbers : {&words, &batch.tokens, &batch.slots, &batch.sampled})
    all.add(reinterpret_cast<const char *>(numbers->data()), numbers->size() * sizeof(int64_t));
  batch.hash = all.getBits();
}

} // namespace meshwright::rt
