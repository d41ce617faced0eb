//===- LossScale.cpp - a factor of the loss before differentiation --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/LossScale.h"

#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <limits>

using namespace mlir;
using namespace meshwright;
using nn::Writer;

constexpr StringLiteral kScaleState = "loss_scale", kGrowthState = "loss_scale.growth_tracker",
                        kSkippedState = "skipped_steps";
/// Those of PyTorch's GradScaler.
constexpr double kGrowth = 2, kBackoff = 0.5;

void LossScale::scale(func::FuncOp func, Value loss) {
  OpBuilder builder(func.getContext());
  builder.setInsertionPointAfterValue(loss);
  Writer w(builder, loss.getLoc());
  // The product is in f32, since the scale may be more than the loss's type has.
  auto type = RankedTensorType::get({}, getComputeType(elementOf(loss)));
  auto scalar = RankedTensorType::get({}, builder.getF32Type());
  states.add(kScaleState, scalar, builder.getF32FloatAttr(options.lossScale), "", "optimizer",
             loss.getLoc());
  Value scale = w.cast(states.read(w, kScaleState, scalar), type.getElementType());
  Value scaled = w.mul(w.cast(loss, type.getElementType()), scale);
  for (auto gradient : func.getOps<nn::GradientOp>())
    gradient.getLossMutable().assign(scaled);
}

void LossScale::unscale(Writer &w, MutableArrayRef<Trained> trained) {
  Type number = w.getBuilder().getF32Type();
  auto scalar = RankedTensorType::get({}, number);
  Value scale = states.read(w, kScaleState, scalar);
  Value inverse = w.div(w.number(1, number), scale);
  Value infinite;
  for (Trained &parameter : trained) {
    Value &gradient = parameter.gradient;
    Value size = w.unary<nn::AbsOp>(gradient);
    Value isFinite = w.compare(nn::CompareKind::Lt, size, std::numeric_limits<double>::infinity());
    Value misses = w.select(isFinite, w.number(0, number), w.number(1, number));
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, typeOf(misses).getRank()));
    if (!dims.empty())
      misses = w.reduce(nn::ReduceKind::Sum, misses, dims, false);
    infinite = infinite ? w.add(infinite, misses) : misses;
    gradient = w.mul(gradient, w.cast(inverse, elementOf(gradient)));
  }
  Value isTaken = w.compare(nn::CompareKind::Eq, infinite, 0);
  states.setCondition(isTaken);
  auto counter = RankedTensorType::get({}, w.getBuilder().getI64Type());
  Value skipped = states.readZeros(w, kSkippedState, counter, "optimizer");
  states.write(w, kSkippedState, w.select(isTaken, skipped, w.addNumber(skipped, 1)));
  if (options.growthInterval == 0)
    return;
  Value good = w.addNumber(states.readZeros(w, kGrowthState, counter, "optimizer"), 1);
  Value grows = w.compare(nn::CompareKind::Eq, good, double(options.growthInterval));
  Value grown = w.scale(scale, kGrowth);
  // A scale that is not finite is not taken.
  Value isRoom = w.compare(nn::CompareKind::Lt, grown, std::numeric_limits<double>::infinity());
  Value next = w.select(grows, w.select(isRoom, grown, scale), scale);
  states.write(w, kScaleState, w.select(isTaken, next, w.scale(scale, kBackoff)));
  Value none = w.number(0, counter.getElementType());
  states.write(w, kGrowthState, w.select(isTaken, w.select(grows, none, good), none));
}
