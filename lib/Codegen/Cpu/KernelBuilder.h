//===- KernelBuilder.h - kernels of a program -------------------*- C++ -*-===//
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

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_KERNELBUILDER_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_KERNELBUILDER_H

#include "meshwright/lib/Codegen/Processor.h"
#include "meshwright/lib/Codegen/KernelSource.h"
#include "meshwright/lib/Codegen/OpClasses.h"

#include "meshwright-c/Runtime.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/ADT/StringMap.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringSet.h"

namespace meshwright::lower {

/// The type of an element in a buffer: i8 for i1.
mlir::Type getStorageType(mlir::Type type);
/// The type arithmetic on an element is done in: f32 for bf16 and f16.
mlir::Type getComputeType(mlir::Type type);

/// Where ops are shown in errors: name, the model's module and source line.
std::string describeOp(mlir::Operation *op);

/// How exact functions have to be for a result of this type: to the last place, or
/// to 2e-4 (`afn`), which bf16 hardly shows.
mlir::arith::FastMathFlags getAccuracy(mlir::Type type);
/// Where a vector of f32 has the elements of one of bf16: at the same places, or
/// first those of even places, then those of odd ones, which are widened by a shift
/// and a mask, and narrowed all at once.
enum class LaneOrder { Same, EvenFirst };
/// A vector that has elements of even places first, with all at their places.
mlir::Value emitInterleaved(mlir::ImplicitLocOpBuilder &builder, mlir::Value vector);
/// Emits the arithmetic of an elementwise op. `operands` and the result are
/// elements as values hold them (i1, bf16, ...), all alone or all in vectors.
mlir::Value emitElement(mlir::ImplicitLocOpBuilder &builder, mlir::Operation *op,
                        mlir::ValueRange operands, LaneOrder order = LaneOrder::Same);
/// Element conversions, between any two types of `nn`.
mlir::Value emitCast(mlir::ImplicitLocOpBuilder &builder, mlir::Value value, mlir::Type type,
                     LaneOrder order = LaneOrder::Same);
/// A constant of an integer or float type, or of a vector of them.
mlir::Value emitConstant(mlir::ImplicitLocOpBuilder &builder, mlir::Type type, double value);
/// Loads of and stores to storage: i8 <-> i1.
mlir::Value fromStorage(mlir::ImplicitLocOpBuilder &builder, mlir::Value value, mlir::Type type);
mlir::Value toStorage(mlir::ImplicitLocOpBuilder &builder, mlir::Value value);

/// What a thread should move or compute at least, to be worth waking: a microsecond
/// or two of work.
constexpr int64_t kShareBytes = 32 << 10, kShareFlops = 128 << 10;

/// The least items that a thread should do, of a launch that has so many and does
/// so much.
int64_t chooseGrain(int64_t items, int64_t bytes, int64_t flops);

/// A kernel that computes a launch, and how the runtime is to launch it.
struct KernelInfo {
  /// The kernel's function.
  std::string name;
  /// The values of the launch's region whose buffers it reads, in the order of
  /// its arguments: arguments of the region. Those of the results follow, in the
  /// order in which they are yielded.
  llvm::SmallVector<mlir::Value> inputs;
  /// The rest is as in `mw_rt_launch`. With one item, all is done in one call.
  int64_t kind = MW_RT_ROWS;
  int64_t items = 1, grain = 1;
  /// For each thread.
  int64_t workspaceBytes = 0;
  int64_t flops = 0;
  /// Negative: all inputs and outputs once.
  int64_t bytes = -1;
};

/// Builds kernels, each compiled by itself: functions
///
///   @kernel(%input0: memref<...>, ..., %output0: memref<...>, ...,
///           %begin: index, %end: index, %workspace: memref<Nxi8>)
///
/// that do the items %begin .. %end, buffers in the order of `KernelInfo`. Lowered,
/// they are of type `mw_rt_kernel`.
class KernelBuilder {
public:
  KernelBuilder(mlir::MLIRContext *context, const Processor &processor);

  /// The kernel of a launch, or none where there is none for what it computes:
  /// the runtime then has to do it.
  std::optional<KernelInfo> build(rt::KernelOp launch);

  const Processor &getProcessor() const { return processor; }

  /// What has been built, in the order of first use.
  std::vector<KernelSource> takeSources() { return std::move(sources); }

private:
  friend class KernelScope;
  /// Starts a kernel on buffers of these types, with workspace as stated.
  mlir::func::FuncOp begin(mlir::Location loc, mlir::ArrayRef<mlir::Type> types,
                           int64_t workspaceBytes = 0);
  /// Ends it; returns the name of it or of an equal one.
  std::string finish(mlir::func::FuncOp kernel);

  Processor processor;
  /// Holds the kernel that is being built.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<KernelSource> sources;
  llvm::StringSet<> names;
  /// Names of kernels by what their emitters say of them.
  llvm::StringMap<std::string> known;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_KERNELBUILDER_H
