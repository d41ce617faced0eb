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
  /// The price follows from short programs.
  bool isEstimate = false;
};

/// Searches for the best plan of a program among candidates (see Planner.h for the steps).
///
/// - Plans are priced in batches, on some threads. A batch does not depend on the number of threads.
/// - The number of plans is limited by the size of the program.
/// - If the program has many equal layers, plans are priced on short programs. The best few are
///   priced as a whole.
class PlanSearch {
public:
  /// `request` has the options that stay as they are, where they are not auto. `memoryLimit` is in
  /// bytes; 0 for none.
  PlanSearch(mlir::ModuleOp program, const ParallelizeOptions &request,
             const ProgramExtents &extents, int64_t memoryLimit);

  void run(mlir::ArrayRef<Candidate> candidates);

  /// The best plan that fits, of plans that are priced as a whole; none if no plan fits.
  const PricedPlan *getBest() const;
  /// The best plan of each mesh, best first, plans that do not fit last. Refused candidates are left out.
  std::vector<const PricedPlan *> rank() const;
  /// All plans that fit, of equal prices one.
  std::vector<const PricedPlan *> listFitting() const;
  bool fits(const PlanPrice &price) const {
    return price.isPlanned() && (!memoryLimit || price.memory <= memoryLimit);
  }
  /// Plans that were priced, as a whole or on short programs.
  int64_t getNumPlans() const { return int64_t(plans.size()) + numDropped; }
  /// The first refusal; empty if there is none.
  mlir::StringRef getRefusal() const;

  /// The options of a plan that needs the least memory, and its bytes; 0 bytes if there is no plan.
  std::pair<ParallelizeOptions, int64_t> findLeast(mlir::ArrayRef<Candidate> candidates);

private:
  /// The loss of time that the objective `time-then-memory` accepts.
  static constexpr double kNearTime = 1.05;

  PlanSearch(mlir::ModuleOp program, const ParallelizeOptions &request,
             const ProgramExtents &extents, int64_t memoryLimit, const ShortPrograms *shorts);
  /// Searches on short programs and prices the best few plans as a whole. Returns false if that finds
  /// no plan.
  bool runShort(const ShortPrograms &shorts, mlir::ArrayRef<Candidate> candidates);
  /// Lowers the memory of the best plan by ceilings, as the objective asks.
  void saveMemory(mlir::ArrayRef<Candidate> candidates);
  /// The plans without a ceiling, under the limit.
  std::vector<ParallelizeOptions> limit(mlir::ArrayRef<ParallelizeOptions> given) const;
  /// Plans of a large program take seconds.
  bool isLarge() const;
  static void priceLonger(PlanSearch &longer, std::vector<const PricedPlan *> &ranked);
  void search(mlir::ArrayRef<Candidate> candidates);
  /// Prices the options that are not priced yet. Returns the numbers of the plans.
  std::vector<size_t> price(mlir::ArrayRef<ParallelizeOptions> options);
  /// Calls a function with each number below `count`, on the threads of the pricers.
  void forEach(size_t count, llvm::function_ref<void(PlanPricer &, size_t)> work);
  /// Sorts candidates that are too many to plan by estimates. Leaves out candidates without a plan.
  std::vector<Candidate> estimate(mlir::ArrayRef<Candidate> candidates);
  void priceMeshes(mlir::ArrayRef<Candidate> candidates);
  /// Prices the plans of other meshes with the options of one plan.
  std::vector<size_t> carryOver(const ParallelizeOptions &from, llvm::ArrayRef<size_t> meshes);
  /// Prices the plans of meshes with collectives in chunks.
  std::vector<size_t> tryOverlap(llvm::ArrayRef<size_t> meshes);
  /// Changes one option at a time; then two at once, if one alone does not help.
  void improve(size_t plan, bool triesPairs);
  /// Options of which one differs from those of a plan.
  std::vector<ParallelizeOptions> getNeighbours(const ParallelizeOptions &options) const;
  /// Options that save memory at the cost of time.
  ParallelizeOptions getFrugal(ParallelizeOptions options) const;
  /// Adds such options. Scattered tokens may save memory or take more.
  void addFrugal(ParallelizeOptions options, std::vector<ParallelizeOptions> &all) const;
  /// All candidates and their frugal variants, as many as may be priced.
  std::vector<ParallelizeOptions> listFrugal(mlir::ArrayRef<Candidate> candidates) const;
  /// Plans compare by fit, then by the objective.
  bool isBetter(const PlanPrice &a, const PlanPrice &b) const;
  bool choosesMesh() const { return request.ranks || request.isMeshAuto; }
  bool isSpent() const { return getNumPlans() >= maxPlans; }

  mlir::ModuleOp program;
  ParallelizeOptions request;
  ProgramExtents extents;
  Objective objective;
  int64_t memoryLimit, maxPlans;
  const ShortPrograms *shorts;
  /// One for each thread that has had work.
  std::vector<std::unique_ptr<PlanPricer>> pricers;
  std::vector<PricedPlan> plans;
  /// Plans of short programs that are not kept.
  int64_t numDropped = 0;
  /// Candidates that need the least memory by the short programs, if no plan of these fits.
  std::vector<Candidate> least;
  llvm::StringMap<size_t> numbers;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_SEARCH_H
