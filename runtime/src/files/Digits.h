//===- Digits.h - bytes as hexadecimal digits -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_FILES_DIGITS_H
#define MESHWRIGHT_RUNTIME_SRC_FILES_DIGITS_H

#include <cstdio>
#include <string>

namespace meshwright::rt {

inline std::string toDigits(const std::string &bytes) {
  std::string digits;
  for (unsigned char byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", byte);
    digits += text;
  }
  return digits;
}

/// Returns false for other characters than digits, and for an odd number of them.
inline bool fromDigits(const std::string &digits, std::string &bytes) {
  if (digits.size() % 2 != 0 ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  bytes.clear();
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes += char(std::stoi(digits.substr(i, 2), nullptr, 16));
  return true;
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_FILES_DIGITS_H
