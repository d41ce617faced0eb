//===- MatrixOps.cpp - mma.sync, ldmatrix and stmatrix -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Warp.h"
#include "ops/MemoryAccess.h"
#include "ops/Numeric.h"
#include "ops/Registry.h"

namespace fakegpu {
namespace {

void wholeWarp(Warp &w, const Inst &i, uint32_t mask) {
  if (mask != ~0u)
    raise(Fault::LaunchFailed, "needs all 32 lanes of the warp", i, w, unsigned(__builtin_ctz(mask)));
}

/// Halves of a word as floats.
template <bool Bf> float half(uint32_t word, unsigned high) {
  auto bits = uint16_t(word >> (16 * high));
  return Bf ? bfloatToFloat(bits) : halfToFloat(bits);
}

/// The 8x8 matrix of a register, row by row: lane l has row l / 4, columns l % 4 * 2 and the next.
/// All fragments of mma consist of these; those of B are transposed.
template <bool Bf> void unpack(const uint32_t *words, float *matrix) {
#pragma omp simd
  for (unsigned l = 0; l < kLanes; ++l) {
    matrix[2 * l] = half<Bf>(words[l], 0);
    matrix[2 * l + 1] = half<Bf>(words[l], 1);
  }
}

/// A row of an 8x8 matrix: a vector of GCC and Clang.
using Row = float __attribute__((vector_size(32)));
struct Matrix {
  alignas(64) float at[64];
  Row row(unsigned r) const { Row v; memcpy(&v, at + 8 * r, sizeof v); return v; }
  void set(unsigned r, Row v) { memcpy(at + 8 * r, &v, sizeof v); }
};

/// c += a * b. Products are exact in f32; the order of the sums is by ascending k.
void multiply(const Matrix &a, const Matrix &b, Matrix &c) {
  Row rows[8];
  for (unsigned k = 0; k < 8; ++k)
    rows[k] = b.row(k);
  for (unsigned r = 0; r < 8; r += 2) { // two independent chains of sums
    Row first = c.row(r), second = c.row(r + 1);
    for (unsigned k = 0; k < 8; ++k) {
      first += a.at[8 * r + k] * rows[k];
      second += a.at[8 * r + 8 + k] * rows[k];
    }
    c.set(r, first);
    c.set(r + 1, second);
  }
}

Matrix transposed(const Matrix &m) {
  Matrix result;
  for (unsigned row = 0; row < 8; ++row)
    for (unsigned column = 0; column < 8; ++column)
      result.at[8 * row + column] = m.at[8 * column + row];
  return result;
}

/// regs: A, B, C, D. aux: depth. flag: accumulators in f16 (two to a register).
template <bool Bf> void mmaHandler(Warp &w, const Inst &i, uint32_t mask) {
  wholeWarp(w, i, mask);
  unsigned depth = i.aux, first = depth / 4 + depth / 8, count = i.flag ? 2 : 4;
  Matrix result[2], b[2];
  for (unsigned k = 0; k < depth / 8; ++k) {
    Matrix columns;
    unpack<Bf>(w.at<uint32_t>(i.regs[depth / 4 + k]), columns.at);
    b[k] = transposed(columns);
  }
  for (unsigned rows = 0; rows < 2; ++rows) {
    float *c = result[rows].at;
    if (i.flag) {
      unpack<false>(w.at<uint32_t>(i.regs[first + rows]), c);
    } else {
      const auto *even = w.at<float>(i.regs[first + 2 * rows]), *odd = w.at<float>(i.regs[first + 2 * rows + 1]);
#pragma omp simd
      for (unsigned l = 0; l < kLanes; ++l)
        c[2 * l] = even[l], c[2 * l + 1] = odd[l];
    }
    for (unsigned k = 0; k < depth / 8; ++k) {
      Matrix a;
      unpack<Bf>(w.at<uint32_t>(i.regs[2 * k + rows]), a.at);
      multiply(a, b[k], result[rows]);
    }
  }
  // D may be A, B or C, so it is written last.
  for (unsigned rows = 0; rows < 2; ++rows) {
    const float *d = result[rows].at;
    if (i.flag) {
      auto *words = w.at<uint32_t>(i.regs[first + count + rows]);
      for (unsigned l = 0; l < kLanes; ++l)
        words[l] = uint32_t(floatToHalf(d[2 * l])) | uint32_t(floatToHalf(d[2 * l + 1])) << 16;
      continue;
    }
    auto *even = w.at<uint32_t>(i.regs[first + count + 2 * rows]), *odd = w.at<uint32_t>(i.regs[first + count + 2 * rows + 1]);
#pragma omp simd
    for (unsigned l = 0; l < kLanes; ++l) {
      even[l] = d[2 * l] != d[2 * l] ? 0x7fffffffu : asBits(d[2 * l]);
      odd[l] = d[2 * l + 1] != d[2 * l + 1] ? 0x7fffffffu : asBits(d[2 * l + 1]);
    }
  }
}

void decodeMma(Decoder &d) {
  d.require("sync");
  d.require("aligned");
  auto shape = d.takePrefix("m16n8k");
  if (!shape || (*shape != "16" && *shape != "8"))
    d.fail("expected the shape m16n8k8 or m16n8k16");
  unsigned depth = unsigned(std::stoi(*shape));
  d.require("row");
  d.require("col");
  Type dType = d.takeType(), aType = d.takeType(), bType = d.takeType(), cType = d.takeType();
  bool bf = aType.kind == Type::BFloat;
  if (aType.bits != 16 || !aType.isFloat() || !(aType == bType) || !(cType == dType) ||
      !(dType == Type{Type::Float, 32} || (!bf && dType == Type{Type::Float, 16})))
    d.fail("expected bf16 or f16 operands with f32 accumulators, or f16 with f16");
  d.expectOperands(4, 4);
  d.inst.flag = dType.bits == 16;
  unsigned counts[] = {d.inst.flag ? 2u : 4u, depth / 4, depth / 8, d.inst.flag ? 2u : 4u};
  Type word{Type::Bits, 32};
  for (unsigned operand : {1u, 2u, 3u, 0u}) {
    auto parts = d.elements(operand);
    if (parts.size() != counts[operand])
      d.fail("operand " + std::to_string(operand) + " has " + std::to_string(parts.size()) +
             " registers, expected " + std::to_string(counts[operand]));
    for (const Operand &o : parts)
      d.inst.regs.push_back(operand ? d.source(o, word) : d.destination(o, word));
  }
  d.inst.aux = depth;
  d.finish(bf ? mmaHandler<true> : mmaHandler<false>);
}

/// ldmatrix: lanes 8 * j to 8 * j + 7 give the rows of matrix j. flag: transposed.
void ldmatrixHandler(Warp &w, const Inst &i, uint32_t mask) {
  wholeWarp(w, i, mask);
  auto count = unsigned(i.regs.size());
  char *pointers[kLanes];
  uint32_t givers = count == 4 ? ~0u : (1u << (8 * count)) - 1;
  hostPointers(w, i, givers, 16, Access::Read, pointers);
  for (unsigned j = 0; j < count; ++j) {
    auto *dst = w.at<uint32_t>(i.regs[j]);
    for (unsigned l = 0; l < kLanes; ++l) {
      uint16_t low, high;
      if (i.flag) {
        memcpy(&low, pointers[8 * j + l % 4 * 2] + l / 4 * 2, 2);
        memcpy(&high, pointers[8 * j + l % 4 * 2 + 1] + l / 4 * 2, 2);
      } else {
        memcpy(&low, pointers[8 * j + l / 4] + l % 4 * 4, 2);
        memcpy(&high, pointers[8 * j + l / 4] + l % 4 * 4 + 2, 2);
      }
      dst[l] = uint32_t(low) | uint32_t(high) << 16;
    }
  }
}

void stmatrixHandler(Warp &w, const Inst &i, uint32_t mask) {
  wholeWarp(w, i, mask);
  auto count = unsigned(i.regs.size());
  char *pointers[kLanes];
  uint32_t givers = count == 4 ? ~0u : (1u << (8 * count)) - 1;
  hostPointers(w, i, givers, 16, Access::Write, pointers);
  for (unsigned j = 0; j < count; ++j) {
    const auto *src = w.at<uint32_t>(i.regs[j]);
    for (unsigned l = 0; l < kLanes; ++l) {
      auto low = uint16_t(src[l]), high = uint16_t(src[l] >> 16);
      if (i.flag) {
        memcpy(pointers[8 * j + l % 4 * 2] + l / 4 * 2, &low, 2);
        memcpy(pointers[8 * j + l % 4 * 2 + 1] + l / 4 * 2, &high, 2);
      } else {
        memcpy(pointers[8 * j + l / 4] + l % 4 * 4, &low, 2);
        memcpy(pointers[8 * j + l / 4] + l % 4 * 4 + 2, &high, 2);
      }
    }
  }
}

template <bool Load> void decodeMatrixAccess(Decoder &d) {
  d.require("sync");
  d.require("aligned");
  d.require("m8n8");
  unsigned count = d.take("x4") ? 4 : d.take("x2") ? 2 : (d.take("x1"), 1);
  d.inst.flag = d.take("trans");
  Space space = d.takeSpace();
  if (space != Space::Shared && space != Space::Generic)
    d.fail("expected .shared");
  d.require("b16");
  d.expectOperands(2, 2);
  auto parts = d.elements(Load ? 0 : 1);
  if (parts.size() != count)
    d.fail("expected " + std::to_string(count) + " registers, got " + std::to_string(parts.size()));
  Type word{Type::Bits, 32};
  for (const Operand &o : parts)
    d.inst.regs.push_back(Load ? d.destination(o, word) : d.source(o, word));
  d.address(Load ? 1 : 0, space);
  d.finish(Load ? ldmatrixHandler : stmatrixHandler);
}

void movmatrixHandler(Warp &w, const Inst &i, uint32_t mask) {
  wholeWarp(w, i, mask);
  uint16_t values[8][8];
  const auto *a = w.at<uint32_t>(i.a);
  for (unsigned l = 0; l < kLanes; ++l)
    for (unsigned h = 0; h < 2; ++h)
      values[l / 4][l % 4 * 2 + h] = uint16_t(a[l] >> (16 * h));
  setLanes(w.at<uint32_t>(i.dst), mask, [&](unsigned l) {
    return uint32_t(values[l % 4 * 2][l / 4]) | uint32_t(values[l % 4 * 2 + 1][l / 4]) << 16;
  });
}

void decodeMovmatrix(Decoder &d) {
  for (const char *mod : {"sync", "aligned", "m8n8", "trans", "b16"})
    d.require(mod);
  d.expectOperands(2, 2);
  d.inst.dst = d.destination(0, {Type::Bits, 32});
  d.inst.a = d.source(1, {Type::Bits, 32});
  d.finish(movmatrixHandler);
}

} // namespace

void addMatrixOps(DecodeTable &table) {
  table["mma"] = decodeMma;
  table["ldmatrix"] = decodeMatrixAccess<true>;
  table["stmatrix"] = decodeMatrixAccess<false>;
  table["movmatrix"] = decodeMovmatrix;
}

} // namespace fakegpu
