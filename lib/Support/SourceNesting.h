//===- SourceNesting.h - how deep brackets of a text nest -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_SOURCENESTING_H
#define MESHWRIGHT_LIB_SUPPORT_SOURCENESTING_H

#include "llvm/ADT/StringRef.h"

#include <optional>

namespace meshwright {

/// No program nests its brackets deeper than this.
constexpr unsigned kMaxSourceNesting = 1000;
/// The error about a text that does.
constexpr llvm::StringLiteral kDeepNesting =
    "brackets nest too deep: expected at most 1000 inside one another, got more";

/// A position in a text: line and column from 1 on.
struct SourcePosition {
  unsigned line, column;
};

/// The first bracket that more than `kMaxSourceNesting` others enclose. MLIR's parser recurses for each
/// bracket, and a text that nests too deep would end the process. Bytecode has no brackets. Linear in
/// the text.
std::optional<SourcePosition> findDeepNesting(llvm::StringRef text);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_SOURCENESTING_H
