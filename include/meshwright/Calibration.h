//===- Calibration.h - measure this machine for the cost model --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_CALIBRATION_H
#define MESHWRIGHT_CALIBRATION_H

#include "meshwright/Compiler.h"

namespace meshwright {

struct CalibrationOptions {
  /// The backend that will run, and the target; empty: that of the backend's devices.
  std::string backend = "local", target;
  /// The ranks that exchange data. 0 stands for 2, or 1 on a machine of one core. With processes
  /// of a launcher it is their number.
  int64_t ranks = 0;
  /// Threads that a rank computes with. 0 stands for MESHWRIGHT_THREADS, or 1.
  int64_t threadsPerRank = 0;
};

/// Measures, in about a minute, the rates that the cost model uses: small programs of each class of
/// kernels and collectives are compiled and run. Writes a device file (docs/devices.md), whole or not at
/// all. An empty path is the place where plans look for the calibration of this machine. The result
/// is the path.
Result<std::string> calibrate(std::string_view path, const CalibrationOptions &options = {});

} // namespace meshwright

#endif // MESHWRIGHT_CALIBRATION_H
