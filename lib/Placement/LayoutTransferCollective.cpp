//===- LayoutTransferCollective.cpp - layouts through dist ops ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The table of collectives in the layout algebra. A collective acts on a local
// dimension as it is: concatenating chunks, or cutting into chunks, works on the
// dimension's major-most factor that has several local elements.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/lib/Placement/MeshTranslation.h"
#include "meshwright/lib/Placement/PermuteTransfer.h"

#include "llvm/ADT/TypeSwitch.h"
#include <limits>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

/// One transfer through a dist op.
class CollectiveTransfer {
public:
  explicit CollectiveTransfer(const TransferContext &context)
      : context(context), mesh(context.mesh) {}
  MaybeLayouts run();

private:
  LogicalResult reduce(Layout &layout, unsigned i, ReductionKind kind);
  LogicalResult lose(Layout &layout, unsigned i, int64_t dim);
  LogicalResult gain(Layout &layout, unsigned i, int64_t dim);
  LogicalResult expectReplicated(const Layout &layout, unsigned i, StringRef what);
  LogicalResult redistribute(RedistributeOp op, Layout &layout, unsigned i);
  LogicalResult slice(SliceOp op, Layout &layout, unsigned i);
  LogicalResult makePartial(Layout &layout, unsigned i, bool isMaximum);
  LogicalResult permute(PermuteOp op, Layout &layout, unsigned i);
  LogicalResult setRows(Layout &layout, unsigned i, int64_t dim, int64_t from, int64_t to);
  template <typename Op> LogicalResult gatherCounted(Op op, Layout &layout, unsigned i);
  template <typename Op> LogicalResult scatterCounted(Op op, Layout &layout, unsigned i);
  LogicalResult move(CollectiveOpInterface op, Layout &layout, unsigned i);
  LogicalResult reorder(ReorderOp op, Layout &layout);
  LogicalResult mask(MaskPaddingOp op, Layout &layout);
  LogicalResult pad(PadOp op, Layout &layout);
  std::string text(ArrayRef<Axis> list) const { return toString(list, mesh); }
  /// The reason why the value is not unreduced over the axis.
  std::string describe(const Layout &layout, const Axis &axis) const;

  const TransferContext &context;
  MeshAttr mesh;
  AxisList axes;
};

} // namespace

/// The groups whose rows an operand of a counted collective has.
static int64_t countGroups(Operation *op, unsigned i) {
  return cast<RankedTensorType>(op->getOperand(i + 1).getType()).getDimSize(0);
}

std::string CollectiveTransfer::describe(const Layout &layout, const Axis &axis) const {
  for (auto [d, dim] : llvm::enumerate(layout.dims))
    if (anyOverlap(dim.getAxes(), axis))
      return "shards dimension " + std::to_string(d) + " of";
  return anyOverlap(layout.getUnreduced(), axis) ? "leaves unreduced" : "replicates";
}

LogicalResult CollectiveTransfer::reduce(Layout &layout, unsigned i, ReductionKind kind) {
  for (const Axis &axis : axes) {
    AxisList left = layout.getUnreduced();
    if (removeAxes(left, axis))
      continue;
    std::string how = describe(layout, axis);
    if (how == "replicates")
      return report(context,
                    "reduces operand " + Twine(i) + " over " + text(axis) +
                        ", over which it is replicated: the result would be " + Twine(axis.size) +
                        " times too large; expected an unreduced value",
                    i);
    return report(context,
                  "reduces operand " + Twine(i) + " over " + text(axis) + ", the wrong axis: it " +
                      how + " it, which is unreduced over " + text(layout.getUnreduced()),
                  i);
  }
  if (layout.isUnreduced() && !axes.empty() && layout.getReduction() != kind)
    return report(context,
                  "takes a " + Twine(stringifyReductionKind(kind)) + " of operand " + Twine(i) +
                      ", whose parts make up a " + stringifyReductionKind(layout.getReduction()),
                  i);
  AxisList open = layout.getUnreduced();
  removeAxes(open, axes);
  layout.setUnreduced(std::move(open), layout.getReduction());
  return success();
}

