//===- LayoutTransferPlace.cpp - chunks at their places -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank that puts its chunk of a dimension into zeros has a part of a sum over the axes of the
// dimension.
//
// In the steps of a ring, a rank computes gradients of attention for its queries and one chunk of
// the keys after the other. It puts the chunks of all steps at their places.
// - If the gradient has rows of queries, the rank then has whole rows: no other rank adds to them.
// - Otherwise it has its part of a sum over the ranks.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

/// One transfer through dist.place. `run` checks that
///  - each operand is the chunk of the dimension that its shift says;
///  - the operands agree in their other dimensions and in the axes over which they are unreduced;
///  - several operands, and blocks, are parts of one source in different steps, and together the
///    whole.
class PlaceTransfer {
public:
  explicit PlaceTransfer(const TransferContext &context)
      : context(context), mesh(context.mesh), op(cast<PlaceOp>(context.op)),
        axes(getAxes(op.getAxes(), mesh)), dim(op.getDim()) {
    canonicalizeAxes(axes, mesh);
    shifts = op.getWrappedShifts(getNumShards(axes));
  }
  MaybeLayouts run();

private:
  LogicalResult checkChunk(unsigned i, LayoutFactor &chunk);
  LogicalResult checkOthers(unsigned i);
  LogicalResult checkParts();
  /// The axes that shard the other dimensions.
  AxisList getOtherAxes() const;
  /// Describes the elements of a result in which `factor` is the placed dimension.
  void describeElements(LayoutFactor &factor, Layout &layout) const;

  const TransferContext &context;
  MeshAttr mesh;
  PlaceOp op;
  AxisList axes;
  int64_t dim;
  SmallVector<int64_t> shifts;
};

} // namespace

AxisList PlaceTransfer::getOtherAxes() const {
  AxisList others;
  for (auto [d, own] : llvm::enumerate(context.operands[0]->dims))
    if (int64_t(d) != dim)
      others.append(own.getAxes());
  return others;
}

LogicalResult PlaceTransfer::checkChunk(unsigned i, LayoutFactor &chunk) {
  DimLayout own = context.operands[i]->dims[dim];
  collapse(own);
  chunk = own.factors.front();
  if (own.factors.size() == 1 && chunk.axes == axes && chunk.shift == shifts[i])
    return success();
  return report(context,
                "operand " + Twine(i) + ": expected chunks of dimension " + Twine(dim) + " along " +
                    toString(axes, mesh) + " shifted by " + Twine(shifts[i]) + ", got layout " +
                    toString(*context.operands[i], mesh),
                i);
}

LogicalResult PlaceTransfer::checkOthers(unsigned i) {
  const Layout &first = *context.operands[0], &own = *context.operands[i];
  bool isSame =
      first.getUnreduced() == own.getUnreduced() && first.getReduction() == own.getReduction();
  for (auto [d, a, b] : llvm::enumerate(first.dims, own.dims)) {
    DimLayout x = a, y = b;
    collapse(x);
    collapse(y);
    if (int64_t(d) == dim)
      x.factors.front().shift = y.factors.front().shift = 0;
    isSame &= x.sameShardingAs(y);
  }
  if (isSame)
    return success();
  return report(context,
                "operand " + Twine(i) + ": expected the layout of operand 0 beside it, " +
                    toString(first, mesh) + ", got " + toString(own, mesh),
                i);
}

LogicalResult PlaceTransfer::checkParts() {
  bool hasBlocks = anyOverlap(getOtherAxes(), axes);
  const Part *first = context.operands[0]->getPartOfSource();
  if (context.operands.size() == 1 && !first && !hasBlocks)
    return success();
  std::optional<Part> placed;
  for (auto [i, operand] : llvm::enumerate(context.operands)) {
    const Part *own = operand->getPartOfSource();
    if (!own || own->axes != axes)
      return report(context,
                    "places operand " + Twine(i) +
                        ", which is no part of a gradient in the steps of a ring along " +
                        toString(axes, mesh),
                    i);
    if (!placed) {
      placed = *own;
      continue;
    }
    if (!placed->isOfSameWhole(*own))
      return report(context, "places parts of different gradients", i);
    if (std::optional<unsigned> twice = placed->findCommonStep(*own))
      return report(context,
                    "places step " + Twine(*twice) + " of the ring along " + toString(axes, mesh) +
                        " twice",
                    i);
    placed->unite(*own);
  }
  if (placed->isWhole())
    return success();
  return report(context, "places steps " + toString(placed->covered) + " of the needed " +
                             toString(placed->needed) + " of the ring along " +
                             toString(axes, mesh) + ": the others would be zeros");
}

void PlaceTransfer::describeElements(LayoutFactor &factor, Layout &layout) const {
  bool isFull = int64_t(context.operands.size()) == getNumShards(axes);
  auto join = [&](auto get) {
    Padding content = isFull ? get(*context.operands[0]) : Padding::Zero;
    for (const Layout *operand : context.operands)
      content = padding::meet(content, padding::getUnconditional(get(*operand)));
    return content;
  };
  layout.data = join([](const Layout &own) { return own.data; });
  layout.corner = join([](const Layout &own) { return own.corner; });
  factor.padding = join([&](const Layout &own) {
    DimLayout placed = own.dims[dim];
    collapse(placed);
    return placed.factors.front().padding;
  });
  for (auto [d, own] : llvm::enumerate(layout.dims))
    for (auto [f, piece] : llvm::enumerate(own.factors))
      if (int64_t(d) != dim && piece.isPadded())
        piece.padding = join([&, d = d, f = f](const Layout &operand) {
          DimLayout other = operand.dims[d];
          collapse(other);
          return other.factors[f].padding;
        });
}

MaybeLayouts PlaceTransfer::run() {
  LayoutFactor factor;
  for (unsigned i = 0; i < context.operands.size(); ++i) {
    LayoutFactor chunk;
    if (failed(checkChunk(i, chunk)) || failed(checkOthers(i)))
      return failure();
    if (i == 0)
      factor = chunk;
  }
  if (failed(checkParts()))
    return failure();
  Layout layout = *context.operands[0];
  for (DimLayout &own : layout.dims)
    collapse(own);
  llvm::erase_if(layout.parts, [](const Part &part) { return !part.isUnreduced(); });
  if (!anyOverlap(getOtherAxes(), axes))
    layout.addUnreduced(axes);
  factor.axes.clear();
  factor.shift = 0;
  describeElements(factor, layout);
  layout.dims[dim] = DimLayout(factor);
  canonicalize(layout, mesh);
  return ResultLayouts{std::move(layout)};
}

MaybeLayouts layout_transfer::transferPlace(const TransferContext &context) {
  return PlaceTransfer(context).run();
}
