//===- SequenceOrder.cpp - the order of a sequence on a ring --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SequenceOrder.h"

#include "llvm/Support/ErrorHandling.h"

using namespace meshwright;

std::optional<TokenOrder> meshwright::getTokenOrder(SequenceOrder order) {
  switch (order) {
  case SequenceOrder::Auto:
    return std::nullopt;
  case SequenceOrder::Contiguous:
    return TokenOrder::Contiguous;
  case SequenceOrder::Zigzag:
    return TokenOrder::Zigzag;
  case SequenceOrder::Striped:
    return TokenOrder::Striped;
  }
  llvm_unreachable("unknown order");
}

SequenceOrder meshwright::getSequenceOrder(TokenOrder order) {
  switch (order) {
  case TokenOrder::Contiguous:
    return SequenceOrder::Contiguous;
  case TokenOrder::Zigzag:
    return SequenceOrder::Zigzag;
  case TokenOrder::Striped:
    return SequenceOrder::Striped;
  }
  llvm_unreachable("unknown order");
}
