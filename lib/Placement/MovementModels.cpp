//===- MovementModels.cpp - ops that make and move elements ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// How layouts pass constants, indices, slices, concatenations, reshapes and broadcasts.
//
// A condition of padding names an event, such as "row i of this value is not finite". Behind a slice
// or a concatenation row i is another row, and so another event.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Constants and indices
//===----------------------------------------------------------------------===//

/// A splat is uniform along all dimensions. Other constants are replicated.
static MaybeLayouts transferConstant(nn::ConstantOp op, const TransferContext &) {
  ArrayRef<int64_t> shape = op.getResult().getType().getShape();
  ResultLayouts layouts;
  if (padding::getSplat(op.getResult())) {
    Layout &layout = layouts.emplace_back();
    for (int64_t size : shape)
      layout.dims.emplace_back(makeFactor(size, /*uniform=*/true));
  } else {
    layouts.push_back(Layout::getReplicated(shape));
  }
  layouts[0].data = describeGenerated(op);
  return layouts;
}

static MaybeLayouts transferIota(nn::IotaOp op, const TransferContext &) {
  ResultLayouts layouts(1);
  for (auto [d, size] : llvm::enumerate(op.getResult().getType().getShape()))
    layouts[0].dims.emplace_back(makeFactor(size, /*uniform=*/d != op.getDim()));
  layouts[0].data = describeGenerated(op);
  return layouts;
}

//===----------------------------------------------------------------------===//
// Run-time sizes
//===----------------------------------------------------------------------===//

/// The only factor of a dimension that is whole and in contiguous order; null, after an error, for
/// another dimension.
static LayoutFactor *getWhole(const TransferContext &context, Layout &layout, unsigned dim) {
  DimLayout &own = layout.dims[dim];
  collapse(own);
  if (own.factors.size() == 1 && own.factors[0].axes.empty() && own.factors[0].isContiguous())
    return &own.factors[0];
  (void)report(context,
               "needs the whole of dimension " + Twine(dim) + " of operand 0, got layout " +
                   toString(layout, context.mesh),
               0);
  return nullptr;
}

static MaybeLayouts transferCut(nn::CutOp op, const TransferContext &context) {
  Layout layout = *context.operands[0];
  for (auto [d, name] : llvm::enumerate(op.getSizes().getAsRange<StringAttr>())) {
    if (name.empty() || op.getType().getDimSize(d) == 1)
      continue;
    LayoutFactor *factor = getWhole(context, layout, d);
    if (!factor)
      return failure();
    auto size = FlatSymbolRefAttr::get(name);
    if (factor->runtimeSize && factor->runtimeSize != size)
      return LogicalResult(report(context,
                                  "cuts dimension " + Twine(d) + " of operand 0 to the size @" +
                                      name.getValue() + ", which has the size @" +
                                      factor->runtimeSize.getValue(),
                                  0));
    int others = countPadded(layout) - factor->isPadded();
    factor->padding = factor->isPadded()
                          ? padding::meet(padding::getUnconditional(factor->padding), layout.data)
                          : layout.data;
    if (factor->uniform)
      *factor = LayoutFactor{factor->size, factor->padded, size, {}, factor->padding};
    factor->runtimeSize = size;
    if (others)
      layout.corner = padding::meet(overallContent(*context.operands[0]), factor->padding);
  }
  return ResultLayouts{std::move(layout)};
}

static MaybeLayouts transferUncut(nn::UncutOp op, const TransferContext &context) {
  Layout layout = *context.operands[0];
  for (auto [d, name] : llvm::enumerate(op.getSizes().getAsRange<StringAttr>())) {
    if (name.empty() || op.getType().getDimSize(d) == 1)
      continue;
    LayoutFactor *factor = getWhole(context, layout, d);
    if (!factor)
      return failure();
    if (!factor->runtimeSize)
      continue;
    bool isZero = padding::isZero(factor->padding) && !factor->padding.cause &&
                  (countPadded(layout) < 2 || padding::isZero(layout.corner));
    if (!isZero)
      return LogicalResult(report(context,
                                  "makes true elements of the padding behind the size @" +
                                      factor->runtimeSize.getValue() + " of dimension " + Twine(d) +
                                      ": expected zero, got " + padding::toString(factor->padding),
                                  0));
    factor->runtimeSize = {};
    layout.data = padding::meet(layout.data, Padding::Zero);
  }
  return ResultLayouts{std::move(layout)};
}

