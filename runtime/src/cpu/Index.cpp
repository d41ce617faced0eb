//===- Index.cpp - rows and elements by index ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

static int64_t loadIndex(int64_t type, const void *data, int64_t position) {
  return DType(type) == DType::I32 ? static_cast<const int32_t *>(data)[position]
                                   : static_cast<const int64_t *>(data)[position];
}

/// Sets the error of an index. Returns false.
static bool setOutOfRange(int64_t index, int64_t position, int64_t size, std::string &error) {
  error = "index " + std::to_string(index) + " at position " + std::to_string(position) +
          " is out of range, expected 0 to " + std::to_string(size - 1);
  return false;
}

bool CpuDevice::gather(const mw_rt_gather &what, const void *data, const void *indices,
                       const void *offset, void *result, std::string &error) {
  int64_t row = what.inner * sizeOf(DType(what.dtype));
  int64_t first = what.has_offset ? loadIndex(what.offset_dtype, offset, 0) : 0;
  for (int64_t o = 0; o < what.outer; ++o)
    for (int64_t i = 0; i < what.count; ++i) {
      int64_t index = loadIndex(what.index_dtype, indices, i), here = index - first;
      char *to = static_cast<char *>(result) + (o * what.count + i) * row;
      if (index < 0 || index >= what.total)
        return setOutOfRange(index, i, what.total, error);
      if (here >= 0 && here < what.size)
        std::memcpy(to, static_cast<const char *>(data) + (o * what.size + here) * row, row);
      else
        std::memset(to, 0, row);
    }
  return true;
}

bool CpuDevice::takeAlong(const mw_rt_take_along &what, const void *data, const void *indices,
                          void *result, std::string &error) {
  int64_t size = sizeOf(DType(what.dtype)), inner = what.inner;
  for (int64_t o = 0; o < what.outer; ++o)
    for (int64_t i = 0; i < what.count; ++i)
      for (int64_t j = 0; j < inner; ++j) {
        int64_t position = (o * what.count + i) * inner + j;
        int64_t index = loadIndex(what.index_dtype, indices, position);
        if (index < 0 || index >= what.size)
          return setOutOfRange(index, position, what.size, error);
        std::memcpy(static_cast<char *>(result) + position * size,
                    static_cast<const char *>(data) + ((o * what.size + index) * inner + j) * size,
                    size);
      }
  return true;
}

/// Where the rows begin in a log that begins with `count` indices.
static int64_t getRowsOfLog(int64_t count) {
  return (count * int64_t(sizeof(int64_t)) + kAlignment - 1) / kAlignment * kAlignment;
}

bool CpuDevice::saveRows(const mw_rt_index_copy &what, const void *data, const void *indices,
                         char *log, std::string &error) {
  for (int64_t i = 0; i < what.count; ++i) {
    int64_t index = loadIndex(what.index_dtype, indices, i);
    if (index < 0 || index >= what.size)
      return setOutOfRange(index, i, what.size, error);
    if (log)
      std::memcpy(log + i * sizeof(int64_t), &index, sizeof(index));
  }
  if (!log)
    return true;
  mw_rt_gather rows = {};
  rows.dtype = what.dtype;
  rows.index_dtype = MW_I64;
  rows.outer = what.outer;
  rows.size = rows.total = what.size;
  rows.inner = what.inner;
  rows.count = what.count;
  return gather(rows, data, log, nullptr, log + getRowsOfLog(what.count), error);
}

bool CpuDevice::restoreRows(const mw_rt_index_copy &what, const char *log, void *data,
                            std::string &error) {
  mw_rt_index_copy rows = what;
  rows.index_dtype = MW_I64;
  return indexCopy(rows, data, log, log + getRowsOfLog(what.count), data, error);
}

