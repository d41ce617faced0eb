//===- Search.h - the search for a plan ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_SEARCH_H
#define MESHWRIGHT_PASSES_PLAN_SEARCH_H

#include "meshwright/passes/plan/Candidates.h"
#include "meshwright/passes/plan/PricePlan.h"

#include "llvm/ADT/StringMap.h"

#include <memory>

namespace meshwright {

/// A candidate with its price.
struct PricedPlan {
  ParallelizeOptions options;
  PlanPrice price;
};

/// Searches for the best plan of a program among candidates (see Planner.h for the steps).
///
/// - Plans are priced in batches, on some threads. A batch does not depend on the number of threads.
/// - The number of plans is limited by the size of the program.
class PlanSearch {
public:
  /// `request` has the options that stay as they are, where they are not auto. `memoryLimit` is in
  /// bytes; 0 for none.
  PlanSearch(mlir::ModuleOp program, const ParallelizeOptions &request,
             const ProgramExtents &extents, int64_t memoryLimit);

  void run(mlir::ArrayRef<Candidate> candidates);

  /// The best plan that fits; none if no plan fits.
  const PricedPlan *getBest() const;
  /// The best plan of each mesh, best first, plans that do not fit last. Refused candidates are left out.
  std::vector<const PricedPlan *> rank() const;
  bool fits(const PlanPrice &price) const {
    return price.isPlanned() && (!memoryLimit || price.memory <= memoryLimit);
  }
  int64_t getNumPlans() const { return int64_t(plans.size()); }
  /// The first refusal; empty if there is none.
  mlir::StringRef getRefusal() const;

  /// The options of a plan that needs the least memory, and its bytes; 0 bytes if there is no plan.
  std::pair<ParallelizeOptions, int64_t> findLeast(mlir::ArrayRef<Candidate> candidates);

private:
  /// Prices the options that are not priced yet. Returns the numbers of the plans.
  std::vector<size_t> price(mlir::ArrayRef<ParallelizeOptions> options);
  /// Calls a function with each number below `count`, on the threads of the pricers.
  void forEach(size_t count, llvm::function_ref<void(PlanPricer &, size_t)> work);
  /// Estimates candidates that are too many to plan, in the order of their bounds. Those that cannot
  /// be planned are left out.
  std::vector<Candidate> estimate(mlir::ArrayRef<Candidate> candidates);
  void priceMeshes(mlir::ArrayRef<Candidate> candidates);
  void improve(size_t plan);
  /// Options of which one differs from those of a plan.
  std::vector<ParallelizeOptions> getNeighbours(const ParallelizeOptions &options) const;
  /// Adds options that save memory at the cost of time. Scattered tokens may save memory or take more.
  void addFrugal(ParallelizeOptions options, std::vector<ParallelizeOptions> &all) const;
  /// All candidates and their frugal variants, as many as may be priced.
  std::vector<ParallelizeOptions> listFrugal(mlir::ArrayRef<Candidate> candidates) const;
  /// Plans compare by fit, then by the objective.
  bool isBetter(const PlanPrice &a, const PlanPrice &b) const;
  bool isSpent() const { return getNumPlans() >= maxPlans; }

  ParallelizeOptions request;
  ProgramExtents extents;
  Objective objective;
  int64_t memoryLimit, maxPlans;
  std::vector<std::unique_ptr<PlanPricer>> pricers;
  std::vector<PricedPlan> plans;
  llvm::StringMap<size_t> numbers;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_SEARCH_H
