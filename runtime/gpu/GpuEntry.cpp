//===- GpuEntry.cpp - calls of an entry on a GPU --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright-c/DeviceKernel.h"
#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/src/ranks/Context.h"

#include <cstring>
#include <limits>
#include <numeric>

namespace meshwright::rt::gpu {

using Clock = std::chrono::steady_clock;

/// How long the runtime waits for the reason of an error of collectives.
static constexpr auto kReasonTime = std::chrono::seconds(1);

//===----------------------------------------------------------------------===//
// Words and marks
//===----------------------------------------------------------------------===//

void *GpuDevice::nextWord(int64_t result, int64_t size) {
  return nextWordOf(context.position, result, size);
}

void *GpuDevice::nextWordOf(int64_t op, int64_t result, int64_t size) {
  if (isPreparing()) {
    current->words.push_back({op, result, size});
    return nullptr;
  }
  return current->onDevice.get() + sizeof(uint64_t) * wordsUsed++;
}

/// Notes that the stream has come to the end of an op, for `watch`.
void GpuDevice::mark(int64_t op, cuda::Stream *stream, bool isGraph) {
  if (graphOp >= 0)
    return;
  if (marksUsed == current->marks.size())
    current->marks.push_back({op, Event(*processor), isGraph});
  Mark &mark = current->marks[marksUsed++];
  mark.op = op;
  mark.isGraph = isGraph;
  mark.event.record(stream);
}

/// Takes a number for the report of experts. Returns false for other words.
bool GpuDevice::readNote(const Word &word, uint64_t number) {
  if (word.result > kFirst32Word)
    return false;
  ExpertRows &report = context.experts[word.size];
  if (word.result == kFirst32Word)
    report.first = int32_t(number);
  else if (word.result == kFirst64Word)
    report.first = int64_t(number);
  else if (word.result == kDroppedWord)
    report.dropped = int64_t(number + 1); // counted from all ones on
  else
    report.rows.push_back(int64_t(number));
  return true;
}

/// The rows of each expert, from the offsets of their first ones and of the end.
static void subtractOffsets(std::vector<int64_t> &rows) {
  if (rows.empty())
    return;
  std::adjacent_difference(rows.begin() + 1, rows.end(), rows.begin());
  rows.pop_back();
}

/// Reports the words of the call that has ended.
void GpuDevice::readWords() {
  auto *words = reinterpret_cast<const uint64_t *>(current->onHost.get());
  for (size_t i = 0; i < current->words.size(); ++i) {
    const Word &word = current->words[i];
    if (word.result == kRowsWord)
      continue;
    if (readNote(word, words[i]) || words[i] == std::numeric_limits<uint64_t>::max())
      continue;
    if (word.result == kWeightWord) {
      context.world->fail(context.rank, word.op,
                          std::string("expected finite numbers in a weight that travels in ") +
                              nameOfForm(word.size));
      return;
    }
    if (word.result < 0 && words[i] & MW_RT_NO_ROOM) {
      context.world->fail(context.rank, word.op,
                          "a routing has no room for the row of the choice at position " +
                              std::to_string(words[i] & ~MW_RT_NO_ROOM) +
                              ": a token chose an expert twice");
      return;
    }
    if (word.result < 0) {
      context.world->fail(context.rank, word.op,
                          "the index at position " + std::to_string(words[i]) +
                              " is out of range" +
                              (word.size > 0 ? ": expected 0 to " + std::to_string(word.size - 1)
                                             : ""));
      return;
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double values[] = {std::numeric_limits<double>::quiet_NaN(), -infinity, infinity};
    context.world->noteNotFinite(context.rank, word.op, word.result, int64_t(words[i] / 4),
                                 values[words[i] % 4]);
  }
  for (auto &[layer, report] : context.experts)
    subtractOffsets(report.rows);
  // A rank computes the rows that came to it.
  for (const auto &[layer, rows] : arrived) {
    ExpertRows &report = context.experts[layer];
    report.first = rows.first;
    report.rows = rows.rows;
  }
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

bool GpuDevice::prepareEntry(EntryState &entry, const std::function<int32_t()> &call) {
  // The trace shows the work, not its preparation.
  auto *trace = std::exchange(context.trace, nullptr);
  auto *row = std::exchange(context.row, nullptr);
  entry.words.clear();
  entry.graphs = 0;
  getStream(0);
  helpers.prepares = true;
  bool isFine = call() == 0;
  helpers.prepares = false;
  context.trace = trace;
  context.row = row;
  context.logged.clear();
  if (!isFine)
    return false;
  if (!entry.words.empty()) {
    int64_t bytes = entry.words.size() * sizeof(uint64_t);
    entry.onDevice = processor->allocate(bytes);
    if (!entry.onDevice)
      throw Failure("no memory on the GPU for the words of faults");
    entry.onHost = processor->allocateHost(bytes);
  }
  return collectives->finishPreparing();
}

int32_t GpuDevice::runEntry(mw_rt_entry entry, const RankBuffers &buffers,
                            const std::function<int32_t()> &call) {
  EntryState &state = entries[{entry, context.checkFinite}];
  current = &state;
  wordsUsed = marksUsed = 0;
  isEnqueued = false;
  recording = chooseRecording(buffers);
  nextGraph = 0;
  traffic.clear();
  trueRows.clear();
  arrived.clear();
  if (!state.isPrepared) {
    if (!prepareEntry(state, call))
      return 1;
    state.isPrepared = true;
  }
  if (context.graphs == GraphUse::On && state.graphs == 0)
    throw Failure("graphs is 'on', and the entry launches nothing that a graph could repeat: "
                  "expected off or auto");
  cuda::Stream *stream = getStream(0);
  taken.await(stream);
  if (context.trace) {
    timed.clear();
    origin = std::make_unique<Event>(*processor, cuda::WithTimes);
    origin->record(stream);
    originTime = traceClock();
  }
  int64_t bytes = state.words.size() * sizeof(uint64_t);
  if (bytes > 0)
    check(cuda, cuda.cuMemsetD8Async(addressOf(state.onDevice.get()), 0xff, bytes, stream),
          "cuMemsetD8Async");
  if (int32_t status = call()) {
    dropGraph();
    return status;
  }
  if (recording)
    recording->isWhole = true;
  if (bytes > 0)
    check(cuda,
          cuda.cuMemcpyDtoHAsync(state.onHost.get(), addressOf(state.onDevice.get()), bytes,
                                 stream),
          "cuMemcpyDtoHAsync");
  isEnqueued = true;
  return 0;
}

/// Looks how far the GPU is. If it does not come to the next mark within the timeout, or a collective has an
/// error, the run fails with the op of that mark. Returns true if it has passed a mark.
bool GpuDevice::look(Progress &progress) {
  size_t before = progress.passed, &passed = progress.passed;
  while (passed < marksUsed && cuda.cuEventQuery(current->marks[passed].event.get()) == cuda::Success)
    ++passed;
  Clock::time_point now = Clock::now();
  if (passed > before)
    progress.last = now;
  int64_t op = passed < marksUsed ? current->marks[passed].op : -1;
  bool isGraph = passed < marksUsed && current->marks[passed].isGraph;
  // For errors of other ranks.
  if (op >= 0)
    context.goTo(op);
  if (!context.world->hasFailed()) {
    auto limit = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(context.world->getTimeout()));
    std::string problem = collectives->getError();
    if (problem.empty())
      progress.firstProblem = now;
    // The end of another process names the reason.
    if (!problem.empty() &&
        (!collectives->crossesProcesses() || now - progress.firstProblem > kReasonTime))
      context.world->fail(context.rank, op, problem);
    else if (now - progress.last > limit)
      context.world->fail(context.rank, op,
                          op < 0    ? "timed out: the GPU has not finished the outputs"
                          : isGraph ? "timed out: the GPU has not finished the graph that begins "
                                      "with it"
                                    : "timed out: the GPU has not finished it");
  }
  return passed > before;
}

/// Waits until all streams are idle. After a failure of the run, collectives are aborted. Returns false at
/// the deadline, which moves as marks are passed.
bool GpuDevice::watch(Clock::time_point deadline) {
  auto isIdle = [&] {
    for (cuda::Stream *stream : streams) {
      if (!stream)
        continue;
      cuda::Result result = cuda.cuStreamQuery(stream);
      if (result == cuda::NotReady)
        return false;
      check(cuda, result, "the GPU's work");
    }
    return true;
  };
  bool isAborted = false;
  Progress progress;
  while (!isIdle()) {
    bool hadFailed = context.world->hasFailed();
    Clock::time_point last = progress.last;
    bool goesOn = look(progress);
    deadline += progress.last - last;
    if (hadFailed && !std::exchange(isAborted, true))
      collectives->abort();
    if (Clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(goesOn ? 5 : 50));
  }
  return true;
}

/// Waits in the course of a call until a stream is idle. Returns false after a failure of the run.
bool GpuDevice::awaitStream(cuda::Stream *stream) {
  constexpr int kQuick = 1000;
  int64_t op = context.position;
  Progress progress;
  for (int64_t tries = 0;; ++tries) {
    cuda::Result result = cuda.cuStreamQuery(stream);
    if (result != cuda::NotReady) {
      check(cuda, result, "the GPU's work");
      context.goTo(op);
      return !context.world->hasFailed();
    }
    if (tries < kQuick)
      continue;
    look(progress);
    if (context.world->hasFailed())
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

bool GpuDevice::synchronize(Clock::time_point deadline) {
  if (!current)
    return true;
  try {
    if (!watch(deadline))
      return false;
    if (isEnqueued && !context.world->hasFailed()) {
      readWords();
      if (context.trace)
        addTimes();
    }
  } catch (const Failure &failure) {
    context.world->fail(context.rank, context.position, failure.what());
  }
  if (context.world->hasFailed()) {
    // Ranks may have ended at different collectives.
    entries.clear();
    collectives->abort();
  }
  current = nullptr;
  borrowed.clear();
  return true;
}

} // namespace meshwright::rt::gpu