LogicalResult CollectiveTransfer::lose(Layout &layout, unsigned i, int64_t dim) {
  DimLayout result = layout.dims[dim];
  if (!loseAxes(result, axes, mesh)) {
    AxisList own = layout.dims[dim].getAxes();
    if (!anyOverlap(own, axes))
      return report(context,
                    "gathers dimension " + Twine(dim) + " of operand " + Twine(i) + " over " +
                        text(axes) + ", which " +
                        (layout.uses(axes) ? "do not shard it" : "replicate it") +
                        ": it is sharded over " + text(own),
                    i);
    return report(context,
                  "gathers dimension " + Twine(dim) + " of operand " + Twine(i) + " over " +
                      text(axes) + ", which are not the minor-most of " + text(own) +
                      ": chunks would be out of order",
                  i);
  }
  layout.dims[dim] = std::move(result);
  // Equal chunks, of which each has another part of something else.
  if (layout.uses(axes))
    return report(context,
                  "gathers dimension " + Twine(dim) + " of operand " + Twine(i) + " over " +
                      text(axes) + ", which do not shard it: it has layout " +
                          toString(layout, mesh),
                  i);
  return success();
}

LogicalResult CollectiveTransfer::gain(Layout &layout, unsigned i, int64_t dim) {
  auto type = cast<RankedTensorType>(context.op->getResult(i).getType());
  bool padded = false;
  int others = countPadded(layout);
  for (const LayoutFactor &factor : layout.dims[dim].factors)
    others -= factor.isPadded();
  if (!gainAxes(layout.dims[dim], axes, type.getDimSize(dim), padded))
    return report(context,
                  "cannot cut dimension " + Twine(dim) + " of operand " + Twine(i) + " over " +
                      text(axes) + ": it has layout " + toString(layout, mesh) +
                      (padded ? " and would have padding within" : ""),
                  i);
  if (padded)
    layout.corner = others > 1 ? padding::meet(layout.corner, Padding::Zero) : Padding::Zero;
  return success();
}

LogicalResult CollectiveTransfer::expectReplicated(const Layout &layout, unsigned i,
                                                   StringRef what) {
  for (const Axis &axis : axes)
    if (layout.uses(axis)) {
      bool unreduced = anyOverlap(layout.getUnreduced(), axis);
      return report(context,
                    what + " operand " + Twine(i) + " over " + text(axis) + ", over which it is " +
                        (unreduced ? "unreduced" : "sharded") + ": expected a replicated value",
                    i);
    }
  return success();
}

//===----------------------------------------------------------------------===//
// Redistribute
//===----------------------------------------------------------------------===//

/// Reads a single equal element beside other factors of its dimension as that element alone. It
/// could also be a chunk of more of them, of which the shardings of a redistribute know nothing.
static void dropEqualElements(Layout &layout, MeshAttr mesh) {
  for (DimLayout &dim : layout.dims) {
    auto isEqual = [](const LayoutFactor &f) { return f.uniform && f.getLocalSize() == 1; };
    if (!llvm::all_of(dim.factors, isEqual))
      llvm::erase_if(dim.factors, isEqual);
  }
  canonicalize(layout, mesh);
}

