//===- Device.cpp - the programs that a device takes ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Device.h"

#include "meshwright/runtime/include/Program.h"

namespace meshwright::rt {

bool Device::load(const ProgramDescription &program, std::string &error) {
  if (program.targetChip.empty())
    return true;
  error = "the program is compiled for target '" + program.getTarget() +
          "', expected 'cpu': a GPU runs it with backend 'nccl'";
  return false;
}

bool Device::refuse(const mw_rt_call &what, std::string &error) const {
  error = std::string("device '") + getName() + "' does not perform calls of kind " +
          std::to_string(what.kind);
  return false;
}

} // namespace meshwright::rt
