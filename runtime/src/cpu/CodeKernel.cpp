//===- CodeKernel.cpp - weights of codes, in vectors ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MESHWRIGHT_CODES names the function that is compiled, MESHWRIGHT_VECTOR the bytes of a vector.
//
// Codes are widened by way of f16, which has the bits of E4M3 and E5M2 as its own, or by a table of 16 bytes. The
// constant factor that is left is part of the scale. A sum is taken in each lane of two vectors, block by
// block, so its order depends on the instruction set and on nothing else.
//
//===----------------------------------------------------------------------===//

#include "CodeKernel.h"

#if MESHWRIGHT_VECTOR > 16
#include <immintrin.h>
#endif

using namespace meshwright::rt;

namespace {

#if MESHWRIGHT_VECTOR == 64
using Floats = __m512;
using Halves = __m512i;
constexpr int64_t kLanes = 16;

Floats load(const float *from) { return _mm512_loadu_ps(from); }
void store(float *to, Floats x) { _mm512_storeu_ps(to, x); }
Floats fill(float x) { return _mm512_set1_ps(x); }
Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
Floats multiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
Floats plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }

Floats firstHalf(Halves x) { return _mm512_cvtph_ps(_mm512_castsi512_si256(x)); }
Floats secondHalf(Halves x) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)); }
Halves loadE4M3(const uint8_t *codes) {
  Halves wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes)));
  return _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(short(0xbf80)));
}
Halves loadE5M2(const uint8_t *codes) {
  Halves wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes)));
  return _mm512_slli_epi16(wide, 8);
}
using Bytes = __m256i;
Bytes noBytes() { return _mm256_setzero_si256(); }
/// The larger ones of `most` and the magnitudes of codes.
Bytes getLarger(Bytes most, const uint8_t *codes) {
  Bytes bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(codes));
  return _mm256_max_epu8(most, _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f)));
}
bool haveByte(Bytes bytes, uint8_t byte) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(char(byte))));
}

Floats fromBytes(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
__m128i loadBytes(const uint8_t *codes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
}
/// The numbers of the low halves of kLanes bytes, and of the high ones. A permutation reads four bits.
void loadE2M1(const uint8_t *codes, Floats &even, Floats &odd) {
  const Floats numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
  __m512i bytes = _mm512_cvtepu8_epi32(loadBytes(codes));
  even = _mm512_permutexvar_ps(bytes, numbers);
  odd = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), numbers);
}
void interleave(Floats even, Floats odd, Floats &first, Floats &second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  first = _mm512_permutex2var_ps(even, low, odd);
  second = _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd);
}
#elif MESHWRIGHT_VECTOR == 32
using Floats = __m256;
using Halves = __m256i;
constexpr int64_t kLanes = 8;

Floats load(const float *from) { return _mm256_loadu_ps(from); }
void store(float *to, Floats x) { _mm256_storeu_ps(to, x); }
Floats fill(float x) { return _mm256_set1_ps(x); }
Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
Floats multiplyAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
Floats plus(Floats a, Floats b) { return _mm256_add_ps(a, b); }

Floats firstHalf(Halves x) { return _mm256_cvtph_ps(_mm256_castsi256_si128(x)); }
Floats secondHalf(Halves x) { return _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)); }
Halves loadE4M3(const uint8_t *codes) {
  Halves wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
  return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(short(0xbf80)));
}
Halves loadE5M2(const uint8_t *codes) {
  Halves wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(codes)));
  return _mm256_slli_epi16(wide, 8);
}
using Bytes = __m128i;
Bytes noBytes() { return _mm_setzero_si128(); }
/// The larger ones of `most` and the magnitudes of codes.
Bytes getLarger(Bytes most, const uint8_t *codes) {
  Bytes bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(codes));
  return _mm_max_epu8(most, _mm_and_si128(bytes, _mm_set1_epi8(0x7f)));
}
bool haveByte(Bytes bytes, uint8_t byte) {
  return _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(char(byte))));
}

