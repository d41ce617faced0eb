//===- Forms.cpp - weights in the forms in which they travel --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Forms.h"

#include "CpuDevice.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace meshwright::rt {

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

static bool isFp4(const mw_rt_form &form) { return form.kind == MW_RT_NVFP4; }

int64_t getBlockRows(const mw_rt_form &form) {
  return isFp4(form) ? 16 : form.along == 0 ? 32 : 1;
}

int64_t getBlockColumns(const mw_rt_form &form) {
  return isFp4(form) ? 16 : form.along == 0 ? 1 : 32;
}

int64_t sizeOfCodes(const mw_rt_form &form) {
  return divideCeil(getBlockRows(form) * form.columns, isFp4(form) ? 2 : 1);
}

int64_t countScales(const mw_rt_form &form) {
  return divideCeil(form.columns, getBlockColumns(form));
}

int64_t countGroups(const mw_rt_form &form) { return divideCeil(form.rows, getBlockRows(form)); }

int64_t sizeOfGroup(const mw_rt_form &form) {
  return sizeOfCodes(form) + countScales(form) + (isFp4(form) ? int64_t(sizeof(float)) : 0);
}

const char *nameOfForm(int64_t kind) {
  return kind == MW_RT_MXFP8 ? "mxfp8" : kind == MW_RT_NVFP4 ? "nvfp4" : "plain";
}

//===----------------------------------------------------------------------===//
// Small floats
//===----------------------------------------------------------------------===//

static uint32_t bitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float floatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The f8E4M3FN nearest to a number of magnitude below 464, ties to even.
static uint8_t toE4M3(float value) {
  uint32_t bits = bitsOf(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  // Below 2^-6 all codes are 2^-9 apart: the sum has them as its last bits.
  if (magnitude < 0x3c800000)
    return uint8_t(sign | (bitsOf(floatOf(magnitude) + 16384.0f) - bitsOf(16384.0f)));
  // Three bits of the mantissa stay. The exponent's bias is 7 in place of 127.
  magnitude += 0x7ffff + (magnitude >> 20 & 1);
  return uint8_t(sign | ((magnitude >> 20) - (120 << 3)));
}

static const std::array<float, 256> &getE4M3() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all;
    for (int code = 0; code < 256; ++code) {
      int exponent = code >> 3 & 15, mantissa = code & 7;
      float magnitude = exponent ? std::ldexp(float(8 + mantissa), exponent - 10)
                                 : std::ldexp(float(mantissa), -9);
      if ((code & 127) == 127)
        magnitude = std::numeric_limits<float>::quiet_NaN();
      all[code] = code & 128 ? -magnitude : magnitude;
    }
    return all;
  }();
  return values;
}

static constexpr float kE2M1[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// The f4E2M1FN nearest to a number, ties to even.
static uint8_t toE2M1(float value) {
  float magnitude = std::fabs(value);
  // Between the codes i and i + 1; a tie goes to the even one.
  uint8_t code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) +
                 (magnitude >= 1.75f) + (magnitude > 2.5f) + (magnitude >= 3.5f) +
                 (magnitude > 5.0f);
  return uint8_t(code | (std::signbit(value) ? 8 : 0));
}

/// The exponent of the least power of two that is at least `value`, with a bias of 127; 0 for all
/// below 2^-127.
static uint8_t toE8M0(float value) {
  uint32_t bits = bitsOf(value), exponent = bits >> 23, mantissa = bits & 0x7fffff;
  if (exponent == 0)
    return mantissa > 0x400000;
  return uint8_t(exponent + (mantissa != 0));
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

/// Loads `count` floats as f32.
static void load(DType type, const void *from, int64_t index, float *to, int64_t count) {
  auto *source = static_cast<const char *>(from) + index * sizeOf(type);
  if (type == DType::F32)
    std::memcpy(to, source, count * sizeof(float));
  else if (type == DType::F64)
    for (int64_t i = 0; i < count; ++i)
      to[i] = float(loadAsDouble(type, source, i));
  else
    widen(type, source, to, count);
}

static void store(DType type, const float *from, void *to, int64_t index, int64_t count) {
  auto *target = static_cast<char *>(to) + index * sizeOf(type);
  if (type == DType::F32)
    std::memcpy(target, from, count * sizeof(float));
  else if (type == DType::F64)
    std::copy_n(from, count, reinterpret_cast<double *>(target));
  else
    narrow(type, from, target, count);
}

/// The bits of the largest magnitude. As integers they are ordered like the numbers, with infinity
/// and then NaN behind them.
static uint32_t findLargestBits(const float *values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, bitsOf(values[i]) & 0x7fffffff);
  return largest;
}

