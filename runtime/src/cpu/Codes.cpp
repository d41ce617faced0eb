//===- Codes.cpp - weights of codes and scales ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Few rows are multiplied by the codes as they are read. More rows are multiplied by the library, tile by
// tile of the weight, which is decoded while a cache holds it.
//
//===----------------------------------------------------------------------===//

#include "Codes.h"

#include "CpuDevice.h"
#include "Workers.h"
#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace meshwright::rt {

const CodeKernels &getCodeKernels() {
  static const CodeKernels kernels = [] {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16")
                 ? getCodesAvx512Bf16()
                 : getCodesAvx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
      return getCodesAvx2();
#endif
    return getCodesBaseline();
  }();
  return kernels;
}

static CodeKind getKind(DType type) {
  switch (type) {
  case DType::F8E4M3FN:
    return CodeKind::E4M3;
  case DType::F8E5M2:
    return CodeKind::E5M2;
  case DType::F4E2M1FN:
    return CodeKind::E2M1;
  default:
    return CodeKind::I8;
  }
}

/// The numbers of all codes of a kind.
static const float *getNumbers(CodeKind kind) {
  static const std::array<std::array<float, 256>, 4> numbers = [] {
    std::array<std::array<float, 256>, 4> all = {};
    constexpr float kE2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int code = 0; code < 256; ++code) {
      auto byte = uint8_t(code);
      all[int(CodeKind::E4M3)][code] = float(loadAsDouble(DType::F8E4M3FN, &byte, 0));
      all[int(CodeKind::E5M2)][code] = float(loadAsDouble(DType::F8E5M2, &byte, 0));
      all[int(CodeKind::I8)][code] = float(loadAsDouble(DType::I8, &byte, 0));
      all[int(CodeKind::E2M1)][code] = (code & 8 ? -1.0f : 1.0f) * kE2M1[code & 7];
    }
    return all;
  }();
  return numbers[int(kind)].data();
}

/// The bytes of these numbers as bf16, which holds each of them, in the order of `CodeRows::halves`.
static const uint8_t *getHalves(CodeKind kind) {
  static const std::array<std::array<uint8_t, 256>, 4> halves = [] {
    std::array<std::array<uint8_t, 256>, 4> all = {};
    for (CodeKind kind : {CodeKind::E4M3, CodeKind::E5M2, CodeKind::I8, CodeKind::E2M1}) {
      bool isFour = kind == CodeKind::E2M1;
      for (int code = 0; code < (isFour ? 16 : 128); ++code) {
        uint16_t bits = floatToBf16(getNumbers(kind)[code]);
        all[int(kind)][isFour ? 2 * code + 1 : code] = uint8_t(bits >> 8);
        all[int(kind)][isFour ? 2 * code : 128 + code] = uint8_t(bits);
      }
    }
    return all;
  }();
  return halves[int(kind)].data();
}

CodeRows getCodeRows(CodeKind kind, int64_t columns, int64_t block, const uint8_t *codes) {
  return {kind, columns, block, codes, getNumbers(kind), getHalves(kind)};
}

CodedMatrix::CodedMatrix(const mw_rt_codes &what, int64_t matrix, const void *codes,
                         const void *scales)
    : what(what) {
  int64_t blocks = divideCeil(what.rows, what.block_rows) * divideCeil(what.columns, what.block_columns);
  int64_t size = what.rows * what.columns / elementsPerByte(DType(what.codes));
  this->codes = getCodeRows(getKind(DType(what.codes)), what.columns, what.block_columns,
                            static_cast<const uint8_t *>(codes) + matrix * size);
  this->scales = static_cast<const char *>(scales) + matrix * blocks * sizeOf(DType(what.scales));
}

int64_t CodedMatrix::getBlocks() const { return divideCeil(what.columns, what.block_columns); }

void CodedMatrix::readScales(int64_t first, int64_t count, float *to) const {
  DType type = DType(what.scales);
  const char *from = scales + first * sizeOf(type);
  switch (type) {
  case DType::F32:
    std::memcpy(to, from, count * sizeof(float));
    return;
  case DType::BF16:
  case DType::F16:
    widen(type, from, to, count);
    return;
  case DType::F8E8M0FNU:
    getCodeKernels().widenPowers(reinterpret_cast<const uint8_t *>(from), count, to);
    return;
  default:
    for (int64_t i = 0; i < count; ++i)
      to[i] = float(loadAsDouble(type, from, i));
  }
}

void CodedMatrix::askBehind(const FormBlock &block, int64_t row) const {
  constexpr int64_t kLine = 64;
  int64_t perByte = elementsPerByte(DType(what.codes)), column = block.column + block.columns;
  if (column >= what.columns) {
    column = 0;
    row += block.rows;
  }
  if (row >= what.rows)
    return;
  const uint8_t *codes = this->codes.codes + (row * what.columns + column) / perByte;
  int64_t bytes = std::min(block.columns, what.columns - column) / perByte;
  for (int64_t at = 0; at < bytes; at += kLine)
    __builtin_prefetch(codes + at, /*rw=*/0, /*locality=*/2);
}

