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
/// All objects share one line. A thread that writes there holds this mutex.
static std::mutex line;

struct Progress::Impl {
  std::string what;
  int64_t total;
  std::atomic<int64_t> done{0};
  std::condition_variable ended;
  bool hasEnded = false;
  std::thread thread;
  /// The object made before this one.
  Impl *outer = nullptr;

  /// The last object made, and the object that the line shows, which may be an earlier one.
  static inline Impl *latest = nullptr, *shown = nullptr;

  void show();
  void leave();
  static void erase();
};

void Progress::Impl::show() {
  auto start = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(line);
  for (auto wait = std::chrono::milliseconds(500);
       !ended.wait_for(lock, wait, [&] { return hasEnded; });
       wait = std::chrono::milliseconds(200)) {
    if (latest != this)
      continue;
    auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start)
            .count();
    std::string text = what;
    if (total > 0)
      text += ": " + std::to_string(done) + " of " + std::to_string(total);
    text += ", " + std::to_string(seconds) + " s";
    // Return to the start of the line, and clear the rest of a longer text.
    std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
    std::fflush(stderr);
    shown = this;
  }
}

/// Removes this object from the list. Objects made later stay.
void Progress::Impl::leave() {
  Impl **place = &latest;
  while (*place != this)
    place = &(*place)->outer;
  *place = outer;
}

void Progress::Impl::erase() {
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown = nullptr;
}

Progress::Progress(std::string what, int64_t total) {
  if (isHidden || !isatty(STDERR_FILENO))
    return;
  impl = std::make_unique<Impl>();
  impl->what = std::move(what);
  impl->total = total;
  std::lock_guard<std::mutex> lock(line);
  try {
    impl->thread = std::thread([this] { impl->show(); });
  } catch (const std::system_error &) {
    // Without a thread, no progress is shown.
    impl.reset();
    return;
  }
  impl->outer = Impl::latest;
  Impl::latest = impl.get();
}

Progress::~Progress() {
  if (!impl)
    return;
  {
    std::lock_guard<std::mutex> lock(line);
    impl->hasEnded = true;
    impl->leave();
    if (Impl::shown == impl.get())
      Impl::erase();
  }
  impl->ended.notify_one();
  impl->thread.join();
}

void Progress::step(int64_t count) {
  if (impl)
    impl->done += count;
}

void Progress::clear() {
  std::lock_guard<std::mutex> lock(line);
  if (Impl::shown)
    Impl::erase();
}

void Progress::hide() { isHidden = true; }

} // namespace meshwright::rt
