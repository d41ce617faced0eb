//===- ExpertLoads.cpp - the load of experts in reports -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/ExpertLoads.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

using namespace meshwright;

static void add(std::vector<int64_t> &sums, const std::vector<int64_t> &numbers) {
  sums.resize(std::max(sums.size(), numbers.size()));
  std::transform(numbers.begin(), numbers.end(), sums.begin(), sums.begin(), std::plus<>());
}

void meshwright::setExperts(Report &report, mlir::FunctionOpInterface entry,
                            llvm::ArrayRef<rt::ExpertLoad> loads) {
  report.experts.clear();
  if (loads.empty() || !entry || entry.isExternal())
    return;
  auto routings = nn::getRoutings(entry.getFunctionBody().front());
  // Chunks of the tokens of a layer have numbers that differ by the number of layers.
  std::map<int64_t, rt::ExpertLoad> layers;
  for (const rt::ExpertLoad &load : loads) {
    rt::ExpertLoad &layer = layers[routings.empty() ? load.layer : load.layer % int64_t(routings.size())];
    add(layer.rowsPerRank, load.rowsPerRank);
    add(layer.rowsPerExpert, load.rowsPerExpert);
    layer.dropped += load.dropped;
  }
  for (const auto &[number, load] : layers) {
    Report::Experts &layer = report.experts.emplace_back();
    if (number < int64_t(routings.size()))
      layer.location = getSourceLocation(routings[number].second->getLoc());
    layer.rowsPerRank = load.rowsPerRank;
    layer.fullestExpert = std::max_element(load.rowsPerExpert.begin(), load.rowsPerExpert.end()) -
                          load.rowsPerExpert.begin();
    layer.dropped = load.dropped;
  }
}
