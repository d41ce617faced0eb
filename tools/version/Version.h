//===- Version.h - the version of the tools ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_VERSION_VERSION_H
#define MESHWRIGHT_TOOLS_VERSION_VERSION_H

namespace meshwright {

/// Lines behind the name of a tool: the versions of the project, its commit, LLVM, and the interface
/// between compiled programs and the runtime.
extern const char *const kVersionText;

} // namespace meshwright

#endif // MESHWRIGHT_TOOLS_VERSION_VERSION_H
