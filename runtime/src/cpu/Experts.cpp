//===- Experts.cpp - rows of experts --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Workers share rows, tokens, columns or experts. The order of the terms of a sum depends on the
// routing alone.
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace meshwright::rt {

namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
float asNumber(float x) { return x; }
double asNumber(double x) { return x; }
float asNumber(Bf16 x) { return bf16ToFloat(x.bits); }
float asNumber(F16 x) { return f16ToFloat(x.bits); }
void store(float &to, float x) { to = x; }
void store(double &to, double x) { to = x; }
void store(Bf16 &to, float x) { to.bits = floatToBf16(x); }
void store(F16 &to, float x) { to.bits = floatToF16(x); }

template <typename T> using SumOf = decltype(asNumber(T()));

/// Calls `body` with an element of a float type.
template <typename Body> void withFloat(int64_t dtype, Body body) {
  switch (DType(dtype)) {
  case DType::F64:
    return body(double());
  case DType::BF16:
    return body(Bf16());
  case DType::F16:
    return body(F16());
  default:
    return body(float());
  }
}

/// Shares `count` things among the workers: `body(begin, end)` does some of them. Each share has
/// `least` or more.
template <typename Body>
void share(Workers &workers, int64_t count, int64_t least, Body body) {
  struct Work {
    Body &body;
    int64_t count;
  } work{body, count};
  auto part = [](void *state, int64_t index, int64_t parts) {
    const Work &own = *static_cast<const Work *>(state);
    own.body(own.count * index / parts, own.count * (index + 1) / parts);
  };
  workers.run(std::clamp<int64_t>(count / std::max<int64_t>(least, 1), 1, workers.getCount()), part,
              &work);
}

} // namespace

/// A thread should move so many elements or more.
constexpr int64_t kLeastElements = 1 << 12;

static int64_t leastRows(int64_t inner) { return kLeastElements / std::max<int64_t>(inner, 1); }

//===----------------------------------------------------------------------===//
// Choices
//===----------------------------------------------------------------------===//

template <typename T> static bool isLarger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b))
      return std::isnan(a) && !std::isnan(b);
  return a > b;
}

template <typename T, typename Number>
static void chooseRows(const mw_rt_top_k &what, const T *scores, int64_t *result, Number number,
                       int64_t begin, int64_t end) {
  std::vector<int64_t> order(what.size);
  for (int64_t row = begin; row < end; ++row) {
    const T *from = scores + row * what.size;
    std::iota(order.begin(), order.end(), 0);
    auto isBefore = [&](int64_t a, int64_t b) {
      auto x = number(from[a]), y = number(from[b]);
      return isLarger(x, y) || (!isLarger(y, x) && a < b);
    };
    std::partial_sort(order.begin(), order.begin() + what.k, order.end(), isBefore);
    std::copy_n(order.begin(), what.k, result + row * what.k);
  }
}

bool CpuDevice::perform(const mw_rt_top_k &what, void *const *buffers, std::string &) {
  auto *result = static_cast<int64_t *>(buffers[1]);
  share(*workers, what.rows, leastRows(what.size), [&](int64_t begin, int64_t end) {
    auto choose = [&](auto element) {
      using T = decltype(element);
      chooseRows(what, static_cast<const T *>(buffers[0]), result,
                 [](T x) {
                   if constexpr (std::is_integral_v<T>)
                     return x;
                   else
                     return asNumber(x);
                 },
                 begin, end);
    };
    if (DType(what.dtype) == DType::I64)
      choose(int64_t());
    else if (DType(what.dtype) == DType::I32)
      choose(int32_t());
    else
      withFloat(what.dtype, choose);
  });
  return true;
}

