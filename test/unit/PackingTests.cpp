//===- PackingTests.cpp - parameters as kernels read them -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Packing.h"

#include "gtest/gtest.h"

#include <sys/resource.h>
#include <vector>

using namespace meshwright::rt;

namespace {

template <typename T> void check(mw_rt_packing what) {
  std::vector<T> matrix(what.k * what.n);
  for (size_t i = 0; i < matrix.size(); ++i)
    matrix[i] = T(i + 1);
  int64_t panels = (what.n + what.panel - 1) / what.panel;
  int64_t steps = ((what.k + what.group - 1) / what.group + 3) / 4 * 4;
  ASSERT_EQ(packedPanels(what), panels);
  ASSERT_EQ(sizeOfPacked(what), panels * steps * what.panel * what.group * int64_t(sizeof(T)));
  std::vector<T> packed(sizeOfPacked(what) / sizeof(T), T(-1)), inParts = packed;
  pack(what, matrix.data(), packed.data(), 3);
  for (int64_t panel = 0; panel < panels; ++panel)
    packPanels(what, matrix.data(), inParts.data(), panel, panel + 1);
  EXPECT_EQ(packed, inParts);
  size_t at = 0;
  for (int64_t panel = 0; panel < panels; ++panel)
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t column = 0; column < what.panel; ++column)
        for (int64_t g = 0; g < what.group; ++g) {
          int64_t k = step * what.group + g, n = panel * what.panel + column;
          T expected = 0;
          if (k < what.k && n < what.n)
            expected = matrix[what.transposed ? n * what.k + k : k * what.n + n];
          ASSERT_EQ(packed[at++], expected) << "at k " << k << ", n " << n;
        }
}

TEST(PackingTest, NeedsNoThreads) {
  mw_rt_packing what = {MW_F32, MW_F32, 1024, 1024, 0, 32, 1};
  std::vector<uint32_t> matrix(1 << 20, 7), packed(sizeOfPacked(what) / 4, 1);
  EXPECT_EXIT(
      {
        rlimit none;
        none.rlim_cur = none.rlim_max = 1;
        setrlimit(RLIMIT_NPROC, &none);
        pack(what, matrix.data(), packed.data(), 4);
        std::exit(packed == matrix ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(PackingTest, PanelsHoldTheMatrixAndZeros) {
  for (int64_t transposed : {0, 1})
    for (auto [k, n] : {std::pair{1, 1}, {7, 31}, {64, 32}, {129, 65}, {18, 100}})
      for (int64_t panel : {16, 32}) {
        check<uint32_t>({MW_F32, MW_F32, k, n, transposed, panel, 1});
        check<uint16_t>({MW_BF16, MW_BF16, k, n, transposed, panel, 2});
      }
}

/// The panels of several matrices follow one another, with a cast and without one.
TEST(PackingTest, BatchOfMatrices) {
  for (int64_t stored : {MW_F32, MW_BF16})
    for (int64_t transposed : {0, 1}) {
      mw_rt_packing one = {stored, MW_BF16, 18, 100, transposed, 32, 2}, all = one;
      all.batch = 3;
      int64_t count = one.k * one.n, size = sizeOfPacked(one), panels = packedPanels(one);
      ASSERT_EQ(sizeOfPacked(all), 3 * size);
      ASSERT_EQ(packedPanels(all), 3 * panels);
      std::vector<float> floats(3 * count);
      std::vector<uint16_t> halves(3 * count);
      for (size_t i = 0; i < floats.size(); ++i)
        floats[i] = halves[i] = uint16_t(i % 251);
      const char *matrices = reinterpret_cast<const char *>(floats.data());
      if (stored == MW_BF16)
        matrices = reinterpret_cast<const char *>(halves.data());
      std::vector<char> expected(3 * size), whole(3 * size, char(-1)), inParts = whole;
      for (int64_t i = 0; i < 3; ++i)
        pack(one, matrices + i * count * (stored == MW_BF16 ? 2 : 4), expected.data() + i * size);
      pack(all, matrices, whole.data(), 3);
      for (int64_t panel = 0; panel < 3 * panels; panel += 5)
        packPanels(all, matrices, inParts.data(), panel, std::min(panel + 5, 3 * panels));
      EXPECT_EQ(whole, expected);
      EXPECT_EQ(inParts, expected);
    }
}

/// Threads share matrices of different sizes, and each is packed as by itself.
TEST(PackingTest, QueueOfSeveralMatrices) {
  const std::vector<mw_rt_packing> forms = {{MW_F32, MW_F32, 700, 900, 1, 32, 1},
                                            {MW_F32, MW_F32, 3, 5, 0, 16, 1},
                                            {MW_BF16, MW_BF16, 1500, 1111, 0, 32, 2},
                                            {MW_BF16, MW_BF16, 64, 2049, 1, 16, 2}};
  for (int threads : {0, 1, 2, 5}) {
    PackingQueue queue;
    std::vector<std::vector<uint16_t>> matrices, packed, expected;
    for (const mw_rt_packing &form : forms) {
      std::vector<uint16_t> &matrix =
          matrices.emplace_back(form.k * form.n * (form.dtype == MW_F32 ? 2 : 1));
      for (size_t i = 0; i < matrix.size(); ++i)
        matrix[i] = uint16_t(i * 7 + 1);
      packed.emplace_back(sizeOfPacked(form) / 2, 9);
      pack(form, matrix.data(), expected.emplace_back(sizeOfPacked(form) / 2, 3).data());
    }
    for (size_t i = 0; i < forms.size(); ++i)
      queue.add(forms[i], matrices[i].data(), packed[i].data());
    EXPECT_GT(queue.getBytes(), 4 << 20);
    queue.run(threads);
    EXPECT_EQ(queue.getBytes(), 0);
    EXPECT_EQ(packed, expected) << threads;
  }
}

TEST(PackingTest, SeveralThreadsPackLargeMatrices) {
  check<uint32_t>({MW_F32, MW_F32, 1025, 1030, 1, 32, 1});
  check<uint16_t>({MW_BF16, MW_BF16, 2049, 1030, 0, 32, 2});
}

/// A cast and a packing at once are the cast followed by the packing.
TEST(PackingTest, CastsBeforeItPacks) {
  for (int64_t transposed : {0, 1})
    for (auto [k, n] : {std::pair{1, 1}, {7, 31}, {129, 65}, {1500, 40}})
      for (int64_t panel : {0, 16, 32}) {
        std::vector<float> matrix(k * n);
        for (size_t i = 0; i < matrix.size(); ++i)
          matrix[i] = 1 + float(i) / 300;
        std::vector<uint16_t> narrowed(matrix.size());
        narrow(DType::BF16, matrix.data(), narrowed.data(), matrix.size());
        mw_rt_packing cast = {MW_F32, MW_BF16, k, n, transposed, panel, 2}, plain = cast;
        plain.stored = MW_BF16;
        ASSERT_EQ(sizeOfPacked(cast), sizeOfPacked(plain));
        std::vector<uint16_t> got(sizeOfPacked(cast) / 2, 9), expected = narrowed;
        if (panel) {
          expected.assign(got.size(), 3);
          pack(plain, narrowed.data(), expected.data());
        }
        pack(cast, matrix.data(), got.data(), 2);
        EXPECT_EQ(got, expected) << k << " x " << n << ", panels of " << panel;
        for (int64_t i = 0; i < packedPanels(cast); ++i)
          packPanels(cast, matrix.data(), expected.data(), i, i + 1);
        EXPECT_EQ(got, expected);
      }
}

} // namespace
