//===- Search.cpp - the search for a plan ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/Search.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/raw_ostream.h"

#include <atomic>
#include <cmath>
#include <thread>

using namespace mlir;
using namespace meshwright;

/// Plans of ops that a search may price: some seconds of work. A program without short forms is small, or its layers
/// differ.
static constexpr int64_t kMaxWork = 40000, kMaxWorkOfWhole = 120000;
static constexpr int64_t kFewestPlans = 16, kFewestShortPlans = 10, kMostPlans = 600;
/// Estimates that take about the time of a plan.
static constexpr int64_t kEstimatesOfPlan = 4;
/// Estimates on short programs. The number of ranks makes these slow, so their ops do not tell the time.
static constexpr size_t kShortEstimates = 16;
/// Plans of which the least memory is sought where no plan fits.
static constexpr int64_t kMostLeast = 64;
static constexpr int kLeastRounds = 4;
/// Candidates with the least weights that are tried where no fast one fits.
static constexpr size_t kSmallest = 4;
/// Parts of a plan's memory that are tried as a ceiling.
static constexpr double kSharesOfMemory[] = {0.98, 0.9, 0.75};
/// Plans that are priced before bounds are compared again.
static constexpr size_t kBatch = 8;
/// Meshes on which two options change at once.
static constexpr size_t kMeshesWithPairs = 3;
/// A step holds about so many times its weights: gradients, and averages or values that the backward pass reads.
static constexpr int64_t kTrainedParts = 3;
/// Options of meshes that are worse by more than this factor are not tried.
static constexpr double kOptionGain = 1.25;
/// Of a search for a mesh, plans within this factor are equal, and the simplest wins. Where the mesh is stated, an
/// option that is `auto` is never slower than one of its values, so only plans of one time are equal.
static constexpr double kTie = 1.001, kTieOfMesh = 1 + 1e-9;
static int64_t countThreads() {
  return std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
}

PlanSearch::PlanSearch(ModuleOp program, const ParallelizeOptions &request,
                       const ProgramExtents &extents, int64_t memoryLimit,
                       const ShortPrograms *shorts)
    : program(program), request(request), extents(extents),
      objective(request.objective.value_or(Objective::Time)), memoryLimit(memoryLimit),
      shorts(shorts) {
  int64_t work = shorts ? kMaxWork : kMaxWorkOfWhole;
  maxPlans = std::clamp(work / std::max<int64_t>(extents.numOps, 1), shorts ? kFewestShortPlans : kFewestPlans,
                        kMostPlans);
}

PlanSearch::PlanSearch(ModuleOp program, const ParallelizeOptions &request,
                       const ProgramExtents &extents, int64_t memoryLimit)
    : PlanSearch(program, request, extents, memoryLimit, nullptr) {}

bool PlanSearch::isLarge() const { return extents.numOps > kMaxWork; }

bool PlanSearch::isBetter(const PlanPrice &a, const PlanPrice &b) const {
  if (a.isPlanned() != b.isPlanned())
    return a.isPlanned();
  if (fits(a) != fits(b))
    return fits(a);
  if (!fits(a) || objective == Objective::Memory)
    return std::make_pair(double(a.memory), a.seconds) < std::make_pair(double(b.memory), b.seconds);
  return std::make_pair(a.seconds, double(a.memory)) < std::make_pair(b.seconds, double(b.memory));
}

void PlanSearch::forEach(size_t count, llvm::function_ref<void(PlanPricer &, size_t)> work) {
  std::atomic<size_t> next{0};
  auto run = [&](PlanPricer *pricer) {
    for (size_t i = next++; i < count; i = next++)
      work(*pricer, i);
  };
  size_t numThreads = std::min<size_t>(countThreads(), std::max<size_t>(count, 1));
  while (pricers.size() < numThreads)
    pricers.push_back(std::make_unique<PlanPricer>(program, shorts));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < numThreads; ++i)
    threads.emplace_back(run, pricers[i].get());
  run(pricers.front().get());
  for (std::thread &thread : threads)
    thread.join();
}

