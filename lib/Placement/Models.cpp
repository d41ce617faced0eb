//===- Models.cpp - how layouts pass ops ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/Models.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/IR/DialectRegistry.h"

#include "meshwright/lib/Placement/PlacementInterfaces.cpp.inc"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

/// Chunks at their places: blocks, and terms of a sum in several steps, become whole. Other ranks
/// add zeros, so a maximum would not stay one.
struct PlaceModel : LayoutOpInterface::ExternalModel<PlaceModel, PlaceOp> {
  MaybeLayouts transfer(Operation *, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    return transferPlace(context);
  }
  bool takesPart(Operation *, const TransferContext &, unsigned, const Part &part) const {
    return part.spread == Part::Spread::Steps ? part.reduction != ReductionKind::Merge
                                              : part.reduction == ReductionKind::Sum;
  }
};

/// A permute moves terms of a sum, and chunks that some ranks lack. A block would lose its place.
struct PermuteModel : LayoutOpInterface::ExternalModel<PermuteModel, PermuteOp> {
  MaybeLayouts transfer(Operation *, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    return transferCollective(context);
  }
  bool takesPart(Operation *, const TransferContext &, unsigned, const Part &part) const {
    return part.spread == Part::Spread::Ranks || part.reduction == ReductionKind::Sum;
  }
};

/// The parts of a sum become a dimension. A sum over other axes stays one.
struct PartsModel : LayoutOpInterface::ExternalModel<PartsModel, PartsOp> {
  MaybeLayouts transfer(Operation *op, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    Layout layout = *context.operands[0];
    AxisList axes = getAxes(cast<PartsOp>(op).getAxes(), context.mesh);
    canonicalizeAxes(axes, context.mesh);
    AxisList open = layout.getUnreduced();
    if (layout.getReduction() != ReductionKind::Sum || !removeAxes(open, axes))
      return LogicalResult(report(context,
                                  "takes parts of a sum over " + toString(axes, context.mesh) +
                                      ", but operand 0 has layout " +
                                      toString(layout, context.mesh),
                                  0));
    layout.setUnreduced(std::move(open));
    LayoutFactor parts = makeFactor(getNumShards(axes));
    parts.axes = std::move(axes);
    layout.dims.insert(layout.dims.begin(), DimLayout(std::move(parts)));
    canonicalize(layout, context.mesh);
    return ResultLayouts{std::move(layout)};
  }
  bool takesPart(Operation *, const TransferContext &, unsigned, const Part &part) const {
    return part.isUnreduced() && part.reduction == ReductionKind::Sum;
  }
};

/// Ranks may have replicas of the groups apart: whole ones, and the numbers of their groups.
template <typename Op>
struct CountedModel : LayoutOpInterface::ExternalModel<CountedModel<Op>, Op> {
  MaybeLayouts transfer(Operation *op, const TransferContext &context, SmallVectorImpl<Layout> *) const {
    auto counted = cast<Op>(op);
    Layout layout = *context.operands[0], counts = *context.operands[1];
    DimLayout &rows = layout.dims[counted.getDim()], &groups = counts.dims[0];
    AxisList axes = rows.getAxes();
    if (axes.empty() && !groups.isSharded())
      return transferByRule(context);
    collapse(rows);
    collapse(groups);
    auto isCut = [&](const DimLayout &dim) {
      return dim.factors.size() == 1 && dim.factors[0].isContiguous() && !dim.factors[0].isPadded() &&
             dim.factors[0].axes == axes;
    };
    if (!isCut(rows) || !isCut(groups) || counts.isUnreduced())
      return LogicalResult(report(context,
                                  "expected whole replicas of the groups on each rank, and their numbers, got "
                                  "layouts " + toString(layout, context.mesh) + " and " +
                                      toString(counts, context.mesh), 0));
    int64_t local = cast<RankedTensorType>(op->getResult(0).getType()).getDimSize(counted.getDim());
    LayoutFactor factor = makeFactor(local * getNumShards(axes));
    factor.axes = std::move(axes);
    rows = DimLayout(std::move(factor));
    // Rows behind the true ones are zeros.
    layout.data = padding::meet(layout.data, padding::Padding::Zero);
    layout.corner = padding::meet(layout.corner, padding::Padding::Zero);
    for (DimLayout &dim : layout.dims)
      for (LayoutFactor &other : dim.factors)
        other.padding = padding::meet(other.padding, padding::Padding::Zero);
    canonicalize(layout, context.mesh);
    return ResultLayouts{std::move(layout)};
  }
};

} // namespace

bool layout_transfer::hasModels(MLIRContext *context) {
  auto name = RegisteredOperationName::lookup(nn::ConstantOp::getOperationName(), context);
  return !name || name->hasInterface<LayoutOpInterface>();
}

void meshwright::registerPlacementModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, nn::NnDialect *) {
    attachMovementModels(context);
    attachTableModels(context);
    attachAttentionModels(context);
    attachRowModels(context);
    attachPagesModels(context);
  });
  registry.addExtension(+[](MLIRContext *context, DistDialect *) {
    PlaceOp::attachInterface<PlaceModel>(*context);
    PermuteOp::attachInterface<PermuteModel>(*context);
    PartsOp::attachInterface<PartsModel>(*context);
    CompactOp::attachInterface<CountedModel<CompactOp>>(*context);
    ExpandOp::attachInterface<CountedModel<ExpandOp>>(*context);
  });
}
