//===- MbarrierOps.cpp - Operations on mbarriers -----------------------------===//
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

namespace fakegpu {

Mbarrier Mbarrier::load(const char *at) {
  uint64_t bits;
  memcpy(&bits, at, 8);
  Mbarrier b;
  b.pending = bits & 0xfffff;
  b.expected = bits >> 20 & 0xfffff;
  b.bytes = int32_t(bits >> 40 & 0x1fffff) - (bits >> 40 & 0x100000 ? 0x200000 : 0);
  b.phase = bits >> 61 & 1;
  b.valid = bits >> 62 == 1;
  return b;
}

void Mbarrier::store(char *at) const {
  uint64_t bits = uint64_t(pending & 0xfffff) | uint64_t(expected & 0xfffff) << 20 |
                  uint64_t(uint32_t(bytes) & 0x1fffff) << 40 | uint64_t(phase) << 61 |
                  uint64_t(valid) << 62;
  memcpy(at, &bits, 8);
}

void Mbarrier::settle() {
  if (pending || bytes)
    return;
  phase = !phase;
  pending = expected;
}

namespace {

char *objectAt(Warp &w, const Inst &i, unsigned lane, uint64_t address, Mbarrier &b) {
  if (address % 8)
    raise(Fault::Misaligned, "an mbarrier has to be aligned to 8 bytes", i, w, lane);
  char *at = sharedPointer(w, i, lane, address, 8, Access::Atomic);
  b = Mbarrier::load(at);
  if (!b.valid)
    raise(Fault::LaunchFailed, "the mbarrier is not initialised", i, w, lane);
  return at;
}

/// Addresses of the generic window become those of shared memory.
void objectAddresses(Warp &w, const Inst &i, uint32_t mask, uint64_t (&addresses)[kLanes]) {
  laneAddresses(w, i, addresses);
  eachLane(mask, [&](unsigned l) {
    if (i.space == Space::Generic && addresses[l] >> 56 != kSharedWindow >> 56)
      raise(Fault::BadSpace, "an mbarrier has to be in shared memory", i, w, l);
    addresses[l] &= kSharedWindow - 1;
  });
}

void initHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  objectAddresses(w, i, mask, addresses);
  eachLane(mask, [&](unsigned l) {
    uint32_t count = w.at<uint32_t>(i.b)[l];
    if (addresses[l] % 8)
      raise(Fault::Misaligned, "an mbarrier has to be aligned to 8 bytes", i, w, l);
    if (count < 1 || count > 0xfffff)
      raise(Fault::LaunchFailed, "an mbarrier of " + std::to_string(count) + " arrivals", i, w, l);
    Mbarrier b;
    b.pending = b.expected = count;
    b.valid = true;
    b.store(sharedPointer(w, i, l, addresses[l], 8, Access::Atomic));
  });
}

void invalidateHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  objectAddresses(w, i, mask, addresses);
  eachLane(mask, [&](unsigned l) {
    Mbarrier b;
    memset(objectAt(w, i, l, addresses[l], b), 0xff, 8);
  });
}

/// aux bits: 1 expects bytes (in c), 2 arrives, 4 drops, 8 completes bytes. b: arrivals.
void arriveHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  objectAddresses(w, i, mask, addresses);
  eachLane(mask, [&](unsigned l) {
    Mbarrier b;
    char *at = objectAt(w, i, l, addresses[l], b);
    uint64_t state;
    memcpy(&state, at, 8);
    if (i.aux & 1)
      b.bytes += int32_t(w.at<uint32_t>(i.c)[l]);
    if (i.aux & 8)
      b.bytes -= int32_t(w.at<uint32_t>(i.c)[l]);
    if (b.bytes > 0xfffff || b.bytes < -0xfffff)
      raise(Fault::LaunchFailed, "more bytes than an mbarrier counts", i, w, l);
    uint32_t count = !(i.aux & 2) ? 0 : i.b == kNone ? 1 : w.at<uint32_t>(i.b)[l];
    if (count > b.pending)
      raise(Fault::LaunchFailed, "more arrivals than the mbarrier expects", i, w, l);
    b.pending -= count;
    if (i.aux & 4)
      b.expected -= count;
    w.block->shadow->publish(w.id, addresses[l]);
    b.settle();
    b.store(at);
    if (i.dst != kNone)
      w.at<uint64_t>(i.dst)[l] = state;
  });
}

