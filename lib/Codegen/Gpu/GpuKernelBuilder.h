//===- GpuKernelBuilder.h - kernels of a program, for a GPU -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUKERNELBUILDER_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUKERNELBUILDER_H

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/Gpu/GpuTarget.h"
#include "meshwright/lib/Codegen/KernelWriter.h"
#include "meshwright/lib/Codegen/ProductFusion.h"

namespace meshwright::lower {

class AttentionBlock;
struct AttentionTilePlan;

/// The attribute of a kernel's function with the threads of a block.
constexpr llvm::StringLiteral kThreadsAttr = "threads";
/// The attribute with the least number of blocks that a multiprocessor has to hold at a time.
/// ptxas gives threads all registers that these blocks leave. Without it, ptxas spills some
/// registers to hold more blocks.
constexpr llvm::StringLiteral kBlocksAttr = "blocks";
/// The attribute with the fields of tensor maps, the last arguments before shared memory.
constexpr llvm::StringLiteral kTensorMapsAttr = "tensor_maps";
/// Shared memory is in this address space.
constexpr unsigned kSharedSpace = 3;
/// The bytes of shared memory that a kernel may declare. If it needs more, the launch states them
/// (`KernelInfo::workspaceBytes`).
constexpr int64_t kMostStaticShared = 48 << 10;

/// Writes kernels as functions
///
///   @kernel(%input0: memref<...>, ..., %output0: memref<...>, ..., %shared: memref<Nxi8, 3>)
///   attributes {threads = N}
///
/// (with the fault word, scratch memory and tensor maps, each memref<128xi8>, before %shared)
///
/// in which all threads of all blocks do all of the work. Buffers have the order of
/// `KernelInfo`, whose `items` are blocks and whose `grain` is the threads of a block.
/// `%shared`, if there is one, is the block's shared memory.
class GpuKernelBuilder : public KernelBuilder {
public:
  GpuKernelBuilder(mlir::MLIRContext *context, const GpuTarget &target)
      : target(target), writer(context) {}

  std::optional<KernelInfo> build(rt::KernelOp launch) override;
  std::vector<KernelSource> takeSources() override { return writer.takeSources(); }

private:
  /// Launches of nn.attention, of nn.paged_attention, and of nn.merge_attention.
  std::optional<KernelInfo> buildAttention(rt::KernelOp launch);
  std::optional<KernelInfo> buildPagedAttention(rt::KernelOp launch);
  /// Writes the kernel of an emitter. `info` has the inputs and the tensor maps.
  KernelInfo buildTiles(rt::KernelOp launch, AttentionBlock &emitter, const AttentionTilePlan &plan, KernelInfo info);
  std::optional<KernelInfo> buildMerge(rt::KernelOp launch);
  /// Launches that compute rows.
  std::optional<KernelInfo> buildRows(rt::KernelOp launch);
  /// Launches that reduce other dimensions.
  std::optional<KernelInfo> buildColumns(rt::KernelOp launch);
  /// Launches that read rows or elements by index.
  std::optional<KernelInfo> buildIndices(rt::KernelOp launch);
  /// Launches that sum rows or elements by index.
  std::optional<KernelInfo> buildScatterAdd(rt::KernelOp launch);
  /// Launches of nn.top_k, nn.limit and nn.route, and of ops that move or sum rows of experts.
  std::optional<KernelInfo> buildTopK(rt::KernelOp launch);
  std::optional<KernelInfo> buildLimit(rt::KernelOp launch);
  std::optional<KernelInfo> buildRoute(rt::KernelOp launch);
  std::optional<KernelInfo> buildExpertRows(rt::KernelOp launch);
  /// Products that the library does not perform.
  std::optional<KernelInfo> buildProduct(rt::KernelOp launch);

  /// Begins a kernel on these values' flat buffers. Arguments state the alignment that
  /// buffers have in the program. `hasFault` adds the launch's fault word, of type memref<1xi64>,
  /// and `scratchBytes` scratch memory, of type memref<Nxi8>.
  mlir::func::FuncOp begin(rt::KernelOp launch, llvm::ArrayRef<mlir::Value> inputs,
                           int64_t sharedBytes, int64_t threads, bool hasFault = false,
                           llvm::ArrayRef<mw_rt_tensor_map> tensorMaps = {},
                           int64_t scratchBytes = 0);

  const GpuTarget &target;
  KernelWriter writer;
};

/// Returns true if a generated kernel, rather than the library, multiplies so many rows.
bool hasFewRows(mlir::RankedTensorType product);
/// The ops after the product of a region that one kernel computes, none of them before it. Returns
/// none if there is no such kernel.
std::optional<ProductFusion> planGpuProduct(const KernelRegion &region, const GpuTarget &target);

/// If the numbers of an input count the rows of the launch's results, adds that input last, and says so. Returns
/// false for results whose rows are all computed: integers are, because lookups read them.
bool addCounter(KernelInfo &info, rt::KernelOp launch);

/// The op of a launch that has one op; null for others.
mlir::Operation *getSingleOp(rt::KernelOp launch);

/// The bytes that the address of a value of the program is a multiple of. A view may begin within
/// the buffer of another value.
int64_t getAlignment(mlir::Value value);

/// The columns that one thread computes together, in a kernel of rows: accesses have 16 bytes
/// where the sizes of the program allow it. 0 if that would separate pairs of a rotary op.
int64_t getRowWidth(const KernelRegion &region, const RowPlan &plan);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUKERNELBUILDER_H
