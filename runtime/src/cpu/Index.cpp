//===- Index.cpp - rows and elements by index ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"
#include "Elements.h"

#include "meshwright/runtime/src/ranks/CallFacts.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

/// Sets the error of an index. Returns false.
static bool setOutOfRange(int64_t index, int64_t position, int64_t size, std::string &error) {
  error = "index " + std::to_string(index) + " at position " + std::to_string(position) +
          " is out of range: expected 0 to " + std::to_string(size - 1);
  return false;
}

bool CpuDevice::perform(const mw_rt_gather &what, void *const *buffers, std::string &error) {
  const void *data = buffers[0], *indices = buffers[1], *offset = buffers[2];
  void *result = buffers[3];
  int64_t row = what.inner * sizeOf(DType(what.dtype));
  int64_t first = offset ? loadIndex(what.offset_dtype, offset, 0) : 0;
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

bool CpuDevice::perform(const mw_rt_take_along &what, void *const *buffers, std::string &error) {
  const void *data = buffers[0], *indices = buffers[1];
  void *result = buffers[2];
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

//===----------------------------------------------------------------------===//
// Rows that a source replaces
//===----------------------------------------------------------------------===//

static bool checkIndices(const mw_rt_rows &rows, const void *indices, std::string &error) {
  for (int64_t i = 0; i < rows.count; ++i)
    if (int64_t index = loadIndex(rows.index_dtype, indices, i);
        (index < 0 || index >= rows.size) && !(rows.skips && index == -1))
      return setOutOfRange(index, i, rows.size, error);
  return true;
}

/// Calls `body` with the addresses of each row of the data and of its replacement, and with their
/// bytes. Index -1 has no row, where it is allowed.
template <typename Data, typename Source, typename Body>
static void forEachRow(const mw_rt_rows &rows, int64_t indexType, Data *data, const void *indices,
                       Source *source, Body body) {
  int64_t bytes = rows.inner * sizeOf(DType(rows.dtype));
  for (int64_t i = 0; i < rows.count; ++i)
    if (int64_t index = loadIndex(indexType, indices, i); index >= 0)
      for (int64_t o = 0; o < rows.outer; ++o)
        body(data + (o * rows.size + index) * bytes, source + (o * rows.count + i) * bytes, bytes);
}

static void writeRows(const mw_rt_rows &rows, int64_t indexType, void *data, const void *indices,
                      const void *source) {
  forEachRow(rows, indexType, static_cast<char *>(data), indices, static_cast<const char *>(source),
             [](char *row, const char *from, int64_t bytes) { std::memcpy(row, from, bytes); });
}

bool CpuDevice::perform(const mw_rt_index_copy &what, void *const *buffers, std::string &error) {
  const mw_rt_rows &rows = what.rows;
  if (!checkIndices(rows, buffers[1], error))
    return false;
  if (buffers[3] != buffers[0])
    std::memcpy(buffers[3], buffers[0],
                rows.outer * rows.size * rows.inner * sizeOf(DType(rows.dtype)));
  writeRows(rows, rows.index_dtype, buffers[3], buffers[1], buffers[2]);
  return true;
}

bool CpuDevice::perform(const mw_rt_replace_rows &what, void *const *buffers, std::string &error) {
  const mw_rt_rows &rows = what.rows;
  void *state = buffers[0];
  const void *indices = buffers[1];
  if (!checkIndices(rows, indices, error))
    return false;
  if (buffers[3]) {
    char *log = static_cast<char *>(buffers[3]) + what.offset;
    for (int64_t i = 0; i < rows.count; ++i)
      reinterpret_cast<int64_t *>(log)[i] = loadIndex(rows.index_dtype, indices, i);
    forEachRow(rows, rows.index_dtype, static_cast<const char *>(state), indices,
               log + getLoggedRows(rows.count),
               [](const char *row, char *to, int64_t bytes) { std::memcpy(to, row, bytes); });
  }
  writeRows(rows, rows.index_dtype, state, indices, buffers[2]);
  return true;
}

bool CpuDevice::undo(const mw_rt_call &call, void *const *buffers, std::string &error) {
  const auto *what = asCall<mw_rt_replace_rows>(call);
  if (!what)
    return refuse(call, error);
  const char *log = static_cast<const char *>(buffers[3]) + what->offset;
  writeRows(what->rows, MW_I64, buffers[0], log, log + getLoggedRows(what->rows.count));
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
            result[(o * what.size + here) * what.inner + j] += asNumber(updates[from + j]);
        }
        continue;
      }
      int64_t here = loadIndex(what.index_dtype, work.indices, i) - work.first;
      if (here < 0 || here >= what.size)
        continue;
      Sum *to = result + (o * what.size + here) * what.inner;
      for (int64_t j = begin; j < end; ++j)
        to[j] += asNumber(updates[from + j]);
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

bool CpuDevice::perform(const mw_rt_scatter_add &what, void *const *buffers, std::string &error) {
  const void *updates = buffers[0], *indices = buffers[1], *offset = buffers[2];
  int64_t all = what.along ? what.outer * what.count * what.inner : what.count;
  for (int64_t i = 0; i < all; ++i)
    if (int64_t index = loadIndex(what.index_dtype, indices, i); index < 0 || index >= what.total)
      return setOutOfRange(index, i, what.total, error);
  Scatter work{what, updates, indices, offset ? loadIndex(what.offset_dtype, offset, 0) : 0,
               buffers[3]};
  // Each share of columns fills a few cache lines of each row.
  constexpr int64_t kLeastColumns = 64;
  int64_t shares = std::clamp<int64_t>(what.inner / kLeastColumns, 1, workers->getCount());
  workers->run(shares, runColumns, &work);
  return true;
}

} // namespace meshwright::rt
