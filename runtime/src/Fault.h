//===- Fault.h - failing on purpose -----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_FAULT_H
#define MESHWRIGHT_RUNTIME_SRC_FAULT_H

#include "meshwright-c/Runtime.h"

#include <memory>
#include <string>

namespace meshwright::rt {

/// What MESHWRIGHT_FAULT asks for, so that tests see what a fault does:
/// "KIND RANK OP", the OP being a part of an op's name, such as
/// "stall 1 all_reduce".
struct Fault {
  enum Kind {
    /// An exception within the runtime.
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

  /// Null where the variable is not set, or, with a warning, not understood.
  static std::unique_ptr<Fault> fromEnvironment();
  /// Called as the rank begins an op.
  void strike(const mw_rt_context &context, int64_t op) const;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_FAULT_H
