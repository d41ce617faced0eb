//===- LayoutTransferRule.cpp - layouts by an op's factor rule ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Axes: each factor of the rule gets the pieces (layout factors) of the operands'
// dimensions, which must agree. Unreduced axes: by linearity. Padding: see
// LayoutTransferPadding.cpp.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/RuleTransfer.h"
#include "meshwright/lib/Placement/Splat.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

MaybeLayouts layout_transfer::transferByRule(const TransferContext &context) {
  return RuleTransfer(context).run();
}

static FactorRule getRule(Operation *op) {
  return cast<ShardingRuleOpInterface>(op).getFactorRule();
}

RuleTransfer::RuleTransfer(const TransferContext &context)
    : context(context), op(context.op), operands(context.operands), mesh(context.mesh),
      rule(context.rule ? *context.rule : ownRule.emplace(getRule(context.op))) {
  pieces.resize(rule.factors.size());
  owners.assign(rule.factors.size(), -1);
  reductions.assign(rule.results.size(), ReductionKind::Sum);
  summed.resize(rule.results.size());
  stepParts.resize(rule.results.size());
}

LogicalResult RuleTransfer::mismatch(int factor, ArrayRef<LayoutFactor> list, unsigned operand,
                                     unsigned dim) {
  DimLayout have, got;
  have.factors = pieces[factor];
  got.factors.assign(list.begin(), list.end());
  Layout a, b;
  a.dims.push_back(std::move(have));
  b.dims.push_back(std::move(got));
  return report(context,
                "dimension " + Twine(dim) + " of operand " + Twine(operand) + ": expected layout " +
                    toString(a, mesh) + " of true size " + Twine(a.dims[0].getGlobalSize()) +
                    " as in operand " + Twine(owners[factor]) + ", got " + toString(b, mesh) +
                    " of " + Twine(b.dims[0].getGlobalSize()),
                operand);
}

LogicalResult RuleTransfer::unify(int factor, ArrayRef<LayoutFactor> list, unsigned operand,
                                  unsigned dim) {
  if (owners[factor] < 0) {
    pieces[factor].assign(list.begin(), list.end());
    owners[factor] = operand;
    return success();
  }
  bool broadcasts = cast<ShardingRuleOpInterface>(op).mayBroadcast(operand, dim);
  // An elementwise op has no groups: two elements do not broadcast against four.
  bool groups = broadcasts && !op->hasTrait<Elementwise>();
  if (!mergePieces(pieces[factor], list, mesh, broadcasts, groups))
    return mismatch(factor, list, operand, dim);
  // An equal element could be a chunk of several, until another operand shows that it is all.
  auto isAll = [](const LayoutFactor &piece) { return piece.padded == 1 && !piece.uniform; };
  if (!llvm::all_of(pieces[factor], isAll))
    llvm::erase_if(pieces[factor], isAll);
  return success();
}

static bool startsWith(ArrayRef<LayoutFactor> list, ArrayRef<LayoutFactor> prefix) {
  return llvm::equal(
      list.take_front(prefix.size()), prefix,
      [](const LayoutFactor &a, const LayoutFactor &b) { return a.sameShardingAs(b); });
}