void CodedMatrix::decode(const FormBlock &block, DType type, void *to) const {
  if (!block.columns)
    return;
  int64_t first = block.column / what.block_columns;
  int64_t blocks = divideCeil(block.column + block.columns, what.block_columns) - first;
  std::vector<float> ofRow(blocks), numbers(type == DType::F32 ? 0 : block.columns);
  int64_t known = -1;
  for (int64_t i = 0; i < block.rows; ++i) {
    int64_t row = block.row + i;
    if (row / what.block_rows != known) {
      known = row / what.block_rows;
      readScales(known * getBlocks() + first, blocks, ofRow.data());
    }
    char *target = static_cast<char *>(to) + i * block.columns * sizeOf(type);
    float *wide = type == DType::F32 ? reinterpret_cast<float *>(target) : numbers.data();
    if (block.columns < what.columns)
      askBehind(block, row);
    getCodeKernels().decode(codes, row, ofRow.data(), block.column, block.columns, wide);
    if (type == DType::F64)
      std::copy_n(wide, block.columns, reinterpret_cast<double *>(target));
    else if (type == DType::BF16)
      getCodeKernels().roundBf16(wide, block.columns, reinterpret_cast<uint16_t *>(target));
    else if (type != DType::F32)
      narrow(type, wide, target, block.columns);
  }
}

//===----------------------------------------------------------------------===//
// Few rows
//===----------------------------------------------------------------------===//

namespace {
/// Allocates whole cache lines: a vector in two of them is read at half the rate.
template <typename T> struct InLines {
  using value_type = T;
  InLines() = default;
  template <typename U> InLines(const InLines<U> &) {}
  T *allocate(size_t count) {
    return static_cast<T *>(::operator new(count * sizeof(T), std::align_val_t(kAlignment)));
  }
  void deallocate(T *data, size_t) { ::operator delete(data, std::align_val_t(kAlignment)); }
  friend bool operator==(InLines, InLines) { return true; }
  friend bool operator!=(InLines, InLines) { return false; }
};
template <typename T> using Elements = std::vector<T, InLines<T>>;
} // namespace

/// Rows of floats, as f32.
static Elements<float> widenRows(DType type, const void *from, int64_t count) {
  Elements<float> wide(count);
  if (type == DType::F32)
    std::memcpy(wide.data(), from, count * sizeof(float));
  else
    widen(type, from, wide.data(), count);
  return wide;
}

/// In each whole step of 2 * lanes columns the even ones, then the odd ones.
static Elements<float> pairColumns(const Elements<float> &a, int64_t rows, int64_t columns,
                                   int64_t lanes) {
  Elements<float> pairs(lanes ? a : Elements<float>());
  for (int64_t row = 0; row < rows && lanes; ++row)
    for (int64_t k = 0; k + 2 * lanes <= columns; k += 2 * lanes)
      for (int64_t i = 0; i < lanes; ++i) {
        int64_t at = row * columns + k;
        pairs[at + i] = a[at + 2 * i];
        pairs[at + lanes + i] = a[at + 2 * i + 1];
      }
  return pairs;
}

/// Stores a row of f32 as floats of a type, from an index on.
static void storeRow(DType type, const float *from, int64_t count, void *to, int64_t index) {
  if (type == DType::F32)
    std::memcpy(static_cast<float *>(to) + index, from, count * sizeof(float));
  else
    narrow(type, from, static_cast<uint16_t *>(to) + index, count);
}

/// Rows of bf16 as products of bf16 read them.
static Elements<uint16_t> orderRows(const CodeRows &codes, const void *a, int64_t rows) {
  Elements<uint16_t> ordered(rows * codes.columns);
  for (int64_t at = 0, size = ordered.size(); at < size; at += codes.columns)
    getCodeKernels().orderBf16(codes, static_cast<const uint16_t *>(a) + at, ordered.data() + at);
  return ordered;
}

bool CodedMatrix::readsBf16(DType type) const {
  return type == DType::BF16 && getCodeKernels().dotBf16 && multipliesBf16(codes);
}

int64_t CodedMatrix::getFewRows(DType type) const {
  // Rows of f32 fill the nearest cache sooner.
  return readsBf16(type) ? 4 * kMostCodeRows : kMostCodeRows;
}

