//===- NumberText.cpp - numbers as users read them ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/NumberText.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace meshwright;

std::string meshwright::formatBytes(int64_t bytes) {
  static constexpr llvm::StringRef units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0)
    return std::to_string(bytes) + " B";
  return llvm::formatv(value < 10    ? "{0:f2} {1}"
                       : value < 100 ? "{0:f1} {1}"
                                     : "{0:f0} {1}",
                       value, units[unit]);
}

std::string meshwright::formatSeconds(double seconds) {
  double size = std::abs(seconds);
  if (size > 0 && size < 1e-6)
    return llvm::formatv("{0:f1} ns", seconds * 1e9);
  return size < 1e-3 ? llvm::formatv("{0:f1} us", seconds * 1e6).str()
                     : llvm::formatv("{0:f2} ms", seconds * 1e3).str();
}

std::string meshwright::formatNumber(llvm::StringRef name, double number) {
  if (name.contains("bytes"))
    return formatBytes(static_cast<int64_t>(number));
  if (name.contains("seconds"))
    return formatSeconds(number);
  if (number == static_cast<double>(static_cast<int64_t>(number)))
    return std::to_string(static_cast<int64_t>(number));
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.3g", number);
  return text;
}
