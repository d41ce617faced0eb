//===- RowModels.cpp - rows of experts on the ranks -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rows that exist of a routing (NnRowOps.td) are one dimension, whose layout is that of all rows
// that could exist: the factors of the experts, then those of the tokens. The number of elements is
// that of those; the local type has room for fewer. Tokens that are padding have no rows, and count as
// tokens here.
//
// Ops that go between rows and tokens, or rows and experts, find the other's factors in this layout. So
// a rank combines the rows of its own tokens, and multiplies them by the weights of its own experts. The
// places of rows hold for the experts of a rank: they are parts of a sum over the axes of the experts,
// as is the sum of the rows at these places.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

static LayoutFactor withoutPadding(LayoutFactor factor) {
  factor.size = factor.padded;
  factor.padding = Padding::Zero;
  factor.uniform = false;
  return factor;
}

/// The canonical form of factors of rows, experts or tokens.
static DimLayout asRows(ArrayRef<LayoutFactor> factors, MeshAttr mesh) {
  Layout layout;
  DimLayout &dim = layout.dims.emplace_back();
  dim.factors.assign(factors.begin(), factors.end());
  if (dim.factors.empty())
    dim.factors.push_back(makeFactor(1));
  canonicalize(layout, mesh);
  return layout.dims.front();
}

static Pieces join(ArrayRef<LayoutFactor> first, ArrayRef<LayoutFactor> second) {
  Pieces pieces(first.begin(), first.end());
  pieces.append(second.begin(), second.end());
  return pieces;
}

static std::string spell(ArrayRef<LayoutFactor> factors, MeshAttr mesh) {
  Layout layout;
  layout.dims.push_back(asRows(factors, mesh));
  return toString(layout, mesh);
}

static int64_t getPaddedSize(ArrayRef<LayoutFactor> factors) {
  int64_t size = 1;
  for (const LayoutFactor &factor : factors)
    size *= factor.padded;
  return size;
}

/// Splits the layout of rows into the factors of so many experts, padding included, and those of the
/// tokens. With `ofRank` the number is that of a rank's experts. Returns false if it is no such product.
static bool splitRows(ArrayRef<LayoutFactor> rows, int64_t experts, MeshAttr mesh, Pieces &ofExperts,
                      Pieces &ofTokens, bool ofRank = false) {
  ofTokens.assign(rows.begin(), rows.end());
  while (experts > 1 && !ofTokens.empty()) {
    LayoutFactor &head = ofTokens.front(), upper, lower;
    int64_t size = ofRank ? head.getLocalSize() : head.padded;
    if (experts % size == 0) {
      experts /= size;
      ofExperts.push_back(head);
      ofTokens.erase(ofTokens.begin());
    } else if (size % experts == 0 && splitFactor(head, size / experts, mesh, upper, lower)) {
      ofExperts.push_back(upper);
      head = lower;
      experts = 1;
    } else {
      return false;
    }
  }
  return experts == 1;
}

