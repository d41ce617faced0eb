//===- Link.h - collectives at the speed of a network -----------*- C++ -*-===//
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

/// The rates of a simulated link. Each rank has one link, which transfers the bytes of one
/// collective at a time.
struct Link {
  /// Seconds per step.
  double latency = 0;
  /// Bytes per second; 0 for no limit.
  double bandwidth = 0;
};

/// Parses "latency=20us,bandwidth=2GB/s"; either part may be absent. Returns nothing, with an
/// error, if the text is malformed.
std::optional<Link> parseLink(const std::string &text, std::string &error);

/// Slows down the collectives of one rank: each that communicates takes at least latency x
/// steps + bytes / bandwidth more than without, by the cost model's steps and bytes of its
/// kind. A rank that waits for its link sleeps, which leaves the processor free.
/// `collectives` must outlive the result.
std::unique_ptr<HostCollectives> throttle(World &world, HostCollectives &collectives, Link link);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_LINK_H