LogicalResult CollectiveTransfer::redistribute(RedistributeOp op, Layout &layout, unsigned i) {
  dropEqualElements(layout, mesh);
  SmallVector<int64_t> global = layout.getGlobalShape();
  for (auto [d, dim] : llvm::enumerate(layout.dims)) {
    if (llvm::none_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; }))
      continue;
    // It has the size that the shardings give it; a whole dimension has no
    // padding.
    int64_t least = std::numeric_limits<int64_t>::max();
    for (auto [list, value] : {std::pair<ArrayAttr, Value>(op.getFrom(), op.getOperand(i)),
                               std::pair<ArrayAttr, Value>(op.getTo(), op.getResult(i))}) {
      auto sharding = cast<ShardingAttr>(list[i]);
      MeshAttr own = lookupMesh(op, sharding.getMesh());
      int64_t size = cast<RankedTensorType>(value.getType()).getDimSize(d);
      if (own)
        for (FactorShardingAttr factor : sharding.getDims()[d].getFactors())
          for (AxisRefAttr axis : factor.getAxes())
            size *= getAxis(axis, own).size;
      least = std::min(least, size);
    }
    global[d] = least;
  }
  auto read = [&](ArrayAttr list, Value value, StringRef name,
                  bool reports = true) -> FailureOr<Layout> {
    auto sharding = cast<ShardingAttr>(list[i]);
    MeshAttr own = lookupMesh(op, sharding.getMesh());
    if (!own || own.getNumRanks() != mesh.getNumRanks())
      return LogicalResult(
          report(context, "'" + name + "' names another number of ranks than the function's mesh"));
    auto emit = [&] {
      InFlightDiagnostic error = context.emitError() << "'" << name << "': ";
      if (!reports)
        error.abandon();
      return error;
    };
    auto shape = cast<RankedTensorType>(value.getType()).getShape();
    FailureOr<Layout> result = getLayout(sharding, own, global, shape, Padding::Zero, emit);
    if (failed(result))
      return failure();
    if (own != mesh && !translate(*result, own, mesh))
      return LogicalResult(report(context, "'" + name +
                                               "' cannot be written with the axes of the "
                                               "function's mesh"));
    return result;
  };
  FailureOr<Layout> from = read(op.getFrom(), op.getOperand(i), "from");
  if (failed(from))
    return failure();
  if (!isLayout(layout, *from, mesh)) {
    // Equal elements beside rows of padding are all of their factor: 7 padded to 8, times 2. The
    // shardings alone would count the padding, too.
    global = layout.getGlobalShape();
    FailureOr<Layout> whole = read(op.getFrom(), op.getOperand(i), "from", /*reports=*/false);
    if (failed(whole) || !isLayout(layout, *whole, mesh))
      return report(context,
                    "expected operand " + Twine(i) + " as " + toString(*from, mesh) +
                        ", got layout " + toString(layout, mesh),
                    i);
    from = std::move(whole);
  }
  FailureOr<Layout> to = read(op.getTo(), op.getResult(i), "to");
  if (failed(to))
    return failure();
  // Padding is moved, or made anew with zeros.
  Padding content = Padding::Zero;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      if (factor.isPadded())
        content = padding::meet(content, padding::getUnconditional(factor.padding));
  if (countPadded(layout) > 1)
    content = padding::meet(content, layout.corner);
  for (DimLayout &dim : to->dims)
    for (LayoutFactor &factor : dim.factors)
      factor.padding = content;
  to->corner = content;
  // Equal rows stay equal. If they are sharded on both sides, their number need not be the true size
  // of the dimension.
  for (auto [d, dim] : llvm::enumerate(to->dims))
    if (isUniform(layout.dims[d]) && from->dims[d].isSharded() && dim.isSharded() &&
        !from->dims[d].isPadded() && !dim.isPadded())
      dim = DimLayout(makeFactor(dim.getLocalSize(), /*uniform=*/true));
  to->data = layout.data;
  layout = std::move(*to);
  return success();
}

//===----------------------------------------------------------------------===//
// Padding
//===----------------------------------------------------------------------===//

