//===- Warp.h - The state of a warp, of a block and of a cluster -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_WARP_H
#define FAKEGPU_INTERP_WARP_H

#include "interp/Program.h"

#include <array>
#include <atomic>
#include <cstring>
#include <deque>

namespace fakegpu {

/// A fault of a kernel, as hardware would report it.
struct Fault : std::runtime_error {
  enum Code { IllegalAddress, Misaligned, IllegalInstruction, Timeout, LaunchFailed, BadSpace };
  Fault(Code code, const std::string &what) : std::runtime_error(what), code(code) {}
  Code code;
};

/// A range of device addresses and where its bytes are in this process.
struct Range {
  uint64_t begin = 1, end = 0;
  char *host = nullptr;
};

/// The memory that a kernel may touch.
class DeviceMemory {
public:
  virtual ~DeviceMemory() = default;
  /// The allocation that holds an address, empty if none does.
  virtual Range find(uint64_t address) = 0;
};

struct Counters {
  uint64_t warpInstructions = 0, laneInstructions = 0;
  uint64_t globalRequests = 0, globalSectors = 0, globalBytes = 0;
  /// Conflicts are wavefronts beyond one for each part of a warp that the request is served by.
  uint64_t sharedRequests = 0, sharedWavefronts = 0, sharedConflicts = 0;
  void add(const Counters &o);
};

struct Launch {
  const Program *program = nullptr;
  std::vector<char> params;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1};
  unsigned dynamicBytes = 0, chip = 90, registers = 0;
  unsigned multiprocessors = 132;
  uint64_t seed = 0, gridId = 0;
  uint64_t deadline = uint64_t(1) << 40; // warp instructions of a cluster
  DeviceMemory *memory = nullptr;
};

struct Block;
struct Cluster;
class RaceShadow;
class GlobalWrites;

/// An entry of the stack of a warp: lanes that run together from pc until they reach join.
struct Entry {
  int pc, join;
  uint32_t mask;
};

struct AsyncCopy {
  unsigned lane;
  uint32_t group, destination, bytes;
  uint64_t source;
  uint32_t sourceBytes;
};

struct PendingWgmma {
  const Inst *inst;
  uint64_t descriptorA = 0, descriptorB = 0;
  uint32_t group = 0;
  bool accumulate = false;
};

struct Warp {
  enum State : uint8_t { Running, AtBarrier, AtClusterBarrier, AtMbarrier, AtBudget, Done };

  Block *block = nullptr;
  const Program *program = nullptr;
  unsigned id = 0;
  State state = Running;
  bool spun = false; // an unsuccessful test since the last scheduling
  uint32_t live = 0, initial = 0;
  std::vector<Entry> stack;
  std::vector<char> file, local;
  char *regs = nullptr;
  uint64_t retired = 0;
  uint32_t carry = 0;  // flags of add.cc and sub.cc
  uint8_t barrier = 0; // waited for
  uint64_t mbarrier = 0;
  bool mbarrierParity = false;
  unsigned registerBudget = 0, wantedBudget = 0;
  bool clusterArrived = false;
  std::vector<AsyncCopy> copies;
  std::array<uint32_t, kLanes> copyGroup{};
  std::vector<PendingWgmma> wgmmas;
  std::map<uint32_t, std::vector<uint32_t>> wgmmaSaved; // accumulators, by first register
  uint32_t wgmmaGroup = 0, bulkGroup = 0;

  template <typename T> T *at(uint32_t offset) { return reinterpret_cast<T *>(regs + offset); }
  uint32_t &mask(uint32_t offset) { return *reinterpret_cast<uint32_t *>(regs + offset); }

  void start(Block &owner, unsigned index);
  /// Runs until the warp cannot go on or has retired `budget` instructions.
  void run(uint64_t budget);
  void exitLanes(uint32_t lanes);
  void branch(const Inst &inst, uint32_t taken);
  /// Lets another path of this warp run, if lanes have diverged.
  bool rotate();

private:
  void indexedBranch(const Inst &inst, uint32_t mask);
  void step(const Inst &inst, uint32_t mask);
};

