//===- Ceilings.cpp - peak rates of the machine ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PeakKernel.h"
#include "meshwright/runtime/src/process/Signal.h"

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/RunReport.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

namespace meshwright::rt {

static PeakKernel choosePeak(bool &hasBf16) {
  hasBf16 = false;
#ifdef __x86_64__
  hasBf16 = __builtin_cpu_supports("avx512bf16");
  if (__builtin_cpu_supports("avx512f"))
    return peakAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return peakAvx2;
#endif
  return peakBaseline;
}

/// Runs `body(thread)` on that many threads at once. Returns the seconds from the first begin
/// to the last end.
template <typename Body> static double timeTogether(int64_t threads, Body body) {
  std::atomic<int64_t> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  auto work = [&](int64_t thread) {
    ++ready;
    while (!go)
      std::this_thread::yield();
    body(thread);
  };
  others.reserve(threads);
  try {
    for (int64_t thread = 1; thread < threads; ++thread)
      others.emplace_back(work, thread);
  } catch (const std::system_error &) {
    // Measure with the threads that could start.
  }
  while (ready < int64_t(others.size()))
    std::this_thread::yield();
  Time begin = Clock::now();
  go = true;
  work(0);
  for (std::thread &other : others)
    other.join();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static Ceilings measure(int64_t threads) {
  Ceilings ceilings;
  ceilings.threads = threads;
  bool hasBf16;
  PeakKernel peak = choosePeak(hasBf16);
  constexpr int64_t rounds = 1 << 18;
  std::vector<float> sink(threads);
  // Take the best of a few measurements: other processes can only slow one down.
  for (int i = 0; i < 5; ++i) {
    std::vector<double> flops(threads);
    double seconds = timeTogether(threads, [&](int64_t t) { flops[t] = peak(rounds, &sink[t]); });
    double all = 0;
    for (double each : flops)
      all += each;
    ceilings.f32 = std::max(ceilings.f32, all / seconds);
  }
  // A dot product of pairs of bf16 does twice the operations of an f32 multiply-add, at the
  // same rate.
  ceilings.bf16 = ceilings.f32 * (hasBf16 ? 2 : 1);

  constexpr int64_t bytes = 64 << 20;
  std::vector<Memory> from(threads), to(threads);
  for (int64_t t = 0; t < threads; ++t) {
    from[t] = allocate(bytes);
    to[t] = allocate(bytes);
    if (!from[t] || !to[t])
      return ceilings;
    std::memset(from[t].get(), 1, bytes);
    std::memset(to[t].get(), 1, bytes);
  }
  for (int i = 0; i < 5; ++i) {
    double seconds =
        timeTogether(threads, [&](int64_t t) { std::memcpy(to[t].get(), from[t].get(), bytes); });
    ceilings.bytes = std::max(ceilings.bytes, 2.0 * bytes * threads / seconds);
  }
  // Copies between halves of a cache, of the first, the second and the last.
  for (int64_t half : {int64_t(8) << 10, int64_t(256) << 10, int64_t(4) << 20}) {
    int64_t times = (int64_t(8) << 20) / half;
    double rate = 0;
    for (int i = 0; i < 3; ++i) {
      double seconds = timeTogether(threads, [&](int64_t t) {
        for (int64_t j = 0; j < times; ++j) {
          std::memcpy(to[t].get(), from[t].get(), half);
          // The compiler must not leave out a copy.
          asm volatile("" : : "r"(to[t].get()) : "memory");
        }
      });
      rate = std::max(rate, 2.0 * half * times * threads / seconds);
    }
    ceilings.cached.emplace_back(2 * half, rate);
  }
  return ceilings;
}

const Ceilings &getCeilings(int64_t threads) {
  static std::mutex mutex;
  static std::map<int64_t, Ceilings> known;
  threads = std::clamp<int64_t>(threads, 1, availableCores());
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(threads);
  if (found == known.end())
    found = known.emplace(threads, measure(threads)).first;
  return found->second;
}

} // namespace meshwright::rt
