//===- Spellings.h - the texts of an enum ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Options, attributes and reports spell the values of an enum alike. The enum's header
// lists the texts once, in the order in which messages name them:
//
//   template <> struct Spellings<Mode> {
//     static constexpr Spelling<Mode> all[] = {{Mode::On, "on"}, {Mode::Off, "off"}};
//   };
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_SPELLINGS_H
#define MESHWRIGHT_LIB_SUPPORT_SPELLINGS_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/raw_ostream.h"

#include <iterator>
#include <optional>
#include <string>

namespace meshwright {

template <typename E> struct Spelling {
  E value;
  llvm::StringLiteral text;
};

template <typename E> struct Spellings;

/// An enum with a list of texts.
template <typename E, typename = decltype(Spellings<E>::all)> using Spelled = E;

template <typename E, typename = Spelled<E>> llvm::StringRef stringify(E value) {
  for (const Spelling<E> &known : Spellings<E>::all)
    if (known.value == value)
      return known.text;
  llvm_unreachable("a value without a text");
}

/// Returns nothing for other texts.
template <typename E> std::optional<Spelled<E>> parseSpelling(llvm::StringRef text) {
  for (const Spelling<E> &known : Spellings<E>::all)
    if (known.text == text)
      return known.value;
  return std::nullopt;
}

/// All texts, for messages: "on, off or auto".
template <typename E> std::string listSpellings() {
  std::string list;
  size_t left = std::size(Spellings<E>::all);
  for (const Spelling<E> &known : Spellings<E>::all) {
    list += known.text;
    --left;
    list += left > 1 ? ", " : left == 1 ? " or " : "";
  }
  return list;
}

template <typename E, typename = Spelled<E>>
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, E value) {
  return os << stringify(value);
}

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_SPELLINGS_H
