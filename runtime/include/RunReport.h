//===- RunReport.h - where the time of a run went ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H
#define MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H

#include "meshwright/runtime/include/Trace.h"

namespace meshwright::rt {

/// What the machine's cores can do together, as a short measurement found it.
struct Ceilings {
  int64_t threads = 0;
  /// Products and sums of f32, and of bf16 where the processor has dot products
  /// of them (else as f32).
  double f32 = 0, bf16 = 0;
  /// Read and written by a copy in memory.
  double bytes = 0;
};

/// With that many threads at once. Measured once in a process for each number.
const Ceilings &getCeilings(int64_t threads);

/// Where the time of a run went: seconds are means over ranks.
struct RunReport {
  struct Class {
    int64_t launches = 0;
    double seconds = 0, flops = 0, bytes = 0;
    /// The time that the ceilings allow, over that taken: of the two ceilings the
    /// one that is lower for each launch.
    double ofCeiling = 0;
  };

  int64_t ranks = 0, threadsPerRank = 0;
  /// From the first event to the last, on the rank where that is longest.
  double seconds = 0;
  /// Kernels, by class (Rows to Move).
  Class classes[4];
  /// In collectives on any stream; how long of that the compute stream stood still
  /// for them, which is never more: the rest is hidden behind kernels, or behind another
  /// collective.
  int64_t collectives = 0;
  double communication = 0, exposed = 0;
  /// By the rank that sends most, and by all ranks.
  double sentBytes = 0, sentByAll = 0;
  /// Of a rank's arena: as planned, and as far up as a rank was seen to write; -1
  /// where nobody looked.
  int64_t planned = 0, seen = -1;
  Ceilings ceilings;

  double getHidden() const { return communication - exposed; }
  std::string toText() const;
  std::string toJson() const;
};

RunReport summarize(const Trace &trace, int64_t threadsPerRank);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_RUNREPORT_H
