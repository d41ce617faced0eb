//===- KernelScope.h - building blocks of kernels ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_KERNELSCOPE_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_KERNELSCOPE_H

#include "meshwright/lib/Codegen/Cpu/CpuKernelBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

namespace meshwright::lower {

/// The type of a tensor value's buffer, in its own shape or in another shape with as many
/// elements.
inline mlir::MemRefType getBufferType(mlir::Value value, llvm::ArrayRef<int64_t> shape) {
  return mlir::MemRefType::get(shape, getStorageType(mlir::getElementTypeOrSelf(value.getType())));
}
inline mlir::MemRefType getBufferType(mlir::Value value) {
  return getBufferType(value, mlir::cast<mlir::RankedTensorType>(value.getType()).getShape());
}

/// The emitters of kernels. Each family of kernels is a file.
class KernelScope {
public:
  explicit KernelScope(CpuKernelBuilder &kernels) : kernels(kernels) {}

  /// Launches of nn.attention.
  std::optional<KernelInfo> buildAttention(rt::KernelOp launch);
  /// Launches of nn.merge_attention.
  std::optional<KernelInfo> buildMerge(rt::KernelOp launch);
  /// Launches of nn.paged_attention, and of nn.merge_parts.
  std::optional<KernelInfo> buildPagedAttention(rt::KernelOp launch);
  std::optional<KernelInfo> buildMergeParts(rt::KernelOp launch);
  /// Launches that compute rows, and launches that reduce other dimensions.
  std::optional<KernelInfo> buildRows(rt::KernelOp launch);
  std::optional<KernelInfo> buildColumns(rt::KernelOp launch);
  /// Products whose weight is packed.
  std::optional<KernelInfo> buildGemm(rt::KernelOp launch);
  /// The same where rows belong to experts.
  std::optional<KernelInfo> buildGroupedGemm(rt::KernelOp launch);

  static mlir::ImplicitLocOpBuilder getBuilder(mlir::func::FuncOp kernel) {
    return mlir::ImplicitLocOpBuilder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  }

private:
  mlir::func::FuncOp begin(mlir::Operation *op, llvm::ArrayRef<mlir::Type> types,
                           int64_t workspaceBytes = 0) {
    return kernels.begin(types, workspaceBytes);
  }
  std::string finish(mlir::func::FuncOp kernel, rt::KernelOp launch,
                     llvm::ArrayRef<mlir::Value> inputs) {
    return kernels.writer.finish(kernel, launch, inputs);
  }

  CpuKernelBuilder &kernels;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_KERNELSCOPE_H
