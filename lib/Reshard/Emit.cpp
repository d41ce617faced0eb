//===- Emit.cpp - a plan as ops -------------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Writes the steps of a plan. Collectives act on whole local dimensions. A local reshape
// first splits off a factor that is no whole dimension, and one at the end merges it.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/Reshard.h"

#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

class Emitter {
public:
  Emitter(OpBuilder &builder, Location location, const ReshardPlan &plan, MeshAttr mesh,
          FlatSymbolRefAttr symbol)
      : builder(builder), location(location), plan(plan), mesh(mesh), symbol(symbol) {}

  Value run(Value value);

private:
  int64_t getLocal(const ReshardLayout &layout, int factor) const {
    return layout.padded[factor] / getNumShards(layout.axes[factor]);
  }
  bool isNeutral(const ReshardLayout &layout, int factor) const {
    return layout.axes[factor].empty() && layout.padded[factor] == plan.factors[factor].size;
  }
  void findDimensions();
  void chooseCuts(const ReshardStep &step);
  SmallVector<int64_t> getShape(const ReshardLayout &layout, bool merged) const;
  int64_t getDim(int factor) const;
  Layout getLayout(const ReshardLayout &layout) const;
  Value reshape(Value value, ArrayRef<int64_t> shape);
  Value write(const ReshardStep &step, Value value);
  SmallVector<int64_t> getPairs(const ReshardStep &step) const;

  OpBuilder &builder;
  Location location;
  const ReshardPlan &plan;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  /// True for a factor that starts a local dimension.
  SmallVector<bool, 8> starts;
  /// For each dimension of the tensor the cut in use.
  SmallVector<int, 6> cuts;
};

/// A factor that a step changes starts a dimension. The next sharded or padded factor behind
/// it starts another.
void Emitter::findDimensions() {
  int count = plan.factors.size();
  starts.assign(count, false);
  cuts.assign(count ? plan.factors.back().dim + 1 : 0, 0);
  auto sameGroup = [&](int f, int g) {
    return plan.factors[f].dim == plan.factors[g].dim && plan.factors[f].cut == plan.factors[g].cut;
  };
  SmallVector<bool, 8> everCut(count, false);
  auto look = [&](const ReshardLayout &layout) {
    for (int f = 0; f < count; ++f)
      everCut[f] = everCut[f] || !isNeutral(layout, f);
  };
  for (const ReshardStep &step : plan.steps) {
    look(step.before);
    look(step.after);
  }
  for (int f = 0; f < count; ++f)
    starts[f] = f == 0 || !sameGroup(f - 1, f);
  for (const ReshardStep &step : plan.steps)
    for (int f = 0; f < count; ++f) {
      if (step.before.axes[f] == step.after.axes[f] &&
          step.before.padded[f] == step.after.padded[f])
        continue;
      starts[f] = true;
      bool cutBehind = false;
      for (int g = f + 1; g < count && sameGroup(f, g); ++g)
        cutBehind |= everCut[g];
      if (cutBehind)
        starts[f + 1] = true;
    }
}

/// A dimension with two cuts uses the cut of the step's factors.
void Emitter::chooseCuts(const ReshardStep &step) {
  for (auto [f, factor] : llvm::enumerate(plan.factors))
    if (!isNeutral(step.before, f) || !isNeutral(step.after, f))
      cuts[factor.dim] = factor.cut;
}

SmallVector<int64_t> Emitter::getShape(const ReshardLayout &layout, bool merged) const {
  SmallVector<int64_t> shape;
  int dim = -1;
  for (int f = 0, e = plan.factors.size(); f < e; ++f) {
    const ReshardFactor &factor = plan.factors[f];
    if (factor.cut != cuts[factor.dim])
      continue;
    if (factor.dim != dim || (!merged && starts[f]))
      shape.push_back(1);
    dim = factor.dim;
    shape.back() *= getLocal(layout, f);
  }
  return shape;
}

int64_t Emitter::getDim(int factor) const {
  int64_t index = -1;
  int dim = -1;
  for (int f = 0; f <= factor; ++f) {
    const ReshardFactor &entry = plan.factors[f];
    if (entry.cut != cuts[entry.dim])
      continue;
    if (entry.dim != dim || starts[f])
      ++index;
    dim = entry.dim;
  }
  return index;
}

