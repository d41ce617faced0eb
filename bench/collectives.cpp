//===- collectives.cpp - the local backend beside memcpy ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// bench/collectives.py runs this program. "collectives RANKS BYTES" prints, for each
// kind of collective, its microseconds and those of a memcpy of as many bytes on as
// many threads at once. The two alternate. BYTES is the size of the larger of a
// rank's input and output.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace meshwright::rt;

namespace {

struct Case {
  const char *name;
  int64_t kind, dtype;
  /// Elements of a rank's tensor before and after, of the dimension acted on.
  int64_t in, out;
  /// Half of the bytes that a rank reads and writes: the size of a memcpy with the same traffic.
  int64_t copied;
};

/// A descriptor, followed by the table of a permute.
struct Descriptor {
  mw_rt_collective what = {};
  int64_t table[64] = {};
};

struct Shared {
  Descriptor descriptor;
  /// A barrier before each measurement.
  Descriptor meet;
  int64_t repeat = 0, copied = 0;
  std::vector<Memory> inputs, outputs, from, to;
  std::vector<std::vector<double>> collective, copy;
};

struct Argument {
  Shared *shared;
  int64_t rank;
};

double now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int32_t runRank(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                const void *const *, const void **) {
  const auto &argument = *static_cast<const Argument *>(arguments[0]);
  Shared *shared = argument.shared;
  int64_t rank = argument.rank;
  float value = 1, sum;
  const void *meetIn[] = {&value};
  void *meetOut[] = {&sum};
  const void *in[] = {shared->inputs[rank].get()};
  void *out[] = {shared->outputs[rank].get()};
  auto meet = [&] { return mw_rt_run_collective(context, 0, &shared->meet.what, meetIn, meetOut); };
  for (int64_t i = 0; i < shared->repeat; ++i) {
    if (meet())
      return 1;
    double begin = now();
    if (mw_rt_run_collective(context, 1, &shared->descriptor.what, in, out))
      return 1;
    shared->collective[rank].push_back(now() - begin);
    if (meet())
      return 1;
    begin = now();
    std::memcpy(shared->to[rank].get(), shared->from[rank].get(), shared->copied);
    shared->copy[rank].push_back(now() - begin);
  }
  return 0;
}

/// The median of the slowest rank's times.
double medianOf(const std::vector<std::vector<double>> &ranks) {
  std::vector<double> slowest;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    double worst = 0;
    for (const std::vector<double> &rank : ranks)
      worst = std::max(worst, rank[i]);
    slowest.push_back(worst);
  }
  std::nth_element(slowest.begin(), slowest.begin() + slowest.size() / 2, slowest.end());
  return slowest[slowest.size() / 2];
}

void describe(Descriptor &descriptor, const Case &test, int64_t ranks) {
  mw_rt_collective &what = descriptor.what;
  what.kind = test.kind;
  what.reduction = MW_RT_SUM;
  what.group.count = 1;
  what.group.axes[0] = {1, ranks};
  what.num_tensors = 1;
  mw_rt_moved_tensor &moved = what.tensors[0];
  moved.dtype = test.dtype;
  moved.rank = 2;
  moved.dim = 0;
  moved.to_dim = 1;
  moved.in_shape[0] = test.in;
  moved.out_shape[0] = test.out;
  moved.in_shape[1] = moved.out_shape[1] = 1024;
  if (test.kind == MW_RT_ALL_TO_ALL)
    moved.out_shape[1] /= ranks;
  what.extra = int64_t(sizeof(mw_rt_collective) / 8);
  for (int64_t i = 0; i < ranks; ++i)
    descriptor.table[i] = (i + 1) % ranks;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: collectives RANKS BYTES\n");
    return 2;
  }
  int64_t ranks = std::atoll(argv[1]), bytes = std::atoll(argv[2]);
  int64_t rows = std::max<int64_t>(ranks, bytes / 4096 / ranks * ranks);
  bytes = rows * 4096;
  const Case cases[] = {
      {"all-gather", MW_RT_ALL_GATHER, MW_F32, rows / ranks, rows, bytes},
      {"reduce-scatter", MW_RT_REDUCE_SCATTER, MW_F32, rows, rows / ranks,
       (bytes + bytes / ranks) / 2},
      {"all-reduce", MW_RT_ALL_REDUCE, MW_F32, rows, rows, bytes},
      {"all-reduce bf16", MW_RT_ALL_REDUCE, MW_BF16, 2 * rows, 2 * rows, bytes},
      {"all-to-all", MW_RT_ALL_TO_ALL, MW_F32, rows / ranks, rows, bytes},
      {"permute", MW_RT_PERMUTE, MW_F32, rows, rows, bytes},
  };
  std::string error;
  WorldPtr world = World::create("local", ranks, {"meet", "collective"}, error);
  if (!world) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  for (const Case &test : cases) {
    Shared shared;
    describe(shared.descriptor, test, ranks);
    describe(shared.meet, {"", MW_RT_ALL_REDUCE, MW_F32, 0, 0, 0}, ranks);
    shared.meet.what.tensors[0].in_shape[0] = shared.meet.what.tensors[0].out_shape[0] = 1;
    shared.meet.what.tensors[0].in_shape[1] = shared.meet.what.tensors[0].out_shape[1] = 1;
    shared.copied = test.copied;
    shared.repeat = std::clamp<int64_t>((int64_t(1) << 31) / (bytes * ranks), 20, 2000);
    shared.collective.resize(ranks);
    shared.copy.resize(ranks);
    std::vector<Argument> arguments;
    std::vector<RankBuffers> buffers(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (std::vector<Memory> *list :
           {&shared.inputs, &shared.outputs, &shared.from, &shared.to}) {
        list->push_back(allocate(bytes));
        if (!list->back()) {
          std::fprintf(stderr, "no memory for %s\n", formatBytes(bytes).c_str());
          return 1;
        }
        std::memset(list->back().get(), 0, bytes);
      }
      arguments.push_back({&shared, rank});
    }
    for (int64_t rank = 0; rank < ranks; ++rank)
      buffers[rank].arguments = {&arguments[rank]};
    if (!world->run(runRank, buffers, {}, error)) {
      std::fprintf(stderr, "%s\n", error.c_str());
      return 1;
    }
    std::printf("%s,%lld,%.3f,%.3f\n", test.name, (long long)bytes, medianOf(shared.collective),
                medianOf(shared.copy));
  }
  return 0;
}
