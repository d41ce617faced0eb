//===- LayoutTransferPadding.cpp - padding through a factor rule ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/lib/Placement/RuleTransfer.h"
#include "meshwright/lib/Placement/ValueNumbers.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;
using padding::isFinite;
using padding::isMaskable;
using padding::isZero;

static bool usesFactor(const FactorRule::DimFactors &factors, int factor) {
  return llvm::is_contained(factors, factor);
}

bool RuleTransfer::hasFactor(unsigned i, int factor) const {
  return llvm::any_of(rule.operands[i],
                      [&](const auto &factors) { return usesFactor(factors, factor); });
}

void RuleTransfer::addTails(int factor, SmallVectorImpl<Tail> &tails) const {
  for (const LayoutFactor &piece : pieces[factor])
    if (piece.isPadded())
      tails.push_back({factor, &piece});
}

SmallVector<RuleTransfer::Tail, 4> RuleTransfer::getResultTails(unsigned result) const {
  SmallVector<Tail, 4> tails;
  for (const FactorRule::DimFactors &dim : rule.results[result])
    for (int factor : dim)
      addTails(factor, tails);
  return tails;
}

SmallVector<RuleTransfer::Tail, 4> RuleTransfer::getReadTails() const {
  SmallVector<Tail, 4> tails;
  for (int f = 0, e = rule.factors.size(); f < e; ++f)
    if (rule.factors[f].kind != FactorKind::Parallel && owners[f] >= 0)
      addTails(f, tails);
  return tails;
}

/// The rows of a dimension that the tail of one of its factors fills: blocks of `block` rows
/// whose rows from `begin` on are padding.
static std::pair<int64_t, int64_t> getTailRows(ArrayRef<LayoutFactor> factors,
                                               const LayoutFactor &factor) {
  int64_t begin = factor.size, block = factor.padded;
  for (const LayoutFactor *below = &factor + 1; below != factors.end(); ++below) {
    begin *= below->padded;
    block *= below->padded;
  }
  return {begin, block};
}

/// Returns true if two factors of one dimension have the same rows as their tails. A factor may hold
/// those below it: 8 of 9 times 8 are 64 of 72.
static bool isSameTail(ArrayRef<LayoutFactor> as, const LayoutFactor &a, ArrayRef<LayoutFactor> bs,
                       const LayoutFactor &b, MeshAttr mesh) {
  if (a.sameShardingAs(b))
    return true;
  auto getAxesFrom = [&](ArrayRef<LayoutFactor> list, const LayoutFactor &factor) {
    AxisList axes;
    for (const LayoutFactor *f = &factor; f != list.end(); ++f)
      axes.append(f->axes.begin(), f->axes.end());
    canonicalizeAxes(axes, mesh);
    return axes;
  };
  auto isContiguous = [](ArrayRef<LayoutFactor> list, const LayoutFactor &factor) {
    return std::all_of(&factor, list.end(),
                       [](const LayoutFactor &f) { return f.order == TokenOrder::Contiguous; });
  };
  return isContiguous(as, a) && isContiguous(bs, b) && getTailRows(as, a) == getTailRows(bs, b) &&
         getAxesFrom(as, a) == getAxesFrom(bs, b);
}

std::optional<padding::Padding> RuleTransfer::getTail(unsigned i, const Tail &tail) const {
  std::optional<Padding> content;
  for (auto [d, factors] : llvm::enumerate(rule.operands[i])) {
    if (!usesFactor(factors, tail.factor))
      continue;
    // The pieces of all factors of the dimension, among which the tail is: 6 heads padded to 8 are
    // 3 padded to 4, times 2.
    Pieces joined;
    size_t place = tail.piece - pieces[tail.factor].begin();
    if (factors.size() > 1)
      for (int factor : factors) {
        if (factor == tail.factor)
          place += joined.size();
        joined.append(pieces[factor].begin(), pieces[factor].end());
      }
    const Pieces &all = factors.size() > 1 ? joined : pieces[tail.factor];
    std::optional<Padding> others;
    for (const LayoutFactor &own : operands[i]->dims[d].factors) {
      if (!own.isPadded())
        continue;
      bool isSame = isSameTail(operands[i]->dims[d].factors, own, all, all[place], mesh);
      // Its last true elements are padding beside another operand.
      if (isSame && tail.piece->runtimeSize && !own.runtimeSize)
        return padding::meet(padding::getUnconditional(own.padding), operands[i]->data);
      if (isSame)
        return own.padding;
      Padding other = padding::getUnconditional(own.padding);
      others = others ? padding::meet(*others, other) : other;
    }
    // Cut otherwise than in the other operands: anything that it may be.
    if (others)
      content = padding::meet(*others, operands[i]->data);
    // True elements of this operand alone, beside padding of another one.
    else if (tail.piece->runtimeSize &&
             llvm::any_of(operands[i]->dims[d].factors,
                          [](const LayoutFactor &own) { return !own.uniform && own.padded > 1; }))
      content = operands[i]->data;
  }
  return content;
}

