//===- ColumnKernels.cpp - reductions over outer dimensions, on GPUs ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A thread computes one lane, so neighbouring threads read neighbouring elements.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/ColumnEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

std::optional<KernelInfo> GpuKernelBuilder::buildColumns(rt::KernelOp launch) {
  Operation *op = getSingleOp(launch);
  auto emitter = op ? ColumnEmitter::create(op, /*widest=*/1) : std::nullopt;
  if (!emitter)
    return std::nullopt;
  constexpr int64_t threads = 128;
  int64_t items = emitter->getNumItems();
  KernelInfo info;
  info.inputs = {op->getOperand(0)};
  info.items = llvm::divideCeil(items, threads);
  info.grain = threads;
  info.bytes = getBytes(op->getOperand(0)) + getBytes(op->getResult(0));
  info.flops = cast<RankedTensorType>(op->getOperand(0).getType()).getNumElements();
  func::FuncOp kernel = begin(launch, info.inputs, /*sharedBytes=*/0, threads);
  Builder b = Builder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  emitForItem(b, items, info.items, threads, [&](Value item) {
    emitter->emit(b, item, kernel.getArgument(0), kernel.getArgument(1), Value());
  });
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
