//===- Trace.h - events of ranks and streams --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_TRACE_H
#define MESHWRIGHT_RUNTIME_INCLUDE_TRACE_H

#include "meshwright-c/Runtime.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// The class of a kernel, or an event that is no kernel.
enum class TraceKind : int64_t {
  Rows = MW_RT_ROWS,
  Gemm = MW_RT_GEMM,
  Attention = MW_RT_ATTENTION,
  Move = MW_RT_MOVE,
  Collective,
  /// The compute stream waits for a communication stream.
  Wait,
};
constexpr int64_t kTraceKinds = 6;
const char *nameOf(TraceKind kind);

/// Times are in nanoseconds since the epoch, so that events of several processes compare.
struct TraceEvent {
  int64_t begin = 0, end = 0;
  TraceKind kind = TraceKind::Rows;
  /// Index into the program's table of op names.
  int64_t op = -1;
  /// Operations computed; bytes read and written, or sent.
  int64_t flops = 0, bytes = 0;
  /// The element type of the results, or -1 if it has no meaning.
  int64_t dtype = -1;
  /// Of a collective: the first rank of the group that takes part, or -1.
  int64_t group = -1;
};

/// The ops that events name, by number.
struct TraceOps {
  /// Names, with places in the source in brackets behind.
  std::vector<std::string> names;
  /// The bytes of the arena in use while each op runs; as many as names, or fewer where they are not known.
  std::vector<int64_t> arenaInUse;

  /// Adds the ops of an entry behind the others.
  void add(const std::vector<std::string> &entryNames, const std::vector<int64_t> &entryBytes);
};

/// The events of one or more runs.
class Trace {
public:
  /// The events of one stream of a rank, in order; stream 0 is the compute stream. One thread at
  /// a time adds events.
  struct Row {
    int64_t rank = 0, stream = 0;
    std::vector<TraceEvent> events;
  };

  /// Returns the row, which keeps its address. Any thread may call this.
  Row &getRow(int64_t rank, int64_t stream);
  /// The rows by rank and stream. Must not be called during a run.
  std::vector<const Row *> getRows() const;
  void clear() { rows.clear(); }
  /// Adds the events of another trace behind the own ones. Its ops have numbers from `firstOp` on.
  void append(const Trace &other, int64_t firstOp);

  /// Returns a rank's events as bytes, which another process adds to its trace by `merge`.
  /// `merge` returns false if the bytes are damaged.
  std::string serialize(int64_t rank) const;
  bool merge(const std::string &bytes);

  /// Returns the Chrome trace format, which Perfetto and chrome://tracing open: a process for
  /// each rank, a thread for each stream. Arrows join the ranks of a collective, and counters show
  /// the bytes of the collectives that run, and those of the arena that values take.
  std::string toJson(const TraceOps &ops) const;

private:
  mutable std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Row>> rows;
};

/// Writes the trace as JSON. The file is written under another name and renamed, so that no
/// half-written file is left behind.
bool writeTrace(const std::string &path, const Trace &trace, const TraceOps &ops,
                std::string &error);

/// Nanoseconds since the epoch, steady within a process.
int64_t traceClock();

/// Adds an event that lasts as long as this object. Adds none if `row` is null.
class TraceScope {
public:
  /// `event` has no times yet.
  TraceScope(Trace::Row *row, const TraceEvent &event) : row(row) {
    if (!row)
      return;
    this->event = event;
    this->event.begin = traceClock();
  }
  TraceScope(const TraceScope &) = delete;
  ~TraceScope() {
    if (!row)
      return;
    event.end = traceClock();
    row->events.push_back(event);
  }

private:
  Trace::Row *row;
  TraceEvent event;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_TRACE_H