std::vector<Candidate> PlanSearch::estimate(ArrayRef<Candidate> candidates) {
  std::vector<Candidate> open(candidates.take_front(shorts ? kShortEstimates : maxPlans * kEstimatesOfPlan));
  std::vector<std::optional<PlanPricer::Estimate>> found(open.size());
  forEach(open.size(), [&](PlanPricer &pricer, size_t i) {
    found[i] = pricer.estimate(open[i].options);
  });
  std::vector<size_t> order;
  for (size_t i = 0; i < open.size(); ++i)
    if (found[i])
      order.push_back(i);
  llvm::stable_sort(order, [&](size_t a, size_t b) {
    return found[a]->compute + found[a]->communication < found[b]->compute + found[b]->communication;
  });
  std::vector<Candidate> sorted;
  for (size_t i : order)
    sorted.push_back(std::move(open[i]));
  return sorted;
}

std::vector<size_t> PlanSearch::price(ArrayRef<ParallelizeOptions> options) {
  std::vector<size_t> found, fresh;
  for (const ParallelizeOptions &wanted : options) {
    auto [it, isNew] = numbers.try_emplace(wanted.str(), plans.size());
    found.push_back(it->second);
    if (!isNew)
      continue;
    fresh.push_back(it->second);
    plans.push_back({wanted, {}});
  }
  forEach(fresh.size(), [&](PlanPricer &pricer, size_t i) {
    plans[fresh[i]].price = pricer.price(plans[fresh[i]].options);
  });
  return found;
}

void PlanSearch::priceMeshes(ArrayRef<Candidate> candidates) {
  std::vector<const Candidate *> open;
  for (const Candidate &candidate : candidates)
    open.push_back(&candidate);
  // Options get their part of the limit, too.
  int64_t most = std::max<int64_t>(maxPlans / 2, 1);
  std::vector<Candidate> estimated;
  if (int64_t(open.size()) > most) {
    for (const Candidate *candidate : open)
      estimated.push_back(*candidate);
    estimated = estimate(estimated);
    open.clear();
    for (const Candidate &candidate : estimated)
      open.push_back(&candidate);
  }
  const PlanPrice *best = nullptr;
  auto isCut = [&](const Candidate &candidate) {
    return best && objective != Objective::Memory &&
           candidate.leastSeconds > best->seconds * kNearTime;
  };
  for (size_t i = 0; i < open.size() && getNumPlans() < most;) {
    std::vector<ParallelizeOptions> batch;
    for (; i < open.size() && batch.size() < kBatch; ++i)
      if (!isCut(*open[i]))
        batch.push_back(open[i]->options);
    price(batch);
    const PricedPlan *found = getBest();
    best = found ? &found->price : nullptr;
  }
  // Plans that are fast and too large are tried again under the limit.
  std::vector<ParallelizeOptions> again;
  for (const PricedPlan &plan : plans)
    if (plan.price.isPlanned() && !fits(plan.price) && !plan.options.memoryCeiling &&
        (!best || plan.price.seconds < best->seconds)) {
      // The ceiling of the whole program is none of a short one.
      if (!shorts) {
        again.push_back(plan.options);
        again.back().memoryCeiling = memoryLimit;
      }
      if (shorts)
        again.push_back(getFrugal(plan.options));
      else
        addFrugal(plan.options, again);
    }
  if (int64_t rest = std::max(maxPlans - getNumPlans(), kFewestPlans);
      int64_t(again.size()) > rest)
    again.resize(rest);
  price(again);
}

ParallelizeOptions PlanSearch::getFrugal(ParallelizeOptions options) const {
  if (options.recompute == RecomputeMode::Auto && extents.hasGradients && request.asksFor("recompute"))
    options.recompute = RecomputeMode::Full;
  if (options.shardOptimizer == OnOffAuto::Auto && extents.trains && request.asksFor("shard-optimizer"))
    options.shardOptimizer = OnOffAuto::On;
  return options;
}

