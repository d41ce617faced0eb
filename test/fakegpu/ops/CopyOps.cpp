//===- CopyOps.cpp - Asynchronous copies of threads: cp.async and cp.async.bulk ===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"
#include "interp/Mbarrier.h"
#include "interp/RaceShadow.h"
#include "ops/MemoryAccess.h"
#include "ops/Registry.h"
#include "ops/TensorCopy.h"

#include <algorithm>

namespace fakegpu {
namespace {

const Type kWord{Type::Unsigned, 32};

uint64_t laneAddress(Warp &w, const Inst &i, uint32_t reg, bool wide, int64_t offset, unsigned lane) {
  return wide ? w.at<uint64_t>(reg)[lane] + uint64_t(offset)
              : uint64_t(uint32_t(w.at<uint32_t>(reg)[lane] + uint32_t(offset)));
}

/// The second memory operand of an instruction, decoded into c, d (as its offset) and flag.
struct SecondAddress {
  uint32_t reg = kNone;
  bool wide = true;
  int64_t offset = 0;
};

/// The address of memory operand `index`, beside the one that Inst has.
SecondAddress decodeSecond(Decoder &d, size_t index, Space space) {
  Inst saved = d.inst;
  d.address(index, space);
  SecondAddress result{d.inst.a, d.inst.wideBase, d.inst.imm};
  d.inst = saved;
  return result;
}

/// regs of a copy: {register, wide, offset} of further addresses.
void addAddress(Inst &inst, const SecondAddress &s) {
  inst.regs.insert(inst.regs.end(), {s.reg, uint32_t(s.wide), uint32_t(s.offset)});
}
uint64_t furtherAddress(Warp &w, const Inst &i, size_t k, unsigned lane) {
  return laneAddress(w, i, i.regs[3 * k], i.regs[3 * k + 1], int32_t(i.regs[3 * k + 2]), lane);
}

/// The bytes that a copy writes hold poison until it has landed, and no thread may touch them.
void poisonShared(Warp &w, const Inst &i, unsigned lane, uint64_t address, uint32_t bytes) {
  uint64_t offset = address;
  Block &owner = w.block->cluster->sharedOwner(*w.block, offset);
  if (offset + bytes > owner.sharedBytes)
    raise(Fault::IllegalAddress, "the destination is outside of shared memory", i, w, lane);
  if (&owner == w.block) {
    std::string error = owner.shadow->pending(w.id, lane, uint32_t(offset), bytes);
    if (!error.empty())
      raise(Fault::LaunchFailed, error, i, w, lane);
  }
  memset(owner.shared + offset, 0xff, bytes);
}

/// cp.async of 4, 8 or 16 bytes (width). b: bytes of the source, the rest is zero.
void asyncHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  laneAddresses(w, i, addresses);
  eachLane(mask, [&](unsigned l) {
    uint64_t to = addresses[l] & (kSharedWindow - 1), from = furtherAddress(w, i, 0, l);
    uint32_t bytes = i.width, read = i.b == kNone ? bytes : w.at<uint32_t>(i.b)[l];
    if (to % bytes || from % bytes)
      raise(Fault::Misaligned, "addresses have to be multiples of " + std::to_string(bytes), i, w, l);
    if (read > bytes)
      raise(Fault::LaunchFailed, "reads more bytes than it writes", i, w, l);
    if (read)
      globalPointer(w, i, l, from, read, Access::Read);
    poisonShared(w, i, l, to, bytes);
    w.copies.push_back({l, w.copyGroup[l], uint32_t(to), bytes, from, read});
  });
}

/// Carries out the copies of a lane in groups before `end`.
void landCopies(Warp &w, const Inst &i, uint32_t lanes, const std::array<uint32_t, kLanes> &end) {
  auto lands = [&](const AsyncCopy &c) { return (lanes >> c.lane & 1) && c.group < end[c.lane]; };
  for (const AsyncCopy &c : w.copies) {
    if (!lands(c))
      continue;
    char *to = w.block->shared + c.destination;
    memset(to, 0, c.bytes);
    if (c.sourceBytes)
      memcpy(to, globalPointer(w, i, c.lane, c.source, c.sourceBytes, Access::Read), c.sourceBytes);
    w.block->shadow->landed(w.id, c.lane, c.destination, c.bytes);
  }
  w.copies.erase(std::remove_if(w.copies.begin(), w.copies.end(), lands), w.copies.end());
}

void commitHandler(Warp &w, const Inst &, uint32_t mask) {
  eachLane(mask, [&](unsigned l) { ++w.copyGroup[l]; });
}

/// imm: the groups that may stay, -1 for wait_all.
void waitHandler(Warp &w, const Inst &i, uint32_t mask) {
  std::array<uint32_t, kLanes> end{};
  for (unsigned l = 0; l < kLanes; ++l)
    end[l] = i.imm < 0 ? ~0u : w.copyGroup[l] > uint32_t(i.imm) ? w.copyGroup[l] - uint32_t(i.imm) : 0;
  landCopies(w, i, mask, end);
}

/// cp.async.mbarrier.arrive: an arrival when the lane's copies so far have landed. flag: noinc.
void arriveWhenLandedHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  laneAddresses(w, i, addresses);
  eachLane(mask, [&](unsigned l) {
    uint64_t object = addresses[l] & (kSharedWindow - 1);
    uint32_t limit = ++w.copyGroup[l];
    if (!i.flag) { // counts on top of the expected arrivals
      char *at = sharedPointer(w, i, l, object, 8, Access::Atomic);
      Mbarrier b = Mbarrier::load(at);
      ++b.pending;
      b.store(at);
    }
    Warp *warp = &w;
    const Inst *inst = &i;
    BulkCopy copy;
    copy.complete = [=] {
      std::array<uint32_t, kLanes> end{};
      end[l] = limit;
      landCopies(*warp, *inst, 1u << l, end);
      char *at = sharedPointer(*warp, *inst, l, object, 8, Access::Atomic);
      Mbarrier b = Mbarrier::load(at);
      if (!b.valid || !b.pending)
        raise(Fault::LaunchFailed, "more arrivals than the mbarrier expects", *inst, *warp, l);
      --b.pending;
      warp->block->shadow->publish(warp->id, object);
      b.settle();
      b.store(at);
    };
    w.block->cluster->bulk.push_back(std::move(copy));
  });
}

