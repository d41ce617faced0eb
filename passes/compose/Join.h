//===- Join.h - several programs as entries of one --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_COMPOSE_JOIN_H
#define MESHWRIGHT_PASSES_COMPOSE_JOIN_H

#include "meshwright/passes/compose/Compose.h"

namespace meshwright {

/// Makes one module whose entries are the programs' only entries, under the names given. The
/// first is the default, unless another one is named "main".
///
/// - Parameters of one name are one parameter, and so are names that an entry states as aliases
///   of one. Types are compared when the module is planned.
/// - States of one name are one state. They must have one type and begin in one way.
/// - A parameter that is a state of another program is read as that state.
///
/// The modules belong to `context`. Fails after an error diagnostic that begins with "join: ".
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>> joinEntries(mlir::MLIRContext *context,
                                                               std::vector<StageModule> programs);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_COMPOSE_JOIN_H
