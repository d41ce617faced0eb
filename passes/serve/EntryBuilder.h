//===- EntryBuilder.h - the step of serving for one bucket ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_ENTRYBUILDER_H
#define MESHWRIGHT_PASSES_SERVE_ENTRYBUILDER_H

#include "meshwright/Serving.h"
#include "meshwright/passes/serve/CausalForward.h"

namespace meshwright {

/// Writes the entry for steps of so many tokens of each group, and, if it is stated, of all groups, and the states of caches that the
/// module does not have yet. The entry stands before the forward pass.
mlir::LogicalResult buildEntry(const CausalForward &forward, const ServingSizes &sizes,
                               int64_t tokens, std::optional<int64_t> sum = std::nullopt);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_ENTRYBUILDER_H
