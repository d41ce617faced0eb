//===- Processes.cpp - this process among those of a launcher -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Processes.h"

#include "meshwright/runtime/src/process/Termination.h"

#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sys/eventfd.h>
#include <unistd.h>

namespace meshwright::rt::gpu {

/// How long a process that has connected may take to say what it is.
static constexpr auto kHelloTime = std::chrono::seconds(5);
/// The least time for all processes to come.
static constexpr double kLeastStartSeconds = 10;

static Processes *theProcesses = nullptr;

std::string formatSeconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

//===----------------------------------------------------------------------===//
// Beginning
//===----------------------------------------------------------------------===//

static std::string adviseLaunch(int64_t ranks, int64_t processes) {
  auto count = [](int64_t number, const char *one, const char *several) {
    return std::to_string(number) + " " + (number == 1 ? one : several);
  };
  return "the program has " + count(ranks, "rank", "ranks") + ", and there are " +
         count(processes, "process", "processes") + ": expected a process for each rank";
}

Processes *Processes::get(const Launcher &launcher, int64_t numRanks, std::string &error) {
  static std::mutex getting;
  static std::string refusal;
  std::lock_guard<std::mutex> lock(getting);
  if (launcher.size != numRanks) {
    error = adviseLaunch(numRanks, launcher.size);
    return nullptr;
  }
  if (theProcesses || !refusal.empty()) {
    error = refusal;
    return theProcesses;
  }
  std::unique_ptr<Rendezvous> rendezvous = Rendezvous::find(launcher, error);
  if (!rendezvous)
    return nullptr;
  // Never destroyed: its thread may outlive static objects.
  auto *processes = new Processes(launcher);
  if (!processes->start(*rendezvous, refusal)) {
    error = refusal;
    return nullptr;
  }
  theProcesses = processes;
  std::atexit([] { theProcesses->finish(); });
  return theProcesses;
}

bool Processes::haveFailed() { return !theProcesses || theProcesses->hasFailed(); }

/// The name of this machine that no other has.
static std::string nameMachine() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(host) + " " + boot;
}

std::string Processes::describeSelf(int64_t token) const {
  const char *visible = std::getenv("CUDA_VISIBLE_DEVICES");
  Writer writer;
  writer.add(token).add(rank).add(size).add(int64_t(getpid())).add(nameMachine());
  return writer.add(visible ? visible : "all").text;
}

/// Reads the texts of `describeSelf` of all processes.
bool Processes::readAll(const std::string &text) {
  Reader all(text);
  std::vector<std::string> machines, visible;
  for (int64_t i = 0; i < size; ++i) {
    std::string own = all.readText();
    Reader reader(own);
    for (int skipped = 0; skipped < 3; ++skipped)
      reader.readNumber();
    if (int64_t process = reader.readNumber(); peers.count(i))
      peers[i].process = process;
    machines.push_back(reader.readText());
    visible.push_back(reader.readText());
    if (!reader.isWhole)
      return false;
  }
  ranksOnMachine = std::count(machines.begin(), machines.end(), machines[rank]);
  for (int64_t i = 0; i < rank; ++i)
    index += machines[i] == machines[rank] && visible[i] == visible[rank];
  return true;
}

/// On rank 0: waits for the others, and tells them that all are there.
bool Processes::gatherAll(Rendezvous &rendezvous, Clock::time_point end, std::string &error) {
  int64_t token = 0;
  std::unique_ptr<Listener> listener = rendezvous.open(token, error);
  if (!listener)
    return false;
  std::vector<std::string> said(size);
  said[0] = describeSelf(token);
  while (int64_t(peers.size()) < size - 1 && error.empty()) {
    std::unique_ptr<Wire> wire = listener->accept(end);
    if (!wire) {
      error = "not all processes have come to " + rendezvous.describe() + ": missing rank";
      for (int64_t i = 1; i < size; ++i)
        if (!peers.count(i))
          error += " " + std::to_string(i);
      break;
    }
    Message kind;
    std::string text;
    if (!wire->await(kind, text, Clock::now() + kHelloTime) || kind != Message::Hello)
      continue;
    Reader reader(text);
    int64_t theirs = reader.readNumber(), from = reader.readNumber(), of = reader.readNumber();
    if (!reader.isWhole || theirs != token)
      continue;
    wire->send(Message::Hello, "");
    if (of != size || from < 1 || from >= size || peers.count(from))
      error = "a process came as rank " + std::to_string(from) + " of " + std::to_string(of) +
              ": expected another rank of " + std::to_string(size);
    said[std::clamp<int64_t>(from, 0, size - 1)] = text;
    peers[from].wire = std::move(wire);
  }
  Writer all;
  for (const std::string &text : said)
    all.add(text);
  for (auto &[number, peer] : peers)
    peer.wire->send(error.empty() ? Message::Welcome : Message::Failed,
                    error.empty() ? all.text : error);
  return error.empty() && readAll(all.text);
}

