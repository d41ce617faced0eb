//===- CandidateSearch.cpp - one candidate layout of each value -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Backtracking with constraint propagation.
//
// 1. `narrow` drops every candidate that occurs in no combination that `fits`, for all
//    links. A value that loses candidates puts its other links in the queue again.
// 2. `run` takes the links in program order. It fixes the values of a link to the first
//    combination that fits, and narrows the links of these values.
// 3. Where narrowing leaves a link without a combination, `undo` restores the candidates
//    from the trail, and the next combination is tried. Where none is left, `run`
//    backtracks to the link before.
//
// Cost: narrowing a link takes time in proportion to its combinations. A link is narrowed
// once, and again for each candidate that one of its values loses. Candidates and
// combinations are bounded, so a search without backtracking is linear in the number of
// links. A search takes at most `kMaxSteps` steps back.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/CandidateSearch.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace meshwright;

namespace {

class CandidateSearch {
public:
  CandidateSearch(ArrayRef<CandidateLink> links, ProgramMap<Value, Candidates> &ambiguous,
                  function_ref<LayoutRef(Value)> get)
      : links(links), ambiguous(ambiguous), get(get) {
    for (auto [i, link] : llvm::enumerate(links))
      for (ValueRange values : {ValueRange(link.operands), ValueRange(link.results)})
        for (Value value : values)
          if (ambiguous.contains(value))
            linksOf[value].push_back(i);
  }

  std::optional<unsigned> run();

private:
  using Combination = CandidateLink::Combination;

  template <typename Visit>
  void forEach(const CandidateLink &link, const Combination &combination, Visit visit) const {
    for (auto [value, candidate] : llvm::zip_equal(link.operands, combination.first))
      visit(value, candidate);
    for (auto [value, candidate] : llvm::zip_equal(link.results, combination.second))
      visit(value, candidate);
  }
  bool fits(const CandidateLink &link, const Combination &combination) const;
  void restrictTo(Value value, Candidates candidates);
  std::optional<unsigned> narrow(SmallVector<unsigned> open);
  void undo(size_t mark);

  ArrayRef<CandidateLink> links;
  ProgramMap<Value, Candidates> &ambiguous;
  function_ref<LayoutRef(Value)> get;
  ProgramMap<Value, SmallVector<unsigned, 4>> linksOf;
  /// The candidates that values had before the changes, in order.
  std::vector<std::pair<Value, Candidates>> trail;
};

} // namespace

bool CandidateSearch::fits(const CandidateLink &link, const Combination &combination) const {
  bool result = true;
  forEach(link, combination, [&](Value value, LayoutRef candidate) {
    auto it = ambiguous.find(value);
    result &=
        it == ambiguous.end() ? get(value) == candidate : llvm::is_contained(it->second, candidate);
  });
  return result;
}

void CandidateSearch::restrictTo(Value value, Candidates candidates) {
  Candidates &own = ambiguous.find(value)->second;
  trail.push_back({value, std::move(own)});
  own = std::move(candidates);
}

void CandidateSearch::undo(size_t mark) {
  for (; trail.size() > mark; trail.pop_back())
    ambiguous.find(trail.back().first)->second = std::move(trail.back().second);
}

/// Drops candidates that are in no combination that fits, of the values of these links
/// and of all links that share a narrowed value. Returns a link that has none left.
std::optional<unsigned> CandidateSearch::narrow(SmallVector<unsigned> open) {
  llvm::SmallDenseSet<unsigned, 16> isOpen(open.begin(), open.end());
  while (!open.empty()) {
    unsigned i = open.pop_back_val();
    isOpen.erase(i);
    const CandidateLink &link = links[i];
    llvm::SmallDenseMap<Value, Candidates, 8> alive;
    bool any = false;
    for (const Combination &combination : link.combinations) {
      if (!fits(link, combination))
        continue;
      any = true;
      forEach(link, combination, [&](Value value, LayoutRef candidate) {
        if (Candidates &own = alive[value]; !llvm::is_contained(own, candidate))
          own.push_back(candidate);
      });
    }
    if (!any)
      return i;
    for (ValueRange values : {ValueRange(link.operands), ValueRange(link.results)})
      for (Value value : values) {
        auto it = ambiguous.find(value);
        if (it == ambiguous.end() || it->second.size() == alive[value].size())
          continue;
        restrictTo(value, alive[value]);
        for (unsigned other : linksOf[value])
          if (other != i && isOpen.insert(other).second)
            open.push_back(other);
      }
  }
  return std::nullopt;
}

std::optional<unsigned> CandidateSearch::run() {
  // Programs of models need few steps back, or none.
  constexpr unsigned kMaxSteps = 10000;
  SmallVector<unsigned> all;
  for (unsigned i = 0; i < links.size(); ++i)
    all.push_back(i);
  if (auto conflict = narrow(std::move(all)))
    return conflict;
  struct Choice {
    unsigned link;
    size_t combination, mark;
  };
  SmallVector<Choice> choices;
  unsigned i = 0, steps = 0;
  size_t next = 0;
  while (i < links.size()) {
    const CandidateLink &link = links[i];
    bool found = false;
    for (size_t e = link.combinations.size(); next < e && !found; ++next) {
      const Combination &combination = link.combinations[next];
      if (!fits(link, combination))
        continue;
      size_t mark = trail.size();
      SmallVector<unsigned> open;
      forEach(link, combination, [&](Value value, LayoutRef candidate) {
        auto it = ambiguous.find(value);
        if (it == ambiguous.end() || it->second.size() == 1)
          return;
        restrictTo(value, {candidate});
        llvm::append_range(open, linksOf[value]);
      });
      found = !narrow(std::move(open));
      if (found)
        choices.push_back({i, next, mark});
      else
        undo(mark);
    }
    if (found) {
      ++i;
      next = 0;
      continue;
    }
    if (choices.empty() || ++steps == kMaxSteps)
      return i;
    undo(choices.back().mark);
    i = choices.back().link;
    next = choices.back().combination + 1;
    choices.pop_back();
  }
  return std::nullopt;
}

std::optional<unsigned> meshwright::chooseCandidates(ArrayRef<CandidateLink> links,
                                                     ProgramMap<Value, Candidates> &ambiguous,
                                                     function_ref<LayoutRef(Value)> get) {
  return CandidateSearch(links, ambiguous, get).run();
}