namespace {

/// The places of the rows of a routing.
struct RouteModel : LayoutOpInterface::ExternalModel<RouteModel, nn::RouteOp> {
  Value getCheckedOffset(Operation *op) const { return cast<nn::RouteOp>(op).getOffset(); }
  MaybeLayouts transfer(Operation *op, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    auto route = cast<nn::RouteOp>(op);
    MeshAttr mesh = context.mesh;
    Layout places = *context.operands[0];
    if (places.dims.back().isSharded())
      return LogicalResult(report(context, "reads choices that are sharded over " +
                                               toString(places.dims.back().getAxes(), mesh), 0));
    if (route.getRows())
      return transferNested(route, context);
    LayoutFactor experts = makeFactor(route.getExperts());
    if (Value offset = route.getOffset()) {
      auto index = rt::getSource(offset).getDefiningOp<AxisIndexOp>();
      if (!index || index.getChunk() != uint64_t(route.getExperts()))
        return LogicalResult(report(context,
                                    "expected the offset of a routing to be a dist.axis_index of " +
                                        Twine(route.getExperts()) + " experts a rank", 1));
      experts.axes = dist::getAxes(index.getAxes(), mesh);
      canonicalizeAxes(experts.axes, mesh);
      experts.padded *= getNumShards(experts.axes);
      experts.size = std::min<int64_t>(route.getTotal().value_or(experts.padded), experts.padded);
    }
    Pieces all{experts};
    for (DimLayout &dim : MutableArrayRef(places.dims).drop_back()) {
      if (anyOverlap(dim.getAxes(), experts.axes))
        return LogicalResult(report(context,
                                    "has experts and tokens sharded over one axis: operand 0 has layout " +
                                        toString(places, mesh), 0));
      for (LayoutFactor &factor : dim.factors) {
        factor.uniform = false;
        all.push_back(withoutPadding(factor));
      }
    }
    Layout rows;
    rows.dims.push_back(asRows(all, mesh));
    describePlaces(route, places, mesh);
    places.setUnreduced(makeSet(experts.axes, mesh));
    canonicalize(places, mesh);
    return ResultLayouts{rows, rows, places};
  }

private:
  static void describePlaces(nn::RouteOp route, Layout &places, MeshAttr mesh) {
    places.data = padding::ofType(getElementTypeOrSelf(route.getPlaces().getType()));
    // A choice of no expert has no place.
    auto describe = [&](Padding &content) {
      content = content == Padding{-1, -1} ? content : places.data;
    };
    describe(places.corner);
    for (DimLayout &dim : places.dims)
      for (LayoutFactor &factor : dim.factors)
        describe(factor.padding);
  }

