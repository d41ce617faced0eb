//===- MemoryAccess.cpp - Where the bytes of an address are ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/MemoryAccess.h"
#include "interp/RaceShadow.h"

#include <algorithm>

namespace fakegpu {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "0x%llx", (unsigned long long)value);
  return text;
}

} // namespace

Block &Cluster::sharedOwner(Block &own, uint64_t &offset) {
  uint64_t rank = offset >> kRankShift;
  offset &= (uint64_t(1) << kRankShift) - 1;
  return rank == 0 || rank > blocks.size() ? own : blocks[rank - 1];
}

char *Cluster::global(uint64_t address, unsigned bytes, const Inst &inst, Warp &warp, unsigned lane) {
  for (const Range &r : ranges)
    if (address >= r.begin && address + bytes <= r.end)
      return r.host + (address - r.begin);
  Range found = launch->memory->find(address);
  if (address < found.begin || address + bytes > found.end)
    raise(Fault::IllegalAddress, std::to_string(bytes) + " bytes at " + hex(address) +
                                     (found.begin < found.end ? " pass the end of an allocation"
                                                              : " are outside of any allocation"),
          inst, warp, lane);
  ranges[nextRange++ % ranges.size()] = found;
  return found.host + (address - found.begin);
}

char *sharedPointer(Warp &w, const Inst &i, unsigned lane, uint64_t address, unsigned bytes,
                    Access access) {
  uint64_t offset = address;
  Block &owner = w.block->cluster->sharedOwner(*w.block, offset);
  if (offset + bytes > owner.sharedBytes)
    raise(Fault::IllegalAddress, std::to_string(bytes) + " bytes at " + hex(offset) + " of " +
                                     std::to_string(owner.sharedBytes) + " bytes of shared memory",
          i, w, lane);
  if (&owner == w.block && access != Access::Atomic && bytes) {
    std::string error = access == Access::Write
                            ? owner.shadow->write(w.id, lane, uint32_t(offset), bytes)
                            : owner.shadow->read(w.id, lane, uint32_t(offset), bytes);
    if (!error.empty())
      raise(Fault::LaunchFailed, error, i, w, lane);
  }
  return owner.shared + offset;
}

char *globalPointer(Warp &w, const Inst &i, unsigned lane, uint64_t address, unsigned bytes,
                    Access access) {
  Cluster &cluster = *w.block->cluster;
  char *host = cluster.global(address, bytes, i, w, lane);
  if (cluster.globalWrites) {
    bool clean = access == Access::ReadNonCoherent ? cluster.globalWrites->readNonCoherent(address, bytes)
                 : access == Access::Read ? true : cluster.globalWrites->write(address, bytes);
    if (!clean)
      raise(Fault::LaunchFailed, "memory at " + hex(address) + " is written, and read by ld.global.nc, in one launch", i, w, lane);
  }
  return host;
}

namespace {

char *localPointer(Warp &w, const Inst &i, unsigned lane, uint64_t offset, unsigned bytes) {
  if (offset + bytes > w.program->localBytes)
    raise(Fault::IllegalAddress, "outside of local memory", i, w, lane);
  return w.local.data() + size_t(lane) * w.program->localBytes + offset;
}

char *paramPointer(Warp &w, const Inst &i, unsigned lane, uint64_t offset, unsigned bytes) {
  const auto &params = w.block->launch->params;
  if (offset + bytes > params.size())
    raise(Fault::IllegalAddress, "outside of the parameters", i, w, lane);
  return const_cast<char *>(params.data()) + offset;
}

/// 32-byte sectors that a request touches.
void countGlobal(Warp &w, uint32_t mask, unsigned bytes, const uint64_t (&addresses)[kLanes]) {
  Counters &c = w.block->cluster->counters;
  uint64_t sectors[kLanes * 2];
  unsigned count = 0;
  eachLane(mask, [&](unsigned l) {
    for (uint64_t s = addresses[l] / 32; s <= (addresses[l] + bytes - 1) / 32; ++s)
      if (!count || sectors[count - 1] != s)
        if (count < kLanes * 2)
          sectors[count++] = s;
  });
  if (!std::is_sorted(sectors, sectors + count))
    std::sort(sectors, sectors + count);
  c.globalRequests += 1;
  c.globalSectors += uint64_t(std::unique(sectors, sectors + count) - sectors);
  c.globalBytes += uint64_t(bytes) * unsigned(__builtin_popcount(mask));
}

/// Wavefronts of a request: lanes that want different words of one bank take turns. Requests of 8
/// and 16 bytes are served by halves and quarters of a warp, each of which needs one wavefront. A
/// matrix of ldmatrix or stmatrix is such a quarter.
void countShared(Warp &w, uint32_t mask, unsigned bytes, const uint64_t (&addresses)[kLanes]) {
  Counters &c = w.block->cluster->counters;
  unsigned group = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
  c.sharedRequests += 1;
  for (unsigned begin = 0; begin < kLanes; begin += group) {
    uint64_t words[kLanes * 4];
    unsigned count = 0, bank[32] = {}, worst = 0;
    for (unsigned l = begin; l < begin + group; ++l)
      if (mask >> l & 1)
        for (uint64_t word = addresses[l] / 4; word <= (addresses[l] + bytes - 1) / 4; ++word)
          words[count++] = word;
    if (!std::is_sorted(words, words + count))
      std::sort(words, words + count);
    for (unsigned k = 0; k < count; ++k)
      if (k == 0 || words[k] != words[k - 1])
        worst = std::max(worst, ++bank[words[k] % 32]);
    c.sharedWavefronts += worst;
    c.sharedConflicts += worst ? worst - 1 : 0;
  }
}

} // namespace

void hostPointers(Warp &w, const Inst &i, uint32_t mask, unsigned bytes, Access access,
                  char *(&pointers)[kLanes]) {
  uint64_t addresses[kLanes];
  laneAddresses(w, i, addresses);
  Space space = i.space;
  if (space == Space::Generic) {
    uint64_t window = addresses[__builtin_ctz(mask)] >> 56;
    space = window == kSharedWindow >> 56  ? Space::Shared
            : window == kLocalWindow >> 56 ? Space::Local
            : window == kParamWindow >> 56 ? Space::Param
                                           : Space::Global;
    eachLane(mask, [&](unsigned l) {
      if (addresses[l] >> 56 != window)
        raise(Fault::BadSpace, "generic addresses of one instruction in several state spaces", i, w, l);
      addresses[l] &= (uint64_t(1) << 56) - 1;
    });
  }
  eachLane(mask, [&](unsigned l) {
    if (addresses[l] % bytes)
      raise(Fault::Misaligned, "address " + hex(addresses[l]) + " is not a multiple of " + std::to_string(bytes), i, w, l);
  });
  switch (space) {
  case Space::Shared:
    countShared(w, mask, bytes, addresses);
    eachLane(mask, [&](unsigned l) { pointers[l] = sharedPointer(w, i, l, addresses[l], bytes, access); });
    break;
  case Space::Local:
    eachLane(mask, [&](unsigned l) { pointers[l] = localPointer(w, i, l, addresses[l], bytes); });
    break;
  case Space::Param:
    eachLane(mask, [&](unsigned l) { pointers[l] = paramPointer(w, i, l, addresses[l], bytes); });
    break;
  default:
    countGlobal(w, mask, bytes, addresses);
    eachLane(mask, [&](unsigned l) { pointers[l] = globalPointer(w, i, l, addresses[l], bytes, access); });
    break;
  }
}

} // namespace fakegpu
