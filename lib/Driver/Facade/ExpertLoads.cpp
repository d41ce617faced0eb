//===- ExpertLoads.cpp - the load of experts in reports -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/ExpertLoads.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <algorithm>

using namespace meshwright;

void meshwright::setExperts(Report &report, mlir::FunctionOpInterface entry,
                            llvm::ArrayRef<rt::ExpertLoad> loads) {
  report.experts.clear();
  if (loads.empty() || !entry || entry.isExternal())
    return;
  auto routings = nn::getRoutings(entry.getFunctionBody().front());
  for (const rt::ExpertLoad &load : loads) {
    Report::Experts &layer = report.experts.emplace_back();
    if (load.layer < int64_t(routings.size()))
      layer.location = getSourceLocation(routings[load.layer].second->getLoc());
    layer.rowsPerRank = load.rowsPerRank;
    layer.fullestExpert = std::max_element(load.rowsPerExpert.begin(), load.rowsPerExpert.end()) -
                          load.rowsPerExpert.begin();
    layer.dropped = load.dropped;
  }
}
