//===- Index.cpp - rows and elements by index ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

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

} // namespace meshwright::rt
