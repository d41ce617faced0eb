//===- CpuDevice.cpp - the processor of the host as a device --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/runtime/src/ranks/CallFacts.h"
#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/ranks/Link.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Packing.h"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace meshwright::rt {

std::unique_ptr<Device> createCpuDevice(mw_rt_context &rank, HostCollectives &collectives) {
  return std::make_unique<CpuDevice>(rank, collectives);
}

CpuDevice::CpuDevice(mw_rt_context &rank, HostCollectives &given)
    : context(rank), collectives(&given), streams(rank) {
  if (const Link *link = rank.world->getLink()) {
    throttled = throttle(*rank.world, rank.rank, given, *link);
    collectives = throttled.get();
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

DeviceMemory CpuDevice::allocate(int64_t bytes) { return rt::allocate(bytes); }

/// Copies by stores past the caches where there are more bytes than they hold for long: memory is then
/// not read before it is written. The addresses need no alignment.
static void copyPastCaches(void *to, const void *from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t least = 1 << 20, line = 64;
  auto *target = static_cast<char *>(to);
  auto *source = static_cast<const char *>(from);
  if (bytes >= least) {
    int64_t head = -reinterpret_cast<uintptr_t>(target) & (line - 1);
    std::memcpy(target, source, head);
    int64_t at = head;
    for (; at + line <= bytes; at += line)
      for (int64_t i = at; i < at + line; i += 16)
        _mm_stream_si128(reinterpret_cast<__m128i *>(target + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + i)));
    _mm_sfence();
    std::memcpy(target + at, source + at, bytes - at);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

bool CpuDevice::copyIn(void *device, const void *host, int64_t bytes, std::string &) {
  std::memcpy(device, host, bytes);
  return true;
}

bool CpuDevice::copyOut(void *host, const void *device, int64_t bytes, std::string &) {
  std::memcpy(host, device, bytes);
  return true;
}

bool CpuDevice::copy(void *to, const void *from, int64_t bytes, std::string &) {
  copyPastCaches(to, from, bytes);
  return true;
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

void CpuDevice::prepare(const HostThreads &threads) {
  if (!workers || workers->getCount() != threads.count) {
    workers.reset();
    workers = std::make_unique<Workers>(context.rank, threads.count);
  }
  workers->setSpin(threads.computeSpin);
  streams.setSpin(threads.streamSpin);
}

void CpuDevice::enterThread() {
  // The workers are this rank's threads; those of libraries would compete with them.
  setThreadsOfLibraries(1);
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

namespace {

struct Launch {
  mw_rt_kernel kernel;
  void *const *buffers;
  int64_t items;
  Workers *workers;
};

} // namespace

/// Does part `index` of `count` equal, contiguous parts of the items. The parts depend on
/// `count` alone, never on which thread is fast.
static void runPart(void *state, int64_t index, int64_t count) {
  const Launch &launch = *static_cast<const Launch *>(state);
  int64_t begin = launch.items * index / count, end = launch.items * (index + 1) / count;
  launch.kernel(launch.buffers, begin, end, launch.workers->getWorkspace(index).get(0));
}

bool CpuDevice::launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
                       std::string &) {
  int64_t items = what.items;
  if (what.rows && what.items_are_rows) {
    int64_t rows = static_cast<const int64_t *>(buffers[what.counter])[what.last], rest = items % what.rows;
    items = items / what.rows * rows + (rest * rows + what.rows - 1) / what.rows;
  }
  if (items == 0)
    return true;
  Launch launch{kernel, buffers, items, workers.get()};
  int64_t shares = items / std::max<int64_t>(what.grain, 1);
  int64_t count = std::clamp<int64_t>(shares, 1, workers->getCount());
  for (int64_t i = 0; i < count; ++i)
    workers->getWorkspace(i).get(what.workspace);
  workers->run(count, runPart, &launch);
  return true;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

bool CpuDevice::performs(int64_t kind) const {
  return std::find(std::begin(kCpuCalls), std::end(kCpuCalls), kind) != std::end(kCpuCalls);
}

bool CpuDevice::perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
                        std::string &error) {
  switch (what.kind) {
#define MW_RT_KIND(name)                                                                           \
  case kCallKind<mw_rt_##name>:                                                                    \
    return perform(caller, reinterpret_cast<const mw_rt_##name &>(what), buffers, error);
    MW_RT_CPU_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
  }
  return refuse(what, error);
}

bool CpuDevice::perform(const mw_rt_gemm &what, void *const *buffers, std::string &error) {
  return gemm.multiply(what, buffers[0], buffers[1], buffers[2], buffers[3], *workers, error);
}

bool CpuDevice::perform(const mw_rt_weight_grad &what, void *const *buffers, std::string &error) {
  return gemm.weightGrad(what, buffers[0], buffers[1], buffers[2], *workers, error);
}

bool CpuDevice::perform(const mw_rt_pack &what, void *const *buffers, std::string &) {
  struct Matrix {
    const mw_rt_packing &what;
    const void *from;
    void *to;
  } matrix{what.packing, buffers[0], buffers[1]};
  auto packPart = [](void *state, int64_t index, int64_t count) {
    const Matrix &matrix = *static_cast<const Matrix *>(state);
    int64_t panels = packedPanels(matrix.what);
    packPanels(matrix.what, matrix.from, matrix.to, panels * index / count,
               panels * (index + 1) / count);
  };
  int64_t panels = packedPanels(what.packing);
  workers->run(std::clamp<int64_t>(panels, 1, workers->getCount()), packPart, &matrix);
  return true;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

bool CpuDevice::runCollective(const Caller &caller, const mw_rt_collective &what,
                              const void *const *inputs, void *const *outputs, std::string &) {
  if (communicates(what))
    return collectives->run(caller, what, inputs, outputs);
  cut(what, inputs, outputs);
  return true;
}

bool CpuDevice::start(const Caller &caller, const mw_rt_collective &what, int64_t ticket,
                      const void *const *inputs, void *const *outputs, std::string &error) {
  Ticket::Work work;
  work.collective = &what;
  work.inputs.assign(inputs, inputs + what.num_tensors);
  work.outputs.assign(outputs, outputs + what.num_tensors);
  return streams.start(caller, std::move(work), ticket, error);
}

bool CpuDevice::start(const Caller &caller, const mw_rt_call &what, int64_t ticket,
                      void *const *buffers, std::string &error) {
  Ticket::Work work;
  work.call = &what;
  work.outputs.assign(buffers, buffers + getFacts(what, buffers).exchanged);
  return streams.start(caller, std::move(work), ticket, error);
}

bool CpuDevice::wait(int64_t ticket, std::string &error) { return streams.wait(ticket, error); }

} // namespace meshwright::rt
