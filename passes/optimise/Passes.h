//===- Passes.h - passes of the optimise phase -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_PASSES_H
#define MESHWRIGHT_PASSES_OPTIMISE_PASSES_H

#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/optimise/Passes.h.inc"

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_PASSES_H
