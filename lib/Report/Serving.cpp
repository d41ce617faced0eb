//===- Serving.cpp - reports on programs that serve -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Serving.h"

#include "Report.h"

#include "meshwright/dialects/Dist/DpAttention.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/CostModel/ProgramCost.h"

using namespace mlir;
using namespace meshwright;

/// The global shape of the input of that name; empty if there is none.
static ArrayRef<int64_t> getInputShape(FunctionOpInterface function, StringRef name) {
  for (unsigned i = 0; i < function.getNumArguments(); ++i) {
    auto input = function.getArgAttrOfType<StringAttr>(i, nn::NnDialect::kInputAttr);
    if (!input || input.getValue() != name)
      continue;
    Type type = function.getArgumentTypes()[i];
    if (auto global = function.getArgAttrOfType<TypeAttr>(i, dist::DistDialect::kGlobalAttr))
      type = global.getValue();
    return cast<RankedTensorType>(type).getShape();
  }
  return {};
}

std::optional<ServingReport> meshwright::buildServingReport(FunctionOpInterface function,
                                                            int64_t cacheBytes) {
  auto module = function->getParentOfType<ModuleOp>();
  std::optional<ServingSizes> sizes;
  if (module)
    sizes = nn::getServingSizes(module);
  if (!sizes)
    return std::nullopt;
  ServingReport report;
  report.sizes = *sizes;
  report.bytesPerToken = cacheBytes / (sizes->pages * sizes->pageSize);
  for (auto meshOp : module.getOps<dist::MeshOp>())
    if (std::optional<dist::DpAttention> groups = dist::getDpAttention(meshOp)) {
      report.denseTp = groups->denseTp;
      report.hasOwnHead = groups->hasOwnHead;
    } else {
      // Each group is one of data parallelism, whose ranks share all layers.
      report.denseTp = meshOp.getMesh().getNumRanks() / sizes->groups;
    }
  for (FunctionOpInterface entry : nn::getEntries(module)) {
    ArrayRef<int64_t> tokens = getInputShape(entry, "tokens");
    dist::MeshAttr mesh = dist::getSpmdMesh(entry);
    if (tokens.size() != 2 || !mesh)
      continue;
    ProgramCost cost = getProgramCost(entry, CostModel(mesh));
    report.entries.push_back({entry.getName().str(), tokens[1], tokens[0] * tokens[1], cost.bytes,
                              double(cost.getTime()) * 1e-12});
  }
  return report;
}