/// aux bits: 1 by parity, 2 may block. b: state or parity.
void waitHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t addresses[kLanes];
  objectAddresses(w, i, mask, addresses);
  uint32_t done = 0;
  eachLane(mask, [&](unsigned l) {
    Mbarrier b;
    objectAt(w, i, l, addresses[l], b);
    bool parity = i.aux & 1 ? w.at<uint32_t>(i.b)[l] & 1 : w.at<uint64_t>(i.b)[l] >> 61 & 1;
    if (b.phase != parity) {
      done |= 1u << l;
      w.block->shadow->observe(w.id, addresses[l]);
    }
  });
  w.mask(i.dst) = (w.mask(i.dst) & ~mask) | done;
  uint32_t waiting = mask & ~done;
  if (!waiting)
    return;
  auto first = unsigned(__builtin_ctz(waiting));
  w.spun = true;
  if ((i.aux & 2) && w.stack.size() == 1) { // no other lanes could go on
    w.state = Warp::AtMbarrier;
    w.mbarrier = addresses[first];
    w.mbarrierParity = i.aux & 1 ? w.at<uint32_t>(i.b)[first] & 1 : w.at<uint64_t>(i.b)[first] >> 61 & 1;
  }
}

void pendingCountHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint64_t>(i.a);
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) { return uint32_t(a[l] & 0xfffff); });
}

const Type kWord{Type::Unsigned, 32}, kLong{Type::Bits, 64};

void ignoreOrder(Decoder &d) { d.ignore({"release", "acquire", "relaxed", "cta", "cluster"}); }

void decodeArrive(Decoder &d, bool drop) {
  bool expects = d.take("expect_tx");
  if (d.take("noComplete"))
    d.fail("modifier .noComplete is not supported");
  ignoreOrder(d);
  Space space = d.takeSpace();
  d.require("b64");
  size_t memory = d.operand(0).form == Operand::Memory ? 0 : 1;
  d.expectOperands(memory + 1, memory + 2);
  if (memory && !(d.operand(0).form == Operand::Name && d.operand(0).name == "_"))
    d.inst.dst = d.destination(0, kLong);
  d.address(memory, space);
  if (d.operands() > memory + 1)
    (expects ? d.inst.c : d.inst.b) = d.source(memory + 1, kWord);
  else if (expects)
    d.fail("expected a number of bytes");
  d.inst.aux = 2u | (expects ? 1 : 0) | (drop ? 4 : 0);
  d.finish(arriveHandler);
}

void decodeBytes(Decoder &d, bool complete) {
  ignoreOrder(d);
  Space space = d.takeSpace();
  d.require("b64");
  d.expectOperands(2, 2);
  d.address(0, space);
  d.inst.c = d.source(1, kWord);
  d.inst.aux = complete ? 8 : 1;
  d.finish(arriveHandler);
}

void decodeWait(Decoder &d, bool mayBlock) {
  bool parity = d.take("parity");
  ignoreOrder(d);
  Space space = d.takeSpace();
  d.require("b64");
  d.expectOperands(3, mayBlock ? 4 : 3);
  d.inst.dst = d.destination(0, {Type::Pred, 1});
  d.address(1, space);
  d.inst.b = d.source(2, parity ? kWord : kLong);
  d.inst.aux = (parity ? 1 : 0) | (mayBlock ? 2 : 0);
  d.finish(waitHandler);
}

void decodeMbarrier(Decoder &d) {
  if (d.take("init")) {
    Space space = d.takeSpace();
    d.require("b64");
    d.expectOperands(2, 2);
    d.address(0, space);
    d.inst.b = d.source(1, kWord);
    return d.finish(initHandler);
  }
  if (d.take("inval")) {
    Space space = d.takeSpace();
    d.require("b64");
    d.address(0, space);
    return d.finish(invalidateHandler);
  }
  if (d.take("arrive"))
    return decodeArrive(d, false);
  if (d.take("arrive_drop"))
    return decodeArrive(d, true);
  if (d.take("expect_tx"))
    return decodeBytes(d, false);
  if (d.take("complete_tx"))
    return decodeBytes(d, true);
  if (d.take("test_wait"))
    return decodeWait(d, false);
  if (d.take("try_wait"))
    return decodeWait(d, true);
  if (d.take("pending_count")) {
    d.require("b64");
    d.expectOperands(2, 2);
    d.inst.dst = d.destination(0, kWord);
    d.inst.a = d.source(1, kLong);
    return d.finish(pendingCountHandler);
  }
  d.fail("unknown operation on an mbarrier");
}

} // namespace

bool mbarrierDone(Cluster &cluster, Warp &warp) {
  uint64_t offset = warp.mbarrier;
  Block &owner = cluster.sharedOwner(*warp.block, offset);
  return Mbarrier::load(owner.shared + offset).phase != warp.mbarrierParity;
}

void mbarrierCompleteBytes(Warp &warp, uint64_t address, uint32_t bytes) {
  uint64_t offset = address;
  Block &owner = warp.block->cluster->sharedOwner(*warp.block, offset);
  Mbarrier b = Mbarrier::load(owner.shared + offset);
  b.bytes -= int32_t(bytes);
  b.settle();
  b.store(owner.shared + offset);
}

void addMbarrierOps(DecodeTable &table) { table["mbarrier"] = decodeMbarrier; }

} // namespace fakegpu
