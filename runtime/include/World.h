//===- World.h - the ranks of a program -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
#define MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H

#include "meshwright/runtime/include/ExpertRows.h"
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

/// The most ranks of a program. A larger number is a mistake of the caller, which is reported
/// before anything is allocated.
inline constexpr int64_t kMaxRanks = 1 << 16;
/// The most compute threads of all ranks of one process together.
inline constexpr int64_t kMaxThreads = 1 << 12;

/// The local buffers of one rank for one run: addresses in the memory of its device.
struct RankBuffers {
  char *arena = nullptr;
  std::vector<const void *> arguments;
  /// Parameters, in the order of elements that kernels read.
  std::vector<const void *> prepared;
  std::vector<const void *> constants;
  /// Written by the program.
  std::vector<const void *> results;
};

/// Says if devices record the work of an entry, which later runs repeat.
enum class GraphUse {
  /// They record where they can.
  Auto,
  /// As `Auto`, and it is an error if nothing of the entry can be recorded.
  On,
  Off
};

struct RunOptions {
  /// Seconds that a rank may wait in one collective. 0 stands for MESHWRIGHT_TIMEOUT, or 30.
  double timeout = 0;
  /// Threads that a rank computes with. 0 stands for MESHWRIGHT_THREADS, or 1. Results do not
  /// depend on it.
  int64_t threadsPerRank = 0;
  /// Fail if an op produces NaN or infinity, and name the first such op.
  bool checkFinite = false;
  /// A run with a trace repeats nothing, so that the trace has each op.
  GraphUse graphs = GraphUse::Auto;
  /// The number of the GPU in whose memory the outputs are to be, or -1 for the host's.
  int64_t outputGpu = -1;
  /// Receives the events of each rank and stream of this process, or null.
  std::shared_ptr<Trace> trace = nullptr;
  /// Called on the thread of each rank behind its entry, unless the run has failed; may be null. Returns
  /// false after a failure, with an error or after `World::fail`.
  std::function<bool(int64_t rank, const RankBuffers &buffers, std::string &error)> afterEntry =
      nullptr;

  /// Programs (Program.h) alone have this: the file for the trace of all ranks, those of other
  /// processes included. Empty for none.
  std::string traceFile = {};
  /// Says that a program measures time and memory for a report.
  bool measure = false;
};

/// The names of an entry's ops, for errors.
struct OpNames {
  /// The index is the number of the op.
  std::vector<std::string> names;
  /// The other ops that are fused into the kernel of an op, for errors about values.
  std::map<int64_t, std::string> fused = {};
};

/// Deletes a world, unless a rank is stuck in it or this process was forked from the world's.
struct WorldDeleter {
  void operator()(World *world) const;
};
using WorldPtr = std::unique_ptr<World, WorldDeleter>;

/// The ranks of a program that this process hosts.
///
/// - Each rank has a thread, which runs the program's entry, and a device, which does the
///   work. Both are kept from run to run.
/// - The backend connects these ranks with those of other processes.
/// - A run ends on all ranks with the same status. The first failure of any rank is the error
///   of the run.
/// - A rank that does not come back from a failed run is stuck: nothing that it may still use
///   is freed.
class World {
public:
  /// Called on the rank's thread with a value of the program (`mw_rt_run_probe`).
  using Probe = std::function<void(int64_t rank, int64_t probe, const void *value)>;

  /// Returns null, with an error, if there is no backend of that name or it cannot work here.
  /// `ops` are the names of the program's ops, for errors, until `setOps` sets others.
  static WorldPtr create(const std::string &backend, int64_t numRanks, std::vector<std::string> ops,
                         std::string &error);

  /// Runs the entry once on every rank of this process. `buffers` are in the order of
  /// `getLocalRanks`. After a failure all ranks end, and the error names rank and op.
  bool run(mw_rt_entry entry, std::vector<RankBuffers> &buffers, const RunOptions &options,
           std::string &error);

  /// Restores the rows of states that the last run replaced, from the logs. No rank may be stuck.
  /// Returns false, with an error, if a device fails.
  bool undo(std::string &error);

  /// Waits until the ranks of a run that was interrupted have come back from their kernels, for at most
  /// so many seconds. Returns false, with an error, if this call is interrupted, too.
  bool settle(double seconds, std::string &error);

  /// Returns true if a rank has not come back from a run that failed. Its buffers and code must
  /// stay, and its thread may never end.
  bool isStuck();

