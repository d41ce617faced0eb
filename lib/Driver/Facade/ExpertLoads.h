//===- ExpertLoads.h - the load of experts in reports -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to the facade.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_EXPERTLOADS_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_EXPERTLOADS_H

#include "meshwright/lib/Report/Report.h"
#include "meshwright/runtime/include/ExpertRows.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

namespace meshwright {

/// Writes the load of the layers of experts in a run of an entry to the report.
void setExperts(Report &report, mlir::FunctionOpInterface entry,
                llvm::ArrayRef<rt::ExpertLoad> loads);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_EXPERTLOADS_H
