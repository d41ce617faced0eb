//===- Padding.h - the content of padding -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An abstract evaluation over the elements that a region of a value may hold: its true
// elements, or padding. PaddingOpInterface states with each op how it maps the contents of
// its operands to that of its results.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_PADDING_H
#define MESHWRIGHT_DIALECTS_DIST_PADDING_H

#include "mlir/IR/Operation.h"

#include <limits>
#include <optional>

namespace meshwright::dist {

/// A bound on the elements of a region: an interval, and whether an element may be NaN. An
/// infinite bound means that elements may be infinite.
///
/// The content of the tail of a factor may be *conditional*: `cause` names an event, such as
/// "row i of %x is not finite". Two things hold for conditional content:
/// - An element of the tail that is outside the interval implies the event.
/// - The event implies that each true element along the factor, at the same indices of the
///   other factors, is not finite.
/// A sum over the factor may therefore read the tail as if it were in the interval: where
/// it is not, the true sum is not finite either.
struct Padding {
  double lower = 0, upper = 0;
  bool mayBeNaN = false;
  /// The event (see Events.h); zero for one that always holds. It is even if the event
  /// implies that each of these true elements is plus infinity or NaN.
  uint32_t cause = 0;

  bool operator==(const Padding &other) const {
    return lower == other.lower && upper == other.upper && mayBeNaN == other.mayBeNaN &&
           cause == other.cause;
  }
  bool operator!=(const Padding &other) const { return !(*this == other); }

  static const Padding Zero;
  /// Softmax and max ignore it.
  static const Padding NegInf;
  /// Finite, of unknown size.
  static const Padding Finite;
  /// Anything, NaN included.
  static const Padding Arbitrary;
};

inline constexpr Padding Padding::Zero{0, 0};
inline constexpr Padding Padding::NegInf{-std::numeric_limits<double>::infinity(),
                                         -std::numeric_limits<double>::infinity()};
inline constexpr Padding Padding::Finite{-std::numeric_limits<double>::max(),
                                         std::numeric_limits<double>::max()};
inline constexpr Padding Padding::Arbitrary{-std::numeric_limits<double>::infinity(),
                                            std::numeric_limits<double>::infinity(), true};

} // namespace meshwright::dist

namespace meshwright::padding {

using dist::Padding;

bool isZero(const Padding &content);
/// Neither infinite nor NaN.
bool isFinite(const Padding &content);
/// All elements that the content allows are within the bound, without a condition.
bool isWithin(const Padding &content, const Padding &bound);
/// Not NaN and not plus infinity.
bool isMaskable(const Padding &content);
/// The content without a condition: arbitrary if it has one.
Padding getUnconditional(const Padding &content);
/// Returns true if the content has a condition that implies plus infinity or NaN.
bool isConditionRising(const Padding &content);
/// The same content of a result that is plus infinity or NaN wherever the operand is not finite.
Padding withRisingCondition(Padding content);
/// The event with this multiple of 4. The lowest bit is cleared for a rising condition.
inline uint32_t makeEvent(size_t number) { return uint32_t(number) | 3; }
inline bool isSameEvent(uint32_t a, uint32_t b) { return (a | 1) == (b | 1); }
/// The event that either of two events happened.
uint32_t joinCauses(uint32_t a, uint32_t b);
/// The bound on elements that satisfy either bound.
Padding meet(const Padding &a, const Padding &b);
/// The content of a constant's elements.
Padding ofConstant(double value);
/// The contents of all elements of a type, and of its finite elements.
Padding ofType(mlir::Type type);
Padding finiteOf(mlir::Type type);
/// The largest finite number of a float type.
double getLargest(mlir::Type type);
/// The bound on exact results after they are rounded to an element type. Beyond the largest
/// number of a float type is infinity, and below its smallest is zero. Integers wrap.
Padding round(Padding exact, mlir::Type type);
/// The name of a content in messages.
llvm::StringRef toString(const Padding &content);

// Arithmetic, rounded to an element type.
Padding add(const Padding &a, const Padding &b, mlir::Type type);
Padding negate(const Padding &a);
Padding multiply(const Padding &a, const Padding &b, mlir::Type type);
/// Division by zero gives infinity or NaN.
Padding divide(const Padding &a, const Padding &b, mlir::Type type);
/// Sums of `count` elements.
Padding sum(const Padding &a, int64_t count, mlir::Type type);
/// The values of a function that never falls on the interval. `map` gets infinite bounds, too.
Padding mapRising(const Padding &a, llvm::function_ref<double(double)> map, mlir::Type type);

/// The contents of an op's operands in a region of one of its results: its true elements, the
/// tail of one factor, or corners where tails of two factors meet.
class Operands {
public:
  Operands(llvm::ArrayRef<Padding> contents, llvm::ArrayRef<Padding> conditional,
           unsigned result = 0)
      : contents(contents), conditional(conditional), result(result) {}
  virtual ~Operands() = default;

  /// The number of the result.
  unsigned getResult() const { return result; }

  /// The content of an operand in the region, without a condition.
  Padding operator[](unsigned operand) const { return contents[operand]; }
  llvm::ArrayRef<Padding> getContents() const { return contents; }
  /// The content of an operand in the region, which may be conditional. Only for an op whose
  /// result is not finite wherever this operand is not.
  const Padding &getConditional(unsigned operand) const { return conditional[operand]; }

  /// In the tail of a factor: the event that `what` is true of an operand there.
  /// Zero in other regions. `getSharedEvent` is also zero for an operand that differs along
  /// the factor.
  virtual uint32_t getEvent(unsigned operand, llvm::StringRef what) const = 0;
  virtual uint32_t getSharedEvent(unsigned operand, llvm::StringRef what) const = 0;
  /// The content of all elements of an operand, padding and data.
  virtual Padding getOverall(unsigned operand) const = 0;
  /// Returns true if the region is padding of an operand, rather than of another one's dimensions.
  virtual bool isPaddingOf(unsigned operand) const = 0;
  /// Returns true if the region is padding along a dimension of the result.
  virtual bool isAlongResult(unsigned dim) const = 0;
  /// The number of elements of an operand that one element of the result contracts or reads.
  virtual int64_t getReadCount() const = 0;
  /// Visits each corner where the region meets padding that the op contracts or reads
  /// whole. The visitor gets the content of an operand there by its number.
  virtual void visitReadCorners(
      llvm::function_ref<void(llvm::function_ref<Padding(unsigned)>)> visit) const = 0;

private:
  llvm::ArrayRef<Padding> contents, conditional;
  unsigned result;
};

/// The content that an op requires of the padding of a dimension that it contracts or reads
/// whole; none if it must not read padding at all. `text` ends the message of the error.
struct Need {
  std::optional<Padding> content;
  llvm::StringLiteral text;
  /// True if zeros may not be conditional: what the op reads of the padding does not go where
  /// the true elements beside it go.
  bool isStrict = false;
};

} // namespace meshwright::padding

#endif // MESHWRIGHT_DIALECTS_DIST_PADDING_H