Floats fromBytes(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
__m128i loadBytes(const uint8_t *codes) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(codes));
}
/// The numbers of the low halves of kLanes bytes, and of the high ones.
void loadE2M1(const uint8_t *codes, Floats &even, Floats &odd) {
  const __m128i numbers = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i mask = _mm_set1_epi8(15);
  __m128i bytes = loadBytes(codes);
  __m128i low = _mm_and_si128(bytes, mask), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  even = fromBytes(_mm_shuffle_epi8(numbers, low));
  odd = fromBytes(_mm_shuffle_epi8(numbers, high));
}
void interleave(Floats even, Floats odd, Floats &first, Floats &second) {
  Floats low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  first = _mm256_permute2f128_ps(low, high, 0x20);
  second = _mm256_permute2f128_ps(low, high, 0x31);
}
#else
constexpr int64_t kLanes = 0;
#endif

#if MESHWRIGHT_VECTOR > 16
constexpr int64_t kStep = 2 * kLanes;

/// The magnitude of NaN in E4M3, which `widen` does not know.
constexpr uint8_t kNaN = 0x7f;

/// Twice kLanes codes, the first ones in the first vector; of E2M1 the even ones.
struct Pair {
  Floats first, second;
};

template <CodeKind Kind> Pair widen(const uint8_t *codes) {
  if constexpr (Kind == CodeKind::E4M3 || Kind == CodeKind::E5M2) {
    Halves halves = Kind == CodeKind::E4M3 ? loadE4M3(codes) : loadE5M2(codes);
    return {firstHalf(halves), secondHalf(halves)};
  } else if constexpr (Kind == CodeKind::I8) {
    return {fromBytes(loadBytes(codes)), fromBytes(loadBytes(codes + kLanes))};
  } else {
    Pair pair;
    loadE2M1(codes, pair.first, pair.second);
    return pair;
  }
}

/// The number of a code over that of `widen`.
template <CodeKind Kind>
constexpr float kFactor = Kind == CodeKind::E4M3   ? 256.0f
                          : Kind == CodeKind::E2M1 ? 0.5f
                                                   : 1.0f;

float sum(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i)
      lanes[i] += lanes[i + width];
  return lanes[0];
}
#endif

template <CodeKind Kind> constexpr int64_t kPerByte = Kind == CodeKind::E2M1 ? 2 : 1;

template <CodeKind Kind> float getNumber(const CodeRows &what, const uint8_t *codes, int64_t column) {
  if constexpr (Kind == CodeKind::E2M1)
    return what.numbers[codes[column / 2] >> (column % 2 * 4) & 15];
  return what.numbers[codes[column]];
}

template <CodeKind Kind> const uint8_t *getRow(const CodeRows &what, int64_t row) {
  return what.codes + row * what.columns / kPerByte<Kind>;
}

