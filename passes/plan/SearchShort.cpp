//===- SearchShort.cpp - the search on short programs ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/Search.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace meshwright;

/// Plans of a program with short forms that are planned as a whole: in a batch, and in all.
static constexpr size_t kWholePlans = 2, kMostWholePlans = 6;
/// Layers at each end of longer programs, and the most plans that are priced on them: where a whole plan takes seconds,
/// they show first whether the memory of each layer was seen. With few layers the peak may be at an op that all share,
/// and move from there to another: from 4 to 8 layers memory may grow three times as fast as behind.
static constexpr int64_t kEndsOfLonger[] = {4, 2};
static constexpr size_t kMostLonger = 8, kBatchOfLonger = 2;

/// Prices the first plans on longer programs, until the best of these is better than the next plan.
void PlanSearch::priceLonger(PlanSearch &longer, std::vector<const PricedPlan *> &ranked) {
  size_t count = 0;
  const PricedPlan *best = nullptr;
  while (count < std::min(ranked.size(), kMostLonger) &&
         (!best || longer.isBetter(ranked[count]->price, best->price))) {
    std::vector<ParallelizeOptions> options;
    for (size_t end = std::min(count + kBatchOfLonger, ranked.size()); count < end; ++count)
      options.push_back(ranked[count]->options);
    longer.price(options);
    best = longer.getBest();
  }
  std::vector<const PricedPlan *> order = longer.rank();
  order.insert(order.end(), ranked.begin() + count, ranked.end());
  ranked = std::move(order);
}

/// Under a ceiling fewer values may be computed again than all.
std::vector<ParallelizeOptions> PlanSearch::limit(ArrayRef<ParallelizeOptions> given) const {
  std::vector<ParallelizeOptions> limited;
  for (const ParallelizeOptions &options : given)
    if (memoryLimit && !options.memoryCeiling) {
      limited.push_back(options);
      limited.back().memoryCeiling = memoryLimit;
      // Of a large program the search for them takes longer than all the rest.
      if (!isLarge())
        limited.back().recompute = request.recompute;
      else if (extents.hasGradients && options.recompute == RecomputeMode::Auto)
        limited.back().recompute = RecomputeMode::Full;
    }
  return limited;
}

bool PlanSearch::runShort(const ShortPrograms &shortPrograms, ArrayRef<Candidate> candidates) {
  ProgramExtents fewer = extents;
  fewer.numOps = countOps(*shortPrograms.few) + countOps(*shortPrograms.more);
  // A ceiling is one of the whole program.
  ParallelizeOptions open = request;
  open.memoryCeiling = std::nullopt;
  std::vector<Candidate> unbounded(candidates);
  for (Candidate &candidate : unbounded)
    candidate.options.memoryCeiling = std::nullopt;
  PlanSearch estimates(program, open, fewer, memoryLimit, &shortPrograms);
  estimates.search(unbounded);
  std::vector<const PricedPlan *> ranked = estimates.rank();
  if (ranked.empty())
    return false;

  std::optional<ShortPrograms> longerPrograms;
  std::optional<PlanSearch> longer;
  for (int64_t end : kEndsOfLonger)
    if (isLarge() && estimates.getBest() && !longerPrograms)
      longerPrograms = shortenProgram(program, end);
  if (longerPrograms) {
    longer.emplace(PlanSearch(program, open, fewer, memoryLimit, &*longerPrograms));
    priceLonger(*longer, ranked);
  }
  size_t next = 0;
  auto take = [&](size_t count) {
    std::vector<ParallelizeOptions> options;
    for (size_t end = std::min(next + count, ranked.size()); next < end; ++next) {
      options.push_back(ranked[next]->options);
      options.back().memoryCeiling = request.memoryCeiling;
    }
    return options;
  };
  size_t batch = isLarge() ? 1 : kWholePlans;
  if (!estimates.getBest()) {
    std::vector<ParallelizeOptions> first = take(batch);
    std::vector<ParallelizeOptions> limited = limit(first);
    for (const ParallelizeOptions &options : llvm::concat<ParallelizeOptions>(first, limited))
      least.push_back({options});
    // Options of a large program are tried only if the ceiling alone does not help.
    if (isLarge())
      price(limited);
    if (!getBest())
      search(least);
    return true;
  }
  // An estimate may be wrong by as much as separates it from the next.
  const PricedPlan *best = nullptr;
  while (next < std::min(ranked.size(), kMostWholePlans * batch / kWholePlans) &&
         (!best || isBetter(ranked[next]->price, best->price))) {
    std::vector<ParallelizeOptions> options = take(batch);
    price(options);
    best = getBest();
    if (best || isLarge())
      continue;
    price(limit(options));
    best = getBest();
  }
  // A plan of a large program under a ceiling takes several times as long as another one.
  if (!best && isLarge() && !plans.empty()) {
    price(limit(rank().front()->options));
    best = getBest();
  }
  // Estimates of memory may be too low. Then plans that need less are tried.
  std::stable_sort(ranked.begin() + next, ranked.end(), [&](const PricedPlan *a, const PricedPlan *b) {
    return !best && a->price.memory < b->price.memory;
  });
  for (size_t tried = 0; !best && tried < kMostWholePlans && next < ranked.size(); tried += batch) {
    std::vector<ParallelizeOptions> options = take(batch);
    price(options);
    if (!getBest())
      price(limit(options));
    best = getBest();
  }
  if (!best) {
    for (const PricedPlan &plan : plans)
      least.push_back({plan.options});
    return true;
  }
  std::vector<ParallelizeOptions> near;
  for (const PricedPlan *plan : rank())
    if (!isLarge() && near.size() < kWholePlans && fits(plan->price) && plan->options.recompute != request.recompute &&
        plan->price.seconds <= best->price.seconds * kNearTime)
      near.push_back(plan->options);
  price(limit(near));
  numDropped = estimates.getNumPlans() - int64_t(ranked.size() - next);
  for (; next < ranked.size(); ++next) {
    plans.push_back(*ranked[next]);
    plans.back().isEstimate = true;
  }
  return true;
}
