//===- SplitRegion.cpp - ops that can run in chunks -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/SplitRegionGrowth.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

bool meshwright::isHeavy(Operation *op) {
  return op->hasTrait<Product>();
}

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

bool SplitRegion::cut(int64_t count) {
  // Products are fastest with full blocks of rows.
  constexpr int64_t kBlock = 16;
  int64_t unit = multiple;
  if (rows >= 4 * count * std::lcm(multiple, kBlock))
    unit = std::lcm(multiple, kBlock);
  // The last chunk has at least one true row.
  int64_t units = llvm::divideCeil(rows, unit);
  if (units < count)
    return false;
  bounds.clear();
  for (int64_t i = 0; i < count; ++i)
    bounds.push_back(i * units / count * unit);
  return true;
}

int64_t SplitRegion::getSize(const TokenDim &token, unsigned i) const {
  int64_t end = i + 1 < bounds.size() ? bounds[i + 1] : getRows(token);
  return (end - bounds[i]) / getNumShards(token.axes);
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

/// The axes that a redistribute takes from a dimension (`lost`) and adds to it (`gained`).
/// Returns false if it changes the dimension in another way.
bool SplitRegionFinder::getMovedAxes(CollectiveOpInterface op, unsigned number, int64_t dim,
                                     AxisList &gained, AxisList &lost) const {
  auto [source, target] = *op.getShardings(number);
  const Layout *from = placement.lookup(op->getOperand(number));
  const Layout *to = placement.lookup(op->getResult(number));
  if (!from || !to || source.getMesh() != target.getMesh())
    return false;
  for (const Layout *layout : {from, to})
    for (const LayoutFactor &factor : layout->dims[dim].factors)
      if (factor.order != TokenOrder::Contiguous || factor.shift != 0 ||
          layout->dims[dim].factors.size() > 1)
        return false;
  AxisList before = from->dims[dim].getAxes(), after = to->dims[dim].getAxes();
  size_t kept = std::min(before.size(), after.size());
  if (!llvm::equal(ArrayRef<Axis>(before).take_front(kept), ArrayRef<Axis>(after).take_front(kept)))
    return false;
  lost.assign(before.begin() + kept, before.end());
  gained.assign(after.begin() + kept, after.end());
  return true;
}

/// Matches an op that moves rows to other ranks or changes their number: collectives,
/// padding, and the slice that strips padding. Result `i` is made of operand `i`. `token`
/// states the rows of one of them; returns those of the other.
std::optional<TokenDim> SplitRegionFinder::matchMove(Operation *op, bool isResult, unsigned number,
                                                     const TokenDim &token) const {
  if (op->getNumOperands() != op->getNumResults())
    return std::nullopt;
  auto from = dyn_cast<RankedTensorType>(op->getOperand(number).getType());
  auto to = dyn_cast<RankedTensorType>(op->getResult(number).getType());
  int64_t dim = token.dim;
  // The change of the axes over which the rows are scattered.
  AxisList gained, lost;
  bool resized = false, padsChunks = false;
  auto getOwnAxes = [&] { return getCollectiveAxes(op, mesh); };
  if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
    if (collective.getShardings(number)) {
      if (!getMovedAxes(collective, number, dim, gained, lost))
        return std::nullopt;
    } else if (collective.movesChunks() && anyOverlap(getOwnAxes(), token.axes)) {
      // The rows of one rank would become those of another.
      return std::nullopt;
    } else {
      padsChunks = collective.padsChunks();
      if (collective.getLostDim(number) == dim)
        lost = getOwnAxes();
      if (collective.getGainedDim(number) == dim)
        gained = getOwnAxes();
    }
  } else if (auto pad = dyn_cast<PadOp>(op)) {
    resized = llvm::is_contained(pad.getDims(), dim);
  } else if (auto mask = dyn_cast<MaskPaddingOp>(op)) {
    if (mask.getDim() == uint64_t(dim) && (token.inner != 1 || getOwnAxes() != token.axes ||
                                           getRows(token) < int64_t(mask.getSize())))
      return std::nullopt;
  } else if (auto strip = dyn_cast<nn::SliceOp>(op)) {
    if (strip.getStarts()[dim] != 0 || strip.getStrides()[dim] != 1)
      return std::nullopt;
    resized = from.getDimSize(dim) != to.getDimSize(dim);
  } else {
    return std::nullopt;
  }
  // Padding of scattered rows is at the tail of the last rank only, not of each rank.
  if (resized && !token.axes.empty())
    return std::nullopt;
  TokenDim other = token;
  const AxisList &removed = isResult ? gained : lost, &added = isResult ? lost : gained;
  if (removed.size() > other.axes.size() ||
      !llvm::equal(removed, ArrayRef<Axis>(other.axes).take_back(removed.size())))
    return std::nullopt;
  other.axes.truncate(other.axes.size() - removed.size());
  other.axes.append(added.begin(), added.end());
  // Each rank has the same number of whole rows. A slice pads rows that do not divide.
  int64_t size = (isResult ? from : to).getDimSize(dim);
  other.size = other.padded = size / other.inner;
  bool keepsRows = !resized && !padsChunks;
  if (size % other.inner != 0 || (keepsRows && getRows(other) != getRows(token)))
    return std::nullopt;
  return other;
}

