//===- NcclCollectives.h - collectives by NCCL ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H
#define MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H

#include "Collectives.h"
#include "Meeting.h"

#include <functional>

namespace meshwright::rt::gpu {

/// How the ranks of a program find one another for NCCL.
class NcclWorld {
public:
  NcclWorld(World &world, const Nccl &nccl) : world(world), nccl(nccl) {}

  World &getWorld() const { return world; }
  const Nccl &getNccl() const { return nccl; }
  /// The id of the communicator of all ranks. The first rank that asks makes one, for as many ranks
  /// as there are.
  nccl::UniqueId getId();

private:
  World &world;
  const Nccl &nccl;
  std::mutex mutex;
  nccl::UniqueId id = {};
  int64_t users = 0;
};

std::unique_ptr<Collectives> createNcclCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   NcclWorld &ranks, Meetings &meetings);

/// Collectives that copy between the GPUs of one process and combine values in the order of ranks.
std::unique_ptr<Collectives> createPeerCollectives(int64_t rank,
                                                   std::shared_ptr<Processor> processor,
                                                   Meetings &meetings);

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_BACKENDS_NCCL_NCCLCOLLECTIVES_H
