//===- PlacementCandidates.cpp - values with several candidate layouts ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An op whose operands have several candidate layouts links combinations of them to
// candidates of its results. The walk records these links; `resolve` chooses one layout
// of each value at its end.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/LayoutTransferDetail.h"
#include "meshwright/lib/Placement/PlacementDerivation.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The number of combinations of operands' candidates that one op is tried with.
static constexpr size_t kMaxCombinations = 256;

/// The candidates of an operand that the op may read. Leaves out candidates that shard a
/// dimension that the op reads whole, and blockwise candidates that it does not support.
Candidates PlacementDerivation::getPlausible(Operation *op, unsigned operand) {
  Candidates candidates = getCandidates(op->getOperand(operand));
  // A reshape has no use for its rule: it takes dimensions apart.
  if (candidates.size() < 2 || isa<nn::ReshapeOp>(op))
    return candidates;
  const FactorRule *known = memo.getRule(op);
  if (!known)
    return candidates;
  const FactorRule &rule = *known;
  // Keys, whose parts merge, may be sharded around a ring.
  auto isWhole = [&](int factor) {
    const RuleFactor &own = rule.factors[factor];
    return (own.kind == FactorKind::Special || own.kind == FactorKind::Expandable) &&
           !own.isReducedBy(FactorReduction::Merge);
  };
  bool takesBlocks = layout_transfer::keepsBlocks(op) || layout_transfer::takesBlocks(op, operand);
  Candidates plausible;
  for (LayoutRef candidate : candidates) {
    bool reads = !takesBlocks && candidate->isBlockwise();
    for (auto [factors, dim] : llvm::zip_equal(rule.operands[operand], candidate->dims))
      reads |= factors.size() == 1 && isWhole(factors[0]) && dim.isSharded();
    if (!reads)
      plausible.push_back(candidate);
  }
  return plausible.empty() ? Candidates{candidates.front()} : plausible;
}

/// Combinations of one candidate for each operand, at most `kMaxCombinations`. The first
/// combinations are those whose operands agree on the axes of each factor of the op's rule.
SmallVector<SmallVector<LayoutRef, 4>> PlacementDerivation::combineCandidates(Operation *op) {
  const FactorRule *rule = isa<nn::ReshapeOp>(op) ? nullptr : memo.getRule(op);
  // Values that one collective moves mostly have the same sharding.
  bool isMove = isa<DistDialect>(op->getDialect());
  auto agrees = [&](ArrayRef<LayoutRef> prefix, LayoutRef candidate) {
    if (isMove && !prefix.empty())
      return llvm::equal(
          prefix.front()->dims, candidate->dims,
          [](const DimLayout &a, const DimLayout &b) { return a.getAxes() == b.getAxes(); });
    if (!rule || rule->operands.empty())
      return true;
    llvm::SmallDenseMap<int, AxisList> known;
    auto add = [&](unsigned operand, LayoutRef own) {
      for (auto [factors, dim] : llvm::zip_equal(rule->operands[operand], own->dims))
        if (factors.size() == 1) {
          auto [it, isNew] = known.try_emplace(factors.front(), dim.getAxes());
          if (!isNew && it->second != dim.getAxes())
            return false;
        }
      return true;
    };
    for (auto [i, own] : llvm::enumerate(prefix))
      add(i, own);
    return add(prefix.size(), candidate);
  };
  SmallVector<SmallVector<LayoutRef, 4>> combinations(1);
  for (OpOperand &operand : op->getOpOperands()) {
    SmallVector<SmallVector<LayoutRef, 4>> longer, others;
    for (LayoutRef candidate : getPlausible(op, operand.getOperandNumber()))
      for (const auto &prefix : combinations) {
        auto &list = agrees(prefix, candidate) ? longer : others;
        if (list.size() == kMaxCombinations)
          continue;
        list.push_back(prefix);
        list.back().push_back(candidate);
      }
    longer.append(others.begin(), others.end());
    longer.truncate(std::min(longer.size(), kMaxCombinations));
    combinations = std::move(longer);
  }
  return combinations;
}

/// Visits an op whose operands have several candidates, or a reshape, whose result may have
/// several.
LogicalResult PlacementDerivation::visitCandidates(Operation *op) {
  SmallVector<SmallVector<LayoutRef, 4>> combinations = combineCandidates(op);
  CandidateLink link{op, op->getOperands(), op->getResults(), {}};
  bool single = combinations.size() == 1;
  for (const auto &operands : combinations) {
    // An error of one combination among several is not an error of the program.
    auto emit = [&] {
      if (single)
        return op->emitOpError();
      InFlightDiagnostic silent = emitError(op->getLoc());
      silent.abandon();
      return silent;
    };
    auto note = [&](InFlightDiagnostic &diagnostic, unsigned i) {
      if (single)
        explain(diagnostic, op, i);
    };
    FailureOr<TransferMemo::Outcome> outcome = memo.transfer(op, operands, emit, note);
    if (failed(outcome)) {
      if (single)
        return failure();
      continue;
    }
    link.combinations.push_back({operands, outcome->results});
    for (LayoutRef alternative : outcome->alternatives)
      link.combinations.push_back({operands, {alternative}});
  }
  // Operands that are sharded over the same axes in different dimensions give blockwise
  // results. Few programs mean them, and they take the place of other combinations: drop
  // them if there are others.
  auto isBlockwise = [](const auto &combination) {
    return llvm::any_of(combination.second, [](LayoutRef r) { return r->isBlockwise(); });
  };
  if (!llvm::all_of(link.combinations, isBlockwise))
    llvm::erase_if(link.combinations, isBlockwise);
  if (link.combinations.empty()) {
    // Report what is wrong with the likeliest candidate.
    FailureOr<ResultLayouts> results =
        transfer({op, combinations.front(), mesh, [&] { return op->emitOpError(); },
                  [&](InFlightDiagnostic &diagnostic, unsigned i) { explain(diagnostic, op, i); }});
    return success(succeeded(results));
  }
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    Candidates candidates;
    for (const auto &combination : link.combinations)
      if (!llvm::is_contained(candidates, combination.second[i]))
        candidates.push_back(combination.second[i]);
    set(result, candidates.front());
    if (candidates.size() > 1) {
      ambiguous[result] = std::move(candidates);
      analysis.ambiguous.insert(result);
    }
  }
  bool constrains =
      llvm::any_of(op->getOperands(), [&](Value operand) { return ambiguous.contains(operand); });
  if (constrains || link.combinations.size() > 1)
    links.push_back(std::move(link));
  return success();
}

/// Chooses for each value one candidate with which all its users are right.
LogicalResult PlacementDerivation::resolve() {
  if (auto conflict = chooseCandidates(links, ambiguous, [&](Value value) { return get(value); })) {
    const CandidateLink &link = links[*conflict];
    size_t i = 0;
    while (i + 1 < link.operands.size() && !ambiguous.contains(link.operands[i]))
      ++i;
    InFlightDiagnostic diagnostic = link.op->emitOpError() << "reads operand " << i
                                                           << " otherwise than its other users do";
    diagnostic.attachNote(link.operands[i].getLoc()) << "the operand is from here";
    return diagnostic;
  }
  for (auto &[value, candidates] : ambiguous)
    set(value, candidates.front());
  return success();
}
