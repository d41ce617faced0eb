//===- WarpOps.cpp - Exchange between the lanes of a warp --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Warp.h"
#include "ops/Registry.h"

#include <algorithm>

namespace fakegpu {
namespace {

const Type kWord{Type::Unsigned, 32};

/// The members of a .sync instruction have to be the lanes that execute it.
void checkMembers(Warp &w, const Inst &i, uint32_t mask, uint32_t reg) {
  auto first = unsigned(__builtin_ctz(mask));
  uint32_t members = w.at<uint32_t>(reg)[first];
  if ((members & w.live) != mask)
    raise(Fault::LaunchFailed, "the member mask differs from the lanes that execute the instruction", i, w, first);
}

/// aux: 0 up, 1 down, 2 bfly, 3 idx. d: predicate.
void shuffleHandler(Warp &w, const Inst &i, uint32_t mask) {
  checkMembers(w, i, mask, i.regs[0]);
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  uint32_t result[kLanes], inRange = 0;
  eachLane(mask, [&](unsigned l) {
    int lane = int(l), bound = int(c[l] & 31), segment = int(c[l] >> 8 & 31), step = int(b[l] & 31);
    int most = (lane & segment) | (bound & ~segment), least = lane & segment, from;
    bool ok;
    switch (i.aux) {
    case 0: from = lane - step, ok = from >= most; break;
    case 1: from = lane + step, ok = from <= most; break;
    case 2: from = lane ^ step, ok = from <= most; break;
    default: from = least | (step & ~segment), ok = from <= most; break;
    }
    if (!ok)
      from = lane;
    if (!(mask >> from & 1))
      raise(Fault::LaunchFailed, "reads lane " + std::to_string(from) + ", which is not active", i, w, l);
    inRange |= uint32_t(ok) << l;
    result[l] = a[from];
  });
  setLanes(w.at<uint32_t>(i.dst), mask, [&](unsigned l) { return result[l]; });
  if (i.d != kNone)
    w.mask(i.d) = (w.mask(i.d) & ~mask) | (inRange & mask);
}

void decodeShuffle(Decoder &d) {
  d.require("sync");
  int mode = d.takeOneOf({"up", "down", "bfly", "idx"});
  if (mode < 0)
    d.fail("expected .up, .down, .bfly or .idx");
  d.require("b32");
  d.expectOperands(5, 5);
  const Operand &result = d.operand(0);
  if (result.form == Operand::Pair) {
    d.inst.dst = d.destination(result.parts[0], kWord);
    d.inst.d = d.destination(result.parts[1], {Type::Pred, 1});
  } else {
    d.inst.dst = d.destination(result, kWord);
  }
  d.inst.a = d.source(1, kWord);
  d.inst.b = d.source(2, kWord);
  d.inst.c = d.source(3, kWord);
  d.inst.regs = {d.source(4, kWord)};
  d.inst.aux = uint32_t(mode);
  d.finish(shuffleHandler);
}

/// aux: 0 all, 1 any, 2 uni, 3 ballot.
void voteHandler(Warp &w, const Inst &i, uint32_t mask) {
  checkMembers(w, i, mask, i.b);
  uint32_t p = w.mask(i.a);
  if (i.flag)
    p = ~p;
  p &= mask;
  if (i.aux == 3)
    return setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned) { return p; });
  bool value = i.aux == 0 ? p == mask : i.aux == 1 ? p != 0 : p == mask || p == 0;
  w.mask(i.dst) = value ? w.mask(i.dst) | mask : w.mask(i.dst) & ~mask;
}

void decodeVote(Decoder &d) {
  d.require("sync");
  int kind = d.takeOneOf({"all", "any", "uni", "ballot"});
  if (kind < 0)
    d.fail("expected .all, .any, .uni or .ballot");
  Type type = d.takeType();
  d.expectOperands(3, 3);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.predicate(1);
  d.inst.flag = d.operand(1).negated;
  d.inst.b = d.source(2, kWord);
  d.inst.aux = uint32_t(kind);
  d.finish(voteHandler);
}

