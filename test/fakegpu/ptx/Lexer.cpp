//===- Lexer.cpp - The words of a PTX text ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ptx/Lexer.h"
#include "ptx/Module.h"

#include <cctype>

namespace fakegpu {
namespace {

bool startsWord(char c) { return isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.'; }
bool insideWord(char c) { return startsWord(c) || isdigit((unsigned char)c); }

class Lexer {
public:
  explicit Lexer(const std::string &source) : source(source) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    while (skipBlank(), at < source.size())
      tokens.push_back(next());
    Token end;
    end.line = line;
    end.begin = end.end = source.size();
    tokens.push_back(end);
    return tokens;
  }

private:
  char peek(size_t ahead = 0) const {
    return at + ahead < source.size() ? source[at + ahead] : '\0';
  }

  void skipBlank() {
    while (at < source.size()) {
      if (peek() == '\n') {
        ++line, ++at;
      } else if (isspace((unsigned char)peek()) || peek() == '\0') {
        ++at;
      } else if (peek() == '/' && peek(1) == '/') {
        while (at < source.size() && peek() != '\n')
          ++at;
      } else if (peek() == '/' && peek(1) == '*') {
        for (at += 2; at < source.size() && !(peek() == '*' && peek(1) == '/'); ++at)
          line += peek() == '\n';
        at += 2;
      } else {
        return;
      }
    }
  }

  Token next() {
    Token token;
    token.line = line;
    token.begin = at;
    char c = peek();
    if (startsWord(c)) {
      token.kind = Token::Word;
      while (insideWord(peek()) || (peek() == ':' && peek(1) == ':'))
        at += peek() == ':' ? 2 : 1;
    } else if (isdigit((unsigned char)c)) {
      token.kind = Token::Number;
      bool decimal = !(c == '0' && isalpha((unsigned char)peek(1)));
      while (isalnum((unsigned char)peek()) || peek() == '.') {
        bool exponent = decimal && (peek() == 'e' || peek() == 'E');
        ++at;
        if (exponent && (peek() == '+' || peek() == '-'))
          ++at;
      }
    } else if (c == '"') {
      token.kind = Token::String;
      for (++at; at < source.size() && peek() != '"'; ++at)
        at += peek() == '\\';
      if (at >= source.size())
        throw PtxError(line, "a string without its closing quote");
      ++at;
    } else {
      token.kind = Token::Punct;
      ++at;
    }
    token.end = at;
    token.text = source.substr(token.begin, token.end - token.begin);
    return token;
  }

  const std::string &source;
  size_t at = 0;
  int line = 1;
};

} // namespace

std::vector<Token> tokenize(const std::string &source) { return Lexer(source).run(); }

} // namespace fakegpu
