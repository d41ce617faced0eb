//===- CpuKernelBuilder.cpp - kernels of a program ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Launches/InPlace.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;

namespace meshwright::lower {

int64_t chooseGrain(int64_t items, int64_t bytes, int64_t flops) {
  int64_t shares = std::max({bytes / kShareBytes, flops / kShareFlops, int64_t(1)});
  return llvm::divideCeil(std::max<int64_t>(items, 1), shares);
}

CpuKernelBuilder::CpuKernelBuilder(MLIRContext *context, const CpuTarget &target)
    : target(target), module(ModuleOp::create(UnknownLoc::get(context))) {}

func::FuncOp CpuKernelBuilder::begin(Location, ArrayRef<Type> types, int64_t workspaceBytes) {
  OpBuilder builder = OpBuilder::atBlockEnd(module->getBody());
  SmallVector<Type> all(types);
  all.append(2, builder.getIndexType());
  all.push_back(MemRefType::get(workspaceBytes, builder.getI8Type()));
  auto kernel = func::FuncOp::create(builder, builder.getUnknownLoc(), "kernel",
                                     builder.getFunctionType(all, {}));
  Block *entry = kernel.addEntryBlock();
  // `finish` removes the attribute from buffers that may overlap.
  for (unsigned i = 0; i < entry->getNumArguments(); ++i)
    if (isa<MemRefType>(all[i]))
      kernel.setArgAttr(i, "llvm.noalias", builder.getUnitAttr());
  return kernel;
}

static std::string print(func::FuncOp kernel) {
  std::string text;
  llvm::raw_string_ostream os(text);
  kernel->print(os, OpPrintingFlags().useLocalScope());
  return text;
}

/// Buffers of a launch do not overlap, except that a result may be in the place of an operand.
/// The kernel then reads memory through one argument and writes it through another one, which
/// LLVM's `noalias` does not allow for either.
static void allowResultsOverOperands(func::FuncOp kernel, rt::KernelOp launch,
                                     ArrayRef<Value> inputs) {
  for (auto [i, input] : llvm::enumerate(inputs)) {
    auto argument = dyn_cast_if_present<BlockArgument>(input);
    for (unsigned result = 0; argument && result < launch->getNumResults(); ++result)
      if (canWriteInPlace(launch, argument.getArgNumber(), result))
        for (unsigned buffer : {unsigned(i), unsigned(inputs.size() + result)})
          kernel.removeArgAttr(buffer, "llvm.noalias");
  }
}

std::string CpuKernelBuilder::finish(func::FuncOp kernel, rt::KernelOp launch,
                                     ArrayRef<Value> inputs) {
  allowResultsOverOperands(kernel, launch, inputs);
  OpBuilder builder = OpBuilder::atBlockEnd(&kernel.getBody().front());
  func::ReturnOp::create(builder, builder.getUnknownLoc());
  std::string text = print(kernel), self = "@" + kernel.getName().str();
  kernel.erase();
  // A hash of the text is the same name in other programs.
  std::string name = "kernel_" + llvm::utohexstr(llvm::xxh3_64bits(text), true, 16);
  if (names.insert(name).second) {
    text.replace(text.find(self), self.size(), "@" + name);
    sources.push_back({name, "", std::move(text)});
  }
  return name;
}

/// "nn.add, nn.rms_norm".
static std::string describeOps(rt::KernelOp launch) {
  std::string text;
  for (Operation &op : launch.getOps())
    text += (text.empty() ? "" : ", ") + op.getName().getStringRef().str();
  return text;
}

std::optional<KernelInfo> CpuKernelBuilder::build(rt::KernelOp launch) {
  // Emitters of special launches come first. Each inspects the ops of the region, and
  // returns nothing, before it begins a kernel, for launches of other kinds.
  using Emitter = std::optional<KernelInfo> (KernelScope::*)(rt::KernelOp);
  constexpr Emitter emitters[] = {&KernelScope::buildGemm, &KernelScope::buildAttention,
                                  &KernelScope::buildMerge, &KernelScope::buildRows,
                                  &KernelScope::buildColumns};
  KernelScope scope(*this);
  size_t known = sources.size();
  for (Emitter emitter : emitters)
    if (std::optional<KernelInfo> info = (scope.*emitter)(launch)) {
      for (size_t i = known; i < sources.size(); ++i)
        sources[i].purpose = describeOps(launch);
      return info;
    }
  return std::nullopt;
}

} // namespace meshwright::lower
