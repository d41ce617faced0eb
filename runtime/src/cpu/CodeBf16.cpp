//===- CodeBf16.cpp - products of codes and bf16 --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Codes become bf16 by tables, and pairs of bf16 are multiplied and added in one instruction. Rows of bf16
// have the order in which their partners leave the tables.
//
//===----------------------------------------------------------------------===//

#include "CodeKernel.h"

#include <immintrin.h>

using namespace meshwright::rt;

namespace {

using Floats = __m512;

/// Codes that are read at once: a vector of bytes.
constexpr int64_t kBytes = 64;
/// The numbers of a vector of bf16.
constexpr int64_t kWords = 32;
/// So many bytes ahead codes are asked for. The processor asks by itself within a page, which is often
/// one row; the next row follows.
constexpr int64_t kAhead = 8192;
/// Codes of a block up to which the sums of the blocks behind it fill the processor meanwhile.
constexpr int64_t kShortBlock = 256;

Floats addPairs(Floats sum, __m512i codes, const uint16_t *a) {
  return _mm512_dpbf16_ps(sum, (__m512bh)codes, (__m512bh)_mm512_loadu_si512(a));
}

float sumLanes(Floats x) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x),
                               _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

struct Words {
  __m512i first, second;
};

/// The numbers of 64 codes of 8 bits: of the bytes 0 to 7 of each 16, and then of 8 to 15.
template <CodeKind Kind> Words widenWords(const uint8_t *codes, const __m512i (&tables)[4]) {
  __m512i x = _mm512_loadu_si512(codes), sign = _mm512_set1_epi8(char(0x80));
  // A permutation reads seven bits.
  __m512i index = Kind == CodeKind::I8 ? _mm512_abs_epi8(x) : x;
  __m512i high = _mm512_permutex2var_epi8(tables[0], index, tables[1]);
  __m512i low = _mm512_permutex2var_epi8(tables[2], index, tables[3]);
  high = _mm512_ternarylogic_epi32(high, x, sign, 0xf8);
  // The magnitude of -128 has eight bits.
  if (Kind == CodeKind::I8)
    high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(x, sign), _mm512_set1_epi8(char(0xc3)));
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

/// A sum waits for the one before it: in a block `Turns` pairs of sums take turns.
template <CodeKind Kind, int Rows, int Turns>
void dotBytes(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, float *c) {
  const uint8_t *codes = what.codes + row * what.columns;
  const __m512i tables[4] = {
      _mm512_loadu_si512(what.halves), _mm512_loadu_si512(what.halves + kBytes),
      _mm512_loadu_si512(what.halves + 2 * kBytes), _mm512_loadu_si512(what.halves + 3 * kBytes)};
  Floats total[Rows];
  for (int i = 0; i < Rows; ++i)
    total[i] = _mm512_setzero_ps();
  for (int64_t k = 0, block = 0; k < what.columns; ++block) {
    int64_t end = k + what.block < what.columns ? k + what.block : what.columns;
    Floats first[Turns][Rows], second[Turns][Rows];
    for (int turn = 0; turn < Turns; ++turn)
      for (int i = 0; i < Rows; ++i)
        first[turn][i] = second[turn][i] = _mm512_setzero_ps();
    auto addBytes = [&](int turn) {
      __builtin_prefetch(codes + k + kAhead);
      Words words = widenWords<Kind>(codes + k, tables);
      for (int i = 0; i < Rows; ++i) {
        const uint16_t *read = a + i * what.columns + k;
        first[turn][i] = addPairs(first[turn][i], words.first, read);
        second[turn][i] = addPairs(second[turn][i], words.second, read + kWords);
      }
      k += kBytes;
    };
    while (k + Turns * kBytes <= end)
      for (int turn = 0; turn < Turns; ++turn)
        addBytes(turn);
    while (k < end)
      addBytes(0);
    Floats scale = _mm512_set1_ps(scales[block]);
    for (int i = 0; i < Rows; ++i) {
      Floats sum = _mm512_add_ps(first[0][i], second[0][i]);
      for (int turn = 1; turn < Turns; ++turn)
        sum = _mm512_add_ps(sum, _mm512_add_ps(first[turn][i], second[turn][i]));
      total[i] = _mm512_fmadd_ps(sum, scale, total[i]);
    }
  }
  for (int i = 0; i < Rows; ++i)
    c[i] = sumLanes(total[i]);
}

