//===- Process.h - this process among those of mpirun -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MPI is initialised once per process, and it does not report that a peer died or hangs. So the
// processes of a machine also share a page of memory, which holds the first failure of any of
// them, and a thread of each process watches the others. Processes of other machines learn of
// failures by messages.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_MPI_PROCESS_H
#define MESHWRIGHT_RUNTIME_BACKENDS_MPI_PROCESS_H

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/World.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mpi.h>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace meshwright::rt::mpi {

using Clock = std::chrono::steady_clock;

inline int64_t monotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

/// The status of one process in the memory that the processes of a machine share. Relaxed stores
/// of `heartbeat` and `lastOp` are enough: each is a single number that others only compare
/// with the time or print.
struct ProcessStatus {
  std::atomic<int32_t> pid;
  /// Not 0 if the process ended without a failure, if it has seen the failure, and if it has
  /// reported it to its user.
  std::atomic<int32_t> hasLeft, hasSeenFailure, hasReported;
  /// The number of runs that the process has begun, and of runs that its rank has finished.
  std::atomic<int64_t> runs, ends;
  /// The last time that its watching thread ran, in nanoseconds of the monotonic clock.
  std::atomic<int64_t> heartbeat;
  /// The op that its rank was at lately; -1 before the first op.
  std::atomic<int64_t> lastOp;
};

/// The memory that the processes of a machine share. The first process that fails changes
/// `status` from Fine to Writing, writes `error`, and publishes it by storing Failed with
/// release order.
struct SharedStatus {
  enum : int32_t { Fine, Writing, Failed };
  std::atomic<int32_t> status;
  /// Not 0 if the failure came from another machine. That machine has told all others.
  std::atomic<int32_t> isNews;
  char error[4088];
  /// One for each process of the machine.
  ProcessStatus processes[1];
};

/// MPI requests that are not complete.
struct Requests {
  std::vector<MPI_Request> list;
  /// The rank that each request waits for; -1 for several ranks.
  std::vector<int64_t> peers;

  void add(MPI_Request request, int64_t peer) {
    list.push_back(request);
    peers.push_back(peer);
  }
  MPI_Request *addFor(int64_t peer) {
    add(MPI_REQUEST_NULL, peer);
    return &list.back();
  }
  void clear() {
    list.clear();
    peers.clear();
  }
};

class Process {
public:
  /// Returns the process. The first call initialises MPI. Returns null, with an error, if
  /// there are not `numRanks` processes, or if MPI lacks a feature that the backend needs.
  static Process *get(int64_t numRanks, std::string &error);

  int64_t getRank() const { return rank; }
  int64_t getRanksOnMachine() const { return int64_t(machine.size()); }

  /// Add and remove a world that is told of failures.
  void enter(World &world);
  void leave(World &world);
  /// Mark the begin and the end of a world's run.
  void beginRun(World &world);
  void endRun(World &world);
  /// `noteEnd` notes that the rank of this process has finished its run. `haveOthersEnded`
  /// returns true if the rank of another process of this machine has. Other machines are not
  /// visible.
  void noteEnd() { ++own->ends; }
  bool haveOthersEnded() const;

  /// Tells all processes of a failure, unless there was one before.
  void publish(const std::string &error);
  bool hasFailed() const {
    return shared->status.load(std::memory_order_acquire) == SharedStatus::Failed;
  }
  std::string getError() const { return shared->error; }

  /// Publishes the rank's position for errors of other processes. Called when a collective
  /// begins, and regularly by the watching thread.
  void notePosition(const World &world) {
    own->lastOp.store(world.getPosition(rank), std::memory_order_relaxed);
  }
  /// Waits until all requests are complete. Returns false after a failure of any process,
  /// which the world then knows. A wait of more than `timeout` seconds is a failure; with a
  /// timeout of 0 the wait goes on while the other processes give signs of life.
  bool await(World &world, const Caller &caller, Requests &requests, double timeout);
  /// Reports an error that MPI returned. Returns true for success.
  bool check(World &world, const Caller &caller, int status);

  /// Returns the communicator of a group and stream, or MPI_COMM_NULL after a failure. The
  /// first call, which all ranks of the group make at the same point of their streams,
  /// creates it.
  MPI_Comm getCommunicator(World &world, const Caller &caller, const std::vector<int64_t> &ranks);
  /// The communicator of all ranks, for calls outside of streams.
  MPI_Comm getAll() const { return all; }

  /// Called after a failure was reported: waits until the other processes of this machine
  /// have reported it, too. mpirun ends them as soon as one process has ended.
  void awaitReports();

private:
  Process() = default;
  bool start(int64_t numRanks, std::string &error);
  bool shareState(std::string &error);
  void watch();
  void lookAtPeers();
  void lookAtPeer(size_t index, bool isGone);
  void readMessages();
  void spread();
  std::string nameWaitedFor(World &world, const Requests &requests) const;
  int64_t findSilent(double timeout) const;
  void finish(bool endsMpi);
  bool meetAtEnd();
  ProcessStatus *findStatus(int64_t rank) const;

  int64_t rank = 0, size = 1;
  /// Copies of MPI_COMM_WORLD: for calls of all ranks, for creating communicators, for news
  /// of failures, and for the barrier at the end.
  MPI_Comm all = MPI_COMM_NULL, making = MPI_COMM_NULL, news = MPI_COMM_NULL,
           ending = MPI_COMM_NULL;
  /// The ranks of this machine by their processes, and their process descriptors: -1 for this
  /// process and for processes that have ended.
  std::vector<int64_t> machine;
  std::vector<int> peers;
  SharedStatus *shared = nullptr;
  ProcessStatus *own = nullptr;

  std::mutex communicatorsMutex;
  std::map<std::pair<int64_t, std::vector<int64_t>>, MPI_Comm> communicators;

  std::mutex worldsMutex;
  std::set<World *> worlds, activeWorlds;

  /// `isGuest`: another library initialised MPI and will finalise it.
  bool isGuest = false, hasFinished = false;
  std::thread watcher;
  std::atomic<bool> stopping{false};
  std::atomic<bool> hasSpread{false};
  std::vector<MPI_Request> newsRequests;
  int wakeUp = -1;
};

} // namespace meshwright::rt::mpi

#endif // MESHWRIGHT_RUNTIME_BACKENDS_MPI_PROCESS_H
