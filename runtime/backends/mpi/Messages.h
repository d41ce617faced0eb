//===- Messages.h - the messages of a collective ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Plans which boxes of its tensors a rank sends to and receives from the members of its group. A
// box that is not contiguous goes through staging memory, at an offset that the plan assigns.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_MPI_MESSAGES_H
#define MESHWRIGHT_RUNTIME_BACKENDS_MPI_MESSAGES_H

#include "meshwright/runtime/src/tensors/Moves.h"

#include <cstdint>
#include <mpi.h>
#include <vector>

namespace meshwright::rt::mpi {

/// The largest message: MPI counts with int, so larger boxes are sent in parts.
constexpr int64_t kLargestPart = int64_t(1) << 30;

/// A box that is sent to or received from a member of the group.
struct Message {
  /// The member's coordinate, which is also its rank in the communicator.
  int64_t member = 0;
  int64_t tensor = 0;
  int64_t bytes = 0;
  /// True if the box is contiguous in the tensor. If so, `offset` is its offset in the tensor
  /// in bytes, else that of its copy in the staging memory.
  bool isDirect = false;
  int64_t offset = 0;
  /// The first index and the extents of the box in the tensor.
  std::vector<int64_t> place, extents;
};

/// A rank's messages in a collective.
struct MessagePlan {
  std::vector<int64_t> ranks;
  /// Coordinates in the order of their ranks, which is the order of reductions.
  std::vector<int64_t> byRank;
  int64_t self = 0;
  /// Made at the first run.
  MPI_Comm communicator = MPI_COMM_NULL;
  /// One for each tensor; empty if whole inputs are combined.
  std::vector<Arrivals> arrivals;
  std::vector<Message> sends, receives;
  /// The exchange of results, from outputs to outputs, if whole inputs are combined.
  std::vector<Message> resultSends, resultReceives;
  int64_t stagingBytes = 0;
  /// MPI's own collective is used, without messages of ours.
  bool isFast = false;
};

/// Plans a collective for a rank of the mesh. Where results need not equal those of `local`
/// (not `deterministic`), MPI's own collective is used if it has an equal one.
MessagePlan planMessages(const mw_rt_collective &what, int64_t rank, bool deterministic);

} // namespace meshwright::rt::mpi

#endif // MESHWRIGHT_RUNTIME_BACKENDS_MPI_MESSAGES_H