void PlanSearch::addFrugal(ParallelizeOptions options, std::vector<ParallelizeOptions> &all) const {
  options = getFrugal(std::move(options));
  all.push_back(options);
  if (options.sequenceParallel != OnOffAuto::Auto || !request.asksFor("sequence-parallel") ||
      getAxisSize(options, AxisRole::Tensor) == 1)
    return;
  for (OnOffAuto scatter : {OnOffAuto::On, OnOffAuto::Off}) {
    all.push_back(options);
    all.back().sequenceParallel = scatter;
  }
}

std::vector<ParallelizeOptions> PlanSearch::listFrugal(ArrayRef<Candidate> candidates) const {
  std::vector<ParallelizeOptions> all;
  for (const Candidate &candidate : candidates) {
    all.push_back(candidate.options);
    addFrugal(candidate.options, all);
    if (int64_t(all.size()) >= maxPlans)
      break;
  }
  return all;
}

static int64_t getSequenceRanks(const ParallelizeOptions &options) {
  return getAxisSize(options, AxisRole::Ring) * getAxisSize(options, AxisRole::Ulysses);
}

std::vector<ParallelizeOptions>
PlanSearch::getNeighbours(const ParallelizeOptions &options) const {
  std::vector<ParallelizeOptions> all;
  auto vary = [&](bool isOpen, auto member, auto... values) {
    // A stated value stays.
    if (!isOpen || request.*member != std::decay_t<decltype(request.*member)>::Auto)
      return;
    for (auto value : {values...})
      if (options.*member != value) {
        all.push_back(options);
        all.back().*member = value;
      }
  };
  auto varySwitch = [&](StringRef name, OnOffAuto ParallelizeOptions::*member) {
    vary(request.asksFor(name), member, OnOffAuto::On, OnOffAuto::Off);
  };
  // The program may have the mesh.
  auto mayHave = [&](AxisRole role) {
    return options.mesh.axes.empty() || getAxisSize(options, role) > 1;
  };
  bool mayScatter = mayHave(AxisRole::Tensor) || mayHave(AxisRole::Ring) || mayHave(AxisRole::Ulysses);
  // The option also decides about sums of gradients.
  if (mayScatter || !options.fold.empty() || llvm::is_contained(request.statedAuto, "sequence-parallel"))
    varySwitch("sequence-parallel", &ParallelizeOptions::sequenceParallel);
  varySwitch("overlap", &ParallelizeOptions::overlap);
  if (extents.trains)
    varySwitch("shard-optimizer", &ParallelizeOptions::shardOptimizer);
  if (extents.hasGradients) {
    vary(request.asksFor("recompute"), &ParallelizeOptions::recompute, RecomputeMode::None, RecomputeMode::Full);
    if (mayHave(AxisRole::Gtp))
      vary(request.asksFor("gtp-keep"), &ParallelizeOptions::gtpKeep, OnOffAuto::On);
    vary(request.asksFor("shard-saved"), &ParallelizeOptions::shardSaved, OnOffAuto::On);
  }
  // The order on a ring stays as its rule says: times of attention count all pairs, so they do not tell which rank has
  // the most.
  llvm::append_range(all, listChoices(program, request, options, extents));
  // A stage that no rule names may go over the axes of its own.
  for (const std::string &stage : extents.stages)
    if (choosesMesh() && getSequenceRanks(options) > 1 &&
        llvm::none_of(options.fold, [&](const FoldRule &rule) { return rule.stage == stage; })) {
      all.push_back(options);
      all.back().fold.push_back({stage, FoldMode::Auto});
    }
  for (size_t i = 0; i < request.fold.size(); ++i)
    if (request.asksForAll() && request.fold[i].mode == FoldMode::Auto)
      for (const Spelling<FoldMode> &spelling : Spellings<FoldMode>::all)
        if (options.fold[i].mode != spelling.value) {
          all.push_back(options);
          all.back().fold[i].mode = spelling.value;
        }
  return all;
}

