//===- Steps.h - reports of the steps of a call -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_STEPS_H
#define MESHWRIGHT_LIB_REPORT_STEPS_H

#include "meshwright/lib/Report/Report.h"

namespace meshwright {

/// Adds a step to the report on a call. `step` is the report on one run of its function, which runs
/// `runs` times: traffic and attention count as often. The memory is that of the last step, which
/// is the entry, with the largest peak of all steps.
void addStep(Report step, int64_t runs, Report &report);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_STEPS_H
