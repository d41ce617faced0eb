//===- DpAttentionOptions.h - options of data-parallel attention -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_DPATTENTIONOPTIONS_H
#define MESHWRIGHT_LIB_SUPPORT_DPATTENTIONOPTIONS_H

#include "meshwright/Serving.h"
#include "meshwright/lib/Support/NumberOrAuto.h"
#include "meshwright/lib/Support/OnOffAuto.h"

namespace meshwright {

template <> struct Spellings<TokenGather> {
  static constexpr Spelling<TokenGather> all[] = {
      {TokenGather::Auto, "auto"}, {TokenGather::Max, "max"}, {TokenGather::Sum, "sum"}};
};

/// The ranks of tensor parallelism form groups, and attention computes other tokens in each group.
struct DpAttentionOptions {
  /// The number of groups; auto: as many as keep ranks from holding equal key/value heads.
  NumberOrAuto<1> groups{1};
  /// The ranks that share a dense layer: 1, or (auto) all.
  NumberOrAuto<1> denseTp;
  /// Says if a group computes the logits of its own tokens alone.
  OnOffAuto lmHead = OnOffAuto::Auto;
  TokenGather gather = TokenGather::Auto;

  /// Returns true if an option differs from its default.
  bool areSet() const {
    return groups.number != 1 || denseTp.number || lmHead != OnOffAuto::Auto ||
           gather != TokenGather::Auto;
  }
};

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::TokenGather>
    : public meshwright::TextOptionParser<meshwright::TokenGather> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_DPATTENTIONOPTIONS_H
