//===- OperandLayouts.cpp - layouts that an op states ---------------------===//
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
/// - there is an entry for each operand or result, a sharding or a unit attribute;
/// - each factor of a dimension that is not open states its size, and divides over its shards;
/// - the sharding is on the mesh of the SPMD function that has the op;
/// - it gives the value its local shape, and leaves it reduced.
LogicalResult dist::verifyStatedLayouts(Operation *op, NamedAttribute attr) {
  bool ofResults = attr.getName() == kResultsAttr;
  StringRef name = attr.getName(), noun = ofResults ? "result" : "operand";
  TypeRange types = ofResults ? TypeRange(op->getResultTypes()) : TypeRange(op->getOperandTypes());
  auto func = op->getParentOfType<FunctionOpInterface>();
  auto symbol = func ? func->getAttrOfType<FlatSymbolRefAttr>(DistDialect::kSpmdAttr) : nullptr;
  if (!symbol)
    return op->emitOpError() << "'" << name << "' on an op of no SPMD function";
  auto list = dyn_cast<ArrayAttr>(attr.getValue());
  if (!list || list.size() != types.size())
    return op->emitOpError() << "'" << name << "': expected a list of " << types.size()
                             << " shardings, got " << attr.getValue();
  for (auto [i, entry] : llvm::enumerate(list)) {
    if (isa<UnitAttr>(entry))
      continue;
    auto fail = [&, i = i] {
      return op->emitOpError() << "'" << name << "': " << noun << " " << i << ": ";
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
    auto type = dyn_cast<RankedTensorType>(types[i]);
    StatedDims stated = spellOut(sharding, mesh);
    bool fits = type && type.getRank() == int64_t(stated.size());
    for (size_t d = 0; fits && d < stated.size(); ++d)
      fits = !stated[d] || stated[d]->getLocalSize() == type.getDimSize(d);
    if (!fits)
      return fail() << "expected a sharding of " << types[i];
    if (!sharding.getUnreduced().empty())
      return fail() << "expected no unreduced axes";
  }
  return success();
}

static StatedDims getStated(Operation *op, StringRef name, unsigned index, MeshAttr mesh) {
  auto list = op->getAttrOfType<ArrayAttr>(name);
  auto sharding = list ? dyn_cast<ShardingAttr>(list[index]) : ShardingAttr();
  return sharding ? spellOut(sharding, mesh) : StatedDims();
}

StatedDims dist::getStatedDims(Operation *op, unsigned operand, MeshAttr mesh) {
  return getStated(op, kOperandsAttr, operand, mesh);
}

StatedDims dist::getStatedResult(Operation *op, unsigned result, MeshAttr mesh) {
  return getStated(op, kResultsAttr, result, mesh);
}

/// Sets the entry of a value, one of `count`.
static void state(Operation *op, StringRef name, unsigned index, unsigned count,
                  const Layout &layout, const llvm::SmallBitVector &stated,
                  FlatSymbolRefAttr symbol, MeshAttr mesh) {
  MLIRContext *context = op->getContext();
  SmallVector<Attribute> entries(count, UnitAttr::get(context));
  if (auto list = op->getAttrOfType<ArrayAttr>(name))
    llvm::copy(list, entries.begin());
  SmallVector<DimShardingAttr> dims;
  for (auto [d, dim] : llvm::enumerate(layout.dims)) {
    SmallVector<FactorShardingAttr> factors;
    if (stated.test(d))
      for (const LayoutFactor &factor : dim.factors)
        factors.push_back(getFactorAttr(factor, mesh));
    dims.push_back(DimShardingAttr::get(context, factors, /*isOpen=*/!stated.test(d)));
  }
  entries[index] = ShardingAttr::get(context, symbol, dims, {}, ReductionKind::Sum);
  op->setAttr(name, ArrayAttr::get(context, entries));
}

void dist::stateLayout(Operation *op, unsigned operand, const Layout &layout,
                       const llvm::SmallBitVector &stated, FlatSymbolRefAttr symbol,
                       MeshAttr mesh) {
  state(op, kOperandsAttr, operand, op->getNumOperands(), layout, stated, symbol, mesh);
}

void dist::stateResult(Operation *op, unsigned result, const Layout &layout,
                       const llvm::SmallBitVector &stated, FlatSymbolRefAttr symbol,
                       MeshAttr mesh) {
  state(op, kResultsAttr, result, op->getNumResults(), layout, stated, symbol, mesh);
}
