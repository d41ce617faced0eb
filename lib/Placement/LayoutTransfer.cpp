//===- LayoutTransfer.cpp - layouts through an op -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/LayoutTransfer.h"

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include <algorithm>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Helpers
//===----------------------------------------------------------------------===//

LogicalResult layout_transfer::report(const TransferContext &context, const Twine &message,
                                      int operand) {
  InFlightDiagnostic diagnostic = context.emitError() << message;
  if (operand >= 0 && context.explain)
    context.explain(diagnostic, operand);
  return diagnostic;
}

LayoutFactor layout_transfer::makeFactor(int64_t size, bool uniform) {
  LayoutFactor factor;
  factor.size = factor.padded = size;
  factor.uniform = uniform;
  return factor;
}

void layout_transfer::mapEvents(Layout &layout, function_ref<uint32_t(uint32_t)> map) {
  auto apply = [&](Padding &content) {
    if (content.cause)
      content.cause = map(content.cause);
  };
  apply(layout.data);
  apply(layout.corner);
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      apply(factor.padding);
}

void layout_transfer::collapse(DimLayout &dim) {
  auto isUniform = [](const LayoutFactor &f) { return f.uniform; };
  Pieces factors(dim.factors.begin(), dim.factors.end());
  if (factors.size() < 2 || llvm::all_of(factors, isUniform))
    return;
  llvm::erase_if(factors, [](const LayoutFactor &f) { return f.padded == 1; });
  if (factors.empty())
    factors.push_back(makeFactor(1));
  for (const LayoutFactor &factor : ArrayRef<LayoutFactor>(factors).drop_front())
    if (factor.isPadded() || !factor.axes.empty() || !factor.isContiguous())
      return;
  if (!factors.front().isContiguous() && factors.size() > 1)
    return;
  // The rows of a run-time size stay apart.
  if (factors.front().runtimeSize && factors.size() > 1)
    return;
  LayoutFactor joined = factors.front();
  for (const LayoutFactor &factor : ArrayRef<LayoutFactor>(factors).drop_front()) {
    joined.size *= factor.size;
    joined.padded *= factor.size;
  }
  joined.uniform = false;
  dim = DimLayout(joined);
}

int layout_transfer::countPadded(const Layout &layout) {
  int count = 0;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      count += factor.isPadded();
  return count;
}

Padding layout_transfer::overallContent(const Layout &layout) {
  Padding content = layout.data;
  int padded = 0;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      if (factor.isPadded()) {
        content = padding::meet(content, padding::getUnconditional(factor.padding));
        ++padded;
      }
  return padded > 1 ? padding::meet(content, layout.corner) : content;
}

AxisList layout_transfer::makeSet(ArrayRef<Axis> axes, MeshAttr mesh) {
  AxisList set(axes.begin(), axes.end());
  llvm::sort(set);
  canonicalizeAxes(set, mesh);
  return set;
}

void layout_transfer::appendPrimes(Axis axis, AxisList &primes) {
  for (int64_t p = 2; axis.size > 1; ++p)
    while (axis.size % p == 0) {
      primes.push_back({axis.axis, axis.pre, p});
      axis.pre *= p;
      axis.size /= p;
    }
}

bool layout_transfer::removeAxes(AxisList &from, ArrayRef<Axis> axes) {
  for (const Axis &axis : axes) {
    if (axis.size == 1)
      continue;
    // `axis` is a part of one element of `from`. The parts that are major and minor of it
    // stay.
    Axis *found = llvm::find_if(from, [&](const Axis &have) {
      return have.axis == axis.axis && axis.pre % have.pre == 0 &&
             have.pre * have.size % (axis.pre * axis.size) == 0;
    });
    if (found == from.end())
      return false;
    Axis have = *found;
    from.erase(found);
    Axis major{have.axis, have.pre, axis.pre / have.pre};
    Axis minor{have.axis, axis.pre * axis.size, have.pre * have.size / (axis.pre * axis.size)};
    for (const Axis &rest : {major, minor})
      if (rest.size > 1)
        from.push_back(rest);
  }
  llvm::sort(from);
  return true;
}

bool meshwright::isSameCandidate(const Layout &a, const Layout &b) {
  auto isSame = [](const LayoutFactor &x, const LayoutFactor &y) {
    return x.uniform == y.uniform && x.runtimeSize == y.runtimeSize;
  };
  return a.sameShardingAs(b) &&
         llvm::equal(a.dims, b.dims, [&](const DimLayout &x, const DimLayout &y) {
           return llvm::equal(x.factors, y.factors, isSame);
         });
}

