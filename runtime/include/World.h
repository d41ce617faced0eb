//===- World.h - the ranks of a program -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
#define MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H

#include "meshwright-c/Runtime.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshwright::rt {

class Backend;
class GemmCache;
class World;

/// The local buffers of one rank for one run.
struct RankBuffers {
  char *arena = nullptr;
  std::vector<const void *> arguments;
  /// Parameters as packed at load.
  std::vector<const void *> prepared;
  std::vector<const void *> constants;
  /// Written by the program.
  std::vector<const void *> results;
};

/// The ranks of a program. Kept from run to run: what the ranks prepare
/// (library primitives, groups) is reused.
class World {
public:
  /// Called on the rank's thread with a value that the program hands out.
  using Probe = std::function<void(int64_t rank, int64_t probe, const void *value)>;

  /// Null, with an error, if there is no backend of that name. `ops` names the
  /// program's ops, for errors.
  static std::unique_ptr<World> create(const std::string &backend, int64_t numRanks,
                                       std::vector<std::string> ops, std::string &error);
  ~World();

  /// Runs the entry once on every rank; each may wait that long in one
  /// collective. On failure all ranks end, and the error names rank and op.
  bool run(mw_rt_entry entry, std::vector<RankBuffers> &buffers, double timeoutSeconds,
           std::string &error);

  void setProbe(Probe callback) { probe = std::move(callback); }
  const Probe &getProbe() const { return probe; }
  int64_t getNumRanks() const { return numRanks; }
  double getTimeout() const { return timeout; }
  const std::string &getOpName(int64_t op) const;

  /// Records the first failure and wakes everybody who waits.
  void fail(int64_t rank, int64_t op, const std::string &message);
  bool hasFailed() const { return failed.load(std::memory_order_acquire); }

private:
  World() = default;

  int64_t numRanks = 0;
  std::vector<std::string> ops;
  std::vector<std::unique_ptr<mw_rt_context>> contexts;
  std::unique_ptr<Backend> backend;
  double timeout = 30;
  Probe probe;

  std::mutex errorMutex;
  std::string firstError;
  std::atomic<bool> failed{false};
};

/// Moves data between ranks.
class Backend {
public:
  virtual ~Backend() = default;
  /// Before a run: forgets what a failed run left behind.
  virtual void reset() = 0;
  /// Wakes ranks that wait, after a failure.
  virtual void wake() = 0;
  /// Performs a collective that communicates; false after `World::fail`.
  virtual bool run(mw_rt_context &context, int64_t op, const mw_rt_collective &what,
                   const void *const *inputs, void *const *outputs) = 0;
};

/// The backend whose ranks are threads of this process.
std::unique_ptr<Backend> createLocalBackend(World &world);

/// The default time a rank may wait in one collective: 30 seconds, or
/// MESHWRIGHT_TIMEOUT.
double defaultTimeout();

/// Bytes of memory that this process can still get, or -1 if unknown.
int64_t availableMemory();

/// The ranks of a group, by linear coordinate over its axes; `self` is the
/// coordinate of `rank`.
std::vector<int64_t> groupOf(const mw_rt_axes &axes, int64_t rank, int64_t &self);
/// The rank's linear coordinate over the axes, and their product.
int64_t coordinateOf(const mw_rt_axes &axes, int64_t rank);
int64_t sizeOfGroup(const mw_rt_axes &axes);

} // namespace meshwright::rt

struct mw_rt_context {
  meshwright::rt::World *world = nullptr;
  meshwright::rt::Backend *backend = nullptr;
  int64_t rank = 0;
  std::shared_ptr<meshwright::rt::GemmCache> gemms;
  /// Reused from call to call.
  std::vector<char> scratch[5];

  char *getScratch(int slot, int64_t bytes) {
    if (int64_t(scratch[slot].size()) < bytes)
      scratch[slot].resize(bytes);
    return scratch[slot].data();
  }
  int32_t fail(int64_t op, const std::string &message) {
    world->fail(rank, op, message);
    return 1;
  }
};

#endif // MESHWRIGHT_RUNTIME_INCLUDE_WORLD_H
