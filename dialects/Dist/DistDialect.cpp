//===- DistDialect.cpp - the dist dialect ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/DpAttention.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Dist/OperandLayouts.h"

using namespace mlir;
using namespace meshwright::dist;

#include "meshwright/dialects/Dist/DistDialect.cpp.inc"
#include "meshwright/dialects/Dist/DistAttrInterfaces.cpp.inc"
#include "meshwright/dialects/Dist/DistInterfaces.cpp.inc"

void DistDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "meshwright/dialects/Dist/DistOps.cpp.inc"
      >();
}

MeshAttr meshwright::dist::lookupMesh(Operation *from, FlatSymbolRefAttr symbol) {
  if (!symbol)
    return {};
  // Every verifier asks this of every op. A general look-up searches the attributes of
  // every op in the table for a name; this compares names of meshes only.
  Operation *table = SymbolTable::getNearestSymbolTable(from);
  if (!table)
    return {};
  for (MeshOp mesh : table->getRegion(0).getOps<MeshOp>())
    if (mesh.getSymNameAttr() == symbol.getAttr())
      return mesh.getMesh();
  return {};
}

FailureOr<MeshOp> meshwright::dist::getOnlyMesh(ModuleOp module) {
  auto meshes = llvm::to_vector(module.getOps<MeshOp>());
  if (meshes.empty())
    return module.emitError() << "module has no dist.mesh";
  if (meshes.size() > 1)
    return meshes[1].emitOpError() << "is the module's second mesh: expected one";
  return meshes.front();
}

FlatSymbolRefAttr meshwright::dist::getSpmdMeshSymbol(Operation *op) {
  for (; op; op = op->getParentOp())
    if (auto symbol = op->getAttrOfType<FlatSymbolRefAttr>(DistDialect::kSpmdAttr))
      return symbol;
  return {};
}

MeshAttr meshwright::dist::getSpmdMesh(Operation *op) {
  return lookupMesh(op, getSpmdMeshSymbol(op));
}

//===----------------------------------------------------------------------===//
// Attributes on other ops
//===----------------------------------------------------------------------===//

namespace {
/// An argument or a result of a function, which errors name.
struct Boundary {
  StringRef kind;
  unsigned index;
};
} // namespace

/// Checks a sharding against the type of the global value that it belongs to. On a function that is
/// an argument or a result.
static LogicalResult verifySharding(Operation *op, Attribute attr, Type type,
                                    std::optional<Boundary> boundary = {}) {
  auto emit = [&] {
    InFlightDiagnostic error = op->emitOpError();
    if (boundary)
      error << boundary->kind << " " << boundary->index << ": ";
    error << "'dist.sharding': ";
    return error;
  };
  auto sharding = dyn_cast<ShardingAttr>(attr);
  if (!sharding)
    return emit() << "expected a #dist.sharding, got " << attr;
  MeshAttr mesh = lookupMesh(op, sharding.getMesh());
  if (!mesh)
    return emit() << "no mesh named @" << sharding.getMesh().getValue();
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape())
    return emit() << "expected a tensor of static shape, got " << type;
  if (sharding.getRank() != tensor.getRank())
    return emit() << "expected " << tensor.getRank() << " dimensions, got " << sharding.getRank();
  return sharding.verifyForMesh(mesh, emit);
}

static LogicalResult verifyRelabels(Operation *op, Attribute value) {
  if (isa<PermuteOp>(op) && isa<UnitAttr>(value))
    return success();
  return op->emitOpError() << "'" << kRelabelsAttr
                           << "': expected a unit attribute on a dist.permute, got " << value;
}

static LogicalResult verifyStageMeshes(Operation *op, Attribute value) {
  auto meshOp = dyn_cast<MeshOp>(op);
  auto stages = dyn_cast<DictionaryAttr>(value);
  if (!meshOp || !stages)
    return op->emitOpError() << "'dist.stages': expected a table of meshes on a dist.mesh";
  for (NamedAttribute stage : stages) {
    auto mesh = dyn_cast<MeshAttr>(stage.getValue());
    if (!mesh || mesh.getNumRanks() != meshOp.getMesh().getNumRanks())
      return op->emitOpError() << "'dist.stages': stage '" << stage.getName().getValue()
                               << "': expected a mesh of " << meshOp.getMesh().getNumRanks()
                               << " ranks, got " << stage.getValue();
  }
  return success();
}

