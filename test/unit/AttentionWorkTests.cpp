//===- AttentionWorkTests.cpp - pairs that a mask lets meet ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/AttentionWork.h"
#include "meshwright/lib/Placement/RingSteps.h"

#include <gtest/gtest.h>

#include <numeric>

using namespace meshwright;
using dist::LayoutFactor;

namespace {

LayoutFactor makeSequence(int64_t size, int64_t ranks, TokenOrder order) {
  LayoutFactor factor;
  factor.size = size;
  factor.padded = (size + ranks - 1) / ranks * ranks;
  factor.order = order;
  factor.orderRanks = ranks;
  return factor;
}

AttentionWork getWork(const MaskShape &mask, int64_t size, int64_t ranks, TokenOrder order) {
  LayoutFactor sequence = makeSequence(size, ranks, order);
  std::vector<int64_t> pairs = countVisiblePairs(mask, sequence, ranks, sequence, ranks);
  AttentionWork work;
  for (int64_t rank = 0; rank < ranks; ++rank)
    work.perRank.push_back(
        std::accumulate(pairs.begin() + rank * ranks, pairs.begin() + (rank + 1) * ranks, 0ll));
  return work;
}

TEST(AttentionWork, BalanceOfOrders) {
  MaskShape causal;
  causal.causal = true;
  EXPECT_NEAR(getWork(causal, 4096, 4, TokenOrder::Contiguous).getLargestOverMean(), 1.75, 0.001);
  EXPECT_LE(getWork(causal, 4096, 4, TokenOrder::Zigzag).getLargestOverMean(), 1.05);
  EXPECT_LE(getWork(causal, 4096, 4, TokenOrder::Striped).getLargestOverMean(), 1.05);
  EXPECT_EQ(getWork({}, 4096, 4, TokenOrder::Contiguous).getLargestOverMean(), 1);
}

/// Every pair is counted once, in the chunks that the order says.
TEST(AttentionWork, CountsAsTheMaskSays) {
  for (int64_t size : {1, 7, 16, 97})
    for (int64_t ranks : {1, 2, 3, 4})
      for (TokenOrder order : {TokenOrder::Contiguous, TokenOrder::Zigzag, TokenOrder::Striped})
        for (int variant = 0; variant < 4; ++variant) {
          MaskShape mask;
          mask.causal = variant & 1;
          if (variant & 2) {
            mask.windowLeft = 5;
            mask.windowRight = 2;
          }
          LayoutFactor sequence = makeSequence(size, ranks, order);
          std::vector<int64_t> expected(ranks * ranks);
          int64_t chunk = sequence.padded / ranks;
          for (int64_t i = 0; i < sequence.padded; ++i)
            for (int64_t j = 0; j < sequence.padded; ++j) {
              int64_t query = getTokenInSlot(order, ranks, size, sequence.padded, i);
              int64_t key = getTokenInSlot(order, ranks, size, sequence.padded, j);
              bool isSeen =
                  query >= 0 && key >= 0 && (!mask.causal || key <= query) &&
                  (!mask.windowLeft || (key >= query - *mask.windowLeft && key <= query + 2));
              expected[i / chunk * ranks + j / chunk] += isSeen;
            }
          EXPECT_EQ(countVisiblePairs(mask, sequence, ranks, sequence, ranks), expected)
              << size << " tokens, " << ranks << " ranks, variant " << variant;
        }
}

/// Ranks need the chunks in which they see a key, and hold those and what they pass on.
TEST(RingSteps, AreThoseThatTheMaskNeeds) {
  for (int64_t size : {1, 7, 16, 97})
    for (int64_t ranks : {1, 2, 3, 4, 8})
      for (TokenOrder order : {TokenOrder::Contiguous, TokenOrder::Zigzag, TokenOrder::Striped})
        for (int variant = 0; variant < 4; ++variant) {
          MaskShape mask;
          mask.causal = variant & 1;
          if (variant & 2)
            mask.windowLeft = mask.windowRight = 5;
          LayoutFactor sequence = makeSequence(size, ranks, order);
          std::vector<int64_t> pairs = countVisiblePairs(mask, sequence, ranks, sequence, ranks);
          sequence.axes.push_back({0, 1, ranks});
          RanksOfSteps needing = getNeedingRanks(mask, &sequence, sequence);
          RanksOfSteps holding = getHoldingRanks(needing);
          llvm::SmallBitVector needed = getNeededSteps(needing);
          llvm::SmallBitVector before(ranks, true);
          int64_t last = 0;
          for (int64_t step = 0; step < ranks; ++step) {
            EXPECT_EQ(needed.test(step), needing[step].any());
            for (int64_t rank = 0; rank < ranks; ++rank) {
              bool sees = pairs[rank * ranks + (rank - step + ranks) % ranks] > 0;
              // An order that interleaves positions has more.
              bool exact = order == TokenOrder::Contiguous && mask.isPositional();
              EXPECT_LE(sees, needing[step].test(rank));
              if (exact)
                EXPECT_EQ(sees, needing[step].test(rank));
              if (!needed.test(step))
                continue;
              EXPECT_LE(needing[step].test(rank), holding[step].test(rank));
              if (holding[step].test(rank))
                EXPECT_TRUE(before.test((rank - (step - last) + ranks) % ranks));
            }
            if (needed.test(step)) {
              before = holding[step];
              last = step;
            }
          }
        }
}

TEST(RingSteps, OfACausalMaskInOrder) {
  MaskShape causal;
  causal.causal = true;
  LayoutFactor sequence = makeSequence(64, 8, TokenOrder::Contiguous);
  sequence.axes.push_back({0, 1, 8});
  unsigned sent = 0;
  for (auto [step, ranks] :
       llvm::enumerate(getHoldingRanks(getNeedingRanks(causal, &sequence, sequence)))) {
    EXPECT_EQ(ranks.find_first(), int(step));
    EXPECT_EQ(ranks.count(), 8 - step);
    sent += step > 0 ? ranks.count() : 0;
  }
  EXPECT_EQ(sent, 8u * 7 / 2);
}

} // namespace
