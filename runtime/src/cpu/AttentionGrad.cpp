//===- AttentionGrad.cpp - gradients of attention, by threads -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "AttentionGradKernel.h"
#include "CpuDevice.h"

#include "meshwright/runtime/include/Types.h"

#include <algorithm>

namespace meshwright::rt {

namespace {

struct Launch {
  AttentionGrad work;
  AttentionGradKernel kernel;
  int64_t heads, numberBytes;
  Workers *workers;
};

} // namespace

static AttentionGradKernel chooseKernel() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return attentionGradAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return attentionGradAvx2;
#endif
  return attentionGradBaseline;
}

/// Heads are shared by number alone, so that results do not depend on which thread is fast.
static void runHeads(void *state, int64_t index, int64_t count) {
  const Launch &launch = *static_cast<const Launch *>(state);
  int64_t begin = launch.heads * index / count, end = launch.heads * (index + 1) / count;
  auto *memory = static_cast<char *>(launch.workers->getWorkspace(index).get(0));
  launch.kernel(launch.work, begin, end, memory,
                reinterpret_cast<int64_t *>(memory + launch.numberBytes));
}

bool CpuDevice::attentionGrad(const mw_rt_attention_grad &what, const void *const *inputs,
                              void *const *outputs, std::string &) {
  constexpr int64_t kLongestVector = 16;
  auto roundUp = [](int64_t size) {
    return (size + kLongestVector - 1) / kLongestVector * kLongestVector;
  };
  static const AttentionGradKernel kernel = chooseKernel();
  Launch launch{{what, inputs, outputs, roundUp(what.features), roundUp(what.value_features)},
                kernel, what.batch * what.query_heads, 0, workers.get()};
  int64_t bytesOfNumber = DType(what.dtype) == DType::F64 ? sizeof(double) : sizeof(float);
  launch.numberBytes = roundUp(getAttentionGradNumbers(launch.work)) * bytesOfNumber;
  int64_t bytes = launch.numberBytes + (what.keys + what.queries) * int64_t(sizeof(int64_t));
  int64_t count = std::clamp<int64_t>(launch.heads, 1, workers->getCount());
  for (int64_t i = 0; i < count; ++i)
    workers->getWorkspace(i).get(bytes);
  workers->run(count, runHeads, &launch);
  return true;
}

} // namespace meshwright::rt