void takeCopyHints(Decoder &d) {
  d.ignore({"L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"});
}

void decodeAsync(Decoder &d) {
  if (d.take("commit_group"))
    return d.finish(commitHandler);
  bool all = d.take("wait_all");
  if (all || d.take("wait_group")) {
    d.expectOperands(all ? 0 : 1, all ? 0 : 1);
    d.inst.imm = -1;
    if (!all) {
      auto count = d.integer(d.operand(0));
      if (!count)
        d.fail("expected a number");
      d.inst.imm = int64_t(*count);
    }
    return d.finish(waitHandler);
  }
  if (d.take("mbarrier")) {
    d.require("arrive");
    d.inst.flag = d.take("noinc");
    Space space = d.takeSpace();
    d.require("b64");
    d.address(0, space);
    return d.finish(arriveWhenLandedHandler);
  }
  bool bypass = d.take("cg");
  if (!bypass)
    d.require("ca");
  if (!d.take("shared") && !d.take("shared::cta"))
    d.fail("expected .shared");
  d.require("global");
  bool hint = false;
  for (const std::string &mod : d.statement().mods)
    hint |= mod == "L2::cache_hint";
  takeCopyHints(d);
  d.expectOperands(3, 5);
  auto bytes = d.integer(d.operand(2));
  if (!bytes || (*bytes != 16 && (bypass || (*bytes != 4 && *bytes != 8))))
    d.fail(bypass ? "expected 16 bytes" : "expected 4, 8 or 16 bytes");
  d.inst.width = uint8_t(*bytes);
  d.address(0, Space::Shared);
  addAddress(d.inst, decodeSecond(d, 1, Space::Global));
  if (d.operands() > (hint ? 4u : 3u))
    d.inst.b = d.source(3, kWord);
  d.linker.program->raceGranule = std::min(d.linker.program->raceGranule, unsigned(*bytes));
  d.finish(asyncHandler);
}