/// Returns true if each run-time size of `have` is one of `want`. True elements may be taken for
/// padding, but not padding for true elements.
static bool hasRuntimeSizesOf(const DimLayout &want, const DimLayout &have) {
  return llvm::all_of(have.factors, [&](const LayoutFactor &factor) {
    return !factor.runtimeSize || llvm::any_of(want.factors, [&](const LayoutFactor &other) {
      return other.runtimeSize == factor.runtimeSize;
    });
  });
}

bool meshwright::isLayout(const Layout &layout, const Layout &expected, MeshAttr mesh) {
  if (layout.dims.size() != expected.dims.size() || layout.parts != expected.parts)
    return false;
  for (auto [have, want] : llvm::zip_equal(layout.dims, expected.dims)) {
    if (!hasRuntimeSizesOf(want, have))
      return false;
    if (have.sameShardingAs(want))
      continue;
    Pieces pieces(have.factors.begin(), have.factors.end());
    if (!mergePieces(pieces, want.factors, mesh))
      return false;
    // The merged factors must be all of `expected`.
    Layout merged;
    DimLayout &dim = merged.dims.emplace_back();
    dim.factors.assign(pieces.begin(), pieces.end());
    canonicalize(merged, mesh);
    if (dim.sameShardingAs(want))
      continue;
    // A padded factor may be a product: 2 padded to 4 is 1 padded to 2, times 2.
    Pieces parts(want.factors.begin(), want.factors.end());
    if (dim.getGlobalSize() != want.getGlobalSize() || dim.getAxes() != want.getAxes() ||
        !mergePieces(parts, dim.factors, mesh))
      return false;
    DimLayout refined;
    refined.factors.assign(parts.begin(), parts.end());
    if (!refined.sameShardingAs(dim))
      return false;
  }
  return true;
}

void meshwright::describeArgument(Layout &layout, DictionaryAttr attributes, Type type) {
  type = getElementTypeOrSelf(type);
  bool isParameter = attributes && attributes.get(nn::NnDialect::kParameterAttr);
  layout.data = padding::ofType(type);
  if (isParameter && isa<FloatType>(type) && !isCode(type)) {
    double most = nn::getParameterMagnitude(attributes);
    if (std::isfinite(most))
      layout.data = {-std::min(most, padding::getLargest(type)),
                     std::min(most, padding::getLargest(type))};
  }
  layout.corner = Padding::Zero;
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors) {
      factor.padding = layout.corner;
      // The caller may leave anything behind a run-time size.
      if (factor.runtimeSize)
        factor.padding = padding::meet(factor.padding, layout.data);
    }
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      layout.corner = padding::meet(layout.corner, factor.padding);
}

//===----------------------------------------------------------------------===//
// Ops without a rule of factors
//===----------------------------------------------------------------------===//

namespace {
/// The true elements of an op's operands.
class TrueElements : public padding::Operands {
public:
  explicit TrueElements(ArrayRef<Padding> contents) : Operands(contents, contents) {}
  uint32_t getEvent(unsigned, StringRef) const override { return 0; }
  uint32_t getSharedEvent(unsigned, StringRef) const override { return 0; }
  Padding getOverall(unsigned operand) const override { return getContents()[operand]; }
  bool isPaddingOf(unsigned) const override { return false; }
  bool isAlongResult(unsigned) const override { return false; }
  int64_t getReadCount() const override { return 1; }
  void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<Padding(unsigned)>)>) const override {}
};
} // namespace

Padding layout_transfer::describeGenerated(Operation *op) {
  return cast<PaddingOpInterface>(op).getResultPadding(TrueElements({}));
}

LogicalResult meshwright::checkStatedParts(const TransferContext &context, unsigned operand) {
  Operation *op = context.op;
  auto padded = dyn_cast<PaddingOpInterface>(op);
  auto isNumber = [](Value value) { return isa<FloatType>(getElementTypeOrSelf(value.getType())); };
  // Only a product has another factor. Sums may be taken in any order.
  if (!padded || !context.rule || context.rule->jointlyLinear || op->hasTrait<MovesOnly>() ||
      llvm::count_if(op->getOperands(), isNumber) < 2 || !isNumber(op->getOperand(operand)))
    return success();
  // The product with a factor that is not finite is not finite for any sum.
  SmallVector<Padding> contents;
  for (auto [value, layout] : llvm::zip_equal(op->getOperands(), context.operands)) {
    Padding finite = padding::finiteOf(getElementTypeOrSelf(value.getType()));
    Padding &content = contents.emplace_back(layout->data);
    content = {std::clamp(content.lower, finite.lower, finite.upper),
             std::clamp(content.upper, finite.lower, finite.upper)};
  }
  if (padding::isFinite(padded.getResultPadding(TrueElements(contents))))
    return success();
  return report(context,
                "multiplies operand " + Twine(operand) + ", stated as unreduced over " +
                    toString(context.operands[operand]->getUnreduced(), context.mesh) +
                    ", by a factor with which its parts may overflow where their sum does not: "
                    "expected the sum",
                operand);
}

