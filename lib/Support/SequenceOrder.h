//===- SequenceOrder.h - the order of a sequence on a ring ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_SEQUENCEORDER_H
#define MESHWRIGHT_LIB_SUPPORT_SEQUENCEORDER_H

#include "meshwright/TokenOrder.h"
#include "meshwright/lib/Support/OptionParser.h"

#include <optional>

namespace meshwright {

/// The order that a user asks for. With Auto the mask and the cost model decide.
enum class SequenceOrder { Auto, Contiguous, Zigzag, Striped };

template <> struct Spellings<SequenceOrder> {
  static constexpr Spelling<SequenceOrder> all[] = {{SequenceOrder::Contiguous, "contiguous"},
                                                    {SequenceOrder::Zigzag, "zigzag"},
                                                    {SequenceOrder::Striped, "striped"},
                                                    {SequenceOrder::Auto, "auto"}};
};

/// Returns nothing for Auto.
std::optional<TokenOrder> getTokenOrder(SequenceOrder order);
SequenceOrder getSequenceOrder(TokenOrder order);

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::SequenceOrder>
    : public meshwright::TextOptionParser<meshwright::SequenceOrder> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_SEQUENCEORDER_H