void CodedMatrix::multiplyFew(int64_t rows, DType type, const void *a, const void *bias,
                              DType result, void *c, Workers &workers) const {
  bool isBf16 = readsBf16(type);
  Elements<uint16_t> ordered = isBf16 ? orderRows(codes, a, rows) : Elements<uint16_t>();
  Elements<float> wide = isBf16 ? Elements<float>() : widenRows(type, a, rows * what.columns);
  Elements<float> pairs = codes.format == CodeKind::E2M1 && !isBf16
                              ? pairColumns(wide, rows, what.columns, getCodeKernels().lanes)
                              : Elements<float>();
  Elements<float> added = bias ? widenRows(type, bias, what.rows) : Elements<float>();
  auto part = [&](int64_t begin, int64_t end) {
    // So many rows of the weight are multiplied by some rows of a, which the nearest cache holds, before
    // they are multiplied by the next ones.
    constexpr int64_t kColumns = 16;
    const int64_t blocks = getBlocks();
    std::vector<float> known((kColumns / what.block_rows + 2) * blocks), sums(rows * (end - begin));
    for (int64_t first = begin; first < end; first += kColumns) {
      int64_t last = std::min(first + kColumns, end), scaled = first / what.block_rows;
      readScales(scaled * blocks, (divideCeil(last, what.block_rows) - scaled) * blocks, known.data());
      for (int64_t row = 0; row < rows; row += kMostCodeRows)
        for (int64_t column = first; column < last; ++column) {
          float own[kMostCodeRows];
          int64_t count = std::min(kMostCodeRows, rows - row), at = row * what.columns;
          const float *ofRow = known.data() + (column / what.block_rows - scaled) * blocks;
          if (isBf16)
            getCodeKernels().dotBf16(codes, column, ofRow, ordered.data() + at, count, own);
          else
            getCodeKernels().dot(codes, column, ofRow, wide.data() + at,
                                 pairs.empty() ? nullptr : pairs.data() + at, count, own);
          for (int64_t i = 0; i < count; ++i)
            sums[(row + i) * (end - begin) + column - begin] = own[i] + (bias ? added[column] : 0);
        }
    }
    for (int64_t row = 0; row < rows; ++row)
      storeRow(result, sums.data() + row * (end - begin), end - begin, c, row * what.rows + begin);
  };
  struct Work {
    decltype(part) &run;
    int64_t columns;
  } work{part, what.rows};
  auto runPart = [](void *state, int64_t index, int64_t count) {
    const Work &own = *static_cast<const Work *>(state);
    own.run(own.columns * index / count, own.columns * (index + 1) / count);
  };
  // A thread should multiply so many codes or more.
  constexpr int64_t kLeastCodes = 1 << 16;
  int64_t most = rows * what.rows * what.columns / kLeastCodes;
  workers.run(std::clamp<int64_t>(most, 1, workers.getCount()), runPart, &work);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

bool CpuDevice::perform(const mw_rt_dequantize &what, void *const *buffers, std::string &) {
  struct Work {
    const mw_rt_dequantize &what;
    void *const *buffers;
  } work{what, buffers};
  auto runPart = [](void *state, int64_t index, int64_t count) {
    const Work &own = *static_cast<const Work *>(state);
    const mw_rt_codes &codes = own.what.codes;
    DType type = DType(own.what.dtype);
    int64_t rows = codes.matrices * codes.rows;
    for (int64_t row = rows * index / count, end = rows * (index + 1) / count; row < end;) {
      int64_t matrix = row / codes.rows, first = row % codes.rows;
      int64_t some = std::min(end - row, codes.rows - first);
      CodedMatrix(codes, matrix, own.buffers[0], own.buffers[1])
          .decode({first, some, 0, codes.columns}, type,
                  static_cast<char *>(own.buffers[2]) + row * codes.columns * sizeOf(type));
      row += some;
    }
  };
  workers->run(std::clamp<int64_t>(what.codes.matrices * what.codes.rows, 1, workers->getCount()),
               runPart, &work);
  return true;
}

/// The rows of a group that are multiplied at once. The library keeps what it made for a number of rows:
/// there are few such numbers.
static int64_t chooseRows(int64_t rest, int64_t few) {
  constexpr int64_t kMostRows = 512;
  if (rest <= few)
    return rest;
  int64_t rows = kMostRows;
  while (rows > rest)
    rows /= 2;
  return rows;
}

bool CpuDevice::perform(const mw_rt_coded_product &what, void *const *buffers, std::string &error) {
  DType type = DType(what.dtype), result = DType(what.result);
  const auto *a = static_cast<const char *>(buffers[0]);
  const auto *offsets = static_cast<const int64_t *>(buffers[4]);
  auto *c = static_cast<char *>(buffers[5]);
  const int64_t all[] = {0, what.count};
  if (!offsets)
    offsets = all;
  mw_rt_gemm product = getProduct(what);
  for (int64_t matrix = 0; matrix < what.codes.matrices; ++matrix) {
    CodedMatrix weight(what.codes, matrix, buffers[1], buffers[2]);
    int64_t few = what.transpose_b && type != DType::F64 ? weight.getFewRows(type) : 0;
    for (int64_t row = offsets[matrix]; row < offsets[matrix + 1]; row += product.m) {
      product.m = buffers[4] ? chooseRows(offsets[matrix + 1] - row, few) : what.count;
      const char *from = a + row * what.k * sizeOf(type);
      char *to = c + row * what.n * sizeOf(result);
      if (product.m <= few)
        weight.multiplyFew(product.m, type, from, buffers[3], result, to, *workers);
      else if (!gemm.multiply(product, from, nullptr, buffers[3], to, *workers, error, &weight))
        return false;
    }
  }
  return true;
}

} // namespace meshwright::rt
