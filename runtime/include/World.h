//===- World.h - the ranks of a program -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
#define MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H

#include "meshwright-c/Runtime.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace meshwright::rt {

class Backend;
class Device;
struct Fault;
struct Link;
class Trace;
class World;

/// More than there is any use for: who asks for that many has made a mistake, and
/// hears of it before anything is allocated.
inline constexpr int64_t kMaxRanks = 1 << 16;
/// Of the ranks of one process, together.
inline constexpr int64_t kMaxThreads = 1 << 12;

/// The local buffers of one rank for one run.
struct RankBuffers {
  char *arena = nullptr;
  std::vector<const void *> arguments;
  /// Parameters as packed at load.
  std::vector<const void *> prepared;
  std::vector<const void *> constants;
  /// Written by the program.
  std::vector<const void *> results;
};

struct RunOptions {
  /// Seconds that a rank may wait in one collective; 0: MESHWRIGHT_TIMEOUT, or
  /// 30.
  double timeout = 0;
  /// Threads that a rank computes with; 0: MESHWRIGHT_THREADS, or 1. Results do
  /// not depend on it.
  int64_t threadsPerRank = 0;
  /// Fail where an op produces NaN or infinity, and name the first one.
  bool checkFinite = false;
  /// Filled with what each rank and stream of this process does when.
  std::shared_ptr<Trace> trace = nullptr;

  /// For programs (Program.h), whose ranks may be in other processes too:
  /// where to write the trace of all of them; nowhere if empty.
  std::string traceFile = {};
  /// Prepare a report of where time and memory went.
  bool measure = false;
};

/// Lets go of a world; not of its memory where a rank is stuck in it.
struct WorldDeleter {
  void operator()(World *world) const;
};
using WorldPtr = std::unique_ptr<World, WorldDeleter>;

/// The ranks of a program that this process hosts. Kept from run to run: their
/// threads, and what they prepare (library primitives, groups), are reused.
class World {
public:
  /// Called on the rank's thread with a value that the program hands out.
  using Probe = std::function<void(int64_t rank, int64_t probe, const void *value)>;

  /// Null, with an error, if there is no backend of that name, or it cannot work
  /// here. `ops` names the program's ops, in its order, for errors.
  static WorldPtr create(const std::string &backend, int64_t numRanks, std::vector<std::string> ops,
                         std::string &error);

  /// Runs the entry once on every rank of this process, which have the buffers in the
  /// order of `getLocalRanks`. On failure all ranks end, and the error names
  /// rank and op.
  bool run(mw_rt_entry entry, std::vector<RankBuffers> &buffers, const RunOptions &options,
           std::string &error);

  /// Whether a rank did not come back from a run that failed: its buffers and
  /// code must stay, and the process cannot count on its thread ending.
  bool isStuck();

  void setProbe(Probe callback) { probe = std::move(callback); }
  const Probe &getProbe() const { return probe; }
  /// Of all processes.
  int64_t getNumRanks() const { return numRanks; }
  /// Those that this process hosts.
  const std::vector<int64_t> &getLocalRanks() const { return localRanks; }
  Backend &getBackend() { return *backend; }
  /// The device of a rank of this process.
  Device &getDevice(int64_t rank);

  /// For backends and the ranks' threads.
  /// Of the current run.
  double getTimeout() const { return timeout; }
  int64_t getThreadsPerRank() const { return threadsPerRank; }
  const std::string &getOpName(int64_t op) const;
  const std::vector<std::string> &getOpNames() const { return ops; }
  /// What else is in the kernels of ops, by an op's number, for errors about values.
  void setFused(std::map<int64_t, std::string> others) { fused = std::move(others); }
  /// The id of the bundle that the program is from; empty where it is from none.
  /// Backends whose ranks are in several processes see to it that all have the same.
  void setBundle(std::string id) { bundle = std::move(id); }
  const std::string &getBundle() const { return bundle; }
  /// The link of MESHWRIGHT_LINK, to which CPU devices slow collectives down, or null.
  const Link *getLink() const { return link.get(); }
  /// The op that a rank of this process is at, or was last; -1 before the first.
  int64_t getPosition(int64_t rank) const;
  /// How long threads look before they sleep, in nanoseconds: those of streams,
  /// and those that compute.
  int64_t getSpin(int64_t stream) const { return stream ? streamSpin : computeSpin; }
  /// Ranks of all processes on this machine, where the backend knows of others:
  /// threads do not spin where there are more than cores.
  void setRanksOnMachine(int64_t count) { ranksOnMachine = count; }

  /// Records the first failure and wakes everybody who waits.
  void fail(int64_t rank, int64_t op, const std::string &message);
  /// The same with an error of another process, which names its rank.
  void fail(const std::string &message);
  bool hasFailed() const { return failed.load(std::memory_order_acquire); }
  /// Records that an op's results are not finite. The run goes on to its end, so
  /// that of all such ops the first is named.
  void noteNotFinite(int64_t rank, int64_t op, const std::string &message);

private:
  friend struct WorldDeleter;
  World() = default;
  ~World();

  bool prepareThreads(std::string &error);
  bool awaitRanks();
  void agreeWithOthers();
  void hostRank(mw_rt_context &context, size_t index);
  mw_rt_context *findRank(int64_t rank) const;

  /// Whose threads the ranks are: a process forked from it has none of them.
  const pid_t process = getpid();
  int64_t numRanks = 0;
  std::vector<int64_t> localRanks;
  std::vector<std::string> ops;
  std::map<int64_t, std::string> fused;
  std::string bundle;
  std::unique_ptr<Fault> fault;
  std::unique_ptr<Link> link;
  std::vector<std::unique_ptr<mw_rt_context>> contexts;
  double timeout = 30;
  int64_t threadsPerRank = 1;
  int64_t computeSpin = 0, streamSpin = 0, ranksOnMachine = 0;
  Probe probe;

  /// What the ranks' threads run, and who is at it.
  std::mutex runMutex;
  std::condition_variable runBegins, rankEnds;
  int64_t runCount = 0, unfinished = 0;
  bool stopping = false;
  mw_rt_entry entry = nullptr;
  std::vector<RankBuffers> buffers;
  std::shared_ptr<Trace> trace;

  std::mutex errorMutex;
  std::string firstError;
  int64_t notFiniteOp = -1, notFiniteRank = -1;
  std::string notFinite;
  std::atomic<bool> failed{false};

  /// Goes first: until it is gone it may tell of failures and ask where ranks are.
  std::unique_ptr<Backend> backend;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
