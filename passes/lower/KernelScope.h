//===- KernelScope.h - building blocks of kernels ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_LOWER_KERNELSCOPE_H
#define MESHWRIGHT_PASSES_LOWER_KERNELSCOPE_H

#include "KernelBuilder.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

namespace meshwright::lower {

/// The type of a tensor value's buffer, in its own shape or another one of as
/// many elements.
inline mlir::MemRefType getBufferType(mlir::Value value, llvm::ArrayRef<int64_t> shape) {
  return mlir::MemRefType::get(shape, getStorageType(mlir::getElementTypeOrSelf(value.getType())));
}
inline mlir::MemRefType getBufferType(mlir::Value value) {
  return getBufferType(value, mlir::cast<mlir::RankedTensorType>(value.getType()).getShape());
}

/// One family of kernels a file.
class KernelScope {
public:
  explicit KernelScope(KernelBuilder &kernels) : kernels(kernels) {}

  /// Launches that go over rows, and those that reduce other dimensions.
  std::optional<KernelInfo> buildRows(rt::KernelOp launch);
  std::optional<KernelInfo> buildColumns(rt::KernelOp launch);
  std::string buildAttention(nn::AttentionOp op);

  static mlir::ImplicitLocOpBuilder getBuilder(mlir::func::FuncOp kernel) {
    return mlir::ImplicitLocOpBuilder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  }

private:
  mlir::func::FuncOp begin(mlir::Operation *op, llvm::ArrayRef<mlir::Type> types,
                           int64_t workspaceBytes = 0) {
    return kernels.begin(op->getLoc(), types, workspaceBytes);
  }
  std::string finish(mlir::func::FuncOp kernel) { return kernels.finish(kernel); }

  KernelBuilder &kernels;
};

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

using Builder = mlir::ImplicitLocOpBuilder;

mlir::Value emitIndex(Builder &builder, int64_t value);
/// for i in 0 .. count: body(i).
void emitLoop(Builder &builder, int64_t count,
              llvm::function_ref<void(Builder &, mlir::Value)> body);
void emitLoop(Builder &builder, mlir::Value count,
              llvm::function_ref<void(Builder &, mlir::Value)> body);
/// A nest over a shape, the last dimension innermost.
void emitLoops(Builder &builder, llvm::ArrayRef<int64_t> shape,
               llvm::function_ref<void(Builder &, mlir::ValueRange)> body);
/// value = init; for i in 0 .. count: value = body(i, value).
mlir::Value emitFold(Builder &builder, int64_t count, mlir::Value init,
                     llvm::function_ref<mlir::Value(Builder &, mlir::Value, mlir::Value)> body);
/// A sum over elements of f32 or f64 whose order the compiler chooses, so that
/// it can use vectors. The order is the same in every run.
mlir::Value emitSum(Builder &builder, int64_t count, mlir::Type type,
                    llvm::function_ref<mlir::Value(Builder &, mlir::Value)> term);
mlir::Value emitMax(Builder &builder, int64_t count, mlir::Type type,
                    llvm::function_ref<mlir::Value(Builder &, mlir::Value)> term);
/// An element of a buffer in its compute type, and back.
mlir::Value emitLoad(Builder &builder, mlir::Value buffer, mlir::ValueRange indices);
void emitStore(Builder &builder, mlir::Value value, mlir::Value buffer, mlir::ValueRange indices);

} // namespace meshwright::lower

#endif // MESHWRIGHT_PASSES_LOWER_KERNELSCOPE_H