  /// The experts of a rank share the rows that it has, and the offset counts them. Each has rows of the tokens of
  /// these rows.
  MaybeLayouts transferNested(nn::RouteOp route, const TransferContext &context) const {
    MeshAttr mesh = context.mesh;
    Layout places = *context.operands[0];
    Pieces groups, tokens;
    AxisList axes;
    int64_t shards = 1, experts = route.getExperts();
    if (Value offset = route.getOffset()) {
      auto index = rt::getSource(offset).getDefiningOp<AxisIndexOp>();
      if (!index || index.getChunk() != uint64_t(experts))
        return LogicalResult(report(context,
                                    "expected the offset of a routing to be a dist.axis_index of " +
                                        Twine(experts) + " experts a rank", 1));
      axes = dist::getAxes(index.getAxes(), mesh);
      canonicalizeAxes(axes, mesh);
      shards = getNumShards(axes);
    }
    int64_t shared = route.getRows().getType().getDimSize(0) - 1, all = experts * shards;
    if (int64_t(route.getTotal().value_or(experts)) != all ||
        !splitRows(places.dims.front().factors, shared * shards, mesh, groups, tokens) ||
        asRows(groups, mesh).getAxes() != axes)
      return LogicalResult(report(context,
                                  "expected rows that groups of " + Twine(experts / shared) + " of " + Twine(all) +
                                      " experts share, over " + toString(axes, mesh) +
                                      ", got rows of layout " + toString(places, mesh),
                                  0));
    if (!context.operands.back()->dims.front().sameShardingAs(places.dims.front()))
      return LogicalResult(report(context, "expected the offsets of rows of layout " + toString(places, mesh) +
                                               ", got " + toString(*context.operands.back(), mesh),
                                  context.operands.size() - 1));
    groups.push_back(makeFactor(experts / shared));
    Layout rows;
    rows.dims.push_back(asRows(join(groups, tokens), mesh));
    describePlaces(route, places, mesh);
    canonicalize(places, mesh);
    return ResultLayouts{rows, rows, places};
  }
};

/// An op of rows and of tokens or experts. The factors on one side are hidden from the checks of the
/// rule, which would find the axes of a dimension twice, and are compared instead.
class RowsTransfer : public RuleTransfer {
public:
  using RuleTransfer::RuleTransfer;

protected:
  static int getFactor(const FactorRule::DimFactors &dim) { return dim.front(); }
  Pieces take(int factor) {
    Pieces taken(pieces[factor].begin(), pieces[factor].end());
    pieces[factor].assign({makeFactor(rule.factors[factor].size)});
    return taken;
  }
  LogicalResult refuse(ArrayRef<LayoutFactor> have, ArrayRef<LayoutFactor> want, StringRef what,
                       unsigned operand) {
    return report(context,
                  "expected rows of the " + what + " of layout " + spell(want, mesh) +
                      ", got rows of layout " + spell(have, mesh),
                  operand);
  }
  /// Checks that rows are those of some experts, and of these tokens.
  LogicalResult checkTokens(ArrayRef<LayoutFactor> rows, ArrayRef<LayoutFactor> tokens,
                            Pieces &experts) {
    Pieces rest;
    int64_t each = getPaddedSize(tokens), all = getPaddedSize(rows);
    if (each == 0 || all % each != 0 || !splitRows(rows, all / each, mesh, experts, rest) ||
        !asRows(rest, mesh).sameShardingAs(asRows(tokens, mesh)))
      return refuse(rows, tokens, "tokens", 0);
    return success();
  }
  /// Checks that rows are those of some experts, and of these rows that they share: the experts stand between
  /// those of groups and the tokens.
  LogicalResult checkShared(ArrayRef<LayoutFactor> rows, ArrayRef<LayoutFactor> shared) {
    int64_t each = getPaddedSize(shared), members = getPaddedSize(rows) / each;
    auto isSplit = [&](int64_t groups) {
      Pieces before, behind, own, ownBehind;
      if (!splitRows(shared, groups, mesh, before, behind) ||
          !splitRows(rows, groups * members, mesh, own, ownBehind))
        return false;
      before.push_back(makeFactor(members));
      return asRows(own, mesh).sameShardingAs(asRows(before, mesh)) &&
             asRows(ownBehind, mesh).sameShardingAs(asRows(behind, mesh));
    };
    // The number of groups is a divisor of the rows that they share.
    for (int64_t groups = 1; groups * groups <= each; ++groups)
      if (each % groups == 0 && (isSplit(groups) || isSplit(each / groups)))
        return success();
    return refuse(rows, shared, "rows that experts share", 0);
  }
  /// Checks that rows are those of these experts.
  LogicalResult checkExperts(ArrayRef<LayoutFactor> rows, ArrayRef<LayoutFactor> experts) {
    Pieces own, rest;
    if (!splitRows(rows, getPaddedSize(experts), mesh, own, rest) ||
        !asRows(own, mesh).sameShardingAs(asRows(experts, mesh)))
      return refuse(rows, experts, "experts", 0);
    return success();
  }
  /// Checks that rows are those that offsets count.
  LogicalResult checkOffsets(ArrayRef<LayoutFactor> rows, ArrayRef<LayoutFactor> offsets) {
    if (!asRows(rows, mesh).sameShardingAs(asRows(offsets, mesh)))
      return refuse(rows, offsets, "offsets", 0);
    return success();
  }
};

/// Returns true if rows are those of tokens, of which some are equal along a factor: that one has every layout.
static bool haveTokens(ArrayRef<LayoutFactor> tokens, Pieces rows, MeshAttr mesh) {
  if (tokens.empty())
    return true;
  LayoutFactor token = tokens.back(), upper, lower;
  tokens = tokens.drop_back();
  if (token.uniform || token.padded == 1) {
    for (int64_t size = token.padded; size > 1;) {
      if (rows.empty())
        return false;
      int64_t own = rows.back().getLocalSize();
      if (size % own == 0) {
        size /= own;
        rows.pop_back();
      } else if (own % size == 0 && splitFactor(rows.back(), size, mesh, upper, lower)) {
        size = 1;
        rows.back() = upper;
      } else {
        return false;
      }
    }
    // Ranks may have one of these tokens each.
    while (!haveTokens(tokens, rows, mesh)) {
      if (rows.empty() || rows.back().getLocalSize() != 1)
        return false;
      rows.pop_back();
    }
    return true;
  }
  while (token.padded > 1) {
    if (rows.empty())
      return false;
    LayoutFactor &own = rows.back();
    if (own.padded == token.padded) {
      if (!own.sameShardingAs(token))
        return false;
      rows.pop_back();
      break;
    }
    if (own.padded % token.padded == 0 && splitFactor(own, token.padded, mesh, upper, lower)) {
      if (!lower.sameShardingAs(token))
        return false;
      own = upper;
      break;
    }
    if (token.padded % own.padded != 0 || !splitFactor(token, own.padded, mesh, upper, lower) ||
        !lower.sameShardingAs(own))
      return false;
    rows.pop_back();
    token = upper;
  }
  return haveTokens(tokens, rows, mesh);
}

/// Rows of tokens.
class TakeRowsTransfer : public RowsTransfer {
public:
  using RowsTransfer::RowsTransfer;

private:
  void refinePieces() override {
    auto take = cast<nn::TakeRowsOp>(op);
    for (const FactorRule::DimFactors &dim :
         ArrayRef(rule.operands[0]).take_front(take.getTokens() + (take.getNested() ? 1 : 0)))
      for (const LayoutFactor &factor : RowsTransfer::take(getFactor(dim))) {
        bool isUniform = factor.uniform;
        tokens.push_back(withoutPadding(factor));
        tokens.back().uniform = isUniform;
      }
  }
  LogicalResult checkTable() override {
    auto isUniform = [](const LayoutFactor &factor) { return factor.uniform || factor.padded == 1; };
    // Equal tokens have equal rows, whatever their order.
    if (llvm::all_of(tokens, isUniform))
      return success();
    Pieces experts;
    ArrayRef<LayoutFactor> rows = pieces[getFactor(rule.results[0].front())];
    bool isNested = cast<nn::TakeRowsOp>(op).getNested();
    if (!isNested && llvm::any_of(tokens, isUniform) && haveTokens(tokens, asRows(rows, mesh).factors, mesh))
      return success();
    for (LayoutFactor &factor : tokens)
      factor.uniform = false;
    return isNested ? checkShared(rows, tokens) : checkTokens(rows, tokens, experts);
  }

