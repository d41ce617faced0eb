//===- PeerCollectives.cpp - collectives by copies between GPUs -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank copies what it receives from the memory of the others, so all of them are in one process.
//
// - A rank records an event when its inputs are ready, and shows it with their addresses. The threads
//   of the group meet, and each stream waits for the events of all others.
// - Each rank copies, to its outputs or to staging memory, and records that it is done. After a second
//   meeting each stream waits for these events, so that no input changes before.
// - Sums are combined in the order of ranks, as the backend `local` combines them.
//
//===----------------------------------------------------------------------===//

#include "NcclCollectives.h"
#include "meshwright/runtime/gpu/GpuDevice.h"

#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>

namespace meshwright::rt::gpu {

namespace {

class PeerCollectives : public Collectives {
public:
  PeerCollectives(int64_t rank, std::shared_ptr<Processor> given, Meetings &meetings)
      : rank(rank), processor(std::move(given)), meetings(meetings), helpers(*processor) {}

  void prepare(const Caller &caller, const mw_rt_collective &what) override;
  bool run(const Caller &caller, const mw_rt_collective &what, cuda::Stream *stream,
           const void *const *inputs, void *const *outputs) override;
  void prepareMessages(const Caller &caller, const mw_rt_axes &group) override;
  bool exchange(const Caller &caller, const mw_rt_axes &group, cuda::Stream *stream,
                const std::vector<Piece> &sends, const std::vector<Piece> &receives) override;
  bool canRecord() const override { return false; }

private:
  /// Where a rank meets the others of its group.
  struct Place {
    explicit Place(Processor &processor) : ready(processor), done(processor) {}
    Meeting *meeting = nullptr;
    int64_t self = 0;
    Event ready, done;
  };
  /// A rank's part in a collective.
  struct Plan : Place {
    using Place::Place;
    /// Coordinates in the order of their ranks.
    std::vector<int64_t> byRank;
    /// By tensor; empty if whole inputs are combined.
    std::vector<Arrivals> arrivals;
    /// By tensor: what is combined, an array for each member.
    std::vector<DeviceMemory> staging;
  };

  template <typename Copy>
  bool meet(Place &place, const Caller &caller, cuda::Stream *stream, std::vector<const void *> inputs, Copy copy);
  void copy(const Plan &plan, const mw_rt_collective &what, cuda::Stream *stream,
            const std::vector<Shown> &shown, void *const *outputs);
  void combine(const Plan &plan, const mw_rt_collective &what, cuda::Stream *stream,
               void *const *outputs);

