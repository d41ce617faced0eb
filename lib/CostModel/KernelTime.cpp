//===- KernelTime.cpp - what kernels cost ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/CostModel/DeviceFile.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;

/// Seconds of bytes by a table, or by the bandwidth of the memory if there is none.
static double getSeconds(const RateTable &table, double bytes, double bandwidth) {
  double rate = table.empty() ? bandwidth : table.getRate(bytes);
  return rate > 0 ? bytes / rate : 0;
}

/// The time of memory traffic and arithmetic of one kernel, which overlap in part where both take about as
/// long.
static double joinTimes(double traffic, double arithmetic) {
  return std::pow(std::pow(traffic, 1.5) + std::pow(arithmetic, 1.5), 1 / 1.5);
}

/// Seconds of a product or of attention.
static double getProductSeconds(const KernelWork &work, const Device &device, int64_t allWeights) {
  const Rates &rates = *device.rates;
  Rates::Type type = work.type.isBF16() ? Rates::BF16 : work.type.isF16() ? Rates::F16 : Rates::F32;
  const RateTable &table = work.kind == KernelWork::Attention
                               ? (work.isGradient ? rates.attentionGradients : rates.attention)[type]
                               : (work.hasWeight ? rates.products : rates.plainProducts)[type];
  double flops = 0;
  for (auto &part : work.flops)
    flops += part.first;
  double rate = table.empty() ? device.getFlops(work.type) : table.getRate(work.rows);
  double seconds = rate > 0 ? work.visible * flops / rate : 0;
  if (work.weightBytes == 0 || rates.weights.empty())
    return seconds;
  // The samples read weights, too, from the memory that holds the weights of a small program.
  double footprint = double(std::max(allWeights, work.weightBytes)), bytes = double(work.weightBytes);
  double more = bytes / rates.weights.getRate(footprint) - bytes / rates.weights.getRate(DeviceFile::kProductWeights);
  double least = table.empty() ? 0 : flops / table.getLargestRate();
  return std::max(least, seconds + more);
}

int64_t CostModel::getKernelTime(const KernelWork &work, int64_t allWeights) const {
  int64_t bytes = work.bytes - work.tableBytes;
  if (!device.rates) {
    int64_t arithmetic = 0;
    for (auto [flops, type] : work.flops)
      arithmetic += getComputeTime(flops, type);
    return std::max(arithmetic, getMemoryTime(bytes));
  }
  const Rates &rates = *device.rates;
  double elements = work.cheapElements * rates.cheapElement + work.costlyElements * rates.costlyElement;
  double seconds = 0;
  switch (work.kind) {
  case KernelWork::Move:
    seconds = getSeconds(rates.moves, double(bytes), device.memoryBandwidth);
    break;
  case KernelWork::Rows:
    seconds = joinTimes(getSeconds(rates.rows, double(bytes), device.memoryBandwidth), elements);
    break;
  case KernelWork::Product:
  case KernelWork::Attention:
    seconds = getProductSeconds(work, device, allWeights) + elements;
    break;
  }
  // Not more than a week: sums of times stay far below 2^63 picoseconds.
  return int64_t(std::ceil(std::min(seconds, 6e5) * 1e12));
}
