//===- NcclCollectives.cpp - collectives by NCCL --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// NCCL sends and receives contiguous messages. Where a collective moves an inner dimension, or a part
// of one, the boxes of its messages are packed into staging memory before and unpacked from there
// behind. Both ends compute the boxes of a message in the same order.
//
//===----------------------------------------------------------------------===//

#include "NcclCollectives.h"

#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <numeric>

namespace meshwright::rt::gpu {

/// The alignment of packed boxes in staging memory.
static constexpr int64_t kPackedAlignment = 256;

//===----------------------------------------------------------------------===//
// Ranks
//===----------------------------------------------------------------------===//

/// The first rank that comes makes the id.
bool NcclWorld::meetThreads(int64_t rank, nccl::UniqueId &id) {
  std::vector<int64_t> everybody(world.getNumRanks());
  std::iota(everybody.begin(), everybody.end(), 0);
  if (!meetings.meet(meetings.join(-1, everybody), {rank, 0, -1}, rank))
    return false;
  std::lock_guard<std::mutex> lock(mutex);
  if (users == 0)
    check(nccl, nccl.ncclGetUniqueId(&shared), "ncclGetUniqueId");
  users = (users + 1) % world.getNumRanks();
  id = shared;
  return true;
}

bool NcclWorld::meet(int64_t rank, nccl::UniqueId &id) {
  if (!processes)
    return meetThreads(rank, id);
  if (rank == 0)
    check(nccl, nccl.ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::vector<std::string> all;
  std::string error;
  if (!processes->exchange(rank == 0 ? std::string(id.internal, sizeof(id.internal)) : "",
                           world.getTimeout(), all, error)) {
    world.fail(error);
    return false;
  }
  all.front().copy(id.internal, sizeof(id.internal));
  return true;
}

namespace {

class NcclCollectives : public Collectives {
public:
  NcclCollectives(int64_t rank, std::shared_ptr<Processor> given, NcclWorld &ranks)
      : rank(rank), processor(std::move(given)), ranks(ranks), nccl(ranks.getNccl()),
        helpers(*processor) {}
  ~NcclCollectives() override { close(/*aborts=*/false); }

  void prepare(const Caller &caller, const mw_rt_collective &what) override;
  bool finishPreparing() override;
  bool run(const Caller &caller, const mw_rt_collective &what, cuda::Stream *stream,
           const void *const *inputs, void *const *outputs) override;
  void prepareMessages(const Caller &caller, const mw_rt_axes &group) override;
  bool exchange(const Caller &caller, const mw_rt_axes &group, cuda::Stream *stream,
                const std::vector<Piece> &sends, const std::vector<Piece> &receives) override;
  bool broadcast(int64_t from, void *data, int64_t bytes, cuda::Stream *stream) override;
  void abort() override { close(/*aborts=*/true); }
  std::string getError() override;
  bool canRecord() const override { return true; }
  bool crossesProcesses() const override { return ranks.areProcesses(); }

private:
  /// A box of a tensor that is packed to or unpacked from staging memory.
  struct Packed {
    int64_t tensor;
    Box box;
  };
  /// All that goes to or comes from one member, in staging memory.
  struct Staged {
    int64_t peer, offset, bytes;
  };
  using Key = std::pair<int64_t, std::vector<int64_t>>;
  struct Plan {
    Key key;
    std::vector<Packed> pack, local, unpack;
    std::vector<Staged> sends, receives;
    /// The outputs that are cleared first, and their bytes.
    std::vector<std::pair<int64_t, int64_t>> clears;
    /// Of boxes that are combined, by tensor: where its packed chunks begin.
    std::vector<int64_t> chunks;
    int64_t bytes = 0;
    bool clearsStaging = false;
    DeviceMemory staging;
  };

  void planExchange(const mw_rt_collective &what, const std::vector<int64_t> &group, int64_t self,
                    Plan &plan);
  void planScatter(const mw_rt_collective &what, const std::vector<int64_t> &group, int64_t self,
                   Plan &plan);
  void moveBoxes(const Plan &plan, const std::vector<Packed> &boxes, cuda::Stream *stream,
                 const void *const *inputs, void *const *outputs);
  void need(const Key &key);
  bool connect();
  void close(bool aborts);

  const int64_t rank;
  std::shared_ptr<Processor> processor;
  NcclWorld &ranks;
  const Nccl &nccl;
  HelperKernels helpers;
  std::map<std::pair<int64_t, const mw_rt_collective *>, Plan> plans;
  /// Of all ranks, by number. Null until `connect`.
  nccl::Communicator *all = nullptr;
  /// By stream and the ranks in the order of their coordinates. Null until `finishPreparing`.
  std::map<Key, nccl::Communicator *> communicators;
  /// The keys without a communicator, in the order of their first collectives. It is the same on all
  /// ranks, except for the ranks in the keys.
  std::vector<Key> missing;
};

} // namespace

static nccl::Type getType(int64_t dtype) {
  switch (DType(dtype)) {
  case DType::F32:
    return nccl::Float32;
  case DType::BF16:
    return nccl::Bfloat16;
  case DType::F16:
    return nccl::Float16;
  case DType::F64:
    return nccl::Float64;
  case DType::I64:
    return nccl::Int64;
  case DType::I32:
    return nccl::Int32;
  case DType::I1:
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    return nccl::Uint8;
  }
  return nccl::Uint8;
}

/// The sum of truth values is their logical or.
static nccl::Reduction getReduction(const mw_rt_collective &what, int64_t dtype) {
  return what.reduction == MW_RT_MAX || DType(dtype) == DType::I1 ? nccl::Maximum : nccl::Sum;
}

static int64_t alignPacked(int64_t bytes) {
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

void NcclCollectives::planExchange(const mw_rt_collective &what,
                                   const std::vector<int64_t> &group, int64_t self, Plan &plan) {
  auto add = [&](std::vector<Packed> &boxes, std::vector<Staged> &messages, int64_t peer,
                 int64_t receiver, int64_t sender, bool isSent) {
    Staged message{peer, plan.bytes, 0};
    for (int64_t i = 0; i < what.num_tensors; ++i) {
      Arrivals arrivals = arrivalsOf(what, i, group[receiver]);
      for (const Move &move : arrivals.moves) {
        if (move.from != sender)
          continue;
        std::vector<int64_t> origin(move.extents.size(), 0);
        Box box = isSent ? Box::make(arrivals.inShape, move.source, move.extents, origin,
                                     move.extents, arrivals.elementSize)
                         : Box::make(move.extents, origin, arrivals.outShape, move.destination,
                                     move.extents, arrivals.elementSize);
        (isSent ? box.toOffset : box.fromOffset) += plan.bytes;
        plan.bytes += alignPacked(box.getBytes());
        boxes.push_back({i, std::move(box)});
      }
    }
    message.bytes = plan.bytes - message.offset;
    if (message.bytes > 0)
      messages.push_back(message);
  };
  for (int64_t peer = 0; peer < int64_t(group.size()); ++peer) {
    if (peer == self)
      continue;
    add(plan.pack, plan.sends, peer, /*receiver=*/peer, /*sender=*/self, /*isSent=*/true);
    add(plan.unpack, plan.receives, peer, /*receiver=*/self, /*sender=*/peer, /*isSent=*/false);
  }
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    Arrivals arrivals = arrivalsOf(what, i, rank);
    if (arrivals.clears)
      plan.clears.emplace_back(i, countOf(arrivals.outShape) * arrivals.elementSize);
    for (const Move &move : arrivals.moves)
      if (move.from == self)
        plan.local.push_back({i, Box::make(arrivals.inShape, move.source, arrivals.outShape,
                                           move.destination, move.extents,
                                           arrivals.elementSize)});
  }
}

void NcclCollectives::planScatter(const mw_rt_collective &what,
                                  const std::vector<int64_t> &group, int64_t self, Plan &plan) {
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    int64_t chunk = countAfter(moved) * sizeOf(DType(moved.dtype));
    plan.chunks.push_back(plan.bytes);
    for (size_t member = 0; member < group.size(); ++member) {
      Arrivals arrivals = arrivalsOf(what, i, group[member]);
      plan.clearsStaging |= arrivals.clears;
      for (const Move &move : arrivals.moves)
        if (move.from == self) {
          Box box = Box::make(arrivals.inShape, move.source, arrivals.outShape, move.destination,
                              move.extents, arrivals.elementSize);
          box.toOffset += plan.bytes + int64_t(member) * chunk;
          plan.pack.push_back({i, std::move(box)});
        }
    }
    plan.bytes += alignPacked(chunk * int64_t(group.size()));
  }
}

/// Notes that a key has no communicator yet.
void NcclCollectives::need(const Key &key) {
  if (communicators.try_emplace(key, nullptr).second)
    missing.push_back(key);
}

void NcclCollectives::prepareMessages(const Caller &caller, const mw_rt_axes &group) {
  int64_t self = 0;
  need({caller.stream, groupOf(group, rank, self)});
}

void NcclCollectives::prepare(const Caller &caller, const mw_rt_collective &what) {
  auto [found, isNew] = plans.try_emplace({caller.stream, &what});
  Plan &plan = found->second;
  int64_t self = 0;
  std::vector<int64_t> group = groupOf(what.group, rank, self);
  plan.key = {caller.stream, group};
  need(plan.key);
  if (!isNew)
    return;
  switch (exchangeOf(what)) {
  case Exchange::CombineBoxes:
    planScatter(what, group, self, plan);
    break;
  case Exchange::CopyBoxes:
    planExchange(what, group, self, plan);
    break;
  case Exchange::Combine:
  case Exchange::None:
    break;
  }
  if (plan.bytes > 0 && !(plan.staging = processor->allocate(plan.bytes)))
    throw Failure("no memory on the GPU for the " + formatBytes(plan.bytes) +
                  " of a collective's messages");
  helpers.prepares = true;
  std::vector<void *> none(what.num_tensors, nullptr);
  for (const std::vector<Packed> *boxes : {&plan.pack, &plan.local, &plan.unpack})
    moveBoxes(plan, *boxes, nullptr, none.data(), none.data());
  helpers.prepares = false;
}

/// Waits for all ranks, and makes their communicator if there is none.
bool NcclCollectives::connect() {
  // NCCL waits for all ranks without end, so none comes here after a failure.
  nccl::UniqueId id = {};
  if (!ranks.meet(rank, id))
    return false;
  processor->enter();
  if (!all)
    check(nccl, nccl.ncclCommInitRank(&all, int(ranks.getWorld().getNumRanks()), id, int(rank)),
          "ncclCommInitRank");
  return true;
}

bool NcclCollectives::finishPreparing() {
  if (missing.empty())
    return true;
  if (!connect())
    return false;
  for (const Key &key : missing) {
    const std::vector<int64_t> &group = key.second;
    int color = int(*std::min_element(group.begin(), group.end()));
    int index = int(std::find(group.begin(), group.end(), rank) - group.begin());
    check(nccl, nccl.ncclCommSplit(all, color, index, &communicators[key], nullptr),
          "ncclCommSplit");
  }
  missing.clear();
  return true;
}

//===----------------------------------------------------------------------===//
// Runs
//===----------------------------------------------------------------------===//

/// Copies boxes of inputs to staging memory or outputs, or boxes of staging memory to outputs.
void NcclCollectives::moveBoxes(const Plan &plan, const std::vector<Packed> &boxes,
                                cuda::Stream *stream, const void *const *inputs,
                                void *const *outputs) {
  for (const auto &[tensor, box] : boxes)
    helpers.copyBox(stream, &boxes == &plan.pack ? plan.staging.get() : outputs[tensor],
                    &boxes == &plan.unpack ? plan.staging.get() : inputs[tensor], box);
}

bool NcclCollectives::run(const Caller &caller, const mw_rt_collective &what,
                          cuda::Stream *stream, const void *const *inputs,
                          void *const *outputs) {
  const Plan &plan = plans.at({caller.stream, &what});
  nccl::Communicator *communicator = communicators.at(plan.key);
  auto *queue = reinterpret_cast<nccl::Stream *>(stream);
  for (auto [tensor, bytes] : plan.clears)
    helpers.clear(stream, outputs[tensor], bytes);
  if (plan.clearsStaging)
    helpers.clear(stream, plan.staging.get(), plan.bytes);
  moveBoxes(plan, plan.pack, stream, inputs, outputs);
  moveBoxes(plan, plan.local, stream, inputs, outputs);
  check(nccl, nccl.ncclGroupStart(), "ncclGroupStart");
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    nccl::Type type = getType(moved.dtype);
    nccl::Reduction reduction = getReduction(what, moved.dtype);
    switch (exchangeOf(what)) {
    case Exchange::Combine:
      check(nccl,
            nccl.ncclAllReduce(inputs[i], outputs[i], countBefore(moved), type, reduction,
                               communicator, queue),
            "ncclAllReduce");
      break;
    case Exchange::CombineBoxes:
      check(nccl,
            nccl.ncclReduceScatter(plan.staging.get() + plan.chunks[i], outputs[i],
                                   countAfter(moved), type, reduction, communicator, queue),
            "ncclReduceScatter");
      break;
    case Exchange::CopyBoxes:
    case Exchange::None:
      break;
    }
  }
  for (const Staged &message : plan.sends)
    check(nccl,
          nccl.ncclSend(plan.staging.get() + message.offset, message.bytes, nccl::Uint8,
                        int(message.peer), communicator, queue),
          "ncclSend");
  for (const Staged &message : plan.receives)
    check(nccl,
          nccl.ncclRecv(plan.staging.get() + message.offset, message.bytes, nccl::Uint8,
                        int(message.peer), communicator, queue),
          "ncclRecv");
  check(nccl, nccl.ncclGroupEnd(), "ncclGroupEnd");
  moveBoxes(plan, plan.unpack, stream, inputs, outputs);
  return true;
}