  const int64_t rank;
  std::shared_ptr<Processor> processor;
  Meetings &meetings;
  HelperKernels helpers;
  std::map<std::pair<int64_t, const mw_rt_collective *>, Plan> plans;
  /// Of messages, by stream and the ranks of the group.
  std::map<std::pair<int64_t, std::vector<int64_t>>, Place> places;
};

} // namespace

static bool combines(const mw_rt_collective &what) {
  Exchange exchange = exchangeOf(what);
  return exchange == Exchange::Combine || exchange == Exchange::CombineBoxes;
}

void PeerCollectives::prepare(const Caller &caller, const mw_rt_collective &what) {
  auto [found, isNew] = plans.try_emplace({caller.stream, &what}, *processor);
  if (!isNew)
    return;
  Plan &plan = found->second;
  std::vector<int64_t> ranks = groupOf(what.group, rank, plan.self);
  plan.meeting = &meetings.join(caller.stream, ranks);
  plan.byRank.resize(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i)
    plan.byRank[i] = i;
  std::sort(plan.byRank.begin(), plan.byRank.end(),
            [&](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    if (exchangeOf(what) != Exchange::Combine)
      plan.arrivals.push_back(arrivalsOf(what, i, rank));
    if (!combines(what))
      continue;
    int64_t bytes = countAfter(moved) * sizeOf(DType(moved.dtype)) * int64_t(ranks.size());
    plan.staging.push_back(processor->allocate(bytes));
    if (!plan.staging.back())
      throw Failure("no memory on the GPU for the " + formatBytes(bytes) +
                    " that a collective combines");
  }
  // Loads the kernels. The addresses have the alignment of buffers.
  helpers.prepares = true;
  std::vector<void *> none(what.num_tensors, nullptr);
  std::vector<Shown> shown(ranks.size());
  for (Shown &one : shown)
    one.inputs.assign(what.num_tensors, nullptr);
  copy(plan, what, nullptr, shown, none.data());
  combine(plan, what, nullptr, none.data());
  helpers.prepares = false;
}

/// Copies what the rank receives: to its outputs, or to the staging memory of what it combines.
void PeerCollectives::copy(const Plan &plan, const mw_rt_collective &what, cuda::Stream *stream,
                           const std::vector<Shown> &shown, void *const *outputs) {
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    int64_t bytes = countAfter(moved) * sizeOf(DType(moved.dtype));
    auto slot = [&](size_t index) { return plan.staging[i].get() + index * bytes; };
    auto indexOf = [&](int64_t member) {
      return std::find(plan.byRank.begin(), plan.byRank.end(), member) - plan.byRank.begin();
    };
    if (exchangeOf(what) == Exchange::Combine) {
      for (size_t index = 0; index < plan.byRank.size(); ++index)
        helpers.copyBytes(stream, slot(index), shown[plan.byRank[index]].inputs[i], bytes);
      continue;
    }
    const Arrivals &arrivals = plan.arrivals[i];
    bool isStaged = combines(what);
    if (arrivals.clears)
      helpers.clear(stream, isStaged ? slot(0) : outputs[i],
                    isStaged ? bytes * int64_t(plan.byRank.size()) : bytes);
    for (const Move &move : arrivals.moves)
      helpers.copyBox(stream, isStaged ? slot(indexOf(move.from)) : outputs[i],
                      shown[move.from].inputs[i],
                      Box::make(arrivals.inShape, move.source, arrivals.outShape,
                                move.destination, move.extents, arrivals.elementSize));
  }
}

void PeerCollectives::combine(const Plan &plan, const mw_rt_collective &what,
                              cuda::Stream *stream, void *const *outputs) {
  for (int64_t i = 0; combines(what) && i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    int64_t count = countAfter(moved);
    helpers.reduce(stream, moved.dtype, what.reduction, outputs[i], plan.staging[i].get(),
                   count * sizeOf(DType(moved.dtype)), int64_t(plan.byRank.size()), count);
  }
}

/// Shows the others the addresses of inputs, and lets `copy` read theirs.
template <typename Copy>
bool PeerCollectives::meet(Place &place, const Caller &caller, cuda::Stream *stream,
                           std::vector<const void *> inputs, Copy copy) {
  Meeting &meeting = *place.meeting;
  place.ready.record(stream);
  meeting.shown[place.self] = {caller.op, place.ready.get(), std::move(inputs)};
  if (!meetings.meet(meeting, caller, place.self))
    return false;
  std::vector<Shown> shown = meeting.shown;
  const Cuda &cuda = processor->getCuda();
  auto awaitAll = [&](const std::vector<Shown> &others) {
    for (size_t i = 0; i < others.size(); ++i)
      if (int64_t(i) != place.self)
        check(cuda, cuda.cuStreamWaitEvent(stream, others[i].event, 0), "cuStreamWaitEvent");
  };
  for (size_t i = 0; i < shown.size(); ++i)
    if (shown[i].op != caller.op) {
      World &world = meetings.getWorld();
      world.fail(caller.rank, caller.op,
                 "rank " + std::to_string(meeting.ranks[i]) +
                     " is at another collective: " + world.getOpName(shown[i].op));
      return false;
    }
  awaitAll(shown);
  copy(shown);
  place.done.record(stream);
  // No rank shows another event before all have read the first.
  if (!meetings.meet(meeting, caller, place.self))
    return false;
  meeting.shown[place.self].event = place.done.get();
  if (!meetings.meet(meeting, caller, place.self))
    return false;
  std::vector<Shown> ended = meeting.shown;
  if (!meetings.meet(meeting, caller, place.self))
    return false;
  awaitAll(ended);
  return true;
}

bool PeerCollectives::run(const Caller &caller, const mw_rt_collective &what,
                          cuda::Stream *stream, const void *const *inputs,
                          void *const *outputs) {
  Plan &plan = plans.at({caller.stream, &what});
  // Not in braces: they would be a list of two addresses.
  std::vector<const void *> mine(inputs, inputs + what.num_tensors);
  if (!meet(plan, caller, stream, std::move(mine),
            [&](const std::vector<Shown> &shown) { copy(plan, what, stream, shown, outputs); }))
    return false;
  combine(plan, what, stream, outputs);
  return true;
}

void PeerCollectives::prepareMessages(const Caller &caller, const mw_rt_axes &group) {
  int64_t self = 0;
  std::vector<int64_t> ranks = groupOf(group, rank, self);
  Place &place = places.try_emplace({caller.stream, ranks}, *processor).first->second;
  place.meeting = &meetings.join(caller.stream, ranks);
  place.self = self;
}

/// A rank shows where its messages to each member are.
bool PeerCollectives::exchange(const Caller &caller, const mw_rt_axes &group, cuda::Stream *stream,
                               const std::vector<Piece> &sends, const std::vector<Piece> &receives) {
  int64_t self = 0;
  Place &place = places.at({caller.stream, groupOf(group, rank, self)});
  std::vector<const void *> mine;
  for (const Piece &message : sends)
    mine.push_back(message.data);
  return meet(place, caller, stream, std::move(mine), [&](const std::vector<Shown> &shown) {
    for (size_t i = 0; i < shown.size(); ++i)
      helpers.copyBytes(stream, receives[i].data, shown[i].inputs[self], receives[i].bytes);
  });
}

std::unique_ptr<Collectives> createPeerCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   Meetings &meetings) {
  return std::make_unique<PeerCollectives>(rank, std::move(processor), meetings);
}

} // namespace meshwright::rt::gpu
