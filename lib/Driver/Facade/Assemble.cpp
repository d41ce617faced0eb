//===- Assemble.cpp - global values from local values ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/Assemble.h"

#include <limits>
#include <map>

using namespace meshwright;
using namespace meshwright::dist;

/// Returns, for each index of a local dimension, the index of the global dimension, or -1 for
/// padding. `coordinates` has the rank's coordinate along the axes of each factor.
static std::vector<int64_t> getGlobalIndices(const DimLayout &dim,
                                             llvm::ArrayRef<int64_t> coordinates) {
  std::vector<int64_t> indices{0};
  for (auto [factor, coordinate] : llvm::zip_equal(dim.factors, coordinates)) {
    int64_t local = factor.getLocalSize();
    std::vector<int64_t> next;
    next.reserve(indices.size() * local);
    for (int64_t index : indices)
      for (int64_t i = 0; i < local; ++i) {
        int64_t row = coordinate * local + i;
        next.push_back(index < 0 || row >= factor.size ? -1 : index * factor.size + row);
      }
    indices = std::move(next);
  }
  return indices;
}

std::vector<std::vector<double>> meshwright::assemble(const Layout &layout, MeshAttr mesh,
                                                      rt::DType type,
                                                      llvm::ArrayRef<std::vector<char>> locals) {
  int64_t count = 1;
  for (const DimLayout &dim : layout.dims)
    count *= dim.getGlobalSize();
  bool isMaximum = layout.getReduction() == ReductionKind::Max;
  double neutral = isMaximum ? -std::numeric_limits<double>::infinity() : 0.0;

  std::vector<std::vector<double>> results;
  // Ranks with the same coordinates along all axes of the layout hold equal parts. The n-th of
  // them contributes to the n-th result.
  std::map<std::vector<int64_t>, size_t> replicas;
  for (size_t rank = 0; rank < locals.size(); ++rank) {
    std::vector<int64_t> key;
    std::vector<std::vector<int64_t>> indices;
    for (const DimLayout &dim : layout.dims) {
      llvm::SmallVector<int64_t> coordinates;
      for (const LayoutFactor &factor : dim.factors)
        coordinates.push_back(getCoordinate(rank, factor.axes, mesh));
      key.insert(key.end(), coordinates.begin(), coordinates.end());
      indices.push_back(getGlobalIndices(dim, coordinates));
    }
    key.push_back(getCoordinate(rank, layout.getUnreduced(), mesh));
    size_t replica = replicas[key]++;
    if (replica == results.size())
      results.emplace_back(count, neutral);
    std::vector<double> &result = results[replica];

    // Visit the local value in row-major order. `position` is the current index.
    std::vector<size_t> position(indices.size(), 0);
    int64_t numElements = 1;
    for (const std::vector<int64_t> &dim : indices)
      numElements *= dim.size();
    for (int64_t local = 0; local < numElements; ++local) {
      int64_t global = 0;
      for (size_t d = 0; d < indices.size() && global >= 0; ++d) {
        int64_t index = indices[d][position[d]];
        global = index < 0 ? -1 : global * layout.dims[d].getGlobalSize() + index;
      }
      if (global >= 0) {
        double value = rt::loadAsDouble(type, locals[rank].data(), local);
        if (isMaximum)
          result[global] = std::max(result[global], value);
        else
          result[global] += value;
      }
      for (size_t d = indices.size(); d-- > 0;) {
        if (++position[d] < indices[d].size())
          break;
        position[d] = 0;
      }
    }
  }
  return results;
}