/// A sum waits for the one before it: in a long block `Turns` sums take turns.
template <CodeKind Kind, int Rows, int Turns>
void dotRows(const CodeRows &what, int64_t row, const float *scales, const float *a,
             const float *pairs, float *c) {
  const uint8_t *codes = getRow<Kind>(what, row);
  float rest[Rows] = {};
#if MESHWRIGHT_VECTOR > 16
  const float *read = Kind == CodeKind::E2M1 ? pairs : a;
  Bytes most = noBytes();
  Floats total[2][Rows];
  for (int i = 0; i < Rows; ++i)
    total[0][i] = total[1][i] = fill(0);
  auto addStep = [&](int64_t k, Floats (&first)[Rows], Floats (&second)[Rows]) {
    const uint8_t *from = codes + k / kPerByte<Kind>;
    Pair numbers = widen<Kind>(from);
    if (Kind == CodeKind::E4M3)
      most = getLarger(most, from);
    for (int i = 0; i < Rows; ++i) {
      first[i] = multiplyAdd(numbers.first, load(read + i * what.columns + k), first[i]);
      second[i] = multiplyAdd(numbers.second, load(read + i * what.columns + k + kLanes), second[i]);
    }
  };
#endif
  int64_t k = 0;
  for (int64_t block = 0; k < what.columns; ++block) {
    int64_t end = k + what.block < what.columns ? k + what.block : what.columns;
    float scale = scales[block];
#if MESHWRIGHT_VECTOR > 16
    // Pairs are those of whole steps from the first column on.
    if (Kind != CodeKind::E2M1 || k % kStep == 0) {
      Floats first[Turns][Rows], second[Turns][Rows];
      for (int turn = 0; turn < Turns; ++turn)
        for (int i = 0; i < Rows; ++i)
          first[turn][i] = second[turn][i] = fill(0);
      for (; k + Turns * kStep <= end; k += Turns * kStep)
        for (int turn = 0; turn < Turns; ++turn)
          addStep(k + turn * kStep, first[turn], second[turn]);
      for (; k + kStep <= end; k += kStep)
        addStep(k, first[0], second[0]);
      Floats factor = fill(scale * kFactor<Kind>);
      for (int i = 0; i < Rows; ++i) {
        Floats sum = plus(first[0][i], second[0][i]);
        for (int turn = 1; turn < Turns; ++turn)
          sum = plus(sum, plus(first[turn][i], second[turn][i]));
        Floats next = multiplyAdd(sum, factor, total[1][i]);
        total[1][i] = total[0][i];
        total[0][i] = next;
      }
    }
#endif
    if (k == end)
      continue;
    float own[Rows] = {};
    for (; k < end; ++k) {
      float number = getNumber<Kind>(what, codes, k);
      for (int i = 0; i < Rows; ++i)
        own[i] += number * a[i * what.columns + k];
    }
    for (int i = 0; i < Rows; ++i)
      rest[i] += own[i] * scale;
  }
  for (int i = 0; i < Rows; ++i) {
#if MESHWRIGHT_VECTOR > 16
    rest[i] += sum(plus(total[0][i], total[1][i]));
    if (Kind == CodeKind::E4M3 && haveByte(most, kNaN))
      rest[i] = what.numbers[kNaN];
#endif
    c[i] = rest[i];
  }
}

#if MESHWRIGHT_VECTOR > 16
/// The same where each block is one step, and the last one is whole.
template <CodeKind Kind, int Rows>
void dotSteps(const CodeRows &what, int64_t row, const float *scales, const float *a, float *c) {
  const uint8_t *codes = getRow<Kind>(what, row);
  Floats total[2][Rows];
  for (int i = 0; i < Rows; ++i)
    total[0][i] = total[1][i] = fill(0);
  auto addBlock = [&](int64_t block, Floats (&to)[Rows]) {
    int64_t k = block * kStep;
    Pair numbers = widen<Kind>(codes + k / kPerByte<Kind>);
    Floats scale = fill(scales[block]);
    for (int i = 0; i < Rows; ++i) {
      Floats term = multiply(numbers.first, load(a + i * what.columns + k));
      term = multiplyAdd(numbers.second, load(a + i * what.columns + k + kLanes), term);
      to[i] = multiplyAdd(term, scale, to[i]);
    }
  };
  int64_t blocks = what.columns / kStep, block = 0;
  for (; block + 2 <= blocks; block += 2) {
    addBlock(block, total[0]);
    addBlock(block + 1, total[1]);
  }
  if (block < blocks)
    addBlock(block, total[0]);
  for (int i = 0; i < Rows; ++i)
    c[i] = sum(plus(total[0][i], total[1][i])) * kFactor<Kind>;
}
#endif

