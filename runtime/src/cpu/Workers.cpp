//===- Workers.cpp - the threads of a rank --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Workers.h"

#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace meshwright::rt {

void *Workspace::get(int64_t bytes) {
  if (bytes <= capacity)
    return memory.get();
  capacity = 0;
  memory.reset();
  memory = allocate(bytes);
  if (!memory)
    throw std::bad_alloc();
  capacity = bytes;
  return memory.get();
}

void nameThread(const std::string &name) {
  // The system keeps 15 characters.
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

void wakePromptly() {
  // The C library has no such call. These are the fields of the struct's first version.
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {};
  static_assert(sizeof(attributes) == 48);
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0 ||
      attributes.policy != SCHED_OTHER)
    return;
  // The shortest slice that the system grants, in nanoseconds.
  attributes.size = sizeof(attributes);
  attributes.runtime = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

Workers::Workers(int64_t rank, int64_t count) : workspaces(count) {
  try {
    for (int64_t index = 1; index < count; ++index) {
      auto helper = std::make_unique<Helper>();
      helper->thread = std::thread([this, helper = helper.get(), rank, index] {
        nameThread("mw " + std::to_string(rank) + " worker " + std::to_string(index));
        work(*helper, index);
      });
      helpers.push_back(std::move(helper));
    }
  } catch (...) {
    stop();
    throw;
  }
}

Workers::~Workers() { stop(); }

void Workers::stop() {
  // A helper that takes a part without a function ends.
  for (std::unique_ptr<Helper> &helper : helpers) {
    give(*helper, nullptr, nullptr, 0);
    helper->thread.join();
  }
}

void Workers::work(Helper &helper, int64_t index) {
  for (uint32_t seen = 0;;) {
    helper.given.wait(seen, spin.load(std::memory_order_relaxed));
    seen = helper.given.get();
    if (!take(helper))
      continue;
    if (!helper.part)
      return;
    helper.part(helper.state, index, helper.count);
    if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1)
      finished.raise();
  }
}

void Workers::give(Helper &helper, Part part, void *state, int64_t count) {
  helper.part = part;
  helper.state = state;
  helper.count = count;
  helper.isTaken.store(false, std::memory_order_release);
  helper.given.raise();
}

bool Workers::take(Helper &helper) {
  return !helper.isTaken.exchange(true, std::memory_order_acq_rel);
}

void Workers::run(int64_t count, Part part, void *state) {
  unfinished.store(count - 1, std::memory_order_relaxed);
  for (int64_t index = 1; index < count; ++index)
    give(*helpers[index - 1], part, state, count);
  part(state, 0, count);
  for (int64_t index = 1; index < count; ++index)
    if (take(*helpers[index - 1])) {
      part(state, index, count);
      unfinished.fetch_sub(1, std::memory_order_acq_rel);
    }
  // The signal may have been raised for an earlier run, so the count decides.
  for (;;) {
    uint32_t seen = finished.get();
    if (unfinished.load(std::memory_order_acquire) == 0)
      return;
    finished.wait(seen, spin.load(std::memory_order_relaxed));
  }
}

} // namespace meshwright::rt
