//===- Failures.cpp - how processes learn of failures ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The first process that fails writes its error into the memory that the processes of a
// machine share. A watching thread in each process looks at it, and at the other
// processes of the machine, every `kWatchMilliseconds`. Processes of other machines learn of
// the failure by messages.
//
//===----------------------------------------------------------------------===//

#include "Process.h"
#include "meshwright/runtime/src/process/Termination.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

namespace meshwright::rt::mpi {

namespace {

constexpr int kNewsTag = 1;
/// The bytes of a failure's text, with the final zero.
constexpr int kErrorBytes = sizeof(SharedStatus::error);
/// The interval at which a process looks at the others.
constexpr int kWatchMilliseconds = 20;
/// How long this process waits for others to report a failure before it ends.
constexpr auto kReportTime = std::chrono::milliseconds(2000);

} // namespace

void Process::enter(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  worlds.insert(&world);
}

void Process::leave(World &world) {
  endRun(world);
  std::lock_guard<std::mutex> lock(worldsMutex);
  worlds.erase(&world);
}

void Process::beginRun(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  ++own->runs;
  activeWorlds.insert(&world);
  setActiveRuns(int(activeWorlds.size()));
}

void Process::endRun(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  activeWorlds.erase(&world);
  setActiveRuns(int(activeWorlds.size()));
}

bool Process::haveOthersEnded() const {
  for (size_t index = 0; index < machine.size(); ++index)
    if (&shared->processes[index] != own && shared->processes[index].ends >= own->runs)
      return true;
  return false;
}

void Process::publish(const std::string &error) {
  int32_t fine = SharedStatus::Fine;
  if (!shared->status.compare_exchange_strong(fine, SharedStatus::Writing))
    return;
  std::snprintf(shared->error, sizeof(shared->error), "%s", error.c_str());
  shared->status.store(SharedStatus::Failed, std::memory_order_release);
  // The watching thread tells the worlds and the other machines.
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wakeUp, &one, sizeof(one));
}

/// Tells the processes of other machines, once. A failure that came from another machine is not
/// passed on: a message to the process that has died may end this process before it has
/// reported the failure.
void Process::spread() {
  if (hasSpread.exchange(true) || int64_t(machine.size()) == size || shared->isNews)
    return;
  for (int64_t peer = 0; peer < size; ++peer)
    if (!findStatus(peer)) {
      newsRequests.emplace_back();
      MPI_Isend(shared->error, kErrorBytes, MPI_CHAR, int(peer), kNewsTag, news,
                &newsRequests.back());
    }
}

/// Receives failures from other machines.
void Process::readMessages() {
  if (int64_t(machine.size()) == size)
    return;
  int arrived = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, kNewsTag, news, &arrived, &status) != MPI_SUCCESS || !arrived)
    return;
  std::vector<char> text(kErrorBytes);
  if (MPI_Recv(text.data(), kErrorBytes, MPI_CHAR, status.MPI_SOURCE, kNewsTag, news,
               MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return;
  text.back() = '\0';
  if (!hasFailed())
    shared->isNews = 1;
  publish(text.data());
}

ProcessStatus *Process::findStatus(int64_t peer) const {
  auto found = std::find(machine.begin(), machine.end(), peer);
  return found == machine.end() ? nullptr : &shared->processes[found - machine.begin()];
}

/// Publishes a failure if a process of this machine has died, or has ended before our run.
/// `isGone` says that the process does not exist any more.
void Process::lookAtPeer(size_t index, bool isGone) {
  const ProcessStatus &other = shared->processes[index];
  if (other.hasSeenFailure || hasFailed() || (!isGone && !other.hasLeft))
    return;
  std::string where = "rank " + std::to_string(machine[index]) + ": ", what = "has died";
  std::lock_guard<std::mutex> lock(worldsMutex);
  if (other.hasLeft) {
    // The process may end as soon as the last common run is over.
    if (activeWorlds.empty() || other.runs >= own->runs)
      return;
    what = "has ended before the run";
  } else if (!activeWorlds.empty()) {
    World &world = **activeWorlds.begin();
    if (int64_t op = other.lastOp; op >= 0)
      where += world.getOpName(op) + ": ";
    else if (int64_t mine = world.getPosition(rank); mine >= 0)
      what += ", rank " + std::to_string(rank) + " being at " + world.getOpName(mine);
  }
  publish(where + "its process (" + std::to_string(other.pid) + ") " + what);
}

void Process::lookAtPeers() {
  std::vector<pollfd> files;
  for (int peer : peers)
    files.push_back({peer, POLLIN, 0});
  poll(files.data(), files.size(), 0);
  for (size_t index = 0; index < files.size(); ++index) {
    if (&shared->processes[index] == own)
      continue;
    bool isGone = peers[index] >= 0 && (files[index].revents & POLLIN);
    lookAtPeer(index, isGone);
    if (isGone) {
      close(peers[index]);
      peers[index] = -1;
    }
  }
}

void Process::watch() {
  pthread_setname_np(pthread_self(), "mw mpi watch");
  Clock::time_point endBegins;
  while (!stopping) {
    pollfd wake = {wakeUp, POLLIN, 0};
    poll(&wake, 1, kWatchMilliseconds);
    uint64_t count;
    [[maybe_unused]] ssize_t got = read(wakeUp, &count, sizeof(count));
    own->heartbeat.store(monotonicNanoseconds(), std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(worldsMutex);
      for (World *world : activeWorlds)
        notePosition(*world);
    }
    lookAtPeers();
    readMessages();
    if (isTerminated() && hasFailed() && endBegins == Clock::time_point())
      endBegins = Clock::now();
    if (endBegins != Clock::time_point() && Clock::now() - endBegins > kReportTime) {
      // The failure has been reported by now.
      terminate();
    }
    if (isTerminated() && !hasFailed()) {
      // The death of another process may be the reason. It may take a moment until it
      // shows.
      for (int i = 0; i < 10 && !hasFailed(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        lookAtPeers();
      }
      publish("rank " + std::to_string(rank) + ": ended by SIGTERM");
    }
    if (!hasFailed() || own->hasSeenFailure)
      continue;
    spread();
    own->hasSeenFailure = 1;
    // Hold the lock, so that no world is deleted meanwhile. `World::fail` does not take it.
    std::lock_guard<std::mutex> lock(worldsMutex);
    for (World *world : worlds)
      world->fail(getError());
  }
}

void Process::awaitReports() {
  own->hasReported = 1;
  auto end = Clock::now() + kReportTime;
  auto isDone = [&](size_t index) {
    const ProcessStatus &other = shared->processes[index];
    if (other.hasReported || other.hasLeft)
      return true;
    return kill(other.pid, 0) != 0 && errno == ESRCH;
  };
  for (size_t index = 0; index < machine.size(); ++index)
    while (!isDone(index) && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // mpirun may not read the output of the others once one process has ended.
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

} // namespace meshwright::rt::mpi