bool NcclCollectives::exchange(const Caller &caller, const mw_rt_axes &group, cuda::Stream *stream,
                               const std::vector<Piece> &sends, const std::vector<Piece> &receives) {
  int64_t self = 0;
  nccl::Communicator *communicator = communicators.at({caller.stream, groupOf(group, rank, self)});
  auto *queue = reinterpret_cast<nccl::Stream *>(stream);
  helpers.copyBytes(stream, receives[self].data, sends[self].data, sends[self].bytes);
  check(nccl, nccl.ncclGroupStart(), "ncclGroupStart");
  for (int64_t peer = 0; peer < int64_t(sends.size()); ++peer) {
    if (peer == self)
      continue;
    if (sends[peer].bytes > 0)
      check(nccl,
            nccl.ncclSend(sends[peer].data, sends[peer].bytes, nccl::Uint8, int(peer), communicator, queue),
            "ncclSend");
    if (receives[peer].bytes > 0)
      check(nccl,
            nccl.ncclRecv(receives[peer].data, receives[peer].bytes, nccl::Uint8, int(peer), communicator, queue),
            "ncclRecv");
  }
  check(nccl, nccl.ncclGroupEnd(), "ncclGroupEnd");
  return true;
}

bool NcclCollectives::broadcast(int64_t from, void *data, int64_t bytes, cuda::Stream *stream) {
  if (!all && !connect())
    return false;
  check(nccl,
        nccl.ncclBroadcast(data, data, bytes, nccl::Uint8, int(from), all,
                           reinterpret_cast<nccl::Stream *>(stream)),
        "ncclBroadcast");
  return true;
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

std::string NcclCollectives::getError() {
  auto describe = [&](nccl::Communicator *communicator) -> std::string {
    nccl::Result state = nccl::Success;
    if (!communicator ||
        nccl.ncclCommGetAsyncError(communicator, &state) != nccl::Success ||
        state == nccl::Success || state == nccl::InProgress)
      return "";
    return std::string("NCCL: ") + nccl.ncclGetErrorString(state);
  };
  std::string error = describe(all);
  for (auto &[key, communicator] : communicators)
    if (error.empty())
      error = describe(communicator);
  return error;
}

void NcclCollectives::close(bool aborts) {
  if (processor->getCuda().cuCtxSetCurrent(processor->getContext()) != cuda::Success)
    return;
  auto end = aborts ? nccl.ncclCommAbort : nccl.ncclCommDestroy;
  for (auto &[key, communicator] : communicators)
    if (communicator)
      end(communicator);
  communicators.clear();
  missing.clear();
  if (all)
    end(std::exchange(all, nullptr));
}

std::unique_ptr<Collectives> createNcclCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   NcclWorld &ranks) {
  return std::make_unique<NcclCollectives>(rank, std::move(processor), ranks);
}

} // namespace meshwright::rt::gpu
