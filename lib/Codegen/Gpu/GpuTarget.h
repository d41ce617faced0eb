//===- GpuTarget.h - kernels for NVIDIA GPUs --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUTARGET_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUTARGET_H

#include "meshwright/lib/Codegen/KernelTarget.h"

namespace meshwright::lower {

/// The facts of a GPU that kernels and the compiler use.
struct Chip {
  /// In LLVM's spelling: "sm_90a".
  std::string name;
  /// The least version of PTX that has the chip, in LLVM's spelling: "+ptx80". LLVM ends the
  /// process for a chip with an older version.
  std::string features;
  /// Bytes of shared memory that a block may use: without an attribute of the kernel, and with
  /// one.
  int64_t sharedBytes = 48 << 10, maxSharedBytes;
  /// True if it has wgmma, beside tensor maps and mbarriers.
  bool hasWgmma = false;

  static constexpr int64_t warpSize = 32;
  /// The most threads of a block of a row kernel. Each may then use 128 of the 64 K registers.
  static constexpr int64_t maxThreads = 512;

  /// A chip by its name. The error lists the chips that are supported.
  static llvm::Expected<Chip> get(llvm::StringRef name);
};

/// A GPU. Its kernels are PTX, and cuBLASLt is its library of products. The processor `host`
/// executes the program's entry.
class GpuTarget : public KernelTarget {
public:
  GpuTarget(std::string name, Processor host, Chip chip)
      : KernelTarget(std::move(name)), host(std::move(host)), chip(std::move(chip)) {}

  const Chip &getChip() const { return chip; }

  std::string getCodeKey() const override { return "gpu\n" + chip.name + "\n" + chip.features; }
  const Processor &getHost() const override { return host; }
  std::string getSupportedKernels() const override;
  std::string getDeviceChip() const override { return chip.name; }
  bool hasGraphs() const override { return true; }
  ElementCost getElementCost(mlir::Operation *op) const override;
  std::optional<int64_t> getMostEvaluations(mlir::Operation *op) const override;
  mlir::Value expand(mlir::OpBuilder &builder, mlir::Operation *op) const override;
  size_t getMaxKernelOps() const override { return 48; }
  RowPlanResult planRows(const KernelRegion &region) const override;
  std::optional<KernelRegion> getBiasRegion(nn::ScoresOpInterface op, std::string &reason) const override;
  bool canFollowProduct(mlir::Operation *op, mlir::RankedTensorType product) const override;
  bool canPrecedeProduct(mlir::Operation *, mlir::RankedTensorType) const override { return false; }
  bool canComputeProduct(const KernelRegion &region) const override;
  std::optional<PackedWeight> getPackedWeight(const KernelRegion &) const override {
    return std::nullopt;
  }
  llvm::ArrayRef<int64_t> getCalls() const override;
  void loadDialects(mlir::MLIRContext &context) const override;
  std::unique_ptr<KernelBuilder> createBuilder(mlir::MLIRContext *context) const override;
  mlir::LogicalResult lowerKernel(mlir::ModuleOp module) const override;
  llvm::Expected<std::unique_ptr<CodeEmitter>> createEmitter() const override;

private:
  Processor host;
  Chip chip;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUTARGET_H
