//===- KernelWriter.h - the texts of kernels --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel is written as a function `@kernel` on buffers, printed, and named by a hash of its
// text. So equal kernels have one name, in this program and in others.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_KERNELWRITER_H
#define MESHWRIGHT_LIB_CODEGEN_KERNELWRITER_H

#include "meshwright/lib/Codegen/KernelSource.h"

#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringSet.h"

#include <vector>

namespace meshwright::lower {

/// Bytes of a tensor value in memory.
int64_t getBytes(mlir::Value value);

class KernelWriter {
public:
  explicit KernelWriter(mlir::MLIRContext *context);

  /// Begins a kernel with arguments of these types. Its buffers do not overlap.
  mlir::func::FuncOp begin(llvm::ArrayRef<mlir::Type> types);
  /// Ends the kernel of a launch, whose buffers are the inputs and the launch's results. A
  /// result may be in the place of an operand if `canWriteInPlace` allows it. Returns the
  /// kernel's name, or the name of an equal kernel.
  std::string finish(mlir::func::FuncOp kernel, rt::KernelOp launch,
                     llvm::ArrayRef<mlir::Value> inputs);

  size_t getNumSources() const { return sources.size(); }
  /// Notes the launch that needs the sources from `first` on.
  void setPurpose(size_t first, rt::KernelOp launch);
  std::vector<KernelSource> takeSources() { return std::move(sources); }

private:
  /// Holds the kernel between `begin` and `finish`.
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<KernelSource> sources;
  llvm::StringSet<> names;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_KERNELWRITER_H