  Pieces tokens;
};

/// Sums of rows at the places of the tokens' choices.
class SumRowsTransfer : public RowsTransfer {
public:
  explicit SumRowsTransfer(const TransferContext &context)
      : RowsTransfer(context), places(*context.operands[1]), given{context.operands[0], &places} {
    axes = places.getUnreduced();
    places.setUnreduced({});
    operands = given;
  }

private:
  void refinePieces() override {
    rows = take(getFactor(rule.operands[0].front()));
    for (const FactorRule::DimFactors &dim : ArrayRef(rule.operands[1]).drop_back())
      for (const LayoutFactor &factor : pieces[getFactor(dim)])
        tokens.push_back(withoutPadding(factor));
  }
  LogicalResult checkTable() override {
    Pieces experts;
    bool isNested = cast<nn::SumRowsOp>(op).getNested();
    if (failed(isNested ? checkShared(rows, tokens) : checkTokens(rows, tokens, experts)))
      return failure();
    AxisList own = makeSet(asRows(experts, mesh).getAxes(), mesh);
    // A rank has the places of its own experts.
    if (!llvm::all_of(experts, [](const LayoutFactor &factor) { return factor.isContiguous(); }))
      return report(context,
                    "sums rows of other experts than those of the places: they have layout " + spell(rows, mesh), 0);
    if (own != axes)
      return report(context,
                    "sums rows of experts that are sharded over " + toString(own, mesh) +
                        " at the places of experts that are over " + toString(axes, mesh),
                    1);
    summed[0].append(axes.begin(), axes.end());
    return success();
  }

