//===- GpuRows.cpp - rows of experts that move between GPUs ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A message has the size that the host gives it, and the number of rows is known on the GPU. So the first
// call that moves rows of a routing sends the offsets, and the host waits for them. Further calls of the
// routing, also those of the backward pass, know the numbers (docs/rationale/gpu-moved-rows.md).
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>

namespace meshwright::rt::gpu {

static constexpr int64_t kNumber = sizeof(int64_t);

namespace {

/// The numbers of a call in the memory of the host, one list after another.
struct HostNumbers {
  HostNumbers(const mw_rt_moved_rows &what, int64_t members, char *memory)
      : offsets(reinterpret_cast<int64_t *>(memory)), arrived(offsets + what.experts + 1),
        parts(arrived + members * (what.own + 1)), own(parts + what.own * members + 1),
        order(own + what.own + 1) {}

  int64_t *offsets, *arrived, *parts, *own, *order;
};

} // namespace

/// The first of a member's experts, and the end.
static std::pair<int64_t, int64_t> expertsOf(const mw_rt_moved_rows &what, int64_t member) {
  return {std::min(member * what.own, what.experts), std::min((member + 1) * what.own, what.experts)};
}

/// Messages of rows that follow one another, in the order of members.
static std::vector<Piece> splitRows(const RowCounts &counts, const void *rows, int64_t bytes) {
  std::vector<Piece> messages;
  auto *next = const_cast<char *>(static_cast<const char *>(rows));
  for (int64_t size : counts.times(bytes)) {
    messages.push_back({next, size});
    next += size;
  }
  return messages;
}

/// Allocates what a call needs, for `moved` rows at most that stand in another order.
void GpuDevice::prepareRows(const Caller &caller, const mw_rt_moved_rows &what, int64_t moved) {
  collectives->prepareMessages(caller, what.group.group);
  RowMemory &memory = rowMemories.try_emplace(&what, *processor).first->second;
  int64_t members = sizeOfGroup(what.group.group), bytes = what.inner * sizeOf(DType(what.dtype));
  helpers.gatherRows(nullptr, nullptr, nullptr, nullptr, 1, moved, moved, bytes);
  if (memory.host)
    return;
  auto allocate = [&](int64_t size) {
    DeviceMemory made = processor->allocate(std::max<int64_t>(size, 1));
    if (!made)
      throw Failure("no memory on the GPU for the " + formatBytes(size) + " of rows that move");
    return made;
  };
  memory.offsets = allocate(members * (what.own + 1) * kNumber);
  // With one expert a rank, the orders are the same.
  int64_t ordered = what.own > 1 ? moved : 0;
  memory.order = allocate(ordered * kNumber);
  memory.rows = allocate(ordered * bytes);
  HostNumbers numbers(what, members, nullptr);
  memory.host = processor->allocateHost((numbers.order + ordered - numbers.offsets) * kNumber);
}

/// Waits until the host may write a call's numbers. Returns false after a failure of the run.
bool GpuDevice::openMemory(RowMemory &memory, cuda::Stream *stream) {
  return cuda.cuEventQuery(memory.copied.get()) != cuda::NotReady || awaitStream(stream);
}

/// The numbers of rows that go and come. Returns null after a failure of the run.
const GpuDevice::Traffic *GpuDevice::countRows(const Caller &caller, const mw_rt_moved_rows &what,
                                               const void *offsets, RowMemory &memory) {
  int64_t self = 0;
  std::vector<int64_t> group = groupOf(what.group.group, context.rank, self);
  Traffic &found = traffic[{what.routing, group}];
  // The call may come again, with other rows.
  if (what.routing >= 0 && found.by && found.by != &what)
    return &found;
  int64_t members = group.size();
  cuda::Stream *stream = getStream(caller.stream);
  HostNumbers host(what, members, memory.host.get());
  // Offsets of a member's experts, and of their end.
  std::vector<Piece> sends, receives;
  auto [ownFirst, ownEnd] = expertsOf(what, self);
  int64_t own = ownEnd - ownFirst, each = what.own + 1;
  for (int64_t member = 0; member < members; ++member) {
    auto [first, end] = expertsOf(what, member);
    auto *data = const_cast<char *>(static_cast<const char *>(offsets)) + first * kNumber;
    sends.push_back({data, (end - first + 1) * kNumber});
    receives.push_back({memory.offsets.get() + member * each * kNumber, (own + 1) * kNumber});
  }
  if (!collectives->exchange(caller, what.group.group, stream, sends, receives))
    return nullptr;
  auto copyOut = [&](int64_t *to, const void *from, int64_t count) {
    check(cuda, cuda.cuMemcpyDtoHAsync(to, addressOf(from), count * kNumber, stream), "cuMemcpyDtoHAsync");
  };
  copyOut(host.offsets, offsets, what.experts + 1);
  copyOut(host.arrived, memory.offsets.get(), members * each);
  mark(caller.op, stream);
  if (!awaitStream(stream))
    return nullptr;
  found.by = &what;
  found.sent = countSent(what, members, host.offsets);
  found.received = RowCounts(members, what.own);
  for (int64_t member = 0; member < members; ++member)
    for (int64_t expert = 0; expert < own; ++expert) {
      const int64_t *arrived = host.arrived + member * each + expert;
      found.received.at(member, expert) = arrived[1] - arrived[0];
    }
  return &found;
}

/// Copies to the GPU where each row is in the other order.
const char *GpuDevice::writeOrder(RowMemory &memory, int64_t *order, const RowCounts &counts, bool byExpert,
                                  cuda::Stream *stream) {
  forEachPart(counts, [&](int64_t ofMember, int64_t ofExpert, int64_t rows) {
    std::iota(order + (byExpert ? ofExpert : ofMember), order + (byExpert ? ofExpert : ofMember) + rows,
              byExpert ? ofMember : ofExpert);
  });
  check(cuda,
        cuda.cuMemcpyHtoDAsync(addressOf(memory.order.get()), order, counts.ofAll() * kNumber, stream),
        "cuMemcpyHtoDAsync");
  return memory.order.get();
}

/// Integers of rows that do not exist are numbers that any lookup takes. Other rows need not be written.
void GpuDevice::clearIntegers(const mw_rt_moved_rows &what, char *rows, int64_t first, cuda::Stream *stream) {
  int64_t bytes = what.inner * sizeOf(DType(what.dtype));
  if (!isFloat(DType(what.dtype)))
    helpers.clear(stream, rows + first * bytes, (what.to_capacity - first) * bytes);
}

bool GpuDevice::sendRows(const Caller &caller, const mw_rt_moved_rows &what, void *const *buffers,
                         std::string &error) {
  RowMemory &memory = rowMemories.at(&what);
  int64_t members = sizeOfGroup(what.group.group), bytes = what.inner * sizeOf(DType(what.dtype));
  const Traffic *counts = countRows(caller, what, buffers[1], memory);
  cuda::Stream *stream = getStream(caller.stream);
  if (!counts || !openMemory(memory, stream))
    return false;
  HostNumbers host(what, members, memory.host.get());
  int64_t total = placeParts(counts->received, host.parts, host.own);
  if (what.layer >= 0) {
    ExpertRows &report = arrived[what.layer];
    report.first = coordinateOf(what.group.group, context.rank) * what.own;
    report.rows.clear();
    for (int64_t expert = 0; expert < what.own; ++expert)
      report.rows.push_back(host.own[expert + 1] - host.own[expert]);
  }
  error = checkRoom(what, total);
  if (!error.empty())
    return false;
  auto copyIn = [&](void *to, const int64_t *from, int64_t count) {
    check(cuda, cuda.cuMemcpyHtoDAsync(addressOf(to), from, count * kNumber, stream), "cuMemcpyHtoDAsync");
  };
  copyIn(buffers[3], host.parts, what.own * members + 1);
  copyIn(buffers[4], host.own, what.own + 1);
  auto *rows = static_cast<char *>(buffers[2]);
  bool isOrdered = what.own == 1;
  if (!collectives->exchange(caller, what.group.group, stream,
                             splitRows(counts->sent, buffers[0], bytes),
                             splitRows(counts->received, isOrdered ? rows : memory.rows.get(), bytes)))
    return false;
  if (!isOrdered && total > 0)
    helpers.gatherRows(stream, rows, memory.rows.get(),
                       writeOrder(memory, host.order, counts->received, /*byExpert=*/true, stream), 1, total, total,
                       bytes);
  memory.copied.record(stream);
  clearIntegers(what, rows, total, stream);
  mark(caller.op, stream);
  return true;
}

bool GpuDevice::returnRows(const Caller &caller, const mw_rt_moved_rows &what, void *const *buffers) {
  RowMemory &memory = rowMemories.at(&what);
  int64_t members = sizeOfGroup(what.group.group), bytes = what.inner * sizeOf(DType(what.dtype));
  const Traffic *counts = countRows(caller, what, buffers[2], memory);
  cuda::Stream *stream = getStream(caller.stream);
  if (!counts || !openMemory(memory, stream))
    return false;
  HostNumbers host(what, members, memory.host.get());
  const void *leaving = buffers[0];
  // Rows that came go back.
  int64_t leave = counts->received.ofAll(), arrive = counts->sent.ofAll();
  if (what.own > 1 && leave > 0) {
    helpers.gatherRows(stream, memory.rows.get(), leaving,
                       writeOrder(memory, host.order, counts->received, /*byExpert=*/false, stream), 1, leave, leave,
                       bytes);
    leaving = memory.rows.get();
  }
  memory.copied.record(stream);
  auto *rows = static_cast<char *>(buffers[3]);
  if (!collectives->exchange(caller, what.group.group, stream,
                             splitRows(counts->received, leaving, bytes),
                             splitRows(counts->sent, rows, bytes)))
    return false;
  clearIntegers(what, rows, arrive, stream);
  mark(caller.op, stream);
  return true;
}

/// Messages of sizes that a call finds cannot be in a graph that other calls repeat.
bool GpuDevice::performAwaited(const std::function<bool()> &body) {
  return graphOp >= 0 ? performOutside(body) : body();
}

bool GpuDevice::perform(const Caller &caller, const mw_rt_send_rows &send, void *const *buffers,
                        std::string &error) {
  if (isPreparing()) {
    prepareRows(caller, send.what, send.what.to_capacity);
    return true;
  }
  return performAwaited([&] { return sendRows(caller, send.what, buffers, error); });
}

bool GpuDevice::perform(const Caller &caller, const mw_rt_return_rows &back, void *const *buffers,
                        std::string &) {
  if (isPreparing()) {
    prepareRows(caller, back.what, back.what.from_capacity);
    return true;
  }
  return performAwaited([&] { return returnRows(caller, back.what, buffers); });
}

} // namespace meshwright::rt::gpu
