//===- Packing.cpp - weights in the form that kernels read ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Packing.h"

#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace meshwright::rt {

/// Groups of consecutive k, rounded up to a multiple of four.
static int64_t stepsOf(const mw_rt_packing &what) {
  return (divideCeil(what.k, what.group) + 3) / 4 * 4;
}

bool isCastable(DType type) {
  return type == DType::F32 || type == DType::BF16 || type == DType::F16;
}

/// Returns true for a weight that is brought to a form, and is not packed.
static bool isEncoded(const mw_rt_packing &what) { return what.form && !what.panel; }

/// The panels of one matrix.
static int64_t panelsOfMatrix(const mw_rt_packing &what) {
  return what.panel ? divideCeil(what.n, what.panel) : 1;
}

/// The form of a packing that has one.
static mw_rt_form getForm(const mw_rt_packing &what) {
  if (what.panel && what.transposed)
    return {what.form, what.along, what.n, what.k};
  return {what.form, what.along, what.k, what.n};
}

int64_t packedPanels(const mw_rt_packing &what) {
  if (isEncoded(what))
    return std::max<int64_t>(countGroups(getForm(what)), 1);
  return countMatrices(what) * panelsOfMatrix(what);
}

int64_t sizeOfPacked(const mw_rt_packing &what) {
  if (isEncoded(what))
    return countGroups(getForm(what)) * sizeOfGroup(getForm(what));
  int64_t count = what.panel ? packedPanels(what) * stepsOf(what) * what.panel * what.group
                             : countMatrices(what) * what.k * what.n;
  return count * sizeOf(DType(what.dtype));
}

/// `Group` consecutive elements of a column, which are stored together. Packing only moves bits, so
/// the size of an element is enough.
template <typename T, int Group>
struct Element {
  T values[Group];
};

/// Vectors of 16 bytes.
using U16 = uint16_t __attribute__((vector_size(16)));
using U32 = uint32_t __attribute__((vector_size(16)));