uint32_t RuleTransfer::getEvent(unsigned i, StringRef what) const {
  if (context.namesOperands)
    *context.namesOperands = true;
  Value operand = op->getOperand(i);
  return padding::EventTable::getCurrent().get(what, context.numbers->get(operand),
                                               operands[i]->getRank());
}

/// Elements at one index of a result are computed from those at the same index of the operand, or
/// from all along a dimension that the op contracts. Other ops, such as a running sum, read some of
/// the elements along a dimension. The event is then one of this op.
uint32_t RuleTransfer::moveEvent(uint32_t cause, unsigned operand, unsigned result) const {
  padding::EventTable &events = padding::EventTable::getCurrent();
  const FactorRule::ValueFactors &from = rule.operands[operand], &to = rule.results[result];
  SmallVector<int> dims;
  for (const FactorRule::DimFactors &dim : to) {
    auto same = dim.empty() ? from.end() : llvm::find(from, dim);
    dims.push_back(same == from.end() ? -1 : same - from.begin());
  }
  auto isApart = [&](int d) {
    bool isKept = llvm::is_contained(dims, d);
    return llvm::all_of(from[d], [&](int factor) {
      return isKept ? !isWhole(rule.factors[factor]) : rule.isReducedIn(factor, result);
    });
  };
  SmallVector<int64_t> mixed;
  SmallVector<int> mapped;
  for (int d = 0, e = from.size(); d < e; ++d) {
    if (!events.dependsOn(cause, d))
      continue;
    mapped.append(from[d].begin(), from[d].end());
    if (!isApart(d))
      mixed.append(from[d].begin(), from[d].end());
  }
  if (mixed.empty())
    return events.move(cause, dims);
  if (context.namesOperands)
    *context.namesOperands = true;
  mixed.insert(mixed.begin(), context.numbers->get(op));
  mixed.push_back(-1);
  mixed.append(mapped.begin(), mapped.end());
  return events.derive(cause, "op", mixed, to.size(), [&](unsigned d) {
    return llvm::any_of(to[d], [&](int factor) { return llvm::is_contained(mapped, factor); });
  });
}

padding::Padding RuleTransfer::getContent(unsigned i, const Tail &tail) const {
  std::optional<Padding> content = getTail(i, tail);
  return content ? *content : getContentBeside(i);
}

padding::Padding RuleTransfer::getContentBeside(unsigned i) const {
  // The operand is the same in the tail and beside it. Where it is not finite in the tail,
  // it is not finite beside it either.
  Padding content = operands[i]->data;
  auto type = dyn_cast<FloatType>(getElementTypeOrSelf(op->getOperand(i).getType()));
  if (isFinite(content) || !type)
    return content;
  double largest = padding::getLargest(type);
  Padding bound{std::max(content.lower, -largest), std::min(content.upper, largest), false,
                getEvent(i, "")};
  if (bound.lower > bound.upper)
    std::tie(bound.lower, bound.upper) = std::pair(-largest, largest);
  return bound;
}

padding::Padding RuleTransfer::getCorner(unsigned i, const Tail &tail,
                                         const Tail &other) const {
  std::optional<Padding> first = getTail(i, tail), second = getTail(i, other);
  if (first && second)
    return operands[i]->corner;
  return second ? padding::getUnconditional(*second) : getContent(i, tail);
}

bool layout_transfer::keepsBlocks(Operation *op) {
  return op->hasTrait<Elementwise>() || (op->hasTrait<Reindexes>() && !op->hasTrait<TakesPart>());
}

//===----------------------------------------------------------------------===//
// Reads of padding
//===----------------------------------------------------------------------===//

/// `the padding behind the 6 true of 8 rows`.
static std::string describeTail(const LayoutFactor &piece) {
  std::string rows = std::to_string(piece.padded) + " rows";
  if (piece.runtimeSize)
    return "the padding behind the @" + piece.runtimeSize.getValue().str() + " true of at most " + rows;
  return "the padding behind the " + std::to_string(piece.size) + " true of " + rows;
}

