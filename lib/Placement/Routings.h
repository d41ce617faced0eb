//===- Routings.h - rows are of one routing ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_ROUTINGS_H
#define MESHWRIGHT_LIB_PLACEMENT_ROUTINGS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

class PlacementAnalysis;

/// Proves that each op of a function reads rows of one routing, with the choices, places and numbers of
/// these rows (`nn::RoutedOpInterface`). Fails with an error at the first op that does not.
///
/// - A routing is the choices by which tokens are dispatched. Two routings are one if their choices are
///   one value, or if equal ops compute them from equal values. Ops that move choices between ranks, or
///   change their padding alone, do not change them.
/// - A value that is routed and that no op of the function routes, as an argument, has a routing of its own.
/// - A routed constant, and equal rows, are rows of every routing.
///
/// `layouts` are those of an SPMD function. They tell which local ops are the same global op, and which
/// values have equal elements. Without them, types alone do.
///
/// The walk visits each op once. Choices that are two values are compared by the ops that compute them,
/// each of which is numbered once.
mlir::LogicalResult verifyRoutings(mlir::func::FuncOp func, const PlacementAnalysis *layouts = nullptr);

/// Returns true if `verifyRoutings` succeeds without layouts. Emits no errors.
bool areRoutingsProved(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_ROUTINGS_H
