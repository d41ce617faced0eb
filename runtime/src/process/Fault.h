//===- Fault.h - fault injection --------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_PROCESS_FAULT_H
#define MESHWRIGHT_RUNTIME_SRC_PROCESS_FAULT_H

#include "meshwright-c/Runtime.h"

#include <memory>
#include <string>

namespace meshwright::rt {

/// A fault that MESHWRIGHT_FAULT asks for, for tests: "KIND RANK OP", such as
/// "stall 1 all_reduce". It strikes when the rank begins an op whose name contains OP.
struct Fault {
  enum Kind {
    /// The runtime throws an exception.
    Throw,
    /// The rank never comes back.
    Stall,
    /// The process is killed.
    Kill,
    /// An allocation fails.
    Memory,
  };
  Kind kind = Throw;
  int64_t rank = 0;
  std::string op;

  /// Returns null if the variable is not set or, with a warning, if it is malformed.
  static std::unique_ptr<Fault> fromEnvironment();
  /// Called as the rank begins an op.
  void strike(const mw_rt_context &context, int64_t op) const;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_PROCESS_FAULT_H