template <typename T> uint32_t matching(Warp &w, const Inst &i, uint32_t mask, unsigned lane) {
  const T *a = w.at<T>(i.a);
  return mask & maskOf([&](unsigned l) { return a[l] == a[lane]; });
}
template <typename T> void matchHandler(Warp &w, const Inst &i, uint32_t mask) {
  checkMembers(w, i, mask, i.b);
  uint32_t result[kLanes], all = 0;
  eachLane(mask, [&](unsigned l) {
    uint32_t same = matching<T>(w, i, mask, l);
    result[l] = i.aux && same != mask ? 0 : same;
    all |= uint32_t(same == mask) << l;
  });
  setLanes(w.at<uint32_t>(i.dst), mask, [&](unsigned l) { return result[l]; });
  if (i.d != kNone)
    w.mask(i.d) = (w.mask(i.d) & ~mask) | (all & mask);
}
void decodeMatch(Decoder &d) {
  d.inst.aux = d.take("all");
  if (!d.inst.aux)
    d.require("any");
  d.require("sync");
  Type type = d.takeType();
  d.expectOperands(3, 3);
  const Operand &result = d.operand(0);
  bool pair = result.form == Operand::Pair;
  d.inst.dst = d.destination(pair ? result.parts[0] : result, kWord);
  if (pair)
    d.inst.d = d.destination(result.parts[1], {Type::Pred, 1});
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, kWord);
  d.finish(type.bits == 64 ? matchHandler<uint64_t> : matchHandler<uint32_t>);
}

/// aux: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor. flag: signed.
void reduxHandler(Warp &w, const Inst &i, uint32_t mask) {
  checkMembers(w, i, mask, i.b);
  const auto *a = w.at<uint32_t>(i.a);
  auto first = unsigned(__builtin_ctz(mask));
  uint32_t value = a[first];
  eachLane(mask & (mask - 1), [&](unsigned l) {
    bool less = i.flag ? int32_t(a[l]) < int32_t(value) : a[l] < value;
    switch (i.aux) {
    case 0: value += a[l]; break;
    case 1: value = less ? a[l] : value; break;
    case 2: value = less ? value : a[l]; break;
    case 3: value &= a[l]; break;
    case 4: value |= a[l]; break;
    default: value ^= a[l]; break;
    }
  });
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned) { return value; });
}
void decodeRedux(Decoder &d) {
  d.require("sync");
  int kind = d.takeOneOf({"add", "min", "max", "and", "or", "xor"});
  Type type = d.takeType();
  if (kind < 0 || type.bits != 32 || type.isFloat())
    d.fail("expected an operation on .u32, .s32 or .b32");
  d.expectOperands(3, 3);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, kWord);
  d.inst.aux = uint32_t(kind);
  d.inst.flag = type.kind == Type::Signed;
  d.finish(reduxHandler);
}

void decodeActiveMask(Decoder &d) {
  d.takeType();
  d.expectOperands(1, 1);
  d.inst.dst = d.destination(0, kWord);
  d.finish([](Warp &w, const Inst &i, uint32_t mask) {
    setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned) { return mask; });
  });
}

/// elect.sync: the lowest member is the leader.
void electHandler(Warp &w, const Inst &i, uint32_t mask) {
  checkMembers(w, i, mask, i.a);
  auto leader = unsigned(__builtin_ctz(mask));
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned) { return leader; });
  w.mask(i.d) = (w.mask(i.d) & ~mask) | 1u << leader;
}
void decodeElect(Decoder &d) {
  d.require("sync");
  d.expectOperands(2, 2);
  const Operand &result = d.operand(0);
  if (result.form != Operand::Pair)
    d.fail("expected d|p");
  d.inst.dst = d.destination(result.parts[0], kWord);
  d.inst.d = d.destination(result.parts[1], {Type::Pred, 1});
  d.inst.a = d.source(1, kWord);
  d.finish(electHandler);
}

} // namespace

void addWarpOps(DecodeTable &table) {
  table["shfl"] = decodeShuffle;
  table["vote"] = decodeVote;
  table["match"] = decodeMatch;
  table["redux"] = decodeRedux;
  table["activemask"] = decodeActiveMask;
  table["elect"] = decodeElect;
}

} // namespace fakegpu
