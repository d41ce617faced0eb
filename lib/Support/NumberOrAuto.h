//===- NumberOrAuto.h - options that are a number or auto -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The value of an option that is a number, from a least one on, or `auto`.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_NUMBERORAUTO_H
#define MESHWRIGHT_LIB_SUPPORT_NUMBERORAUTO_H

#include "meshwright/lib/Support/OptionParser.h"

#include <cstdint>
#include <optional>

namespace meshwright {

template <int64_t least> struct NumberOrAuto {
  /// None: auto.
  std::optional<int64_t> number;

  bool operator==(const NumberOrAuto &other) const { return number == other.number; }
};

template <int64_t least>
llvm::LogicalResult parseOptionText(llvm::StringRef text, NumberOrAuto<least> &value,
                                    OptionErrorHandler error) {
  int64_t number = 0;
  value.number.reset();
  if (text == "auto")
    return llvm::success();
  // Larger numbers would overflow products with sizes of tensors.
  if (text.getAsInteger(10, number) || number < least || number > int64_t(1) << 20)
    return error("expected auto or a number from " + llvm::Twine(least) + " to 1048576, got '" +
                 text + "'");
  value.number = number;
  return llvm::success();
}

template <int64_t least>
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const NumberOrAuto<least> &value) {
  if (!value.number)
    return os << "auto";
  return os << *value.number;
}

} // namespace meshwright

template <int64_t least>
class llvm::cl::parser<meshwright::NumberOrAuto<least>>
    : public meshwright::TextOptionParser<meshwright::NumberOrAuto<least>> {
public:
  using meshwright::TextOptionParser<meshwright::NumberOrAuto<least>>::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_NUMBERORAUTO_H
