//===- GroupedGemm.cpp - launches that multiply rows of experts -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

using namespace mlir;

namespace meshwright::lower {

/// The product that is all that a region does, if there is a kernel for it; else null.
static nn::GroupedProductOp findProduct(const KernelRegion &region, const Processor &processor) {
  auto product = region.ops.size() == 1 ? dyn_cast<nn::GroupedProductOp>(region.ops.front()) : nullptr;
  if (!product)
    return nullptr;
  auto rows = cast<RankedTensorType>(product.getRows().getType());
  auto weight = cast<RankedTensorType>(product.getWeight().getType());
  auto result = cast<RankedTensorType>(product.getResult().getType());
  Type type = weight.getElementType();
  bool isKnown = hasGemm(type, processor) && rows.getElementType() == type &&
                 (result.getElementType() == type || result.getElementType().isF32());
  bool isEmpty = !rows.getNumElements() || !weight.getNumElements() || !result.getNumElements();
  return isKnown && !isEmpty ? product : nullptr;
}

static GemmSpec getSpec(nn::GroupedProductOp product) {
  auto rows = cast<RankedTensorType>(product.getRows().getType());
  auto result = cast<RankedTensorType>(product.getResult().getType());
  GemmSpec spec;
  spec.type = rows.getElementType();
  spec.resultType = result.getElementType();
  spec.k = rows.getShape().back();
  spec.n = result.getShape().back();
  spec.m = rows.getNumElements() / spec.k;
  spec.experts = cast<RankedTensorType>(product.getWeight().getType()).getDimSize(0);
  return spec;
}

std::optional<PackedWeight> getGroupedWeight(const KernelRegion &region, const CpuTarget &target) {
  nn::GroupedProductOp product = findProduct(region, target.getProcessor());
  if (!product)
    return std::nullopt;
  auto weight = llvm::find(region.inputs, product.getWeight());
  if (weight == region.inputs.end())
    return std::nullopt;
  GemmSpec spec = getSpec(product);
  mw_rt_packing packing =
      choosePacking(spec.type, spec.k, spec.n, !product.getInOut(), target.getProcessor());
  packing.batch = spec.experts;
  return PackedWeight{unsigned(weight - region.inputs.begin()), packing};
}

std::optional<KernelInfo> KernelScope::buildGroupedGemm(rt::KernelOp launch) {
  const Processor &processor = kernels.getProcessor();
  KernelRegion region = KernelRegion::of(launch);
  std::optional<PackedWeight> weight = getGroupedWeight(region, kernels.getTarget());
  std::optional<rt::PackingAttr> packing =
      weight ? findPacking(launch, *weight, processor) : std::nullopt;
  if (!packing)
    return std::nullopt;

  nn::GroupedProductOp product = findProduct(region, processor);
  GemmSpec spec = getSpec(product);
  GemmPlan plan = planGemm(spec, packing->getPanel(), processor);
  KernelInfo info;
  info.inputs = {product.getRows(), product.getWeight(), product.getOffsets()};
  info.kind = MW_RT_GEMM;
  info.rows = spec.m;
  info.counter = 2;
  info.numOffsets = spec.experts + 1;
  info.items = plan.items;
  info.grain = chooseGrain(plan.items, plan.bytes, plan.flops);
  info.workspaceBytes = plan.workspaceBytes;
  info.flops = plan.flops;
  info.bytes = plan.bytes;

  std::string key = "grouped gemm";
  for (int64_t part : {spec.m, spec.n, spec.k, spec.experts, int64_t(spec.type.isBF16()),
                       int64_t(spec.resultType.isF32()), packing->getPanel()})
    key += "," + std::to_string(part);
  std::string &name = kernels.known[key];
  if (name.empty()) {
    int64_t weights = packing->getBytes(spec.type) / getBytes(spec.type);
    func::FuncOp kernel = begin(product,
                                {MemRefType::get({spec.m, spec.k}, spec.type),
                                 MemRefType::get({weights}, spec.type),
                                 getBufferType(product.getOffsets()),
                                 MemRefType::get({spec.m, spec.n}, spec.resultType)},
                                plan.workspaceBytes);
    ImplicitLocOpBuilder b = getBuilder(kernel);
    ValueRange arguments = kernel.getArguments();
    emitGemm(b, spec, plan,
             {arguments[0], arguments[1], Value(), arguments[3], arguments[4], arguments[5],
              arguments[6], arguments[2]});
    name = finish(kernel, launch, info.inputs);
  }
  info.name = name;
  return info;
}

} // namespace meshwright::lower
