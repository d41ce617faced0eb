//===- GpuCounted.cpp - the true rows of groups, on GPUs ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The numbers of true rows are an input, so they are on the GPU. The host gives copies and messages their
// sizes. So the first call that has the numbers waits for them, and further calls know them.
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/ranks/CountedRows.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <numeric>

namespace meshwright::rt::gpu {

static int64_t bytesOfRow(const mw_rt_counted_rows &what) { return what.inner * sizeOf(DType(what.dtype)); }

/// The numbers of the current call. Returns null after an error, or a failure of the run.
const int64_t *GpuDevice::readCounts(const Caller &caller, const mw_rt_counted_rows &what, const void *counts,
                                     std::string &error) {
  int64_t number = what.replicas * what.groups;
  std::vector<int64_t> &known = trueRows[what.source];
  if (what.source < 0 || known.empty()) {
    cuda::Stream *stream = getStream(caller.stream);
    auto *host = reinterpret_cast<int64_t *>(countedMemories.at(&what).host.get());
    check(cuda, cuda.cuMemcpyDtoHAsync(host, addressOf(counts), number * sizeof(int64_t), stream),
          "cuMemcpyDtoHAsync");
    mark(caller.op, stream);
    if (!awaitStream(stream))
      return nullptr;
    known.assign(host, host + number);
  }
  error = checkCounts(what, known.data());
  return error.empty() ? known.data() : nullptr;
}

/// Allocates the host's memory for the numbers of a call.
void GpuDevice::prepareCounted(const mw_rt_counted_rows &what) {
  CountedMemory &memory = countedMemories[&what];
  if (!memory.host)
    memory.host = processor->allocateHost(what.replicas * what.groups * sizeof(int64_t));
}

void GpuDevice::prepareExchanged(const Caller &caller, const mw_rt_exchanged_rows &what) {
  prepareCounted(what.rows);
  collectives->prepareMessages(caller, what.group.group);
}

//===----------------------------------------------------------------------===//
// In a rank
//===----------------------------------------------------------------------===//

bool GpuDevice::perform(const mw_rt_compact &call, void *const *buffers, std::string &error) {
  const mw_rt_counted_rows &what = call.rows;
  if (isPreparing()) {
    prepareCounted(what);
    return true;
  }
  return performAwaited([&] {
    const int64_t *counts = readCounts({context.rank, 0, context.position}, what, buffers[1], error);
    if (!counts)
      return false;
    cuda::Stream *stream = getStream(0);
    auto *from = static_cast<const char *>(buffers[0]);
    auto *to = static_cast<char *>(buffers[2]);
    int64_t bytes = bytesOfRow(what), end = 0;
    forEachGroup(what, counts, [&](int64_t ofGroup, int64_t ofReplica, int64_t rows) {
      // Rows between the last replica's true ones and this one's.
      helpers.clear(stream, to + end * bytes, (ofReplica - end) * bytes);
      helpers.copyBytes(stream, to + ofReplica * bytes, from + ofGroup * bytes, rows * bytes);
      end = ofReplica + rows;
    });
    helpers.clear(stream, to + end * bytes, (what.outer * what.replicas * what.capacity - end) * bytes);
    mark(context.position, stream);
    return true;
  });
}

bool GpuDevice::perform(const mw_rt_expand &call, void *const *buffers, std::string &error) {
  const mw_rt_counted_rows &what = call.rows;
  if (isPreparing()) {
    prepareCounted(what);
    return true;
  }
  return performAwaited([&] {
    const int64_t *counts = readCounts({context.rank, 0, context.position}, what, buffers[1], error);
    if (!counts)
      return false;
    cuda::Stream *stream = getStream(0);
    auto *from = static_cast<const char *>(buffers[0]);
    auto *to = static_cast<char *>(buffers[2]);
    int64_t bytes = bytesOfRow(what);
    forEachGroup(what, counts, [&](int64_t ofGroup, int64_t ofReplica, int64_t rows) {
      helpers.copyBytes(stream, to + ofGroup * bytes, from + ofReplica * bytes, rows * bytes);
      helpers.clear(stream, to + (ofGroup + rows) * bytes, (what.tokens - rows) * bytes);
    });
    mark(context.position, stream);
    return true;
  });
}

//===----------------------------------------------------------------------===//
// Between ranks
//===----------------------------------------------------------------------===//

/// The rows of each member behind those of the members before, from `data` on.
static std::vector<Piece> splitMembers(const std::vector<int64_t> &rows, const void *data, int64_t bytes) {
  std::vector<Piece> pieces;
  auto *next = const_cast<char *>(static_cast<const char *>(data));
  for (int64_t count : rows) {
    pieces.push_back({next, count * bytes});
    next += count * bytes;
  }
  return pieces;
}

/// One exchange for each outer index, so that all messages follow one another in memory.
bool GpuDevice::gatherCounted(const Caller &caller, const mw_rt_exchanged_rows &what, void *const *buffers,
                              std::string &error) {
  const int64_t *counts = readCounts(caller, what.rows, buffers[1], error);
  if (!counts)
    return false;
  cuda::Stream *stream = getStream(caller.stream);
  std::vector<int64_t> rows = countOwn(what, counts);
  int64_t bytes = bytesOfRow(what.rows), capacity = what.rows.capacity;
  int64_t own = rows[coordinateOf(what.group.group, context.rank)];
  int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t(0));
  for (int64_t i = 0; i < what.rows.outer; ++i) {
    char *from = static_cast<char *>(buffers[0]) + i * what.own * bytes;
    char *to = static_cast<char *>(buffers[2]) + i * capacity * bytes;
    // Each member gets the same rows.
    std::vector<Piece> sends(rows.size(), Piece{from, own * bytes});
    if (!collectives->exchange(caller, what.group.group, stream, sends, splitMembers(rows, to, bytes)))
      return false;
    helpers.clear(stream, to + sum * bytes, (capacity - sum) * bytes);
  }
  helpers.copyBytes(stream, buffers[3], buffers[1], what.rows.groups * sizeof(int64_t));
  mark(caller.op, stream);
  return true;
}

