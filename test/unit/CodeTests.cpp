//===- CodeTests.cpp - products of stored weights -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernels of each instruction set that this processor has, and products by the library whose columns
// are decoded to panels.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/src/cpu/Codes.h"
#include "meshwright/runtime/src/cpu/Gemm.h"
#include "meshwright/runtime/src/cpu/StoredColumns.h"
#include "meshwright/runtime/src/cpu/Workers.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

using namespace meshwright::rt;

namespace {

std::vector<float> draw(int64_t count, int seed, float least = -1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(least, 1);
  std::vector<float> values(count);
  for (float &value : values)
    value = uniform(random);
  return values;
}

std::vector<uint16_t> roundAll(const std::vector<float> &values) {
  std::vector<uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), floatToBf16);
  return rounded;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

class CodeKernelTest : public ::testing::TestWithParam<int> {
protected:
  void SetUp() override {
    bool isSupported = GetParam() == 0;
#ifdef __x86_64__
    bool has512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl");
    if (GetParam() == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
      isSupported = true, kernels = getCodesAvx2();
    if (GetParam() == 2 && has512)
      isSupported = true, kernels = getCodesAvx512();
    if (GetParam() == 3 && has512 && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bf16"))
      isSupported = true, kernels = getCodesAvx512Bf16();
#endif
    if (!isSupported)
      GTEST_SKIP() << "this processor lacks the instructions";
  }
  CodeKernels kernels = getCodesBaseline();
};

/// Codes of two rows, their scales, and the numbers that they stand for.
struct Matrix {
  Matrix(CodeKind kind, int64_t columns, int64_t block, int seed)
      : blocks((columns + block - 1) / block), bytes(2 * columns / (kind == CodeKind::E2M1 ? 2 : 1)),
        scales(draw(2 * blocks, seed, 0.5f)) {
    std::mt19937 random(seed);
    for (uint8_t &byte : bytes) {
      byte = uint8_t(random());
      if ((kind == CodeKind::E4M3 && (byte & 0x7f) == 0x7f) || (kind == CodeKind::E5M2 && (byte & 0x7f) > 0x7b))
        byte = 1;
    }
    // The least number of int8, which has no opposite.
    bytes[bytes.size() / 2] = 0x80;
    codes = getCodeRows(kind, columns, block, bytes.data());
  }
  float getNumber(int64_t row, int64_t k) const {
    int64_t at = row * codes.columns + k;
    if (codes.format == CodeKind::E2M1)
      return codes.numbers[bytes[at / 2] >> (at % 2 * 4) & 15];
    return codes.numbers[bytes[at]];
  }
  float getScale(int64_t row, int64_t k) const { return scales[row * blocks + k / codes.block]; }

  int64_t blocks;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  CodeRows codes;
};

/// Sums of products in f64, and the sums of their magnitudes.
void expectSums(const Matrix &matrix, int64_t row, const std::vector<float> &a, int64_t rows, const float *sums) {
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0, all = 0;
    for (int64_t k = 0; k < matrix.codes.columns; ++k) {
      double term = double(a[i * matrix.codes.columns + k]) * matrix.getNumber(row, k) * matrix.getScale(row, k);
      sum += term;
      all += std::abs(term);
    }
    ASSERT_NEAR(sums[i], sum, all * 1e-6) << "row " << i << " of " << rows;
  }
}

/// As kernels for E2M1 read rows.
std::vector<float> pairColumns(const std::vector<float> &a, int64_t columns, int64_t lanes) {
  std::vector<float> pairs = a;
  for (size_t row = 0; row < a.size(); row += columns)
    for (int64_t k = 0; lanes && k + 2 * lanes <= columns; k += 2 * lanes)
      for (int64_t i = 0; i < 2 * lanes; ++i)
        pairs[row + k + i] = a[row + k + (i < lanes ? 2 * i : 2 * (i - lanes) + 1)];
  return pairs;
}

template <typename Visit> void forMatrices(Visit visit) {
  for (CodeKind kind : {CodeKind::E4M3, CodeKind::E5M2, CodeKind::I8, CodeKind::E2M1})
    for (int64_t columns : {2, 32, 96, 128, 640, 1282})
      for (int64_t block : {16, 32, 64, 128, 512, 2000}) {
        SCOPED_TRACE("kind " + std::to_string(int(kind)) + ", " + std::to_string(columns) + " columns in blocks of " +
                     std::to_string(block));
        visit(Matrix(kind, columns, std::min(block, columns), int(columns + block)));
      }
}

TEST_P(CodeKernelTest, SumsProducts) {
  forMatrices([&](const Matrix &matrix) {
    int64_t columns = matrix.codes.columns;
    std::vector<float> a = draw(kMostCodeRows * columns, 5), pairs = pairColumns(a, columns, kernels.lanes);
    for (int64_t rows = 1; rows <= kMostCodeRows; ++rows) {
      float sums[kMostCodeRows];
      kernels.dot(matrix.codes, 1, matrix.scales.data() + matrix.blocks, a.data(), pairs.data(), rows, sums);
      expectSums(matrix, 1, a, rows, sums);
    }
  });
}

TEST_P(CodeKernelTest, SumsProductsOfBf16) {
  if (!kernels.dotBf16)
    GTEST_SKIP() << "there are no products of bf16";
  int products = 0;
  forMatrices([&](const Matrix &matrix) {
    int64_t columns = matrix.codes.columns;
    std::vector<uint16_t> a = roundAll(draw(kMostCodeRows * columns, 5)), ordered(a.size());
    std::vector<float> wide(a.size());
    std::transform(a.begin(), a.end(), wide.begin(), bf16ToFloat);
    if (!multipliesBf16(matrix.codes))
      return;
    for (int64_t row = 0; row < kMostCodeRows; ++row)
      kernels.orderBf16(matrix.codes, a.data() + row * columns, ordered.data() + row * columns);
    for (int64_t rows = 1; rows <= kMostCodeRows; ++rows, ++products) {
      float sums[kMostCodeRows];
      kernels.dotBf16(matrix.codes, 1, matrix.scales.data() + matrix.blocks, ordered.data(), rows, sums);
      expectSums(matrix, 1, wide, rows, sums);
    }
  });
  EXPECT_GT(products, 40);
}

TEST_P(CodeKernelTest, ANumberThatIsNoneMakesNone) {
  Matrix matrix(CodeKind::E4M3, 640, 128, 1);
  for (uint8_t code : {0x7f, 0xff}) {
    matrix.bytes[640 + 300] = code;
    std::vector<float> a = draw(640, 5);
    std::vector<uint16_t> rounded = roundAll(a), ordered(640);
    float sum = 0;
    kernels.dot(matrix.codes, 1, matrix.scales.data() + 5, a.data(), nullptr, 1, &sum);
    EXPECT_TRUE(std::isnan(sum));
    if (kernels.dotBf16) {
      kernels.orderBf16(matrix.codes, rounded.data(), ordered.data());
      kernels.dotBf16(matrix.codes, 1, matrix.scales.data() + 5, ordered.data(), 1, &sum);
      EXPECT_TRUE(std::isnan(sum));
    }
  }
}

TEST_P(CodeKernelTest, DecodesPartsOfRows) {
  forMatrices([&](const Matrix &matrix) {
    for (int64_t first : {0, 30, 600})
      for (int64_t last : {2, 90, 640, 1282}) {
        last = std::min(last, matrix.codes.columns);
        if (first >= last)
          continue;
        std::vector<float> numbers(last - first);
        const float *scales = matrix.scales.data() + matrix.blocks + first / matrix.codes.block;
        kernels.decode(matrix.codes, 1, scales, first, last - first, numbers.data());
        for (int64_t k = first; k < last; ++k)
          ASSERT_EQ(numbers[k - first], matrix.getNumber(1, k) * matrix.getScale(1, k)) << "at column " << k;
      }
  });
}

TEST_P(CodeKernelTest, WidensPowersAndRounds) {
  std::vector<uint8_t> codes(300);
  std::vector<float> powers(300), values = draw(300, 3);
  for (int i = 0; i < 300; ++i)
    codes[i] = uint8_t(i);
  kernels.widenPowers(codes.data(), 300, powers.data());
  for (int i = 0; i < 300; ++i) {
    if (codes[i] == 255)
      EXPECT_TRUE(std::isnan(powers[i]));
    else
      EXPECT_EQ(powers[i], std::ldexp(1.0f, codes[i] - 127));
  }
  values[7] = std::nanf("");
  values[8] = 1 + std::ldexp(1.0f, -8);
  std::vector<uint16_t> rounded(300);
  kernels.roundBf16(values.data(), 300, rounded.data());
  EXPECT_EQ(rounded, roundAll(values));
}

TEST_P(CodeKernelTest, TurnsWords) {
  for (int64_t rows : {1, 3, 4, 8, 11, 16})
    for (int64_t columns : {1, 4, 7, 16, 50}) {
      std::vector<uint32_t> from(rows * columns), to(columns * kTurnStride, 0);
      for (size_t i = 0; i < from.size(); ++i)
        from[i] = uint32_t(i + 1);
      kernels.turn(from.data(), rows, columns, to.data());
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t i = 0; i < kTurnStride; ++i)
          ASSERT_EQ(to[j * kTurnStride + i], i < rows ? from[i * columns + j] : 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Sets, CodeKernelTest, ::testing::Range(0, 4));

//===----------------------------------------------------------------------===//
// Panels
//===----------------------------------------------------------------------===//

/// A matrix of floats, of so many columns.
class Floats final : public StoredMatrix {
public:
  Floats(int64_t rows, int64_t columns) : columns(columns), values(draw(rows * columns, 9)) {
    for (float &value : values)
      value = bf16ToFloat(floatToBf16(value));
  }
  void decode(const FormBlock &block, DType type, void *to) const override {
    for (int64_t i = 0, at = 0; i < block.rows; ++i)
      for (int64_t j = 0; j < block.columns; ++j, ++at) {
        float value = values[(block.row + i) * columns + block.column + j];
        if (type == DType::BF16)
          static_cast<uint16_t *>(to)[at] = floatToBf16(value);
        else
          static_cast<float *>(to)[at] = value;
      }
  }
  /// Row k and column j of b, which is stored as it is or transposed.
  float get(bool transposed, int64_t k, int64_t j) const {
    return values[transposed ? j * columns + k : k * columns + j];
  }

private:
  int64_t columns;
  std::vector<float> values;
};

TEST(PanelTest, HoldsColumnsAndZeros) {
  for (DType type : {DType::F32, DType::BF16})
    for (bool transposed : {false, true})
      for (int64_t k : {1, 32, 515, 1100})
        for (int64_t columns : {10, 64, 150}) {
          int64_t first = 3, all = columns + 5, group = getPanelGroup(type), size = sizeOf(type);
          Floats b(transposed ? all : k, transposed ? k : all);
          std::vector<char> panels(sizeOfPanels(type, k, columns), 1), piece(kPieceBytes);
          decodePanels(b, transposed, type, k, first, columns, panels.data(), piece.data());
          int64_t steps = (k + 16 * group - 1) / (16 * group) * 16, at = 0;
          ASSERT_EQ(int64_t(panels.size()), (columns + 63) / 64 * steps * 64 * group * size);
          for (int64_t panel = 0; panel < columns; panel += kPanelColumns)
            for (int64_t step = 0; step < steps; ++step)
              for (int64_t column = panel; column < panel + kPanelColumns; ++column)
                for (int64_t row = step * group; row < (step + 1) * group; ++row, at += size) {
                  float value = row < k && column < columns ? b.get(transposed, row, first + column) : 0, got = 0;
                  uint16_t half = 0;
                  std::memcpy(type == DType::BF16 ? static_cast<void *>(&half) : &got, &panels[at], size);
                  ASSERT_EQ(type == DType::BF16 ? bf16ToFloat(half) : got, value)
                      << "row " << row << ", column " << column;
                }
        }
}

/// Multiplies `m` rows by a stored matrix, and compares with sums of f64. Returns the bits of the result.
std::vector<uint32_t> checkProduct(DType type, bool transposed, bool hasBias, int64_t m, int64_t n, int64_t k,
                                   int64_t threads) {
  Floats b(transposed ? n : k, transposed ? k : n);
  std::vector<float> a = draw(m * k, 1), bias = draw(n, 2), c(m * n, -1);
  std::vector<uint16_t> narrowA = roundAll(a), narrowBias = roundAll(bias);
  if (type == DType::BF16) {
    std::transform(narrowA.begin(), narrowA.end(), a.begin(), bf16ToFloat);
    std::transform(narrowBias.begin(), narrowBias.end(), bias.begin(), bf16ToFloat);
  }
  mw_rt_gemm what = {};
  what.call.kind = MW_RT_CALL_GEMM;
  what.dtype = int64_t(type);
  what.result = MW_F32;
  what.m = m;
  what.n = n;
  what.k = k;
  what.transpose_b = transposed;
  auto pick = [&](std::vector<float> &wide, std::vector<uint16_t> &narrow) -> const void * {
    return type == DType::BF16 ? static_cast<const void *>(narrow.data()) : wide.data();
  };
  Workers workers(0, threads);
  Gemm gemm;
  std::string error;
  EXPECT_TRUE(gemm.multiply(what, pick(a, narrowA), nullptr, hasBias ? pick(bias, narrowBias) : nullptr, c.data(),
                            workers, error, &b))
      << error;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = hasBias ? bias[j] : 0;
      for (int64_t row = 0; row < k; ++row)
        sum += double(a[i * k + row]) * b.get(transposed, row, j);
      if (std::abs(c[i * n + j] - sum) > 1e-5 * k) {
        ADD_FAILURE() << "row " << i << ", column " << j << ": expected " << sum << ", got " << c[i * n + j];
        return {};
      }
    }
  std::vector<uint32_t> bits(c.size());
  std::memcpy(bits.data(), c.data(), c.size() * sizeof(float));
  return bits;
}

TEST(PanelTest, ProductsReadPanels) {
  for (DType type : {DType::F32, DType::BF16})
    for (bool transposed : {false, true})
      for (bool hasBias : {false, true})
        for (int64_t n : {16, 200, 1100}) {
          SCOPED_TRACE("n = " + std::to_string(n));
          auto alone = checkProduct(type, transposed, hasBias, 20, n, 259, 1);
          EXPECT_EQ(alone, checkProduct(type, transposed, hasBias, 20, n, 259, 2));
        }
}

} // namespace
