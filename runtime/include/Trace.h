//===- Trace.h - what ranks do when -----------------------------*- C++ -*-===//
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

/// Kernels by class, as launched; then what is no kernel.
enum class TraceKind : int64_t {
  Rows = MW_RT_ROWS,
  Gemm = MW_RT_GEMM,
  Attention = MW_RT_ATTENTION,
  Move = MW_RT_MOVE,
  Collective,
  /// The compute stream waits for another.
  Wait,
};
constexpr int64_t kTraceKinds = 6;
const char *nameOf(TraceKind kind);

/// Times are in nanoseconds since the epoch, so that processes compare.
struct TraceEvent {
  int64_t begin = 0, end = 0;
  TraceKind kind = TraceKind::Rows;
  /// Index into the program's table of op names.
  int64_t op = -1;
  /// Computed; read and written, or sent.
  int64_t flops = 0, bytes = 0;
  /// Of the results, where one counts; else -1.
  int64_t dtype = -1;
};

/// What the ranks did in a run, or several.
class Trace {
public:
  /// The events of one rank's stream, in order; 0 is its compute stream. One
  /// thread at a time adds to it.
  struct Row {
    int64_t rank = 0, stream = 0;
    std::vector<TraceEvent> events;
  };

  /// Stays where it is. Any thread may ask.
  Row &getRow(int64_t rank, int64_t stream);
  /// By rank and stream. Only while nothing runs.
  std::vector<const Row *> getRows() const;
  void clear() { rows.clear(); }

  /// A rank's events as bytes, for another process, which adds them to its own.
  std::string serialize(int64_t rank) const;
  bool merge(const std::string &bytes);

  /// In the Chrome trace format, which Perfetto and chrome://tracing open: a
  /// process for each rank, a thread for each stream. `ops` are the program's.
  std::string toJson(const std::vector<std::string> &ops) const;

private:
  mutable std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Row>> rows;
};

/// Writes the trace as JSON: under another name first, so that no half-written file is
/// left behind.
bool writeTrace(const std::string &path, const Trace &trace, const std::vector<std::string> &ops,
                std::string &error);

/// Nanoseconds since the epoch, steady within a process.
int64_t traceClock();

/// An event as long as the scope; none where `row` is null.
class TraceScope {
public:
  /// `event` without its times.
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
