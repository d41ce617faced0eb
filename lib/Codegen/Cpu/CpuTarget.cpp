//===- CpuTarget.cpp - kernels for processors -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"

#include "meshwright/lib/Codegen/AttentionBias.h"
#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/lib/Codegen/Cpu/PagedAttention.h"
#include "meshwright/lib/Codegen/Cpu/LowerKernels.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/ObjectEmitter.h"

#include "meshwright/Calls.h"

using namespace mlir;

namespace meshwright::lower {

std::string CpuTarget::getCodeKey() const {
  return "cpu\n" + processor.cpu + "\n" + processor.features;
}

std::optional<int64_t> CpuTarget::getMostEvaluations(Operation *op) const {
  if (isFree(op) || isCheap(op))
    return std::nullopt;
  // A kernel that reads a norm or a rotation twice still saves a pass over memory.
  return op->hasTrait<dist::RowNorm>() || isa<nn::RotaryOp>(op) ? 2 : 1;
}

ElementCost CpuTarget::getElementCost(Operation *op) const {
  // Exponentials are computed with the statistics of the row.
  if (isa<nn::SoftmaxOp>(op))
    return getElementTypeOrSelf(op->getResult(0).getType()).isF64() ? ElementCost::OneByOne
                                                                   : ElementCost::Many;
  if (!op->hasTrait<dist::Elementwise>() || op->hasTrait<dist::Cheap>())
    return ElementCost::Few;
  // Calls of a mathematical library, and integer division.
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  if (isa<nn::SinOp, nn::CosOp, nn::RemOp, nn::PowOp>(op) ||
      (isa<nn::DivOp>(op) && isa<IntegerType>(type)))
    return ElementCost::OneByOne;
  bool hasInstruction = isa<nn::SqrtOp, nn::RsqrtOp, nn::ReciprocalOp>(op);
  return type.isF64() && !hasInstruction ? ElementCost::OneByOne : ElementCost::Many;
}

Value CpuTarget::expand(OpBuilder &builder, Operation *op) const {
  if (auto attention = dyn_cast<nn::PagedAttentionOp>(op))
    return expandPagedAttention(builder, attention);
  if (auto merge = dyn_cast<nn::MergePartsOp>(op))
    return keepMergeParts(builder, merge);
  return {};
}

std::optional<KernelRegion> CpuTarget::getBiasRegion(nn::ScoresOpInterface op,
                                                     std::string &reason) const {
  return lower::getBiasRegion(op, reason);
}

bool CpuTarget::canFollowProduct(Operation *op, RankedTensorType product) const {
  return isEpilogueOp(op, product);
}

bool CpuTarget::canPrecedeProduct(Operation *op, RankedTensorType input) const {
  return isPrologueOp(op, input);
}

std::optional<PackedWeight> CpuTarget::getPackedWeight(const KernelRegion &region) const {
  std::optional<PackedWeight> grouped = getGroupedWeight(region, *this);
  return grouped ? grouped : getGemmWeight(region, *this);
}

ArrayRef<int64_t> CpuTarget::getCalls() const { return kCpuCalls; }

void CpuTarget::loadDialects(MLIRContext &context) const { loadKernelDialects(context); }

std::unique_ptr<KernelBuilder> CpuTarget::createBuilder(MLIRContext *context) const {
  return std::make_unique<CpuKernelBuilder>(context, *this);
}

LogicalResult CpuTarget::lowerKernel(ModuleOp module) const {
  return lower::lowerKernel(module, processor);
}

llvm::Expected<std::unique_ptr<CodeEmitter>> CpuTarget::createEmitter() const {
  return ObjectEmitter::create(processor);
}

} // namespace meshwright::lower