/// Queues a copy into shared memory that an mbarrier counts. `fill` writes the bytes of one block.
void queueLoad(Warp &w, const Inst &i, unsigned lane, uint64_t to, uint64_t object, uint32_t bytes,
               uint32_t blocks, std::function<void(char *)> fill) {
  Cluster &cluster = *w.block->cluster;
  Warp *warp = &w;
  auto each = [=, &cluster](auto f) {
    if (!blocks)
      return f(to, object);
    for (unsigned r = 0; r < cluster.blocks.size(); ++r)
      if (blocks >> r & 1) {
        uint64_t low = (uint64_t(1) << kRankShift) - 1, base = uint64_t(r + 1) << kRankShift;
        f(r == warp->block->rank ? to & low : base | (to & low), r == warp->block->rank ? object & low : base | (object & low));
      }
  };
  each([&](uint64_t destination, uint64_t) { poisonShared(w, i, lane, destination, bytes); });
  uint64_t ownObject = object & ((uint64_t(1) << kRankShift) - 1);
  w.block->shadow->publish(w.id, ownObject);
  BulkCopy copy;
  copy.complete = [=, &cluster] {
    each([&](uint64_t destination, uint64_t barrier) {
      uint64_t offset = destination;
      Block &owner = cluster.sharedOwner(*warp->block, offset);
      fill(owner.shared + offset);
      owner.shadow->landedBy(barrier, uint32_t(offset), bytes);
      mbarrierCompleteBytes(*warp, barrier, bytes);
    });
  };
  cluster.bulk.push_back(std::move(copy));
}

/// Queues a store from shared memory, as a member of the lane's current bulk group.
void queueStore(Warp &w, unsigned lane, std::function<void()> write) {
  BulkCopy copy;
  copy.complete = std::move(write);
  copy.issuer = &w;
  copy.lane = lane;
  copy.group = w.bulkGroup;
  w.block->cluster->bulk.push_back(std::move(copy));
}

enum Direction : uint32_t { ToShared, ToGlobal, SharedToCluster };

void checkMultiple(Warp &w, const Inst &i, unsigned lane, uint64_t value, unsigned unit, const char *what) {
  if (value % unit)
    raise(Fault::Misaligned, std::string(what) + " has to be a multiple of " + std::to_string(unit), i, w, lane);
}

/// cp.async.bulk of a line of bytes. aux: direction; b: size; c: blocks of a multicast; regs: the
/// source, then the mbarrier.
void bulkHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  laneAddresses(w, i, addresses);
  eachLane(mask, [&](unsigned l) {
    uint64_t to = addresses[l], from = furtherAddress(w, i, 0, l);
    uint32_t bytes = w.at<uint32_t>(i.b)[l];
    checkMultiple(w, i, l, to, 16, "the destination");
    checkMultiple(w, i, l, from, 16, "the source");
    checkMultiple(w, i, l, bytes, 16, "the size");
    Warp *warp = &w;
    const Inst *inst = &i;
    if (i.aux == ToGlobal) {
      globalPointer(w, i, l, to, bytes, Access::Write);
      queueStore(w, l, [=] {
        memcpy(globalPointer(*warp, *inst, l, to, bytes, Access::Write), warp->block->shared + from, bytes);
      });
      return;
    }
    uint64_t object = furtherAddress(w, i, 1, l);
    uint32_t blocks = i.c == kNone ? 0 : w.at<uint16_t>(i.c)[l];
    queueLoad(w, i, l, to, object, bytes, blocks, [=](char *at) {
      const char *source = inst->aux == ToShared ? globalPointer(*warp, *inst, l, from, bytes, Access::Read)
                                                 : warp->block->shared + from;
      memcpy(at, source, bytes);
    });
  });
}

