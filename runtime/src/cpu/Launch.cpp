//===- Launch.cpp - kernels over a rank's threads -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Context.h"

#include <algorithm>

using namespace meshwright::rt;

namespace {

struct Launch {
  mw_rt_kernel kernel;
  void *const *buffers;
  int64_t items;
  Workers *workers;
};

} // namespace

/// An equal part of the items, next to each other: the same for the same number of
/// threads, whoever is fast.
static void runPart(void *state, int64_t index, int64_t count) {
  const Launch &launch = *static_cast<const Launch *>(state);
  int64_t begin = launch.items * index / count, end = launch.items * (index + 1) / count;
  launch.kernel(launch.buffers, begin, end, launch.workers->getWorkspace(index).get(0));
}

int32_t mw_rt_run_kernel(mw_rt_context *context, int64_t op, const mw_rt_launch *what,
                         mw_rt_kernel kernel, void *const *buffers) {
  int64_t dtype = what->num_outputs > 0 ? what->outputs[0].dtype : -1;
  return call(context, op, TraceKind(what->kind), dtype, what->flops, what->bytes, [&] {
    Workers &workers = *context->workers;
    Launch launch{kernel, buffers, what->items, &workers};
    if (what->items == 0)
      return 0;
    int64_t shares = what->items / std::max<int64_t>(what->grain, 1);
    int64_t count = std::clamp<int64_t>(shares, 1, workers.getCount());
    for (int64_t i = 0; i < count; ++i)
      workers.getWorkspace(i).get(what->workspace);
    workers.run(count, runPart, &launch);
    for (int64_t i = 0; context->checkFinite && i < what->num_outputs; ++i)
      checkFinite(*context, op, i, what->outputs[i].dtype, buffers[what->num_inputs + i],
                  what->outputs[i].count);
    return 0;
  });
}