/// Matches an op that can compute chunks of the rows in `token` of one of its values. If
/// only another operand prevents that, `reason` states it.
std::optional<ChunkOp> SplitRegionFinder::match(Operation *op, bool isResult, unsigned number,
                                                const TokenDim &token, std::string &reason) const {
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface || isa<DistDialect>(op->getDialect()))
    return std::nullopt;
  FactorRule rule = interface.getFactorRule();
  const FactorRule::ValueFactors &dims = isResult ? rule.results[number] : rule.operands[number];
  std::optional<TokenFactor> where = findTokens(rule, dims[token.dim], token);
  if (!where || where->outer != 1 || rule.factors[where->factor].kind != FactorKind::Parallel)
    return std::nullopt;
  if (op->hasTrait<nn::CountsRows>() &&
      (llvm::is_contained(rule.operands[0][0], where->factor) ||
       llvm::is_contained(rule.results[0][0], where->factor)))
    return std::nullopt;
  // Parts of attention belong together by their queries and keys. Chunks of queries or
  // keys would hide that; chunks of a batch or of heads keep it.
  auto part = dyn_cast<LogSumExpOpInterface>(op);
  if (part && part.getLogSumExp()) {
    const FactorRule::ValueFactors &result = rule.results[0];
    if (!llvm::is_contained(result[0], where->factor) &&
        !llvm::is_contained(result[1], where->factor))
      return std::nullopt;
  }
  ChunkOp how;
  how.op = op;
  for (const FactorRule::ValueFactors &factors : rule.operands)
    how.operands.push_back(placeTokens(rule, factors, *where, token));
  for (const FactorRule::ValueFactors &factors : rule.results) {
    std::optional<TokenDim> result = placeTokens(rule, factors, *where, token);
    if (!result)
      return std::nullopt;
    how.results.push_back(*result);
  }
  // With chunks a rank has other scattered rows than without. So its other operands must
  // be the same on all ranks that the rows are scattered over.
  for (auto [operand, own] : llvm::zip_equal(op->getOperands(), how.operands)) {
    const Layout *layout = placement.lookup(operand);
    if (own || (layout && !layout->uses(token.axes)))
      continue;
    reason = (op->getName().getStringRef() +
              " reads, beside its rows, a value that differs between the ranks of " +
              toString(token.axes, mesh) + ", over which they are scattered")
                 .str();
    return std::nullopt;
  }
  // Rows that are not outermost would be cut out of each outer row.
  for (const std::optional<TokenDim> &operand : how.operands)
    if (operand && operand->outer != 1)
      return std::nullopt;
  for (const TokenDim &result : how.results)
    if (result.outer != 1)
      return std::nullopt;
  return how;
}

//===----------------------------------------------------------------------===//
// Growing
//===----------------------------------------------------------------------===//

