//===- AheadScheduler.h - collectives ahead of a given order ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_AHEADSCHEDULER_H
#define MESHWRIGHT_PASSES_SCHEDULE_AHEADSCHEDULER_H

#include "meshwright/passes/schedule/ListScheduler.h"

namespace meshwright {

/// Keeps the kernels in the given order, and lets collectives run beside them as far as memory allows.
///
/// The order in which nothing runs beside kernels has a known sum of live bytes at each place. A
/// collective that begins before its place adds its results to the places in between. One whose operands
/// are free when it has ended (`ScheduleTask::frees`) adds them to the places until it is waited for.
/// - A collective begins before its place if it could, its link is free before the next kernel ends, and
///   no place in between exceeds `memory` with it. Of one link, the one that comes first in the order does.
/// - It is waited for where it has ended, even if it takes twice its time, or before the first place that
///   would exceed `memory`.
///
/// `peak` exceeds `memory` only where the given order does, or where operands wait for readers of
/// collectives that free none. Complexity: n log n for n tasks, and bounded places between the begin of a
/// collective and its place.
Schedule scheduleAhead(llvm::ArrayRef<ScheduleTask> tasks, llvm::ArrayRef<unsigned> order, int64_t memory);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_AHEADSCHEDULER_H