static constexpr int64_t kPiece = 4096;

float findLargest(DType type, const void *data, int64_t count) {
  std::vector<float> piece(std::min(count, kPiece));
  uint32_t largest = 0;
  for (int64_t at = 0; at < count; at += kPiece) {
    int64_t part = std::min(kPiece, count - at);
    load(type, data, at, piece.data(), part);
    largest = std::max(largest, findLargestBits(piece.data(), part));
  }
  return floatOf(largest);
}

//===----------------------------------------------------------------------===//
// Groups
//===----------------------------------------------------------------------===//

static float getEncodingScale(float largest) {
  return largest > 0 ? std::min(2688.0f / largest, std::numeric_limits<float>::max()) : 1.0f;
}

/// 2^(exponent - 127), which may be subnormal.
static float getPower(int exponent) { return std::ldexp(1.0f, exponent - 127); }

/// Calls `visit(column, scale)` for each column of a row, with the number of its scale. The first scale
/// holds for `shift` columns before the first one, too.
template <typename Visit>
static void forColumns(int64_t columns, int64_t width, Visit visit, int64_t shift = 0) {
  if (width == 1) {
    for (int64_t column = 0; column < columns; ++column)
      visit(column, column);
    return;
  }
  for (int64_t begin = 0, i = 0; begin < columns; ++i) {
    int64_t end = std::min((i + 1) * width - shift, columns);
    for (int64_t column = begin; column < end; ++column)
      visit(column, i);
    begin = end;
  }
}

bool encodeGroups(const mw_rt_form &form, DType type, const void *from, float largest, void *to,
                  int64_t first, int64_t last) {
  const int64_t rows = getBlockRows(form), width = getBlockColumns(form), columns = form.columns;
  const int64_t scales = countScales(form);
  std::vector<float> elements(rows * columns), factors(scales);
  std::vector<uint32_t> tops(scales);
  const float whole = getEncodingScale(largest), sixth = whole * (1.0f / 6);
  for (int64_t group = first; group < last; ++group) {
    auto *codes = static_cast<uint8_t *>(to) + group * sizeOfGroup(form);
    uint8_t *scale = codes + sizeOfCodes(form);
    int64_t held = std::clamp<int64_t>(form.rows - group * rows, 0, rows);
    load(type, from, group * rows * columns, elements.data(), held * columns);
    std::fill(elements.begin() + held * columns, elements.end(), 0.0f);
    std::fill(tops.begin(), tops.end(), 0);
    for (int64_t row = 0; row < held; ++row) {
      const float *values = elements.data() + row * columns;
      forColumns(columns, width, [&](int64_t column, int64_t i) {
        tops[i] = std::max(tops[i], bitsOf(values[column]) & 0x7fffffff);
      });
    }
    if (std::any_of(tops.begin(), tops.end(), [](uint32_t top) { return top >= 0x7f800000; }))
      return false;
    for (int64_t i = 0; i < scales; ++i) {
      float top = floatOf(tops[i]);
      scale[i] = isFp4(form) ? toE4M3(std::min(top * sixth, 448.0f)) : toE8M0(top * (1.0f / 448));
      factors[i] = isFp4(form) ? std::min(1.0f / (getE4M3()[scale[i]] * (1.0f / whole)),
                                          std::numeric_limits<float>::max())
                               : getPower(254 - scale[i]);
    }
    if (isFp4(form)) {
      std::fill(codes, scale, 0);
      std::memcpy(scale + scales, &largest, sizeof(largest));
    }
    for (int64_t row = 0; row < rows; ++row) {
      const float *values = elements.data() + row * columns;
      int64_t begin = row * columns;
      forColumns(columns, width, [&](int64_t column, int64_t i) {
        float scaled = values[column] * factors[i];
        int64_t at = begin + column;
        if (isFp4(form))
          codes[at / 2] |= uint8_t(toE2M1(std::clamp(scaled, -6.0f, 6.0f)) << (at % 2 * 4));
        else
          codes[at] = toE4M3(scaled);
      });
    }
  }
  return true;
}

