//===- Packing.cpp - parameters in the order kernels read -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Packing.h"

#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::rt {

static int64_t divideCeil(int64_t x, int64_t y) { return (x + y - 1) / y; }

/// Groups of consecutive k, rounded up to a multiple of four.
static int64_t stepsOf(const mw_rt_packing &what) {
  return (divideCeil(what.k, what.group) + 3) / 4 * 4;
}

int64_t packedPanels(const mw_rt_packing &what) { return divideCeil(what.n, what.panel); }

int64_t sizeOfPacked(const mw_rt_packing &what) {
  return packedPanels(what) * stepsOf(what) * what.panel * what.group * sizeOf(DType(what.dtype));
}

/// Packs one panel of `width` columns from a matrix that is stored as k x n. `Group` consecutive k
/// are stored together.
template <typename T, int Group>
static void packRows(const mw_rt_packing &what, const T *from, T *to, int64_t width) {
  int64_t steps = stepsOf(what);
  for (int64_t step = 0; step < steps; ++step, to += what.panel * Group)
    for (int g = 0; g < Group; ++g) {
      int64_t k = step * Group + g;
      if (k >= what.k)
        for (int64_t j = 0; j < width; ++j)
          to[j * Group + g] = 0;
      else
        for (int64_t j = 0; j < width; ++j)
          to[j * Group + g] = from[k * what.n + j];
    }
}

/// The same from a matrix that is stored as n x k. This transposes groups, one cache line of each
/// of the panel's columns at a time.
template <typename T, int Group>
static void packColumns(const mw_rt_packing &what, const T *from, T *to, int64_t width) {
  int64_t steps = stepsOf(what), whole = what.k / Group;
  constexpr int64_t block = 64 / (sizeof(T) * Group);
  struct Element {
    T values[Group];
  };
  auto *elements = reinterpret_cast<Element *>(to);
  for (int64_t first = 0; first < whole; first += block) {
    int64_t last = std::min(whole, first + block);
    for (int64_t j = 0; j < width; ++j) {
      const T *column = from + j * what.k;
      for (int64_t step = first; step < last; ++step)
        std::memcpy(&elements[step * what.panel + j], column + step * Group, sizeof(Element));
    }
  }
  for (int64_t step = whole; step < steps; ++step)
    for (int64_t j = 0; j < width; ++j)
      for (int g = 0; g < Group; ++g) {
        int64_t k = step * Group + g;
        elements[step * what.panel + j].values[g] = k < what.k ? from[j * what.k + k] : T(0);
      }
}

template <typename T, int Group>
static void packTyped(const mw_rt_packing &what, const T *from, T *to, int64_t first,
                      int64_t last) {
  int64_t steps = stepsOf(what);
  for (int64_t panel = first; panel < last; ++panel) {
    T *target = to + panel * steps * what.panel * Group;
    int64_t column = panel * what.panel, width = std::min(what.panel, what.n - column);
    if (what.transposed)
      packColumns<T, Group>(what, from + column * what.k, target, width);
    else
      packRows<T, Group>(what, from + column, target, width);
    if (width == what.panel)
      continue;
    for (int64_t step = 0; step < steps; ++step)
      std::fill(target + (step * what.panel + width) * Group,
                target + (step + 1) * what.panel * Group, T(0));
  }
}

template <typename T>
static void packAny(const mw_rt_packing &what, const void *from, void *to, int64_t first,
                    int64_t last) {
  if (what.group == 2)
    packTyped<T, 2>(what, static_cast<const T *>(from), static_cast<T *>(to), first, last);
  else
    packTyped<T, 1>(what, static_cast<const T *>(from), static_cast<T *>(to), first, last);
}

void packPanels(const mw_rt_packing &what, const void *from, void *to, int64_t first,
                int64_t last) {
  // Packing only moves bits, so the size of an element is enough.
  if (sizeOf(DType(what.dtype)) == 2)
    packAny<uint16_t>(what, from, to, first, last);
  else
    packAny<uint32_t>(what, from, to, first, last);
}

void pack(const mw_rt_packing &what, const void *from, void *to, int threads) {
  int64_t panels = packedPanels(what);
  int64_t count = std::min<int64_t>({threads, panels, sizeOfPacked(what) >> 20});
  if (count <= 1)
    return packPanels(what, from, to, 0, panels);
  std::vector<std::thread> others;
  others.reserve(count);
  int64_t i = 1;
  try {
    for (; i < count; ++i)
      others.emplace_back(
          [=, &what] { packPanels(what, from, to, i * panels / count, (i + 1) * panels / count); });
  } catch (const std::system_error &) {
    // No more threads: this one packs the rest.
  }
  packPanels(what, from, to, 0, panels / count);
  packPanels(what, from, to, i * panels / count, panels);
  for (std::thread &other : others)
    other.join();
}

} // namespace meshwright::rt