Layout Emitter::getLayout(const ReshardLayout &layout) const {
  Layout result;
  int dim = -1;
  for (int f = 0, e = plan.factors.size(); f < e; ++f) {
    const ReshardFactor &entry = plan.factors[f];
    if (entry.cut != cuts[entry.dim])
      continue;
    if (entry.dim != dim || starts[f])
      result.dims.emplace_back();
    dim = entry.dim;
    LayoutFactor factor;
    factor.size = entry.size;
    factor.padded = layout.padded[f];
    factor.axes = layout.axes[f];
    factor.order = entry.order;
    factor.orderRanks = entry.orderRanks;
    factor.runtimeSize = entry.runtimeSize;
    result.dims.back().factors.push_back(std::move(factor));
  }
  canonicalize(result, mesh);
  return result;
}

Value Emitter::reshape(Value value, ArrayRef<int64_t> shape) {
  auto type = cast<RankedTensorType>(value.getType());
  if (type.getShape() == shape)
    return value;
  return nn::ReshapeOp::create(builder, location, type.clone(shape), value);
}

/// The pairs of a permute, source and destination, as linear coordinates over the step's
/// axes. Each rank gets the chunk that it holds in the new layout.
SmallVector<int64_t> Emitter::getPairs(const ReshardStep &step) const {
  // Ranks are coordinates along whole mesh axes, of which those outside of the group are 0.
  SmallVector<int64_t> sizes;
  for (MeshAxisAttr axis : mesh.getAxes())
    sizes.push_back(axis.getSize());
  using Coordinates = SmallVector<int64_t>;
  auto getDigit = [&](const Coordinates &at, const Axis &axis) {
    return at[axis.axis] / (sizes[axis.axis] / (axis.pre * axis.size)) % axis.size;
  };
  auto addDigit = [&](Coordinates &at, const Axis &axis, int64_t digit) {
    at[axis.axis] += digit * (sizes[axis.axis] / (axis.pre * axis.size));
  };
  auto linearise = [&](const Coordinates &at, ArrayRef<Axis> axes) {
    int64_t linear = 0;
    for (const Axis &axis : axes)
      linear = linear * axis.size + getDigit(at, axis);
    return linear;
  };
  auto spread = [&](Coordinates &at, ArrayRef<Axis> axes, int64_t linear) {
    for (const Axis &axis : llvm::reverse(axes)) {
      addDigit(at, axis, linear % axis.size);
      linear /= axis.size;
    }
  };
  // The parts of `axes` that a layout does not use. Ranks along them are replicas.
  auto without = [&](const AxisList &axes, const ReshardLayout &layout) {
    AxisList used = layout.unreduced;
    for (const AxisList &list : layout.axes)
      used.append(list);
    AxisList rest;
    for (const Axis &axis : axes) {
      // Cut at the borders of the axes in use.
      SmallVector<int64_t> borders{axis.pre, axis.pre * axis.size};
      for (const Axis &other : used)
        if (other.overlaps(axis))
          for (int64_t border : {other.pre, other.pre * other.size})
            if (border > axis.pre && border < axis.pre * axis.size)
              borders.push_back(border);
      llvm::sort(borders);
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
      for (size_t i = 0; i + 1 < borders.size(); ++i) {
        Axis part{axis.axis, borders[i], borders[i + 1] / borders[i]};
        if (!anyOverlap(part, used))
          rest.push_back(part);
      }
    }
    return rest;
  };
  // Unreduced axes that both layouts have stay. Coordinates along `gone` become those along
  // `come`.
  AxisList gone, come;
  auto subtract = [&](const AxisList &from, const AxisList &other) {
    ReshardLayout layout;
    layout.unreduced = other;
    return without(from, layout);
  };
  gone = subtract(step.before.unreduced, step.after.unreduced);
  come = subtract(step.after.unreduced, step.before.unreduced);
  AxisList kept = subtract(step.before.unreduced, gone);
  AxisList freeBefore = without(step.axes, step.before), freeAfter = without(step.axes, step.after);
  SmallVector<int64_t> pairs;
  int64_t ranks = getNumShards(step.axes);
  for (int64_t target = 0; target < ranks; ++target) {
    Coordinates to(sizes.size(), 0), from(sizes.size(), 0);
    spread(to, step.axes, target);
    for (auto [before, after] : llvm::zip_equal(step.before.axes, step.after.axes))
      spread(from, before, linearise(to, after));
    spread(from, gone, linearise(to, come));
    spread(from, kept, linearise(to, kept));
    spread(from, freeBefore, linearise(to, freeAfter));
    pairs.append({linearise(from, step.axes), target});
  }
  return pairs;
}

