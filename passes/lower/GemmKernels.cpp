//===- GemmKernels.cpp - launches that are matrix products ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Gemm.h"
#include "KernelScope.h"

using namespace mlir;

namespace meshwright::lower {

/// The op of a launch that does nothing but multiply by a weight.
static nn::LinearOp getLinear(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1)
    return nullptr;
  return dyn_cast<nn::LinearOp>(&*ops.begin());
}

static GemmSpec getSpec(nn::LinearOp linear) {
  auto result = cast<RankedTensorType>(linear.getType());
  auto weight = cast<RankedTensorType>(linear.getWeight().getType());
  GemmSpec spec;
  spec.type = weight.getElementType();
  spec.resultType = result.getElementType();
  spec.n = result.getShape().back();
  spec.k = weight.getDimSize(linear.getInOut() ? 0 : 1);
  spec.m = 1;
  for (int64_t size : result.getShape().drop_back())
    spec.m *= size;
  spec.hasBias = linear.getBias() != nullptr;
  return spec;
}

std::optional<GemmWeight> getGemmWeight(rt::KernelOp launch, const Target &target) {
  nn::LinearOp linear = getLinear(launch);
  if (!linear)
    return std::nullopt;
  GemmSpec spec = getSpec(linear);
  if (!hasGemm(spec.type, target) || spec.m == 0 || spec.n == 0 || spec.k == 0)
    return std::nullopt;
  // One element type for all.
  for (Type type : linear->getOperandTypes())
    if (getElementTypeOrSelf(type) != spec.type)
      return std::nullopt;
  if (spec.resultType != spec.type)
    return std::nullopt;
  auto weight = cast<BlockArgument>(linear.getWeight());
  return GemmWeight{weight.getArgNumber(),
                    choosePacking(spec.type, spec.k, spec.n, !linear.getInOut(), target)};
}

std::optional<KernelInfo> KernelScope::buildGemm(rt::KernelOp launch) {
  const Target &target = kernels.getTarget();
  std::optional<GemmWeight> weight = getGemmWeight(launch, target);
  if (!weight)
    return std::nullopt;
  auto prepared = launch.getInputs()[weight->operand].getDefiningOp<rt::PrepareOp>();
  if (!prepared)
    return std::nullopt;
  // It may have been scheduled for another target, with panels that vectors here
  // do not divide.
  rt::PackingAttr packing = prepared.getPacking();
  if (packing.getGroup() != weight->packing.group || packing.getPanel() % target.getLanes() != 0)
    return std::nullopt;

  nn::LinearOp linear = getLinear(launch);
  GemmSpec spec = getSpec(linear);
  GemmPlan plan = planGemm(spec, packing.getPanel(), target);
  KernelInfo info;
  info.inputs = {linear.getInput(), linear.getWeight()};
  if (spec.hasBias)
    info.inputs.push_back(linear.getBias());
  info.kind = MW_RT_GEMM;
  info.items = plan.items;
  info.grain = plan.grain;
  info.workspaceBytes = plan.workspaceBytes;
  info.flops = plan.flops;
  info.bytes = plan.bytes;

  // Models have many equal products: they are written once.
  std::string key = "gemm";
  for (int64_t part : {spec.m, spec.n, spec.k, int64_t(spec.hasBias), int64_t(spec.type.isBF16()),
                       packing.getPanel()})
    key += "," + std::to_string(part);
  std::string &name = kernels.known[key];
  if (name.empty()) {
    SmallVector<Type> types = {MemRefType::get({spec.m, spec.k}, spec.type),
                               MemRefType::get({plan.panels * plan.steps * plan.tileVectors *
                                                plan.lanes * packing.getGroup()},
                                               spec.type)};
    if (spec.hasBias)
      types.push_back(MemRefType::get({spec.n}, spec.type));
    types.push_back(MemRefType::get({spec.m, spec.n}, spec.resultType));
    func::FuncOp kernel = begin(linear, types, plan.workspaceBytes);
    Builder b = getBuilder(kernel);
    auto arguments = kernel.getArguments();
    size_t c = types.size() - 1;
    emitGemm(b, spec, plan,
             {arguments[0], arguments[1], spec.hasBias ? Value(arguments[2]) : Value(),
              arguments[c], arguments[c + 1], arguments[c + 2], arguments[c + 3]});
    name = finish(kernel);
  }
  info.name = name;
  return info;
}

} // namespace meshwright::lower