/// On other ranks: connects to rank 0, and waits until all are there.
bool Processes::joinFirst(Rendezvous &rendezvous, Clock::time_point end, std::string &error) {
  while (Clock::now() < end) {
    int64_t token = 0;
    std::unique_ptr<Wire> wire = rendezvous.connect(token, error);
    if (!error.empty())
      return false;
    Message kind;
    std::string text;
    if (!wire || !wire->send(Message::Hello, describeSelf(token)) ||
        !wire->await(kind, text, Clock::now() + kHelloTime)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    if (!wire->await(kind, text, end) || kind != Message::Welcome) {
      error = kind == Message::Failed ? text : "rank 0 has ended before all processes came";
      return false;
    }
    peers[0].wire = std::move(wire);
    if (readAll(text))
      return true;
    error = "rank 0 is of another version";
    return false;
  }
  error = "rank 0 does not answer at " + rendezvous.describe();
  return false;
}

bool Processes::start(Rendezvous &rendezvous, std::string &error) {
  double seconds = std::max(10 * defaultTimeout(), kLeastStartSeconds);
  auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(std::min(seconds, 1e8)));
  if (!(rank == 0 ? gatherAll(rendezvous, end, error) : joinFirst(rendezvous, end, error)))
    return false;
  for (auto &[number, peer] : peers)
    peer.lastSign = Clock::now();
  wakeUp = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watchForTermination(wakeUp);
  watcher = std::thread([this] { watch(); });
  return true;
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

void Processes::enter(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  worlds.insert(&world);
}

void Processes::leave(World &world) {
  endRun(world);
  std::lock_guard<std::mutex> lock(worldsMutex);
  worlds.erase(&world);
}

void Processes::beginRun(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  ++runs;
  activeWorlds.insert(&world);
  setActiveRuns(int(activeWorlds.size()));
}

void Processes::endRun(World &world) {
  std::lock_guard<std::mutex> lock(worldsMutex);
  activeWorlds.erase(&world);
  setActiveRuns(int(activeWorlds.size()));
}

std::string Processes::getError() const {
  std::lock_guard<std::mutex> lock(mutex);
  return firstError;
}

void Processes::publish(const std::string &error) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (failed)
      return;
    firstError = error;
    failed.store(true, std::memory_order_release);
  }
  changed.notify_all();
  // The watching thread tells the others.
  wake();
}

bool Processes::exchange(const std::string &mine, double timeout, std::vector<std::string> &all,
                         std::string &error) {
  std::unique_lock<std::mutex> lock(mutex);
  int64_t number = exchanges++;
  ++exchanging;
  if (!failed && rank == 0) {
    lock.unlock();
    addPart(number, rank, timeout, mine);
    lock.lock();
  } else if (!failed) {
    lock.unlock();
    Writer writer;
    writer.add(number).add(int64_t(timeout * 1000)).add(mine);
    // The watching thread finds a connection that has ended.
    peers[0].wire->send(Message::Part, writer.text);
    lock.lock();
    if (peers[0].hasLeft && !results.count(number) && !failed) {
      lock.unlock();
      publish("rank 0: its process has ended before the run");
      lock.lock();
    }
  }
  auto isOver = [&] { return failed || results.count(number); };
  while (!changed.wait_for(lock, std::chrono::milliseconds(100), isOver)) {
    lock.unlock();
    if (isInterrupted())
      publish("rank " + std::to_string(rank) + ": " + kInterrupted);
    lock.lock();
  }
  --exchanging;
  auto found = results.find(number);
  if (found == results.end()) {
    error = firstError;
    return false;
  }
  all = std::move(found->second);
  results.erase(found);
  return true;
}

/// On rank 0: takes the part of a process, and gives all parts to all when they are there.
void Processes::addPart(int64_t number, int64_t from, double timeout, const std::string &part) {
  Writer writer;
  {
    std::lock_guard<std::mutex> lock(mutex);
    Gathering &gathering = gatherings[number];
    gathering.timeout = std::max(gathering.timeout, timeout);
    gathering.parts[from] = part;
    if (int64_t(gathering.parts.size()) < size)
      return;
    std::vector<std::string> &all = results[number];
    writer.add(number);
    for (auto &[whose, text] : gathering.parts) {
      writer.add(text);
      all.push_back(std::move(text));
    }
    gatherings.erase(number);
  }
  for (auto &[whose, peer] : peers)
    peer.wire->send(Message::Parts, writer.text);
  changed.notify_all();
}

} // namespace meshwright::rt::gpu
