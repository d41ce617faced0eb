//===- Link.h - simulated links and their text ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_LINK_H
#define MESHWRIGHT_RUNTIME_INCLUDE_LINK_H

#include <optional>
#include <string>

namespace meshwright::rt {

/// The rates of a simulated link, for which MESHWRIGHT_LINK asks. Each rank has one link, which transfers the bytes of one
/// collective at a time.
struct Link {
  /// Seconds per step.
  double latency = 0;
  /// Bytes per second; 0 for no limit.
  double bandwidth = 0;
  /// Seconds. Each rank waits a random time up to this, too, in each collective.
  double jitter = 0;
};

/// Parses "latency=20us,bandwidth=2GB/s,jitter=5us"; each part may be absent. Returns nothing,
/// with an error, if the text is malformed.
std::optional<Link> parseLink(const std::string &text, std::string &error);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_LINK_H
