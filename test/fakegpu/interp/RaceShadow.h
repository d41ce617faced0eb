//===- RaceShadow.h - Finds accesses to memory that no barrier orders --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_RACESHADOW_H
#define FAKEGPU_INTERP_RACESHADOW_H

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace fakegpu {

/// Vector clocks of the warps of a block, and for each granule of shared memory its last write and
/// reads (FastTrack). Invariants:
/// - know[w][u] is the newest clock of warp u whose accesses happen before all that warp w does
///   next; know[w][w] is behind w's own clock until a barrier.
/// - An access of the same thread is always ordered. One of another lane needs a barrier, too.
class RaceShadow {
public:
  void start(uint32_t bytes, unsigned warps, unsigned granuleBytes);

  /// Report the earlier access that is not ordered before this one; empty if there is none.
  std::string read(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes);
  std::string write(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes);
  /// An asynchronous copy will write here; until `landed` no thread may touch it.
  std::string pending(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes);
  void landed(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes);

  void arrive(unsigned warp, unsigned barrier, bool waits);
  void release(unsigned barrier);
  void syncWarp(unsigned warp) { ++clock[warp]; know[warp][warp] = clock[warp] - 1; }
  void everyone();
  /// Release to, and acquire from, a synchronisation object at this address.
  void publish(unsigned warp, uint64_t object);
  void observe(unsigned warp, uint64_t object);
  /// A write by hardware that `observe` of this object orders.
  void landedBy(uint64_t object, uint32_t offset, uint32_t bytes);

private:
  using Clocks = std::array<uint32_t, 32>;
  static constexpr uint32_t kPending = ~0u, kHardware = ~0u - 1;
  struct Cell {
    uint32_t writeClock = 0, readClock = 0;
    uint16_t writer = 0, reader = 0; // warp * 33 + lane, lane 32 for several
    uint32_t all = 0;                // of many readers: their clocks in `readers`
    bool manyReaders = false;
    bool pending = false;
  };
  bool ordered(unsigned warp, unsigned lane, uint16_t other, uint32_t otherClock) const {
    unsigned u = other / 33;
    return otherClock <= know[warp][u] || other == warp * 33 + lane;
  }
  static std::string name(uint16_t thread);
  /// Forgets who read this cell.
  void clearReads(Cell &cell);
  void join(Clocks &into, const Clocks &from);

  unsigned granule = 4, warps = 0;
  std::vector<Cell> cells;
  std::vector<Clocks> readers;  // of cells with readers in several warps
  std::vector<uint32_t> unused; // positions in `readers` that no cell refers to
  std::array<uint32_t, 32> clock{};
  std::array<Clocks, 32> know{};
  struct Barrier {
    Clocks joined{};
    uint32_t waiting = 0;
  };
  std::array<Barrier, 16> barriers;
  std::unordered_map<uint64_t, Clocks> objects;
};

/// The granules of global memory that a launch writes, and the granules that it reads by the
/// path that is not coherent. A granule in both sets is an error.
class GlobalWrites {
public:
  /// Returns false if another access of the launch makes this one an error.
  bool write(uint64_t address, unsigned bytes) { return note(address, bytes, 1); }
  bool readNonCoherent(uint64_t address, unsigned bytes) { return note(address, bytes, 2); }

private:
  static constexpr unsigned kPage = 4096;
  bool note(uint64_t address, unsigned bytes, uint8_t bit);
  std::mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> pages;
};

} // namespace fakegpu

#endif
