//===- World.cpp - the ranks of a program ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/World.h"

#include "BackendLoader.h"
#include "Context.h"
#include "Link.h"
#include "meshwright/runtime/src/cpu/Workers.h"
#include "meshwright/runtime/src/process/Signal.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/include/Interrupts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <system_error>

namespace meshwright::rt {

/// How long threads poll before they sleep. Polling for longer than a sleep costs gains
/// nothing.
static constexpr int64_t kSpinNanoseconds = 50'000;
/// After a failure ranks come back as soon as their kernels end. A rank that takes longer is
/// stuck.
static constexpr double kGraceSeconds = 5;
/// After an interruption the caller waits less. The next call waits for the ranks.
static constexpr double kInterruptedSeconds = 0.3;

//===----------------------------------------------------------------------===//
// Beginning and end
//===----------------------------------------------------------------------===//

WorldPtr World::create(const std::string &backend, int64_t numRanks, std::vector<std::string> ops,
                       std::string &error) {
  if (numRanks < 1 || numRanks > kMaxRanks) {
    error = "the program: expected 1 to " + std::to_string(kMaxRanks) + " ranks, got " +
            std::to_string(numRanks);
    return nullptr;
  }
  WorldPtr world(new World());
  world->numRanks = numRanks;
  world->ownOps.names = std::move(ops);
  world->fault = Fault::fromEnvironment();
  world->backend = openBackend(backend, *world, error);
  if (!world->backend)
    return nullptr;
  if (const char *text = std::getenv("MESHWRIGHT_LINK")) {
    std::optional<Link> link = parseLink(text, error);
    if (!link)
      return nullptr;
    world->link = std::make_unique<Link>(*link);
  }
  world->localRanks = world->backend->getLocalRanks();
  for (int64_t rank : world->localRanks) {
    auto context = std::make_unique<mw_rt_context>(*world, rank);
    context->fault = world->fault.get();
    context->device = world->backend->createDevice(*context, error);
    if (!context->device)
      return nullptr;
    world->contexts.push_back(std::move(context));
  }
  return world;
}

World::~World() {
  {
    std::lock_guard<std::mutex> lock(runMutex);
    stopping = true;
  }
  runBegins.notify_all();
  for (std::unique_ptr<mw_rt_context> &context : contexts)
    if (context->thread.joinable())
      context->thread.join();
  // The devices finish their collectives while the backend is still there.
  for (std::unique_ptr<mw_rt_context> &context : contexts)
    context->device.reset();
}

void WorldDeleter::operator()(World *world) const {
  if (getpid() == world->process && !world->isStuck())
    delete world;
}

bool World::isStuck() {
  std::lock_guard<std::mutex> lock(runMutex);
  return unfinished > 0;
}

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

const std::string &World::getOpName(int64_t op) const {
  static const std::string unknown = "unknown op";
  const std::vector<std::string> &names = ops.load(std::memory_order_acquire)->names;
  return op >= 0 && op < int64_t(names.size()) ? names[op] : unknown;
}

mw_rt_context *World::findRank(int64_t rank) const {
  auto found = std::lower_bound(localRanks.begin(), localRanks.end(), rank);
  return found != localRanks.end() && *found == rank ? contexts[found - localRanks.begin()].get()
                                                     : nullptr;
}

Device &World::getDevice(int64_t rank) { return *findRank(rank)->device; }

int64_t World::getPosition(int64_t rank) const {
  mw_rt_context *context = findRank(rank);
  return context ? context->position.load(std::memory_order_relaxed) : -1;
}

void World::fail(int64_t rank, int64_t op, const std::string &message) {
  std::string error = "rank " + std::to_string(rank) + ": ";
  if (op >= 0)
    error += getOpName(op) + ": ";
  fail(error + message);
}

void World::fail(const std::string &message) {
  {
    std::lock_guard<std::mutex> lock(errorMutex);
    // Relaxed: `failed` changes under this mutex only.
    if (failed.load(std::memory_order_relaxed))
      return;
    firstError = message;
    failed.store(true, std::memory_order_release);
  }
  backend->fail(message);
}

void World::noteNotFinite(int64_t rank, int64_t op, int64_t result, int64_t element,
                          double value) {
  const char *name = std::isnan(value) ? "NaN" : value < 0 ? "-infinity" : "infinity";
  std::string message = std::string("is ") + name + " at element " + std::to_string(element) +
                        " of result " + std::to_string(result);
  std::lock_guard<std::mutex> lock(errorMutex);
  if (notFiniteOp >= 0 && (op > notFiniteOp || (op == notFiniteOp && rank >= notFiniteRank)))
    return;
  notFiniteOp = op;
  notFiniteRank = rank;
  const std::map<int64_t, std::string> &fused = ops.load(std::memory_order_acquire)->fused;
  auto others = fused.find(op);
  notFinite = "rank " + std::to_string(rank) + ": " + getOpName(op) + ": " + message +
              (others == fused.end() ? "" : "; in one kernel with " + others->second);
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// The body of a rank's thread: runs the entry once for each run.
void World::hostRank(mw_rt_context &context, size_t index) {
  nameThread("mw rank " + std::to_string(context.rank));
  context.device->enterThread();
  std::unique_lock<std::mutex> lock(runMutex);
  for (int64_t seen = 0;;) {
    runBegins.wait(lock, [&] { return stopping || runCount != seen; });
    if (stopping)
      return;
    seen = runCount;
    RankBuffers &mine = buffers[index];
    lock.unlock();
    int32_t status = 1;
    // A call reads some results' places, and writes all. A device may call several times.
    const std::vector<const void *> results = mine.results;
    try {
      status = context.device->runEntry(entry, mine, [&] {
        mine.results = results;
        return entry(&context, mine.arena, mine.arguments.data(), mine.prepared.data(),
                     mine.constants.data(), mine.results.data());
      });
      std::string error;
      if (status == 0 && afterEntry && !hasFailed() && !afterEntry(context.rank, mine, error) &&
          !error.empty())
        fail(context.rank, -1, error);
    } catch (const std::exception &failure) {
      fail(context.rank, context.position.load(std::memory_order_relaxed), failure.what());
    }
    if (status != 0)
      fail(context.rank, -1, "the program failed without an error");
    // A device that is not idle in time fails the run. Its memory must stay nevertheless, so
    // this thread goes on waiting, and `awaitRanks` finds the rank stuck.
    while (!context.device->synchronize(deadlineIn(timeout + kGraceSeconds)))
      fail(context.rank, context.position.load(std::memory_order_relaxed),
           "its device is still busy after the end of the program");
    lock.lock();
    context.running = false;
    --unfinished;
    countActiveRanks(-1);
    rankEnds.notify_all();
  }
}

/// Starts threads, and decides how long they poll.
bool World::prepareThreads(std::string &error) {
  if (threadsPerRank > kMaxThreads / int64_t(localRanks.size())) {
    error = "ranks of " + std::to_string(threadsPerRank) + " threads, " +
            std::to_string(localRanks.size()) + " in this process: expected at most " +
            std::to_string(kMaxThreads) + " threads in all";
    return false;
  }
  int64_t ranks = std::max<int64_t>(ranksOnMachine, localRanks.size());
  int64_t streams = 1;
  for (std::unique_ptr<mw_rt_context> &context : contexts)
    streams = std::max(streams, context->device->getNumStreamThreads());
  int64_t cores = availableCores();
  computeSpin = ranks * threadsPerRank <= cores ? kSpinNanoseconds : 0;
  streamSpin = ranks * (threadsPerRank + streams) <= cores ? kSpinNanoseconds : 0;
  for (size_t index = 0; index < contexts.size(); ++index) {
    mw_rt_context &context = *contexts[index];
    try {
      context.device->prepare({threadsPerRank, computeSpin, streamSpin});
      // A single rank has a thread of its own, too: libraries have settings per thread,
      // and those of the caller's thread must not change.
      if (!context.thread.joinable())
        context.thread = std::thread([this, &context, index] { hostRank(context, index); });
    } catch (const std::system_error &failure) {
      error = "rank " + std::to_string(context.rank) + ": no thread: " + failure.what();
      return false;
    }
  }
  return true;
}

/// Waits for all ranks of this process. Returns false if one is stuck.
/// - After a failure, a rank has `grace` seconds to come back, and fewer if the call is interrupted.
/// - If other ranks have ended, a rank that makes no call for `limit` seconds fails the run. No
///   collective would time out, because no rank waits for it.
bool World::awaitRanks() {
  std::unique_lock<std::mutex> lock(runMutex);
  Time failure = Time::max(), asked = Clock::now();
  double grace = std::min(timeout, kGraceSeconds), limit = timeout + grace;
  std::vector<std::pair<int64_t, Time>> progress(contexts.size(), {-1, Time()});
  while (unfinished > 0) {
    rankEnds.wait_for(lock, std::chrono::milliseconds(100));
    Time now = Clock::now();
    if (!wasInterrupted && now - asked >= std::chrono::milliseconds(50)) {
      lock.unlock();
      bool isOver = isInterrupted();
      if (isOver)
        fail(kInterrupted);
      lock.lock();
      wasInterrupted = isOver;
      asked = Clock::now();
    }
    if (hasFailed()) {
      failure = std::min(failure, now);
      double most = wasInterrupted ? std::min(grace, kInterruptedSeconds) : grace;
      if (now - failure >= std::chrono::duration<double>(most))
        return false;
      continue;
    }
    if (unfinished == int64_t(contexts.size()) && !backend->haveOthersEnded())
      continue;
    for (size_t i = 0; i < contexts.size(); ++i) {
      mw_rt_context &context = *contexts[i];
      int64_t calls = context.calls.load(std::memory_order_relaxed);
      if (!context.running || calls != progress[i].first)
        progress[i] = {calls, now};
      else if (now - progress[i].second >= std::chrono::duration<double>(limit)) {
        char seconds[32];
        std::snprintf(seconds, sizeof(seconds), "%g", limit);
        lock.unlock();
        fail(context.rank, context.position.load(std::memory_order_relaxed),
             std::string("does not end: other ranks have ended, and it made no call for ") +
                 seconds + " s");
        lock.lock();
        break;
      }
    }
  }
  return true;
}

/// Called after a run without a failure. Of all ops whose results are not finite, on any
/// process, all processes report the first.
void World::agreeWithOthers() {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  int64_t mine = notFiniteOp < 0 ? none : notFiniteOp * numRanks + notFiniteRank, least = mine;
  std::string error;
  if (!backend->agree(least, error))
    return fail(error);
  if (least == none)
    return;
  std::vector<char> text(8192, 0);
  if (least == mine)
    notFinite.copy(text.data(), text.size() - 1);
  if (!backend->broadcast(least % numRanks, text.data(), int64_t(text.size()), error))
    return fail(error);
  notFiniteOp = least / numRanks;
  notFinite = text.data();
}

bool World::run(mw_rt_entry program, std::vector<RankBuffers> &given, const RunOptions &options,
                std::string &error) {
  if (getpid() != process) {
    error = "the program's ranks are threads of process " + std::to_string(process) +
            ", this one was forked from it: plan or load the program again here";
    return false;
  }
  {
    std::lock_guard<std::mutex> lock(runMutex);
    for (const std::unique_ptr<mw_rt_context> &context : contexts)
      if (context->running) {
        error = "rank " + std::to_string(context->rank) + " is still in " +
                getOpName(context->position.load(std::memory_order_relaxed)) +
                " of a run that failed";
        return false;
      }
  }
  if (areRunsEnding()) {
    error = kInterrupted;
    backend->fail(error);
    return false;
  }
  timeout = options.timeout > 0 ? std::min(options.timeout, kLongestTimeout) : defaultTimeout();
  {
    std::lock_guard<std::mutex> lock(errorMutex);
    failed = false;
    firstError.clear();
    notFiniteOp = notFiniteRank = -1;
  }
  threadsPerRank = options.threadsPerRank > 0 ? options.threadsPerRank : defaultThreads();
  if (!backend->reset(error))
    return false;
  if (!prepareThreads(error)) {
    backend->fail(error);
    return false;
  }
  {
    std::lock_guard<std::mutex> lock(runMutex);
    // The world keeps the buffers, because a stuck rank may use them after the run.
    buffers = std::move(given);
    trace = options.trace;
    afterEntry = options.afterEntry;
    for (std::unique_ptr<mw_rt_context> &context : contexts) {
      context->running = true;
      context->position.store(-1, std::memory_order_relaxed);
      context->checkFinite = options.checkFinite;
      context->graphs = options.graphs;
      context->logged.clear();
      context->experts.clear();
      context->trace = trace.get();
      context->row = trace ? &trace->getRow(context->rank, 0) : nullptr;
    }
    entry = program;
    unfinished = contexts.size();
    wasInterrupted = false;
    countActiveRanks(int(unfinished));
    ++runCount;
  }
  runBegins.notify_all();
  if (awaitRanks())
    given = std::move(buffers);
  if (!hasFailed())
    agreeWithOthers();
  std::lock_guard<std::mutex> lock(errorMutex);
  if (notFiniteOp >= 0)
    error = notFinite;
  else if (failed)
    error = firstError;
  return notFiniteOp < 0 && !failed;
}

bool World::settle(double seconds, std::string &error) {
  std::unique_lock<std::mutex> lock(runMutex);
  Time deadline = deadlineIn(seconds);
  while (wasInterrupted && unfinished > 0 && Clock::now() < deadline) {
    lock.unlock();
    if (isInterrupted()) {
      error = kInterrupted;
      return false;
    }
    lock.lock();
    rankEnds.wait_for(lock, std::chrono::milliseconds(100));
  }
  return true;
}

const std::map<int64_t, ExpertRows> &World::getExperts(int64_t rank) const {
  return findRank(rank)->experts;
}

bool World::undo(std::string &error) {
  for (const std::unique_ptr<mw_rt_context> &context : contexts) {
    for (auto call = context->logged.rbegin(); call != context->logged.rend(); ++call)
      if (!context->device->undo(*call->first, call->second.data(), error))
        return false;
    context->logged.clear();
  }
  return true;
}

} // namespace meshwright::rt
