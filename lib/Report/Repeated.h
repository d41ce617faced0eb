//===- Repeated.h - reports of entries that repeat a function ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_REPEATED_H
#define MESHWRIGHT_LIB_REPORT_REPEATED_H

#include "meshwright/lib/Report/Report.h"

namespace meshwright {

/// Adds the runs of the function that an entry repeats, which come first: its traffic and its
/// work times their number, and the larger of the peaks of memory.
mlir::LogicalResult addRepeated(mlir::FunctionOpInterface entry, Report &report);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_REPEATED_H
