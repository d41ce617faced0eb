//===- Meeting.h - where ranks of one process meet --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_MEETING_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_MEETING_H

#include "meshwright/runtime/gpu/CudaApi.h"

#include "meshwright/runtime/include/Device.h"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace meshwright::rt {
class World;
}

namespace meshwright::rt::gpu {

/// A rank's inputs, as the others of its group see them.
struct Shown {
  int64_t op = -1;
  cuda::Event *event = nullptr;
  std::vector<const void *> inputs;
};

/// The ranks that meet, by linear coordinate over the axes of their group.
struct Meeting {
  explicit Meeting(std::vector<int64_t> given)
      : ranks(std::move(given)), shown(ranks.size()), arrivals(ranks.size(), 0) {}

  const std::vector<int64_t> ranks;
  std::vector<Shown> shown;
  /// How often each member came; all have met `round` times.
  std::vector<int64_t> arrivals;
  int64_t arrived = 0, round = 0;
};

/// The meetings of all ranks of this process. The threads of ranks wait for one another, never for
/// their GPUs.
class Meetings {
public:
  explicit Meetings(World &world) : world(world) {}

  World &getWorld() const { return world; }
  Meeting &join(int64_t stream, const std::vector<int64_t> &ranks);
  /// Waits for all members. Returns false after `World::fail`, for example when the run's timeout is
  /// over.
  bool meet(Meeting &meeting, const Caller &caller, int64_t self);
  /// Wakes all who wait.
  void wake();
  /// Forgets the state of a failed run.
  void reset();

private:
  World &world;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int64_t, std::vector<int64_t>>, std::unique_ptr<Meeting>> meetings;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_MEETING_H
