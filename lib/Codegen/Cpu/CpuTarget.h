//===- CpuTarget.h - kernels for processors ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_CPUTARGET_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_CPUTARGET_H

#include "meshwright/lib/Codegen/KernelTarget.h"

namespace meshwright::lower {

/// A processor. Its kernels are object files, and oneDNN is its library of products. The
/// same processor executes the program's entry.
class CpuTarget : public KernelTarget {
public:
  CpuTarget(std::string name, Processor processor)
      : KernelTarget(std::move(name)), processor(std::move(processor)) {}

  const Processor &getProcessor() const { return processor; }

  std::string getCodeKey() const override;
  const Processor &getHost() const override { return processor; }
  ElementCost getElementCost(mlir::Operation *op) const override;
  std::optional<int64_t> getMostEvaluations(mlir::Operation *op) const override;
  size_t getMaxKernelOps() const override { return 48; }
  mlir::Value expand(mlir::OpBuilder &builder, mlir::Operation *op) const override;
  std::optional<KernelRegion> getBiasRegion(nn::ScoresOpInterface op, std::string &reason) const override;
  bool canFollowProduct(mlir::Operation *op, mlir::RankedTensorType product) const override;
  bool canPrecedeProduct(mlir::Operation *op, mlir::RankedTensorType input) const override;
  std::optional<PackedWeight> getPackedWeight(const KernelRegion &region) const override;
  llvm::ArrayRef<int64_t> getCalls() const override;
  bool multipliesForms() const override { return true; }
  void loadDialects(mlir::MLIRContext &context) const override;
  std::unique_ptr<KernelBuilder> createBuilder(mlir::MLIRContext *context) const override;
  mlir::LogicalResult lowerKernel(mlir::ModuleOp module) const override;
  llvm::Expected<std::unique_ptr<CodeEmitter>> createEmitter() const override;

private:
  Processor processor;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_CPUTARGET_H
