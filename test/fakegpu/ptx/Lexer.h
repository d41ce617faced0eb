//===- Lexer.h - The words of a PTX text ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_PTX_LEXER_H
#define FAKEGPU_PTX_LEXER_H

#include <string>
#include <vector>

namespace fakegpu {

struct Token {
  enum Kind : unsigned char { Word, Number, String, Punct, End };
  Kind kind = End;
  std::string text;
  int line = 0;
  size_t begin = 0, end = 0; // in the source
};

/// Splits a text. A word holds its dots and "::", so "add.f32" is one token. Throws PtxError.
std::vector<Token> tokenize(const std::string &source);

} // namespace fakegpu

#endif
