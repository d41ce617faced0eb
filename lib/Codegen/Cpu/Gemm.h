//===- Gemm.h - generated matrix products -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels of C = A B (+ bias).
//
// - B is packed in column panels (`mw_rt_packing`).
// - The kernel copies A to the workspace, one block of rows and of k at a time.
// - It sums a tile of C in registers over a block of k. A tile is as tall and wide as the
//   registers allow.
// - An item of the kernel, the unit that threads share, is a panel of C in a block of rows.
// - Where rows belong to experts, each has a B of its own, and an item is a panel for all rows.
// - The order of the sums depends only on the shape and the processor, not on the items that
//   a thread computes.
// - bf16 is stored in pairs along k on all processors. Pairs are also the cheapest to widen.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"
#include "meshwright/lib/Codegen/ProductFusion.h"

#include "meshwright-c/Runtime.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <functional>
#include <optional>

namespace meshwright::lower {

/// Some consecutive elements of a row of C (or of A). Prologues and epilogues compute them
/// together.
struct GemmPoint : ProductPoint {
  bool masksBf16;

  /// Loads these elements of a row-major buffer with `columns` columns, as f32, with zeros
  /// behind the valid ones. Without `byRow` the buffer has one row for all rows of C.
  mlir::Value load(mlir::ImplicitLocOpBuilder &builder, mlir::Value buffer, int64_t columns,
                   bool byRow = true) const;
  /// Stores the valid elements of a vector of f32 in such a buffer.
  void store(mlir::ImplicitLocOpBuilder &builder, mlir::Value vector, mlir::Value buffer,
             int64_t columns) const;
};

/// Computes elements of A, from f32 vectors to f32 vectors, before they are multiplied. The
/// buffer of A may then have another element type.
using GemmPrologue = std::function<mlir::Value(mlir::ImplicitLocOpBuilder &builder,
                                               mlir::Value vector, const GemmPoint &point)>;
/// Takes the sums of a row of a panel, in f32 and with the bias added. The kernel then does
/// not store them in C.
using GemmEpilogue = std::function<void(mlir::ImplicitLocOpBuilder &builder, mlir::Value sums,
                                        const GemmPoint &point)>;

struct GemmSpec {
  /// The element type of A, B and the bias: f32 or bf16. Sums are f32.
  mlir::Type type;
  mlir::Type resultType;
  /// C is m x n, A is m x k, B is k x n.
  int64_t m = 0, n = 0, k = 0;
  bool hasBias = false;
  /// Called once for each element of C.
  GemmEpilogue epilogue;
  /// Applied to each element of A, possibly several times. Its result is rounded to `type`.
  GemmPrologue prologue;
  /// If not 0, rows are of so many experts, each with a B, one after the other. `m` is the most rows there
  /// are, and rows of no expert are not written. There is no bias and no epilogue.
  int64_t experts = 0;
};

/// Returns true if there is a kernel for this element type.
bool hasGemm(mlir::Type type, const Processor &processor);

/// How a parameter of k x n (`transposed`: stored as n x k) is packed for kernels of this
/// processor.
mw_rt_packing choosePacking(mlir::Type type, int64_t k, int64_t n, bool transposed,
                            const Processor &processor);

/// The weight that the kernel of a region reads packed. Returns nothing unless the region is an
/// `nn.linear` that there is a kernel for, alone or with elementwise ops before and after it.
std::optional<PackedWeight> getGemmWeight(const KernelRegion &region, const CpuTarget &target);
/// The same for a region that is an `nn.grouped_product`.
std::optional<PackedWeight> getGroupedWeight(const KernelRegion &region, const CpuTarget &target);

/// The packing of the weight that a launch reads. Returns nothing if the kernel cannot read it so.
std::optional<rt::PackingAttr> findPacking(rt::KernelOp launch, const PackedWeight &weight,
                                           const Processor &processor);

/// Steps of k in a chunk, the unit in which A is copied.
constexpr int64_t kChunkSteps = rt::kPackedSteps;
/// Elements along k that are stored next to each other.
inline int64_t getGroup(mlir::Type type) { return type.isBF16() ? 2 : 1; }
/// Bytes of an element.
inline int64_t getBytes(mlir::Type type) { return type.getIntOrFloatBitWidth() / 8; }

/// The blocks that a product is cut into.
struct GemmPlan {
  /// The tile that is summed in registers: its rows, and its vectors of `lanes`.
  int64_t tileRows, tileVectors, lanes;
  /// Tiles of a block of rows, whose part of A is copied at once; the number of blocks.
  int64_t blockTiles, rowBlocks;
  /// Panels of C, and panels whose sums the workspace holds.
  int64_t panels, blockPanels;
  /// Steps of k: elements for f32, pairs for bf16. All steps, rounded up to whole chunks, and
  /// the steps of a block.
  int64_t steps, blockSteps;
  /// The most steps that f32 sums one by one.
  int64_t exactSteps;
  /// How many steps ahead weights are prefetched into the first and into the second cache; 0
  /// for no prefetches, where tiles find weights in cache or the processor prefetches.
  int64_t nearSteps, farSteps;
  /// Lines of the next panel that each chunk of a tile prefetches.
  int64_t aheadLines;
  /// Instructions multiply pairs of bf16, without widening them.
  bool dotsPairs;
  /// The processor loads and stores parts of vectors of bf16.
  bool masksBf16;

  /// The numbers of the launch, as in `KernelInfo`.
  int64_t items, workspaceBytes, flops, bytes;
};

/// `panel` is the number of columns of a panel, in whole vectors.
GemmPlan planGemm(const GemmSpec &spec, int64_t panel, const Processor &processor);

/// The buffers of a product, dense and of any shape.
struct GemmBuffers {
  mlir::Value a, b, bias, c;
  /// Items begin .. end (indices), and workspace (a memref of i8).
  mlir::Value begin, end, workspace;
  /// The row at which each expert begins, and the end of the last one's: a memref of i64.
  mlir::Value offsets = {};
};

/// Emits the kernel's body.
void emitGemm(mlir::ImplicitLocOpBuilder &builder, const GemmSpec &spec, const GemmPlan &plan,
              const GemmBuffers &buffers);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H
