//===- World.cpp - the ranks of a program ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/World.h"

#include "Gemm.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

namespace meshwright::rt {

std::unique_ptr<World> World::create(const std::string &backend, int64_t numRanks,
                                     std::vector<std::string> ops, std::string &error) {
  if (backend != "local") {
    error = "backend '" + backend + "' is not available; available: local";
    return nullptr;
  }
  std::unique_ptr<World> world(new World());
  world->numRanks = numRanks;
  world->ops = std::move(ops);
  world->backend = createLocalBackend(*world);
  for (int64_t rank = 0; rank < numRanks; ++rank) {
    auto context = std::make_unique<mw_rt_context>();
    context->world = world.get();
    context->backend = world->backend.get();
    context->rank = rank;
    context->gemms = std::make_shared<GemmCache>();
    world->contexts.push_back(std::move(context));
  }
  return world;
}

World::~World() = default;

const std::string &World::getOpName(int64_t op) const {
  static const std::string unknown = "unknown op";
  return op >= 0 && op < int64_t(ops.size()) ? ops[op] : unknown;
}

void World::fail(int64_t rank, int64_t op, const std::string &message) {
  {
    std::lock_guard<std::mutex> lock(errorMutex);
    if (failed.load(std::memory_order_relaxed))
      return;
    firstError = "rank " + std::to_string(rank) + ": ";
    if (op >= 0)
      firstError += getOpName(op) + ": ";
    firstError += message;
    failed.store(true, std::memory_order_release);
  }
  backend->wake();
}

bool World::run(mw_rt_entry entry, std::vector<RankBuffers> &buffers, double timeoutSeconds,
                std::string &error) {
  timeout = timeoutSeconds;
  failed = false;
  firstError.clear();
  backend->reset();
  auto runRank = [&](int64_t rank) {
    setThreadsOfLibraries(1);
    RankBuffers &mine = buffers[rank];
    if (entry(contexts[rank].get(), mine.arena, mine.arguments.data(), mine.prepared.data(),
              mine.constants.data(), mine.results.data()) != 0)
      fail(rank, -1, "the program failed without an error");
  };
  // Also a single rank gets a thread of its own: the libraries' settings are
  // per thread, and the caller's are not ours to change.
  std::vector<std::thread> threads;
  threads.reserve(numRanks);
  for (int64_t rank = 0; rank < numRanks; ++rank) {
    try {
      threads.emplace_back(runRank, rank);
    } catch (const std::system_error &failure) {
      fail(rank, -1, std::string("no thread: ") + failure.what());
      break;
    }
  }
  for (std::thread &thread : threads)
    thread.join();
  if (failed) {
    error = firstError;
    return false;
  }
  return true;
}

double defaultTimeout() {
  if (const char *text = std::getenv("MESHWRIGHT_TIMEOUT")) {
    char *end = nullptr;
    double seconds = std::strtod(text, &end);
    if (end != text && *end == '\0' && seconds > 0)
      return seconds;
    std::fprintf(stderr,
                 "warning: MESHWRIGHT_TIMEOUT is '%s', expected a number of seconds; using 30\n",
                 text);
  }
  return 30;
}

int64_t availableMemory() {
  int64_t available = -1;
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  while (meminfo >> word)
    if (word == "MemAvailable:") {
      int64_t kilobytes = 0;
      if (meminfo >> kilobytes)
        available = kilobytes * 1024;
      break;
    }
  // A container may have less than the machine.
  std::ifstream maxFile("/sys/fs/cgroup/memory.max"), usedFile("/sys/fs/cgroup/memory.current");
  int64_t most = 0, used = 0;
  if (maxFile >> most && usedFile >> used && (available < 0 || most - used < available))
    available = most > used ? most - used : 0;
  return available;
}

int64_t sizeOfGroup(const mw_rt_axes &axes) {
  int64_t size = 1;
  for (int64_t i = 0; i < axes.count; ++i)
    size *= axes.axes[i].size;
  return size;
}

int64_t coordinateOf(const mw_rt_axes &axes, int64_t rank) {
  int64_t coordinate = 0;
  for (int64_t i = 0; i < axes.count; ++i)
    coordinate = coordinate * axes.axes[i].size + rank / axes.axes[i].stride % axes.axes[i].size;
  return coordinate;
}

std::vector<int64_t> groupOf(const mw_rt_axes &axes, int64_t rank, int64_t &self) {
  self = coordinateOf(axes, rank);
  int64_t base = rank;
  for (int64_t i = 0; i < axes.count; ++i)
    base -= rank / axes.axes[i].stride % axes.axes[i].size * axes.axes[i].stride;
  std::vector<int64_t> ranks{base};
  for (int64_t i = 0; i < axes.count; ++i) {
    std::vector<int64_t> finer;
    for (int64_t major : ranks)
      for (int64_t c = 0; c < axes.axes[i].size; ++c)
        finer.push_back(major + c * axes.axes[i].stride);
    ranks = std::move(finer);
  }
  return ranks;
}

} // namespace meshwright::rt

int32_t mw_rt_run_probe(mw_rt_context *context, int64_t, int64_t probe, const void *value) {
  if (const auto &watch = context->world->getProbe())
    watch(context->rank, probe, value);
  return 0;
}