  void setProbe(Probe callback) { probe = std::move(callback); }
  const Probe &getProbe() const { return probe; }
  /// The ranks of all processes.
  int64_t getNumRanks() const { return numRanks; }
  /// The ranks of this process, in order.
  const std::vector<int64_t> &getLocalRanks() const { return localRanks; }
  Backend &getBackend() { return *backend; }
  /// The device of a rank of this process.
  Device &getDevice(int64_t rank);

  // For backends, devices and the ranks' threads.

  /// The timeout of the current run, in seconds.
  double getTimeout() const { return timeout; }
  int64_t getThreadsPerRank() const { return threadsPerRank; }
  const std::string &getOpName(int64_t op) const;
  /// The rows of experts of the last run, of a rank of this process, by the number of the layer.
  const std::map<int64_t, ExpertRows> &getExperts(int64_t rank) const;
  /// Sets the names of ops of the next run. They must outlive the world.
  void setOps(const OpNames &names) { ops.store(&names, std::memory_order_release); }
  /// Sets the id of the bundle that the program comes from; empty if it comes from none.
  /// Backends with ranks in several processes check that all processes have the same id.
  void setBundle(std::string id) { bundle = std::move(id); }
  const std::string &getBundle() const { return bundle; }
  /// Sets the purpose of the next run, "entry 'main'". Backends with ranks in several processes
  /// check that all processes come with the same purpose.
  void setPurpose(std::string what) { purpose = std::move(what); }
  const std::string &getPurpose() const { return purpose; }
  /// The link of MESHWRIGHT_LINK, to which CPU devices slow collectives down, or null.
  const Link *getLink() const { return link.get(); }
  /// The op that a rank of this process is at, or was at last; -1 before the first op.
  int64_t getPosition(int64_t rank) const;
  /// How long a thread of this stream polls before it sleeps, in nanoseconds.
  int64_t getSpin(int64_t stream) const { return stream ? streamSpin : computeSpin; }
  /// Sets how many ranks of all processes are on this machine. Threads do not poll if there are
  /// more threads than cores.
  void setRanksOnMachine(int64_t count) { ranksOnMachine = count; }

  /// Records the first failure of a run and wakes all waiting ranks.
  void fail(int64_t rank, int64_t op, const std::string &message);
  /// The same with an error of another process, which names the rank itself.
  void fail(const std::string &message);
  bool hasFailed() const { return failed.load(std::memory_order_acquire); }
  /// Records that an op's results are not finite. The run goes on to its end, so that the error
  /// names the first of all such ops.
  void noteNotFinite(int64_t rank, int64_t op, int64_t result, int64_t element, double value);

private:
  friend struct WorldDeleter;
  World() = default;
  ~World();

  bool prepareThreads(std::string &error);
  bool awaitRanks();
  void agreeWithOthers();
  void hostRank(mw_rt_context &context, size_t index);
  mw_rt_context *findRank(int64_t rank) const;

  /// The process that has the ranks' threads. A process forked from it has none of them.
  const pid_t process = getpid();
  int64_t numRanks = 0;
  std::vector<int64_t> localRanks;
  OpNames ownOps;
  std::atomic<const OpNames *> ops{&ownOps};
  std::string bundle, purpose;
  std::unique_ptr<Fault> fault;
  std::unique_ptr<Link> link;
  std::vector<std::unique_ptr<mw_rt_context>> contexts;
  double timeout = 30;
  int64_t threadsPerRank = 1;
  int64_t computeSpin = 0, streamSpin = 0, ranksOnMachine = 0;
  Probe probe;

  // The current run, and the ranks that have not finished it. `runMutex` protects these.
  std::mutex runMutex;
  std::condition_variable runBegins, rankEnds;
  int64_t runCount = 0, unfinished = 0;
  bool stopping = false, wasInterrupted = false;
  mw_rt_entry entry = nullptr;
  std::vector<RankBuffers> buffers;
  std::shared_ptr<Trace> trace;
  decltype(RunOptions::afterEntry) afterEntry;

  // The errors of the current run. `errorMutex` protects these.
  std::mutex errorMutex;
  std::string firstError;
  int64_t notFiniteOp = -1, notFiniteRank = -1;
  std::string notFinite;
  std::atomic<bool> failed{false};

  /// Destroyed first: until then it may report failures and ask for the position of ranks.
  std::unique_ptr<Backend> backend;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
