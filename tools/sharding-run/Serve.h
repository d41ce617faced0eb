//===- Serve.h - prompts and what a bundle continues them with --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_SERVE_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_SERVE_H

#include "Model.h"

namespace meshwright::run {

/// Serves the prompts of the options' file by a bundle, and writes the new tokens of each.
Status servePrompts(const Options &options);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_SERVE_H
