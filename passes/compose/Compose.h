//===- Compose.h - several programs as one ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_COMPOSE_COMPOSE_H
#define MESHWRIGHT_PASSES_COMPOSE_COMPOSE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <string>
#include <vector>

namespace meshwright {

/// One model of a composition: a global program with one entry, of one block.
struct StageModule {
  std::string name;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

/// Feeds an input, "<stage>.<input>", from an output, "<stage>.<position>".
struct StageConnection {
  std::string input, output;
};

/// Joins the stages into one function `main`, in the order given. The stages of
/// `loop` are neighbours and run `steps` times.
///
/// - Every op carries the name of its stage (`nn.stage`).
/// - An input that no connection feeds becomes an input of the result, named
///   "<stage>.<input>". So does, for the first step, an input that is fed from the
///   same or a later stage of the loop.
/// - Parameters are named "<stage>.<parameter>". All steps of the loop share them.
/// - States are named "<stage>.<state>". A step of the loop reads what the step before it wrote.
/// - The results are those of the last stage.
///
/// The stages' modules belong to `context`. Fails after an error diagnostic that
/// begins with "compose: ".
mlir::FailureOr<mlir::OwningOpRef<mlir::ModuleOp>>
composeStages(mlir::MLIRContext *context, std::vector<StageModule> stages,
              llvm::ArrayRef<StageConnection> connections, llvm::ArrayRef<std::string> loop,
              int64_t steps);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_COMPOSE_COMPOSE_H
