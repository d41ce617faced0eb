//===- NumberText.h - numbers as users read them ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_NUMBERTEXT_H
#define MESHWRIGHT_LIB_SUPPORT_NUMBERTEXT_H

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>

namespace meshwright {

/// "768 B", "1.50 KiB", "12.0 GiB".
std::string formatBytes(int64_t bytes);
/// "35.0 ns", "7.2 us", "1.25 ms".
std::string formatSeconds(double seconds);
/// A number whose name in snake_case has its unit: bytes or seconds. Others have up to three digits, or
/// are whole.
std::string formatNumber(llvm::StringRef name, double number);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_NUMBERTEXT_H
