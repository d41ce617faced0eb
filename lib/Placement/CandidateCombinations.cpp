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
/// A candidate of an operand as the rule sees it: factors and numbers of their axes.
using FactorAxes = SmallVector<std::pair<int, unsigned>, 4>;

/// Combinations of the operands so far.
struct Prefix {
  /// The combination without its last operand, by its index among those of the operand before.
  unsigned parent;
  LayoutRef last;
  /// The candidate's index.
  unsigned candidate;
  unsigned disagreements;
};

/// Extends combinations operand by operand, those with the fewest disagreements first.
///
/// Complexity: an operand takes time in proportion to its candidates times the combinations before it. A
/// combination is copied only if it is kept.
class Combiner {
public:
  Combiner(const FactorRule *rule) : rule(rule && !rule->operands.empty() ? rule : nullptr) {
    stages.push_back({});
    known.push_back(SmallVector<int>(this->rule ? this->rule->factors.size() : 0, kUnknown));
  }

  void add(ArrayRef<LayoutRef> candidates) {
    SmallVector<FactorAxes> numbered;
    for (LayoutRef candidate : candidates)
      numbered.push_back(number(candidate));
    std::vector<Prefix> longer;
    for (unsigned c = 0; c < candidates.size(); ++c)
      for (unsigned p = 0; p < known.size(); ++p)
        longer.push_back({p, candidates[c], c, getDisagreements(p) + count(known[p], numbered[c])});
    keep(std::move(longer), [&](const Prefix &prefix) -> const FactorAxes & { return numbered[prefix.candidate]; });
  }

  /// Adds an operand that is the value of an operand before.
  void repeat(unsigned operand) {
    SmallVector<FactorAxes> numbered;
    std::vector<Prefix> longer;
    for (unsigned p = 0; p < known.size(); ++p) {
      LayoutRef candidate = get(p)[operand];
      numbered.push_back(number(candidate));
      longer.push_back({p, candidate, p, getDisagreements(p) + count(known[p], numbered[p])});
    }
    keep(std::move(longer), [&](const Prefix &prefix) -> const FactorAxes & { return numbered[prefix.candidate]; });
  }

  SmallVector<CandidateCombination> getAll() const {
    SmallVector<CandidateCombination> all;
    for (unsigned p = 0; p < known.size(); ++p)
      all.push_back(get(p));
    return all;
  }

private:
  static constexpr int kUnknown = -1;

  /// The factors that stand alone in a dimension of the next operand. Equal elements have any axes.
  FactorAxes number(LayoutRef layout) {
    FactorAxes found;
    if (!rule)
      return found;
    for (auto [factors, dim] : llvm::zip_equal(rule->operands[stages.size() - 1], layout->dims)) {
      auto isEqual = [](const LayoutFactor &factor) { return factor.uniform; };
      if (factors.size() != 1 || llvm::any_of(dim.factors, isEqual))
        continue;
      AxisList axes = dim.getAxes();
      auto *it = llvm::find(lists, axes);
      found.push_back({factors.front(), unsigned(it - lists.begin())});
      if (it == lists.end())
        lists.push_back(std::move(axes));
    }
    return found;
  }

  /// Counts the dimensions of an operand that disagree with the operands before it: the same factor has
  /// other axes there.
  static unsigned count(ArrayRef<int> before, const FactorAxes &next) {
    unsigned count = 0;
    for (auto [i, entry] : llvm::enumerate(next)) {
      int first = before[entry.first];
      // An earlier dimension of the operand may have the factor.
      for (size_t j = 0; j < i && first == kUnknown; ++j)
        if (next[j].first == entry.first)
          first = next[j].second;
      count += first != kUnknown && first != int(entry.second);
    }
    return count;
  }

  unsigned getDisagreements(unsigned prefix) const {
    return stages.back().empty() ? 0 : stages.back()[prefix].disagreements;
  }

  CandidateCombination get(unsigned prefix) const {
    CandidateCombination layouts;
    for (const std::vector<Prefix> &stage : llvm::reverse(ArrayRef(stages).drop_front())) {
      layouts.push_back(stage[prefix].last);
      prefix = stage[prefix].parent;
    }
    std::reverse(layouts.begin(), layouts.end());
    return layouts;
  }

  void keep(std::vector<Prefix> longer, function_ref<const FactorAxes &(const Prefix &)> getAxes) {
    llvm::stable_sort(longer, [](const Prefix &a, const Prefix &b) { return a.disagreements < b.disagreements; });
    longer.resize(std::min(longer.size(), kMaxCombinations));
    std::vector<SmallVector<int>> next;
    for (const Prefix &prefix : longer) {
      next.push_back(known[prefix.parent]);
      for (auto [factor, axes] : getAxes(prefix))
        if (next.back()[factor] == kUnknown)
          next.back()[factor] = axes;
    }
    known = std::move(next);
    stages.push_back(std::move(longer));
  }

  const FactorRule *rule;
  /// Lists of axes, by number.
  SmallVector<AxisList> lists;
  /// The kept combinations of each number of operands.
  std::vector<std::vector<Prefix>> stages;
  /// Of each combination of all operands so far the axes of each factor.
  std::vector<SmallVector<int>> known;
};
} // namespace

SmallVector<CandidateCombination> meshwright::combineCandidates(ValueRange operands,
                                                                ArrayRef<Candidates> candidates,
                                                                const FactorRule *rule) {
  if (llvm::all_of(candidates, [](const Candidates &own) { return own.size() == 1; })) {
    CandidateCombination only;
    for (const Candidates &own : candidates)
      only.push_back(own.front());
    return {only};
  }
  Combiner combiner(rule);
  for (auto [i, own] : llvm::enumerate(candidates)) {
    ValueRange before = operands.take_front(i);
    auto same = llvm::find(before, operands[i]);
    if (same != before.end())
      combiner.repeat(same - before.begin());
    else
      combiner.add(own);
  }
  return combiner.getAll();
}