/// Takes in an op, if it can compute chunks of the rows in `token` of one of its values.
void SplitRegionFinder::visit(Operation *op, bool isResult, unsigned number, const TokenDim &token,
                              Growth &growth, SmallVectorImpl<Value> &worklist) const {
  if (op->getBlock() != &block || op->getNumRegions() != 0 || op->getNumResults() == 0 ||
      op->hasTrait<OpTrait::ConstantLike>() || claimed.contains(op) || growth.excluded.contains(op))
    return;
  auto add = [&](Value value, const TokenDim &own) {
    if (growth.tokens.insert({value, own}).second)
      worklist.push_back(value);
  };
  auto known = growth.ops.find(op);
  if (std::optional<TokenDim> other = matchMove(op, isResult, number, token)) {
    const TokenDim &rows = isResult ? *other : token;
    if (auto before = alone.find({op, number, rows.dim}); before != alone.end() && before->second == rows)
      return;
    Value from = op->getOperand(number), to = op->getResult(number);
    if (!growth.agrees(isResult ? from : to, *other))
      return;
    if (known == growth.ops.end()) {
      ChunkOp how;
      how.op = op;
      how.operands.resize(op->getNumOperands());
      how.results.resize(op->getNumResults());
      known = growth.ops.insert({op, std::move(how)}).first;
    }
    known->second.operands[number] = rows;
    known->second.results[number] = isResult ? token : *other;
    add(isResult ? from : to, *other);
    return;
  }
  if (known != growth.ops.end())
    return;
  std::optional<ChunkOp> how = match(op, isResult, number, token, growth.reason);
  if (!how)
    return;
  for (auto [operand, own] : llvm::zip_equal(op->getOperands(), how->operands))
    if (own && !growth.agrees(operand, *own))
      return;
  for (auto [result, own] : llvm::zip_equal(op->getResults(), how->results))
    if (!growth.agrees(result, own))
      return;
  for (auto [operand, own] : llvm::zip_equal(op->getOperands(), how->operands))
    if (own)
      add(operand, *own);
  for (auto [result, own] : llvm::zip_equal(op->getResults(), how->results))
    add(result, own);
  growth.ops[op] = std::move(*how);
}

void SplitRegionFinder::grow(Value seed, const TokenDim &token, Growth &growth) const {
  // Whether a move has rows in each of its values is known at the end of a growth.
  for (bool isDone = false; !isDone;) {
    growth.tokens.clear();
    growth.ops.clear();
    growth.tokens[seed] = token;
    SmallVector<Value> worklist{seed};
    while (!worklist.empty()) {
      Value value = worklist.pop_back_val();
      TokenDim own = growth.tokens.lookup(value);
      if (Operation *producer = value.getDefiningOp())
        visit(producer, true, cast<OpResult>(value).getResultNumber(), own, growth, worklist);
      for (OpOperand &use : value.getUses())
        visit(use.getOwner(), false, use.getOperandNumber(), own, growth, worklist);
    }
    isDone = true;
    for (auto &[op, how] : growth.ops)
      if (isa<DistDialect>(op->getDialect()) &&
          llvm::any_of(how.operands, [](const auto &own) { return !own; })) {
        growth.excluded[op] = how;
        isDone = false;
      }
  }
}

//===----------------------------------------------------------------------===//
// Values that enter and leave
//===----------------------------------------------------------------------===//

int64_t SplitRegionFinder::getTrueRows(Value value, const TokenDim &token) const {
  const Layout *layout = placement.lookup(value);
  if (!layout || !layout->dims[token.dim].isPadded())
    return getRows(token);
  const DimLayout &dim = layout->dims[token.dim];
  // Rows with padding in another position than their tail are not supported.
  if (dim.factors.size() != 1 || dim.factors.front().axes != token.axes)
    return 0;
  return dim.getGlobalSize() / token.inner;
}

/// Returns true if a value can be cut into chunks or joined from them: each rank has all
/// rows, or rows of its own in the whole program. Otherwise `reason` states why not.
bool SplitRegionFinder::addBoundary(Value value, const TokenDim &token, SplitRegion &region,
                                    std::string &reason) const {
  if (!token.axes.empty()) {
    reason = "rows that are scattered over " + toString(token.axes, mesh) +
             " leave the ops that can run in chunks";
    return false;
  }
  const Layout *layout = placement.lookup(value);
  if (!layout)
    return false;
  const DimLayout &dim = layout->dims[token.dim];
  bool isJoined = region.index.contains(value.getDefiningOp());
  if (isJoined && llvm::any_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; })) {
    reason = "the rows are equal where the ops that can run in chunks end, which chunks do not show";
    return false;
  }
  if (layout->getPartOfSource()) {
    reason = "attention over a part of the keys leaves the ops that can run in chunks";
    return false;
  }
  if (layout->getIncompletePart()) {
    reason = "keys that some ranks lack leave the ops that can run in chunks";
    return false;
  }
  if (layout->isBlock()) {
    reason = "a value is in blocks where the ops that can run in chunks end";
    return false;
  }
  if (!dim.isSharded())
    return true;
  if (dim.isPadded() || dim.factors.size() != 1) {
    reason = "the rows are sharded over " + toString(dim.getAxes(), mesh) +
             " with padding where the ops that can run in chunks end";
    return false;
  }
  // Only in contiguous order are chunks of each rank's own rows chunks of the sequence.
  if (const LayoutFactor &factor = dim.factors.front();
      factor.order != TokenOrder::Contiguous || factor.shift != 0) {
    reason = "the rows are not in contiguous order where the ops that can run in chunks end";
    return false;
  }
  region.sharded.insert(value);
  return true;
}

