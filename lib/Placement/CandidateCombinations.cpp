//===- CandidateCombinations.cpp - candidates of operands, combined -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/CandidateCombinations.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Each combination is tried on the op, so an op with more of them would be slow.
static constexpr size_t kMaxCombinations = 256;

namespace {
struct Prefix {
  CandidateCombination layouts;
  unsigned disagreements = 0;
};
} // namespace

/// Counts the dimensions of the next operand that disagree with the operands before it: the same
/// factor has other axes there.
static unsigned countDisagreements(const FactorRule &rule, ArrayRef<LayoutRef> before,
                                   LayoutRef next) {
  llvm::SmallDenseMap<int, AxisList> known;
  unsigned count = 0;
  auto add = [&](unsigned operand, LayoutRef layout) {
    for (auto [factors, dim] : llvm::zip_equal(rule.operands[operand], layout->dims)) {
      // Equal elements have any axes.
      auto isEqual = [](const LayoutFactor &factor) { return factor.uniform; };
      if (factors.size() != 1 || llvm::any_of(dim.factors, isEqual))
        continue;
      auto [it, isNew] = known.try_emplace(factors.front(), dim.getAxes());
      count += !isNew && it->second != dim.getAxes();
    }
  };
  for (auto [i, layout] : llvm::enumerate(before))
    add(i, layout);
  count = 0;
  add(before.size(), next);
  return count;
}

SmallVector<CandidateCombination> meshwright::combineCandidates(ValueRange operands,
                                                                ArrayRef<Candidates> candidates,
                                                                const FactorRule *rule) {
  if (llvm::all_of(candidates, [](const Candidates &own) { return own.size() == 1; })) {
    CandidateCombination only;
    for (const Candidates &own : candidates)
      only.push_back(own.front());
    return {only};
  }
  bool compares = rule && !rule->operands.empty();
  SmallVector<Prefix> prefixes(1);
  for (auto [i, own] : llvm::enumerate(candidates)) {
    SmallVector<Prefix> longer;
    auto extend = [&](const Prefix &prefix, LayoutRef candidate) {
      Prefix &next = longer.emplace_back(prefix);
      if (compares)
        next.disagreements += countDisagreements(*rule, prefix.layouts, candidate);
      next.layouts.push_back(candidate);
    };
    ValueRange before = operands.take_front(i);
    auto same = llvm::find(before, operands[i]);
    if (same != before.end())
      for (const Prefix &prefix : prefixes)
        extend(prefix, prefix.layouts[same - before.begin()]);
    else
      for (LayoutRef candidate : own)
        for (const Prefix &prefix : prefixes)
          extend(prefix, candidate);
    if (longer.size() > 1)
      llvm::stable_sort(longer, [](const Prefix &a, const Prefix &b) {
        return a.disagreements < b.disagreements;
      });
    longer.truncate(std::min(longer.size(), kMaxCombinations));
    prefixes = std::move(longer);
  }
  SmallVector<CandidateCombination> combinations;
  for (Prefix &prefix : prefixes)
    combinations.push_back(std::move(prefix.layouts));
  return combinations;
}
