//===- SequenceOrder.cpp - the order of a sequence on a ring --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SequenceOrder.h"

#include "llvm/Support/ErrorHandling.h"

using namespace meshwright;
using llvm::StringRef;

StringRef meshwright::stringify(SequenceOrder order) {
  switch (order) {
  case SequenceOrder::Auto:
    return "auto";
  case SequenceOrder::Contiguous:
    return "contiguous";
  case SequenceOrder::Zigzag:
    return "zigzag";
  case SequenceOrder::Striped:
    return "striped";
  }
  llvm_unreachable("unknown order");
}

std::optional<SequenceOrder> meshwright::parseSequenceOrder(StringRef text) {
  for (SequenceOrder order : {SequenceOrder::Auto, SequenceOrder::Contiguous,
                              SequenceOrder::Zigzag, SequenceOrder::Striped})
    if (text == stringify(order))
      return order;
  return std::nullopt;
}

std::optional<TokenOrder> meshwright::getTokenOrder(SequenceOrder order) {
  switch (order) {
  case SequenceOrder::Auto:
    return std::nullopt;
  case SequenceOrder::Contiguous:
    return TokenOrder::Natural;
  case SequenceOrder::Zigzag:
    return TokenOrder::Zigzag;
  case SequenceOrder::Striped:
    return TokenOrder::Striped;
  }
  llvm_unreachable("unknown order");
}

SequenceOrder meshwright::getSequenceOrder(TokenOrder order) {
  switch (order) {
  case TokenOrder::Natural:
    return SequenceOrder::Contiguous;
  case TokenOrder::Zigzag:
    return SequenceOrder::Zigzag;
  case TokenOrder::Striped:
    return SequenceOrder::Striped;
  }
  llvm_unreachable("unknown order");
}

llvm::LogicalResult meshwright::parseOptionText(StringRef text, SequenceOrder &order,
                                                OptionErrorHandler error) {
  std::optional<SequenceOrder> parsed = parseSequenceOrder(text);
  if (!parsed)
    return error("'" + text + "': expected contiguous, zigzag, striped or auto");
  order = *parsed;
  return llvm::success();
}

llvm::raw_ostream &meshwright::operator<<(llvm::raw_ostream &os, SequenceOrder order) {
  return os << stringify(order);
}
