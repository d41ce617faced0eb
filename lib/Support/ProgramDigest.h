//===- ProgramDigest.h - numbers for contents of programs -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_PROGRAMDIGEST_H
#define MESHWRIGHT_LIB_SUPPORT_PROGRAMDIGEST_H

#include "mlir/IR/Operation.h"

#include <cstdint>
#include <utility>

namespace meshwright {

/// 128 bits for the content of ops: names, attributes, types, locations, operands, and the ops within them. Equal
/// contents have equal digests in one context. Two contents share one by a chance of about 2^-64, as the properties of
/// an op count by a hash of 64 bits.
using ProgramDigest = std::pair<uint64_t, uint64_t>;

/// The digest of some ops, which read no values from outside of them.
ProgramDigest getDigest(llvm::ArrayRef<mlir::Operation *> ops);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_PROGRAMDIGEST_H
