//===- Block.cpp - Schedules the warps of a cluster --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Mbarrier.h"
#include "interp/RaceShadow.h"
#include "interp/Warp.h"

#include <algorithm>
#include <mutex>
#include <thread>

namespace fakegpu {

void Counters::add(const Counters &o) {
  warpInstructions += o.warpInstructions;
  laneInstructions += o.laneInstructions;
  globalRequests += o.globalRequests;
  globalSectors += o.globalSectors;
  globalBytes += o.globalBytes;
  sharedRequests += o.sharedRequests;
  sharedWavefronts += o.sharedWavefronts;
  sharedConflicts += o.sharedConflicts;
}

void Block::start(Cluster &owner, unsigned rankInCluster, const unsigned (&at)[3]) {
  cluster = &owner;
  launch = owner.launch;
  rank = rankInCluster;
  std::copy(at, at + 3, index);
  threads = launch->block[0] * launch->block[1] * launch->block[2];
  const Program &p = *launch->program;
  sharedBytes = launch->dynamicBytes ? p.dynamicShared + launch->dynamicBytes : p.staticShared;
  sharedStorage.assign(sharedBytes + 1024, char(0xff)); // poison
  auto base = reinterpret_cast<uintptr_t>(sharedStorage.data());
  shared = sharedStorage.data() + (1024 - base % 1024) % 1024;
  barriers.fill({});
  warps.resize((threads + kLanes - 1) / kLanes);
  for (unsigned i = 0; i < warps.size(); ++i)
    warps[i].start(*this, i);
  if (!shadow)
    shadow = std::make_shared<RaceShadow>();
  shadow->start(sharedBytes, unsigned(warps.size()), p.raceGranule);
  freeRegisters = 0;
}

unsigned Block::liveThreads() const {
  unsigned count = 0;
  for (const Warp &w : warps)
    count += w.state == Warp::Done ? 0 : kLanes;
  return count;
}

void Block::arrive(Warp &warp, unsigned barrier, unsigned threadsExpected, bool waits) {
  NamedBarrier &b = barriers[barrier];
  b.expected = threadsExpected;
  b.arrived += kLanes;
  shadow->arrive(warp.id, barrier, waits);
  if (waits) {
    warp.state = Warp::AtBarrier;
    warp.barrier = uint8_t(barrier);
  }
  if (b.arrived >= (b.expected ? b.expected : liveThreads()))
    release(barrier);
}

void Block::release(unsigned barrier) {
  NamedBarrier &b = barriers[barrier];
  shadow->release(barrier);
  b.lastPopc = b.value;
  b.lastAnd = b.andValue == ~0u;
  b.lastOr = b.orValue != 0;
  b.arrived = b.expected = 0;
  b.value = b.orValue = 0;
  b.andValue = ~0u;
  for (Warp &w : warps)
    if (w.state == Warp::AtBarrier && w.barrier == barrier)
      w.state = Warp::Running;
}

void Block::recheckBarriers() {
  for (unsigned i = 0; i < barriers.size(); ++i) {
    NamedBarrier &b = barriers[i];
    if (b.arrived && !b.expected && b.arrived >= liveThreads())
      release(i);
  }
}

void Cluster::start(const Launch &l, const unsigned (&first)[3]) {
  launch = &l;
  bulk.clear();
  retired = 0;
  random = l.seed * 0x9e3779b97f4a7c15u + first[0] + first[1] * 65537u + first[2] * 257u + 1;
  blocks.resize(size_t(l.cluster[0]) * l.cluster[1] * l.cluster[2]);
  unsigned rank = 0;
  for (unsigned z = 0; z < l.cluster[2]; ++z)
    for (unsigned y = 0; y < l.cluster[1]; ++y)
      for (unsigned x = 0; x < l.cluster[0]; ++x, ++rank)
        blocks[rank].start(*this, rank, {first[0] + x, first[1] + y, first[2] + z});
}

uint64_t Cluster::nextRandom() {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

/// Wakes warps whose mbarrier has completed its phase, or whose registers have become free.
bool Cluster::wake() {
  bool any = false;
  for (Block &b : blocks)
    for (Warp &w : b.warps) {
      if (w.state == Warp::AtMbarrier && mbarrierDone(*this, w)) {
        w.state = Warp::Running;
        any = true;
      }
      if (w.state == Warp::AtBudget && b.freeRegisters >= (w.wantedBudget - w.registerBudget) * kLanes) {
        b.freeRegisters -= (w.wantedBudget - w.registerBudget) * kLanes;
        w.registerBudget = w.wantedBudget;
        w.state = Warp::Running;
        any = true;
      }
    }
  return any;
}

void Cluster::clusterBarrier() {
  bool waiting = false;
  for (Block &b : blocks)
    for (Warp &w : b.warps) {
      if (w.state != Warp::Done && !w.clusterArrived)
        return;
      waiting |= w.state == Warp::AtClusterBarrier;
    }
  if (!waiting)
    return;
  for (Block &b : blocks) {
    b.shadow->everyone();
    for (Warp &w : b.warps) {
      w.clusterArrived = false;
      if (w.state == Warp::AtClusterBarrier)
        w.state = Warp::Running;
    }
  }
}

bool Cluster::completeBulk() {
  if (bulk.empty())
    return false;
  // Copies of different issues complete in any order.
  size_t index = nextRandom() % bulk.size();
  BulkCopy copy = std::move(bulk[index]);
  bulk.erase(bulk.begin() + long(index));
  copy.complete();
  return true;
}

void Cluster::stop(const std::string &why) {
  for (Block &b : blocks)
    for (Warp &w : b.warps)
      if (w.state != Warp::Done) {
        int pc = std::max(0, w.stack.back().pc - 1);
        static const char *names[] = {"running", "at a barrier", "at a cluster barrier",
                                      "at an mbarrier", "at setmaxnreg"};
        raise(Fault::Timeout,
              why + "; this warp is " + names[w.state],
              w.program->code[size_t(pc)], w, unsigned(__builtin_ctz(w.stack.back().mask)));
      }
  throw Fault(Fault::Timeout, why);
}

void Cluster::run() {
  constexpr uint64_t kQuantum = 256;
  for (;;) {
    bool progress = false, alive = false;
    for (Block &b : blocks) {
      size_t count = b.warps.size(), shift = count > 1 ? nextRandom() % count : 0;
      for (size_t i = 0; i < count; ++i) {
        Warp &w = b.warps[(i + shift) % count];
        if (w.state == Warp::Running) {
          w.spun = false;
          w.run(kQuantum);
          if (w.spun || w.state == Warp::AtMbarrier)
            w.rotate();
          progress |= !w.spun;
          if (w.state == Warp::Done)
            b.recheckBarriers();
        }
        alive |= w.state != Warp::Done;
      }
    }
    if (!alive)
      break;
    clusterBarrier();
    progress |= wake();
    if (retired > launch->deadline)
      stop("still running after " + std::to_string(retired) + " warp instructions");
    if (!progress && !completeBulk()) {
      bool spinning = false;
      for (Block &b : blocks)
        for (Warp &w : b.warps)
          spinning |= w.state == Warp::Running;
      if (!spinning)
        stop("deadlock: no warp can go on");
      retired += kQuantum;
    }
  }
  while (completeBulk()) {
  }
}

namespace {

/// Hands out the clusters of a launch to threads.
class Distribution {
public:
  explicit Distribution(const Launch &launch) : launch(launch) {
    for (int d = 0; d < 3; ++d)
      counts[d] = launch.grid[d] / launch.cluster[d];
    total = uint64_t(counts[0]) * counts[1] * counts[2];
    if (launch.program->readsNonCoherent)
      writes = std::make_unique<GlobalWrites>();
  }

  Counters run() {
    uint64_t threads = std::min<uint64_t>(std::max(1u, std::thread::hardware_concurrency()), total);
    std::vector<std::thread> helpers;
    for (uint64_t i = 1; i < threads; ++i)
      helpers.emplace_back([this] { work(); });
    work();
    for (std::thread &t : helpers)
      t.join();
    if (failure)
      std::rethrow_exception(failure);
    return counters;
  }

private:
  void work() {
    Cluster cluster;
    cluster.globalWrites = writes.get();
    try {
      for (;;) {
        uint64_t i = next++;
        if (i >= total)
          break;
        unsigned x = unsigned(i % counts[0]), y = unsigned(i / counts[0] % counts[1]),
                 z = unsigned(i / counts[0] / counts[1]);
        cluster.start(launch, {x * launch.cluster[0], y * launch.cluster[1], z * launch.cluster[2]});
        cluster.run();
      }
    } catch (...) {
      next = total;
      std::lock_guard<std::mutex> lock(mutex);
      if (!failure)
        failure = std::current_exception();
    }
    std::lock_guard<std::mutex> lock(mutex);
    counters.add(cluster.counters);
  }

  const Launch &launch;
  unsigned counts[3];
  uint64_t total;
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  Counters counters;
  std::unique_ptr<GlobalWrites> writes;
};

} // namespace

Counters runLaunch(const Launch &launch) { return Distribution(launch).run(); }

} // namespace fakegpu
