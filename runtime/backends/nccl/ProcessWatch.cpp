//===- ProcessWatch.cpp - how processes learn of failures -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A thread of each process reads its connections, sends signs of life, and tells the worlds of
// failures. That of rank 0 also looks for processes that are late, and passes failures on.
//
//===----------------------------------------------------------------------===//

#include "Processes.h"
#include "meshwright/runtime/src/process/Termination.h"

#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

namespace meshwright::rt::gpu {

/// The interval of signs of life.
static constexpr auto kBeat = std::chrono::milliseconds(50);
/// How long this process waits for others to report a failure before it ends.
static constexpr auto kReportTime = std::chrono::milliseconds(2000);
/// The death of another process may be the reason of SIGTERM. It may take a moment until it shows.
static constexpr auto kTerminationTime = std::chrono::milliseconds(300);

std::string formatSeconds(double seconds);

void Processes::wake() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wakeUp, &one, sizeof(one));
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

void Processes::hear(int64_t from, Message kind, const std::string &text) {
  Peer &peer = peers[from];
  Reader reader(text);
  switch (kind) {
  case Message::Part: {
    int64_t number = reader.readNumber();
    double timeout = double(reader.readNumber()) / 1000;
    addPart(number, from, timeout, reader.readText());
    return;
  }
  case Message::Parts: {
    int64_t number = reader.readNumber();
    std::vector<std::string> all;
    for (int64_t i = 0; i < size; ++i)
      all.push_back(reader.readText());
    {
      std::lock_guard<std::mutex> lock(mutex);
      results[number] = std::move(all);
    }
    changed.notify_all();
    return;
  }
  case Message::Beat:
    peer.position = reader.readNumber();
    peer.ends = reader.readNumber();
    return;
  case Message::Failed:
    publish(text);
    return;
  case Message::Bye: {
    std::lock_guard<std::mutex> lock(mutex);
    peer.hasLeft = true;
    changed.notify_all();
    return;
  }
  case Message::Hello:
  case Message::Welcome:
    return;
  }
}

/// Reads what another process has sent.
void Processes::lookAt(int64_t number) {
  Peer &peer = peers[number];
  bool isOpen = peer.wire->fill();
  Message kind;
  std::string text;
  while (peer.wire->take(kind, text)) {
    peer.lastSign = Clock::now();
    hear(number, kind, text);
  }
  if (isOpen)
    return;
  if (!peer.hasLeft)
    noteDeath(number, "its process (" + std::to_string(peer.process) + ") has died");
  std::lock_guard<std::mutex> lock(mutex);
  peer.hasLeft = peer.isGone = true;
  changed.notify_all();
}

/// Sends signs of life: the position of this rank and the runs that it has ended. Rank 0 tells a process
/// how many runs the others have ended.
void Processes::beat() {
  int64_t position = -1;
  {
    std::lock_guard<std::mutex> lock(worldsMutex);
    for (World *world : activeWorlds)
      position = std::max(position, world->getPosition(rank));
  }
  int64_t most = 0;
  for (auto &[number, peer] : peers) {
    most = std::max(most, peer.ends);
    if (peer.hasLeft)
      continue;
    int64_t told = ends;
    for (auto &[other, theirs] : peers)
      if (other != number)
        told = std::max(told, theirs.ends);
    peer.wire->send(Message::Beat, Writer().add(position).add(told).text);
  }
  othersEnds = most;
}

//===----------------------------------------------------------------------===//
// Failures
//===----------------------------------------------------------------------===//

/// Returns " (last at dist.all_gather (m.mlir:7))" if the position of that rank is known.
std::string Processes::nameAt(int64_t number) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  int64_t position = peers[number].position;
  return activeWorlds.empty() || position < 0
             ? ""
             : " (last at " + (*activeWorlds.begin())->getOpName(position) + ")";
}

/// Publishes that a process is gone or silent, with the op that its rank or this one was at.
void Processes::noteDeath(int64_t number, const std::string &what) {
  std::string where = "rank " + std::to_string(number) + ": ", end;
  {
    std::lock_guard<std::mutex> lock(worldsMutex);
    if (!activeWorlds.empty()) {
      World &world = **activeWorlds.begin();
      if (int64_t op = peers[number].position; op >= 0)
        where += world.getOpName(op) + ": ";
      else if (int64_t mine = world.getPosition(rank); mine >= 0)
        end = ", rank " + std::to_string(rank) + " being at " + world.getOpName(mine);
    }
  }
  publish(where + what + end);
}

