//===- Handles.h - views for the C interface --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_HANDLES_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_HANDLES_H

#include "meshwright-c/Run.h"
#include "meshwright/Compiler.h"

#include <string>
#include <vector>

namespace meshwright {

/// A port, and the arrays that its C view points to.
struct OwnedPort {
  Port port;
  std::vector<const char *> aliases;
  mw_port view;
};

struct EntryPorts {
  std::vector<OwnedPort> inputs, outputs;
};

std::vector<OwnedPort> ownPorts(const std::vector<Port> &ports);
std::vector<HostArray> toArrays(const mw_tensor *tensors, size_t count);
SessionOptions toSessionOptions(const mw_run_options &options);

/// Passes diagnostics to the caller.
void tell(const std::vector<Diagnostic> &diagnostics, mw_say say, void *user);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_HANDLES_H