  Layout places;
  std::array<const Layout *, 2> given;
  /// Those that shard the experts.
  AxisList axes;
  Pieces rows, tokens;
};

/// Rows of experts' features, or their products with experts' weights.
class ExpertsTransfer : public RowsTransfer {
public:
  using RowsTransfer::RowsTransfer;

private:
  void refinePieces() override {
    int row = getFactor(rule.results[0].front());
    offsets = take(getFactor(rule.operands.back().front()));
    experts = take(getFactor(rule.operands[isa<nn::RepeatRowsOp>(op) ? 0 : 1].front()));
    if (owners[row] < 0)
      pieces[row] = offsets;
    rows = pieces[row];
  }
  LogicalResult checkTable() override {
    return failed(checkOffsets(rows, offsets)) ? failure() : checkExperts(rows, experts);
  }

  Pieces rows, experts, offsets;
};

/// Sums over the rows of each expert.
class GroupsTransfer : public RowsTransfer {
public:
  using RowsTransfer::RowsTransfer;

private:
  void refinePieces() override {
    int row = getFactor(rule.operands[0].front()), group = getFactor(rule.results[0].front());
    offsets = take(getFactor(rule.operands.back().front()));
    rows = asRows(pieces[row], mesh).factors;
    // The first axes shard experts, and the others tokens.
    AxisList axes;
    for (const LayoutFactor &factor : rows)
      axes.append(factor.axes);
    int64_t local = rule.factors[group].size, shards = 1;
    auto total = op->getAttrOfType<IntegerAttr>("total");
    for (size_t leading = 0; leading <= axes.size() && !isSplit; ++leading) {
      Pieces experts, tokens;
      isSplit = splitRows(rows, local * shards, mesh, experts, tokens);
      DimLayout own = asRows(experts, mesh);
      isSplit &= own.getLocalSize() == local && (!total || own.getGlobalSize() == total.getInt());
      if (isSplit) {
        pieces[group] = own.factors;
        pieces[row] = asRows(tokens, mesh).factors;
      } else if (leading < axes.size()) {
        shards *= axes[leading].size;
      }
    }
  }
  LogicalResult checkTable() override {
    if (!isSplit)
      return report(context,
                    "expected rows of " + Twine(rule.factors[getFactor(rule.results[0].front())].size) +
                        " experts a rank, got rows of layout " + spell(rows, mesh),
                    0);
    return checkOffsets(rows, offsets);
  }

