//===- PtxEmitter.h - LLVM dialect to PTX -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_PTXEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_PTXEMITTER_H

#include "meshwright/lib/Codegen/CodeEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuTarget.h"

#include <memory>

namespace llvm {
class TargetMachine;
}

namespace meshwright::lower {

/// Emits the PTX of kernels. Functions of libdevice are linked from libdevice.10.bc, which is
/// found in CUDA_ROOT, CUDA_HOME, CUDA_PATH or /usr/local/cuda. A kernel that needs one where
/// the file is missing is an error that names the function.
class PtxEmitter : public CodeEmitter {
public:
  static llvm::Expected<std::unique_ptr<PtxEmitter>> create(const Chip &chip);
  ~PtxEmitter() override;

  llvm::Expected<ObjectCode> emitKernel(mlir::ModuleOp module) override;

private:
  PtxEmitter() = default;

  std::unique_ptr<llvm::TargetMachine> machine;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_PTXEMITTER_H