LogicalResult CollectiveTransfer::mask(MaskPaddingOp op, Layout &layout) {
  int64_t d = op.getDim(), size = op.getSize();
  double value = op.getValue().convertToDouble();
  DimLayout &dim = layout.dims[d];
  collapse(dim);
  if (layout.isUnreduced() && value != 0)
    return report(context,
                  "writes padding other than zero into every part of operand 0, which is "
                  "unreduced over " +
                      text(layout.getUnreduced()),
                  0);
  int others = countPadded(layout);
  for (const LayoutFactor &factor : dim.factors)
    others -= factor.isPadded();
  if (isUniform(dim)) {
    if (layout.uses(axes))
      return report(context,
                    "masks dimension " + Twine(d) + " along " + text(axes) +
                        ", which operand 0 uses otherwise",
                    0);
    LayoutFactor factor = makeFactor(size);
    factor.padded = dim.getLocalSize() * getNumShards(axes);
    factor.axes = axes;
    dim = DimLayout(factor);
  }
  LayoutFactor &factor = dim.factors.front();
  if (dim.factors.size() != 1 || factor.axes != axes || factor.shift != 0)
    return report(context,
                  "expected a dimension " + Twine(d) + " that is sharded over " + text(axes) +
                      " to mask, got layout " + toString(layout, mesh),
                  0);
  if (factor.size != size)
    return report(context,
                  "expected to mask dimension " + Twine(d) + " behind its " + Twine(factor.size) +
                      " true rows, got " + Twine(size),
                  0);
  if (!factor.isPadded())
    return success();
  Padding content = padding::ofConstant(value);
  if (factor.runtimeSize)
    content = padding::meet(content, padding::getUnconditional(factor.padding));
  factor.padding = content;
  layout.corner = others > 1 ? padding::meet(layout.corner, content) : content;
  return success();
}

