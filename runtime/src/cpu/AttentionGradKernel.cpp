//===- AttentionGradKernel.cpp - gradients of attention, in vectors -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MESHWRIGHT_ATTENTION_GRAD names the function that is compiled, MESHWRIGHT_VECTOR the bytes of a
// vector.
//
// For each head, for each block of keys, for each block of queries that sees some of them:
//   P  = exp(scale Q K^T + bias - lse), hidden pairs zero
//   dS = P (dO V^T - delta) with delta = sum(dO O)
//   dV += P^T dO,  dK += dS^T Q scale,  dQ += dS K scale
// A block of keys has its gradients in the workspace. Those of queries are summed in the result.
//
//===----------------------------------------------------------------------===//

#include "AttentionGradKernel.h"

using meshwright::rt::AttentionGrad;
using meshwright::rt::kAttentionGradBlock;

namespace {

constexpr int64_t kBlock = kAttentionGradBlock;

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

/// Vectors of the arithmetic's type.
template <typename T> struct Lanes {
  static constexpr int64_t count = MESHWRIGHT_VECTOR / sizeof(T);
  typedef T Vector __attribute__((vector_size(MESHWRIGHT_VECTOR)));

  static Vector load(const T *from) {
    Vector value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(T *to, Vector value) { __builtin_memcpy(to, &value, sizeof(value)); }
  static Vector splat(T value) { return value - Vector{}; }
};

float halfToFloat(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff, bits;
  if (rest >= 0x7c00) {
    bits = sign | 0x7f800000 | (rest << 13);
  } else {
    // Subnormal numbers of f16 are normal in f32.
    bits = rest << 13;
    float scaled;
    __builtin_memcpy(&scaled, &bits, sizeof(scaled));
    scaled *= 0x1p112f;
    __builtin_memcpy(&bits, &scaled, sizeof(bits));
    bits |= sign;
  }
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

float readBf16(uint16_t number) {
  uint32_t bits = uint32_t(number) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Reads the numbers of a tensor in the arithmetic's type.
template <typename T> struct Reader {
  const void *data;
  int64_t dtype;

  T operator[](int64_t i) const {
    switch (dtype) {
    case MW_BF16:
      return readBf16(static_cast<const uint16_t *>(data)[i]);
    case MW_F16:
      return halfToFloat(static_cast<const uint16_t *>(data)[i]);
    default:
      return static_cast<const T *>(data)[i];
    }
  }
  /// Copies `count` numbers, and zeros up to `padded`.
  void copy(int64_t from, int64_t count, int64_t padded, T *to) const {
    if (dtype == MW_BF16)
      for (int64_t i = 0; i < count; ++i)
        to[i] = readBf16(static_cast<const uint16_t *>(data)[from + i]);
    else if (dtype == MW_F16)
      for (int64_t i = 0; i < count; ++i)
        to[i] = halfToFloat(static_cast<const uint16_t *>(data)[from + i]);
    else
      __builtin_memcpy(to, static_cast<const T *>(data) + from, count * sizeof(T));
    for (int64_t i = count; i < padded; ++i)
      to[i] = 0;
  }
};

/// e^x for x of at most 0. Results that are not normal numbers become zero, NaN stays.
inline Lanes<float>::Vector exponentiate(Lanes<float>::Vector x) {
  using Vector = Lanes<float>::Vector;
  typedef int32_t Bits __attribute__((vector_size(MESHWRIGHT_VECTOR)));
  constexpr float lowest = -87.3f, magic = 12582912.0f;
  Bits isTiny = x < lowest;
  x = isTiny ? Lanes<float>::splat(lowest) : x;
  // Adding the magic number rounds to an integer, which is then in the lowest bits.
  Vector shifted = x * 1.44269504088896341f + magic, number = shifted - magic;
  Vector rest = x - number * 0.693359375f;
  rest = rest + number * 2.12194440e-4f;
  Vector y = Lanes<float>::splat(1.9875691500e-4f);
  constexpr float factors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f};
#pragma GCC unroll 5
  for (float factor : factors)
    y = y * rest + factor;
  y = y * (rest * rest) + rest + 1.0f;
  Bits exponent = reinterpret_cast<Bits>(shifted) - 0x4b400000;
  Vector scaled = y * reinterpret_cast<Vector>((exponent + 127) << 23);
  return isTiny ? Vector{} : scaled;
}

inline Lanes<double>::Vector exponentiate(Lanes<double>::Vector x) {
  for (int64_t i = 0; i < Lanes<double>::count; ++i)
    x[i] = __builtin_exp(x[i]);
  return x;
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// A factor whose element (i, k) is at data[i * row + k * step].
template <typename T> struct Factor {
  const T *data;
  int64_t row, step;
};

/// Rows x (vectors of columns) of C = A B, or of C + A B. B and C have `stride` numbers a row.
template <typename T, int64_t rows, int64_t vectors>
inline void multiplyTile(T *c, int64_t strideC, Factor<T> a, const T *b, int64_t strideB,
                         int64_t steps, bool adds) {
  using L = Lanes<T>;
  typename L::Vector sums[rows][vectors];
#pragma GCC unroll 16
  for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v)
      sums[i][v] = typename L::Vector{};
  for (int64_t k = 0; k < steps; ++k) {
    typename L::Vector columns[vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v)
      columns[v] = L::load(b + k * strideB + v * L::count);
#pragma GCC unroll 16
    for (int64_t i = 0; i < rows; ++i) {
      typename L::Vector factor = L::splat(a.data[i * a.row + k * a.step]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v)
        sums[i][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) {
      T *to = c + i * strideC + v * L::count;
      L::store(to, adds ? L::load(to) + sums[i][v] : sums[i][v]);
    }
}

template <typename T, int64_t vectors>
void multiplyColumns(T *c, int64_t strideC, Factor<T> a, const T *b, int64_t strideB, int64_t rows,
                     int64_t steps, bool adds) {
  // As many sums as registers hold beside the columns and a factor.
  constexpr int64_t most = MESHWRIGHT_VECTOR == 64 ? 12 : 6;
  int64_t i = 0;
  auto at = [&](int64_t row) { return Factor<T>{a.data + row * a.row, a.row, a.step}; };
  for (; i + most <= rows; i += most)
    multiplyTile<T, most, vectors>(c + i * strideC, strideC, at(i), b, strideB, steps, adds);
  for (; i + 4 <= rows; i += 4)
    multiplyTile<T, 4, vectors>(c + i * strideC, strideC, at(i), b, strideB, steps, adds);
  for (; i < rows; ++i)
    multiplyTile<T, 1, vectors>(c + i * strideC, strideC, at(i), b, strideB, steps, adds);
}

/// `columns` is a multiple of the lanes of a vector.
template <typename T>
void multiply(T *c, int64_t strideC, Factor<T> a, const T *b, int64_t strideB, int64_t rows,
              int64_t columns, int64_t steps, bool adds) {
  int64_t j = 0;
  for (; j + 2 * Lanes<T>::count <= columns; j += 2 * Lanes<T>::count)
    multiplyColumns<T, 2>(c + j, strideC, a, b + j, strideB, rows, steps, adds);
  for (; j < columns; j += Lanes<T>::count)
    multiplyColumns<T, 1>(c + j, strideC, a, b + j, strideB, rows, steps, adds);
}

//===----------------------------------------------------------------------===//
// A head
//===----------------------------------------------------------------------===//

/// Positions of some queries or keys: the least and the greatest of those that are not hidden, and
/// whether some are.
struct Places {
  int64_t lowest = INT64_MAX, highest = INT64_MIN;
  bool hasHidden = false;
};

/// Work on one head after the other.
template <typename T> class Head {
public:
  Head(const AttentionGrad &work, T *numbers, int64_t *places);
  void run(int64_t head);

private:
  using L = Lanes<T>;
  enum Input {
    Cotangent, Query, Key, Value, Out, Lse, Padding, Bias, QueryPlaces, KeyPlaces, Lengths
  };

  Reader<T> read(Input input) const { return {work.inputs[input], what.dtype}; }
  T *getResult(int64_t output) const { return static_cast<T *>(work.outputs[output]); }
  const int64_t *getIntegers(Input input) const {
    return static_cast<const int64_t *>(work.inputs[input]);
  }
  bool isHidden(int64_t place) const { return place < 0; }

  void findPlaces(int64_t row);
  void prepareQueries();
  Places getPlaces(const int64_t *places, int64_t count, bool areKeys) const;
  bool isSeen(int64_t query, int64_t key) const;
  void packKeys();
  void addBlock(const Places &keys);
  /// Turns products of a query and keys into probabilities, and cotangents of probabilities into
  /// those of the products.
  void differentiateRow(int64_t i, bool isMasked);
  T getBias(int64_t i, int64_t j) const;
  void storeKeys();

  const AttentionGrad &work;
  const mw_rt_attention_grad &what;
  T scale, softCap;
  /// Of a block; see getAttentionGradNumbers.
  T *queries, *cotangents, *queryGrads, *keys, *keysTransposed, *valuesTransposed, *keyGrads,
      *valueGrads, *probabilities, *scoreGrads;
  /// Of each query of the head: the log-sum-exp, plus infinity if it sees no key, and the sum of
  /// its cotangent times its result.
  T *lse, *delta;
  /// Positions of keys, negative for hidden ones, and of queries.
  int64_t *keyPlaces, *queryPlaces;

  /// The head among all heads, that of the keys, and the row of the batch.
  int64_t head = 0, keyHead = 0, row = 0;
  int64_t firstQuery = 0, numQueries = 0, firstKey = 0, numKeys = 0, paddedKeys = 0;
};

double toDouble(int64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename T>
Head<T>::Head(const AttentionGrad &work, T *numbers, int64_t *places)
    : work(work), what(work.what), scale(T(toDouble(what.scale))),
      softCap(T(toDouble(what.soft_cap))), keyPlaces(places), queryPlaces(places + what.keys) {
  auto take = [&](int64_t count) {
    T *taken = numbers;
    numbers += count;
    return taken;
  };
  T **ofFeatures[] = {&queries, &queryGrads, &keys, &keysTransposed, &keyGrads};
  for (T **region : ofFeatures)
    *region = take(kBlock * work.features);
  T **ofValues[] = {&cotangents, &valuesTransposed, &valueGrads};
  for (T **region : ofValues)
    *region = take(kBlock * work.valueFeatures);
  probabilities = take(kBlock * kBlock);
  scoreGrads = take(kBlock * kBlock);
  lse = take(what.queries);
  delta = take(what.queries);
}

template <typename T> void Head<T>::findPlaces(int64_t row) {
  const auto *padding = static_cast<const uint8_t *>(work.inputs[Padding]);
  const int64_t *lengths = getIntegers(Lengths);
  for (int64_t j = 0; j < what.keys; ++j) {
    int64_t place =
        what.has_positions ? getIntegers(KeyPlaces)[row * what.key_position_stride + j] : j;
    bool isKey = place >= 0 && j < what.kv_length && (!lengths || place < lengths[row]) &&
                 (!padding || padding[row * what.keys + j]);
    keyPlaces[j] = isKey ? place : -1;
  }
  for (int64_t i = 0; i < what.queries; ++i)
    queryPlaces[i] =
        what.has_positions ? getIntegers(QueryPlaces)[row * what.query_position_stride + i] : i;
}

template <typename T> void Head<T>::prepareQueries() {
  const T *known = static_cast<const T *>(work.inputs[Lse]) + head * what.queries;
  Reader<T> out = read(Out), cotangent = read(Cotangent);
  for (int64_t i = 0; i < what.queries; ++i) {
    lse[i] = known[i] == T(-__builtin_inf()) ? T(__builtin_inf()) : known[i];
    int64_t from = (head * what.queries + i) * what.value_features;
    T sum = 0;
    for (int64_t d = 0; d < what.value_features; ++d)
      sum += cotangent[from + d] * out[from + d];
    delta[i] = sum;
  }
}

template <typename T>
Places Head<T>::getPlaces(const int64_t *places, int64_t count, bool areKeys) const {
  Places bounds;
  for (int64_t i = 0; i < count; ++i) {
    if (areKeys && isHidden(places[i])) {
      bounds.hasHidden = true;
      continue;
    }
    bounds.lowest = places[i] < bounds.lowest ? places[i] : bounds.lowest;
    bounds.highest = places[i] > bounds.highest ? places[i] : bounds.highest;
  }
  return bounds;
}

template <typename T> bool Head<T>::isSeen(int64_t query, int64_t key) const {
  return !isHidden(key) && (what.right < 0 || key - query <= what.right) &&
         (what.left < 0 || query - key <= what.left);
}

template <typename T> void Head<T>::packKeys() {
  Reader<T> key = read(Key), value = read(Value);
  paddedKeys = (numKeys + L::count - 1) / L::count * L::count;
  // Rows of the block of values are only read transposed: their gradients' memory has them before.
  for (int64_t j = 0; j < numKeys; ++j) {
    int64_t at = keyHead * what.keys + firstKey + j;
    key.copy(at * what.features, what.features, work.features, keys + j * work.features);
    value.copy(at * what.value_features, what.value_features, work.valueFeatures,
               valueGrads + j * work.valueFeatures);
  }
  for (int64_t j = 0; j < paddedKeys; ++j) {
    for (int64_t d = 0; d < what.features; ++d)
      keysTransposed[d * kBlock + j] = j < numKeys ? keys[j * work.features + d] : T(0);
    for (int64_t d = 0; d < what.value_features; ++d)
      valuesTransposed[d * kBlock + j] =
          j < numKeys ? valueGrads[j * work.valueFeatures + d] : T(0);
  }
  for (int64_t i = 0; i < kBlock * work.features; ++i)
    keyGrads[i] = 0;
  for (int64_t i = 0; i < kBlock * work.valueFeatures; ++i)
    valueGrads[i] = 0;
}

template <typename T> T Head<T>::getBias(int64_t i, int64_t j) const {
  const int64_t *strides = what.bias_strides;
  return read(Bias)[row * strides[0] + head % what.query_heads * strides[1] +
                    (firstQuery + i) * strides[2] + (firstKey + j) * strides[3]];
}

template <typename T> void Head<T>::differentiateRow(int64_t i, bool isMasked) {
  T *scores = probabilities + i * kBlock, *grads = scoreGrads + i * kBlock;
  T known = lse[firstQuery + i], own = delta[firstQuery + i], capSlopes[kBlock];
  for (int64_t j = 0; j < paddedKeys; j += L::count)
    L::store(scores + j, L::load(scores + j) * scale);
  if (softCap > 0)
    for (int64_t j = 0; j < numKeys; ++j) {
      T capped = T(__builtin_tanh(scores[j] / softCap));
      scores[j] = softCap * capped;
      capSlopes[j] = 1 - capped * capped;
    }
  if (what.has_bias)
    for (int64_t j = 0; j < numKeys; ++j)
      scores[j] += getBias(i, j);
  for (int64_t j = 0; j < paddedKeys; j += L::count) {
    typename L::Vector exponent = L::load(scores + j) - known;
    exponent = exponent > 0 ? typename L::Vector{} : exponent;
    L::store(scores + j, exponentiate(exponent));
  }
  int64_t place = queryPlaces[firstQuery + i];
  if (isMasked)
    for (int64_t j = 0; j < numKeys; ++j)
      scores[j] = isSeen(place, keyPlaces[firstKey + j]) ? scores[j] : T(0);
  for (int64_t j = 0; j < paddedKeys; j += L::count)
    L::store(grads + j, (L::load(grads + j) - own) * L::load(scores + j));
  // The bias is added behind the cap.
  if (what.has_bias_grad)
    __builtin_memcpy(getResult(3) + (head * what.queries + firstQuery + i) * what.keys + firstKey,
                     grads, numKeys * sizeof(T));
  if (softCap > 0)
    for (int64_t j = 0; j < numKeys; ++j)
      grads[j] *= capSlopes[j];
  for (int64_t j = 0; j < paddedKeys; j += L::count)
    L::store(grads + j, L::load(grads + j) * scale);
}

/// Adds the pairs of the present blocks of queries and keys, if some are seen.
template <typename T> void Head<T>::addBlock(const Places &ofKeys) {
  Places own = getPlaces(queryPlaces + firstQuery, numQueries, /*areKeys=*/false);
  if ((what.right >= 0 && ofKeys.lowest - own.highest > what.right) ||
      (what.left >= 0 && own.lowest - ofKeys.highest > what.left))
    return;
  bool isMasked = ofKeys.hasHidden ||
                  (what.right >= 0 && ofKeys.highest - own.lowest > what.right) ||
                  (what.left >= 0 && own.highest - ofKeys.lowest > what.left);
  Reader<T> query = read(Query), cotangent = read(Cotangent);
  for (int64_t i = 0; i < numQueries; ++i) {
    int64_t at = head * what.queries + firstQuery + i;
    query.copy(at * what.features, what.features, work.features, queries + i * work.features);
    cotangent.copy(at * what.value_features, what.value_features, work.valueFeatures,
                   cotangents + i * work.valueFeatures);
  }
  auto rowsOf = [](const T *data, int64_t stride) { return Factor<T>{data, stride, 1}; };
  auto columnsOf = [](const T *data) { return Factor<T>{data, 1, kBlock}; };
  multiply<T>(probabilities, kBlock, rowsOf(queries, work.features), keysTransposed, kBlock,
              numQueries, paddedKeys, what.features, /*adds=*/false);
  multiply<T>(scoreGrads, kBlock, rowsOf(cotangents, work.valueFeatures), valuesTransposed, kBlock,
              numQueries, paddedKeys, what.value_features, /*adds=*/false);
  for (int64_t i = 0; i < numQueries; ++i)
    differentiateRow(i, isMasked);
  multiply<T>(valueGrads, work.valueFeatures, columnsOf(probabilities), cotangents,
              work.valueFeatures, numKeys, work.valueFeatures, numQueries, /*adds=*/true);
  multiply<T>(keyGrads, work.features, columnsOf(scoreGrads), queries, work.features, numKeys,
              work.features, numQueries, /*adds=*/true);
  multiply<T>(queryGrads, work.features, rowsOf(scoreGrads, kBlock), keys, work.features, numQueries,
              work.features, numKeys, /*adds=*/false);
  T *to = getResult(0) + (head * what.queries + firstQuery) * what.features;
  for (int64_t i = 0; i < numQueries; ++i)
    for (int64_t d = 0; d < what.features; ++d)
      to[i * what.features + d] += queryGrads[i * work.features + d];
}

template <typename T> void Head<T>::storeKeys() {
  T *ofKeys = getResult(1) + (head * what.keys + firstKey) * what.features;
  T *ofValues = getResult(2) + (head * what.keys + firstKey) * what.value_features;
  for (int64_t j = 0; j < numKeys; ++j) {
    __builtin_memcpy(ofKeys + j * what.features, keyGrads + j * work.features,
                     what.features * sizeof(T));
    __builtin_memcpy(ofValues + j * what.value_features, valueGrads + j * work.valueFeatures,
                     what.value_features * sizeof(T));
  }
}

template <typename T> void Head<T>::run(int64_t index) {
  head = index;
  int64_t nextRow = head / what.query_heads, group = what.query_heads / what.key_heads;
  row = nextRow;
  keyHead = row * what.key_heads + head % what.query_heads / group;
  findPlaces(row);
  prepareQueries();
  __builtin_memset(getResult(0) + head * what.queries * what.features, 0,
                   what.queries * what.features * sizeof(T));
  if (what.has_bias_grad)
    __builtin_memset(getResult(3) + head * what.queries * what.keys, 0,
                     what.queries * what.keys * sizeof(T));
  for (firstKey = 0; firstKey < what.keys; firstKey += kBlock) {
    numKeys = what.keys - firstKey < kBlock ? what.keys - firstKey : kBlock;
    Places places = getPlaces(keyPlaces + firstKey, numKeys, /*areKeys=*/true);
    packKeys();
    // Of a block of hidden keys the lowest place is above the highest one.
    for (firstQuery = 0; firstQuery < what.queries && places.lowest <= places.highest;
         firstQuery += kBlock) {
      numQueries = what.queries - firstQuery < kBlock ? what.queries - firstQuery : kBlock;
      addBlock(places);
    }
    storeKeys();
  }
}

template <typename T>
void runHeads(const AttentionGrad &work, int64_t begin, int64_t end, void *numbers,
              int64_t *places) {
  Head<T> state(work, static_cast<T *>(numbers), places);
  for (int64_t head = begin; head < end; ++head)
    state.run(head);
}

} // namespace

void meshwright::rt::MESHWRIGHT_ATTENTION_GRAD(const AttentionGrad &work, int64_t begin,
                                               int64_t end, void *numbers, int64_t *places) {
  if (work.what.dtype == MW_F64)
    return runHeads<double>(work, begin, end, numbers, places);
  runHeads<float>(work, begin, end, numbers, places);
}
