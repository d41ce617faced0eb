//===- TokenOrder.h - the order of a sharded sequence -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plain C++, shared by the compiler and the runtime.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOKENORDER_H
#define MESHWRIGHT_TOKENORDER_H

#include <algorithm>
#include <cstdint>

namespace meshwright {

enum class TokenOrder {
  /// The order of their numbers.
  Contiguous,
  /// Each rank takes a run of tokens from the front of the remaining ones, and a run of the
  /// same length from their end.
  Zigzag,
  /// The ranks take turns, a token each.
  Striped,
};

/// The number of the token in `slot` of a sequence of `size` tokens in an order for
/// `ranks` ranks, padded at its tail to `padded` slots (a multiple of `ranks`); -1
/// for a slot of padding.
///
/// Rank r has the slots [r * c, (r + 1) * c), c = padded / ranks. The last ranks may
/// have fewer tokens than slots, or none; with 16 tokens and 4 ranks rank 0 has
/// 0 1 14 15 in zigzag order and 0 4 8 12 in striped order.
inline int64_t getTokenInSlot(TokenOrder order, int64_t ranks, int64_t size, int64_t padded,
                              int64_t slot) {
  if (slot >= size)
    return -1;
  if (order == TokenOrder::Contiguous)
    return slot;
  int64_t chunk = padded / ranks, rank = slot / chunk, i = slot % chunk;
  // Tokens of this rank: as many as it has slots, or the rest.
  int64_t own = std::min(chunk, size - rank * chunk);
  if (order == TokenOrder::Zigzag) {
    int64_t front = (own + 1) / 2, taken = rank * ((chunk + 1) / 2);
    if (i < front)
      return taken + i;
    int64_t end = size - rank * (chunk / 2);
    return end - own + i;
  }
  // Striped: the first `full` ranks take part in all rounds, the next rank in the first `rest`
  // rounds.
  int64_t full = size / chunk, rest = size % chunk;
  if (i < rest)
    return i * (full + 1) + rank;
  return rest * (full + 1) + (i - rest) * full + rank;
}

} // namespace meshwright

#endif // MESHWRIGHT_TOKENORDER_H
