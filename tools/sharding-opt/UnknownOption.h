//===- UnknownOption.h - options that sharding-opt lacks --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_OPT_UNKNOWNOPTION_H
#define MESHWRIGHT_TOOLS_SHARDING_OPT_UNKNOWNOPTION_H

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace meshwright {

/// Returns the error about the first argument that is an option of no registered name; empty if there is none.
/// Names the registered option that is spelled most like it. The arguments do not begin with the tool's name.
std::string findUnknownOption(llvm::ArrayRef<const char *> arguments);

} // namespace meshwright

#endif // MESHWRIGHT_TOOLS_SHARDING_OPT_UNKNOWNOPTION_H
