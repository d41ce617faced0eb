//===- RecomputeMode.h - which values are computed again --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_RECOMPUTEMODE_H
#define MESHWRIGHT_LIB_SUPPORT_RECOMPUTEMODE_H

#include "meshwright/lib/Support/OptionParser.h"

namespace meshwright {

/// The values of a forward pass that its backward pass computes again instead of keeping them:
/// none, all within layers (full), or as few as a memory ceiling allows (auto).
enum class RecomputeMode { None, Full, Auto };

template <> struct Spellings<RecomputeMode> {
  static constexpr Spelling<RecomputeMode> all[] = {{RecomputeMode::None, "none"},
                                                    {RecomputeMode::Full, "full"},
                                                    {RecomputeMode::Auto, "auto"}};
};

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::RecomputeMode>
    : public meshwright::TextOptionParser<meshwright::RecomputeMode> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_RECOMPUTEMODE_H