struct NamedBarrier {
  unsigned arrived = 0, expected = 0; // threads; expected 0 for all of the block
  uint32_t value = 0, andValue = ~0u, orValue = 0;
  uint32_t lastPopc = 0;
  bool lastAnd = false, lastOr = false;
};

/// A copy that the hardware carries out on its own: it is executed as late as possible.
struct BulkCopy {
  std::function<void()> complete;
  Warp *issuer = nullptr; // of a store, whose groups it belongs to
  unsigned lane = 0;
  uint32_t group = 0;
  bool readDone = false;
};

struct Block {
  Cluster *cluster = nullptr;
  const Launch *launch = nullptr;
  unsigned rank = 0; // in the cluster
  unsigned index[3] = {0, 0, 0};
  unsigned threads = 0;
  std::vector<char> sharedStorage;
  char *shared = nullptr;
  uint32_t sharedBytes = 0;
  std::vector<Warp> warps;
  std::array<NamedBarrier, 16> barriers;
  std::shared_ptr<RaceShadow> shadow;
  unsigned freeRegisters = 0;

  void start(Cluster &owner, unsigned rankInCluster, const unsigned (&at)[3]);
  /// A warp arrives; returns true if the barrier is complete.
  void arrive(Warp &warp, unsigned barrier, unsigned threadsExpected, bool waits);
  void release(unsigned barrier);
  void recheckBarriers();
  unsigned liveThreads() const;
};

/// Blocks that run together. A launch without clusters has clusters of one block.
struct Cluster {
  const Launch *launch = nullptr;
  std::vector<Block> blocks;
  std::deque<BulkCopy> bulk;
  Counters counters;
  GlobalWrites *globalWrites = nullptr;
  uint64_t retired = 0;
  uint64_t random = 1;
  std::array<Range, 4> ranges;
  unsigned nextRange = 0;

  void start(const Launch &l, const unsigned (&first)[3]);
  void run();
  /// Where an address of global memory is, or throws. `inst` names the culprit.
  char *global(uint64_t address, unsigned bytes, const Inst &inst, Warp &warp, unsigned lane);
  /// The block and offset of an address of the shared window.
  Block &sharedOwner(Block &own, uint64_t &offset);
  uint64_t nextRandom();

private:
  bool wake();
  bool completeBulk();
  void clusterBarrier();
  /// Throws a Fault that names the first warp that has not ended.
  [[noreturn]] void stop(const std::string &why);
};

/// Throws a Fault that names kernel, instruction, block and thread.
[[noreturn]] void raise(Fault::Code code, const std::string &what, const Inst &inst, Warp &warp,
                        unsigned lane);

/// Calls f(lane) for each lane of a mask.
template <typename F> inline void eachLane(uint32_t mask, F f) {
  for (uint32_t m = mask; m; m &= m - 1)
    f(unsigned(__builtin_ctz(m)));
}

/// dst[lane] = f(lane) for the lanes of a mask. f is called for all lanes and must not fail.
template <typename T, typename F> inline void setLanes(T *dst, uint32_t mask, F f) {
  if (mask == ~0u) {
#pragma omp simd
    for (unsigned lane = 0; lane < kLanes; ++lane)
      dst[lane] = f(lane);
    return;
  }
  T values[kLanes];
#pragma omp simd
  for (unsigned lane = 0; lane < kLanes; ++lane)
    values[lane] = f(lane);
#pragma omp simd
  for (unsigned lane = 0; lane < kLanes; ++lane)
    dst[lane] = (mask >> lane & 1) ? values[lane] : dst[lane];
}

/// The mask of the lanes for which f is true.
template <typename F> inline uint32_t maskOf(F f) {
  uint32_t result = 0;
#pragma omp simd reduction(| : result)
  for (unsigned lane = 0; lane < kLanes; ++lane)
    result |= uint32_t(f(lane) ? 1u : 0u) << lane;
  return result;
}

/// Runs all blocks of a launch on the threads of the process. Throws the first Fault.
Counters runLaunch(const Launch &launch);

} // namespace fakegpu

#endif
