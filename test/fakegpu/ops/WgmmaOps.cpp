//===- WgmmaOps.cpp - wgmma: products of a warpgroup -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/RaceShadow.h"
#include "ops/MemoryAccess.h"
#include "ops/Numeric.h"
#include "ops/Registry.h"
#include "ops/TensorCopy.h"

#include <algorithm>

namespace fakegpu {
namespace {

// Layout of an instruction: regs holds the accumulators, then A's registers if A has some. aux: the
// columns. b, c: descriptors. d: the predicate of accumulation. imm: bits of the fields below.
constexpr int64_t kBf = 1, kRegistersA = 2, kTransposeA = 4, kTransposeB = 8, kNegateA = 16, kNegateB = 32;

/// A matrix in shared memory, as its descriptor says.
struct Descriptor {
  uint32_t start, leading, stride;
  unsigned swizzle;
  bool valid;

  explicit Descriptor(uint64_t bits)
      : start(uint32_t(bits & 0x3fff) << 4), leading(uint32_t(bits >> 16 & 0x3fff) << 4),
        stride(uint32_t(bits >> 32 & 0x3fff) << 4) {
    static const unsigned spans[] = {0, 128, 64, 32};
    swizzle = spans[bits >> 62];
    valid = (bits >> 49 & 7) == 0; // base offset
  }

