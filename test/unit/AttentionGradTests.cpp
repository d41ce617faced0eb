//===- AttentionGradTests.cpp - gradients of attention, per processor -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compares the kernel for each instruction set with a computation in f64, pair by pair, for random
// shapes and masks.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/src/cpu/AttentionGradKernel.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace meshwright::rt;

namespace {

constexpr double kScale = 0.3, kInfinity = std::numeric_limits<double>::infinity();

int64_t toBits(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// A call with random shapes, masks and numbers.
template <typename T> struct Call {
  explicit Call(int seed) : random(seed) {
    what.dtype = sizeof(T) == 8 ? MW_F64 : MW_F32;
    what.batch = 1 + pick(2);
    what.key_heads = 1 + pick(2);
    what.query_heads = what.key_heads * (1 + pick(3));
    what.queries = 1 + pick(150);
    what.keys = 1 + pick(150);
    what.features = 1 + pick(70);
    what.value_features = 1 + pick(70);
    what.left = pick(2) ? -1 : pick(80);
    what.right = pick(2) ? -1 : pick(80);
    what.kv_length = pick(2) ? what.keys : pick(what.keys + 1);
    what.has_positions = pick(2);
    what.query_position_stride = pick(2) ? what.queries : 0;
    what.key_position_stride = pick(2) ? what.keys : 0;
    what.has_bias = pick(2);
    what.has_bias_grad = what.has_bias && pick(2);
    what.bias_strides[1] = pick(2) ? what.keys * what.queries : 0;
    what.bias_strides[2] = what.keys;
    what.bias_strides[3] = 1;
    cap = pick(3) ? 0 : 2;
    what.scale = toBits(kScale);
    what.soft_cap = toBits(cap);

    heads = what.batch * what.query_heads;
    int64_t keyRows = what.batch * what.key_heads * what.keys;
    fill(cotangent, heads * what.queries * what.value_features);
    fill(query, heads * what.queries * what.features);
    fill(key, keyRows * what.features);
    fill(value, keyRows * what.value_features);
    fill(bias, what.query_heads * what.queries * what.keys);
    out.resize(cotangent.size());
    lse.resize(heads * what.queries);
    hasPadding = pick(2);
    hasLengths = pick(2);
    for (int64_t i = 0; i < what.batch * what.keys; ++i) {
      padding.push_back(pick(4) != 0);
      keyPlaces.push_back(pick(200) - 5);
    }
    for (int64_t i = 0; i < what.batch * what.queries; ++i)
      queryPlaces.push_back(pick(200));
    for (int64_t i = 0; i < what.batch; ++i)
      lengths.push_back(pick(200));
    computeForward();
  }

  int64_t pick(int64_t count) { return int64_t(random() % uint64_t(count)); }
  void fill(std::vector<T> &numbers, int64_t count) {
    numbers.resize(count);
    for (T &number : numbers)
      number = T(std::uniform_real_distribution<double>(-1, 1)(random));
  }

  int64_t getRow(int64_t head) const { return head / what.query_heads; }
  int64_t getKeyHead(int64_t head) const {
    int64_t group = what.query_heads / what.key_heads;
    return getRow(head) * what.key_heads + head % what.query_heads / group;
  }
  bool isSeen(int64_t head, int64_t i, int64_t j) const {
    int64_t row = getRow(head);
    int64_t from = what.has_positions ? queryPlaces[row * what.query_position_stride + i] : i;
    int64_t to = what.has_positions ? keyPlaces[row * what.key_position_stride + j] : j;
    return to >= 0 && j < what.kv_length && (!hasLengths || to < lengths[row]) &&
           (!hasPadding || padding[row * what.keys + j]) &&
           (what.right < 0 || to <= from + what.right) && (what.left < 0 || to >= from - what.left);
  }
  /// The score of a pair, and its derivative by the product of query and key.
  std::pair<double, double> getScore(int64_t head, int64_t i, int64_t j) const {
    double score = 0, slope = kScale;
    for (int64_t f = 0; f < what.features; ++f)
      score += double(query[(head * what.queries + i) * what.features + f]) *
               key[(getKeyHead(head) * what.keys + j) * what.features + f];
    score *= kScale;
    if (cap > 0) {
      double capped = std::tanh(score / cap);
      score = cap * capped;
      slope *= 1 - capped * capped;
    }
    if (what.has_bias)
      score += bias[head % what.query_heads * what.bias_strides[1] + i * what.keys + j];
    return {score, slope};
  }
  void computeForward() {
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < what.queries; ++i) {
        double most = -kInfinity, sum = 0;
        for (int64_t j = 0; j < what.keys; ++j)
          if (isSeen(head, i, j))
            most = std::max(most, getScore(head, i, j).first);
        std::vector<double> row(what.value_features, 0);
        for (int64_t j = 0; j < what.keys; ++j) {
          if (!isSeen(head, i, j))
            continue;
          double weight = std::exp(getScore(head, i, j).first - most);
          sum += weight;
          for (int64_t f = 0; f < what.value_features; ++f)
            row[f] +=
                weight * value[(getKeyHead(head) * what.keys + j) * what.value_features + f];
        }
        lse[head * what.queries + i] = T(most + std::log(sum));
        for (int64_t f = 0; f < what.value_features; ++f)
          out[(head * what.queries + i) * what.value_features + f] =
              T(sum > 0 ? row[f] / sum : 0);
      }
  }

  /// The gradients of queries, keys, values and the bias.
  std::vector<std::vector<double>> computeGradients() const {
    int64_t d = what.features, e = what.value_features;
    std::vector<std::vector<double>> result = {
        std::vector<double>(query.size(), 0), std::vector<double>(heads * what.keys * d, 0),
        std::vector<double>(heads * what.keys * e, 0),
        std::vector<double>(what.has_bias_grad ? heads * what.queries * what.keys : 0, 0)};
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < what.queries; ++i) {
        int64_t at = head * what.queries + i;
        double delta = 0;
        for (int64_t f = 0; f < e; ++f)
          delta += double(cotangent[at * e + f]) * out[at * e + f];
        for (int64_t j = 0; j < what.keys; ++j) {
          if (!isSeen(head, i, j))
            continue;
          auto [score, slope] = getScore(head, i, j);
          int64_t from = getKeyHead(head) * what.keys + j, to = head * what.keys + j;
          double weight = std::exp(score - lse[at]), ofWeight = 0;
          for (int64_t f = 0; f < e; ++f) {
            ofWeight += double(cotangent[at * e + f]) * value[from * e + f];
            result[2][to * e + f] += weight * cotangent[at * e + f];
          }
          double ofScore = weight * (ofWeight - delta);
          if (what.has_bias_grad)
            result[3][at * what.keys + j] = ofScore;
          for (int64_t f = 0; f < d; ++f) {
            result[0][at * d + f] += ofScore * slope * key[from * d + f];
            result[1][to * d + f] += ofScore * slope * query[at * d + f];
          }
        }
      }
    return result;
  }