bool CpuDevice::perform(const mw_rt_route &what, void *const *buffers, std::string &error) {
  auto load = [](int64_t type, const void *data, int64_t i) -> int64_t {
    return DType(type) == DType::I32 ? static_cast<const int32_t *>(data)[i]
                                     : static_cast<const int64_t *>(data)[i];
  };
  int64_t first = buffers[1] ? load(what.offset_dtype, buffers[1], 0) : 0;
  int64_t count = what.tokens * what.choices;
  auto *offsets = static_cast<int64_t *>(buffers[2]), *choices = static_cast<int64_t *>(buffers[3]),
       *places = static_cast<int64_t *>(buffers[4]);
  std::fill_n(offsets, what.experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t expert = load(what.index_dtype, buffers[0], i), here = expert - first;
    if (expert < -1 || expert >= what.total) {
      error = "expert " + std::to_string(expert) + " at position " + std::to_string(i) +
              " is out of range: expected 0 to " + std::to_string(what.total - 1) +
              ", or -1 for none";
      return false;
    }
    bool isHere = expert >= 0 && here >= 0 && here < what.experts;
    places[i] = isHere ? here : -1;
    if (isHere)
      ++offsets[here + 1];
  }
  for (int64_t expert = 0; expert < what.experts; ++expert)
    offsets[expert + 1] += offsets[expert];
  int64_t rows = offsets[what.experts];
  if (rows > what.capacity) {
    error = "a routing has " + std::to_string(rows) + " rows, and room for " +
            std::to_string(what.capacity) + ": a token chose an expert twice";
    return false;
  }
  std::vector<int64_t> next(offsets, offsets + what.experts);
  for (int64_t i = 0; i < count; ++i)
    if (places[i] >= 0) {
      places[i] = next[places[i]]++;
      choices[places[i]] = i;
    }
  std::fill(choices + rows, choices + what.capacity, 0);
  return true;
}

//===----------------------------------------------------------------------===//
// Rows and tokens
//===----------------------------------------------------------------------===//

bool CpuDevice::perform(const mw_rt_take_rows &what, void *const *buffers, std::string &) {
  int64_t bytes = what.inner * sizeOf(DType(what.dtype));
  const auto *input = static_cast<const char *>(buffers[0]);
  const auto *choices = static_cast<const int64_t *>(buffers[1]);
  auto *result = static_cast<char *>(buffers[2]);
  share(*workers, what.rows, leastRows(what.inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(result + row * bytes, input + choices[row] / what.group * bytes, bytes);
  });
  return true;
}

template <typename T>
static void sumRows(const mw_rt_sum_rows &what, const T *rows, const int64_t *places, T *result,
                    int64_t begin, int64_t end) {
  std::vector<SumOf<T>> sums(what.inner);
  for (int64_t token = begin; token < end; ++token) {
    std::fill(sums.begin(), sums.end(), SumOf<T>(0));
    for (int64_t choice = 0; choice < what.choices; ++choice) {
      int64_t place = places[token * what.choices + choice];
      if (place < 0)
        continue;
      const T *row = rows + place * what.inner;
      for (int64_t i = 0; i < what.inner; ++i)
        sums[i] += asNumber(row[i]);
    }
    for (int64_t i = 0; i < what.inner; ++i)
      store(result[token * what.inner + i], sums[i]);
  }
}

bool CpuDevice::perform(const mw_rt_sum_rows &what, void *const *buffers, std::string &) {
  const auto *places = static_cast<const int64_t *>(buffers[1]);
  share(*workers, what.tokens, leastRows(what.inner * what.choices),
        [&](int64_t begin, int64_t end) {
          withFloat(what.dtype, [&](auto element) {
            using T = decltype(element);
            sumRows(what, static_cast<const T *>(buffers[0]), places, static_cast<T *>(buffers[2]),
                    begin, end);
          });
        });
  return true;
}

//===----------------------------------------------------------------------===//
// Rows and experts
//===----------------------------------------------------------------------===//

bool CpuDevice::perform(const mw_rt_repeat_rows &what, void *const *buffers, std::string &) {
  int64_t bytes = what.inner * sizeOf(DType(what.dtype));
  const auto *table = static_cast<const char *>(buffers[0]);
  const auto *offsets = static_cast<const int64_t *>(buffers[1]);
  auto *result = static_cast<char *>(buffers[2]);
  for (int64_t expert = 0; expert < what.experts; ++expert)
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row)
      std::memcpy(result + row * bytes, table + expert * bytes, bytes);
  int64_t rows = offsets[what.experts];
  std::memset(result + rows * bytes, 0, (what.rows - rows) * bytes);
  return true;
}

template <typename T, typename Result>
static void sumGroups(const mw_rt_sum_groups &what, const T *rows, const int64_t *offsets,
                      Result *result, int64_t begin, int64_t end) {
  std::vector<SumOf<T>> sums(end - begin);
  for (int64_t expert = 0; expert < what.experts; ++expert) {
    std::fill(sums.begin(), sums.end(), SumOf<T>(0));
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row)
      for (int64_t i = begin; i < end; ++i)
        sums[i - begin] += asNumber(rows[row * what.inner + i]);
    for (int64_t i = begin; i < end; ++i)
      store(result[expert * what.inner + i], sums[i - begin]);
  }
}

