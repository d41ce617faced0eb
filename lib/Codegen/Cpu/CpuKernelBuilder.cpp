//===- CpuKernelBuilder.cpp - kernels of a program ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

int64_t chooseGrain(int64_t items, int64_t bytes, int64_t flops) {
  int64_t shares = std::max({bytes / kShareBytes, flops / kShareFlops, int64_t(1)});
  return llvm::divideCeil(std::max<int64_t>(items, 1), shares);
}

CpuKernelBuilder::CpuKernelBuilder(MLIRContext *context, const CpuTarget &target)
    : target(target), writer(context) {}

func::FuncOp CpuKernelBuilder::begin(ArrayRef<Type> types, int64_t workspaceBytes) {
  MLIRContext *context = types.front().getContext();
  SmallVector<Type> all(types);
  all.append(2, IndexType::get(context));
  all.push_back(MemRefType::get(workspaceBytes, IntegerType::get(context, 8)));
  return writer.begin(all);
}

std::optional<KernelInfo> CpuKernelBuilder::build(rt::KernelOp launch) {
  // Emitters of special launches come first. Each inspects the ops of the region, and
  // returns nothing, before it begins a kernel, for launches of other kinds.
  using Emitter = std::optional<KernelInfo> (KernelScope::*)(rt::KernelOp);
  constexpr Emitter emitters[] = {&KernelScope::buildGemm,           &KernelScope::buildGroupedGemm,
                                  &KernelScope::buildAttention,      &KernelScope::buildMerge,
                                  &KernelScope::buildPagedAttention, &KernelScope::buildMergeParts,
                                  &KernelScope::buildRows,           &KernelScope::buildColumns};
  KernelScope scope(*this);
  size_t known = writer.getNumSources();
  for (Emitter emitter : emitters)
    if (std::optional<KernelInfo> info = (scope.*emitter)(launch)) {
      writer.setPurpose(known, launch);
      return info;
    }
  return std::nullopt;
}

} // namespace meshwright::lower
