//===- Messages.cpp - the messages of a collective ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Messages.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>

using namespace meshwright::rt;
using namespace meshwright::rt::mpi;

/// Returns true if a box is contiguous. `offset` is set to its first element.
static bool isContiguous(const std::vector<int64_t> &shape, const std::vector<int64_t> &place,
                         const std::vector<int64_t> &extents, int64_t &offset) {
  std::vector<int64_t> strides = denseStrides(shape);
  offset = 0;
  bool isPartial = false, contiguous = true;
  for (size_t d = shape.size(); d-- > 0;) {
    offset += place[d] * strides[d];
    contiguous &= !isPartial || extents[d] == 1;
    isPartial |= extents[d] != shape[d];
  }
  return contiguous;
}

/// Describes the message that sends a box of an input or receives a box of an output.
static Message describe(const Arrivals &arrivals, const Move &move, bool isSend, int64_t member,
                        int64_t tensor) {
  const std::vector<int64_t> &shape = isSend ? arrivals.inShape : arrivals.outShape;
  Message message;
  message.member = member;
  message.tensor = tensor;
  message.bytes = countOf(move.extents) * arrivals.elementSize;
  message.place = isSend ? move.source : move.destination;
  message.extents = move.extents;
  message.isDirect = isContiguous(shape, message.place, message.extents, message.offset);
  message.offset *= arrivals.elementSize;
  return message;
}

/// Adds a message. Gives it a place in the staging memory if its box is not contiguous.
static void addMessage(MessagePlan &plan, std::vector<Message> &list, Message message) {
  if (!message.isDirect) {
    message.offset = plan.stagingBytes;
    plan.stagingBytes += (message.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  list.push_back(std::move(message));
}

/// Plans an all-reduce: each member combines its share of the elements and sends the result to
/// all.
static void planReduction(MessagePlan &plan, const mw_rt_collective &what) {
  int64_t members = int64_t(plan.ranks.size());
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor) {
    const mw_rt_moved_tensor &moved = what.tensors[tensor];
    int64_t count = countBefore(moved), size = sizeOf(DType(moved.dtype));
    auto describeShare = [&](int64_t member, int64_t owner, bool isDirect) {
      auto [begin, end] = shareOf(count, owner, members);
      Message message;
      message.member = member;
      message.tensor = tensor;
      message.bytes = (end - begin) * size;
      message.isDirect = isDirect;
      message.offset = begin * size;
      return message;
    };
    for (int64_t member = 0; member < members; ++member) {
      if (member == plan.self)
        continue;
      auto add = [&](std::vector<Message> &list, int64_t owner, bool isDirect) {
        if (Message message = describeShare(member, owner, isDirect); message.bytes > 0)
          addMessage(plan, list, std::move(message));
      };
      add(plan.sends, member, /*isDirect=*/true);
      add(plan.receives, plan.self, /*isDirect=*/false);
      add(plan.resultSends, plan.self, /*isDirect=*/true);
      add(plan.resultReceives, member, /*isDirect=*/true);
    }
  }
}

static void planMoves(MessagePlan &plan, const mw_rt_collective &what, int64_t rank) {
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor) {
    Arrivals mine = arrivalsOf(what, tensor, rank);
    for (const Move &move : mine.moves) {
      if (move.from == plan.self)
        continue;
      Message message = describe(mine, move, /*isSend=*/false, move.from, tensor);
      // Boxes that are combined cannot be received into the output.
      message.isDirect &= exchangeOf(what) == Exchange::CopyBoxes;
      addMessage(plan, plan.receives, std::move(message));
    }
    for (int64_t member = 0; member < int64_t(plan.ranks.size()); ++member) {
      if (member == plan.self)
        continue;
      Arrivals theirs = arrivalsOf(what, tensor, plan.ranks[member]);
      for (const Move &move : theirs.moves)
        if (move.from == plan.self)
          addMessage(plan, plan.sends, describe(theirs, move, /*isSend=*/true, member, tensor));
    }
    plan.arrivals.push_back(std::move(mine));
  }
}

/// Returns true if MPI has an equal collective. It requires an element type that MPI can add,
/// contiguous chunks in the order of the members, and no padding.
static bool canBeFast(const MessagePlan &plan, const mw_rt_collective &what) {
  int64_t members = int64_t(plan.ranks.size());
  bool gathers = kindOf(what) == CollectiveKind::AllGather;
  if (exchangeOf(what) == Exchange::CopyBoxes && !gathers)
    return false;
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    DType type = DType(moved.dtype);
    // MPI's maximum may lose a NaN, and MPI has no half precision.
    if (!gathers && (what.reduction != MW_RT_SUM || getComputeType(type) != type ||
                    type == DType::I1))
      return false;
    if (std::max(countBefore(moved), countAfter(moved)) * sizeOf(type) > kLargestPart)
      return false;
    if (exchangeOf(what) == Exchange::Combine)
      continue;
    for (int64_t d = 0; d < moved.dim; ++d)
      if (moved.in_shape[d] != 1)
        return false;
    if (gathers
            ? moved.out_shape[moved.dim] != moved.in_shape[moved.dim] * members
            : moved.in_shape[moved.dim] != moved.out_shape[moved.dim] * members)
      return false;
  }
  return true;
}

MessagePlan mpi::planMessages(const mw_rt_collective &what, int64_t rank, bool deterministic) {
  MessagePlan plan;
  plan.ranks = groupOf(what.group, rank, plan.self);
  for (size_t i = 0; i < plan.ranks.size(); ++i)
    plan.byRank.push_back(i);
  std::sort(plan.byRank.begin(), plan.byRank.end(),
            [&](int64_t a, int64_t b) { return plan.ranks[a] < plan.ranks[b]; });
  plan.isFast = !deterministic && canBeFast(plan, what);
  if (exchangeOf(what) == Exchange::Combine)
    planReduction(plan, what);
  else
    planMoves(plan, what, rank);
  return plan;
}