bool CpuDevice::perform(const mw_rt_sum_groups &what, void *const *buffers, std::string &) {
  const auto *offsets = static_cast<const int64_t *>(buffers[1]);
  constexpr int64_t kLeastColumns = 64;
  share(*workers, what.inner, kLeastColumns, [&](int64_t begin, int64_t end) {
    withFloat(what.dtype, [&](auto element) {
      using T = decltype(element);
      const auto *rows = static_cast<const T *>(buffers[0]);
      if (what.result == what.dtype)
        sumGroups(what, rows, offsets, static_cast<T *>(buffers[2]), begin, end);
      else
        sumGroups(what, rows, offsets, static_cast<SumOf<T> *>(buffers[2]), begin, end);
    });
  });
  return true;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

bool CpuDevice::perform(const mw_rt_grouped_product &what, void *const *buffers,
                        std::string &error) {
  int64_t size = sizeOf(DType(what.dtype)), resultSize = sizeOf(DType(what.result));
  const auto *a = static_cast<const char *>(buffers[0]), *b = static_cast<const char *>(buffers[1]);
  const auto *offsets = static_cast<const int64_t *>(buffers[2]);
  auto *c = static_cast<char *>(buffers[3]);
  mw_rt_gemm product = {};
  product.call.kind = kCallKind<mw_rt_gemm>;
  product.dtype = what.dtype;
  product.result = what.result;
  product.n = what.n;
  product.k = what.k;
  product.transpose_b = what.transpose_b;
  for (int64_t expert = 0; expert < what.experts; ++expert)
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; row += product.m) {
      // The library keeps what it made for a number of rows: there are few such numbers.
      product.m = 64;
      while (product.m > offsets[expert + 1] - row)
        product.m /= 2;
      if (!gemm.multiply(product, a + row * what.k * size, b + expert * what.n * what.k * size,
                         nullptr, c + row * what.n * resultSize, *workers, error))
        return false;
    }
  int64_t rows = offsets[what.experts];
  std::memset(c + rows * what.n * resultSize, 0, (what.rows - rows) * what.n * resultSize);
  return true;
}

/// Rows begin .. end of the results of all experts, which follow one another. A long sum is a sum of
/// shorter ones, which is more exact.
template <typename T>
static void sumProducts(const mw_rt_grouped_outer &what, const T *a, const T *b,
                        const int64_t *offsets, SumOf<T> *c, int64_t begin, int64_t end) {
  constexpr int64_t kExactRows = 64;
  std::vector<SumOf<T>> sums(what.n);
  for (int64_t i = begin; i < end; ++i) {
    int64_t expert = i / what.m, column = i % what.m;
    SumOf<T> *to = c + i * what.n;
    std::fill_n(to, what.n, SumOf<T>(0));
    int64_t last = offsets[expert + 1];
    for (int64_t first = offsets[expert]; first < last; first += kExactRows) {
      std::fill(sums.begin(), sums.end(), SumOf<T>(0));
      for (int64_t row = first; row < std::min(first + kExactRows, last); ++row) {
        SumOf<T> factor = asNumber(a[row * what.m + column]);
        const T *from = b + row * what.n;
        for (int64_t j = 0; j < what.n; ++j)
          sums[j] += factor * asNumber(from[j]);
      }
      for (int64_t j = 0; j < what.n; ++j)
        to[j] += sums[j];
    }
  }
}

bool CpuDevice::perform(const mw_rt_grouped_outer &what, void *const *buffers, std::string &) {
  const auto *offsets = static_cast<const int64_t *>(buffers[2]);
  share(*workers, what.experts * what.m, leastRows(what.n), [&](int64_t begin, int64_t end) {
    withFloat(what.dtype, [&](auto element) {
      using T = decltype(element);
      sumProducts(what, static_cast<const T *>(buffers[0]), static_cast<const T *>(buffers[1]),
                  offsets, static_cast<SumOf<T> *>(buffers[3]), begin, end);
    });
  });
  return true;
}

} // namespace meshwright::rt
