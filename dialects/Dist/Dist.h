//===- Dist.h - the dist dialect --------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DIST_H
#define MESHWRIGHT_DIALECTS_DIST_DIST_H

#include "meshwright/TokenOrder.h"
#include "meshwright/dialects/Dist/Axes.h"
#include "meshwright/dialects/Dist/Enums.h"
#include "meshwright/dialects/Dist/FactorRule.h"
#include "meshwright/dialects/Dist/OpTraits.h"
#include "meshwright/dialects/Dist/Padding.h"
#include "meshwright/dialects/Dist/Work.h"
#include "meshwright/lib/Support/AxisRole.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/lib/Support/GatherKind.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include <memory>

#include "meshwright/dialects/Dist/DistAttrInterfaces.h.inc"
#include "meshwright/dialects/Dist/DistDialect.h.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Dist/DistAttrs.h.inc"

namespace meshwright::dist::detail {
/// See `CollectiveOpInterface`.
mlir::LogicalResult verifyCollective(mlir::Operation *op);

/// Folds a collective that undoes others; see `CollectiveOpInterface`.
mlir::LogicalResult foldCollective(mlir::Operation *op,
                                   llvm::SmallVectorImpl<mlir::OpFoldResult> &results);

/// The number of ranks that differ only along `axes`. Checks that
/// - the op is in an SPMD function, whose mesh exists;
/// - the mesh has the axes, and parts divide them;
/// - no axis occurs twice.
mlir::FailureOr<int64_t> verifyAxes(mlir::Operation *op, mlir::ArrayAttr axes);
} // namespace meshwright::dist::detail

#include "meshwright/dialects/Dist/DistInterfaces.h.inc"

#define GET_OP_CLASSES
#include "meshwright/dialects/Dist/DistOps.h.inc"

namespace meshwright::dist {

/// The mesh that a symbol names, looked up from `from` outward; null if there is
/// none.
MeshAttr lookupMesh(mlir::Operation *from, mlir::FlatSymbolRefAttr symbol);

/// The only mesh of a module. Fails, with an error, if there is none or several.
mlir::FailureOr<MeshOp> getOnlyMesh(mlir::ModuleOp module);

/// The mesh of the SPMD function that is `op` or is around it; null outside one.
MeshAttr getSpmdMesh(mlir::Operation *op);

/// The function's name for its mesh (`dist.spmd`), or null.
mlir::FlatSymbolRefAttr getSpmdMeshSymbol(mlir::Operation *op);

/// Returns true for a collective whose ranks exchange data.
bool communicates(mlir::Operation *op);

/// The element that does not change a sum, or a maximum: zero, or minus infinity, or the
/// least integer.
double getNeutral(ReductionKind kind, mlir::Type element);

/// Writes one launch for the tensors of `launches`, in their order, which have equal kinds
/// and shared attributes. Its location is that of all launches; uses stay as they are.
CollectiveOpInterface joinCollectives(mlir::OpBuilder &builder,
                                      mlir::ArrayRef<CollectiveOpInterface> launches);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_DIST_H
