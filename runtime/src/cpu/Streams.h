//===- Streams.h - communication streams of a rank --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/src/process/Signal.h"

#include "meshwright-c/Runtime.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace meshwright::rt {

/// A collective that was started and not yet waited for.
struct Ticket {
  enum Status { Queued, Running, Done };
  /// A collective with its inputs and outputs, or a call in which ranks meet, with its buffers.
  struct Work {
    const mw_rt_collective *collective = nullptr;
    const mw_rt_call *call = nullptr;
    std::vector<const void *> inputs = {};
    std::vector<void *> outputs = {};
  };

  int64_t op = -1;
  /// The stream, or 0 between a wait and the next start.
  int64_t stream = 0;
  Work work;
  // The stream's lock protects these.
  Status status = Queued;
  bool succeeded = false;
};

/// The communication streams of one rank.
///
/// - A stream is an in-order queue with a thread, which is kept from run to run.
/// - The stream's thread performs the collectives. The rank's thread performs them while it waits
///   for one of them, if the stream's thread has not begun.
/// - At most one collective of a stream is performed at a time.
class Streams {
public:
  explicit Streams(mw_rt_context &context) : context(context) {}
  ~Streams() { stop(); }

  void setSpin(int64_t nanoseconds) { spin = nanoseconds; }
  /// The number of threads that were started so far.
  int64_t getCount() const { return int64_t(streams.size()); }

  // The rank's thread calls these.

  /// Return false, with an error, if the program starts a ticket twice or waits for one that was
  /// not started. `wait` returns false without an error if the collective failed.
  bool start(const Caller &caller, Ticket::Work work, int64_t ticket, std::string &error);
  bool wait(int64_t ticket, std::string &error);
  /// Waits until no collective is queued or running, and forgets all tickets. Returns false
  /// if the deadline passes first.
  bool drain(Time deadline);

private:
  struct Stream {
    int64_t index = 0;
    std::mutex mutex;
    std::deque<Ticket *> queue;
    /// The collective that a thread performs now, or null.
    const Ticket *current = nullptr;
    bool stopping = false;
    /// Raised when a ticket was added, and when one is done.
    Signal added, done;
    std::thread thread;
  };
  void stop();
  void work(Stream &stream);
  /// Performs the queue's first collective, without the lock.
  void performFirst(Stream &stream, std::unique_lock<std::mutex> &lock);
  /// On the rank's thread: performs the queue's first collective, or waits for the one that the
  /// stream's thread performs. Meanwhile the rank's position is the op of that collective.
  /// Returns false if the deadline passes first.
  bool advance(Stream &stream, std::unique_lock<std::mutex> &lock, Time deadline = Time::max());
  Stream &getStream(int64_t index);

  mw_rt_context &context;
  /// How long threads poll before they sleep, in nanoseconds. Relaxed order is enough: a thread
  /// that reads an old value polls for another time.
  std::atomic<int64_t> spin{0};
  std::map<int64_t, std::unique_ptr<Stream>> streams;
  /// The keys are numbers of streams. Nodes of a map keep their addresses while others are added.
  std::map<int64_t, Ticket> tickets;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_STREAMS_H
