//===- BlockModels.cpp - stored weights whose shards cut blocks -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank has all scales of a dimension whose shards are made of parts of blocks. It repeats the scale of a
// block for each part, and takes those of its own parts. The local op has parts as blocks.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Makes one dequantisation local.
class BlockParts {
public:
  BlockParts(nn::DequantizeOp op, Partitioner &partitioner)
      : op(op), partitioner(partitioner), opFactors(partitioner.getFactors().getFactors(op)),
        assignment(partitioner.assign(op)) {}

  LogicalResult write();

private:
  ValueSharding project(Value value, const FactorRule::ValueFactors &dims) {
    return partitioner.project(value, dims, opFactors, assignment);
  }
  FailureOr<Value> use(unsigned operand) {
    Value value = op->getOperand(operand);
    return partitioner.use(value, project(value, opFactors.rule.operands[operand]), op.getLoc());
  }
  /// Returns true if an axis shards the parts of a dimension.
  bool isSharded(int64_t dim) const {
    return llvm::any_of(assignment[opFactors.rule.operands[0][dim].front()],
                        [](const AxisList &axes) { return !axes.empty(); });
  }
  /// Gives the parts of this rank their scales.
  LogicalResult scaleParts(Value &scales, Layout &layout, int64_t dim);

  nn::DequantizeOp op;
  Partitioner &partitioner;
  const FactorAnalysis::OpFactors &opFactors;
  Assignment assignment;
};

} // namespace

LogicalResult BlockParts::scaleParts(Value &scales, Layout &layout, int64_t dim) {
  nn::Writer w(partitioner.getBuilder(), op.getLoc());
  int64_t part = op.getPartSizes()[dim], count = op.getCodeShape()[dim] / part;
  // Scales that are codes have no zero for padding.
  if (isCode(elementOf(scales)))
    scales = nn::WidenOp::create(w.getBuilder(), w.getLoc(),
                                 typeOf(scales).clone(w.getBuilder().getF32Type()), scales, Value());
  scales = w.repeat(scales, dim, op.getBlockSizes()[dim] / part, count);
  LayoutFactor whole;
  whole.size = whole.padded = count;
  layout.dims[dim] = DimLayout(whole);
  Layout target = layout;
  target.dims[dim].factors.clear();
  int factor = opFactors.rule.operands[0][dim].front();
  for (auto [cls, axes] : llvm::zip_equal(opFactors.classes[factor], assignment[factor]))
    target.dims[dim].factors.push_back(partitioner.getFactor(cls, axes));
  auto moved = partitioner.reshard(scales, layout, target, op.getLoc());
  if (failed(moved))
    return failure();
  scales = *moved;
  layout = target;
  return success();
}

LogicalResult BlockParts::write() {
  SmallVector<Value> operands;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    auto local = use(i);
    if (failed(local))
      return failure();
    operands.push_back(*local);
  }
  SmallVector<int64_t> block = op.getBlockSizes(), parts = op.getPartSizes();
  Layout layout = partitioner.getLayout(op.getScales(), project(op.getScales(), opFactors.rule.operands[1]));
  for (auto [dim, codes] : llvm::enumerate(opFactors.rule.operands[0]))
    if (opFactors.rule.operands[1][dim].front() != codes.front() && isSharded(dim)) {
      if (failed(scaleParts(operands[1], layout, dim)))
        return failure();
      block[dim] = parts[dim];
    }
  ValueSharding sharding = project(op.getResult(), opFactors.rule.results[0]);
  auto local = cast<nn::DequantizeOp>(
      partitioner.emit(op, operands, partitioner.getLocalType(op.getResult(), sharding)));
  local.setBlockAttr(Builder(op).getI64ArrayAttr(block));
  local.removePartsAttr();
  return partitioner.define(op.getResult(), {local.getResult(), sharding, {}});
}

namespace {
struct DequantizeModel : LocalOpInterface::ExternalModel<DequantizeModel, nn::DequantizeOp> {
  FailureOr<bool> partition(Operation *op, Partitioner &partitioner) const {
    const FactorRule &rule = partitioner.getFactors().getFactors(op).rule;
    if (llvm::equal(rule.operands[0], rule.operands[1], [](const auto &codes, const auto &scales) {
          return codes.front() == scales.front();
        }))
      return false;
    if (failed(BlockParts(cast<nn::DequantizeOp>(op), partitioner).write()))
      return failure();
    return true;
  }
};
} // namespace

void local_models::attachBlockModels(MLIRContext *context) {
  nn::DequantizeOp::attachInterface<DequantizeModel>(*context);
}
