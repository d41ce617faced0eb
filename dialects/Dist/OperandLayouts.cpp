//===- OperandLayouts.cpp - layouts that an op states of operands ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

static StatedDims spellOut(ShardingAttr sharding, MeshAttr mesh) {
  StatedDims dims;
  for (DimShardingAttr dim : sharding.getDims()) {
    std::optional<DimLayout> &own = dims.emplace_back();
    if (dim.getIsOpen())
      continue;
    Layout layout;
    DimLayout &only = layout.dims.emplace_back();
    for (FactorShardingAttr factor : dim.getFactors())
      only.factors.push_back(getFactor(factor, mesh));
    canonicalize(layout, mesh);
    own = layout.dims.front();
  }
  return dims;
}

/// Checks that
/// - there is an entry for each operand, a sharding or a unit attribute;
/// - each factor of a dimension that is not open states its size, and divides over its shards;
/// - the sharding is on the mesh of the SPMD function that has the op;
/// - it gives the operand its local shape, and leaves it reduced.
LogicalResult dist::verifyOperandLayouts(Operation *op, Attribute attr) {
  auto func = op->getParentOfType<FunctionOpInterface>();
  auto symbol = func ? func->getAttrOfType<FlatSymbolRefAttr>(DistDialect::kSpmdAttr) : nullptr;
  if (!symbol)
    return op->emitOpError() << "'dist.operands' on an op of no SPMD function";
  auto list = dyn_cast<ArrayAttr>(attr);
  if (!list || list.size() != op->getNumOperands())
    return op->emitOpError() << "'dist.operands': expected a list of " << op->getNumOperands()
                             << " shardings, got " << attr;
  for (auto [i, entry] : llvm::enumerate(list)) {
    if (isa<UnitAttr>(entry))
      continue;
    auto fail = [&, i = i] {
      return op->emitOpError() << "'dist.operands': operand " << i << ": ";
    };
    auto sharding = dyn_cast<ShardingAttr>(entry);
    if (!sharding)
      return fail() << "expected a sharding, got " << entry;
    MeshAttr mesh = lookupMesh(op, symbol);
    if (!mesh || sharding.getMesh() != symbol)
      return fail() << "expected a sharding on @" << symbol.getValue();
    if (failed(sharding.verifyForMesh(mesh, fail)))
      return failure();
    for (DimShardingAttr dim : sharding.getDims())
      for (FactorShardingAttr factor : dim.getFactors()) {
        if (dim.getIsOpen() && !factor.getAxes().empty())
          return fail() << "expected no axes of an open dimension";
        if (dim.getIsOpen())
          continue;
        LayoutFactor own = getFactor(factor, mesh);
        if (factor.getSize() <= 0)
          return fail() << "expected a size of each factor, as in (8{\"dp\"})";
        if (own.padded < own.size || own.padded % getNumShards(own.axes) != 0)
          return fail() << "a factor of size " << own.size << " padded to " << own.padded
                        << " does not divide over " << getNumShards(own.axes) << " shards";
      }
    auto type = dyn_cast<RankedTensorType>(op->getOperand(i).getType());
    StatedDims stated = spellOut(sharding, mesh);
    bool fits = type && type.getRank() == int64_t(stated.size());
    for (size_t d = 0; fits && d < stated.size(); ++d)
      fits = !stated[d] || stated[d]->getLocalSize() == type.getDimSize(d);
    if (!fits)
      return fail() << "expected a sharding of " << op->getOperand(i).getType();
    if (!sharding.getUnreduced().empty())
      return fail() << "expected no unreduced axes";
  }
  return success();
}

StatedDims dist::getStatedDims(Operation *op, unsigned operand, MeshAttr mesh) {
  auto list = op->getAttrOfType<ArrayAttr>(kOperandsAttr);
  auto sharding = list ? dyn_cast<ShardingAttr>(list[operand]) : ShardingAttr();
  return sharding ? spellOut(sharding, mesh) : StatedDims();
}

void dist::stateLayout(Operation *op, unsigned operand, const Layout &layout,
                       const llvm::SmallBitVector &stated, FlatSymbolRefAttr symbol,
                       MeshAttr mesh) {
  MLIRContext *context = op->getContext();
  SmallVector<Attribute> entries(op->getNumOperands(), UnitAttr::get(context));
  if (auto list = op->getAttrOfType<ArrayAttr>(kOperandsAttr))
    llvm::copy(list, entries.begin());
  SmallVector<DimShardingAttr> dims;
  for (auto [d, dim] : llvm::enumerate(layout.dims)) {
    SmallVector<FactorShardingAttr> factors;
    if (stated.test(d))
      for (const LayoutFactor &factor : dim.factors)
        factors.push_back(getFactorAttr(factor, mesh));
    dims.push_back(DimShardingAttr::get(context, factors, /*isOpen=*/!stated.test(d)));
  }
  entries[operand] = ShardingAttr::get(context, symbol, dims, {}, ReductionKind::Sum);
  op->setAttr(kOperandsAttr, ArrayAttr::get(context, entries));
}
