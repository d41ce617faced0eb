//===- OnOffAuto.cpp - on, off, or as the compiler decides ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/OnOffAuto.h"

using namespace meshwright;
using llvm::StringRef;

StringRef meshwright::stringify(OnOffAuto mode) {
  switch (mode) {
  case OnOffAuto::On:
    return "on";
  case OnOffAuto::Off:
    return "off";
  case OnOffAuto::Auto:
    return "auto";
  }
  return "auto";
}

std::optional<OnOffAuto> meshwright::parseOnOffAuto(StringRef text) {
  for (OnOffAuto mode : {OnOffAuto::On, OnOffAuto::Off, OnOffAuto::Auto})
    if (text == stringify(mode))
      return mode;
  return std::nullopt;
}

llvm::LogicalResult meshwright::parseOptionText(StringRef text, OnOffAuto &mode,
                                                OptionErrorHandler error) {
  std::optional<OnOffAuto> parsed = parseOnOffAuto(text);
  if (!parsed)
    return error("'" + text + "': expected on, off or auto");
  mode = *parsed;
  return llvm::success();
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, OnOffAuto mode) {
  return os << stringify(mode);
}
