//===- Process.h - this process among those of mpirun -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MPI begins once a process and says nothing when a peer dies or hangs. So the
// processes of a machine also share a page of memory, in which the first failure
// of all is written, and a thread of each watches the others; processes of other
// machines learn of failures by messages.
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

/// The place of a process in the memory that its machine shares.
struct Seat {
  std::atomic<int32_t> pid;
  /// Whether it ended as it should, has seen the failure, and has let go of the run
  /// that failed, its error told.
  std::atomic<int32_t> hasLeft, hasSeenFailure, hasTold;
  /// Runs that it has begun, and those whose end its rank has come to.
  std::atomic<int64_t> runs, ends;
  /// When its watching thread last ran, in nanoseconds of the monotonic clock.
  std::atomic<int64_t> heartbeat;
  /// The op that its rank was at lately; -1 before the first.
  std::atomic<int64_t> lastOp;
};

/// That memory.
struct Table {
  enum : int32_t { Fine, Writing, Failed };
  std::atomic<int32_t> state;
  /// Whether it came from another machine, which has told all.
  std::atomic<int32_t> isNews;
  char error[4088];
  /// By place on the machine.
  Seat seats[1];
};

/// Requests under way.
struct Requests {
  std::vector<MPI_Request> list;
  /// The rank that each waits for, or -1: several.
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
  /// Begins MPI at the first call. Null, with an error, where there are not
  /// `numRanks` processes, or MPI cannot do what it must.
  static Process *get(int64_t numRanks, std::string &error);

  int64_t getRank() const { return rank; }
  int64_t getRanksOnMachine() const { return int64_t(machine.size()); }

  /// Worlds that hear of failures.
  void enter(World &world);
  void leave(World &world);
  /// Between these the world runs.
  void beginRun(World &world);
  void endRun(World &world);
  /// This process's rank has come to the end of its run; whether one of another has
  /// (of this machine: of others nothing is seen).
  void noteEnd() { ++seat->ends; }
  bool haveOthersEnded() const;

  /// Tells everybody, if nobody has failed before.
  void publish(const std::string &error);
  bool hasFailed() const { return table->state.load(std::memory_order_acquire) == Table::Failed; }
  std::string getError() const { return table->error; }

  /// Others shall see where the rank is: noted as collectives begin, and every now and
  /// then by the watching thread.
  void notePosition(const World &world) {
    seat->lastOp.store(world.getPosition(rank), std::memory_order_relaxed);
  }
  /// Waits until all requests are done. False after a failure, of this process or
  /// another, which the world then knows; so is a wait beyond `timeout` seconds
  /// (0: for as long as the others give signs of life).
  bool await(World &world, const Caller &caller, Requests &requests, double timeout);
  /// Reports what MPI returned; true for success.
  bool check(World &world, const Caller &caller, int status);

  /// The communicator of a group and stream: made at the first call, which all its
  /// ranks make at the same place of their streams, and kept. MPI_COMM_NULL after
  /// a failure.
  MPI_Comm getCommunicator(World &world, const Caller &caller, const std::vector<int64_t> &ranks);
  /// Of all ranks; for what is called on no stream.
  MPI_Comm getAll() const { return all; }

  /// After a failure, its error told: gives the others of this machine the time to
  /// do the same. mpirun ends them as soon as one has gone.
  void awaitWitnesses();

private:
  Process() = default;
  bool start(int64_t numRanks, std::string &error);
  bool shareTable(std::string &error);
  void watch();
  void lookAtPeers();
  void lookAtPeer(size_t place, bool isGone);
  void readMessages();
  void spread();
  std::string nameWaitedFor(World &world, const Requests &requests) const;
  int64_t findSilent(double timeout) const;
  void finish(bool endsMpi);
  bool meetAtEnd();
  Seat *findSeat(int64_t rank) const;

  int64_t rank = 0, size = 1;
  /// Copies of MPI_COMM_WORLD: for what all ranks do, for making communicators,
  /// for news of failures, and for meeting at the end.
  MPI_Comm all = MPI_COMM_NULL, making = MPI_COMM_NULL, news = MPI_COMM_NULL,
           ending = MPI_COMM_NULL;
  /// Ranks on this machine, by place in the table; their process descriptors, -1
  /// for this process and those that are gone.
  std::vector<int64_t> machine;
  std::vector<int> peers;
  Table *table = nullptr;
  Seat *seat = nullptr;

  std::mutex communicatorsMutex;
  std::map<std::pair<int64_t, std::vector<int64_t>>, MPI_Comm> communicators;

  std::mutex worldsMutex;
  std::set<World *> worlds, activeWorlds;

  /// Whether somebody else began MPI, and will end it.
  bool isGuest = false, hasFinished = false;
  std::thread watcher;
  std::atomic<bool> stopping{false};
  std::atomic<bool> hasSpread{false};
  std::vector<MPI_Request> newsRequests;
  int wakeUp = -1;
};

} // namespace meshwright::rt::mpi

#endif // MESHWRIGHT_RUNTIME_BACKENDS_MPI_PROCESS_H
