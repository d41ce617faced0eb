//===- Streams.h - communication streams of a rank --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H

#include "Signal.h"

#include "meshwright-c/Runtime.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace meshwright::rt {

/// A collective on its way.
struct Ticket {
  enum State { Queued, Running, Done };

  int64_t op = -1;
  /// 0 between a wait and the next start.
  int64_t stream = 0;
  const mw_rt_collective *what = nullptr;
  std::vector<const void *> inputs;
  std::vector<void *> outputs;
  /// This and what follows: under the stream's lock.
  State state = Queued;
  bool succeeded = false;
};

/// The communication streams of one rank: in-order queues, each with a thread,
/// kept from run to run. A stream's collectives are done by its thread, or by
/// the one that waits for them where that comes first; never by two at once.
class Streams {
public:
  explicit Streams(mw_rt_context &context) : context(context) {}
  ~Streams() { stop(); }

  void setSpin(int64_t nanoseconds) { spin = nanoseconds; }
  /// Threads that have been started so far.
  int64_t getCount() const { return int64_t(streams.size()); }

  /// Called on the rank's thread. False, with an error, where the program uses
  /// tickets in a way that it must not.
  bool start(int64_t op, const mw_rt_collective &what, int64_t stream, int64_t ticket,
             const void *const *inputs, void *const *outputs, std::string &error);
  bool wait(int64_t ticket, std::string &error);
  /// Waits until no collective is queued or running, and forgets all tickets. Returns false
  /// if the deadline passes first.
  bool drain(Time deadline);

private:
  struct Stream {
    int64_t index = 0;
    std::mutex mutex;
    std::deque<Ticket *> queue;
    /// What somebody performs, the first of the queue's former items; null where
    /// nobody does.
    const Ticket *current = nullptr;
    bool stopping = false;
    /// Items were added; an item is done.
    Signal added, done;
    std::thread thread;
  };
  void stop();
  void work(Stream &stream);
  /// Performs the queue's first item, and lets go of the lock meanwhile.
  void performFirst(Stream &stream, std::unique_lock<std::mutex> &lock);
  /// On the rank's thread: gets the stream on by an item of its queue, or until
  /// the stream's thread has done so. Meanwhile the rank is at that item's op. Returns
  /// false if the deadline passes first.
  bool advance(Stream &stream, std::unique_lock<std::mutex> &lock, Time deadline = Time::max());
  Stream &getStream(int64_t index);

  mw_rt_context &context;
  std::atomic<int64_t> spin{0};
  std::map<int64_t, std::unique_ptr<Stream>> streams;
  /// By number. Nodes stay where they are while others are added.
  std::map<int64_t, Ticket> tickets;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H
