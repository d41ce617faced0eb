//===- MemoryOps.cpp - Loads and stores --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"
#include "ops/MemoryAccess.h"
#include "ops/Registry.h"

#include <algorithm>

namespace fakegpu {
namespace {

/// Writes an element of memory to a register that may be wider.
void toRegister(Warp &w, const Inst &i, uint32_t reg, unsigned lane, const char *from) {
  if (i.width == 16) {
    memcpy(&w.at<uint64_t>(reg)[lane], from, 8);
    memcpy(&w.at<uint64_t>(reg + 8 * kLanes)[lane], from + 8, 8);
    return;
  }
  uint64_t value = 0;
  memcpy(&value, from, i.width);
  if (i.flag && i.width < 8) { // signed
    unsigned shift = 64 - i.width * 8;
    value = uint64_t(int64_t(value << shift) >> shift);
  }
  if (i.regWidth == 16)
    w.at<uint16_t>(reg)[lane] = uint16_t(value);
  else if (i.regWidth == 32)
    w.at<uint32_t>(reg)[lane] = uint32_t(value);
  else
    w.at<uint64_t>(reg)[lane] = value;
}

void fromRegister(Warp &w, const Inst &i, uint32_t reg, unsigned lane, char *to) {
  if (i.width == 16) {
    memcpy(to, &w.at<uint64_t>(reg)[lane], 8);
    memcpy(to + 8, &w.at<uint64_t>(reg + 8 * kLanes)[lane], 8);
    return;
  }
  uint64_t value = i.regWidth == 16   ? w.at<uint16_t>(reg)[lane]
                   : i.regWidth == 32 ? w.at<uint32_t>(reg)[lane]
                                      : w.at<uint64_t>(reg)[lane];
  memcpy(to, &value, i.width);
}

void loadHandler(Warp &w, const Inst &i, uint32_t mask) {
  char *pointers[kLanes];
  hostPointers(w, i, mask, i.width * unsigned(i.regs.size()), Access(i.aux), pointers);
  if (i.width == 4 && i.regWidth == 32) {
    for (size_t k = 0; k < i.regs.size(); ++k) {
      auto *dst = w.at<uint32_t>(i.regs[k]);
      eachLane(mask, [&](unsigned l) { memcpy(&dst[l], pointers[l] + 4 * k, 4); });
    }
    return;
  }
  for (size_t k = 0; k < i.regs.size(); ++k)
    eachLane(mask, [&](unsigned l) { toRegister(w, i, i.regs[k], l, pointers[l] + k * i.width); });
}

void storeHandler(Warp &w, const Inst &i, uint32_t mask) {
  char *pointers[kLanes];
  hostPointers(w, i, mask, i.width * unsigned(i.regs.size()), Access::Write, pointers);
  if (i.width == 4 && i.regWidth == 32) {
    for (size_t k = 0; k < i.regs.size(); ++k) {
      const auto *src = w.at<uint32_t>(i.regs[k]);
      eachLane(mask, [&](unsigned l) { memcpy(pointers[l] + 4 * k, &src[l], 4); });
    }
    return;
  }
  for (size_t k = 0; k < i.regs.size(); ++k)
    eachLane(mask, [&](unsigned l) { fromRegister(w, i, i.regs[k], l, pointers[l] + k * i.width); });
}

void takeHints(Decoder &d) {
  d.ignore({"relaxed", "acquire", "release", "volatile", "weak", "mmio"});
  d.ignore({"cta", "cluster", "gpu", "sys"});
  d.ignore({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  d.ignore({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  d.ignore({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::64B", "L2::128B", "L2::256B"});
}

/// Vector registers or one; all have the same width, at least that of the type.
void decodeElements(Decoder &d, size_t operand, Type type, bool load, unsigned expected) {
  auto parts = d.elements(operand);
  if (parts.size() != expected)
    d.fail("expected a vector of " + std::to_string(expected) + " elements, got " + std::to_string(parts.size()));
  d.inst.width = uint8_t(type.bytes());
  d.inst.regWidth = uint8_t(std::min(registerBits(type), 128u));
  for (const Operand &o : parts) {
    if (d.isRegister(o)) {
      unsigned bits = registerBits(d.reg(o).type);
      if (bits < type.width())
        d.fail("register '" + o.name + "' is too narrow");
      d.inst.regWidth = uint8_t(bits);
      d.inst.regs.push_back(d.reg(o).offset);
    } else {
      d.inst.regs.push_back(load ? d.destination(o, type) : d.source(o, type));
    }
  }
}

unsigned takeVector(Decoder &d) { return d.take("v8") ? 8 : d.take("v4") ? 4 : d.take("v2") ? 2 : 1; }

void noteGranule(Decoder &d, unsigned bytes) {
  if (d.inst.space == Space::Shared || d.inst.space == Space::Generic)
    d.linker.program->raceGranule = std::min(d.linker.program->raceGranule, bytes);
}

void decodeLoad(Decoder &d) {
  bool nonCoherent = d.take("nc") || d.statement().opcode == "ldu";
  Space space = d.takeSpace();
  takeHints(d);
  if (d.take("L2::cache_hint"))
    d.expectOperands(3, 3);
  unsigned vector = takeVector(d);
  Type type = d.takeType();
  decodeElements(d, 0, type, true, vector);
  d.inst.flag = type.kind == Type::Signed;
  d.address(1, space);
  if (type.bytes() * vector > 32)
    d.fail("a vector of more than 32 bytes");
  noteGranule(d, type.bytes() * vector);
  d.inst.aux = uint32_t(nonCoherent ? Access::ReadNonCoherent : Access::Read);
  d.linker.program->readsNonCoherent |= nonCoherent;
  d.finish(loadHandler);
}

void decodeStore(Decoder &d) {
  Space space = d.takeSpace();
  takeHints(d);
  if (d.take("L2::cache_hint"))
    d.expectOperands(3, 3);
  if (d.take("async"))
    d.fail("st.async is not supported");
  unsigned vector = takeVector(d);
  Type type = d.takeType();
  decodeElements(d, 1, type, false, vector);
  d.address(0, space);
  noteGranule(d, type.bytes() * vector);
  d.finish(storeHandler);
}

void noEffect(Warp &, const Inst &, uint32_t) {}

/// Prefetches and discards have no effect on results.
void decodePrefetch(Decoder &d) {
  d.ignore({"global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal", "tensormap", "param", "const"});
  d.finish(noEffect);
}

void decodeFence(Decoder &d) {
  d.ignore({"sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "gl", "sys", "proxy", "async",
            "alias", "async::generic", "tensormap::generic", "generic", "mbarrier_init", "global",
            "shared::cta", "shared::cluster", "async.global", "sync_restrict::shared::cta", "sync_restrict::shared::cluster"});
  d.finish(noEffect);
}

} // namespace

void addMemoryOps(DecodeTable &table) {
  table["ld"] = decodeLoad;
  table["ldu"] = decodeLoad;
  table["st"] = decodeStore;
  table["prefetch"] = decodePrefetch;
  table["prefetchu"] = decodePrefetch;
  table["fence"] = decodeFence;
  table["membar"] = decodeFence;
}

} // namespace fakegpu
