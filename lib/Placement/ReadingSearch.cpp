//===- ReadingSearch.cpp - one reading of each value ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Links are taken in the program's order, each with the first combination that fits;
// what that rules out is dropped at once, wherever it is. Where nothing is left the
// last choice is taken back.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/ReadingSearch.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace meshwright;

namespace {

class ReadingSearch {
public:
  ReadingSearch(ArrayRef<ReadingLink> links, DenseMap<Value, Readings> &ambiguous,
                function_ref<Reading(Value)> get)
      : links(links), ambiguous(ambiguous), get(get) {
    for (auto [i, link] : llvm::enumerate(links))
      for (ValueRange values : {ValueRange(link.operands), ValueRange(link.results)})
        for (Value value : values)
          if (ambiguous.contains(value))
            linksOf[value].push_back(i);
  }

  std::optional<unsigned> run();

private:
  using Combination = std::pair<SmallVector<Reading, 4>, SmallVector<Reading, 1>>;

  template <typename Visit>
  void forEach(const ReadingLink &link, const Combination &combination, Visit visit) const {
    for (auto [value, reading] : llvm::zip_equal(link.operands, combination.first))
      visit(value, reading);
    for (auto [value, reading] : llvm::zip_equal(link.results, combination.second))
      visit(value, reading);
  }
  bool fits(const ReadingLink &link, const Combination &combination) const;
  void leave(Value value, Readings readings);
  std::optional<unsigned> narrow(SmallVector<unsigned> open);
  void undo(size_t mark);

  ArrayRef<ReadingLink> links;
  DenseMap<Value, Readings> &ambiguous;
  function_ref<Reading(Value)> get;
  DenseMap<Value, SmallVector<unsigned, 4>> linksOf;
  /// What values had before.
  std::vector<std::pair<Value, Readings>> trail;
};

} // namespace

bool ReadingSearch::fits(const ReadingLink &link, const Combination &combination) const {
  bool result = true;
  forEach(link, combination, [&](Value value, Reading reading) {
    auto it = ambiguous.find(value);
    result &=
        it == ambiguous.end() ? get(value) == reading : llvm::is_contained(it->second, reading);
  });
  return result;
}

void ReadingSearch::leave(Value value, Readings readings) {
  Readings &own = ambiguous.find(value)->second;
  trail.push_back({value, std::move(own)});
  own = std::move(readings);
}

void ReadingSearch::undo(size_t mark) {
  for (; trail.size() > mark; trail.pop_back())
    ambiguous.find(trail.back().first)->second = std::move(trail.back().second);
}

/// Drops readings that are in no combination that fits, of the values of these links
/// and of all that this reaches.
std::optional<unsigned> ReadingSearch::narrow(SmallVector<unsigned> open) {
  llvm::SmallDenseSet<unsigned, 16> isOpen(open.begin(), open.end());
  while (!open.empty()) {
    unsigned i = open.pop_back_val();
    isOpen.erase(i);
    const ReadingLink &link = links[i];
    llvm::SmallDenseMap<Value, Readings, 8> alive;
    bool any = false;
    for (const Combination &combination : link.combinations) {
      if (!fits(link, combination))
        continue;
      any = true;
      forEach(link, combination, [&](Value value, Reading reading) {
        if (Readings &own = alive[value]; !llvm::is_contained(own, reading))
          own.push_back(reading);
      });
    }
    if (!any)
      return i;
    for (ValueRange values : {ValueRange(link.operands), ValueRange(link.results)})
      for (Value value : values) {
        auto it = ambiguous.find(value);
        if (it == ambiguous.end() || it->second.size() == alive[value].size())
          continue;
        leave(value, alive[value]);
        for (unsigned other : linksOf[value])
          if (other != i && isOpen.insert(other).second)
            open.push_back(other);
      }
  }
  return std::nullopt;
}

std::optional<unsigned> ReadingSearch::run() {
  // Programs that nobody made to be hard need none or a few.
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
    const ReadingLink &link = links[i];
    bool found = false;
    for (size_t e = link.combinations.size(); next < e && !found; ++next) {
      const Combination &combination = link.combinations[next];
      if (!fits(link, combination))
        continue;
      size_t mark = trail.size();
      SmallVector<unsigned> open;
      forEach(link, combination, [&](Value value, Reading reading) {
        auto it = ambiguous.find(value);
        if (it == ambiguous.end() || it->second.size() == 1)
          return;
        leave(value, {reading});
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

std::optional<unsigned> meshwright::chooseReadings(ArrayRef<ReadingLink> links,
                                                   DenseMap<Value, Readings> &ambiguous,
                                                   function_ref<Reading(Value)> get) {
  return ReadingSearch(links, ambiguous, get).run();
}