Value Emitter::write(const ReshardStep &step, Value value) {
  MLIRContext *context = builder.getContext();
  auto type = cast<RankedTensorType>(value.getType());
  RankedTensorType result = type.clone(getShape(step.after, /*merged=*/false));
  TypeRange results(result);
  ArrayAttr axes = getAxesAttr(context, step.axes, mesh);
  auto reduction = ReductionKindAttr::get(context, plan.reduction);
  auto dims = [&](int factor) { return builder.getDenseI64ArrayAttr(getDim(factor)); };
  if (step.isPad())
    return PadOp::create(builder, location, result, value, dims(step.to));
  if (step.isStrip()) {
    SmallVector<int64_t> zeros(type.getRank(), 0), ones(type.getRank(), 1);
    return nn::SliceOp::create(
        builder, location, result, value, builder.getDenseI64ArrayAttr(zeros),
        builder.getDenseI64ArrayAttr(result.getShape()), builder.getDenseI64ArrayAttr(ones));
  }
  switch (*step.kind) {
  case CollectiveKind::AllReduce:
    return AllReduceOp::create(builder, location, results, value, reduction, axes).getResult(0);
  case CollectiveKind::ReduceScatter:
    return ReduceScatterOp::create(builder, location, results, value, reduction, axes,
                                   dims(step.to))
        .getResult(0);
  case CollectiveKind::AllGather:
    return AllGatherOp::create(builder, location, results, value, axes, dims(step.from))
        .getResult(0);
  case CollectiveKind::AllToAll:
    return AllToAllOp::create(builder, location, results, value, axes, dims(step.from),
                              dims(step.to))
        .getResult(0);
  case CollectiveKind::Permute:
    return PermuteOp::create(builder, location, results, value, axes, /*shift=*/nullptr,
                             builder.getDenseI64ArrayAttr(getPairs(step)))
        .getResult(0);
  case CollectiveKind::Redistribute: {
    Attribute from = getSharding(getLayout(step.before), symbol, mesh);
    Attribute to = getSharding(getLayout(step.after), symbol, mesh);
    return RedistributeOp::create(builder, location, results, value, builder.getArrayAttr(from),
                                  builder.getArrayAttr(to))
        .getResult(0);
  }
  case CollectiveKind::Slice:
    return dist::SliceOp::create(builder, location, results, value, axes, dims(step.to))
        .getResult(0);
  case CollectiveKind::Partial:
    return PartialOp::create(builder, location, results, value, axes,
                             plan.reduction == ReductionKind::Max)
        .getResult(0);
  case CollectiveKind::AllGatherV:
  case CollectiveKind::ReduceScatterV:
    llvm_unreachable("formed of other collectives");
  }
  return value;
}

Value Emitter::run(Value value) {
  if (plan.steps.empty())
    return value;
  findDimensions();
  for (const ReshardStep &step : plan.steps) {
    chooseCuts(step);
    // A dimension in which no step moves anything is not reshaped.
    value = write(step, reshape(value, getShape(step.before, /*merged=*/false)));
  }
  return reshape(value, getShape(plan.steps.back().after, /*merged=*/true));
}

} // namespace

Value meshwright::emit(OpBuilder &builder, Location location, Value value, const ReshardPlan &plan,
                       MeshAttr mesh, FlatSymbolRefAttr symbol) {
  return Emitter(builder, location, plan, mesh, symbol).run(value);
}