LogicalResult RuleTransfer::readsPadding(const Tail &tail, Padding content, StringRef need) {
  const LayoutFactor &piece = *tail.piece;
  StringRef first = need, second = padding::toString(content);
  bool isExpectation = need.starts_with("expected ");
  if (!isExpectation)
    std::swap(first, second);
  return report(context,
                "reads " + describeTail(piece) + (isExpectation ? ": " : ", which is ") + first +
                    (isExpectation ? ", got " : ", ") + second,
                owners[tail.factor]);
}

/// Padding that is summed over: zero on one side, finite on the other. Either may be
/// conditional: the true part of the sum is not finite where the condition does not hold.
LogicalResult RuleTransfer::checkProduct(int factor, unsigned lhs, unsigned rhs) {
  for (const LayoutFactor &piece : pieces[factor]) {
    if (!piece.isPadded())
      continue;
    Tail tail{factor, &piece};
    Padding a = getContent(lhs, tail), b = getContent(rhs, tail);
    if ((isZero(a) && isFinite(b)) || (isZero(b) && isFinite(a)))
      continue;
    return readsPadding(tail, isZero(a) ? b : a,
                        "expected zero on one side of the product and finite on the other");
  }
  return success();
}

/// Returns true if an operand has equal elements along a factor.
bool RuleTransfer::isUniformAlong(unsigned i, int f) const {
  for (auto [d, factors] : llvm::enumerate(rule.operands[i]))
    if (usesFactor(factors, f) &&
        llvm::any_of(operands[i]->dims[d].factors, [](const LayoutFactor &own) { return own.uniform; }))
      return true;
  return false;
}

/// Checks that the padding of a factor that the op sums over has the bounds that the op states
/// (PaddingOpInterface::getSummedNeed). With `reports`, other padding is an error.
LogicalResult RuleTransfer::checkSum(int f, bool reports) const {
  auto padded = cast<PaddingOpInterface>(op);
  for (unsigned i = 0, e = operands.size(); i < e; ++i) {
    std::optional<Padding> need = padded.getSummedNeed(i, f);
    if (!need || !hasFactor(i, f))
      continue;
    for (const LayoutFactor &piece : pieces[f]) {
      std::optional<Padding> own = piece.isPadded() ? getTail(i, Tail{f, &piece}) : std::nullopt;
      // Equal elements are the same in padding. They are numbers there if the true ones are.
      if (!own && piece.isPadded() && isUniformAlong(i, f) && isZero(*need))
        own = operands[i]->data;
      if (!own || padding::isWithin(*own, *need))
        continue;
      if (!reports)
        return failure();
      return report(context,
                    "sums over " + describeTail(piece) + " of operand " + Twine(i) + ": expected " +
                        (padding::isMaskable(*need) ? padding::toString(*need) : "a number") +
                        ", got " + padding::toString(*own),
                    i);
    }
  }
  return success();
}

/// An op sums over the factors that it contracts or reads whole, and over those along which an operand broadcasts
/// for the result that is as this operand.
LogicalResult RuleTransfer::checkSums() {
  for (auto [f, factor] : llvm::enumerate(rule.factors))
    if ((factor.kind == FactorKind::Contracted || isWhole(factor)) &&
        failed(checkSum(f, /*reports=*/true)))
      return failure();
  for (auto [result, operand] : rule.broadcastResults)
    for (auto [d, factors] : llvm::enumerate(rule.results[result]))
      if (!getBroadcastAxes(result, d).empty())
        for (int f : factors)
          if (failed(checkSum(f, /*reports=*/true)))
            return failure();
  return success();
}

LogicalResult RuleTransfer::checkReadPadding() {
  if (!context.tracksPadding)
    return success();
  if (std::optional<padding::Need> need = cast<PaddingOpInterface>(op).getPaddingNeed())
    for (const Tail &tail : getReadTails()) {
      Padding content = getContent(owners[tail.factor], tail);
      // Zeros may be conditional, since only sums need them. A maximum of integers ignores
      // the least one, as that of floats ignores minus infinity.
      Type type = getElementTypeOrSelf(op->getOperand(owners[tail.factor]).getType());
      bool isLeast = need->content == Padding::NegInf && !isa<FloatType>(type) &&
                     content.upper <= padding::ofType(type).lower;
      bool holds = need->content == Padding::Zero
                       ? isZero(content) && !(need->isStrict && content.cause)
                       : content == need->content || isLeast;
      if (!holds)
        return readsPadding(tail, content, need->text);
    }
  if (cast<PaddingOpInterface>(op).statesSummedNeeds())
    return checkSums();
  if (op->hasTrait<Product>())
    for (auto [f, factor] : llvm::enumerate(rule.factors))
      if (factor.kind == FactorKind::Contracted && failed(checkProduct(f, 0, 1)))
        return failure();
  return checkOwnPadding();
}