/// cp.async.bulk.tensor. regs: the coordinates behind the addresses. width: their number.
void tensorHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  laneAddresses(w, i, addresses);
  bool store = i.aux == ToGlobal;
  size_t coordinatesAt = store ? 3 : 6;
  eachLane(mask, [&](unsigned l) {
    // A load: [to], [map, coordinates], [mbarrier]. A store: [map, coordinates], [from].
    uint64_t mapAddress = store ? addresses[l] : furtherAddress(w, i, 0, l);
    TensorMap map = readTensorMap(w, i, l, mapAddress);
    if (map.rank != i.width)
      raise(Fault::IllegalInstruction, "the tensor map has " + std::to_string(map.rank) + " dimensions", i, w, l);
    TensorCoordinates at{};
    for (unsigned k = 0; k < i.width; ++k)
      at[k] = w.at<int32_t>(i.regs[coordinatesAt + k])[l];
    uint64_t shared = store ? furtherAddress(w, i, 0, l) : addresses[l];
    checkMultiple(w, i, l, shared, 128, "the address in shared memory");
    Warp *warp = &w;
    const Inst *inst = &i;
    if (store) {
      if (shared + map.boxBytes() > w.block->sharedBytes)
        raise(Fault::IllegalAddress, "the source is outside of shared memory", i, w, l);
      queueStore(w, l, [=] { storeTensor(map, at, *warp, *inst, l, uint32_t(shared)); });
      return;
    }
    uint32_t blocks = i.c == kNone ? 0 : w.at<uint16_t>(i.c)[l];
    uint64_t low = shared & ((uint64_t(1) << kRankShift) - 1);
    queueLoad(w, i, l, shared, furtherAddress(w, i, 1, l), map.boxBytes(), blocks,
              [=](char *to) { loadTensor(map, at, *warp, *inst, l, to, uint32_t(low)); });
  });
}

void bulkCommitHandler(Warp &w, const Inst &, uint32_t) { ++w.bulkGroup; }

/// Carries out the stores of groups that have to be complete.
void bulkWaitHandler(Warp &w, const Inst &i, uint32_t mask) {
  auto &bulk = w.block->cluster->bulk;
  uint32_t end = w.bulkGroup > uint32_t(i.imm) ? w.bulkGroup - uint32_t(i.imm) : 0;
  for (size_t k = 0; k < bulk.size();) {
    BulkCopy &copy = bulk[k];
    if (copy.issuer != &w || !(mask >> copy.lane & 1) || copy.group >= end) {
      ++k;
      continue;
    }
    auto complete = std::move(copy.complete);
    bulk.erase(bulk.begin() + long(k));
    complete();
  }
}

void noEffect(Warp &, const Inst &, uint32_t) {}

void decodeTensor(Decoder &d) {
  int rank = d.takeOneOf({"1d", "2d", "3d", "4d", "5d"}) + 1;
  if (rank < 1)
    d.fail("expected a number of dimensions");
  d.inst.width = uint8_t(rank);
  bool store = d.take("global") && d.take("shared::cta") && !d.take("shared::cluster");
  if (!store && !d.take("shared::cluster") && !d.take("shared::cta"))
    d.fail("expected .shared::cluster.global or .global.shared::cta");
  d.take("tile");
  for (const char *mod : {"im2col", "im2col_no_offs", "tile::gather4", "tile::scatter4"})
    if (d.take(mod))
      d.fail(std::string("modifier .") + mod + " is not supported");
  d.require(store ? "bulk_group" : "mbarrier::complete_tx::bytes");
  bool multicast = d.take("multicast::cluster"), hint = d.take("L2::cache_hint");
  size_t count = (store ? 2u : 3u) + multicast + hint;
  d.expectOperands(count, count);
  size_t mapAt = store ? 0 : 1;
  const Operand &map = d.operand(mapAt);
  if (map.form != Operand::Memory || map.parts.size() != 2)
    d.fail("expected [map, {coordinates}]");
  d.inst.aux = store ? ToGlobal : ToShared;
  if (store) {
    d.address(0, Space::Generic);
    addAddress(d.inst, decodeSecond(d, 1, Space::Shared));
  } else {
    d.address(0, Space::Shared);
    addAddress(d.inst, decodeSecond(d, 1, Space::Generic));
    addAddress(d.inst, decodeSecond(d, 2, Space::Shared));
    if (multicast)
      d.inst.c = d.source(3, {Type::Unsigned, 16});
  }
  const auto &coordinates = map.parts[1].parts;
  if (coordinates.size() != size_t(rank))
    d.fail("expected " + std::to_string(rank) + " coordinates, got " + std::to_string(coordinates.size()));
  for (const Operand &o : coordinates)
    d.inst.regs.push_back(d.source(o, {Type::Signed, 32}));
  d.finish(tensorHandler);
}