/// Looks for processes that others wait for.
void Processes::findLate() {
  double limit = defaultTimeout();
  {
    std::lock_guard<std::mutex> lock(worldsMutex);
    if (activeWorlds.empty() && exchanging == 0)
      return;
    for (World *world : activeWorlds)
      limit = world->getTimeout();
  }
  Clock::time_point now = Clock::now();
  for (auto &[number, peer] : peers)
    if (!peer.hasLeft && now - peer.lastSign > std::chrono::duration<double>(limit))
      noteDeath(number, "its process has given no sign of life for " + formatSeconds(limit));
  std::string late;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto &[number, gathering] : gatherings)
      for (auto &[whose, peer] : peers) {
        if (gathering.parts.count(whose) || !late.empty())
          continue;
        bool isOver = gathering.timeout > 0 &&
                      now - gathering.begin > std::chrono::duration<double>(gathering.timeout);
        if (peer.hasLeft)
          late = "rank " + std::to_string(whose) + ": its process has ended before the run";
        else if (isOver)
          late = "rank 0: timed out after " + formatSeconds(gathering.timeout) +
                 " waiting for rank " + std::to_string(whose) + nameAt(whose);
      }
    for (auto &[number, gathering] : gatherings)
      if (late.empty() && !gathering.parts.count(rank) && gathering.timeout > 0 &&
          now - gathering.begin > std::chrono::duration<double>(gathering.timeout))
        late = "timed out after " + formatSeconds(gathering.timeout) + " waiting for rank 0";
    if (rank != 0 && exchanging > 0 && peers[0].hasLeft && results.empty())
      late = "rank 0: its process has ended before the run";
  }
  if (!late.empty())
    publish(late);
}

/// Tells the other processes and the worlds of this one.
void Processes::spread() {
  std::string error = getError();
  for (auto &[number, peer] : peers)
    if (!peer.isGone)
      peer.wire->send(Message::Failed, error);
  // Hold the lock, so that no world is deleted meanwhile. `World::fail` does not take it.
  std::lock_guard<std::mutex> lock(worldsMutex);
  for (World *world : worlds)
    world->fail(error);
}

void Processes::handleTermination() {
  if (!isTerminated())
    return;
  Clock::time_point now = Clock::now();
  if (terminationSeen == Clock::time_point())
    terminationSeen = now;
  if (!hasFailed() && now - terminationSeen > kTerminationTime)
    publish("rank " + std::to_string(rank) + ": ended by SIGTERM");
  // The failure has been reported by now.
  if (now - terminationSeen > kReportTime)
    terminate();
}

//===----------------------------------------------------------------------===//
// The watching thread
//===----------------------------------------------------------------------===//

void Processes::watch() {
  pthread_setname_np(pthread_self(), "mw nccl watch");
  Clock::time_point nextBeat = Clock::now();
  bool hasSpread = false;
  while (!stopping) {
    std::vector<pollfd> files{{wakeUp, POLLIN, 0}};
    std::vector<int64_t> numbers;
    for (auto &[number, peer] : peers)
      if (!peer.isGone) {
        files.push_back({peer.wire->getFile(), POLLIN, 0});
        numbers.push_back(number);
      }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(nextBeat - Clock::now()).count();
    poll(files.data(), files.size(), int(std::max<int64_t>(left, 0)));
    uint64_t count;
    [[maybe_unused]] ssize_t got = read(wakeUp, &count, sizeof(count));
    for (size_t i = 0; i < numbers.size(); ++i)
      if (files[i + 1].revents)
        lookAt(numbers[i]);
    if (Clock::now() >= nextBeat) {
      beat();
      if (!hasFailed())
        findLate();
      nextBeat = Clock::now() + kBeat;
    }
    handleTermination();
    if (hasFailed() && !hasSpread) {
      hasSpread = true;
      spread();
    }
  }
}

/// Called at exit. After a failure all processes end together, since a launcher ends the others as soon
/// as one has ended.
void Processes::finish() {
  for (auto &[number, peer] : peers)
    if (!peer.isGone)
      peer.wire->send(Message::Bye, "");
  if (hasFailed()) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, kReportTime, [&] {
      return std::all_of(peers.begin(), peers.end(),
                         [](const auto &peer) { return peer.second.hasLeft; });
    });
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  stopping = true;
  wake();
  watcher.join();
  peers.clear();
}

} // namespace meshwright::rt::gpu
