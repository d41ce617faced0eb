//===- Collectives.h - collectives of a rank on a GPU -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_COLLECTIVES_H
#define MESHWRIGHT_RUNTIME_GPU_COLLECTIVES_H

#include "HelperKernels.h"

namespace meshwright::rt::gpu {

/// A message to a member of a group, or from one: bytes that follow one another. It may be empty.
struct Piece {
  char *data;
  int64_t bytes;
};

/// The collectives of one rank. Only the rank's thread calls it, in the order of the program, which
/// all ranks share. Functions throw Failure.
///
/// A group has a communicator for each stream, and the GPU begins the collectives of all streams in
/// the order of `run`. So those of several streams can be under way at once over the same ranks, and
/// no rank waits in one of them for a rank that waits for it in another one
/// (docs/rationale/streams-by-role.md).
class Collectives {
public:
  virtual ~Collectives() = default;

  /// Makes ready what a collective needs: kernels, staging memory, communicators.
  virtual void prepare(const Caller &caller, const mw_rt_collective &what) = 0;
  /// Called once behind all `prepare` of an entry, by all ranks. Returns false after
  /// `World::fail`.
  virtual bool finishPreparing() { return true; }
  /// Enqueues a collective. Returns false after `World::fail`.
  virtual bool run(const Caller &caller, const mw_rt_collective &what, cuda::Stream *stream,
                   const void *const *inputs, void *const *outputs) = 0;
  /// Makes ready what messages between the members of a group need.
  virtual void prepareMessages(const Caller &caller, const mw_rt_axes &group) = 0;
  /// Enqueues a message to each member, and one from each, by linear coordinate. Both sides know the sizes.
  /// Returns false after `World::fail`.
  virtual bool exchange(const Caller &caller, const mw_rt_axes &group, cuda::Stream *stream,
                        const std::vector<Piece> &sends, const std::vector<Piece> &receives) = 0;
  /// Enqueues a copy of the `bytes` bytes at `data` from that rank to all others, where ranks are
  /// processes. Returns false after `World::fail`.
  virtual bool broadcast(int64_t from, void *data, int64_t bytes, cuda::Stream *stream) {
    (void)from, (void)data, (void)bytes, (void)stream;
    return false;
  }
  /// Ends all collectives under way, after a failure of the run. All that was prepared is
  /// lost.
  virtual void abort() {}
  /// Returns the error of a collective under way, or an empty string.
  virtual std::string getError() { return ""; }
  /// Returns true if other processes take part. Their deaths are also errors of collectives.
  virtual bool crossesProcesses() const { return false; }
  /// Returns true if a graph can record the collectives.
  virtual bool canRecord() const = 0;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_COLLECTIVES_H