/// 2^(exponent - 127), for each exponent of 8 bits.
static const std::array<float, 256> &getPowers() {
  static const std::array<float, 256> powers = [] {
    std::array<float, 256> all;
    for (int exponent = 0; exponent < 256; ++exponent)
      all[exponent] = getPower(exponent);
    return all;
  }();
  return powers;
}

void decodeBlock(const mw_rt_form &form, DType type, const void *from, const FormBlock &block,
                 void *to) {
  const int64_t rows = getBlockRows(form), width = getBlockColumns(form);
  const std::array<float, 256> &numbers = getE4M3(), &powers = getPowers();
  const int64_t firstScale = block.column / width, shift = block.column % width;
  const int64_t scales = divideCeil(shift + block.columns, width);
  std::vector<float> elements(block.columns), factors(scales);
  int64_t known = -1;
  for (int64_t i = 0; i < block.rows; ++i) {
    int64_t group = (block.row + i) / rows, begin = (block.row + i) % rows * form.columns;
    auto *codes = static_cast<const uint8_t *>(from) + group * sizeOfGroup(form);
    if (group != known) {
      const uint8_t *scale = codes + sizeOfCodes(form) + firstScale;
      float largest = 0;
      if (isFp4(form))
        std::memcpy(&largest, codes + sizeOfCodes(form) + countScales(form), sizeof(largest));
      for (int64_t j = 0; j < scales; ++j)
        factors[j] = isFp4(form) ? numbers[scale[j]] * largest * (1.0f / 2688) : powers[scale[j]];
      known = group;
    }
    begin += block.column;
    auto decodeFp4 = [&](int64_t column, int64_t j) {
      int64_t at = begin + column;
      elements[column] = kE2M1[codes[at / 2] >> (at % 2 * 4) & 15] * factors[j];
    };
    auto decodeFp8 = [&](int64_t column, int64_t j) {
      elements[column] = numbers[codes[begin + column]] * factors[j];
    };
    if (isFp4(form))
      forColumns(block.columns, width, decodeFp4, shift);
    else
      forColumns(block.columns, width, decodeFp8, shift);
    store(type, elements.data(), to, i * block.columns, block.columns);
  }
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// Runs `work(first, last)` on parts of the groups.
template <typename Work>
static void shareGroups(const mw_rt_form &form, Workers &workers, Work &work) {
  struct Job {
    Work &work;
    int64_t groups;
  } job{work, countGroups(form)};
  auto runPart = [](void *state, int64_t index, int64_t count) {
    auto &job = *static_cast<Job *>(state);
    job.work(job.groups * index / count, job.groups * (index + 1) / count);
  };
  workers.run(std::clamp<int64_t>(job.groups, 1, workers.getCount()), runPart, &job);
}

bool CpuDevice::perform(const mw_rt_largest &what, void *const *buffers, std::string &) {
  float largest = findLargest(DType(what.dtype), buffers[0], what.count);
  std::memcpy(buffers[1], &largest, sizeof(largest));
  return true;
}

bool CpuDevice::perform(const mw_rt_encode &what, void *const *buffers, std::string &error) {
  float largest = 0;
  if (buffers[1])
    std::memcpy(&largest, buffers[1], sizeof(largest));
  std::atomic<bool> isFinite{std::isfinite(largest)};
  auto work = [&](int64_t first, int64_t last) {
    if (isFinite &&
        !encodeGroups(what.form, DType(what.dtype), buffers[0], largest, buffers[2], first, last))
      isFinite = false;
  };
  shareGroups(what.form, *workers, work);
  if (!isFinite)
    error = std::string("expected finite numbers in a weight that travels in ") +
            nameOfForm(what.form.kind);
  return isFinite;
}

bool CpuDevice::perform(const mw_rt_decode &what, void *const *buffers, std::string &) {
  auto work = [&](int64_t first, int64_t last) {
    int64_t rows = getBlockRows(what.form), row = first * rows;
    FormBlock block{row, std::min(last * rows, what.form.rows) - row, 0, what.form.columns};
    decodeBlock(what.form, DType(what.dtype), buffers[0], block,
                static_cast<char *>(buffers[1]) +
                    row * what.form.columns * sizeOf(DType(what.dtype)));
  };
  shareGroups(what.form, *workers, work);
  return true;
}

} // namespace meshwright::rt
