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

/// The candidates of an operand that the op may read. Leaves out candidates that shard a
/// dimension that the op reads whole, and blocks that it does not take.
Candidates PlacementDerivation::getPlausible(Operation *op, unsigned operand) {
  Candidates candidates = getCandidates(op->getOperand(operand));
  // A reshape has no use for its rule: it takes dimensions apart.
  if (candidates.size() < 2 || mayHaveCandidates(op))
    return candidates;
  const FactorRule *known = memo.getRule(op);
  if (!known)
    return candidates;
  const FactorRule &rule = *known;
  // Keys, whose parts merge, may be sharded around a ring.
  auto isWhole = [&](int factor) {
    const RuleFactor &own = rule.factors[factor];
    return (own.kind == FactorKind::Special || own.kind == FactorKind::Expandable) &&
           !own.isReducedBy(ReductionKind::Merge);
  };
  // An op that keeps blocks takes a block that is not unreduced.
  auto refusesBlock = [&](LayoutRef candidate) {
    SmallVector<LayoutRef> operands(op->getNumOperands(), candidate);
    TransferContext context{op, operands, mesh, nullptr};
    context.rule = known;
    return llvm::any_of(candidate->parts, [&](const Part &part) {
      return part.isBlock() && !layout_transfer::takesPart(context, operand, part);
    });
  };
  Candidates plausible;
  for (LayoutRef candidate : candidates) {
    bool reads = refusesBlock(candidate);
    for (auto [factors, dim] : llvm::zip_equal(rule.operands[operand], candidate->dims))
      reads |= factors.size() == 1 && isWhole(factors[0]) && dim.isSharded();
    if (!reads)
      plausible.push_back(candidate);
  }
  return plausible.empty() ? Candidates{candidates.front()} : plausible;
}

/// Records what an op, or one operand of a collective, makes of combinations of its operands'
/// candidates. `transfer` is given a combination and how to report an error.
LogicalResult PlacementDerivation::addLink(CandidateLink link,
                                           ArrayRef<CandidateCombination> combinations,
                                           TransferOperands transfer) {
  for (const auto &operands : combinations) {
    // An error of one combination among several is not an error of the program.
    bool isOnly = combinations.size() == 1;
    FailureOr<TransferMemo::Outcome> outcome = transfer(operands, /*reports=*/isOnly);
    if (failed(outcome)) {
      if (isOnly)
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
  auto isBlock = [](const auto &combination) {
    return llvm::any_of(combination.second, [](LayoutRef r) { return r->isBlock(); });
  };
  if (!llvm::all_of(link.combinations, isBlock))
    llvm::erase_if(link.combinations, isBlock);
  // Report what is wrong with the likeliest candidate.
  if (link.combinations.empty())
    return success(succeeded(transfer(combinations.front(), /*reports=*/true)));
  for (auto [i, result] : llvm::enumerate(link.results)) {
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
      llvm::any_of(link.operands, [&](Value operand) { return ambiguous.contains(operand); });
  if (constrains || link.combinations.size() > 1)
    links.push_back(std::move(link));
  return success();
}

/// Visits an op whose operands have several candidates, or a reshape, whose result may have
/// several.
LogicalResult PlacementDerivation::visitCandidates(Operation *op) {
  auto emit = [&](bool reports) {
    InFlightDiagnostic diagnostic = reports ? op->emitOpError() : emitError(op->getLoc());
    if (!reports)
      diagnostic.abandon();
    return diagnostic;
  };
  auto note = [&](bool reports, InFlightDiagnostic &diagnostic, unsigned i) {
    if (reports)
      explain(diagnostic, op, i);
  };
  // A collective moves its operands one by one. Combinations of many would be too many.
  if (isa<CollectiveOpInterface>(op) && !isa<ShardingRuleOpInterface>(op) && op->getNumOperands() > 1) {
    for (auto [i, operand, result] : llvm::enumerate(op->getOperands(), op->getResults())) {
      SmallVector<CandidateCombination> candidates;
      for (LayoutRef candidate : getPlausible(op, i))
        candidates.push_back({candidate});
      auto transferOne = [&, i = i](ArrayRef<LayoutRef> operands, bool reports) {
        return memo.transferOne(
            op, i, operands.front(), [&] { return emit(reports); },
            [&](InFlightDiagnostic &diagnostic, unsigned i) { note(reports, diagnostic, i); });
      };
      if (failed(addLink({op, {operand}, {result}, {}}, candidates, transferOne)))
        return failure();
    }
    return success();
  }
  SmallVector<Candidates> candidates;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    candidates.push_back(getPlausible(op, i));
  const FactorRule *rule = mayHaveCandidates(op) ? nullptr : memo.getRule(op);
  return addLink(
      {op, op->getOperands(), op->getResults(), {}}, combineCandidates(op->getOperands(), candidates, rule),
      [&](ArrayRef<LayoutRef> operands, bool reports) {
        return memo.transfer(
            op, operands, [&] { return emit(reports); },
            [&](InFlightDiagnostic &diagnostic, unsigned i) { note(reports, diagnostic, i); });
      });
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
