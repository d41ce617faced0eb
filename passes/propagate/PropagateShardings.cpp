//===- PropagateShardings.cpp - a sharding for every value ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/ShardingPropagation.h"
#include "meshwright/passes/propagate/Passes.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_PROPAGATESHARDINGSPASS
#include "meshwright/passes/propagate/Passes.h.inc"
} // namespace meshwright

/// Logs annotations that disagree, once for each pair of places.
static void reportConflicts(ArrayRef<ShardingPropagation::Conflict> conflicts, MeshAttr mesh) {
  if (conflicts.empty())
    return;
  llvm::DenseSet<std::pair<const void *, const void *>> said;
  DecisionLog &log = DistDialect::getDecisionLog(mesh.getContext());
  for (const auto &conflict : conflicts) {
    if (!said.insert({conflict.firstOrigin.getAsOpaquePointer(),
                      conflict.secondOrigin.getAsOpaquePointer()})
             .second)
      continue;
    SourceLocation first = getSourceLocation(conflict.firstOrigin);
    SourceLocation second = getSourceLocation(conflict.secondOrigin);
    auto place = [](const SourceLocation &where) {
      return llvm::formatv("{0} ({1}:{2})", where.name, where.file, where.line).str();
    };
    log.add("propagate-shardings", Outcome::Note, conflict.op->getLoc(),
            llvm::formatv("conflicting shardings of one dimension: {0} from {1}, {2} from {3}; "
                          "one of them is resharded here",
                          toString(conflict.firstAxes, mesh), place(first),
                          toString(conflict.secondAxes, mesh), place(second))
                .str());
  }
}

namespace {
struct PropagateShardingsPass
    : meshwright::impl::PropagateShardingsPassBase<PropagateShardingsPass> {
  void runOnOperation() override {
    markAnalysesPreserved<SharedFactorAnalysis>();
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    auto symbol = FlatSymbolRefAttr::get(*meshOp);
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      auto shardings = ShardingPropagation::run(func, *factors, mesh);
      if (failed(shardings))
        return signalPassFailure();
      reportConflicts(shardings->getConflicts(), mesh);
      auto write = [&](Value value) {
        ShardingAttr attr = writeSharding(shardings->get(value), value, *factors, mesh, symbol);
        // A partial sum that the user declares stays one.
        ShardingAttr declared = getShardingAttr(value);
        if (declared && !declared.getUnreduced().empty())
          attr = ShardingAttr::get(attr.getContext(), attr.getMesh(), attr.getDims(),
                                   declared.getUnreduced(), declared.getReduction());
        return attr;
      };
      Block &block = func.getBody().front();
      SmallVector<Attribute> arguments;
      for (BlockArgument arg : block.getArguments())
        arguments.push_back(write(arg));
      setArgumentAttrs(func, DistDialect::kShardingAttr, arguments);
      for (Operation &op : block.without_terminator())
        for (Value value : op.getResults())
          setShardingAttr(value, write(value));
      for (auto [i, value] : llvm::enumerate(block.getTerminator()->getOperands()))
        if (!func.getResultAttr(i, DistDialect::kShardingAttr))
          func.setResultAttr(i, DistDialect::kShardingAttr, write(value));
    }
  }
};
} // namespace
