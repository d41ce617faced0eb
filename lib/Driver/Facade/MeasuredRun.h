//===- MeasuredRun.h - the times of a run for a report ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_MEASUREDRUN_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_MEASUREDRUN_H

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/runtime/include/RunReport.h"

namespace meshwright {

static_assert(KernelWork::Rows == int(rt::TraceKind::Rows) && KernelWork::Product == int(rt::TraceKind::Gemm) &&
              KernelWork::Attention == int(rt::TraceKind::Attention) && KernelWork::Move == int(rt::TraceKind::Move));

/// Puts the times of a run beside the expected ones, if they are about the same entry.
inline void setMeasured(Report &report, const rt::RunReport &run, bool isExpectedEntry) {
  report.measured.reset();
  if (!isExpectedEntry)
    return;
  MeasuredTimes &times = report.measured.emplace();
  times.run = run.seconds;
  for (int i = 0; i < 4; ++i)
    times.kernels[i] = run.classes[i].seconds;
  times.collectives = run.communication;
  times.exposed = run.exposed;
}

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_MEASUREDRUN_H