/// Arithmetic on scalars, and the element of a scalar tensor.
static bool isScalar(Value value) {
  auto tensor = dyn_cast<ShapedType>(value.getType());
  return !tensor || (tensor.hasRank() && tensor.getRank() == 0);
}

static bool isEmpty(Value value) {
  auto tensor = dyn_cast<ShapedType>(value.getType());
  return tensor && (!tensor.hasStaticShape() || llvm::is_contained(tensor.getShape(), 0));
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

bool layout_transfer::takesPart(const TransferContext &context, unsigned operand,
                                const Part &part) {
  auto model = dyn_cast<LayoutOpInterface>(context.op);
  return model ? model.takesPart(context, operand, part)
               : takesPartByRule(context, operand, part);
}

bool layout_transfer::takesPartByRule(const TransferContext &context, unsigned operand,
                                      const Part &part) {
  Operation *op = context.op;
  if (part.isIncomplete() || part.hasSource())
    return false;
  if (part.isBlock())
    return keepsBlocks(op) && !context.operands[operand]->isUnreduced();
  auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
  if (!ruled)
    return isa<DistDialect>(op->getDialect());
  std::optional<FactorRule> own;
  const FactorRule &rule = context.rule ? *context.rule : own.emplace(ruled.getFactorRule());
  // An element that moves is the maximum of its parts where it was before.
  return rule.takesParts(operand, part.reduction) ||
         (op->hasTrait<MovesOnly>() && rule.takesParts(operand, ReductionKind::Sum));
}

/// The reason why an op does not read an operand, a part that it does not take.
static std::string refusePart(const TransferContext &context, unsigned operand, const Part &part) {
  const Layout &layout = *context.operands[operand];
  std::string axes = toString(part.axes, context.mesh);
  std::string reads = "reads operand " + std::to_string(operand) + ", ";
  if (part.isIncomplete())
    return reads + "which a permute left out on ranks " + toString(part.getMissing()) + " of " +
           axes + ": only keys and values of attention may be";
  if (part.isBlock() && !(part.hasSource() && keepsBlocks(context.op)))
    return reads + "which has blockwise layout " + toString(layout, context.mesh) +
           ": only the bias of attention and dist.place may";
  if (part.hasSource()) {
    bool merges = part.reduction == ReductionKind::Merge;
    return reads + (merges ? "attention over key chunks " : "gradients of attention in steps ") +
           toString(part.covered) + " of the needed " + toString(part.needed) + " of " + axes +
           ": the others have not been " +
           (merges           ? "merged"
            : part.isBlock() ? "placed"
                             : "added");
  }
  if (hasBias(context.op))
    return "adds its bias to a product that is unreduced over " + axes + ", on every rank";
  Part sum = part;
  sum.reduction = ReductionKind::Sum;
  if (part.reduction == ReductionKind::Max && takesPart(context, operand, sum))
    return reads + "a maximum over " + axes + " that is not yet taken";
  if (!isa<ShardingRuleOpInterface>(context.op))
    return reads + "which is unreduced over " + axes;
  return "is not linear in operand " + std::to_string(operand) + ", which is unreduced over " +
         axes;
}

/// Checks that the op takes its operands, as parts of a whole. The transfer checks which other
/// operands go with the first unreduced one.
static LogicalResult checkParts(const TransferContext &context) {
  bool isOpen = false;
  for (auto [i, operand] : llvm::enumerate(context.operands)) {
    if (!context.reads(i))
      continue;
    for (const Part &part : operand->parts) {
      if (part.isUnreduced() && std::exchange(isOpen, true))
        continue;
      if (!takesPart(context, i, part))
        return report(context, refusePart(context, i, part), i);
    }
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Dispatch
//===----------------------------------------------------------------------===//

bool meshwright::mayHaveCandidates(Operation *op) {
  auto model = dyn_cast<LayoutOpInterface>(op);
  return model && model.hasCandidates();
}

static MaybeLayouts dispatch(const TransferContext &context,
                             SmallVectorImpl<Layout> *alternatives) {
  Operation *op = context.op;
  for (auto values : {ValueRange(op->getOperands()), ValueRange(op->getResults())})
    if (llvm::any_of(values, isEmpty))
      return LogicalResult(report(context, "expected static tensors with at least one element"));
  if (isa<AfterOp>(op))
    return ResultLayouts{*context.operands[0]};
  if (failed(checkParts(context)))
    return failure();
  if (auto model = dyn_cast<LayoutOpInterface>(op))
    return model.transfer(context, alternatives);
  if (isa<ShardingRuleOpInterface>(op))
    return transferByRule(context);
  if (isa<DistDialect>(op->getDialect()))
    return transferCollective(context);
  if (op->getNumRegions() == 0 && isMemoryEffectFree(op) &&
      llvm::all_of(op->getOperands(), isScalar) && llvm::all_of(op->getResults(), isScalar))
    return ResultLayouts(op->getNumResults());
  return LogicalResult(
      report(context, "has no factor rule: the layouts of its results cannot be derived"));
}

/// Gives equal elements the layout that an op states of some dimensions. They are the same in padding.
/// Returns the first dimension that has another layout, if there is one.
static std::optional<unsigned> takeStated(StatedDims stated, Layout &layout, MeshAttr mesh) {
  Padding corner = layout.corner;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      if (factor.isPadded())
        corner = padding::meet(corner, factor.padding);
  bool addsPadding = false;
  for (auto [d, want] : llvm::enumerate(stated)) {
    if (!want)
      continue;
    for (LayoutFactor &factor : want->factors)
      factor.padding = layout.data;
    DimLayout &have = layout.dims[d];
    Pieces pieces(have.factors.begin(), have.factors.end());
    Layout merged;
    if (mergePieces(pieces, want->factors, mesh)) {
      merged.dims.emplace_back().factors.assign(pieces.begin(), pieces.end());
      canonicalize(merged, mesh);
    }
    if (merged.dims.empty() || !merged.dims[0].sameShardingAs(*want))
      return d;
    addsPadding |= merged.dims[0].isPadded() && !have.isPadded();
    have = merged.dims[0];
  }
  if (addsPadding)
    layout.corner = corner;
  return std::nullopt;
}

/// Reports that dimension `d` of an operand or result, `noun`, has not the layout that the op states.
static LogicalResult reportStated(const TransferContext &context, const StatedDims &stated,
                                  unsigned d, const Twine &noun, const Layout &layout,
                                  int operand = -1) {
  Layout want;
  want.dims.push_back(*stated[d]);
  return report(context,
                noun + ", dimension " + Twine(d) + ": expected the layout that the op states, " +
                    toString(want, context.mesh) + " of true size " +
                    Twine(want.dims[0].getGlobalSize()) + ", got layout " +
                    toString(layout, context.mesh),
                operand);
}

/// A result may have one of `layouts`, or else of `others`. Keeps the layouts that the op states.
static MaybeLayouts keepStated(const TransferContext &context, MaybeLayouts layouts,
                               SmallVectorImpl<Layout> &others) {
  if (failed(layouts))
    return layouts;
  for (auto [i, layout] : llvm::enumerate(*layouts)) {
    StatedDims stated = getStatedResult(context.op, i, context.mesh);
    if (stated.empty())
      continue;
    llvm::erase_if(others, [&](Layout &other) { return takeStated(stated, other, context.mesh); });
    Layout own = layout;
    std::optional<unsigned> wrong = takeStated(stated, own, context.mesh);
    if (wrong && others.empty())
      return reportStated(context, stated, *wrong, "result " + Twine(i), layout);
    if (!wrong) {
      layout = std::move(own);
      continue;
    }
    layout = std::move(others.front());
    others.erase(others.begin());
  }
  return layouts;
}

static MaybeLayouts transferStated(const TransferContext &context,
                                   SmallVectorImpl<Layout> *alternatives) {
  if (!context.op->hasAttr(kResultsAttr))
    return dispatch(context, alternatives);
  SmallVector<Layout, 1> others;
  MaybeLayouts layouts = dispatch(context, &others);
  layouts = keepStated(context, std::move(layouts), others);
  if (alternatives)
    llvm::move(others, std::back_inserter(*alternatives));
  return layouts;
}

MaybeLayouts meshwright::transfer(const TransferContext &context,
                                  SmallVectorImpl<Layout> *alternatives) {
  if (!context.op->hasAttr(kOperandsAttr))
    return transferStated(context, alternatives);
  SmallVector<Layout, 2> layouts;
  SmallVector<const Layout *> operands;
  for (auto [i, operand] : llvm::enumerate(context.operands)) {
    Layout &own = layouts.emplace_back(*operand);
    StatedDims stated = getStatedDims(context.op, i, context.mesh);
    if (!context.reads(i) || stated.empty())
      continue;
    if (std::optional<unsigned> wrong = takeStated(stated, own, context.mesh))
      return reportStated(context, stated, *wrong, "operand " + Twine(i), *operand, i);
  }
  for (const Layout &layout : layouts)
    operands.push_back(&layout);
  TransferContext own = context;
  own.operands = operands;
  return transferStated(own, alternatives);
}
