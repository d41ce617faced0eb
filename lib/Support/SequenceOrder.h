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

#include "llvm/ADT/StringRef.h"

#include <optional>

namespace meshwright {

/// The order that a user asks for. With Auto the mask and the cost model decide.
enum class SequenceOrder { Auto, Contiguous, Zigzag, Striped };

llvm::StringRef stringify(SequenceOrder order);

/// Returns nothing for other texts.
std::optional<SequenceOrder> parseSequenceOrder(llvm::StringRef text);

/// Returns nothing for Auto.
std::optional<TokenOrder> getTokenOrder(SequenceOrder order);
SequenceOrder getSequenceOrder(TokenOrder order);

llvm::LogicalResult parseOptionText(llvm::StringRef text, SequenceOrder &order,
                                    OptionErrorHandler error);
llvm::raw_ostream &operator<<(llvm::raw_ostream &os, SequenceOrder order);

} // namespace meshwright

template <>
class llvm::cl::parser<meshwright::SequenceOrder>
    : public meshwright::TextOptionParser<meshwright::SequenceOrder> {
public:
  using TextOptionParser::TextOptionParser;
};

#endif // MESHWRIGHT_LIB_SUPPORT_SEQUENCEORDER_H
