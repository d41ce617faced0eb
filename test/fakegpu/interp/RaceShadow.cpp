//===- RaceShadow.cpp - Finds accesses to memory that no barrier orders ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/RaceShadow.h"

#include <algorithm>

namespace fakegpu {

void RaceShadow::start(uint32_t bytes, unsigned count, unsigned granuleBytes) {
  granule = granuleBytes;
  warps = count;
  cells.assign((bytes + granule - 1) / granule, {});
  readers.clear();
  unused.clear();
  objects.clear();
  clock.fill(1);
  for (auto &k : know)
    k.fill(0);
  barriers.fill({});
}

std::string RaceShadow::name(uint16_t thread) {
  unsigned warp = thread / 33, lane = thread % 33;
  if (lane == 32)
    return "lanes of warp " + std::to_string(warp);
  return "thread " + std::to_string(warp * 32 + lane);
}

void RaceShadow::clearReads(Cell &cell) {
  if (cell.manyReaders)
    unused.push_back(cell.all);
  cell.manyReaders = false;
  cell.readClock = 0;
}

std::string RaceShadow::read(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes) {
  for (uint32_t i = offset / granule, end = (offset + bytes - 1) / granule; i <= end; ++i) {
    Cell &cell = cells[i];
    if (cell.pending)
      return "reads shared memory that an asynchronous copy has yet to write";
    if (!ordered(warp, lane, cell.writer, cell.writeClock))
      return "race: reads shared memory that " + name(cell.writer) + " writes, without a barrier";
    auto self = uint16_t(warp * 33 + lane);
    if (cell.manyReaders) {
      readers[cell.all][warp] = clock[warp];
    } else if (!cell.readClock || cell.reader / 33 == warp ||
               cell.readClock <= know[warp][cell.reader / 33]) {
      bool same = cell.readClock == clock[warp] && cell.reader / 33 == warp && cell.reader != self;
      cell.reader = same ? uint16_t(warp * 33 + 32) : self;
      cell.readClock = clock[warp];
    } else {
      Clocks all{};
      all[cell.reader / 33] = cell.readClock;
      all[warp] = clock[warp];
      if (unused.empty()) {
        unused.push_back(uint32_t(readers.size()));
        readers.emplace_back();
      }
      cell.all = unused.back();
      unused.pop_back();
      readers[cell.all] = all;
      cell.manyReaders = true;
    }
  }
  return {};
}

std::string RaceShadow::write(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes) {
  for (uint32_t i = offset / granule, end = (offset + bytes - 1) / granule; i <= end; ++i) {
    Cell &cell = cells[i];
    if (cell.pending)
      return "writes shared memory that an asynchronous copy has yet to write";
    if (!ordered(warp, lane, cell.writer, cell.writeClock))
      return "race: writes shared memory that " + name(cell.writer) + " writes, without a barrier";
    if (cell.manyReaders) {
      const Clocks &all = readers[cell.all];
      for (unsigned u = 0; u < warps; ++u)
        if (all[u] > know[warp][u])
          return "race: writes shared memory that warp " + std::to_string(u) +
                 " reads, without a barrier";
    } else if (cell.readClock && !ordered(warp, lane, cell.reader, cell.readClock)) {
      return "race: writes shared memory that " + name(cell.reader) + " reads, without a barrier";
    }
    clearReads(cell);
    cell.writer = uint16_t(warp * 33 + lane);
    cell.writeClock = clock[warp];
  }
  return {};
}

std::string RaceShadow::pending(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes) {
  std::string error = write(warp, lane, offset, bytes);
  for (uint32_t i = offset / granule, end = (offset + bytes - 1) / granule; i <= end; ++i)
    cells[i].pending = true;
  return error;
}

void RaceShadow::landed(unsigned warp, unsigned lane, uint32_t offset, uint32_t bytes) {
  for (uint32_t i = offset / granule, end = (offset + bytes - 1) / granule; i <= end; ++i) {
    clearReads(cells[i]);
    cells[i].pending = false;
    cells[i].writer = uint16_t(warp * 33 + lane);
    cells[i].writeClock = clock[warp];
  }
}

void RaceShadow::landedBy(uint64_t object, uint32_t offset, uint32_t bytes) {
  // The thread that issued the copy published its clock to the object, so the write counts as one
  // that happens before all that the object's observers do.
  (void)object;
  for (uint32_t i = offset / granule, end = (offset + bytes - 1) / granule; i <= end; ++i) {
    cells[i].pending = false;
    clearReads(cells[i]);
  }
}

void RaceShadow::join(Clocks &into, const Clocks &from) {
  for (unsigned u = 0; u < warps; ++u)
    into[u] = std::max(into[u], from[u]);
}

void RaceShadow::arrive(unsigned warp, unsigned barrier, bool waits) {
  Barrier &b = barriers[barrier];
  Clocks own = know[warp];
  own[warp] = clock[warp]++;
  know[warp][warp] = own[warp];
  join(b.joined, own);
  if (waits)
    b.waiting |= 1u << warp;
}

void RaceShadow::release(unsigned barrier) {
  Barrier &b = barriers[barrier];
  for (unsigned w = 0; w < warps; ++w)
    if (b.waiting >> w & 1)
      join(know[w], b.joined);
  b = {};
}

void RaceShadow::everyone() {
  for (unsigned w = 0; w < warps; ++w)
    arrive(w, 0, true);
  release(0);
}

void RaceShadow::publish(unsigned warp, uint64_t object) {
  Clocks own = know[warp];
  own[warp] = clock[warp]++;
  know[warp][warp] = own[warp];
  join(objects[object], own);
}

void RaceShadow::observe(unsigned warp, uint64_t object) {
  auto found = objects.find(object);
  if (found != objects.end())
    join(know[warp], found->second);
}

bool GlobalWrites::note(uint64_t address, unsigned bytes, uint8_t bit) {
  std::lock_guard<std::mutex> lock(mutex);
  bool clean = true;
  for (uint64_t granule = address / 4; granule <= (address + bytes - 1) / 4; ++granule) {
    auto &page = pages[granule / kPage];
    if (!page)
      page = std::make_unique<uint8_t[]>(kPage);
    uint8_t &cell = page[granule % kPage];
    cell |= bit;
    clean &= cell != 3;
  }
  return clean;
}

} // namespace fakegpu
