//===- UnknownOption.cpp - options that sharding-opt lacks ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LLVM's parser reads an option of an unknown name as a group of options of one letter, if the first
// letter is one, and its error is about that letter. So names are checked before it parses.
//
//===----------------------------------------------------------------------===//

#include "UnknownOption.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/CommandLine.h"

#include <optional>

namespace cl = llvm::cl;

/// The registered name that differs from `name` in the fewest letters, and in at most a third of them; empty if
/// there is none. Of equally near names the first one by the alphabet counts.
static llvm::StringRef findNearest(llvm::StringRef name) {
  unsigned most = name.size() / 3;
  std::optional<std::pair<unsigned, llvm::StringRef>> nearest;
  for (auto &[known, option] : cl::getRegisteredOptions()) {
    std::pair found(name.edit_distance(known, /*AllowReplacements=*/true, most), llvm::StringRef(known));
    if (found.first <= most && (!nearest || found < *nearest))
      nearest = found;
  }
  return nearest ? nearest->second : "";
}

/// Returns true if the value of a registered option may follow its name at once, as in `-Ifolder`.
static bool hasPrefix(llvm::StringRef name) {
  for (auto &[known, option] : cl::getRegisteredOptions()) {
    bool isPrefix = option->getFormattingFlag() == cl::Prefix || option->getFormattingFlag() == cl::AlwaysPrefix;
    if (isPrefix && name.starts_with(known))
      return true;
  }
  return false;
}

std::string meshwright::findUnknownOption(llvm::ArrayRef<const char *> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    llvm::StringRef argument = arguments[i];
    if (argument == "--")
      return "";
    llvm::StringRef name = argument;
    // `-` is standard input. Letters alone are left to LLVM's parser.
    if (!name.consume_front("-"))
      continue;
    name.consume_front("-");
    bool hasValue = name.contains('=');
    name = name.split('=').first;
    auto known = cl::getRegisteredOptions().find(name);
    if (known != cl::getRegisteredOptions().end()) {
      // The next argument is the value.
      if (!hasValue && known->second->getValueExpectedFlag() == cl::ValueRequired)
        ++i;
      continue;
    }
    if (name.size() < 2 || hasPrefix(name))
      continue;
    llvm::StringRef nearest = findNearest(name);
    std::string error = ("unknown option '" + argument.split('=').first + "'").str();
    return nearest.empty() ? error : error + ": did you mean '--" + nearest.str() + "'?";
  }
  return "";
}