/// Options that help on one mesh often help on others.
std::vector<size_t> PlanSearch::carryOver(const ParallelizeOptions &from, ArrayRef<size_t> meshes) {
  std::vector<ParallelizeOptions> next;
  int64_t most = (maxPlans - getNumPlans()) / 2;
  for (size_t i : meshes) {
    if (int64_t(next.size()) >= most)
      break;
    ParallelizeOptions options = plans[i].options;
    bool mayScatter = getAxisSize(options, AxisRole::Tensor) > 1 && getAxisSize(from, AxisRole::Tensor) > 1;
    if (mayScatter)
      options.sequenceParallel = from.sequenceParallel;
    if (getAxisSize(options, AxisRole::Gtp) > 1)
      options.gtpKeep = from.gtpKeep;
    options.overlap = from.overlap;
    options.shardOptimizer = from.shardOptimizer;
    options.recompute = from.recompute;
    options.shardSaved = from.shardSaved;
    next.push_back(std::move(options));
  }
  return price(next);
}

/// Chunks beside kernels gain much on some meshes, and nothing on others.
std::vector<size_t> PlanSearch::tryOverlap(ArrayRef<size_t> meshes) {
  std::vector<ParallelizeOptions> next;
  int64_t most = (maxPlans - getNumPlans()) / 2;
  for (size_t i : meshes)
    if (const ParallelizeOptions &own = plans[i].options;
        own.overlap == OnOffAuto::Auto && request.asksFor("overlap") && int64_t(next.size()) < most) {
      next.push_back(own);
      next.back().overlap = OnOffAuto::On;
    }
  return price(next);
}

void PlanSearch::improve(size_t plan, bool triesPairs) {
  for (bool isPair = false; !isSpent();) {
    std::vector<ParallelizeOptions> next;
    for (const ParallelizeOptions &changed : getNeighbours(plans[plan].options))
      if (isPair)
        llvm::append_range(next, getNeighbours(changed));
      else
        next.push_back(changed);
    // Most pairs are not priced yet.
    if (isPair && int64_t(next.size()) > maxPlans - getNumPlans())
      next.resize(maxPlans - getNumPlans());
    size_t best = plan;
    for (size_t i : price(next))
      if (isBetter(plans[i].price, plans[best].price))
        best = i;
    if (best == plan && (isPair || !triesPairs))
      return;
    isPair = best == plan;
    plan = best;
  }
}

void PlanSearch::run(ArrayRef<Candidate> candidates) {
  std::optional<ShortPrograms> shortPrograms = shortenProgram(program);
  if (!shortPrograms || !runShort(*shortPrograms, candidates))
    search(candidates);
  if (objective != Objective::Time && !isLarge())
    saveMemory(candidates);
}

void PlanSearch::saveMemory(ArrayRef<Candidate> candidates) {
  if (objective == Objective::Memory) {
    auto [options, bytes] = findLeast(candidates);
    options.memoryCeiling = bytes;
    if (bytes)
      price(options);
  }
  for (int round = 0; round < kLeastRounds; ++round) {
    const PricedPlan *best = getBest();
    if (!best)
      return;
    PlanPrice known = best->price;
    std::vector<ParallelizeOptions> next;
    std::vector<const PricedPlan *> near = listFitting();
    llvm::stable_sort(near, [&](auto *a, auto *b) { return isBetter(a->price, b->price); });
    for (const PricedPlan *plan : ArrayRef(near).take_front(kMeshesWithPairs))
      for (double share : kSharesOfMemory) {
        next.push_back(plan->options);
        next.back().memoryCeiling = int64_t(double(known.memory) * share);
        // Fewer values may be computed again than all.
        next.back().recompute = request.recompute;
      }
    price(next);
    if (getBest()->price.memory >= known.memory)
      return;
  }
}

