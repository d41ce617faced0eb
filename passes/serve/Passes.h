//===- Passes.h - passes of the serve phase ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_PASSES_H
#define MESHWRIGHT_PASSES_SERVE_PASSES_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/DpAttentionOptions.h"

#include "mlir/Pass/Pass.h"

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/serve/Passes.h.inc"

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_PASSES_H