template <CodeKind Kind>
void dotKind(const CodeRows &what, int64_t row, const float *scales, const float *a,
             const float *pairs, int64_t rows, float *c) {
  constexpr int64_t kLong = kLanes * 8;
#if MESHWRIGHT_VECTOR > 16
  if (Kind == CodeKind::E2M1 && what.block == kStep && what.columns % kStep == 0) {
    switch (rows) {
    case 1:
      return dotSteps<Kind, 1>(what, row, scales, pairs, c);
    case 2:
      return dotSteps<Kind, 2>(what, row, scales, pairs, c);
    case 3:
      return dotSteps<Kind, 3>(what, row, scales, pairs, c);
    default:
      return dotSteps<Kind, 4>(what, row, scales, pairs, c);
    }
  }
#endif
  switch (rows) {
  case 1:
    return what.block >= kLong ? dotRows<Kind, 1, 4>(what, row, scales, a, pairs, c)
                               : dotRows<Kind, 1, 1>(what, row, scales, a, pairs, c);
  case 2:
    return what.block >= kLong ? dotRows<Kind, 2, 2>(what, row, scales, a, pairs, c)
                               : dotRows<Kind, 2, 1>(what, row, scales, a, pairs, c);
  case 3:
    return dotRows<Kind, 3, 1>(what, row, scales, a, pairs, c);
  default:
    return dotRows<Kind, 4, 1>(what, row, scales, a, pairs, c);
  }
}

template <CodeKind Kind>
void decodeKind(const CodeRows &what, int64_t row, const float *scales, int64_t column,
                int64_t count, float *to) {
  const uint8_t *codes = getRow<Kind>(what, row);
  int64_t last = column + count, next = column / what.block * what.block;
  for (int64_t k = column; k < last; ++scales) {
    next += what.block;
    int64_t end = next < last ? next : last;
#if MESHWRIGHT_VECTOR > 16
    Floats factor = fill(*scales * kFactor<Kind>);
    // The first code of a step is an even one, whose byte it begins.
    for (; k % kPerByte<Kind> == 0 && k + kStep <= end; k += kStep) {
      if (Kind == CodeKind::E4M3 && haveByte(getLarger(noBytes(), codes + k), kNaN))
        break;
      Pair numbers = widen<Kind>(codes + k / kPerByte<Kind>);
      if constexpr (Kind == CodeKind::E2M1)
        interleave(numbers.first, numbers.second, numbers.first, numbers.second);
      store(to + (k - column), multiply(numbers.first, factor));
      store(to + (k - column) + kLanes, multiply(numbers.second, factor));
    }
#endif
    for (; k < end; ++k)
      to[k - column] = getNumber<Kind>(what, codes, k) * *scales;
  }
}

void dot(const CodeRows &what, int64_t row, const float *scales, const float *a, const float *pairs,
         int64_t rows, float *c) {
  switch (what.format) {
  case CodeKind::E4M3:
    return dotKind<CodeKind::E4M3>(what, row, scales, a, pairs, rows, c);
  case CodeKind::E5M2:
    return dotKind<CodeKind::E5M2>(what, row, scales, a, pairs, rows, c);
  case CodeKind::I8:
    return dotKind<CodeKind::I8>(what, row, scales, a, pairs, rows, c);
  case CodeKind::E2M1:
    return dotKind<CodeKind::E2M1>(what, row, scales, a, pairs, rows, c);
  }
}

void decode(const CodeRows &what, int64_t row, const float *scales, int64_t column, int64_t count,
            float *to) {
  switch (what.format) {
  case CodeKind::E4M3:
    return decodeKind<CodeKind::E4M3>(what, row, scales, column, count, to);
  case CodeKind::E5M2:
    return decodeKind<CodeKind::E5M2>(what, row, scales, column, count, to);
  case CodeKind::I8:
    return decodeKind<CodeKind::I8>(what, row, scales, column, count, to);
  case CodeKind::E2M1:
    return decodeKind<CodeKind::E2M1>(what, row, scales, column, count, to);
  }
}