bool CpuDevice::indexCopy(const mw_rt_index_copy &what, const void *data, const void *indices,
                          const void *source, void *result, std::string &error) {
  int64_t row = what.inner * sizeOf(DType(what.dtype));
  if (data != result)
    std::memcpy(result, data, what.outer * what.size * row);
  for (int64_t i = 0; i < what.count; ++i) {
    int64_t index = loadIndex(what.index_dtype, indices, i);
    if (index < 0 || index >= what.size)
      return setOutOfRange(index, i, what.size, error);
    for (int64_t o = 0; o < what.outer; ++o)
      std::memcpy(static_cast<char *>(result) + (o * what.size + index) * row,
                  static_cast<const char *>(source) + (o * what.count + i) * row, row);
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Sums by index
//===----------------------------------------------------------------------===//

namespace {

/// The work of a scatter-add, which workers share by columns.
struct Scatter {
  const mw_rt_scatter_add &what;
  const void *updates, *indices;
  /// The rows before those of the result.
  int64_t first;
  void *result;
};

float asNumber(const float *from, int64_t i) { return from[i]; }
double asNumber(const double *from, int64_t i) { return from[i]; }

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
float asNumber(const Bf16 *from, int64_t i) { return bf16ToFloat(from[i].bits); }
float asNumber(const F16 *from, int64_t i) { return f16ToFloat(from[i].bits); }

} // namespace

/// Sums the columns begin .. end of all rows, in the order of the updates.
template <typename Update, typename Sum>
static void sumColumns(const Scatter &work, int64_t begin, int64_t end) {
  const mw_rt_scatter_add &what = work.what;
  const auto *updates = static_cast<const Update *>(work.updates);
  auto *result = static_cast<Sum *>(work.result);
  for (int64_t row = 0; row < what.outer * what.size; ++row)
    std::fill(result + row * what.inner + begin, result + row * what.inner + end, Sum(0));
  for (int64_t o = 0; o < what.outer; ++o)
    for (int64_t i = 0; i < what.count; ++i) {
      int64_t from = (o * what.count + i) * what.inner;
      if (what.along) {
        for (int64_t j = begin; j < end; ++j) {
          int64_t here = loadIndex(what.index_dtype, work.indices, from + j) - work.first;
          if (here >= 0 && here < what.size)
            result[(o * what.size + here) * what.inner + j] += asNumber(updates, from + j);
        }
        continue;
      }
      int64_t here = loadIndex(what.index_dtype, work.indices, i) - work.first;
      if (here < 0 || here >= what.size)
        continue;
      Sum *to = result + (o * what.size + here) * what.inner;
      for (int64_t j = begin; j < end; ++j)
        to[j] += asNumber(updates, from + j);
    }
}

static void runColumns(void *state, int64_t index, int64_t count) {
  const Scatter &work = *static_cast<const Scatter *>(state);
  int64_t begin = work.what.inner * index / count, end = work.what.inner * (index + 1) / count;
  switch (DType(work.what.dtype)) {
  case DType::F64:
    return sumColumns<double, double>(work, begin, end);
  case DType::BF16:
    return sumColumns<Bf16, float>(work, begin, end);
  case DType::F16:
    return sumColumns<F16, float>(work, begin, end);
  default:
    return sumColumns<float, float>(work, begin, end);
  }
}

bool CpuDevice::scatterAdd(const mw_rt_scatter_add &what, const void *updates, const void *indices,
                           const void *offset, void *result, std::string &error) {
  int64_t all = what.along ? what.outer * what.count * what.inner : what.count;
  for (int64_t i = 0; i < all; ++i)
    if (int64_t index = loadIndex(what.index_dtype, indices, i); index < 0 || index >= what.total)
      return setOutOfRange(index, i, what.total, error);
  Scatter work{what, updates, indices,
               what.has_offset ? loadIndex(what.offset_dtype, offset, 0) : 0, result};
  // Each share of columns fills a few cache lines of each row.
  constexpr int64_t kLeastColumns = 64;
  int64_t shares = std::clamp<int64_t>(what.inner / kLeastColumns, 1, workers->getCount());
  workers->run(shares, runColumns, &work);
  return true;
}

} // namespace meshwright::rt
