//===- OnOffAuto.h - on, off, or as the compiler decides --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_ONOFFAUTO_H
#define MESHWRIGHT_LIB_SUPPORT_ONOFFAUTO_H

#include "meshwright/lib/Support/OptionParser.h"

namespace meshwright {

/// Says if a rewrite happens wherever it is possible (on), nowhere (off), or where it pays
/// by the cost model (auto). Options, passes and attributes use these three spellings.
enum class OnOffAuto { On, Off, Auto };

template <> struct Spellings<OnOffAuto> {
  static constexpr Spelling<OnOffAuto> all[] = {
      {OnOffAuto::On, "on"}, {OnOffAuto::Off, "off"}, {OnOffAuto::Auto, "auto"}};
};

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::OnOffAuto>
    : public meshwright::TextOptionParser<meshwright::OnOffAuto> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_ONOFFAUTO_H
