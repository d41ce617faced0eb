//===- IndexBound.cpp - what may index tables -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Launches/IndexBound.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;

namespace meshwright {

static int64_t getBound(Value value, int depth) {
  int64_t bound = 0;
  auto add = [&](int64_t rows) { bound = bound == 0 || rows < bound ? rows : bound; };
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    auto rowsOf = [](Value table, int64_t dim) {
      // A table that is sharded by rows has more rows than the local one.
      if (auto argument = dyn_cast<BlockArgument>(rt::getSource(table)))
        if (auto main = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp()))
          if (auto global = main.getArgAttrOfType<TypeAttr>(argument.getArgNumber(),
                                                            dist::DistDialect::kGlobalAttr))
            return cast<RankedTensorType>(global.getValue()).getDimSize(dim);
      return cast<RankedTensorType>(table.getType()).getDimSize(dim);
    };
    if (auto lookup = dyn_cast<dist::LookupOpInterface>(user)) {
      if (use.getOperandNumber() != lookup.getIndexOperand())
        continue;
      std::optional<int64_t> rows =
          lookup.takesOffset() ? nn::getTableRows(lookup) : std::nullopt;
      add(rows ? *rows : rowsOf(lookup.getTable(), lookup.getTableDim()));
    } else if (isa<rt::KernelOp, rt::StartOp>(user)) {
      Value inside = user->getRegion(0).getArgument(use.getOperandNumber());
      if (int64_t rows = getBound(inside, depth))
        add(rows);
    } else if (isa<rt::YieldOp>(user)) {
      Operation *launch = user->getParentOp();
      if (auto start = dyn_cast<rt::StartOp>(launch))
        launch = *start.getFuture().getUsers().begin();
      if (int64_t rows = getBound(launch->getResult(use.getOperandNumber()), depth + 1))
        add(rows);
    } else if (depth < 8 &&
               (user->hasTrait<dist::Reindexes>() || isa<nn::CastOp>(user) ||
                user->getName().getDialectNamespace() == "dist")) {
      for (Value result : user->getResults())
        if (int64_t rows = getBound(result, depth + 1))
          add(rows);
    }
  }
  return bound;
}

int64_t getIndexBound(Value value) { return getBound(value, 0); }

} // namespace meshwright
