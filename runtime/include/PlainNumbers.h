//===- PlainNumbers.h - numbers with a decimal point ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PLAINNUMBERS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PLAINNUMBERS_H

#include <locale.h>

namespace meshwright::rt {

/// While an object of this class exists, its thread writes and reads numbers with a decimal
/// point, independent of the locale of the process.
class PlainNumbers {
public:
  PlainNumbers() : plain(newlocale(LC_NUMERIC_MASK, "C", locale_t())), before(uselocale(plain)) {}
  PlainNumbers(const PlainNumbers &) = delete;
  PlainNumbers &operator=(const PlainNumbers &) = delete;
  ~PlainNumbers() {
    uselocale(before);
    if (plain)
      freelocale(plain);
  }

private:
  locale_t plain, before;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PLAINNUMBERS_H