//===----------------------------------------------------------------------===//
// Slices and concatenations
//===----------------------------------------------------------------------===//

/// Checks a dimension of which the op counts elements. It must be:
/// - not sharded,
/// - in contiguous order,
/// - padded at its tail only.
static LogicalResult checkIndexed(const TransferContext &context, unsigned operand, unsigned dim) {
  DimLayout layout = context.operands[operand]->dims[dim];
  collapse(layout);
  if (layout.isSharded())
    return report(context,
                  "needs the whole of dimension " + Twine(dim) + " of operand " + Twine(operand) +
                      ", which is sharded over " + toString(layout.getAxes(), context.mesh),
                  operand);
  if (llvm::any_of(layout.factors, [](const LayoutFactor &f) { return !f.isContiguous(); })) {
    Layout own;
    own.dims.push_back(layout);
    return report(context,
                  "counts elements of dimension " + Twine(dim) + " of operand " + Twine(operand) +
                      ", which are not in contiguous order: they have layout " +
                      toString(own, context.mesh),
                  operand);
  }
  if (layout.isPadded() && layout.factors.size() > 1)
    return report(context,
                  "counts elements of dimension " + Twine(dim) + " of operand " + Twine(operand) +
                      ", which has padding within",
                  operand);
  return success();
}

/// An event of the rows that a slice takes. Row i of the result is another row of the operand.
static uint32_t sliceEvent(nn::SliceOp op, uint32_t cause) {
  padding::EventTable &events = padding::EventTable::getCurrent();
  ArrayRef<int64_t> from = op.getInput().getType().getShape();
  ArrayRef<int64_t> to = op.getResult().getType().getShape();
  SmallVector<int64_t> numbers;
  for (unsigned d = 0; d < from.size(); ++d)
    if (from[d] != to[d] && events.dependsOn(cause, d))
      numbers.append({int64_t(d), to[d], op.getStarts()[d], op.getStrides()[d]});
  if (numbers.empty())
    return cause;
  return events.derive(cause, "slice", numbers, from.size(),
                       [&](unsigned d) { return events.dependsOn(cause, d); });
}

static MaybeLayouts transferSlice(nn::SliceOp op, const TransferContext &context) {
  Layout layout = *context.operands[0];
  ArrayRef<int64_t> from = op.getInput().getType().getShape();
  ArrayRef<int64_t> to = op.getResult().getType().getShape();
  for (unsigned d = 0; d < from.size(); ++d) {
    if (from[d] == to[d])
      continue;
    if (failed(checkIndexed(context, 0, d)))
      return failure();
    DimLayout &dim = layout.dims[d];
    collapse(dim);
    int64_t size = dim.getGlobalSize(), start = op.getStarts()[d];
    if (dim.hasRuntimeSize()) {
      bool isFirst = start == 0 && op.getLimits()[d] == 1;
      // Padding behind the largest size is taken off.
      if (start == 0 && op.getStrides()[d] == 1 && to[d] >= size) {
        dim.factors.front().padded = to[d];
        continue;
      }
      if (!isFirst)
        return LogicalResult(report(context,
                                    "takes rows " + Twine(start) + " to " + Twine(op.getLimits()[d]) +
                                        " of dimension " + Twine(d) + " of operand 0, which has the "
                                        "run-time size @" +
                                        dim.factors.front().runtimeSize.getValue() +
                                        ": expected the first row alone, or a gather",
                                    0));
    }
    int64_t last = to[d] == 0 ? 0 : start + (to[d] - 1) * op.getStrides()[d] + 1;
    if (last > size && start < size && op.getStrides()[d] == 1 && op.getLimits()[d] == from[d]) {
      // The slice takes the last rows with all of the padding.
      LayoutFactor tail = dim.factors.front();
      tail.size = size - start;
      tail.padded = to[d];
      dim = DimLayout(tail);
      continue;
    }
    if (last > size)
      return LogicalResult(report(context,
                                  "expected to read at most the " + Twine(size) +
                                      " true rows of dimension " + Twine(d) + ", got a limit of " +
                                      Twine(last),
                                  0));
    bool uniform = llvm::all_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; });
    dim = DimLayout(makeFactor(to[d], uniform));
  }
  mapEvents(layout, [&](uint32_t cause) { return sliceEvent(op, cause); });
  canonicalize(layout, context.mesh);
  return ResultLayouts{std::move(layout)};
}