/// As `gatherCounted`; partial sums arrive in the order of ranks, in which they are added.
bool GpuDevice::scatterCounted(const Caller &caller, const mw_rt_exchanged_rows &what, void *const *buffers,
                               std::string &error) {
  const int64_t *counts = readCounts(caller, what.rows, buffers[1], error);
  if (!counts)
    return false;
  cuda::Stream *stream = getStream(caller.stream);
  std::vector<int64_t> rows = countOwn(what, counts);
  int64_t self = 0, members = rows.size(), bytes = bytesOfRow(what.rows);
  std::vector<int64_t> ranks = groupOf(what.group.group, context.rank, self);
  int64_t own = rows[self];
  char *partials = countedMemories.at(&what.rows).partials.get();
  std::vector<Piece> receives;
  for (int64_t rank : ranks) {
    int64_t before = std::count_if(ranks.begin(), ranks.end(), [&](int64_t other) { return other < rank; });
    receives.push_back({partials + before * own * bytes, own * bytes});
  }
  for (int64_t i = 0; i < what.rows.outer; ++i) {
    char *from = static_cast<char *>(buffers[0]) + i * what.rows.capacity * bytes;
    char *to = static_cast<char *>(buffers[2]) + i * what.own * bytes;
    if (!collectives->exchange(caller, what.group.group, stream, splitMembers(rows, from, bytes), receives))
      return false;
    helpers.reduce(stream, what.rows.dtype, what.group.reduction, to, partials, own * bytes, members,
                   own * what.rows.inner);
    helpers.clear(stream, to + own * bytes, (what.own - own) * bytes);
  }
  helpers.copyBytes(stream, buffers[3], buffers[1], what.rows.groups * sizeof(int64_t));
  mark(caller.op, stream);
  return true;
}

bool GpuDevice::perform(const Caller &caller, const mw_rt_all_gather_v &call, void *const *buffers,
                        std::string &error) {
  if (isPreparing()) {
    prepareExchanged(caller, call.what);
    return true;
  }
  return performAwaited([&] { return gatherCounted(caller, call.what, buffers, error); });
}

bool GpuDevice::perform(const Caller &caller, const mw_rt_reduce_scatter_v &call, void *const *buffers,
                        std::string &error) {
  const mw_rt_exchanged_rows &what = call.what;
  if (!isPreparing())
    return performAwaited([&] { return scatterCounted(caller, what, buffers, error); });
  prepareExchanged(caller, what);
  int64_t members = sizeOfGroup(what.group.group), bytes = members * what.own * bytesOfRow(what.rows);
  DeviceMemory &partials = countedMemories.at(&what.rows).partials;
  if (!partials && !(partials = processor->allocate(bytes)))
    throw Failure("no memory on the GPU for the " + formatBytes(bytes) + " of partial sums of true rows");
  helpers.reduce(nullptr, what.rows.dtype, what.group.reduction, nullptr, nullptr, 0, members, 0);
  return true;
}

} // namespace meshwright::rt::gpu
