//===- GemmKernels.cpp - launches that are matrix products ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/ProductFusion.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/ProgramMap.h"

using namespace mlir;

namespace meshwright::lower {

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

/// Returns true if there is a kernel for the product without other ops.
static bool isSupported(nn::LinearOp linear, const GemmSpec &spec, const Processor &processor) {
  if (!hasGemm(spec.type, processor) || spec.m == 0 || spec.n == 0 || spec.k == 0)
    return false;
  // All operands have one element type. A partial sum may keep the f32 of its kernel.
  return (spec.resultType == spec.type || spec.resultType.isF32()) && llvm::all_of(linear->getOperandTypes(), [&](Type type) {
           return getElementTypeOrSelf(type) == spec.type;
         });
}

std::optional<PackedWeight> getGemmWeight(const KernelRegion &region, const CpuTarget &target) {
  nn::LinearOp linear = findLinear(region);
  if (!linear)
    return std::nullopt;
  GemmSpec spec = getSpec(linear);
  if (!isSupported(linear, spec, target.getProcessor()))
    return std::nullopt;
  auto weight = llvm::find(region.inputs, linear.getWeight());
  if (weight == region.inputs.end() || !planFusion(region, linear, target))
    return std::nullopt;
  return PackedWeight{unsigned(weight - region.inputs.begin()),
                      choosePacking(spec.type, spec.k, spec.n, !linear.getInOut(),
                                    target.getProcessor())};
}

/// A text that is equal for regions with equal kernels: ops, their operands, and the stored
/// values.
static std::string describe(const KernelRegion &region) {
  std::string text;
  llvm::raw_string_ostream os(text);
  ProgramMap<Value, size_t> numbers;
  auto print = [&](Value value) {
    os << " " << numbers.try_emplace(value, numbers.size()).first->second;
  };
  for (Value input : region.inputs) {
    print(input);
    os << ":" << input.getType();
  }
  for (Operation *op : region.ops) {
    os << ";" << op->getName();
    for (NamedAttribute attribute : op->getAttrs())
      if (op->getName().getAttributeNames().empty() ||
          llvm::is_contained(op->getName().getAttributeNames(), attribute.getName()))
        os << " " << attribute.getName().getValue() << "=" << attribute.getValue();
    llvm::for_each(op->getOperands(), print);
    for (Value result : op->getResults()) {
      print(result);
      os << ":" << result.getType();
    }
  }
  os << ";";
  llvm::for_each(region.outputs, print);
  return text;
}

std::optional<rt::PackingAttr> findPacking(rt::KernelOp launch, const PackedWeight &weight,
                                           const Processor &processor) {
  rt::PrepareOp prepare = rt::getPrepare(rt::getBuffer(launch.getInputs()[weight.operand]));
  std::optional<rt::PackingAttr> packing = prepare ? prepare.getPacking() : std::nullopt;
  // A program may come with a schedule of its own, whose panels are not whole vectors here.
  if (!packing || packing->getGroup() != weight.packing.group ||
      packing->getPanel() % processor.getLanes() != 0)
    return std::nullopt;
  return packing;
}

std::optional<KernelInfo> KernelScope::buildGemm(rt::KernelOp launch) {
  const Processor &processor = kernels.getProcessor();
  KernelRegion region = KernelRegion::of(launch);
  std::optional<PackedWeight> weight = getGemmWeight(region, kernels.getTarget());
  if (!weight)
    return std::nullopt;
  std::optional<rt::PackingAttr> found = findPacking(launch, *weight, processor);
  if (!found)
    return std::nullopt;
  rt::PackingAttr packing = *found;

  nn::LinearOp linear = findLinear(region);
  GemmSpec spec = getSpec(linear);
  ProductFusion fusion = *planFusion(region, linear, kernels.getTarget());
  FusedRows rows(region, linear, fusion);
  bool isFused = fusion.prologue || fusion.epilogue;
  if (fusion.prologue)
    spec.prologue = [&](Builder &b, Value elements, const GemmPoint &point) {
      return rows.emitPrologue(b, elements, point);
    };
  if (fusion.epilogue) {
    // The epilogue adds the bias, as one of its own inputs.
    spec.hasBias = false;
    spec.epilogue = [&](Builder &b, Value sums, const GemmPoint &point) {
      rows.emitEpilogue(b, sums, point);
    };
  }
  GemmPlan plan = planGemm(spec, packing.getPanel(), processor);
  KernelInfo info;
  info.inputs = {fusion.source, linear.getWeight()};
  if (linear.getBias())
    info.inputs.push_back(linear.getBias());
  for (Value input : region.inputs)
    if (!llvm::is_contained(info.inputs, input))
      info.inputs.push_back(input);
  llvm::append_range(info.inputs, region.getPositions());
  info.kind = MW_RT_GEMM;
  info.items = plan.items;
  info.grain = chooseGrain(plan.items, plan.bytes, plan.flops);
  info.workspaceBytes = plan.workspaceBytes;
  info.flops = plan.flops;
  if (!isFused)
    info.bytes = plan.bytes;

  // Models have many equal products. Each is written once.
  std::string key = "gemm";
  for (int64_t part : {spec.m, spec.n, spec.k, int64_t(spec.hasBias), int64_t(spec.type.isBF16()),
                       int64_t(spec.resultType.isF32()), packing.getPanel()})
    key += "," + std::to_string(part);
  if (isFused)
    key += describe(region);
  std::string &name = kernels.known[key];
  if (name.empty()) {
    Type sourceType = getElementTypeOrSelf(fusion.source.getType());
    SmallVector<Type> types = {MemRefType::get({spec.m, spec.k}, sourceType),
                               MemRefType::get({plan.panels * plan.steps * plan.tileVectors *
                                                plan.lanes * packing.getGroup()},
                                               spec.type)};
    // Row kernels read and write flat buffers.
    auto addFlat = [&](Value value) {
      auto type = cast<RankedTensorType>(value.getType());
      if (isa_and_nonnull<dist::PositionsOp>(region.getDefiningOp(value)))
        types.push_back(getFirstBufferType(value));
      else
        types.push_back(
            MemRefType::get({type.getNumElements()}, getRowStorageType(type.getElementType())));
    };
    if (spec.hasBias)
      types.push_back(MemRefType::get({spec.n}, spec.type));
    for (size_t i = types.size(); i < info.inputs.size(); ++i)
      addFlat(info.inputs[i]);
    if (fusion.epilogue)
      llvm::for_each(region.outputs, addFlat);
    else
      types.push_back(MemRefType::get({spec.m, spec.n}, spec.resultType));
    func::FuncOp kernel = begin(linear, types, plan.workspaceBytes);
    Builder b = getBuilder(kernel);
    ValueRange arguments = kernel.getArguments();
    ValueRange rest = arguments.drop_front(types.size());
    GemmBuffers buffers{arguments[0], arguments[1], Value(), Value(), rest[0], rest[1], rest[2]};
    SmallVector<std::pair<Value, Value>> inputs;
    for (size_t i = 2; i < info.inputs.size(); ++i)
      inputs.push_back({info.inputs[i], arguments[i]});
    rows.setBuffers(inputs, arguments.slice(info.inputs.size(), region.outputs.size()));
    if (spec.hasBias)
      buffers.bias = arguments[2];
    if (!fusion.epilogue)
      buffers.c = arguments[types.size() - 1];
    emitGemm(b, spec, plan, buffers);
    name = finish(kernel, launch, info.inputs);
  }
  info.name = name;
  return info;
}

} // namespace meshwright::lower