LogicalResult DistDialect::verifyOperationAttribute(Operation *op, NamedAttribute attr) {
  if (attr.getName() == kRowLoadAttr) {
    auto load = dyn_cast<FloatAttr>(attr.getValue());
    if (!isa<FunctionOpInterface>(op) || !load || !load.getType().isF64() || !(load.getValueAsDouble() >= 1))
      return op->emitOpError() << "'" << kRowLoadAttr << "': expected a number (f64) from 1 on, on a function, got "
                               << attr.getValue();
    return success();
  }
  if (attr.getName() == kSpmdAttr) {
    auto symbol = dyn_cast<FlatSymbolRefAttr>(attr.getValue());
    if (!symbol || !isa<FunctionOpInterface>(op))
      return op->emitOpError() << "'dist.spmd': expected a mesh's symbol on a function";
    if (!lookupMesh(op, symbol))
      return op->emitOpError() << "'dist.spmd': no mesh named @" << symbol.getValue();
    auto func = cast<FunctionOpInterface>(op);
    auto check = [&](Attribute sharding, Attribute global, Type type, StringRef what,
                     unsigned i) -> LogicalResult {
      if (!sharding)
        return op->emitOpError() << what << " " << i
                                 << " of an SPMD function has no 'dist.sharding'";
      if (!global)
        return op->emitOpError() << what << " " << i << " of an SPMD function has no 'dist.global'";
      auto globalAttr = dyn_cast<TypeAttr>(global);
      auto globalType =
          globalAttr ? dyn_cast<RankedTensorType>(globalAttr.getValue()) : RankedTensorType();
      auto localType = dyn_cast<RankedTensorType>(type);
      if (!globalType || !globalType.hasStaticShape())
        return op->emitOpError() << what << " " << i
                                 << ": 'dist.global': expected a tensor type of static shape";
      if (!localType || !localType.hasStaticShape() ||
          localType.getElementType() != globalType.getElementType())
        return op->emitOpError() << what << " " << i << ": expected a static tensor of "
                                 << globalType.getElementType() << ", got " << type;
      auto shardingAttr = dyn_cast<ShardingAttr>(sharding);
      if (!shardingAttr || shardingAttr.getMesh() != symbol)
        return op->emitOpError() << what << " " << i << ": expected a sharding on @"
                                 << symbol.getValue();
      return success(succeeded(getLayout(
          shardingAttr, lookupMesh(op, symbol), globalType.getShape(), localType.getShape(),
          Padding::Zero, [&] { return op->emitOpError() << what << " " << i << ": "; })));
    };
    for (auto [i, type] : llvm::enumerate(func.getArgumentTypes()))
      if (failed(check(func.getArgAttr(i, kShardingAttr), func.getArgAttr(i, kGlobalAttr), type,
                       "argument", i)))
        return failure();
    for (auto [i, type] : llvm::enumerate(func.getResultTypes()))
      if (failed(check(func.getResultAttr(i, kShardingAttr), func.getResultAttr(i, kGlobalAttr),
                       type, "result", i)))
        return failure();
    return success();
  }
  if (attr.getName() == kShardingAttr) {
    if (auto array = dyn_cast<ArrayAttr>(attr.getValue())) {
      if (array.size() != op->getNumResults())
        return op->emitOpError() << "'dist.sharding': expected a list of " << op->getNumResults()
                                 << " shardings, got " << array.size();
      // A unit attribute stands for one of several results that has no sharding.
      for (auto [sharding, type] : llvm::zip_equal(array, op->getResultTypes()))
        if (!(array.size() > 1 && isa<UnitAttr>(sharding)) &&
            failed(verifySharding(op, sharding, type)))
          return failure();
      return success();
    }
    if (auto memory = dyn_cast<MemoryOpInterface>(op))
      return verifySharding(op, attr.getValue(), memory.getMemoryType());
    if (op->getNumResults() != 1)
      return op->emitOpError() << "'dist.sharding': expected a list of " << op->getNumResults()
                               << " shardings";
    return verifySharding(op, attr.getValue(), op->getResult(0).getType());
  }
  if (attr.getName() == kOperandsAttr || attr.getName() == kResultsAttr)
    return verifyStatedLayouts(op, attr);
  if (attr.getName() == kRelabelsAttr)
    return verifyRelabels(op, attr.getValue());
  if (attr.getName() == kStageMeshesAttr)
    return verifyStageMeshes(op, attr.getValue());
  if (attr.getName() == kDpAttentionAttr)
    return verifyDpAttention(op, attr.getValue());
  if (attr.getName() == kPhaseAttr) {
    auto phase = dyn_cast<StringAttr>(attr.getValue());
    if (!isa<CollectiveOpInterface>(op) || !phase ||
        !llvm::is_contained({"forward", "recompute", "backward"}, phase.getValue()))
      return op->emitOpError() << "'dist.phase': expected \"forward\", \"recompute\" or \"backward\" "
                                  "on a collective, got " << attr.getValue();
    return success();
  }
  return op->emitOpError() << "unknown attribute '" << attr.getName().getValue() << "'";
}

/// Attributes of a function's argument or result.
static LogicalResult verifyBoundaryAttribute(Operation *op, Type type, Boundary boundary,
                                             NamedAttribute attr) {
  if (attr.getName() == DistDialect::kGlobalAttr) {
    if (!op->hasAttr(DistDialect::kSpmdAttr))
      return op->emitOpError() << boundary.kind << " " << boundary.index
                               << ": 'dist.global' on a function without 'dist.spmd'";
    return success();
  }
  if (attr.getName() != DistDialect::kShardingAttr)
    return op->emitOpError() << boundary.kind << " " << boundary.index << ": unknown attribute '"
                             << attr.getName().getValue() << "'";
  // In an SPMD function the check needs the global type: see 'dist.spmd'.
  if (op->hasAttr(DistDialect::kSpmdAttr))
    return success();
  return verifySharding(op, attr.getValue(), type, boundary);
}

LogicalResult DistDialect::verifyRegionArgAttribute(Operation *op, unsigned, unsigned index,
                                                    NamedAttribute attr) {
  auto func = dyn_cast<FunctionOpInterface>(op);
  if (!func)
    return op->emitOpError() << "'" << attr.getName().getValue() << "': expected a function";
  return verifyBoundaryAttribute(op, func.getArgumentTypes()[index], {"argument", index}, attr);
}

LogicalResult DistDialect::verifyRegionResultAttribute(Operation *op, unsigned, unsigned index,
                                                       NamedAttribute attr) {
  auto func = dyn_cast<FunctionOpInterface>(op);
  if (!func)
    return op->emitOpError() << "'" << attr.getName().getValue() << "': expected a function";
  return verifyBoundaryAttribute(op, func.getResultTypes()[index], {"result", index}, attr);
}
