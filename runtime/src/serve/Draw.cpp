//===- Draw.cpp - tokens that are drawn from logits -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Draw.h"

#include <cmath>
#include <limits>

namespace meshwright::rt {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): each bit of the result depends on all bits.
static uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

/// A number between 0 and 1, neither of them.
static double toUnit(uint64_t bits) { return (double(bits >> 12) + 0.5) * 0x1p-52; }

int64_t drawToken(DType type, const void *logits, int64_t vocabulary, double temperature,
                  int64_t seed, int64_t position) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  uint64_t key = mix(mix(uint64_t(seed) + kStep) + kStep * (uint64_t(position) + 1));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  int64_t likeliest = -1;
  double most = -kInfinity;
  for (int64_t token = 0; token < vocabulary; ++token) {
    double logit = loadAsDouble(type, logits, token);
    if (std::isnan(logit))
      return -1;
    if (logit > most) {
      most = logit;
      likeliest = token;
    }
  }
  if (likeliest < 0 || most == kInfinity)
    return likeliest;
  int64_t best = -1;
  double largest = -kInfinity;
  for (int64_t token = 0; token < vocabulary; ++token) {
    // A largest of sums with Gumbel noise has the probabilities of the softmax.
    double noise = -std::log(-std::log(toUnit(mix(key + kStep * (uint64_t(token) + 1)))));
    // The difference to the largest logit. A temperature that is too small for the quotient leaves that one.
    double sum = (loadAsDouble(type, logits, token) - most) / temperature + noise;
    if (sum > largest) {
      largest = sum;
      best = token;
    }
  }
  return best;
}

} // namespace meshwright::rt
