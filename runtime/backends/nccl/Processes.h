//===- Processes.h - this process among those of a launcher -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_PROCESSES_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_PROCESSES_H

#include "Rendezvous.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <set>
#include <thread>

namespace meshwright::rt {
class World;
}

namespace meshwright::rt::gpu {

/// The processes that a launcher started, one for each rank. They meet outside of the GPUs: before and
/// after runs, and at failures.
///
/// - Each process has a connection to the process of rank 0, and a thread that watches it.
/// - `exchange` gives all processes the texts of all. All processes call it in the same order.
/// - The first failure goes to all processes. They cannot meet again after it.
/// - A connection that ends without a goodbye is the death of a process, and a failure. So is a process
///   without a sign of life for the timeout of a run.
class Processes {
public:
  /// Returns the processes. The first call waits until all have come. Returns null, with an error,
  /// if they do not, or if there are not `numRanks`.
  static Processes *get(const Launcher &launcher, int64_t numRanks, std::string &error);
  /// Returns true after a failure of any process.
  static bool haveFailed();

  int64_t getRank() const { return rank; }
  int64_t getSize() const { return size; }
  int64_t getRanksOnMachine() const { return ranksOnMachine; }
  /// How many processes of lower ranks see the same GPUs as this one.
  int64_t getIndex() const { return index; }

  /// Add and remove a world that is told of failures.
  void enter(World &world);
  void leave(World &world);
  /// Mark the begin and the end of a world's run, and the end of its part on this rank.
  void beginRun(World &world);
  void endRun(World &world);
  void noteEnd() { ++ends; }
  /// Returns true if another rank has come to the end of the current run.
  bool haveOthersEnded() const { return othersEnds >= runs; }

  /// Tells all processes of a failure, unless there was one before.
  void publish(const std::string &error);
  bool hasFailed() const { return failed.load(std::memory_order_acquire); }
  std::string getError() const;

  /// Gives `mine` to all processes, and sets `all` to the texts of all, by rank. Returns false, with
  /// an error, after a failure. A process that does not come within `timeout` seconds is a failure;
  /// with a timeout of 0 the wait goes on while all give signs of life.
  bool exchange(const std::string &mine, double timeout, std::vector<std::string> &all,
                std::string &error);

private:
  /// Another process, as rank 0 sees it; for other ranks, rank 0.
  struct Peer {
    std::unique_ptr<Wire> wire;
    int64_t process = 0, position = -1, ends = 0;
    Clock::time_point lastSign = Clock::now();
    /// `hasLeft` is true if it has said goodbye, `isGone` if the connection has ended.
    bool hasLeft = false, isGone = false;
  };
  /// An exchange that is under way.
  struct Gathering {
    Clock::time_point begin = Clock::now();
    double timeout = 0;
    std::map<int64_t, std::string> parts;
  };

  Processes(const Launcher &launcher) : rank(launcher.rank), size(launcher.size) {}
  bool start(Rendezvous &rendezvous, std::string &error);
  bool gatherAll(Rendezvous &rendezvous, Clock::time_point end, std::string &error);
  bool joinFirst(Rendezvous &rendezvous, Clock::time_point end, std::string &error);
  std::string describeSelf(int64_t token) const;
  bool readAll(const std::string &text);
  void watch();
  void lookAt(int64_t peer);
  void hear(int64_t peer, Message kind, const std::string &text);
  void addPart(int64_t number, int64_t from, double timeout, const std::string &part);
  void beat();
  void findLate();
  void noteDeath(int64_t peer, const std::string &what);
  void spread();
  void handleTermination();
  std::string nameAt(int64_t peer);
  void wake();
  void finish();

  const int64_t rank, size;
  int64_t ranksOnMachine = 1, index = 0;
  /// The connections: on rank 0 to all other ranks, elsewhere to rank 0.
  std::map<int64_t, Peer> peers;

  /// Protects the members down to `changed`.
  mutable std::mutex mutex;
  std::string firstError;
  /// The exchanges under way. Only rank 0 has some.
  std::map<int64_t, Gathering> gatherings;
  std::map<int64_t, std::vector<std::string>> results;
  int64_t exchanges = 0;
  std::condition_variable changed;
  std::atomic<bool> failed{false};

  std::mutex worldsMutex;
  std::set<World *> worlds, activeWorlds;
  std::atomic<int64_t> runs{0}, ends{0}, othersEnds{0}, exchanging{0};
  Clock::time_point terminationSeen;
  std::thread watcher;
  std::atomic<bool> stopping{false};
  int wakeUp = -1;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_PROCESSES_H