/// Codes of E2M1 in blocks of 32, which are 16 bytes: a part of a vector that sums keep apart.
template <int Rows>
void dotFours(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, float *c) {
  constexpr int64_t kFours = 2 * kBytes;
  const uint8_t *codes = what.codes + row * what.columns / 2;
  // Twice the numbers: a permutation reads five bits, of which the last one is the next code's.
  const __m512i numbers = _mm512_broadcast_i64x4(
      _mm256_loadu_si256(reinterpret_cast<const __m256i *>(what.halves)));
  const __m512i ofBlock = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  Floats total[Rows];
  for (int i = 0; i < Rows; ++i)
    total[i] = _mm512_setzero_ps();
  for (int64_t k = 0; k < what.columns; k += kFours) {
    __builtin_prefetch(codes + k / 2 + kAhead);
    __m512i x = _mm512_loadu_si512(codes + k / 2);
    const __m512i words[4] = {_mm512_permutexvar_epi16(x, numbers),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 4), numbers),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 8), numbers),
                              _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 12), numbers)};
    Floats scale = _mm512_permutexvar_ps(
        ofBlock, _mm512_castps128_ps512(_mm_loadu_ps(scales + k / 32)));
    for (int i = 0; i < Rows; ++i) {
      Floats sum = _mm512_setzero_ps();
      for (int part = 0; part < 4; ++part)
        sum = addPairs(sum, words[part], a + i * what.columns + k + part * kWords);
      total[i] = _mm512_fmadd_ps(sum, scale, total[i]);
    }
  }
  for (int i = 0; i < Rows; ++i)
    c[i] = sumLanes(total[i]);
}

template <CodeKind Kind, int Rows>
void dotBlocks(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, float *c) {
  if (what.block <= kShortBlock)
    return dotBytes<Kind, Rows, 1>(what, row, scales, a, c);
  dotBytes<Kind, Rows, 2>(what, row, scales, a, c);
}

template <int Rows>
void dotRows(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, float *c) {
  switch (what.format) {
  case CodeKind::E4M3:
    return dotBlocks<CodeKind::E4M3, Rows>(what, row, scales, a, c);
  case CodeKind::E5M2:
    return dotBlocks<CodeKind::E5M2, Rows>(what, row, scales, a, c);
  case CodeKind::I8:
    return dotBlocks<CodeKind::I8, Rows>(what, row, scales, a, c);
  case CodeKind::E2M1:
    return dotFours<Rows>(what, row, scales, a, c);
  }
}

} // namespace

namespace meshwright::rt {

void dotCodesBf16(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, int64_t rows,
                  float *c) {
  switch (rows) {
  case 1:
    return dotRows<1>(what, row, scales, a, c);
  case 2:
    return dotRows<2>(what, row, scales, a, c);
  case 3:
    return dotRows<3>(what, row, scales, a, c);
  default:
    return dotRows<4>(what, row, scales, a, c);
  }
}

void orderCodesBf16(const CodeRows &what, const uint16_t *a, uint16_t *to) {
  bool isFour = what.format == CodeKind::E2M1;
  int64_t codes = isFour ? 2 * kBytes : kBytes;
  for (int64_t k = 0; k < what.columns; k += codes, a += codes, to += codes) {
    if (isFour) {
      // Four codes share a word.
      for (int part = 0; part < 4; ++part)
        for (int i = 0; i < kWords; ++i)
          to[part * kWords + i] = a[4 * i + part];
      continue;
    }
    // The bytes 0 to 7 of each 16, and then 8 to 15.
    constexpr int64_t kHalf = 8;
    for (int64_t group = 0; group < kBytes / 16; ++group)
      for (int64_t half = 0; half < 2; ++half)
        __builtin_memcpy(to + half * kWords + group * kHalf, a + group * 16 + half * kHalf,
                         kHalf * sizeof(uint16_t));
  }
}

void roundCodesBf16(const float *from, int64_t count, uint16_t *to) {
  int64_t i = 0;
  for (; i + kWords <= count; i += kWords) {
    Floats first = _mm512_loadu_ps(from + i), second = _mm512_loadu_ps(from + i + kWords / 2);
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
  for (; i < count; i += kWords / 2) {
    auto some = __mmask16(count - i < kWords / 2 ? (1 << (count - i)) - 1 : 0xffff);
    __m256i half = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, from + i));
    _mm256_mask_storeu_epi16(to + i, some, half);
  }
}

} // namespace meshwright::rt