/// Distributes the pieces of a dimension over several rule factors. A factor with known
/// pieces takes the same ones, another factor takes pieces of its local size.
LogicalResult RuleTransfer::unifyProduct(ArrayRef<int> factors, const DimLayout &layout,
                                         unsigned operand, unsigned dim) {
  bool uniform = llvm::all_of(layout.factors, [](const LayoutFactor &f) {
    return f.uniform || (f.size == 1 && f.padded == 1);
  });
  if (uniform) {
    // A single element of a dimension of size 1 is not uniform.
    bool any = llvm::any_of(layout.factors, [](const LayoutFactor &f) { return f.uniform; });
    for (int factor : factors) {
      LayoutFactor piece = makeFactor(rule.factors[factor].size, any);
      if (failed(unify(factor, piece, operand, dim)))
        return failure();
    }
    return success();
  }

  Pieces rest(layout.factors.begin(), layout.factors.end());
  llvm::erase_if(rest, [](const LayoutFactor &f) { return f.uniform && f.padded == 1; });
  auto cannotSplit = [&] {
    return report(context,
                  "dimension " + Twine(dim) + " of operand " + Twine(operand) +
                      " does not split into the factors that the op reads",
                  operand);
  };
  for (int factor : factors.drop_back()) {
    Pieces taken;
    LayoutFactor upper, lower;
    if (owners[factor] >= 0 && startsWith(rest, pieces[factor])) {
      auto end = rest.begin() + pieces[factor].size();
      taken.assign(rest.begin(), end);
      rest.erase(rest.begin(), end);
    } else if (owners[factor] >= 0 &&
               llvm::none_of(pieces[factor], [](const LayoutFactor &f) { return f.uniform; })) {
      for (const LayoutFactor &want : pieces[factor]) {
        if (want.size == 1 && want.padded == 1)
          continue;
        if (rest.empty())
          return cannotSplit();
        LayoutFactor &head = rest.front();
        if (head.sameShardingAs(want)) {
          taken.push_back(head);
          rest.erase(rest.begin());
        } else if (head.size % want.size == 0 && head.size > want.size &&
                   splitFactor(head, head.size / want.size, mesh, upper, lower) &&
                   upper.sameShardingAs(want)) {
          taken.push_back(upper);
          head = lower;
        } else {
          return cannotSplit();
        }
      }
    } else {
      int64_t need = rule.factors[factor].size;
      while (need > 1 && !rest.empty()) {
        LayoutFactor &head = rest.front();
        int64_t local = head.getLocalSize();
        if (need % local == 0) {
          need /= local;
          taken.push_back(head);
          rest.erase(rest.begin());
        } else if (local % need == 0 && splitFactor(head, local / need, mesh, upper, lower)) {
          taken.push_back(upper);
          head = lower;
          need = 1;
        } else {
          return cannotSplit();
        }
      }
    }
    if (taken.empty())
      taken.push_back(makeFactor(1));
    if (failed(unify(factor, taken, operand, dim)))
      return failure();
  }
  int64_t local = 1;
  for (const LayoutFactor &piece : rest)
    local *= piece.getLocalSize();
  if (rest.empty())
    rest.push_back(makeFactor(1));
  if (local != rule.factors[factors.back()].size)
    return cannotSplit();
  return unify(factors.back(), rest, operand, dim);
}

LogicalResult RuleTransfer::collect() {
  bool products = false;
  for (auto [i, dims] : llvm::enumerate(rule.operands)) {
    for (auto [d, factors] : llvm::enumerate(dims)) {
      const DimLayout &layout = operands[i]->dims[d];
      products |= factors.size() > 1;
      if (factors.size() == 1 && failed(unify(factors[0], layout.factors, i, d)))
        return failure();
      if (factors.empty() && layout.isSharded())
        return report(context,
                      "stretches dimension " + Twine(d) + " of operand " + Twine(i) +
                          ", which is sharded over " + toString(layout.getAxes(), mesh),
                      i);
    }
  }
  if (products)
    for (auto [i, dims] : llvm::enumerate(rule.operands))
      for (auto [d, factors] : llvm::enumerate(dims))
        if (factors.size() > 1 && failed(unifyProduct(factors, operands[i]->dims[d], i, d)))
          return failure();
  // Factors that only the result has are uniform.
  for (auto [f, list] : llvm::enumerate(pieces))
    if (owners[f] < 0)
      list.push_back(makeFactor(rule.factors[f].size, /*uniform=*/true));
  return success();
}

AxisList RuleTransfer::getAxes(int factor) const {
  AxisList axes;
  for (const LayoutFactor &piece : pieces[factor])
    axes.append(piece.axes.begin(), piece.axes.end());
  return axes;
}

bool layout_transfer::isWhole(const RuleFactor &factor) {
  return factor.kind == FactorKind::Special || factor.kind == FactorKind::Expandable;
}

bool layout_transfer::hasBias(Operation *op) {
  auto matrix = dyn_cast<MatrixOpInterface>(op);
  return matrix && matrix.getBiasOperand();
}

