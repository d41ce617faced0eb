//===- GemmPlan.cpp - how a matrix product is cut into blocks -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/Gemm.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <cmath>

using namespace mlir;
using llvm::divideCeil;

namespace meshwright::lower {

/// The most steps of k that f32 sums one by one. Products of at most `kFewRows` rows wait for their
/// weights, so that shorter sums, which are more exact, cost no time: as many as there are sums.
static int64_t getExactSteps(int64_t rows, int64_t steps) {
  constexpr int64_t kMostSteps = 128, kLeastSteps = 16, kFewRows = 3;
  if (rows > kFewRows)
    return kMostSteps;
  auto root = static_cast<int64_t>(std::sqrt(double(steps)));
  return std::clamp(llvm::alignTo(root, kChunkSteps), uint64_t(kLeastSteps), uint64_t(kMostSteps));
}

bool hasGemm(Type type, const Processor &processor) {
  return processor.hasFma && (type.isF32() || type.isBF16());
}

namespace {
/// Sizes of blocks for a processor, found by measurement (`bench/gemm.py`).
struct BlockSizes {
  /// Columns of a panel, in vectors.
  int64_t panelVectors;
  /// Rows of the tallest tile, for products with one tile and with several.
  int64_t onlyTileRows, tileRows;
  /// Multiplications by each vector of weights from which on kernels prefetch weights. With
  /// fewer, the processor's own prefetching suffices.
  int64_t busyProducts;
  /// Bytes of a panel of B that stay in cache while tiles go down the rows.
  int64_t panelBytes;
  /// Rows of A that are copied at once, and columns of C whose sums the workspace holds.
  int64_t blockRows, blockColumns;
};
} // namespace

static BlockSizes getBlockSizes(const Processor &processor) {
  if (processor.numVectorRegisters >= 32)
    return {/*panelVectors=*/2,   /*onlyTileRows=*/14,      /*tileRows=*/8,
            /*busyProducts=*/6,   /*panelBytes=*/128 << 10, /*blockRows=*/512,
            /*blockColumns=*/4096};
  return {/*panelVectors=*/2,   /*onlyTileRows=*/6,      /*tileRows=*/6,
          /*busyProducts=*/3,   /*panelBytes=*/64 << 10, /*blockRows=*/240,
          /*blockColumns=*/4096};
}

mw_rt_packing choosePacking(Type type, int64_t k, int64_t n, bool transposed,
                            const Processor &processor) {
  mw_rt_packing packing = {};
  packing.stored = packing.dtype = type.isBF16() ? MW_BF16 : MW_F32;
  packing.batch = 1;
  packing.k = k;
  packing.n = n;
  packing.transposed = transposed;
  packing.panel = getBlockSizes(processor).panelVectors * processor.getLanes();
  packing.group = getGroup(type);
  return packing;
}

GemmPlan planGemm(const GemmSpec &spec, int64_t columns, const Processor &processor) {
  BlockSizes sizes = getBlockSizes(processor);
  GemmPlan plan;
  plan.lanes = processor.getLanes();
  plan.tileVectors = columns / plan.lanes;
  plan.dotsPairs = spec.type.isBF16() && processor.hasBf16Dot && processor.vectorBytes == 64;

  plan.masksBf16 = processor.hasBf16Conversion;

  // Tiles have equal heights, so that the last one wastes little. Besides the sums,
  // registers hold a step of B and an element of A. Widened bf16 takes two steps of B and a
  // mask.
  bool widens = spec.type.isBF16() && !plan.dotsPairs;
  int64_t others = widens ? 2 * plan.tileVectors : plan.tileVectors + 1;
  int64_t fitting = std::max<int64_t>(1, (processor.numVectorRegisters - others) / plan.tileVectors);
  // Experts have about as many rows each.
  int64_t expected = spec.experts ? divideCeil(spec.m, spec.experts) : spec.m;
  bool isOnlyTile = !spec.experts && spec.m <= std::min(fitting, sizes.onlyTileRows);
  int64_t rows = std::min(fitting, isOnlyTile ? sizes.onlyTileRows : sizes.tileRows);
  plan.tileRows = spec.experts ? std::min(rows, expected)
                               : divideCeil(spec.m, divideCeil(spec.m, rows));
  int64_t tiles = divideCeil(spec.m, plan.tileRows);
  plan.rowBlocks = divideCeil(tiles, std::max<int64_t>(1, sizes.blockRows / plan.tileRows));
  plan.blockTiles = divideCeil(tiles, plan.rowBlocks);
  plan.rowBlocks = divideCeil(tiles, plan.blockTiles);

  plan.panels = divideCeil(spec.n, columns);
  plan.blockPanels = std::min(plan.panels, std::max<int64_t>(1, sizes.blockColumns / columns));

  int64_t group = getGroup(spec.type);
  plan.steps = llvm::alignTo(divideCeil(spec.k, group), kChunkSteps);
  plan.exactSteps = getExactSteps(expected, plan.steps);
  // One or two tiles gain nothing from blocks of k, as they read weights about once.
  int64_t stepBytes = columns * group * getBytes(spec.type);
  plan.blockSteps = plan.steps;
  plan.nearSteps = plan.farSteps = plan.aheadLines = 0;
  // With little arithmetic, loads run ahead and the processor prefetches by itself; further
  // prefetches would only delay the loads. More arithmetic delays the loads. Memory is then
  // busy only if a kernel prefetches more lines than the first cache has requests for.
  int64_t products = widens ? 2 * plan.tileRows + 1 : plan.tileRows;
  if (spec.experts && products >= sizes.busyProducts) {
    // Each panel comes from memory, and is used for a few tiles only.
    int64_t lines = kChunkSteps * stepBytes / 64;
    plan.aheadLines = divideCeil(lines, divideCeil(expected, plan.tileRows));
  } else if (tiles <= 2 && products >= sizes.busyProducts) {
    plan.nearSteps = (2 << 10) / stepBytes;
    plan.farSteps = (32 << 10) / stepBytes;
  }
  if (tiles > 2) {
    int64_t blocks = divideCeil(plan.steps, sizes.panelBytes / stepBytes);
    plan.blockSteps = llvm::alignTo(divideCeil(plan.steps, blocks), kChunkSteps);
  }

  plan.items = spec.experts ? plan.panels : plan.rowBlocks * plan.panels;
  int64_t stepSize = widens ? 8 : 4;
  plan.workspaceBytes =
      llvm::alignTo(plan.blockTiles * plan.tileRows * plan.blockSteps * stepSize, 64);
  // Sums between blocks of k, or the sums of a tile for the epilogue.
  if (plan.blockSteps < plan.steps)
    plan.workspaceBytes += plan.blockPanels * plan.blockTiles * plan.tileRows * columns * 4;
  else if (spec.epilogue)
    plan.workspaceBytes += plan.tileRows * columns * 4;
  int64_t size = getBytes(spec.type);
  plan.flops = 2 * spec.m * spec.n * spec.k;
  int64_t matrices = std::max<int64_t>(spec.experts, 1);
  plan.bytes = (spec.m * spec.k + matrices * spec.k * spec.n + (spec.hasBias ? spec.n : 0)) * size +
               spec.m * spec.n * getBytes(spec.resultType);
  return plan;
}

} // namespace meshwright::lower
