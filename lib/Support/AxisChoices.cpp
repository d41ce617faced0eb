//===- AxisChoices.cpp - the axes that a user names for roles -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/AxisChoices.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

using namespace meshwright;
using llvm::failure;
using llvm::LogicalResult;
using llvm::SmallVector;
using llvm::StringRef;
using llvm::success;
using llvm::Twine;

AxisChoice AxisChoices::get(AxisRole role) const {
  if (const std::optional<AxisChoice> &choice = choices[size_t(role)])
    return *choice;
  return {getRoleDescription(role).usualAxis.empty() ? AxisChoice::None : AxisChoice::Auto, {}};
}

AxisChoices AxisChoices::complete() const {
  AxisChoices all;
  for (const AxisRoleDescription &known : kAxisRoles)
    all.set(known.role, get(known.role));
  return all;
}

LogicalResult meshwright::parseOptionText(StringRef text, AxisChoice &choice,
                                          OptionErrorHandler error) {
  if (text.empty())
    return error("expected the name of an axis, none or auto, got nothing");
  choice = text == "auto"   ? AxisChoice{AxisChoice::Auto, {}}
           : text == "none" ? AxisChoice{AxisChoice::None, {}}
                            : AxisChoice{AxisChoice::Named, text.str()};
  return success();
}

LogicalResult meshwright::parseOptionText(StringRef text, AxisChoices &choices,
                                          OptionErrorHandler error) {
  SmallVector<StringRef> pairs;
  text.split(pairs, ',', -1, /*KeepEmpty=*/false);
  AxisChoices read;
  for (StringRef pair : pairs) {
    auto [key, value] = pair.split('=');
    StringRef name = key.trim();
    std::optional<AxisRole> role = parseSpelling<AxisRole>(name);
    if (!role)
      return error("unknown role '" + name + "' in '" + pair + "': expected role=axis with " +
                   listSpellings<AxisRole>());
    if (read.isSet(*role))
      return error("role '" + name + "' is given twice");
    AxisChoice choice;
    if (failed(parseOptionText(value.trim(), choice, [&](const Twine &message) {
          return error("role '" + name + "': " + message);
        })))
      return failure();
    read.set(*role, std::move(choice));
  }
  choices = std::move(read);
  return success();
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const AxisChoice &choice) {
  return os << (choice.kind == AxisChoice::Auto   ? "auto"
                : choice.kind == AxisChoice::None ? "none"
                                                  : choice.name);
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, const AxisChoices &choices) {
  llvm::ListSeparator comma(",");
  for (const AxisRoleDescription &known : kAxisRoles)
    if (choices.isSet(known.role))
      os << comma << known.role << "=" << choices.get(known.role);
  return os;
}
