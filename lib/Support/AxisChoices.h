//===- AxisChoices.h - the axes that a user names for roles -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_AXISCHOICES_H
#define MESHWRIGHT_LIB_SUPPORT_AXISCHOICES_H

#include "meshwright/lib/Support/AxisRole.h"
#include "meshwright/lib/Support/OptionParser.h"

#include "llvm/ADT/STLExtras.h"

#include <array>
#include <optional>
#include <string>

namespace meshwright {

/// The axis for a role, as a user names it.
struct AxisChoice {
  enum Kind {
    /// As the compiler decides: `auto`. For a role with a usual axis this is that axis, if the
    /// mesh has one of the name.
    Auto,
    /// No axis: `none`.
    None,
    /// The axis `name`, which the mesh must have.
    Named,
  } kind = Auto;
  std::string name;

  /// The axis of this name; none if it is empty.
  static AxisChoice get(llvm::StringRef name) {
    return {name.empty() ? None : Named, name.str()};
  }
};

/// The axes that a user names for roles.
class AxisChoices {
public:
  /// The choice for a role. Where the user says nothing, this is `auto` for a role with a usual
  /// axis, and `none` for another one.
  AxisChoice get(AxisRole role) const;
  /// Returns true if some axis may have the role.
  bool mayHave(AxisRole role) const { return get(role).kind != AxisChoice::None; }
  void set(AxisRole role, AxisChoice choice) { choices[size_t(role)] = std::move(choice); }
  bool isSet(AxisRole role) const { return choices[size_t(role)].has_value(); }
  bool empty() const {
    return llvm::none_of(choices, [](const auto &choice) { return choice.has_value(); });
  }
  /// The same choices, all of them set.
  AxisChoices complete() const;

private:
  std::array<std::optional<AxisChoice>, std::size(kAxisRoles)> choices;
};

llvm::LogicalResult parseOptionText(llvm::StringRef text, AxisChoice &choice,
                                    OptionErrorHandler error);
/// Reads `role=axis,...`, where an axis is a name, `none` or `auto`.
llvm::LogicalResult parseOptionText(llvm::StringRef text, AxisChoices &choices,
                                    OptionErrorHandler error);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const AxisChoice &choice);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const AxisChoices &choices);

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::AxisChoice>
    : public meshwright::TextOptionParser<meshwright::AxisChoice> {
public:
  using TextOptionParser::TextOptionParser;
};

template <>
class llvm::cl::parser<meshwright::AxisChoices>
    : public meshwright::TextOptionParser<meshwright::AxisChoices> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_AXISCHOICES_H
