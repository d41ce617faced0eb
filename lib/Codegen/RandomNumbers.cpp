//===- RandomNumbers.cpp - numbers of a counter ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Philox-4x32-10 of "Parallel Random Numbers: As Easy as 1, 2, 3" (Salmon and others, 2011). Words of
// 32 bits are kept in integers of 64 bits, whose upper half is zero. So a product of two words needs
// no other type, and LLVM takes the instruction that multiplies the lower halves.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RandomNumbers.h"

#include "meshwright/lib/Codegen/Elements.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <algorithm>
#include <cmath>

using namespace mlir;

namespace meshwright::lower {

namespace {
/// Arithmetic on words, numbers or vectors of one type.
class Words {
public:
  Words(ImplicitLocOpBuilder &b, Type type) : b(b), type(type) {}

  Value constant(uint32_t word) { return emitConstant(b, type, double(word)); }
  /// The value as it is, or in all lanes.
  Value spread(Value value) {
    return value.getType() == type ? value : vector::BroadcastOp::create(b, type, value).getResult();
  }
  Value low(Value value) { return arith::AndIOp::create(b, value, constant(0xffffffff)); }
  Value high(Value value) { return arith::ShRUIOp::create(b, value, constant(32)); }
  Value mul(Value value, uint32_t factor) {
    return arith::MulIOp::create(b, value, constant(factor));
  }
  Value mix(Value x, Value y, Value z) {
    return arith::XOrIOp::create(b, arith::XOrIOp::create(b, x, y), z);
  }

private:
  ImplicitLocOpBuilder &b;
  Type type;
};
} // namespace

/// The first word of the generator's block.
static Value emitWord(ImplicitLocOpBuilder &b, Value index, const RandomStream &stream) {
  constexpr unsigned kRounds = 10;
  constexpr uint32_t kFactors[] = {0xD2511F53, 0xCD9E8D57}, kSteps[] = {0x9E3779B9, 0xBB67AE85};
  // Keys are the same for all elements, and may be numbers.
  Words words(b, index.getType()), ofKeys(b, stream.seed.getType());
  Value keys[] = {ofKeys.low(stream.seed), ofKeys.high(stream.seed)};
  Value counter[] = {words.low(index), words.high(index), words.low(words.spread(stream.step)),
                     words.constant(uint32_t(stream.stream))};
  for (unsigned round = 0; round < kRounds; ++round) {
    Value first = words.mul(counter[0], kFactors[0]), second = words.mul(counter[2], kFactors[1]);
    Value next[] = {words.mix(words.high(second), counter[1], words.spread(keys[0])),
                    words.low(second),
                    words.mix(words.high(first), counter[3], words.spread(keys[1])),
                    words.low(first)};
    std::copy(std::begin(next), std::end(next), std::begin(counter));
    for (unsigned i : {0, 1})
      keys[i] = ofKeys.low(arith::AddIOp::create(b, keys[i], ofKeys.constant(kSteps[i])));
  }
  return counter[0];
}

Value emitIsKept(ImplicitLocOpBuilder &b, Value index, const RandomStream &stream,
                 double probability) {
  double limit = std::min(std::round(std::ldexp(probability, 32)), std::ldexp(1.0, 32) - 1);
  Value word = emitWord(b, index, stream);
  return arith::CmpIOp::create(b, arith::CmpIPredicate::sge, word,
                               emitConstant(b, word.getType(), limit));
}

Value emitUniform(ImplicitLocOpBuilder &b, Value index, const RandomStream &stream) {
  Value word = emitWord(b, index, stream);
  // An f32 holds integers of 24 bits exactly.
  Value bits = arith::ShRUIOp::create(b, word, emitConstant(b, word.getType(), 8));
  Value number = emitCast(b, emitCast(b, bits, b.getI32Type()), b.getF32Type());
  return arith::MulFOp::create(b, number,
                               emitConstant(b, number.getType(), std::ldexp(1.0, -24)));
}

} // namespace meshwright::lower
