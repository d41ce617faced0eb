//===- NcclCollectives.h - collectives by NCCL ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H

#include "Meeting.h"
#include "Processes.h"
#include "meshwright/runtime/gpu/Collectives.h"

#include <functional>

namespace meshwright::rt::gpu {

/// How the ranks of a program find one another for NCCL: as threads of this process, or as processes.
class NcclWorld {
public:
  NcclWorld(World &world, const Nccl &nccl, Meetings &meetings, Processes *processes)
      : world(world), nccl(nccl), meetings(meetings), processes(processes) {}

  World &getWorld() const { return world; }
  const Nccl &getNccl() const { return nccl; }
  /// Waits for all ranks, and sets `id` to the id of a communicator of all. Returns false after
  /// `World::fail`.
  bool meet(int64_t rank, nccl::UniqueId &id);
  bool areProcesses() const { return processes != nullptr; }

private:
  bool meetThreads(int64_t rank, nccl::UniqueId &id);

  World &world;
  const Nccl &nccl;
  Meetings &meetings;
  Processes *processes;
  std::mutex mutex;
  nccl::UniqueId shared = {};
  int64_t users = 0;
};

std::unique_ptr<Collectives> createNcclCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   NcclWorld &ranks);

/// Collectives that copy between the GPUs of one process and combine values in the order of ranks.
std::unique_ptr<Collectives> createPeerCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   Meetings &meetings);

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H