void decodeBulk(Decoder &d) {
  if (d.take("commit_group"))
    return d.finish(bulkCommitHandler);
  if (d.take("wait_group")) {
    d.take("read"); // as late as allowed would be the read alone
    auto count = d.integer(d.operand(0));
    if (!count)
      d.fail("expected a number");
    d.inst.imm = int64_t(*count);
    return d.finish(bulkWaitHandler);
  }
  if (d.take("prefetch")) {
    d.ignore({"tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile", "L2::cache_hint"});
    return d.finish(noEffect);
  }
  if (d.take("tensor"))
    return decodeTensor(d);
  const auto &mods = d.statement().mods;
  bool toGlobal = mods.size() > 2 && mods[2] == "global";
  bool fromGlobal = d.take("global");
  bool cluster = d.take("shared::cluster"), cta = d.take("shared::cta");
  d.inst.aux = toGlobal ? ToGlobal : fromGlobal ? ToShared : SharedToCluster;
  if ((d.inst.aux == SharedToCluster && !(cluster && cta)) || !(cluster || cta))
    d.fail("expected a destination and a source space");
  d.require(toGlobal ? "bulk_group" : "mbarrier::complete_tx::bytes");
  bool multicast = d.take("multicast::cluster"), hint = d.take("L2::cache_hint");
  size_t count = (toGlobal ? 3u : 4u) + multicast + hint;
  d.expectOperands(count, count);
  d.address(0, toGlobal ? Space::Global : Space::Shared);
  addAddress(d.inst, decodeSecond(d, 1, d.inst.aux == ToShared ? Space::Global : Space::Shared));
  d.inst.b = d.source(2, kWord);
  if (!toGlobal)
    addAddress(d.inst, decodeSecond(d, 3, Space::Shared));
  if (multicast)
    d.inst.c = d.source(4, {Type::Unsigned, 16});
  d.finish(bulkHandler);
}

void decodeCp(Decoder &d) {
  d.require("async");
  d.take("bulk") ? decodeBulk(d) : decodeAsync(d);
}

/// mapa: the address of a variable in the shared memory of another block of the cluster.
template <typename T> void mapaHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a);
  const auto *rank = w.at<uint32_t>(i.b);
  uint64_t low = (uint64_t(1) << kRankShift) - 1;
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) {
    return T((uint64_t(a[l]) & ~(low | 0xff000000u)) | (uint64_t(a[l]) & low) | uint64_t(rank[l] + 1) << kRankShift);
  });
}
void decodeMapa(Decoder &d) {
  d.take("shared::cluster");
  Type type = d.takeType();
  d.expectOperands(3, 3);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, kWord);
  d.finish(type.bits == 64 ? mapaHandler<uint64_t> : mapaHandler<uint32_t>);
}

/// setmaxnreg gives registers of a warp back to its block, or waits for some. flag: inc.
void budgetHandler(Warp &w, const Inst &i, uint32_t) {
  auto wanted = unsigned(i.imm);
  if (!w.registerBudget)
    return; // no ptxas could tell the registers of the kernel
  if (i.flag ? wanted < w.registerBudget : wanted > w.registerBudget)
    raise(Fault::IllegalInstruction, "the warp has " + std::to_string(w.registerBudget) + " registers", i, w, 0);
  if (!i.flag) {
    w.block->freeRegisters += (w.registerBudget - wanted) * kLanes;
    w.registerBudget = wanted;
    return;
  }
  w.wantedBudget = wanted;
  w.state = Warp::AtBudget;
}
void decodeBudget(Decoder &d) {
  d.inst.flag = d.take("inc");
  if (!d.inst.flag)
    d.require("dec");
  d.require("sync");
  d.require("aligned");
  d.takeType();
  auto count = d.integer(d.operand(0));
  if (!count || *count < 24 || *count > 256 || *count % 8)
    d.fail("expected a multiple of 8 from 24 to 256");
  d.inst.imm = int64_t(*count);
  d.linker.program->usesRegisterBudget = true;
  d.finish(budgetHandler);
}

} // namespace

void addCopyOps(DecodeTable &table) {
  table["cp"] = decodeCp;
  table["mapa"] = decodeMapa;
  table["setmaxnreg"] = decodeBudget;
}

} // namespace fakegpu