LogicalResult RuleTransfer::checkAxes() {
  AxisList all;
  std::optional<std::pair<int, int>> ring = getRingFactors();
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    // A result depends on the size of a factor that the op reads whole.
    if (isWhole(factor))
      for (LayoutFactor &piece : pieces[f])
        piece.uniform = false;
    AxisList axes = getAxes(f);
    // Sharded keys may share axes with the queries (see joinParts).
    if (axes.empty() || factor.isReducedBy(ReductionKind::Merge) ||
        (ring && ring->second == int(f)))
      continue;
    if (anyOverlap(all, axes) && !keepsBlocks(op))
      return report(context, "axes " + toString(axes, mesh) +
                                 " shard two dimensions that the op does not tie: each rank would "
                                 "have a part of the result that no layout describes");
    all.append(axes.begin(), axes.end());
    if (isWhole(factor))
      return report(context,
                    "needs the whole of a dimension of operand " + Twine(owners[f]) +
                        " that is sharded over " + toString(axes, mesh),
                    owners[f]);
    // A ring sums over queries and keys step by step. Each rank has its own sum of a result that
    // has neither as a dimension.
    if (ring && ring->first == int(f)) {
      for (unsigned result = 0; result < reductions.size(); ++result)
        if (!hasFactorInResult(result, ring->first) && !hasFactorInResult(result, ring->second))
          summed[result].append(axes.begin(), axes.end());
      continue;
    }
    if (factor.kind == FactorKind::Parallel)
      continue;
    for (unsigned result = 0; result < reductions.size(); ++result) {
      if (!rule.isReducedIn(f, result))
        continue;
      if (!summed[result].empty() && reductions[result] != factor.getReduction(result))
        return report(context, "combines the parts of two sharded dimensions in different ways");
      reductions[result] = factor.getReduction(result);
      summed[result].append(axes.begin(), axes.end());
    }
    contracted.append(axes.begin(), axes.end());
  }
  if (contracted.empty())
    return success();
  contracted = makeSet(contracted, mesh);
  if (hasBias(op))
    return report(context, "adds its bias on every rank of " + toString(contracted, mesh) +
                               ", over which the product is unreduced");
  return success();
}

LogicalResult RuleTransfer::checkOrder() {
  return op->hasTrait<CountsElements>() ? checkContiguousOrder("they have layout ") : success();
}

LogicalResult RuleTransfer::checkContiguousOrder(StringRef hint) {
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    if (!isWhole(factor))
      continue;
    if (llvm::all_of(pieces[f], [](const LayoutFactor &p) { return p.isContiguous(); }))
      continue;
    Layout own;
    own.dims.emplace_back().factors = pieces[f];
    return report(context,
                  "counts elements of a dimension of operand " + Twine(owners[f]) +
                      ", which are not in contiguous order: " + hint + toString(own, mesh),
                  owners[f]);
  }
  return success();
}

/// The rule does not say how the offset of a table counts its rows.
LogicalResult RuleTransfer::checkTable() {
  auto lookup = dyn_cast<LookupOpInterface>(op);
  if (!lookup || !lookup.takesOffset())
    return success();
  return report(context, "takes an offset in a table, and has no model of its layouts");
}

/// The rule does not say how parts merge.
LogicalResult RuleTransfer::joinParts() {
  for (auto [f, factor] : llvm::enumerate(rule.factors))
    if (factor.isReducedBy(ReductionKind::Merge) && !getAxes(f).empty())
      return report(context, "has results that merge over " + toString(getAxes(f), mesh) +
                                 ", and has no model of its layouts");
  return success();
}

bool RuleTransfer::hasFactorInResult(unsigned result, int factor) const {
  for (auto [d, factors] : llvm::enumerate(rule.results[result]))
    if (llvm::is_contained(factors, factor))
      return getBroadcastAxes(result, d).empty();
  return false;
}

LogicalResult RuleTransfer::checkUnreduced() {
  auto *found = llvm::find_if(operands, [](const Layout *own) { return own->isUnreduced(); });
  if (found == operands.end())
    return success();
  int source = found - operands.begin();
  unreduced = (*found)->getUnreduced();
  std::string axes = toString(unreduced, mesh);
  if (llvm::is_contained(reductions, ReductionKind::Max))
    return report(context,
                  "takes a maximum of parts of operand " + Twine(source) +
                      ", which is unreduced over " + axes,
                  source);
  ReductionKind reduction = (*found)->getReduction();
  reductions.assign(reductions.size(), reduction);
  if (reduction == ReductionKind::Max && rule.takesParts(source, ReductionKind::Max))
    return checkMaximum(source);
  for (auto [i, layout] : llvm::enumerate(operands)) {
    if (static_cast<int>(i) == source)
      continue;
    bool joint = rule.jointlyLinear && rule.takesParts(i, ReductionKind::Sum);
    if (joint) {
      if (layout->getUnreduced() == unreduced && layout->getReduction() == reduction)
        continue;
      if (padding::getSplat(op->getOperand(i)) == 0.0)
        continue;
      if (!layout->isUnreduced())
        return report(context,
                      "adds an unreduced value to a replicated one: operand " + Twine(source) +
                          " is unreduced over " + axes + ", operand " + Twine(i) + " is not",
                      source);
      return report(context,
                    "adds values unreduced over different axes: operand " + Twine(source) +
                        " over " + axes + ", operand " + Twine(i) + " over " +
                        toString(layout->getUnreduced(), mesh),
                    i);
    }
    if (layout->isUnreduced())
      return report(context,
                    "multiplies two unreduced values: operand " + Twine(source) + " over " + axes +
                        ", operand " + Twine(i) + " over " + toString(layout->getUnreduced(), mesh),
                    i);
    if (layout->uses(unreduced))
      return report(context,
                    "operand " + Twine(i) + " differs between the ranks of " + axes +
                        ", over which operand " + Twine(source) + " is unreduced",
                    i);
  }
  return success();
}

