//===- Progress.cpp - a line that says how far things are -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Progress.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace meshwright::rt {

static std::atomic<bool> isHidden{false};
/// There is one line.
static std::atomic<bool> isTaken{false};

struct Progress::State {
  std::string what;
  int64_t total;
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable ended;
  bool hasEnded = false;
  std::thread thread;

  void show();
};

void Progress::State::show() {
  auto start = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex);
  bool isShown = false;
  for (auto wait = std::chrono::milliseconds(500);
       !ended.wait_for(lock, wait, [&] { return hasEnded; });
       wait = std::chrono::milliseconds(200)) {
    auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start)
            .count();
    std::string line = what;
    if (total > 0)
      line += ": " + std::to_string(done) + " of " + std::to_string(total);
    line += ", " + std::to_string(seconds) + " s";
    // Back to the line's start, and clear what a longer one left.
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
    std::fflush(stderr);
    isShown = true;
  }
  if (isShown) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }
}

Progress::Progress(std::string what, int64_t total) {
  if (isHidden || !isatty(STDERR_FILENO) || isTaken.exchange(true))
    return;
  state = std::make_unique<State>();
  state->what = std::move(what);
  state->total = total;
  try {
    state->thread = std::thread([this] { state->show(); });
  } catch (const std::system_error &) {
    // Then without.
    state.reset();
    isTaken = false;
  }
}

Progress::~Progress() {
  if (!state)
    return;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    state->hasEnded = true;
  }
  state->ended.notify_one();
  state->thread.join();
  isTaken = false;
}

void Progress::step(int64_t count) {
  if (state)
    state->done += count;
}

void Progress::hide() { isHidden = true; }

} // namespace meshwright::rt
