//===- Link.h - collectives at the speed of a network -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_LINK_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_LINK_H

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/include/Link.h"

#include <memory>

namespace meshwright::rt {

class World;

/// Slows down the collectives of one rank: each that communicates takes at least latency x
/// steps + bytes / bandwidth more than without, by the cost model's steps and bytes of its
/// kind, and a random time up to the jitter. A rank that waits for its link sleeps, which
/// leaves the processor free. `collectives` must outlive the result.
std::unique_ptr<HostCollectives> throttle(World &world, int64_t rank,
                                          HostCollectives &collectives, Link link);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_LINK_H
