//===- KernelTarget.h - a target that kernels are written for ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The schedule, the host program and the compiler ask this interface for every fact that
// differs between targets. They include no header of a target's own folder (Cpu/), so a
// further target changes nothing in passes/, lib/Driver/Program or lib/Driver/Execute.
// CONTRIBUTING.md ("Add a target") lists the files that one takes.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_KERNELTARGET_H
#define MESHWRIGHT_LIB_CODEGEN_KERNELTARGET_H

#include "meshwright/lib/Codegen/CodeEmitter.h"
#include "meshwright/lib/Codegen/KernelSource.h"
#include "meshwright/lib/Codegen/OpClasses.h"
#include "meshwright/lib/Codegen/Processor.h"
#include "meshwright/lib/Codegen/RowPlan.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/IR/BuiltinOps.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshwright {

/// The input of a product's kernel that the kernel reads packed, and its packing.
struct PackedWeight {
  unsigned operand;
  mw_rt_packing packing;
};

/// Writes the kernels of one program as MLIR.
class KernelBuilder {
public:
  virtual ~KernelBuilder() = default;

  /// The kernel of a launch. Returns nothing if the target has no kernel for it. The
  /// launch is then a call of the target's library, or an error.
  virtual std::optional<lower::KernelInfo> build(rt::KernelOp launch) = 0;
  /// The kernels that `build` has written, each once, in the order of first use.
  virtual std::vector<KernelSource> takeSources() = 0;
};

/// The hardware that a program's kernels run on.
///
/// Invariants:
/// - A target is immutable, so several threads may share it.
/// - Every answer depends only on the target and the arguments. The schedule that a report
///   describes is therefore the one that runs.
/// - `KernelBuilder::build` writes a kernel for every region that the questions under
///   "Fusion" accept.
class KernelTarget {
public:
  explicit KernelTarget(std::string name) : name(std::move(name)) {}
  virtual ~KernelTarget();

  /// The text that `getKernelTarget` turns into this target: `cpu`, `cpu:x86-64-v3`.
  const std::string &getName() const { return name; }
  /// All that a kernel's code depends on besides its text. Part of keys of caches.
  virtual std::string getCodeKey() const = 0;
  /// The processor that executes the program's entry, which launches the kernels.
  virtual const Processor &getHost() const = 0;
  /// Which ops the target has kernels for, as an error names them. Empty if it has all.
  virtual std::string getSupportedKernels() const { return ""; }
  /// The chip of the device that executes the kernels; empty if the processor does that. A program
  /// then refers to a kernel by a record (`mw_rt_device_kernel`), not by a function.
  virtual std::string getDeviceChip() const { return ""; }
  /// Returns true if the device can record launches as a graph and repeat them without the host.
  virtual bool hasGraphs() const { return false; }

  //===--------------------------------------------------------------------===//
  // Facts of ops
  //===--------------------------------------------------------------------===//

  /// The cost of one element of the op in a kernel.
  virtual lower::ElementCost getElementCost(mlir::Operation *op) const = 0;
  /// How many times a kernel may compute each element of an op before it is better to store
  /// the result; none if any number is fine.
  virtual std::optional<int64_t> getMostEvaluations(mlir::Operation *op) const = 0;

  /// Writes an op that needs its expansion by ops that the target has kernels for. The results of the
  /// op may be used on. Returns null if the target has no kernel but for the op's own expansion.
  virtual mlir::Value expand(mlir::OpBuilder &builder, mlir::Operation *op) const { return {}; }

  //===--------------------------------------------------------------------===//
  // Fusion
  //===--------------------------------------------------------------------===//

  /// The most ops of one kernel. The time to compile a kernel grows with its ops.
  virtual size_t getMaxKernelOps() const = 0;
  /// How one kernel computes the region row by row, or why none does.
  virtual lower::RowPlanResult planRows(const lower::KernelRegion &region) const {
    return lower::planRows(region, *this);
  }
  /// The ops that attention computes its bias by, inside its kernel. Returns nothing if
  /// attention has to read the bias from memory. `reason` is empty if the op has no bias
  /// that could be computed.
  virtual std::optional<lower::KernelRegion> getBiasRegion(nn::ScoresOpInterface op,
                                                           std::string &reason) const = 0;
  /// Returns true if the kernel of a product may go on with the op, as far as the op
  /// itself shows. `canComputeProduct` decides for a whole region.
  virtual bool canFollowProduct(mlir::Operation *op, mlir::RankedTensorType product) const = 0;
  /// The same for an op before the product that reads `input`.
  virtual bool canPrecedeProduct(mlir::Operation *op, mlir::RankedTensorType input) const = 0;
  /// Returns true if one kernel computes the region: a product by a weight, with other ops before
  /// and after it.
  virtual bool canComputeProduct(const lower::KernelRegion &region) const {
    return getPackedWeight(region).has_value();
  }

  //===--------------------------------------------------------------------===//
  // Weights, libraries and buffers
  //===--------------------------------------------------------------------===//

  /// The weight that the kernel of a region reads packed. Returns nothing if the region is
  /// not a product, alone or with ops before and after it, that the target has a kernel
  /// for.
  virtual std::optional<PackedWeight> getPackedWeight(const lower::KernelRegion &region) const = 0;
  /// The calls that the device performs: kinds of meshwright-c/Runtime.h.
  virtual llvm::ArrayRef<int64_t> getCalls() const = 0;
  /// Returns true if a product that the device performs by a call may read its weight in the form in
  /// which it travels.
  virtual bool multipliesForms() const { return false; }
  /// Returns true if the device performs the op by a call where `KernelBuilder::build` returns
  /// nothing.
  bool isLibraryOp(mlir::Operation *op) const;

  //===--------------------------------------------------------------------===//
  // Kernels
  //===--------------------------------------------------------------------===//

  /// Loads the dialects that kernels are written in and lowered through.
  virtual void loadDialects(mlir::MLIRContext &context) const = 0;
  virtual std::unique_ptr<KernelBuilder> createBuilder(mlir::MLIRContext *context) const = 0;
  /// Lowers a module with one kernel to the form that `createEmitter` reads.
  virtual mlir::LogicalResult lowerKernel(mlir::ModuleOp module) const = 0;
  virtual llvm::Expected<std::unique_ptr<CodeEmitter>> createEmitter() const = 0;

private:
  std::string name;
};

/// Parses `cpu` (this machine's processor), `cpu:NAME` (a processor by LLVM's name) or `gpu:CHIP`
/// (`gpu:sm_90a`). An empty text means `cpu`. The error of another text names the texts that are supported.
llvm::Expected<std::shared_ptr<const KernelTarget>> getKernelTarget(llvm::StringRef text);

/// The target of a function: `text` if it is not empty, otherwise the function's
/// `rt.target`, otherwise `cpu`. Returns null after an error at the function.
std::shared_ptr<const KernelTarget> getKernelTarget(mlir::Operation *func,
                                                    llvm::StringRef text = "");

/// Notes the target on a function, or removes the note if it is `cpu`, the default.
void setTarget(mlir::Operation *func, llvm::StringRef name);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_KERNELTARGET_H