  Pieces rows, offsets;
  bool isSplit = false;
};

/// The layout of rows of tokens of a rank when they are with their experts on the ranks along `axes`, of
/// which each has `own`. The rank has rows for `experts` of them: all, or those of a group to which other axes have
/// sent rows before. None if the axes do not shard tokens.
std::optional<DimLayout> sendRows(ArrayRef<LayoutFactor> rows, int64_t experts, int64_t own,
                                  const AxisList &axes, MeshAttr mesh) {
  Pieces ofExperts, groups, ofTokens;
  if (!splitRows(rows, experts, mesh, ofExperts, ofTokens, /*ofRank=*/true))
    return std::nullopt;
  // The axes of groups shard the major experts.
  bool isSplit = false;
  for (const LayoutFactor &factor : ofExperts) {
    LayoutFactor upper = factor, lower;
    if (!factor.axes.empty()) {
      if (isSplit || !splitFactor(factor, factor.getLocalSize(), mesh, upper, lower))
        return std::nullopt;
      groups.push_back(upper);
    }
    isSplit |= factor.getLocalSize() > 1;
  }
  DimLayout tokens;
  tokens.factors = ofTokens;
  AxisList sharded = tokens.getAxes();
  for (const Axis &axis : axes)
    if (!layout_transfer::removeAxes(sharded, {axis}))
      return std::nullopt;
  // Tokens lose the axes one factor at a time.
  for (LayoutFactor &factor : tokens.factors)
    llvm::erase_if(factor.axes, [&](const Axis &axis) { return llvm::is_contained(axes, axis); });
  if (tokens.getAxes().size() != sharded.size())
    return std::nullopt;
  LayoutFactor moved = makeFactor(experts);
  moved.axes = axes;
  moved.padded = own * getNumShards(axes);
  if (moved.padded < moved.size)
    return std::nullopt;
  groups.push_back(moved);
  return asRows(join(groups, tokens.factors), mesh);
}

AxisList getMovedAxes(ArrayAttr attr, MeshAttr mesh) {
  AxisList axes = dist::getAxes(attr, mesh);
  canonicalizeAxes(axes, mesh);
  return axes;
}

struct SendRowsModel : LayoutOpInterface::ExternalModel<SendRowsModel, nn::SendRowsOp> {
  MaybeLayouts transfer(Operation *op, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    auto send = cast<nn::SendRowsOp>(op);
    Layout rows = *context.operands[0];
    AxisList axes = getMovedAxes(send.getAxes(), context.mesh);
    auto moved = sendRows(rows.dims.front().factors, send.getOffsets().getType().getDimSize(0) - 1,
                          send.getOwn().getType().getDimSize(0) - 1, axes, context.mesh);
    if (!moved || !context.operands[1]->dims.front().sameShardingAs(rows.dims.front()))
      return LogicalResult(report(context,
                                  "sends rows along " + toString(axes, context.mesh) +
                                      ", which shards no tokens of them: they have layout " +
                                      toString(rows, context.mesh),
                                  0));
    rows.dims.front() = *moved;
    Layout counts;
    counts.dims.push_back(*moved);
    counts.data = padding::ofType(getElementTypeOrSelf(send.getOwn().getType()));
    return ResultLayouts{rows, counts, counts};
  }
  bool takesPart(Operation *, const TransferContext &, unsigned operand, const Part &part) const {
    return operand == 0 && part.isUnreduced();
  }
};

struct ReturnRowsModel : LayoutOpInterface::ExternalModel<ReturnRowsModel, nn::ReturnRowsOp> {
  MaybeLayouts transfer(Operation *op, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    auto back = cast<nn::ReturnRowsOp>(op);
    Layout rows = *context.operands[0];
    const DimLayout &home = context.operands[2]->dims.front();
    AxisList axes = getMovedAxes(back.getAxes(), context.mesh);
    int64_t parts = back.getParts().getType().getDimSize(0) - 1;
    auto moved = sendRows(home.factors, back.getOffsets().getType().getDimSize(0) - 1,
                          parts / getNumShards(axes), axes, context.mesh);
    if (!moved || !moved->sameShardingAs(rows.dims.front()) ||
        !context.operands[1]->dims.front().sameShardingAs(rows.dims.front()))
      return LogicalResult(report(context,
                                  "returns rows of layout " + toString(rows, context.mesh) + " along " +
                                      toString(axes, context.mesh) + " to places of layout " +
                                      spell(home.factors, context.mesh),
                                  0));
    rows.dims.front() = home;
    return ResultLayouts{rows};
  }
  bool takesPart(Operation *, const TransferContext &, unsigned operand, const Part &part) const {
    return operand == 0 && part.isUnreduced();
  }
};

} // namespace

void layout_transfer::attachRowModels(MLIRContext *context) {
  nn::RouteOp::attachInterface<RouteModel>(*context);
  nn::SendRowsOp::attachInterface<SendRowsModel>(*context);
  nn::ReturnRowsOp::attachInterface<ReturnRowsModel>(*context);
  nn::TakeRowsOp::attachInterface<RuleModel<nn::TakeRowsOp, TakeRowsTransfer>>(*context);
  nn::SumRowsOp::attachInterface<RuleModel<nn::SumRowsOp, SumRowsTransfer>>(*context);
  nn::RepeatRowsOp::attachInterface<RuleModel<nn::RepeatRowsOp, ExpertsTransfer>>(*context);
  nn::GroupedProductOp::attachInterface<RuleModel<nn::GroupedProductOp, ExpertsTransfer>>(*context);
  nn::SumGroupsOp::attachInterface<RuleModel<nn::SumGroupsOp, GroupsTransfer>>(*context);
  nn::GroupedOuterOp::attachInterface<RuleModel<nn::GroupedOuterOp, GroupsTransfer>>(*context);
}
