//===- Shards.cpp - the elements of a tensor that each rank holds ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Report/Report.h"

#include "mlir/IR/Diagnostics.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Ranks and elements of a dimension beyond which shards are not listed.
static constexpr int64_t kMostRanks = 64, kMostElements = 1 << 20;

/// The elements of one factor that a rank holds, in their order.
static std::vector<int64_t> getElements(const LayoutFactor &factor, int64_t coordinate) {
  std::vector<int64_t> elements;
  int64_t local = factor.getLocalSize(), chunks = getNumShards(factor.axes);
  int64_t first = ((coordinate - factor.shift) % chunks + chunks) % chunks * local;
  for (int64_t slot = first; slot < first + local; ++slot)
    if (int64_t token = getTokenInSlot(factor.order, factor.orderRanks, factor.size, factor.padded, slot); token >= 0)
      elements.push_back(token);
  return elements;
}

/// The elements of a dimension that a rank holds, as ranges. None for a dimension that is too long.
static std::optional<ElementRanges> getRanges(const DimLayout &dim, int64_t rank, MeshAttr mesh) {
  if (dim.factors.size() == 1 && dim.factors.front().isContiguous()) {
    const LayoutFactor &factor = dim.factors.front();
    int64_t local = factor.getLocalSize();
    int64_t begin = std::min(getCoordinate(rank, factor.axes, mesh) * local, factor.size);
    int64_t end = std::min(begin + local, factor.size);
    return end > begin ? ElementRanges{{begin, end}} : ElementRanges{};
  }
  if (dim.getGlobalSize() > kMostElements)
    return std::nullopt;
  std::vector<int64_t> elements{0};
  for (const LayoutFactor &factor : dim.factors) {
    std::vector<int64_t> inner = getElements(factor, getCoordinate(rank, factor.axes, mesh)), joined;
    for (int64_t outer : elements)
      for (int64_t element : inner)
        joined.push_back(outer * factor.size + element);
    elements = std::move(joined);
  }
  llvm::sort(elements);
  ElementRanges ranges;
  for (int64_t element : elements) {
    if (ranges.empty() || ranges.back().second != element)
      ranges.emplace_back(element, element);
    ranges.back().second = element + 1;
  }
  return ranges;
}

void meshwright::addShards(FunctionOpInterface function, std::vector<TensorLayout> &layouts) {
  MeshAttr mesh = getSpmdMesh(function);
  if (!mesh || mesh.getNumRanks() > kMostRanks)
    return;
  ScopedDiagnosticHandler ignored(function->getContext(), [](mlir::Diagnostic &) { return success(); });
  for (TensorLayout &layout : layouts) {
    auto sharding = function.getArgAttrOfType<ShardingAttr>(layout.argument, DistDialect::kShardingAttr);
    auto global = function.getArgAttrOfType<TypeAttr>(layout.argument, DistDialect::kGlobalAttr);
    auto local = dyn_cast<RankedTensorType>(function.getArgument(layout.argument).getType());
    if (!sharding || !global || !local)
      continue;
    auto whole = cast<RankedTensorType>(global.getValue());
    FailureOr<Layout> known = getLayout(sharding, mesh, whole.getShape(), local.getShape(), Padding::Arbitrary,
                                        [&] { return function.emitError(); });
    for (int64_t rank = 0; succeeded(known) && rank < mesh.getNumRanks(); ++rank) {
      std::vector<std::optional<ElementRanges>> &dims = layout.shards.emplace_back();
      for (const DimLayout &dim : known->dims)
        dims.push_back(getRanges(dim, rank, mesh));
    }
  }
}
