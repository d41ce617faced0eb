//===- Gemm.h - generated matrix products -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// C = A B (+ bias), with B packed in column panels (`mw_rt_packing`) and A
// copied into the workspace, a block of rows and of k at a time. A tile of C, as
// tall and wide as registers allow, is summed in registers over a block of k.
// Items of the kernel are panels of C, once for each block of rows. The order of
// sums depends on the shape and the target alone, never on how items are cut.
//
// bf16 lies in pairs along k on all targets: pairs are also the cheapest to widen.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H

#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"

#include "meshwright-c/Runtime.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <functional>
#include <optional>

namespace meshwright::lower {

/// Some consecutive elements of a row of C (or of A), for what is fused into
/// a product.
struct GemmPoint {
  /// Where the first of them lies; the row counts over all of C.
  mlir::Value row, column;
  /// As many as are valid, at most `lanes`, the width of vectors here.
  int64_t count, lanes;
  bool masksBf16;

  /// These elements of a row-major buffer of any shape with `columns` columns,
  /// as f32, zeros behind the valid ones. With `byRow` false the buffer is one
  /// row that all rows share.
  mlir::Value load(mlir::ImplicitLocOpBuilder &builder, mlir::Value buffer, int64_t columns,
                   bool byRow = true) const;
  /// Stores the valid ones of a vector of f32 in such a buffer.
  void store(mlir::ImplicitLocOpBuilder &builder, mlir::Value vector, mlir::Value buffer,
             int64_t columns) const;
};

/// What becomes of elements of A, which may then be of another type in memory,
/// before they are used: f32 vectors to f32 vectors.
using GemmPrologue = std::function<mlir::Value(mlir::ImplicitLocOpBuilder &builder,
                                               mlir::Value vector, const GemmPoint &point)>;
/// Takes sums, with the bias added, instead of their being stored in C: a row of
/// a panel at a time, in f32.
using GemmEpilogue = std::function<void(mlir::ImplicitLocOpBuilder &builder, mlir::Value sums,
                                        const GemmPoint &point)>;

struct GemmSpec {
  /// Of A, B and the bias: f32 or bf16. Sums are f32.
  mlir::Type type;
  mlir::Type resultType;
  int64_t m = 0, n = 0, k = 0;
  bool hasBias = false;
  /// Of each element of C once.
  GemmEpilogue epilogue;
  /// Applied to elements of A, maybe several times to each. What it gives is
  /// rounded to `type`.
  GemmPrologue prologue;
};

/// Whether there is a kernel for this element type.
bool hasGemm(mlir::Type type, const Processor &processor);

/// How a parameter of k x n (`transposed`: stored as n x k) is packed for kernels
/// of this target.
mw_rt_packing choosePacking(mlir::Type type, int64_t k, int64_t n, bool transposed,
                            const Processor &processor);

/// Bytes of a parameter of this element type that is packed so, padding included.
int64_t getPackedBytes(rt::PackingAttr packing, mlir::Type type);

/// Nothing if the region is not a product that there is a kernel for: `nn.linear`
/// alone, or among ops that make the elements it reads, or go on with those it
/// gives, one by one.
std::optional<PackedWeight> getGemmWeight(const KernelRegion &region, const CpuTarget &target);
/// Whether an op may follow a product of this type in its kernel, as far as one
/// sees from the op alone.
bool isEpilogueOp(mlir::Operation *op, mlir::RankedTensorType product);
/// The same for an op ahead of a product that reads `input`.
bool isPrologueOp(mlir::Operation *op, mlir::RankedTensorType input);

/// Steps of k that one copy of A's elements covers: 16 bytes of a row of A.
constexpr int64_t kChunkSteps = 4;
/// Elements along k that are stored side by side.
inline int64_t getGroup(mlir::Type type) { return type.isBF16() ? 2 : 1; }
/// Bytes of an element.
inline int64_t getBytes(mlir::Type type) { return type.getIntOrFloatBitWidth() / 8; }

/// The blocks that a product is cut into.
struct GemmPlan {
  /// Of the tile that is summed in registers: rows, and vectors of `lanes`.
  int64_t tileRows, tileVectors, lanes;
  /// Tiles on top of each other whose part of A is copied at once, and how many
  /// such blocks there are.
  int64_t blockTiles, rowBlocks;
  /// Panels of C, and how many of them the workspace holds sums of.
  int64_t panels, blockPanels;
  /// Steps of k: one for f32, pairs for bf16. In all (rounded up to whole
  /// chunks), and those that are summed at once.
  int64_t steps, blockSteps;
  /// How far ahead weights are fetched into the first cache, and into the second;
  /// 0: not, as where tiles find them in cache, or the processor looks ahead itself.
  int64_t nearSteps, farSteps;
  /// Whether bf16 is multiplied as it is.
  bool dotsPairs;
  /// Whether the target stores parts of vectors of bf16.
  bool masksBf16;

  int64_t items, workspaceBytes, flops, bytes;
};

/// `panel` is that of the packing, whole vectors.
GemmPlan planGemm(const GemmSpec &spec, int64_t panel, const Processor &processor);

/// The buffers of a product; their shapes do not matter, only that they are dense.
struct GemmBuffers {
  mlir::Value a, b, bias, c;
  /// Items begin .. end (indices), and workspace (a memref of i8).
  mlir::Value begin, end, workspace;
};

/// Emits the kernel's body.
void emitGemm(mlir::ImplicitLocOpBuilder &builder, const GemmSpec &spec, const GemmPlan &plan,
              const GemmBuffers &buffers);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_GEMM_H