//===----------------------------------------------------------------------===//
// States of results
//===----------------------------------------------------------------------===//

/// The operands of the op in the region of some tails of a result (see `evaluate`).
class RuleTransfer::RegionOperands : public padding::Operands {
public:
  RegionOperands(const RuleTransfer &transfer, unsigned result, ArrayRef<Tail> tails,
                 ArrayRef<Padding> contents, ArrayRef<Padding> conditional)
      : Operands(contents, conditional, result), transfer(transfer), tails(tails) {}

  uint32_t getEvent(unsigned operand, StringRef what) const override {
    if (tails.size() != 1)
      return 0;
    return transfer.moveEvent(transfer.getEvent(operand, what), operand, getResult());
  }
  uint32_t getSharedEvent(unsigned operand, StringRef what) const override {
    return isPaddingOf(operand) ? 0 : getEvent(operand, what);
  }
  Padding getOverall(unsigned operand) const override {
    return overallContent(*transfer.operands[operand]);
  }
  bool isPaddingOf(unsigned operand) const override {
    return llvm::any_of(tails, [&](const Tail &t) { return transfer.getTail(operand, t); });
  }
  bool isAlongResult(unsigned dim) const override {
    return llvm::any_of(tails, [&](const Tail &t) {
      return usesFactor(transfer.rule.results[getResult()][dim], t.factor);
    });
  }
  int64_t getReadCount() const override {
    int64_t count = 1;
    for (auto [f, factor] : llvm::enumerate(transfer.rule.factors))
      if (factor.kind != FactorKind::Parallel && transfer.owners[f] >= 0)
        for (const LayoutFactor &piece : transfer.pieces[f])
          count *= piece.padded;
    return count;
  }
  void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<Padding(unsigned)>)> visit) const override {
    for (const Tail &read : transfer.getReadTails()) {
      if (llvm::any_of(tails, [&](const Tail &t) { return t.factor == read.factor; }))
        continue;
      visit([&](unsigned operand) {
        if (tails.size() > 1)
          return getOverall(operand);
        return tails.empty() ? padding::getUnconditional(transfer.getContent(operand, read))
                             : transfer.getCorner(operand, tails.front(), read);
      });
    }
  }

private:
  const RuleTransfer &transfer;
  ArrayRef<Tail> tails;
};

padding::Padding RuleTransfer::evaluate(unsigned result, ArrayRef<Tail> tails) const {
  SmallVector<Padding, 4> contents, conditional;
  for (auto [i, layout] : llvm::enumerate(operands)) {
    if (tails.empty()) {
      contents.push_back(layout->data);
    } else if (tails.size() == 1) {
      std::optional<Padding> own = getTail(i, tails[0]);
      contents.push_back(own ? padding::getUnconditional(*own) : layout->data);
      conditional.push_back(own ? *own : getContentBeside(i));
      if (uint32_t &cause = conditional.back().cause)
        cause = moveEvent(cause, i, result);
    } else {
      std::optional<Padding> first = getTail(i, tails[0]), second = getTail(i, tails[1]);
      bool hasOthers = countPadded(*layout) > int(bool(first)) + int(bool(second));
      if (first && second)
        contents.push_back(layout->corner);
      else if (hasOthers)
        contents.push_back(overallContent(*layout));
      else
        contents.push_back(
            padding::getUnconditional(first ? *first : second.value_or(layout->data)));
    }
  }
  return cast<PaddingOpInterface>(op).getResultPadding(
      RegionOperands(*this, result, tails, contents, conditional.empty() ? contents : conditional));
}

/// States the bounds on the elements of a result. The layout has the pieces of the result's
/// factors.
void RuleTransfer::describeElements(unsigned result, Layout &layout) const {
  if (!context.tracksPadding)
    return;
  layout.data = evaluate(result, {});
  SmallVector<Tail, 4> tails = getResultTails(result);
  for (auto [i, tail] : llvm::enumerate(tails))
    for (const Tail &other : ArrayRef(tails).drop_front(i + 1)) {
      Padding here = evaluate(result, {tail, other});
      bool isFirst = i == 0 && other.piece == tails[1].piece;
      layout.corner = isFirst ? here : padding::meet(layout.corner, here);
    }
  const Tail *tail = tails.begin();
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &piece : dim.factors)
      if (piece.isPadded())
        piece.padding = evaluate(result, *tail++);
}
