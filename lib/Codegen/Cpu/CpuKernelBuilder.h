//===- CpuKernelBuilder.h - kernels of a program ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels are functions on buffers of static shape, one per group of ops;
// equal kernels have one name. A buffer may be declared in any shape that its dense
// elements have, so kernels see collapsed dimensions. i1 is i8 in buffers.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"
#include "meshwright/lib/Codegen/Elements.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace meshwright::lower {

/// What a thread should move or compute at least, to be worth waking: a microsecond
/// or two of work.
constexpr int64_t kShareBytes = 32 << 10, kShareFlops = 128 << 10;

/// The least items that a thread should do, of a launch that has so many and does
/// so much.
int64_t chooseGrain(int64_t items, int64_t bytes, int64_t flops);

/// Builds kernels, each compiled by itself: functions
///
///   @kernel(%input0: memref<...>, ..., %output0: memref<...>, ...,
///           %begin: index, %end: index, %workspace: memref<Nxi8>)
///
/// that do the items %begin .. %end, buffers in the order of `KernelInfo`. Lowered,
/// they are of type `mw_rt_kernel`.
class CpuKernelBuilder : public KernelBuilder {
public:
  CpuKernelBuilder(mlir::MLIRContext *context, const CpuTarget &target);

  std::optional<KernelInfo> build(rt::KernelOp launch) override;
  std::vector<KernelSource> takeSources() override { return std::move(sources); }

  const CpuTarget &getTarget() const { return target; }
  const Processor &getProcessor() const { return target.getProcessor(); }

private:
  friend class KernelScope;
  /// Starts a kernel on buffers of these types, with workspace as stated.
  mlir::func::FuncOp begin(mlir::Location loc, mlir::ArrayRef<mlir::Type> types,
                           int64_t workspaceBytes = 0);
  /// Ends it; returns the name of it or of an equal one.
  std::string finish(mlir::func::FuncOp kernel);

  const CpuTarget &target;
  /// Holds the kernel that is being built.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<KernelSource> sources;
  llvm::StringSet<> names;
  /// Names of kernels by what their emitters say of them.
  llvm::StringMap<std::string> known;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_CPUKERNELBUILDER_H
