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
  mw_rt_packing what = {MW_F32, 1024, 1024, 0, 32, 1};
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
        check<uint32_t>({MW_F32, k, n, transposed, panel, 1});
        check<uint16_t>({MW_BF16, k, n, transposed, panel, 2});
      }
}

TEST(PackingTest, SeveralThreadsPackLargeMatrices) {
  check<uint32_t>({MW_F32, 1025, 1030, 1, 32, 1});
  check<uint16_t>({MW_BF16, 2049, 1030, 0, 32, 2});
}

} // namespace
