//===- ColumnKernels.cpp - reductions over outer dimensions ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "meshwright/lib/Codegen/ColumnEmitter.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;

namespace meshwright::lower {

std::optional<KernelInfo> KernelScope::buildColumns(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1)
    return std::nullopt;
  Operation *op = &*ops.begin();
  auto emitter = ColumnEmitter::create(op, kernels.getProcessor().getLanes() * 4);
  if (!emitter)
    return std::nullopt;
  auto type = cast<RankedTensorType>(op->getOperand(0).getType());
  Value result = op->getResult(0);
  int64_t outputs = cast<RankedTensorType>(result.getType()).getNumElements();
  int64_t elementBytes = getStorageType(type.getElementType()).getIntOrFloatBitWidth() / 8;
  KernelInfo info;
  info.inputs = {op->getOperand(0)};
  info.items = emitter->getNumItems();
  info.bytes = (type.getNumElements() + outputs) * elementBytes;
  info.flops = type.getNumElements();
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  info.workspaceBytes = emitter->getWorkspaceBytes();
  func::FuncOp kernel = begin(
      op,
      {getBufferType(op->getOperand(0), {type.getNumElements()}), getBufferType(result, {outputs})},
      info.workspaceBytes);
  Builder b = getBuilder(kernel);
  ValueRange arguments = kernel.getArguments();
  if (info.items > 0) {
    auto loop = scf::ForOp::create(b, arguments[2], arguments[3], emitIndex(b, 1));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    emitter->emit(b, loop.getInductionVar(), arguments[0], arguments[1], arguments.back());
  }
  info.name = finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
