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
#include "Elements.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/ranks/MovedRows.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

namespace meshwright::rt {

namespace {

template <typename T> using SumOf = decltype(asNumber(T()));
template <typename T> constexpr DType kNarrow = std::is_same_v<T, Bf16> ? DType::BF16 : DType::F16;

/// Sums of elements of rows, one for each column.
template <typename T> class Sums {
public:
  explicit Sums(int64_t count) : sums(count), wide(std::is_floating_point_v<T> ? 0 : count) {}

  void clear() { std::fill(sums.begin(), sums.end(), SumOf<T>(0)); }
  void add(const T *row) {
    const SumOf<T> *numbers = wide.data();
    if constexpr (std::is_floating_point_v<T>)
      numbers = row;
    else
      widen(kNarrow<T>, row, wide.data(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i)
      sums[i] += numbers[i];
  }
  /// Stores the sums as elements of a type, which is that of the rows or of the sums.
  template <typename Result> void store(Result *to) const {
    if constexpr (std::is_floating_point_v<Result>)
      std::copy(sums.begin(), sums.end(), to);
    else
      narrow(kNarrow<Result>, sums.data(), to, sums.size());
  }

private:
  std::vector<SumOf<T>> sums, wide;
};

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

bool CpuDevice::perform(const mw_rt_limit &what, void *const *buffers, std::string &) {
  std::map<int64_t, int64_t> taken;
  int64_t dropped = 0;
  for (int64_t i = 0; i < what.choices; ++i) {
    int64_t expert = loadIndex(what.dtype, buffers[0], i);
    if (expert >= 0 && taken[expert]++ >= what.capacity) {
      expert = -1;
      ++dropped;
    }
    if (DType(what.dtype) == DType::I32)
      static_cast<int32_t *>(buffers[1])[i] = int32_t(expert);
    else
      static_cast<int64_t *>(buffers[1])[i] = expert;
  }
  context.noteExperts(what.layer, [&](ExpertRows &report) { report.dropped = dropped; });
  return true;
}

bool CpuDevice::perform(const mw_rt_route &what, void *const *buffers, std::string &error) {
  int64_t first = buffers[1] ? loadIndex(what.offset_dtype, buffers[1], 0) : 0;
  // Tokens that are rows are of groups of experts, which have so many experts each.
  const auto *groups = static_cast<const int64_t *>(buffers[2]);
  int64_t tokens = groups ? groups[what.outer] : what.tokens;
  int64_t members = groups ? what.experts / what.outer : what.experts, group = 0;
  int64_t count = tokens * what.choices, total = what.total * what.shared;
  auto *offsets = static_cast<int64_t *>(buffers[3]), *choices = static_cast<int64_t *>(buffers[4]),
       *places = static_cast<int64_t *>(buffers[5]);
  std::fill_n(offsets, what.experts + 1, 0);
  std::fill(places + count, places + what.tokens * what.choices, -1);
  for (int64_t i = 0; i < count; ++i) {
    int64_t expert = loadIndex(what.index_dtype, buffers[0], i);
    if (expert < -1 || expert >= total) {
      error = "expert " + std::to_string(expert) + " at position " + std::to_string(i) +
              " is out of range: expected 0 to " + std::to_string(total - 1) + ", or -1 for none";
      return false;
    }
    while (groups && i >= groups[group + 1] * what.choices)
      ++group;
    int64_t here = expert / what.shared - first;
    bool isHere = expert >= 0 && here >= group * members && here < (group + 1) * members;
    if (isHere && what.shared > 1) {
      const int64_t *token = places + i / what.choices * what.choices;
      isHere = std::find(token, const_cast<const int64_t *>(places + i), here) == places + i;
    }
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
  context.noteExperts(what.layer, [&](ExpertRows &report) {
    report.first = first;
    report.rows.resize(what.experts);
    std::adjacent_difference(offsets + 1, offsets + 1 + what.experts, report.rows.begin());
  });
  std::vector<int64_t> next(offsets, offsets + what.experts);
  for (int64_t i = 0; i < count; ++i)
    if (places[i] >= 0) {
      places[i] = next[places[i]]++;
      choices[places[i]] = i;
    }
  std::fill(choices + rows, choices + what.capacity, -1);
  return true;
}

/// Integers of rows that do not exist are numbers that any lookup takes. Other rows need not be written.
static void clearIntegers(int64_t dtype, void *rows, int64_t bytes) {
  if (!isFloat(DType(dtype)))
    std::memset(rows, 0, bytes);
}

//===----------------------------------------------------------------------===//
// Rows and tokens
//===----------------------------------------------------------------------===//

bool CpuDevice::perform(const mw_rt_take_rows &what, void *const *buffers, std::string &) {
  int64_t bytes = what.inner * sizeOf(DType(what.dtype));
  const auto *input = static_cast<const char *>(buffers[0]);
  const auto *choices = static_cast<const int64_t *>(buffers[1]);
  auto *result = static_cast<char *>(buffers[2]);
  auto exists = [](int64_t choice) { return choice >= 0; };
  int64_t rows = std::partition_point(choices, choices + what.rows, exists) - choices;
  // Integers of rows that do not exist are those of some token, which any lookup and division takes.
  for (int64_t row = rows; !isFloat(DType(what.dtype)) && row < what.rows; ++row)
    std::memcpy(result + row * bytes, input, bytes);
  share(*workers, rows, leastRows(what.inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(result + row * bytes, input + choices[row] / what.group * bytes, bytes);
  });
  return true;
}

template <typename T>
static void sumRows(const mw_rt_sum_rows &what, const T *rows, const int64_t *places, T *result,
                    int64_t begin, int64_t end) {
  Sums<T> sums(what.inner);
  for (int64_t token = begin; token < end; ++token) {
    sums.clear();
    for (int64_t choice = 0; choice < what.choices; ++choice)
      if (int64_t place = places[token * what.choices + choice]; place >= 0)
        sums.add(rows + place * what.inner);
    sums.store(result + token * what.inner);
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
  clearIntegers(what.dtype, result + rows * bytes, (what.rows - rows) * bytes);
  return true;
}

template <typename T, typename Result>
static void sumGroups(const mw_rt_sum_groups &what, const T *rows, const int64_t *offsets,
                      Result *result, int64_t begin, int64_t end) {
  Sums<T> sums(end - begin);
  for (int64_t expert = 0; expert < what.experts; ++expert) {
    sums.clear();
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; ++row)
      sums.add(rows + row * what.inner + begin);
    sums.store(result + expert * what.inner + begin);
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

/// The most rows of a product of the library.
static constexpr int64_t kMostRows = 1024;

/// Rows that the library multiplies at once, at least as many as there are. It keeps what it made for a
/// number of rows, so there are few such numbers.
static int64_t roundRows(int64_t rows) {
  if (rows <= 8)
    return rows;
  int64_t unit = rows <= 128 ? 16 : rows <= 512 ? 32 : 64;
  return (rows + unit - 1) / unit * unit;
}

bool CpuDevice::perform(const mw_rt_grouped_product &what, void *const *buffers,
                        std::string &error) {
  int64_t size = sizeOf(DType(what.dtype)), resultSize = sizeOf(DType(what.result));
  const auto *a = static_cast<const char *>(buffers[0]), *b = static_cast<const char *>(buffers[1]);
  const auto *offsets = static_cast<const int64_t *>(buffers[2]);
  auto *c = static_cast<char *>(buffers[3]);
  mw_rt_gemm product = getProduct(what);
  for (int64_t expert = 0; expert < what.experts; ++expert)
    for (int64_t row = offsets[expert]; row < offsets[expert + 1]; row += product.m) {
      // The next experts write over the rows that are too many.
      int64_t left = offsets[expert + 1] - row;
      product.m = roundRows(std::min(left, kMostRows));
      if (row + product.m > what.rows)
        for (product.m = 64; product.m > left;)
          product.m /= 2;
      if (!gemm.multiply(product, a + row * what.k * size, b + expert * what.n * what.k * size,
                         nullptr, c + row * what.n * resultSize, *workers, error))
        return false;
    }
  return true;
}

/// Some rows of a matrix, and rows of zeros behind them: in place, or in `scratch`.
static const char *padRows(const char *rows, int64_t count, int64_t padded, int64_t bytes,
                           std::vector<char> &scratch) {
  if (count == padded)
    return rows;
  scratch.resize(padded * bytes);
  std::memcpy(scratch.data(), rows, count * bytes);
  std::memset(scratch.data() + count * bytes, 0, (padded - count) * bytes);
  return scratch.data();
}

bool CpuDevice::perform(const mw_rt_grouped_outer &what, void *const *buffers, std::string &error) {
  int64_t size = sizeOf(DType(what.dtype));
  int64_t resultBytes = what.m * what.n * sizeOf(getComputeType(DType(what.dtype)));
  const auto *a = static_cast<const char *>(buffers[0]), *b = static_cast<const char *>(buffers[1]);
  const auto *offsets = static_cast<const int64_t *>(buffers[2]);
  auto *c = static_cast<char *>(buffers[3]);
  mw_rt_weight_grad product = {};
  product.call.kind = MW_RT_CALL_WEIGHT_GRAD;
  product.dtype = what.dtype;
  product.m = what.m;
  product.n = what.n;
  std::vector<char> paddedA, paddedB;
  for (int64_t expert = 0; expert < what.experts; ++expert, c += resultBytes) {
    int64_t row = offsets[expert], count = offsets[expert + 1] - row;
    product.rows = roundRows(count);
    const char *left = padRows(a + row * what.m * size, count, product.rows, what.m * size, paddedA);
    const char *right = padRows(b + row * what.n * size, count, product.rows, what.n * size, paddedB);
    if (!gemm.weightGrad(product, left, right, c, *workers, error))
      return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Rows that move between ranks
//===----------------------------------------------------------------------===//

/// Copies rows between the order by member, then by expert, and that by expert, then by member.
static void reorderRows(const RowCounts &counts, int64_t bytes, const char *from, char *to, bool byExpert) {
  forEachPart(counts, [&](int64_t ofMember, int64_t ofExpert, int64_t rows) {
    int64_t source = byExpert ? ofMember : ofExpert, target = byExpert ? ofExpert : ofMember;
    std::memcpy(to + target * bytes, from + source * bytes, rows * bytes);
  });
}

bool CpuDevice::perform(const Caller &caller, const mw_rt_send_rows &send, void *const *buffers,
                        std::string &error) {
  const mw_rt_moved_rows &what = send.what;
  int64_t members = sizeOfGroup(what.group.group), bytes = what.inner * sizeOf(DType(what.dtype));
  RowCounts sent = countSent(what, members, static_cast<const int64_t *>(buffers[1]));
  RowCounts received(members, what.own);
  std::vector<int64_t> alike(members, what.own * int64_t(sizeof(int64_t)));
  if (!collectives->exchange(caller, what.group, sent.data(), alike, received.data(), alike))
    return false;
  auto *rows = static_cast<char *>(buffers[2]);
  auto *parts = static_cast<int64_t *>(buffers[3]), *own = static_cast<int64_t *>(buffers[4]);
  int64_t total = placeParts(received, parts, own);
  context.noteExperts(what.layer, [&](ExpertRows &report) {
    report.first = coordinateOf(what.group.group, context.rank) * what.own;
    report.rows.resize(what.own);
    std::adjacent_difference(own + 1, own + 1 + what.own, report.rows.begin());
  });
  error = checkRoom(what, total);
  if (!error.empty())
    return false;
  std::vector<char> arrived(total * bytes);
  if (!collectives->exchange(caller, what.group, buffers[0], sent.times(bytes), arrived.data(),
                             received.times(bytes)))
    return false;
  reorderRows(received, bytes, arrived.data(), rows, /*byExpert=*/true);
  clearIntegers(what.dtype, rows + total * bytes, (what.to_capacity - total) * bytes);
  return true;
}

bool CpuDevice::perform(const Caller &caller, const mw_rt_return_rows &back, void *const *buffers,
                        std::string &) {
  const mw_rt_moved_rows &what = back.what;
  int64_t members = sizeOfGroup(what.group.group), bytes = what.inner * sizeOf(DType(what.dtype));
  const auto *parts = static_cast<const int64_t *>(buffers[1]);
  RowCounts received = countSent(what, members, static_cast<const int64_t *>(buffers[2]));
  RowCounts sent(members, what.own);
  for (int64_t expert = 0; expert < what.own; ++expert)
    for (int64_t member = 0; member < members; ++member, ++parts)
      sent.at(member, expert) = parts[1] - parts[0];
  std::vector<char> leaving(*parts * bytes);
  reorderRows(sent, bytes, static_cast<const char *>(buffers[0]), leaving.data(), /*byExpert=*/false);
  std::vector<int64_t> arriving = received.times(bytes);
  int64_t total = std::accumulate(arriving.begin(), arriving.end(), int64_t(0));
  clearIntegers(what.dtype, static_cast<char *>(buffers[3]) + total, what.to_capacity * bytes - total);
  return collectives->exchange(caller, what.group, leaving.data(), sent.times(bytes), buffers[3], arriving);
}

} // namespace meshwright::rt