  std::mt19937_64 random;
  mw_rt_attention_grad what = {};
  double cap;
  int64_t heads;
  bool hasPadding, hasLengths;
  std::vector<T> cotangent, query, key, value, bias, out, lse;
  std::vector<uint8_t> padding;
  std::vector<int64_t> queryPlaces, keyPlaces, lengths;
};

template <typename T> void check(AttentionGradKernel kernel, int seed, double tolerance) {
  Call<T> call(seed);
  const mw_rt_attention_grad &what = call.what;
  std::vector<std::vector<double>> expected = call.computeGradients();
  std::vector<std::vector<T>> got;
  std::vector<void *> outputs;
  // Each number has to be written, and no number may be read before.
  for (const std::vector<double> &numbers : expected)
    got.emplace_back(numbers.size(), T(NAN));
  for (std::vector<T> &numbers : got)
    outputs.push_back(numbers.data());
  const void *inputs[] = {call.cotangent.data(),
                          call.query.data(),
                          call.key.data(),
                          call.value.data(),
                          call.out.data(),
                          call.lse.data(),
                          call.hasPadding ? call.padding.data() : nullptr,
                          call.bias.data(),
                          call.queryPlaces.data(),
                          call.keyPlaces.data(),
                          call.hasLengths ? call.lengths.data() : nullptr};
  auto roundUp = [](int64_t size) { return (size + 15) / 16 * 16; };
  AttentionGrad work{what, inputs, outputs.data(), roundUp(what.features),
                     roundUp(what.value_features)};
  std::vector<T> numbers(getAttentionGradNumbers(work), T(NAN));
  std::vector<int64_t> places(what.keys + what.queries);
  kernel(work, 0, call.heads, numbers.data(), places.data());
  for (size_t output = 0; output < expected.size(); ++output)
    for (size_t i = 0; i < expected[output].size(); ++i)
      ASSERT_NEAR(got[output][i], expected[output][i], tolerance)
          << "seed " << seed << ", output " << output << ", element " << i;
}

TEST(AttentionGrad, AllInstructionSets) {
  std::vector<AttentionGradKernel> kernels = {attentionGradBaseline};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    kernels.push_back(attentionGradAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    kernels.push_back(attentionGradAvx512);
#endif
  for (AttentionGradKernel kernel : kernels)
    for (int seed = 0; seed < 12; ++seed) {
      check<float>(kernel, seed, 2e-5);
      check<double>(kernel, seed, 1e-12);
    }
}

} // namespace
