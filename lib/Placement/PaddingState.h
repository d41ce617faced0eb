//===- PaddingState.h - what ops make of padding's content ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An abstract evaluation over what may stand in padding. `std::nullopt` is true
// data: finite, and valid for whatever the program does with it.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PADDINGSTATE_H
#define MESHWRIGHT_LIB_PLACEMENT_PADDINGSTATE_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright::padding {

using dist::Padding;
using State = std::optional<Padding>;

/// Zero or finite or true data.
bool isFinite(State state);
bool isNonNegative(State state);
/// Not NaN and not plus infinity.
bool isMaskable(State state);
/// What holds of elements that are the one or the other.
Padding meet(State a, State b);
Padding add(State a, State b);
Padding multiply(State a, State b);
/// The state of a constant's elements.
Padding ofConstant(double value);

/// What an elementwise op (broadcast and rotary included) makes of operands in
/// these states.
Padding evaluateElementwise(mlir::Operation *op, mlir::ArrayRef<State> operands);

/// The elements' value if `value` is defined by a splat constant.
std::optional<double> getSplat(mlir::Value value);

/// How messages call a state.
llvm::StringRef toString(Padding padding);

} // namespace meshwright::padding

#endif // MESHWRIGHT_LIB_PLACEMENT_PADDINGSTATE_H
