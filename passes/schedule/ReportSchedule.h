//===- ReportSchedule.h - times and memory of a schedule --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads from a planned function the parts of a report that its schedule decides.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_REPORTSCHEDULE_H
#define MESHWRIGHT_PASSES_SCHEDULE_REPORTSCHEDULE_H

#include "meshwright/lib/Report/Report.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Adds the schedule to the report on an SPMD entry: times, memory, launches that the schedule joins, and
/// gathers of weights. `planned` is the entry once its module is scheduled. It may be the entry itself.
void addSchedule(mlir::FunctionOpInterface entry, mlir::func::FuncOp planned, Report &report);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_REPORTSCHEDULE_H
