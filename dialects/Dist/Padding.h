//===- Padding.h - the content of padding -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An abstract evaluation over the elements that padding may hold. PaddingOpInterface
// states with each op how it maps the padding of its operands to that of its results.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_PADDING_H
#define MESHWRIGHT_DIALECTS_DIST_PADDING_H

#include "mlir/IR/Operation.h"

#include <optional>

namespace meshwright::dist {

/// A bound on the elements of a region of padding.
enum class Padding {
  /// Zeros.
  Zero,
  /// Minus infinity: softmax and max ignore it.
  NegInf,
  /// Something finite.
  Finite,
  /// Something finite and greater than zero: a divisor.
  Positive,
  /// Something finite and at least zero: a divisor with an epsilon.
  NonNegative,
  /// Finite or minus infinity, as an additive mask leaves it.
  FiniteOrNegInf,
  /// Anything, NaN included.
  Arbitrary,
};

} // namespace meshwright::dist

namespace meshwright::padding {

using dist::Padding;
/// `std::nullopt` is true data: finite, and valid for any op of the program.
using State = std::optional<Padding>;

/// Zero or finite or true data.
bool isFinite(State state);
bool isNonNegative(State state);
/// Not NaN and not plus infinity.
bool isMaskable(State state);
/// The bound on elements that satisfy either bound.
Padding meet(State a, State b);
/// The bound on sums and on products of elements.
Padding add(State a, State b);
Padding multiply(State a, State b);
/// The bound on maxima of elements.
Padding maximum(State a, State b);
/// The state of a constant's elements.
Padding ofConstant(double value);
/// The name of a state in messages.
llvm::StringRef toString(Padding padding);

/// The padding of an op's operands that a region of padding of its results depends on:
/// the tail of one dimension, or a corner where tails of several dimensions meet.
class Operands {
public:
  explicit Operands(llvm::ArrayRef<State> states) : states(states) {}
  virtual ~Operands() = default;

  /// The state of an operand at the indices of the region.
  State operator[](unsigned operand) const { return states[operand]; }
  llvm::ArrayRef<State> getStates() const { return states; }

  /// The element of an operand that is a splat constant.
  virtual std::optional<double> getSplat(unsigned operand) const = 0;
  /// The state of all elements of an operand, padding and data.
  virtual State getOverall(unsigned operand) const = 0;

  /// Whether the region is padding of an operand, rather than of another one's dimensions.
  virtual bool isPaddingOf(unsigned operand) const = 0;
  /// Whether the region is padding along a dimension of the first result.
  virtual bool isAlongResult(unsigned dim) const = 0;
  /// Visits each corner where the region meets padding that the op contracts or reads
  /// whole. The visitor gets the state of an operand there by its number.
  virtual void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<State(unsigned)>)> visit) const = 0;

private:
  llvm::ArrayRef<State> states;
};

/// A state that an op requires of the padding of a dimension that it contracts or reads
/// whole; none if it must not read padding at all. `text` ends the message of the error.
struct Need {
  State state;
  llvm::StringLiteral text;
};

/// The bound on a corner of the result of an op whose result is finite if all of its
/// operands of float type are.
Padding getFiniteCorner(mlir::Operation *op, const Operands &in);

} // namespace meshwright::padding

#endif // MESHWRIGHT_DIALECTS_DIST_PADDING_H
