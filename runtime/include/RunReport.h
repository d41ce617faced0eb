//===- RunReport.h - the time of a run, by kind of work ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H
#define MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H

#include "meshwright/runtime/include/Trace.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// Peak rates, per second: measured ones of cores of the machine together, or those of GPUs by their
/// clocks.
struct Ceilings {
  /// The cores, or 0 for GPUs.
  int64_t threads = 0;
  /// The GPUs, or 0 for cores.
  int64_t gpus = 0;
  /// Floating-point operations in f32, and in bf16 if the processor has dot products of bf16
  /// (else the same as f32).
  double f32 = 0, bf16 = 0;
  /// Bytes that a copy in memory reads and writes.
  double bytes = 0;
  /// The same of copies in caches: the bytes that a thread's copy moves, and its rate. The smallest
  /// comes first.
  std::vector<std::pair<int64_t, double>> cached;

  /// The rate of a thread's copy that moves so many bytes.
  double getBytesPerSecond(int64_t moved) const {
    double rate = bytes;
    for (size_t i = cached.size(); i-- > 0;)
      rate = moved <= cached[i].first ? std::max(rate, cached[i].second) : rate;
    return rate;
  }
};

/// The rates of that many threads at once. Measured once per process and number.
const Ceilings &getCeilings(int64_t threads);

/// The time of a run, by kind of work. Seconds are means over ranks.
struct RunReport {
  struct Class {
    int64_t launches = 0;
    double seconds = 0, flops = 0, bytes = 0;
    /// The time that the ceilings allow, divided by the time taken: at most 1. Each launch is compared
    /// with the ceiling, of arithmetic or of memory, that allows it the longer time; bytes that a cache
    /// holds with the rate of that cache.
    double ofCeiling = 0;
  };

  int64_t ranks = 0, threadsPerRank = 0;
  /// From the first event to the last, on the rank that took longest.
  double seconds = 0;
  /// Kernels, by class (TraceKind::Rows to TraceKind::Move).
  Class classes[4];
  /// Collectives on any stream: their number, their time, and the part of the time that the
  /// compute stream waited for them. The rest is hidden behind kernels or another collective.
  int64_t collectives = 0;
  double communication = 0, exposed = 0;
  /// Bytes sent by the rank that sends most, and by all ranks.
  double sentBytes = 0, sentByAll = 0;
  /// Bytes of a rank's arena: as planned, and as far up as a rank wrote (-1 if not measured).
  int64_t planned = 0, seen = -1;
  /// Rates that are at least those of the run's classes: a class that is faster than the measured peak
  /// shows that another process slowed the measurement down.
  Ceilings ceilings;

  double getHidden() const { return communication - exposed; }
  std::string toText() const;
  std::string toJson() const;
};

/// Makes the report of a trace. `peaks` are the rates of a rank's device, or null for the processor.
RunReport summarize(const Trace &trace, int64_t threadsPerRank, const Ceilings *peaks = nullptr);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H
