//===- MovementModels.cpp - ops that make and move elements ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/passes/partition/Models.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;

namespace {

/// A splat has every layout.
struct ConstantModel : LocalOpInterface::ExternalModel<ConstantModel, nn::ConstantOp> {
  Value generate(Operation *op, OpBuilder &builder, RankedTensorType type) const {
    auto elements = dyn_cast<DenseElementsAttr>(cast<nn::ConstantOp>(op).getValue());
    if (!elements || !elements.isSplat())
      return {};
    return nn::ConstantOp::create(
        builder, op->getLoc(),
        DenseElementsAttr::get(type, elements.getSplatValue<Attribute>()));
  }
  bool hasEqualElements(Operation *op, unsigned) const {
    return padding::getSplat(op->getResult(0)).has_value();
  }
};

struct IotaModel : LocalOpInterface::ExternalModel<IotaModel, nn::IotaOp> {
  bool hasEqualElements(Operation *op, unsigned dim) const {
    return dim != cast<nn::IotaOp>(op).getDim();
  }
};

/// A slice that takes all of a dimension takes all of the local dimension.
struct SliceModel : LocalOpInterface::ExternalModel<SliceModel, nn::SliceOp> {
  void fitAttributes(Operation *op, Operation *local) const {
    auto slice = cast<nn::SliceOp>(op), own = cast<nn::SliceOp>(local);
    RankedTensorType from = slice.getInput().getType(), localFrom = own.getInput().getType();
    SmallVector<int64_t> limits(slice.getLimits());
    for (auto [d, limit] : llvm::enumerate(limits))
      if (slice.getType().getDimSize(d) == from.getDimSize(d))
        limit = localFrom.getDimSize(d);
    own.setLimits(limits);
  }
};

/// Padding becomes zeros before its elements count as true ones.
struct UncutModel : LocalOpInterface::ExternalModel<UncutModel, nn::UncutOp> {
  LogicalResult maskOperands(Operation *op, Partitioner &partitioner, const Assignment &,
                             MutableArrayRef<Value> operands) const {
    auto uncut = cast<nn::UncutOp>(op);
    for (auto [d, name] : llvm::enumerate(uncut.getSizes().getAsValueRange<StringAttr>())) {
      if (name.empty())
        continue;
      const dist::Layout *layout = partitioner.derive(operands[0]);
      if (!layout)
        return failure();
      if (layout->dims[d].hasRuntimeSize())
        operands[0] = partitioner.mask(operands[0], dist::Layout(*layout), d, op->getLoc());
    }
    return success();
  }
};

struct ReshapeModel : LocalOpInterface::ExternalModel<ReshapeModel, nn::ReshapeOp> {
  bool hidesDims(Operation *) const { return true; }
};

/// A local broadcast to the type of its input is no more than its input.
struct BroadcastModel : LocalOpInterface::ExternalModel<BroadcastModel, nn::BroadcastOp> {
  bool hidesDims(Operation *op) const {
    return op->getOperand(0).getType() == op->getResult(0).getType();
  }
};

} // namespace

void local_models::attachMovementModels(MLIRContext *context) {
  nn::ConstantOp::attachInterface<ConstantModel>(*context);
  nn::IotaOp::attachInterface<IotaModel>(*context);
  nn::SliceOp::attachInterface<SliceModel>(*context);
  nn::UncutOp::attachInterface<UncutModel>(*context);
  nn::ReshapeOp::attachInterface<ReshapeModel>(*context);
  nn::BroadcastOp::attachInterface<BroadcastModel>(*context);
}
