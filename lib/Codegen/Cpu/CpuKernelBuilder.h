//===- CpuKernelBuilder.h - kernels of a program ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel is a function on buffers of static shape that computes one group of ops.
//
// - Equal kernels have one name.
// - A kernel may declare a dense buffer in any shape with as many elements, so it sees
//   collapsed dimensions.
// - i1 is i8 in buffers.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/KernelWriter.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/ADT/StringMap.h"

namespace meshwright::lower {

/// The least bytes or operations for which a further thread wakes up: one or two microseconds
/// of work.
constexpr int64_t kShareBytes = 32 << 10, kShareFlops = 128 << 10;

/// The least number of items that one thread takes at a time, of a launch with so many items,
/// bytes and operations.
int64_t chooseGrain(int64_t items, int64_t bytes, int64_t flops);

/// Writes kernels as functions
///
///   @kernel(%input0: memref<...>, ..., %output0: memref<...>, ...,
///           %begin: index, %end: index, %workspace: memref<Nxi8>)
///
/// which compute the items %begin .. %end. Buffers have the order of `KernelInfo`. The lowered
/// functions have the type `mw_rt_kernel`.
class CpuKernelBuilder : public KernelBuilder {
public:
  CpuKernelBuilder(mlir::MLIRContext *context, const CpuTarget &target);

  std::optional<KernelInfo> build(rt::KernelOp launch) override;
  std::vector<KernelSource> takeSources() override { return writer.takeSources(); }

  const CpuTarget &getTarget() const { return target; }
  const Processor &getProcessor() const { return target.getProcessor(); }

private:
  friend class KernelScope;
  /// Begins a kernel on buffers of these types.
  mlir::func::FuncOp begin(mlir::ArrayRef<mlir::Type> types, int64_t workspaceBytes);

  const CpuTarget &target;
  KernelWriter writer;
  /// Names of kernels by the keys that their emitters choose.
  llvm::StringMap<std::string> known;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H