template <typename Vector>
static Vector load(const void *from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

/// Steps that are packed together: a few cache lines of a column, which memory gives in one stream.
static constexpr int64_t kBlockSteps = 64;

namespace {

/// Packs panels of one matrix.
template <typename T, int Group>
class Packer {
public:
  Packer(const mw_rt_packing &what, const void *from, void *to)
      : what(what), steps(stepsOf(what)), whole(what.k / Group), from(static_cast<const T *>(from)),
        to(static_cast<Element<T, Group> *>(to)) {}

  /// Reads rows in one piece: each panel from its first to its last step if its columns are stored
  /// as rows, else a block of steps through all panels.
  void run(int64_t first, int64_t last) const {
    int64_t blocks = divideCeil(steps, kBlockSteps), panels = last - first;
    for (int64_t i = 0; i < blocks * panels; ++i) {
      int64_t panel = first + (what.transposed ? i / blocks : i % panels);
      int64_t step = (what.transposed ? i % blocks : i / panels) * kBlockSteps;
      packBlock(panel, step, std::min(steps, step + kBlockSteps));
    }
  }

private:
  void packBlock(int64_t panel, int64_t first, int64_t last) const {
    int64_t column = panel * what.panel, width = std::min(what.panel, what.n - column);
    Element<T, Group> *target = to + (panel * steps + first) * what.panel;
    int64_t end = std::min(last, whole);
    int64_t step = first;
    if (what.transposed && end > first) {
      packColumns(from + column * what.k + first * Group, end - first, width, target);
      step = end;
      target += (end - first) * what.panel;
    }
    for (; step < end; ++step, target += what.panel)
      packRow(from + step * Group * what.n + column, width, target);
    // Steps that the matrix has in part, or not at all.
    for (; step < last; ++step, target += what.panel)
      for (int64_t j = 0; j < width; ++j)
        for (int g = 0; g < Group; ++g)
          target[j].values[g] = get(step * Group + g, column + j);
    target -= (last - first) * what.panel;
    for (step = first; width < what.panel && step < last; ++step, target += what.panel)
      std::fill(target + width, target + what.panel, Element<T, Group>());
  }

  T get(int64_t k, int64_t j) const {
    return k >= what.k ? T(0) : what.transposed ? from[j * what.k + k] : from[k * what.n + j];
  }

  /// `Group` rows of a matrix that is stored as k x n.
  void packRow(const T *row, int64_t width, Element<T, Group> *target) const {
    int64_t j = 0;
    if constexpr (Group == 1) {
      std::memcpy(target, row, width * sizeof(T));
      j = width;
    } else if constexpr (sizeof(T) == 2) {
      for (; j + 8 <= width; j += 8) {
        U16 a = load<U16>(row + j), b = load<U16>(row + what.n + j);
        U16 low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        U16 high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        std::memcpy(target + j, &low, sizeof(low));
        std::memcpy(target + j + 4, &high, sizeof(high));
      }
    }
    for (; j < width; ++j)
      for (int g = 0; g < Group; ++g)
        target[j].values[g] = row[g * what.n + j];
  }

  /// `count` steps of columns that are stored as rows of k: a transposition.
  void packColumns(const T *columns, int64_t count, int64_t width,
                   Element<T, Group> *target) const {
    int64_t j = 0;
    if constexpr (sizeof(Element<T, Group>) == 4)
      for (; j + 4 <= width; j += 4) {
        const T *column = columns + j * what.k;
        int64_t step = 0;
        for (; step + 4 <= count; step += 4) {
          U32 a = load<U32>(column + step * Group), b = load<U32>(column + what.k + step * Group),
              c = load<U32>(column + 2 * what.k + step * Group),
              d = load<U32>(column + 3 * what.k + step * Group);
          U32 lowAb = __builtin_shufflevector(a, b, 0, 4, 1, 5),
              highAb = __builtin_shufflevector(a, b, 2, 6, 3, 7),
              lowCd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
              highCd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
          U32 rows[4] = {__builtin_shufflevector(lowAb, lowCd, 0, 1, 4, 5),
                         __builtin_shufflevector(lowAb, lowCd, 2, 3, 6, 7),
                         __builtin_shufflevector(highAb, highCd, 0, 1, 4, 5),
                         __builtin_shufflevector(highAb, highCd, 2, 3, 6, 7)};
          for (int i = 0; i < 4; ++i)
            std::memcpy(target + (step + i) * what.panel + j, &rows[i], sizeof(U32));
        }
        for (int64_t i = 0; i < 4; ++i)
          copyColumn(column + i * what.k, step, count, target + j + i);
      }
    for (; j < width; ++j)
      copyColumn(columns + j * what.k, 0, count, target + j);
  }

  void copyColumn(const T *column, int64_t first, int64_t last, Element<T, Group> *target) const {
    for (int64_t step = first; step < last; ++step)
      std::memcpy(target + step * what.panel, column + step * Group, sizeof(*target));
  }

  const mw_rt_packing what;
  /// The steps of a panel, and how many of them the matrix fills.
  const int64_t steps, whole;
  const T *from;
  Element<T, Group> *to;
};

} // namespace

/// Elements that are cast together, by way of f32 in the processor's nearest cache.
static constexpr int64_t kCastElements = 1024;

/// Casts elements between f32, bf16 and f16.
static void castElements(DType stored, DType used, const char *from, char *to, int64_t count) {
  float wide[kCastElements];
  for (int64_t i = 0; i < count; i += kCastElements) {
    int64_t part = std::min(count - i, kCastElements);
    const char *source = from + i * sizeOf(stored);
    char *target = to + i * sizeOf(used);
    if (stored == DType::F32)
      std::memcpy(wide, source, part * sizeof(float));
    else
      widen(stored, source, wide, part);
    if (used == DType::F32)
      std::memcpy(target, wide, part * sizeof(float));
    else
      narrow(used, wide, target, part);
  }
}

/// Casts and packs panels: the columns of each are cast to a matrix of their own first.
static void castPanels(const mw_rt_packing &what, const char *from, char *to, int64_t first,
                       int64_t last) {
  DType stored = DType(what.stored), used = DType(what.dtype);
  if (!what.panel) {
    if (first < last)
      castElements(stored, used, from, to, what.k * what.n);
    return;
  }
  std::vector<char> columns(what.k * what.panel * sizeOf(used));
  int64_t panelBytes = sizeOfPacked(what) / std::max<int64_t>(packedPanels(what), 1);
  for (int64_t panel = first; panel < last; ++panel) {
    mw_rt_packing part = what;
    int64_t column = panel * what.panel;
    part.stored = what.dtype;
    part.n = std::min(what.panel, what.n - column);
    if (what.transposed)
      castElements(stored, used, from + column * what.k * sizeOf(stored), columns.data(),
                   part.n * what.k);
    else
      for (int64_t row = 0; row < what.k; ++row)
        castElements(stored, used, from + (row * what.n + column) * sizeOf(stored),
                     columns.data() + row * part.n * sizeOf(used), part.n);
    packPanels(part, columns.data(), to + panel * panelBytes, 0, 1);
  }
}

/// Decodes and packs panels: the columns of each are decoded to a matrix of their own first.
static void decodePanels(const mw_rt_packing &what, const void *from, char *to, int64_t first,
                         int64_t last) {
  DType used = DType(what.dtype);
  std::vector<char> columns(what.k * what.panel * sizeOf(used));
  int64_t panelBytes = sizeOfPacked(what) / std::max<int64_t>(packedPanels(what), 1);
  for (int64_t panel = first; panel < last; ++panel) {
    mw_rt_packing part = what;
    int64_t column = panel * what.panel;
    part.form = MW_RT_PLAIN;
    part.n = std::min(what.panel, what.n - column);
    FormBlock block = what.transposed ? FormBlock{column, part.n, 0, what.k}
                                      : FormBlock{0, what.k, column, part.n};
    decodeBlock(getForm(what), used, from, block, columns.data());
    packPanels(part, columns.data(), to + panel * panelBytes, 0, 1);
  }
}

/// Packs panels of several matrices, one after the other.
static void packMatrices(const mw_rt_packing &what, const char *from, char *to, int64_t first,
                         int64_t last) {
  mw_rt_packing one = what;
  one.batch = 1;
  int64_t panels = panelsOfMatrix(what), fromBytes = what.k * what.n * sizeOf(DType(what.stored));
  for (int64_t matrix = first / panels; matrix * panels < last; ++matrix)
    packPanels(one, from + matrix * fromBytes, to + matrix * sizeOfPacked(one),
               std::max<int64_t>(first - matrix * panels, 0),
               std::min(last - matrix * panels, panels));
}

void packPanels(const mw_rt_packing &what, const void *from, void *to, int64_t first,
                int64_t last, float largest) {
  if (isEncoded(what)) {
    encodeGroups(getForm(what), DType(what.stored), from, largest, to, first, last);
    return;
  }
  if (countMatrices(what) > 1)
    return packMatrices(what, static_cast<const char *>(from), static_cast<char *>(to), first, last);
  if (what.form)
    return decodePanels(what, from, static_cast<char *>(to), first, last);
  if (what.stored != what.dtype)
    return castPanels(what, static_cast<const char *>(from), static_cast<char *>(to), first, last);
  auto run = [&](auto packer) { packer.run(first, last); };
  bool isNarrow = sizeOf(DType(what.dtype)) == 2;
  if (isNarrow && what.group == 2)
    run(Packer<uint16_t, 2>(what, from, to));
  else if (isNarrow)
    run(Packer<uint16_t, 1>(what, from, to));
  else if (what.group == 2)
    run(Packer<uint32_t, 2>(what, from, to));
  else
    run(Packer<uint32_t, 1>(what, from, to));
}

void PackingQueue::add(const mw_rt_packing &what, const void *from, void *to, float largest) {
  jobs.push_back({what, from, to, largest});
  bytes += sizeOfPacked(what);
}

/// Packs the part of all jobs that begins and ends behind so many bytes of them.
void PackingQueue::runPart(int64_t begin, int64_t end) const {
  int64_t start = 0;
  for (const Job &job : jobs) {
    int64_t size = sizeOfPacked(job.what), panels = packedPanels(job.what);
    auto getPanel = [&](int64_t at) {
      return size == 0 ? 0 : std::clamp<int64_t>((at - start) / (size / panels), 0, panels);
    };
    if (int64_t first = getPanel(begin), last = getPanel(end); first < last)
      packPanels(job.what, job.from, job.to, first, last, job.largest);
    start += size;
  }
}

void PackingQueue::run(int threads) {
  int64_t count = std::clamp<int64_t>(bytes >> 20, 1, std::max(threads, 1)), i = 1;
  std::vector<std::thread> others;
  auto getBegin = [&](int64_t part) { return bytes * part / count; };
  try {
    others.reserve(count);
    for (; i < count; ++i)
      others.emplace_back([this, begin = getBegin(i), end = getBegin(i + 1)] { runPart(begin, end); });
  } catch (const std::system_error &) {
    // No more threads: this one packs the rest.
  }
  runPart(0, getBegin(1));
  runPart(getBegin(i), bytes);
  for (std::thread &other : others)
    other.join();
  jobs.clear();
  bytes = 0;
}

void pack(const mw_rt_packing &what, const void *from, void *to, int threads, float largest) {
  PackingQueue queue;
  queue.add(what, from, to, largest);
  queue.run(threads);
}

std::string measureWeight(const mw_rt_packing &what, const HostTensor &weight, float &largest) {
  largest = 0;
  if (isEncoded(what))
    weight.visitRuns({}, weight.shape, [&](const void *data, int64_t count) {
      // NaN, which compares with nothing, stays.
      float other = findLargest(weight.type, data, count);
      largest = other <= largest ? largest : other;
    });
  if (std::isfinite(largest))
    return "";
  return std::string("expected finite numbers in a weight that travels in ") + nameOfForm(what.form) +
         ", got " + (std::isnan(largest) ? "NaN" : "infinity");
}

} // namespace meshwright::rt
