//===- JointAttention.h - marks on attention that was taken apart *- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_JOINTATTENTION_H
#define MESHWRIGHT_PASSES_ANNOTATE_JOINTATTENTION_H

#include "llvm/ADT/StringRef.h"

namespace meshwright {

/// On attention over the shorter of joined sequences (a prompt's tokens beside an
/// image's): its keys are few, and every rank has all of them.
inline constexpr llvm::StringLiteral kWholeKeysAttr = "nn.whole_keys";

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_JOINTATTENTION_H
