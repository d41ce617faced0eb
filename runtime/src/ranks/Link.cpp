//===- Link.cpp - collectives at the speed of a network -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Link.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/PlainNumbers.h"
#include "meshwright/runtime/include/World.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <sys/prctl.h>
#include <thread>
#include <utility>

namespace meshwright::rt {

/// Parses a number and one of the units, which are given with their factors.
static std::optional<double>
parseQuantity(const std::string &text,
              std::initializer_list<std::pair<const char *, double>> units) {
  PlainNumbers plain;
  char *end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number >= 0) || !std::isfinite(number))
    return std::nullopt;
  for (auto [name, factor] : units)
    if (std::string(end) == name)
      return number * factor;
  return std::nullopt;
}

std::optional<Link> parseLink(const std::string &text, std::string &error) {
  Link link;
  size_t begin = 0;
  auto refuse = [&](const std::string &part) {
    error = "link '" + text + "': '" + part +
            "' is no part of a link: expected latency=<number><s|ms|us|ns>, "
            "bandwidth=<number><B/s|KB/s|MB/s|GB/s> or jitter=<number><s|ms|us|ns>";
    return std::nullopt;
  };
  while (begin <= text.size()) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    size_t equals = part.find('=');
    std::string name = part.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    std::optional<double> number;
    if (name == "latency" || name == "jitter") {
      number = parseQuantity(value, {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}});
      (name == "latency" ? link.latency : link.jitter) = number.value_or(0);
    } else if (name == "bandwidth") {
      number = parseQuantity(value, {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}});
      link.bandwidth = number.value_or(0);
      if (number && *number == 0)
        number.reset();
    }
    if (!number)
      return refuse(part);
  }
  return link;
}

namespace {

using Clock = std::chrono::steady_clock;

class ThrottledCollectives : public HostCollectives {
public:
  ThrottledCollectives(World &world, int64_t rank, HostCollectives &collectives, Link link)
      : world(world), collectives(collectives), link(link), random(rank + 1) {}

  bool run(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
           void *const *outputs) override {
    // Each rank waits before it meets the others. So the collective ends a whole delay after
    // its last rank has come, as if that rank's data had travelled for so long.
    return sleepUntil(reserve(trafficOf(what, caller.rank))) &&
           collectives.run(caller, what, inputs, outputs);
  }

  bool exchange(const Caller &caller, const mw_rt_collective &what, const void *from,
                const std::vector<int64_t> &sent, void *to,
                const std::vector<int64_t> &received) override {
    Traffic traffic;
    traffic.steps = int64_t(sent.size()) - 1;
    int64_t self = coordinateOf(what.group, caller.rank);
    traffic.bytes = std::accumulate(sent.begin(), sent.end(), int64_t(0)) - sent[self];
    return sleepUntil(reserve(traffic)) &&
           collectives.exchange(caller, what, from, sent, to, received);
  }

private:
  Clock::time_point reserve(Traffic traffic);
  bool sleepUntil(Clock::time_point end) const;

  World &world;
  HostCollectives &collectives;
  Link link;
  /// The rank's streams share its link.
  std::mutex mutex;
  /// When the link has sent all that it was given.
  Clock::time_point sent;
  /// Of the jitter; ranks have other numbers.
  std::mt19937 random;
};

} // namespace

/// Reserves the link for a collective that starts now. Returns the time at which its data has
/// arrived.
Clock::time_point ThrottledCollectives::reserve(Traffic traffic) {
  // Times beyond decades do not fit into the clock.
  constexpr double most = 1e9;
  auto inTicks = [most](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::min(seconds, most)));
  };
  std::lock_guard<std::mutex> lock(mutex);
  Clock::time_point now = Clock::now();
  sent = std::max(sent, now);
  if (link.bandwidth > 0)
    sent = std::min(sent + inTicks(traffic.bytes / link.bandwidth), now + inTicks(most));
  double jitter = std::uniform_real_distribution<double>(0, 1)(random) * link.jitter;
  return sent + inTicks(traffic.steps * link.latency + jitter);
}

/// Sleeps until `end`. Returns false after a failure of the run, which ends the sleep within a
/// slice.
bool ThrottledCollectives::sleepUntil(Clock::time_point end) const {
  // By default the kernel may wake a thread 50 us late.
  prctl(PR_SET_TIMERSLACK, 1000);
  constexpr auto slice = std::chrono::milliseconds(20);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    if (world.hasFailed())
      return false;
    std::this_thread::sleep_until(std::min(end, now + slice));
  }
  return !world.hasFailed();
}

std::unique_ptr<HostCollectives> throttle(World &world, int64_t rank, HostCollectives &collectives,
                                          Link link) {
  return std::make_unique<ThrottledCollectives>(world, rank, collectives, link);
}

} // namespace meshwright::rt
