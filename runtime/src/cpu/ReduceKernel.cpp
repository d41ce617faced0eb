//===- ReduceKernel.cpp - combining partial values, in vectors ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MESHWRIGHT_REDUCE names the function that is compiled, MESHWRIGHT_VECTOR the
// bytes of a vector.
//
//===----------------------------------------------------------------------===//

#include "ReduceKernel.h"

namespace {

/// Elements that are stored as `T` and combined as `A`, `lanes` at a time.
template <typename T, typename A> struct Vectors {
  static constexpr int64_t lanes = MESHWRIGHT_VECTOR / sizeof(A);
  typedef T Stored __attribute__((vector_size(lanes * sizeof(T))));
  typedef A Summed __attribute__((vector_size(MESHWRIGHT_VECTOR)));

  static Stored load(const T *from) {
    Stored value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(T *to, Stored value) { __builtin_memcpy(to, &value, sizeof(value)); }
};

template <typename T> struct Native : Vectors<T, T> {
  using typename Vectors<T, T>::Stored;
  using typename Vectors<T, T>::Summed;
  static Summed widen(Stored value) { return value; }
  static Stored narrow(Summed value) { return value; }
};

/// bf16, added in f32 and rounded to the nearest, ties to even.
struct BFloat : Vectors<uint16_t, float> {
  typedef uint32_t Bits __attribute__((vector_size(MESHWRIGHT_VECTOR)));

  static Summed widen(Stored value) {
    return reinterpret_cast<Summed>(__builtin_convertvector(value, Bits) << 16);
  }
  static Stored narrow(Summed value) {
    Bits bits = reinterpret_cast<Bits>(value);
    Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Bits quiet = (bits >> 16) | 0x40;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded, Stored);
  }
};

struct Sum {
  template <typename V> static V combine(V a, V b) { return a + b; }
};
/// The larger value, or NaN if either is NaN.
struct Max {
  template <typename V> static V combine(V a, V b) { return ((a != a) | (a > b)) ? a : b; }
};

template <typename Type, typename Kind, int64_t vectors, typename T>
int64_t reduceVectors(const T *const *sources, int64_t numSources, T *const *results,
                      int64_t numResults, int64_t begin, int64_t count) {
  constexpr int64_t lanes = Type::lanes;
  for (; begin + vectors * lanes <= count; begin += vectors * lanes) {
    typename Type::Summed sum[vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v)
      sum[v] = Type::widen(Type::load(sources[0] + begin + v * lanes));
    for (int64_t i = 1; i < numSources; ++i) {
      const T *from = sources[i] + begin;
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v)
        sum[v] = Kind::combine(sum[v], Type::widen(Type::load(from + v * lanes)));
    }
    for (int64_t i = 0; i < numResults; ++i) {
      T *to = results[i] + begin;
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v)
        Type::store(to + v * lanes, Type::narrow(sum[v]));
    }
  }
  return begin;
}

template <typename Type, typename Kind, typename T>
void reduce(const void *const *sourcesOfAny, int64_t numSources, void *const *resultsOfAny,
            int64_t numResults, int64_t count) {
  auto *sources = reinterpret_cast<const T *const *>(sourcesOfAny);
  auto *results = reinterpret_cast<T *const *>(resultsOfAny);
  constexpr int64_t lanes = Type::lanes;
  int64_t begin = reduceVectors<Type, Kind, 4>(sources, numSources, results, numResults, 0, count);
  begin = reduceVectors<Type, Kind, 1>(sources, numSources, results, numResults, begin, count);
  if (begin == count)
    return;
  // The rest, in a vector that is filled up.
  int64_t bytes = (count - begin) * sizeof(T);
  auto loadRest = [&](const T *from) {
    T elements[lanes] = {};
    __builtin_memcpy(elements, from + begin, bytes);
    return Type::widen(Type::load(elements));
  };
  typename Type::Summed sum = loadRest(sources[0]);
  for (int64_t i = 1; i < numSources; ++i)
    sum = Kind::combine(sum, loadRest(sources[i]));
  T elements[lanes];
  Type::store(elements, Type::narrow(sum));
  for (int64_t i = 0; i < numResults; ++i)
    __builtin_memcpy(results[i] + begin, elements, bytes);
}

template <typename Type, typename T>
void reduceAs(int64_t kind, const void *const *sources, int64_t numSources, void *const *results,
              int64_t numResults, int64_t count) {
  if (kind == MW_RT_SUM)
    reduce<Type, Sum, T>(sources, numSources, results, numResults, count);
  else
    reduce<Type, Max, T>(sources, numSources, results, numResults, count);
}

} // namespace

void meshwright::rt::MESHWRIGHT_REDUCE(int64_t dtype, int64_t kind, const void *const *sources,
                                       int64_t numSources, void *const *results, int64_t numResults,
                                       int64_t count) {
  switch (dtype) {
  case MW_F32:
    return reduceAs<Native<float>, float>(kind, sources, numSources, results, numResults, count);
  case MW_BF16:
    return reduceAs<BFloat, uint16_t>(kind, sources, numSources, results, numResults, count);
  case MW_F64:
    return reduceAs<Native<double>, double>(kind, sources, numSources, results, numResults, count);
  case MW_I64:
    return reduceAs<Native<int64_t>, int64_t>(kind, sources, numSources, results, numResults,
                                              count);
  case MW_I32:
    return reduceAs<Native<int32_t>, int32_t>(kind, sources, numSources, results, numResults,
                                              count);
  case MW_I1:
    // The sum of truth values is their logical or, and so is their maximum.
    return reduceAs<Native<uint8_t>, uint8_t>(MW_RT_MAX, sources, numSources, results, numResults,
                                              count);
  default:
    return;
  }
}