void PlanSearch::search(ArrayRef<Candidate> given) {
  // Weights that do not fit leave no choice. If they never fit, the least memory is sought among all.
  std::vector<Candidate> candidates;
  for (const Candidate &candidate : given)
    if (!memoryLimit || candidate.leastWeights <= memoryLimit)
      candidates.push_back(candidate);
  if (candidates.empty())
    candidates = given;
  // Meshes that leave little memory beside the weights come last: most likely they do not fit.
  auto getKey = [&](const Candidate &candidate) {
    bool isTight = memoryLimit && extents.trains && candidate.leastWeights > memoryLimit / kTrainedParts;
    return std::make_pair(isTight, candidate.roughSeconds);
  };
  llvm::stable_sort(candidates,
                    [&](const Candidate &a, const Candidate &b) { return getKey(a) < getKey(b); });
  priceMeshes(candidates);
  if (!getBest() && shorts) {
    // Others than the fastest may fit.
    llvm::stable_sort(candidates, [](const Candidate &a, const Candidate &b) { return a.leastWeights < b.leastWeights; });
    std::vector<ParallelizeOptions> smallest;
    for (const Candidate &candidate : ArrayRef(candidates).take_front(kSmallest))
      smallest.push_back(getFrugal(candidate.options));
    price(smallest);
  } else if (!getBest()) {
    price(listFrugal(candidates));
    // The choice of an option by its rule may be refused where one of its values is not.
    for (const Candidate &candidate : candidates)
      if (!getBest() && !isSpent())
        price(getNeighbours(candidate.options));
  }
  const PricedPlan *best = getBest();
  if (!best)
    return;
  PlanPrice bound = best->price;
  std::vector<size_t> order;
  for (size_t i = 0; i < plans.size(); ++i)
    if (fits(plans[i].price) && (objective == Objective::Memory
                                     ? plans[i].price.memory <= bound.memory * kOptionGain
                                     : plans[i].price.seconds <= bound.seconds * kOptionGain))
      order.push_back(i);
  auto sort = [&] {
    llvm::stable_sort(order, [&](size_t a, size_t b) { return isBetter(plans[a].price, plans[b].price); });
  };
  sort();
  improve(order.front(), /*triesPairs=*/false);
  auto add = [&](ArrayRef<size_t> priced) {
    for (size_t i : priced)
      if (fits(plans[i].price) && !llvm::is_contained(order, i))
        order.push_back(i);
    sort();
  };
  add(carryOver(getBest()->options, ArrayRef(order).drop_front()));
  add(tryOverlap(order));
  for (size_t i : order)
    improve(i, /*triesPairs=*/false);
  std::vector<size_t> first;
  for (const PricedPlan *found : rank())
    if (fits(found->price) && first.size() < kMeshesWithPairs)
      first.push_back(found - plans.data());
  for (size_t i : first)
    improve(i, /*triesPairs=*/true);
}

/// Plans of fewer axes and fewer stated options are simpler.
static std::pair<size_t, size_t> getSimplicity(const ParallelizeOptions &options) {
  return {options.mesh.axes.size(), options.str().size()};
}

const PricedPlan *PlanSearch::getBest() const {
  double least = std::numeric_limits<double>::infinity();
  auto measure = [&](const PlanPrice &price) {
    return objective == Objective::Memory ? double(price.memory) : price.seconds;
  };
  for (const PricedPlan &plan : plans)
    if (fits(plan.price) && !plan.isEstimate)
      least = std::min(least, measure(plan.price));
  const PricedPlan *best = nullptr;
  double tie = choosesMesh() ? kTie : kTieOfMesh;
  double near = least * (objective == Objective::TimeThenMemory ? kNearTime : tie);
  auto isPreferred = [&](const PricedPlan &a, const PricedPlan &b) {
    if (objective == Objective::TimeThenMemory && a.price.memory != b.price.memory)
      return a.price.memory < b.price.memory;
    if (objective == Objective::Memory && a.price.seconds != b.price.seconds)
      return a.price.seconds < b.price.seconds;
    // On a stated mesh the first one is as the user asks.
    return choosesMesh() && getSimplicity(a.options) < getSimplicity(b.options);
  };
  for (const PricedPlan &plan : plans)
    if (fits(plan.price) && !plan.isEstimate && measure(plan.price) <= near &&
        (!best || isPreferred(plan, *best)))
      best = &plan;
  return best;
}