/// 2^(code - 127), and NaN for 255. Code 0 is the only one of a number without a leading bit.
uint32_t getPower(uint32_t code) {
  uint32_t bits = code << 23;
  bits = bits < 0x00400000 ? 0x00400000 : bits;
  return code == 255 ? 0x7fc00000 : bits;
}

void widenPowers(const uint8_t *__restrict codes, int64_t count, float *__restrict to) {
  // The codes behind these are asked for: between the reads of two pieces memory is read elsewhere.
  constexpr int64_t kLine = 64, kAhead = 4096;
  int64_t whole = count / kLine * kLine;
  uint32_t bits[kLine];
  for (int64_t at = 0; at < whole; at += kLine) {
    __builtin_prefetch(codes + at + kAhead);
    for (int64_t i = 0; i < kLine; ++i)
      bits[i] = getPower(codes[at + i]);
    __builtin_memcpy(to + at, bits, sizeof(bits));
  }
  for (int64_t at = whole; at < count; ++at) {
    uint32_t rest = getPower(codes[at]);
    __builtin_memcpy(to + at, &rest, sizeof(rest));
  }
}

[[maybe_unused]] void roundBf16(const float *from, int64_t count, uint16_t *to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, from + i, sizeof(bits));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    to[i] = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
}

//===----------------------------------------------------------------------===//
// Transposition
//===----------------------------------------------------------------------===//

using Ints = uint32_t __attribute__((vector_size(MESHWRIGHT_VECTOR)));
constexpr int kSide = MESHWRIGHT_VECTOR / 4;

template <int... Lane> struct Lanes {};
template <int Count, int... Lane> struct MakeLanes : MakeLanes<Count - 1, Count - 1, Lane...> {};
template <int... Lane> struct MakeLanes<0, Lane...> { using Type = Lanes<Lane...>; };

/// Exchanges the squares of `Half` words beside the diagonal of each square of twice as many.
template <int Half, int... Lane> void exchange(Ints (&rows)[kSide], Lanes<Lane...>) {
  for (int i = 0; i < kSide; ++i) {
    if (i & Half)
      continue;
    Ints a = rows[i], b = rows[i + Half];
    rows[i] = __builtin_shufflevector(a, b, (Lane & Half ? kSide + Lane - Half : Lane)...);
    rows[i + Half] = __builtin_shufflevector(a, b, (Lane & Half ? kSide + Lane : Lane + Half)...);
  }
}

template <int Half> void turnSquare(Ints (&rows)[kSide]) {
  exchange<Half>(rows, typename MakeLanes<kSide>::Type());
  if constexpr (Half > 1)
    turnSquare<Half / 2>(rows);
}

void turnWords(const uint32_t *from, int64_t rows, int64_t columns, uint32_t *to) {
  int64_t row = 0;
  for (; row + kSide <= rows; row += kSide) {
    int64_t column = 0;
    for (; column + kSide <= columns; column += kSide) {
      Ints square[kSide];
      for (int i = 0; i < kSide; ++i)
        __builtin_memcpy(&square[i], from + (row + i) * columns + column, sizeof(Ints));
      turnSquare<kSide / 2>(square);
      for (int i = 0; i < kSide; ++i)
        __builtin_memcpy(to + (column + i) * kTurnStride + row, &square[i], sizeof(Ints));
    }
    for (; column < columns; ++column)
      for (int i = 0; i < kSide; ++i)
        to[column * kTurnStride + row + i] = from[(row + i) * columns + column];
  }
  for (; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      to[column * kTurnStride + row] = from[row * columns + column];
}

} // namespace

namespace meshwright::rt {
CodeKernels MESHWRIGHT_CODES() {
#ifdef __AVX512BF16__
  return {dot, decode, widenPowers, roundCodesBf16, dotCodesBf16, orderCodesBf16, turnWords, kLanes};
#else
  return {dot, decode, widenPowers, roundBf16, nullptr, nullptr, turnWords, kLanes};
#endif
}
} // namespace meshwright::rt
