//===- Meeting.cpp - where ranks of one process meet ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Meeting.h"

#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace meshwright::rt::gpu {

Meeting &Meetings::join(int64_t stream, const std::vector<int64_t> &ranks) {
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Meeting> &meeting = meetings[{stream, ranks}];
  if (!meeting)
    meeting = std::make_unique<Meeting>(ranks);
  return *meeting;
}

bool Meetings::meet(Meeting &meeting, const Caller &caller, int64_t self) {
  std::unique_lock<std::mutex> lock(mutex);
  if (world.hasFailed())
    return false;
  ++meeting.arrivals[self];
  int64_t round = meeting.round;
  if (++meeting.arrived == int64_t(meeting.ranks.size())) {
    meeting.arrived = 0;
    ++meeting.round;
    changed.notify_all();
    return true;
  }
  auto isOver = [&] { return meeting.round != round || world.hasFailed(); };
  std::chrono::duration<double> limit(std::min(world.getTimeout(), 1e8));
  if (changed.wait_for(lock, limit, isOver))
    return meeting.round != round && !world.hasFailed();
  std::string missing;
  int64_t others = 0;
  for (size_t i = 0; i < meeting.ranks.size(); ++i)
    if (meeting.arrivals[i] != meeting.arrivals[self]) {
      missing += (others++ ? ", " : "") + std::to_string(meeting.ranks[i]);
      if (int64_t at = world.getPosition(meeting.ranks[i]); at >= 0)
        missing += " (at " + world.getOpName(at) + ")";
    }
  lock.unlock();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", world.getTimeout());
  world.fail(caller.rank, caller.op,
             std::string("timed out after ") + seconds + " s waiting for rank" +
                 (others > 1 ? "s " : " ") + missing);
  return false;
}

void Meetings::wake() {
  std::lock_guard<std::mutex> lock(mutex);
  changed.notify_all();
}

void Meetings::reset() {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto &[key, meeting] : meetings) {
    meeting->arrived = meeting->round = 0;
    std::fill(meeting->arrivals.begin(), meeting->arrivals.end(), 0);
  }
}

} // namespace meshwright::rt::gpu
