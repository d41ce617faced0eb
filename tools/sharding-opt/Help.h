//===- Help.h - the help of sharding-opt ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_OPT_HELP_H
#define MESHWRIGHT_TOOLS_SHARDING_OPT_HELP_H

namespace llvm {
class raw_ostream;
} // namespace llvm

namespace meshwright {

/// Prints the tool's own options, then all registered pipelines and passes with their options.
/// The options of passes go to standard output in any case: MLIR prints them.
void printHelp(llvm::raw_ostream &os);

/// Prints the options of --parallelize: names, values and effects.
void printParallelizeHelp(llvm::raw_ostream &os);

} // namespace meshwright

#endif // MESHWRIGHT_TOOLS_SHARDING_OPT_HELP_H