/// Checks the other operands of an op that reads parts of a maximum: each is such parts over the
/// same axes, or equal on the ranks of these axes.
LogicalResult RuleTransfer::checkMaximum(int source) {
  for (auto [i, layout] : llvm::enumerate(operands)) {
    if (layout->getUnreduced() == unreduced && layout->getReduction() == ReductionKind::Max &&
        rule.takesParts(i, ReductionKind::Max))
      continue;
    if (layout->isUnreduced() || layout->uses(unreduced))
      return report(context,
                    "operand " + Twine(i) + " differs between the ranks of " +
                        toString(unreduced, mesh) + ", over which operand " + Twine(source) +
                        " is a maximum that is not yet taken",
                    i);
  }
  return success();
}

/// A dimension of the operand that is of size 1 and not sharded, where the factor that it is tied
/// to is, broadcasts. If it holds equal elements, it may also be read as the chunks of that factor.
/// It is read so where the sum of a broadcast would read padding.
AxisList RuleTransfer::getBroadcastAxes(unsigned result, unsigned dim) const {
  for (auto [own, operand] : rule.broadcastResults) {
    const DimLayout &layout = operands[operand]->dims[dim];
    if (own != int(result) || layout.getLocalSize() != 1 || layout.isSharded())
      continue;
    bool isEqual = llvm::any_of(layout.factors, [](const LayoutFactor &f) { return f.uniform; });
    AxisList axes;
    for (int factor : rule.results[result][dim]) {
      if (isEqual && context.tracksPadding && failed(checkSum(factor, /*reports=*/false)))
        return {};
      axes.append(getAxes(factor));
    }
    return axes;
  }
  return {};
}

Layout RuleTransfer::makeResult(unsigned result) const {
  Layout layout;
  AxisList open = unreduced;
  std::optional<std::pair<int, int>> ring = getRingFactors();
  for (auto [d, factors] : llvm::enumerate(rule.results[result])) {
    DimLayout &dim = layout.dims.emplace_back();
    AxisList broadcast = getBroadcastAxes(result, d);
    // The steps of a ring sum over its axes (see checkAxes).
    if (!ring || !anyOverlap(broadcast, getAxes(ring->first)))
      open.append(broadcast);
    if (broadcast.empty())
      for (int factor : factors)
        dim.factors.append(pieces[factor].begin(), pieces[factor].end());
    if (dim.factors.empty())
      dim.factors.push_back(makeFactor(1));
  }
  open.append(summed[result]);
  layout.setUnreduced(std::move(open), reductions[result]);
  if (stepParts[result])
    layout.parts.push_back(*stepParts[result]);
  describeElements(result, layout);
  canonicalize(layout, mesh);
  return layout;
}

MaybeLayouts RuleTransfer::run() {
  if (rule.operands.size() != operands.size() || rule.results.size() != op->getNumResults())
    return LogicalResult(
        report(context, "has a factor rule that does not fit its operands and results"));
  if (failed(collect()))
    return failure();
  refinePieces();
  if (failed(checkAxes()) || failed(checkTable()) || failed(checkOrder()) ||
      failed(checkUnreduced()) || failed(joinParts()) || failed(checkReadPadding()))
    return failure();
  ResultLayouts layouts;
  for (unsigned result = 0; result < rule.results.size(); ++result)
    layouts.push_back(makeResult(result));
  return layouts;
}