/// An event of the rows that an operand of a concatenation becomes, from row `begin` on.
static uint32_t placeEvent(uint32_t cause, unsigned dim, int64_t begin, unsigned rank) {
  padding::EventTable &events = padding::EventTable::getCurrent();
  return events.derive(cause, "place", {int64_t(dim), begin}, rank, [&](unsigned d) {
    return d == dim || events.dependsOn(cause, d);
  });
}

/// The layouts of the operands of a concatenation, with their events at the rows that they become.
/// An event that all operands have, and which is the same at each of their rows, stays.
static SmallVector<Layout, 4> placeOperands(ArrayRef<const Layout *> operands, unsigned dim) {
  auto getCauses = [](Layout layout) {
    SmallVector<uint32_t> causes;
    mapEvents(layout, [&](uint32_t cause) { return causes.emplace_back(cause | 1), cause; });
    return causes;
  };
  SmallVector<uint32_t> first = getCauses(*operands[0]);
  bool isSame = llvm::none_of(first, [&](uint32_t cause) {
    return padding::EventTable::getCurrent().dependsOn(cause, dim);
  });
  for (const Layout *operand : operands)
    isSame &= getCauses(*operand) == first;
  SmallVector<Layout, 4> placed;
  int64_t begin = 0;
  for (const Layout *operand : operands) {
    Layout &own = placed.emplace_back(*operand);
    if (!isSame)
      mapEvents(own, [&](uint32_t cause) {
        return placeEvent(cause, dim, begin, own.getRank());
      });
    begin += own.dims[dim].getLocalSize();
  }
  return placed;
}

static MaybeLayouts transferConcat(nn::ConcatOp op, const TransferContext &context) {
  unsigned dim = op.getDim();
  SmallVector<Layout, 4> operands = placeOperands(context.operands, dim);
  Layout layout = operands[0];
  // Either no operand is unreduced, or all but zeros are, over the same axes.
  int source = -1;
  for (auto [i, operand] : llvm::enumerate(context.operands))
    if (operand->isUnreduced() && source < 0)
      source = i;
  if (source >= 0) {
    const AxisList &axes = context.operands[source]->getUnreduced();
    ReductionKind reduction = context.operands[source]->getReduction();
    layout.setUnreduced(axes, reduction);
    for (auto [i, operand] : llvm::enumerate(context.operands))
      if ((operand->getUnreduced() != axes || operand->getReduction() != reduction) &&
          padding::getSplat(op->getOperand(i)) != 0.0)
        return LogicalResult(report(context,
                                    "joins operand " + Twine(source) + ", unreduced over " +
                                        toString(axes, context.mesh) +
                                        ", with operand " + Twine(i) + ", which is not",
                                    source));
  }
  int64_t size = 0, padded = 0;
  Padding content = Padding::Zero;
  // The content of all elements of the operands so far.
  Padding overall = overallContent(layout);
  for (auto [i, own] : llvm::enumerate(operands)) {
    const Layout *operand = &own;
    if (failed(checkIndexed(context, i, dim)))
      return failure();
    if (operand->dims[dim].hasRuntimeSize() && operands.size() > 1)
      return LogicalResult(report(context,
                                  "joins operand " + Twine(i) + " in dimension " + Twine(dim) +
                                      ", of which the size is a number at run time",
                                  i));
    if (size != padded)
      return LogicalResult(report(
          context, "would leave padding between its operands in dimension " + Twine(dim), i - 1));
    for (const LayoutFactor &factor : operand->dims[dim].factors)
      if (factor.isPadded())
        content = padding::getUnconditional(factor.padding);
    size += operand->dims[dim].getGlobalSize();
    padded += operand->dims[dim].getLocalSize();
    layout.data = padding::meet(layout.data, operand->data);
    Padding corner = countPadded(*operand) > 1 ? operand->corner : overallContent(*operand);
    layout.corner = i == 0 ? corner : padding::meet(layout.corner, corner);
    for (unsigned d = 0; d < layout.dims.size(); ++d) {
      if (d == dim || i == 0)
        continue;
      Pieces pieces(layout.dims[d].factors.begin(), layout.dims[d].factors.end());
      const auto &factors = operand->dims[d].factors;
      if (!mergePieces(pieces, factors, context.mesh, /*broadcasts=*/true))
        return LogicalResult(
            report(context,
                   "operand " + Twine(i) + ", dimension " + Twine(d) +
                       ": expected the layout of operand 0, " +
                       toString(*context.operands[0], context.mesh) + ", got " +
                       toString(*operand, context.mesh),
                   i));
      // The padding has a content that holds for both. A side that is uniform has its data there.
      std::pair<ArrayRef<LayoutFactor>, Padding> sides[] = {{layout.dims[d].factors, overall},
                                                            {factors, overallContent(*operand)}};
      for (LayoutFactor &piece : pieces) {
        if (!piece.isPadded())
          continue;
        for (const auto &[list, elsewhere] : sides) {
          auto same = llvm::find_if(list, [&](const LayoutFactor &factor) {
            return factor.isPadded() && factor.sameShardingAs(piece);
          });
          piece.padding =
              padding::meet(piece.padding, same != list.end() ? same->padding : elsewhere);
        }
      }
      layout.dims[d].factors = std::move(pieces);
    }
    overall = padding::meet(overall, overallContent(*operand));
  }
  LayoutFactor joined = makeFactor(size);
  joined.padding = content;
  joined.padded = padded;
  if (operands.size() == 1)
    for (const LayoutFactor &factor : operands[0].dims[dim].factors)
      if (factor.runtimeSize)
        joined.runtimeSize = factor.runtimeSize;
  layout.dims[dim] = DimLayout(joined);
  canonicalize(layout, context.mesh);
  AxisList axes = layout.getShardedAxes();
  if (anyOverlap(axes, layout.getUnreduced()))
    return LogicalResult(report(context, "joins values unreduced over, and sharded over, " +
                                             toString(layout.getUnreduced(), context.mesh)));
  return ResultLayouts{std::move(layout)};
}

