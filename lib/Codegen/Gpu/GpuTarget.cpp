//===- GpuTarget.cpp - kernels for NVIDIA GPUs ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuTarget.h"

#include "meshwright/lib/Codegen/AttentionBias.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/LowerKernels.h"
#include "meshwright/lib/Codegen/Gpu/PagedAttention.h"
#include "meshwright/lib/Codegen/Gpu/PtxEmitter.h"

#include "meshwright/Calls.h"

using namespace mlir;

namespace meshwright::lower {

llvm::Expected<Chip> Chip::get(llvm::StringRef name) {
  static const Chip known[] = {{"sm_80", "+ptx70", 48 << 10, 163 << 10},
                               {"sm_90", "+ptx78", 48 << 10, 227 << 10},
                               {"sm_90a", "+ptx80", 48 << 10, 227 << 10, true},
                               {"sm_100", "+ptx86", 48 << 10, 227 << 10},
                               {"sm_120", "+ptx87", 48 << 10, 99 << 10}};
  std::string names;
  for (const Chip &chip : known) {
    if (chip.name == name)
      return chip;
    names += (names.empty() ? "" : ", ") + chip.name;
  }
  return llvm::createStringError("unknown chip '" + name.str() + "': expected one of " + names);
}

std::string GpuTarget::getSupportedKernels() const {
  return "products, attention, elementwise ops, movement, reads, writes and sums by index, norms, "
         "softmax, reductions, running sums and rows of experts";
}

std::optional<int64_t> GpuTarget::getMostEvaluations(Operation *op) const {
  if (isFree(op) || isCheap(op))
    return std::nullopt;
  return op->hasTrait<dist::RowNorm>() || isa<nn::RotaryOp>(op) ? 2 : 1;
}

ElementCost GpuTarget::getElementCost(Operation *op) const {
  // Threads compute elements one by one in any case.
  bool isCostly = isa<nn::SoftmaxOp>(op) ||
                  (op->hasTrait<dist::Elementwise>() && !op->hasTrait<dist::Cheap>());
  return isCostly ? ElementCost::Many : ElementCost::Few;
}

Value GpuTarget::expand(OpBuilder &builder, Operation *op) const {
  auto attention = dyn_cast<nn::PagedAttentionOp>(op);
  return attention ? keepPagedAttention(builder, attention) : Value();
}

RowPlanResult GpuTarget::planRows(const KernelRegion &region) const {
  RowPlanResult result = lower::planRows(region, *this);
  if (result.plan && getRowWidth(region, *result.plan) == 0)
    return {std::nullopt, "a thread of the kernel would separate pairs of a rotary op"};
  return result;
}

std::optional<KernelRegion> GpuTarget::getBiasRegion(nn::ScoresOpInterface op,
                                                     std::string &reason) const {
  return lower::getBiasRegion(op, reason);
}

bool GpuTarget::canFollowProduct(Operation *op, RankedTensorType product) const {
  return hasFewRows(product) && isEpilogueOp(op, product);
}

bool GpuTarget::canComputeProduct(const KernelRegion &region) const {
  return planGpuProduct(region, *this).has_value();
}

ArrayRef<int64_t> GpuTarget::getCalls() const { return kGpuCalls; }

void GpuTarget::loadDialects(MLIRContext &context) const { loadGpuKernelDialects(context); }

std::unique_ptr<KernelBuilder> GpuTarget::createBuilder(MLIRContext *context) const {
  return std::make_unique<GpuKernelBuilder>(context, *this);
}

LogicalResult GpuTarget::lowerKernel(ModuleOp module) const { return lowerGpuKernel(module); }

llvm::Expected<std::unique_ptr<CodeEmitter>> GpuTarget::createEmitter() const {
  return PtxEmitter::create(chip);
}

} // namespace meshwright::lower
