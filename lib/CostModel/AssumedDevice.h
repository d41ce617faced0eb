//===- AssumedDevice.h - the device that a plan assumes ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The device of a plan, in this order:
// - the option `device`, if it is not `auto`;
// - the environment variable MESHWRIGHT_DEVICE;
// - the calibration of this machine, `meshwright/device.json` in XDG_CONFIG_HOME or ~/.config, if it
//   was measured for the kind of the target;
// - the preset `h100`.
// The option and the variable name a preset, numbers, or a device file.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_ASSUMEDDEVICE_H
#define MESHWRIGHT_LIB_COSTMODEL_ASSUMEDDEVICE_H

#include "meshwright/lib/CostModel/CostModel.h"

namespace meshwright {

struct AssumedDevice {
  /// The device as a mesh spells it.
  std::string spelling;
  /// For reports: the name of the device, and why it is this one.
  std::string name, reason;
  /// A device file of another machine is used all the same, with this warning; else empty.
  std::string warning;
};

/// `wanted` is the option `device`, or empty. `target` is the plan's target; empty is `cpu`.
std::optional<AssumedDevice> findDevice(llvm::StringRef wanted, llvm::StringRef target, std::string &error);

/// Where the calibration of this machine is looked for; empty without a home folder.
std::string getCalibrationPath();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_ASSUMEDDEVICE_H
