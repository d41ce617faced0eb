//===- Passes.h - from programs to launches ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PASSES_H
#define MESHWRIGHT_PASSES_SCHEDULE_PASSES_H

#include "meshwright/lib/Support/NumberOrAuto.h"
#include "meshwright/lib/Support/OnOffAuto.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"

namespace meshwright {

/// The number of chunks that `split-collectives` cuts regions into: 0 (as many as pay) or at
/// least 2.
struct ChunkCount {
  int64_t value = 0;
};
llvm::LogicalResult parseOptionText(llvm::StringRef text, ChunkCount &count,
                                    OptionErrorHandler error);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const ChunkCount &count);

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::ChunkCount>
    : public meshwright::TextOptionParser<meshwright::ChunkCount> {
public:
  using TextOptionParser::TextOptionParser;
};

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/schedule/Passes.h.inc"

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PASSES_H