LogicalResult CollectiveTransfer::pad(PadOp op, Layout &layout) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
  for (int64_t d : op.getDims()) {
    DimLayout &dim = layout.dims[d];
    int others = countPadded(layout);
    collapse(dim);
    if (dim.isSharded() || (dim.factors.size() != 1 && dim.isPadded()) ||
        !dim.factors.front().isContiguous())
      return report(context,
                    "pads dimension " + Twine(d) + " of operand 0, which has layout " +
                        toString(layout, mesh) + ": padding would be within it",
                    0);
    LayoutFactor factor = makeFactor(dim.getGlobalSize());
    factor.runtimeSize = dim.factors.front().runtimeSize;
    Padding old = dim.isPadded() ? dim.factors.front().padding : Padding::Zero;
    others -= dim.isPadded();
    factor.padding = padding::meet(old, Padding::Zero);
    factor.padded = type.getDimSize(d);
    dim = DimLayout(factor);
    layout.corner = others > 1 ? padding::meet(layout.corner, Padding::Zero) : factor.padding;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Orders
//===----------------------------------------------------------------------===//

LogicalResult CollectiveTransfer::makePartial(Layout &layout, unsigned i, bool isMaximum) {
  ReductionKind kind = isMaximum ? ReductionKind::Max : ReductionKind::Sum;
  if (failed(expectReplicated(layout, i,
                              isMaximum ? "makes a partial maximum of" : "makes a partial sum of")))
    return failure();
  if (layout.isUnreduced() && layout.getReduction() != kind)
    return report(context,
                  "makes a partial " + Twine(isMaximum ? "maximum of a sum" : "sum of a maximum"),
                  i);
  layout.addUnreduced(axes, kind);
  return success();
}

LogicalResult CollectiveTransfer::permute(PermuteOp op, Layout &layout, unsigned i) {
  if (succeeded(transferPermute(op, axes, mesh, layout)))
    return success();
  if (op->hasAttr(kRelabelsAttr))
    return report(context,
                  "makes another value of operand " + Twine(i) + ", which has layout " +
                      toString(layout, mesh) +
                      ": expected ranks with the same chunk to receive equal ones, and no padding or parts of sums "
                      "along " +
                      text(axes),
                  i);
  if (auto leftOut = getLeftOut(op, getNumShards(axes)); leftOut.any())
    return report(context,
                  "leaves out ranks " + toString(leftOut) + " of " + text(axes) +
                      ": expected chunks of operand " + Twine(i) +
                      " that all go equally far along the axes that shard it, got layout " +
                      toString(layout, mesh),
                  i);
  return report(context,
                "leaves the chunks of operand " + Twine(i) + ", which has layout " +
                    toString(layout, mesh) + ", in an order that fits no layout",
                i);
}

LogicalResult CollectiveTransfer::slice(SliceOp op, Layout &layout, unsigned i) {
  int64_t dim = op.getDims()[i];
  // The bias of queries that are sharded goes with the keys of each step.
  bool blocks = llvm::any_of(ArrayRef(layout.dims).take_front(dim),
                             [&](const DimLayout &rows) { return rows.getAxes() == axes; });
  if (!blocks && failed(expectReplicated(layout, i, "slices")))
    return failure();
  if (failed(gain(layout, i, dim)))
    return failure();
  int64_t chunks = getNumShards(axes), shift = (int64_t(op.getShift()) % chunks + chunks) % chunks;
  if (shift == 0 || isUniform(layout.dims[dim]))
    return success();
  for (LayoutFactor &factor : layout.dims[dim].factors)
    if (factor.axes == axes) {
      factor.shift = shift;
      return success();
    }
  return report(context,
                "shifts chunks of dimension " + Twine(dim) + " of operand " + Twine(i) + " along " +
                    text(axes) + ", which shard more than one factor of it",
                i);
}

LogicalResult CollectiveTransfer::reorder(ReorderOp op, Layout &layout) {
  DimLayout &dim = layout.dims[op.getDim()];
  LayoutFactor from = getFactor(op.getFrom(), mesh), to = getFactor(op.getTo(), mesh);
  // Equal elements have every order. Their chunks are then those of the order that the op gives.
  if (isUniform(dim)) {
    if (dim.getLocalSize() != to.getLocalSize() || to.isPadded())
      return success();
    dim = DimLayout(to);
    return success();
  }
  collapse(dim);
  if (dim.factors.size() != 1 || !dim.factors.front().sameShardingAs(from)) {
    Layout expected;
    expected.dims.emplace_back(from);
    return report(context,
                  "expected dimension " + Twine(op.getDim()) + " of operand 0 as " +
                      toString(expected, mesh) + " of true size " + Twine(from.size) +
                      ", got layout " + toString(layout, mesh),
                  0);
  }
  dim.factors.front().order = to.order;
  dim.factors.front().orderRanks = to.orderRanks;
  return success();
}

static MaybeLayouts transferPositions(PositionsOp op, MeshAttr mesh) {
  ResultLayouts layouts(1);
  LayoutFactor factor = getFactor(op, mesh);
  factor.padding = padding::ofConstant(-1);
  layouts[0].data = {0, double(factor.size - 1)};
  layouts[0].dims.emplace_back(std::move(factor));
  canonicalize(layouts[0], mesh);
  return layouts;
}

//===----------------------------------------------------------------------===//
// Dispatch
//===----------------------------------------------------------------------===//

/// The `from` rows of a dimension on a rank, in one order, become `to` rows.
LogicalResult CollectiveTransfer::setRows(Layout &layout, unsigned i, int64_t dim, int64_t from, int64_t to) {
  DimLayout &own = layout.dims[dim];
  collapse(own);
  LayoutFactor factor = own.factors.front();
  // Other axes have replicas of the groups.
  int64_t replicas = getNumShards(factor.axes);
  if (own.factors.size() != 1 || !factor.isContiguous() || factor.isPadded() || factor.size != from * replicas)
    return report(context,
                  "expected dimension " + Twine(dim) + " of operand " + Twine(i) + " as " + Twine(from) +
                      " rows in order on each rank, got layout " + toString(layout, mesh),
                  i);
  own.factors.front() = makeFactor(to * replicas);
  own.factors.front().axes = std::move(factor.axes);
  return success();
}

/// Rows of groups on the ranks become the true rows of all; their numbers stay.
template <typename Op> LogicalResult CollectiveTransfer::gatherCounted(Op op, Layout &layout, unsigned i) {
  if (i % 2)
    return expectReplicated(layout, i, "reads numbers of rows");
  int64_t dim = op.getDims()[i / 2];
  return success(succeeded(lose(layout, i, dim)) &&
                 succeeded(setRows(layout, i, dim, countGroups(op, i) * op.getTokens(), op.getRows())));
}

template <typename Op> LogicalResult CollectiveTransfer::scatterCounted(Op op, Layout &layout, unsigned i) {
  if (i % 2)
    return expectReplicated(layout, i, "reads numbers of rows");
  int64_t dim = op.getDims()[i / 2];
  return success(succeeded(reduce(layout, i, op.getReduction())) &&
                 succeeded(setRows(layout, i, dim, op.getRows(), countGroups(op, i) * op.getTokens())) &&
                 succeeded(gain(layout, i, dim)));
}

/// Operand `i` of a collective, through the rule of its kind.
LogicalResult CollectiveTransfer::move(CollectiveOpInterface op, Layout &layout, unsigned i) {
  switch (op.getKind()) {
  case CollectiveKind::AllReduce:
    return reduce(layout, i, *op.getReduction());
  case CollectiveKind::ReduceScatter:
    return success(succeeded(reduce(layout, i, *op.getReduction())) &&
                   succeeded(gain(layout, i, *op.getGainedDim(i))));
  case CollectiveKind::AllGather:
    return lose(layout, i, *op.getLostDim(i));
  case CollectiveKind::AllToAll:
    return success(succeeded(lose(layout, i, *op.getLostDim(i))) &&
                   succeeded(gain(layout, i, *op.getGainedDim(i))));
  case CollectiveKind::Permute:
    return permute(cast<PermuteOp>(*op), layout, i);
  case CollectiveKind::Redistribute:
    return redistribute(cast<RedistributeOp>(*op), layout, i);
  case CollectiveKind::Slice:
    return slice(cast<SliceOp>(*op), layout, i);
  case CollectiveKind::Partial:
    return makePartial(layout, i, cast<PartialOp>(*op).getIsMaximum());
  case CollectiveKind::AllGatherV:
    return gatherCounted(cast<AllGatherVOp>(*op), layout, i);
  case CollectiveKind::ReduceScatterV:
    return scatterCounted(cast<ReduceScatterVOp>(*op), layout, i);
  }
  llvm_unreachable("unknown collective");
}

MaybeLayouts CollectiveTransfer::run() {
  Operation *op = context.op;
  if (isa<AxisIndexOp>(op))
    return ResultLayouts(1);
  if (auto positions = dyn_cast<PositionsOp>(op))
    return transferPositions(positions, mesh);
  if (isa<ConstrainOp>(op))
    return LogicalResult(report(context, "belongs to a global program"));
  if (auto list = op->getAttrOfType<ArrayAttr>("axes")) {
    axes = dist::getAxes(list, mesh);
    canonicalizeAxes(axes, mesh);
  }
  ResultLayouts layouts;
  for (auto [i, operand] : llvm::enumerate(context.operands)) {
    if (!context.reads(i))
      continue;
    Layout layout = *operand;
    LogicalResult result =
        isa<CollectiveOpInterface>(op)
            ? move(cast<CollectiveOpInterface>(op), layout, i)
            : llvm::TypeSwitch<Operation *, LogicalResult>(op)
                  .Case<ReorderOp>([&](ReorderOp r) { return reorder(r, layout); })
                  .Case<MaskPaddingOp>([&](MaskPaddingOp m) { return mask(m, layout); })
                  .Case<PadOp>([&](PadOp p) { return pad(p, layout); })
                  .Default([&](Operation *) {
                    return report(context, "has no rule for the layouts of its results");
                  });
    if (failed(result))
      return failure();
    canonicalize(layout, mesh);
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

MaybeLayouts layout_transfer::transferCollective(const TransferContext &context) {
  return CollectiveTransfer(context).run();
}