  /// Where the 16-bit element (row, k) is; `row` counts along M or N. See the canonical layouts of the
  /// PTX manual.
  uint32_t at(unsigned row, unsigned k, bool transposed) const {
    uint32_t offset;
    if (swizzle == 0)
      offset = transposed ? row / 8 * stride + row % 8 * 2 + k % 8 * 16 + k / 8 * leading
                          : row / 8 * stride + row % 8 * 16 + k % 8 * 2 + k / 8 * leading;
    else if (transposed)
      offset = row / (swizzle / 2) * leading + row % (swizzle / 2) * 2 + k % 8 * swizzle + k / 8 * stride;
    else
      offset = row / 8 * stride + row % 8 * swizzle + k * 2;
    return swizzled(start + offset, swizzle);
  }
};

float element(Warp &w, const Inst &i, const Descriptor &d, unsigned row, unsigned k, bool transposed) {
  uint32_t offset = d.at(row, k, transposed);
  if (offset + 2 > w.block->sharedBytes)
    raise(Fault::IllegalAddress, "a descriptor passes the end of shared memory", i, w, 0);
  std::string error = k % 8 == 0 || transposed ? w.block->shadow->read(w.id, 0, offset, 2) : std::string();
  if (!error.empty())
    raise(Fault::LaunchFailed, error, i, w, 0);
  uint16_t bits;
  memcpy(&bits, w.block->shared + offset, 2);
  return i.imm & kBf ? bfloatToFloat(bits) : halfToFloat(bits);
}

/// The 16 rows of A that this warp owns.
void loadA(Warp &w, const PendingWgmma &p, float (&a)[16][16]) {
  const Inst &i = *p.inst;
  float sign = i.imm & kNegateA ? -1.0f : 1.0f;
  if (i.imm & kRegistersA) {
    for (unsigned r = 0; r < 4; ++r) {
      const auto *words = w.at<uint32_t>(i.regs[i.regs.size() - 4 + r]);
      for (unsigned l = 0; l < kLanes; ++l)
        for (unsigned h = 0; h < 2; ++h) {
          auto bits = uint16_t(words[l] >> (16 * h));
          a[l / 4 + r % 2 * 8][l % 4 * 2 + r / 2 * 8 + h] =
              sign * (i.imm & kBf ? bfloatToFloat(bits) : halfToFloat(bits));
        }
    }
    return;
  }
  Descriptor d(p.descriptorA);
  for (unsigned row = 0; row < 16; ++row)
    for (unsigned k = 0; k < 16; ++k)
      a[row][k] = sign * element(w, i, d, w.id % 4 * 16 + row, k, i.imm & kTransposeA);
}

/// Carries out a product: its operands are read now, as late as the hardware may read them.
void execute(Warp &w, const PendingWgmma &p) {
  const Inst &i = *p.inst;
  unsigned columns = i.aux;
  float a[16][16];
  loadA(w, p, a);
  Descriptor d(p.descriptorB);
  float sign = i.imm & kNegateB ? -1.0f : 1.0f;
  std::vector<float> b(size_t(columns) * 16);
  for (unsigned n = 0; n < columns; ++n)
    for (unsigned k = 0; k < 16; ++k)
      b[n * 16 + k] = sign * element(w, i, d, n, k, i.imm & kTransposeB);
  std::vector<uint32_t> &sums = w.wgmmaSaved.at(i.regs[0]);
  for (unsigned n = 0; n < columns; ++n)
    for (unsigned row = 0; row < 16; ++row) {
      unsigned registerIndex = n / 8 * 4 + row / 8 * 2 + n % 2, lane = row % 8 * 4 + n % 8 / 2;
      uint32_t &slot = sums[registerIndex * kLanes + lane];
      float sum = p.accumulate ? asFloat(slot) : 0.0f;
      for (unsigned k = 0; k < 16; ++k)
        sum += a[row][k] * b[n * 16 + k];
      slot = sum != sum ? 0x7fffffffu : asBits(sum);
    }
}

void issueHandler(Warp &w, const Inst &i, uint32_t mask) {
  if (mask != ~0u || w.block->warps.size() < w.id / 4 * 4 + 4)
    raise(Fault::LaunchFailed, "needs all lanes of the four warps of a warpgroup", i, w, 0);
  PendingWgmma p;
  p.inst = &i;
  if (!(i.imm & kRegistersA))
    p.descriptorA = w.at<uint64_t>(i.b)[0];
  p.descriptorB = w.at<uint64_t>(i.c)[0];
  if (!Descriptor(p.descriptorA).valid || !Descriptor(p.descriptorB).valid)
    raise(Fault::IllegalInstruction, "a descriptor with a base offset is not supported", i, w, 0);
  p.group = w.wgmmaGroup;
  p.accumulate = i.d == kNone ? i.flag : w.mask(i.d) & 1;
  // The accumulators hold poison until they are waited for.
  unsigned count = i.aux / 2;
  auto [saved, added] = w.wgmmaSaved.try_emplace(i.regs[0]);
  if (added) {
    saved->second.resize(size_t(count) * kLanes);
    for (unsigned r = 0; r < count; ++r) {
      auto *values = w.at<uint32_t>(i.regs[r]);
      std::copy(values, values + kLanes, &saved->second[size_t(r) * kLanes]);
      std::fill(values, values + kLanes, 0xffffffffu);
    }
  }
  w.wgmmas.push_back(p);
}

void waitHandler(Warp &w, const Inst &i, uint32_t) {
  uint32_t end = w.wgmmaGroup > uint32_t(i.imm) ? w.wgmmaGroup - uint32_t(i.imm) : 0;
  size_t done = 0;
  for (; done < w.wgmmas.size() && w.wgmmas[done].group < end; ++done)
    execute(w, w.wgmmas[done]);
  std::vector<PendingWgmma> finished(w.wgmmas.begin(), w.wgmmas.begin() + long(done));
  w.wgmmas.erase(w.wgmmas.begin(), w.wgmmas.begin() + long(done));
  for (const PendingWgmma &p : finished) {
    uint32_t key = p.inst->regs[0];
    bool inFlight = std::any_of(w.wgmmas.begin(), w.wgmmas.end(), [&](const PendingWgmma &q) { return q.inst->regs[0] == key; });
    auto saved = w.wgmmaSaved.find(key);
    if (inFlight || saved == w.wgmmaSaved.end())
      continue;
    for (unsigned r = 0; r < p.inst->aux / 2; ++r)
      std::copy_n(&saved->second[size_t(r) * kLanes], kLanes, w.at<uint32_t>(p.inst->regs[r]));
    w.wgmmaSaved.erase(saved);
  }
}

void commitHandler(Warp &w, const Inst &, uint32_t) { ++w.wgmmaGroup; }
void noEffect(Warp &, const Inst &, uint32_t) {}

int64_t immediate(Decoder &d, size_t index, int64_t least, int64_t most) {
  auto value = d.integer(d.operand(index));
  if (!value || int64_t(*value) < least || int64_t(*value) > most)
    d.fail("operand " + std::to_string(index) + ": expected a constant from " + std::to_string(least) + " to " + std::to_string(most));
  return int64_t(*value);
}

void decodeProduct(Decoder &d) {
  d.require("sync");
  d.require("aligned");
  auto shape = d.takePrefix("m64n");
  size_t kAt = shape ? shape->find('k') : std::string::npos;
  if (kAt == std::string::npos || shape->substr(kAt) != "k16")
    d.fail("expected the shape m64nNk16");
  d.inst.aux = unsigned(std::stoi(*shape));
  if (d.inst.aux < 8 || d.inst.aux > 256 || d.inst.aux % 8)
    d.fail("expected 8 to 256 columns, a multiple of 8");
  Type result = d.takeType(), a = d.takeType(), b = d.takeType();
  if (!(result == Type{Type::Float, 32}) || !(a == b) || a.bits != 16 || !a.isFloat())
    d.fail("expected f32 accumulators with bf16 or f16 operands");
  if (a.kind == Type::BFloat)
    d.inst.imm |= kBf;
  Type word{Type::Bits, 32}, descriptor{Type::Bits, 64};
  auto accumulators = d.elements(0);
  if (accumulators.size() != d.inst.aux / 2)
    d.fail("expected " + std::to_string(d.inst.aux / 2) + " accumulators, got " + std::to_string(accumulators.size()));
  for (const Operand &o : accumulators)
    d.inst.regs.push_back(d.destination(o, word));
  bool registers = d.operand(1).form == Operand::Vector;
  d.expectOperands(registers ? 7 : 8, registers ? 7 : 8);
  if (registers) {
    d.inst.imm |= kRegistersA;
    if (d.operand(1).parts.size() != 4)
      d.fail("expected 4 registers of A");
    for (const Operand &o : d.operand(1).parts)
      d.inst.regs.push_back(d.source(o, word));
  } else {
    d.inst.b = d.source(1, descriptor);
  }
  d.inst.c = d.source(2, descriptor);
  if (d.integer(d.operand(3)))
    d.inst.flag = immediate(d, 3, 0, 1);
  else
    d.inst.d = d.predicate(3);
  d.inst.imm |= immediate(d, 4, -1, 1) < 0 ? kNegateA : 0;
  d.inst.imm |= immediate(d, 5, -1, 1) < 0 ? kNegateB : 0;
  if (!registers)
    d.inst.imm |= immediate(d, 6, 0, 1) ? kTransposeA : 0;
  d.inst.imm |= immediate(d, registers ? 6 : 7, 0, 1) ? kTransposeB : 0;
  d.finish(issueHandler);
}

void decodeWgmma(Decoder &d) {
  if (d.take("mma_async"))
    return decodeProduct(d);
  bool fence = d.take("fence"), commit = d.take("commit_group"), wait = d.take("wait_group");
  d.require("sync");
  d.require("aligned");
  if (wait)
    d.inst.imm = immediate(d, 0, 0, 7);
  else if (!fence && !commit)
    d.fail("unknown operation");
  d.finish(wait ? waitHandler : commit ? commitHandler : noEffect);
}

} // namespace

void addWgmmaOps(DecodeTable &table) { table["wgmma"] = decodeWgmma; }

} // namespace fakegpu