//===----------------------------------------------------------------------===//
// Models
//===----------------------------------------------------------------------===//

namespace {

template <typename OpT, MaybeLayouts (*pass)(OpT, const TransferContext &)>
struct OwnModel : LayoutOpInterface::ExternalModel<OwnModel<OpT, pass>, OpT> {
  MaybeLayouts transfer(Operation *op, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    return pass(cast<OpT>(op), context);
  }
};

struct ReshapeModel : LayoutOpInterface::ExternalModel<ReshapeModel, nn::ReshapeOp> {
  MaybeLayouts transfer(Operation *, const TransferContext &context,
                        SmallVectorImpl<Layout> *alternatives) const {
    return transferReshape(context, alternatives);
  }
  bool hasCandidates(Operation *) const { return true; }
  /// The elements of a part that adds up, or takes its place, are the same in another shape.
  bool takesPart(Operation *, const TransferContext &context, unsigned operand,
                 const Part &part) const {
    return part.hasSource() ? part.reduction != ReductionKind::Merge
                            : takesPartByRule(context, operand, part);
  }
};

/// One element stretches to a chunk of one element.
class BroadcastTransfer : public RuleTransfer {
public:
  using RuleTransfer::RuleTransfer;

private:
  void refinePieces() override {
    for (Pieces &list : pieces)
      if (list.size() == 1 && list.front().padded == 1)
        list.front().uniform = true;
  }
};

} // namespace

void layout_transfer::attachMovementModels(MLIRContext *context) {
  nn::ConstantOp::attachInterface<OwnModel<nn::ConstantOp, transferConstant>>(*context);
  nn::IotaOp::attachInterface<OwnModel<nn::IotaOp, transferIota>>(*context);
  nn::CutOp::attachInterface<OwnModel<nn::CutOp, transferCut>>(*context);
  nn::UncutOp::attachInterface<OwnModel<nn::UncutOp, transferUncut>>(*context);
  nn::SliceOp::attachInterface<OwnModel<nn::SliceOp, transferSlice>>(*context);
  nn::ConcatOp::attachInterface<OwnModel<nn::ConcatOp, transferConcat>>(*context);
  nn::ReshapeOp::attachInterface<ReshapeModel>(*context);
  nn::BroadcastOp::attachInterface<RuleModel<nn::BroadcastOp, BroadcastTransfer>>(*context);
}
