//===- Link.h - collectives as slow as over a network -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_LINK_H
#define MESHWRIGHT_RUNTIME_SRC_LINK_H

#include "meshwright/runtime/include/Device.h"

#include <memory>
#include <optional>
#include <string>

namespace meshwright::rt {

class World;

/// A link to slow collectives down to. The rank's link carries one collective's
/// bytes at a time.
struct Link {
  /// Seconds a step.
  double latency = 0;
  /// Bytes a second; 0 for no limit.
  double bandwidth = 0;
};

/// Reads "latency=20us,bandwidth=2GB/s", either part or both.
std::optional<Link> parseLink(const std::string &text, std::string &error);

/// Slows down the collectives of one rank: each that communicates takes at least latency x
/// steps + bytes / bandwidth more than without, by the cost model's steps and bytes of its
/// kind. A rank that waits for its link sleeps, which leaves the processor free.
/// `collectives` must outlive the result.
std::unique_ptr<HostCollectives> throttle(World &world, HostCollectives &collectives, Link link);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_LINK_H
