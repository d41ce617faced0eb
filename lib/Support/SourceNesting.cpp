//===- SourceNesting.cpp - how deep brackets of a text nest ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SourceNesting.h"

using namespace meshwright;

std::optional<SourcePosition> meshwright::findDeepNesting(llvm::StringRef text) {
  // The magic number of bytecode.
  if (text.starts_with("ML\xefR"))
    return std::nullopt;
  unsigned depth = 0, line = 1;
  size_t lineBegin = 0;
  bool isString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
    case '\n':
      // No string goes on behind the end of a line.
      isString = false;
      ++line;
      lineBegin = i + 1;
      break;
    case '"':
      isString = !isString;
      break;
    case '\\':
      i += isString;
      break;
    case '/':
      if (!isString && text.substr(i).starts_with("//"))
        i = std::min(text.find('\n', i), text.size()) - 1;
      break;
    case '(':
    case '[':
    case '{':
    case '<':
      if (!isString && ++depth > kMaxSourceNesting)
        return SourcePosition{line, unsigned(i - lineBegin + 1)};
      break;
    case '>':
      // An arrow closes nothing.
      if (i > 0 && text[i - 1] == '-')
        break;
      [[fallthrough]];
    case ')':
    case ']':
    case '}':
      depth -= !isString && depth > 0;
      break;
    default:
      break;
    }
  }
  return std::nullopt;
}