/// Adds the values of a region's ops. Checks that
///  - values that enter or leave the region can be cut or joined (`addBoundary`);
///  - there are rows for two chunks.
bool SplitRegionFinder::addValues(SplitRegion &region, std::string &reason) const {
  region.rows = std::numeric_limits<int64_t>::max();
  auto add = [&](Value value, const TokenDim &token) {
    region.tokens[value] = token;
    region.multiple = std::lcm(region.multiple, getNumShards(token.axes));
    region.rows = std::min(region.rows, getTrueRows(value, token));
  };
  for (const ChunkOp &how : region.ops) {
    for (auto [operand, token] : llvm::zip_equal(how.op->getOperands(), how.operands)) {
      if (!token)
        continue;
      Operation *producer = operand.getDefiningOp();
      if (!(producer && region.index.contains(producer)) &&
          !addBoundary(operand, *token, region, reason))
        return false;
      add(operand, *token);
    }
    for (auto [result, token] : llvm::zip_equal(how.op->getResults(), how.results)) {
      add(result, token);
      for (OpOperand &use : result.getUses())
        if (!region.readsChunk(use) && !addBoundary(result, token, region, reason))
          return false;
    }
  }
  if (region.rows < 2 * region.multiple) {
    reason = "expected at least " + std::to_string(2 * region.multiple) + " rows, got " +
             std::to_string(region.rows);
    return false;
  }
  return true;
}

SmallVector<SplitRegion, 2> SplitRegionFinder::find(Operation *collective, std::string &reason) {
  SmallVector<SplitRegion, 2> regions;
  bool anyRows = false, anyAlone = false, reorders = false;
  if (collective->hasTrait<nn::CountsRows>()) {
    reason = "a run tells the number of its rows";
    return regions;
  }
  auto tryRows = [&](unsigned number, int64_t dim) {
    // Starts at the side of the collective on which the rows are whole.
    bool gathers = false;
    if (auto op = cast<CollectiveOpInterface>(collective); !op.getShardings(number)) {
      gathers = op.getLostDim(number) == dim;
    } else {
      AxisList gained, lost;
      if (!getMovedAxes(op, number, dim, gained, lost)) {
        reorders = true;
        return;
      }
      gathers = !lost.empty();
    }
    Value seed = gathers ? collective->getResult(number) : collective->getOperand(number);
    if (typeOf(seed).getDimSize(dim) < 2)
      return;
    anyRows = true;
    auto [known, isNew] = tried.try_emplace({collective, number, dim});
    if (!isNew) {
      anyAlone |= !known->second;
      if (reason.empty() && known->second)
        reason = *known->second;
      return;
    }
    TokenDim token;
    token.dim = dim;
    token.size = token.padded = typeOf(seed).getDimSize(dim);
    Growth growth;
    grow(seed, token, growth);
    for (auto &[op, how] : growth.excluded)
      for (auto [i, own] : llvm::enumerate(how.operands))
        if (own) {
          alone[{op, unsigned(i), own->dim}] = *own;
          if (communicates(op))
            tried[{op, unsigned(i), own->dim}] = std::nullopt;
        }
    if (!growth.ops.contains(collective)) {
      anyAlone = true;
      return;
    }
    SplitRegion region;
    std::string why;
    if (trim(growth, region, why))
      regions.push_back(std::move(region));
    else if (!growth.reason.empty())
      why = growth.reason;
    if (reason.empty())
      reason = why;
    for (auto &[op, how] : growth.ops)
      if (communicates(op))
        for (auto [i, own] : llvm::enumerate(how.operands))
          tried[{op, unsigned(i), own->dim}] = why;
  };
  for (auto [number, operand] : llvm::enumerate(collective->getOperands()))
    // Chunks of the last dimension would be cut out of each row.
    for (int64_t dim = 0; dim + 1 < typeOf(operand).getRank(); ++dim)
      tryRows(number, dim);
  if (reason.empty() && reorders)
    reason = "its rows change their order";
  else if (!anyRows)
    reason = "it has less than two rows";
  else if (reason.empty() && anyAlone)
    reason = "it is one launch of several values, and no rows are those of all";
  return regions;
}

void SplitRegionFinder::claim(const SplitRegion &region) {
  for (const ChunkOp &how : region.ops)
    claimed.insert(how.op);
}