/// The mesh of a plan, with the roles of its axes.
static std::string getMeshText(const ParallelizeOptions &options) {
  ParallelizeOptions mesh;
  mesh.mesh = options.mesh;
  mesh.axes = options.axes;
  return mesh.str();
}

std::vector<const PricedPlan *> PlanSearch::rank() const {
  std::vector<const PricedPlan *> order;
  for (const PricedPlan &plan : plans)
    if (plan.price.isPlanned())
      order.push_back(&plan);
  llvm::stable_sort(order, [&](const PricedPlan *a, const PricedPlan *b) {
    return isBetter(a->price, b->price);
  });
  std::vector<const PricedPlan *> ranked;
  llvm::StringSet<> seen;
  const PricedPlan *best = getBest();
  if (best) {
    ranked.push_back(best);
    seen.insert(getMeshText(best->options));
  }
  bool hasOneMesh = llvm::all_equal(
      llvm::map_range(order, [](const PricedPlan *plan) { return getMeshText(plan->options); }));
  // Options that change nothing make a plan that there is already.
  auto isKnown = [&](const PricedPlan *plan) {
    return llvm::any_of(ranked, [&](const PricedPlan *known) { return known->price.equals(plan->price); });
  };
  for (const PricedPlan *plan : order)
    if (plan != best && (hasOneMesh ? !isKnown(plan) : seen.insert(getMeshText(plan->options)).second))
      ranked.push_back(plan);
  return ranked;
}

std::vector<const PricedPlan *> PlanSearch::listFitting() const {
  std::vector<const PricedPlan *> found;
  if (const PricedPlan *best = getBest())
    found.push_back(best);
  for (const PricedPlan &plan : plans)
    if (fits(plan.price) && llvm::none_of(found, [&](const PricedPlan *known) { return known->price.equals(plan.price); }))
      found.push_back(&plan);
  return found;
}

StringRef PlanSearch::getRefusal() const {
  for (const PricedPlan &plan : plans)
    if (!plan.price.isPlanned())
      return plan.price.refusal;
  return "";
}

std::pair<ParallelizeOptions, int64_t> PlanSearch::findLeast(ArrayRef<Candidate> candidates) {
  // Without a ceiling there is a price for each of them.
  if (!least.empty())
    candidates = least;
  std::vector<ParallelizeOptions> options = listFrugal(candidates);
  for (ParallelizeOptions &each : options)
    each.memoryCeiling = std::nullopt;
  std::vector<size_t> priced = price(options);
  llvm::erase_if(priced, [&](size_t i) { return !plans[i].price.isPlanned(); });
  llvm::stable_sort(priced, [&](size_t a, size_t b) {
    return plans[a].price.memory < plans[b].price.memory;
  });
  // A ceiling saves more in some plans than in others.
  priced.resize(std::min<size_t>(priced.size(), std::min<int64_t>(maxPlans, kMostLeast)));
  std::vector<int64_t> found(priced.size());
  forEach(priced.size(), [&](PlanPricer &pricer, size_t i) {
    found[i] = pricer.findLeastMemory(plans[priced[i]].options);
  });
  std::pair<ParallelizeOptions, int64_t> lowest;
  for (auto [i, bytes] : llvm::zip_equal(priced, found))
    if (bytes && (!lowest.second || bytes < lowest.second))
      lowest = {plans[i].options, bytes};
  // Phases before the schedule save memory under a ceiling, too.
  for (int round = 0; round < kLeastRounds && lowest.second > 1; ++round) {
    std::vector<ParallelizeOptions> tighter = listFrugal(candidates);
    for (ParallelizeOptions &each : tighter)
      each.memoryCeiling = lowest.second - 1;
    bool isLess = false;
    for (size_t i : price(tighter))
      if (plans[i].price.isPlanned() && plans[i].price.memory < lowest.second) {
        lowest = {plans[i].options, plans[i].price.memory};
        isLess = true;
      }
    if (!isLess)
      break;
  }
  lowest.first.memoryCeiling = std::nullopt;
  return lowest;
}
