//===- Device.cpp - the programs that a device takes ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Device.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Program.h"

namespace meshwright::rt {

bool Device::load(const ProgramDescription &program, std::string &error) {
  if (program.targetChip.empty())
    return true;
  error = "the target that the program is compiled for: expected 'cpu', got '" +
          program.getTarget() + "': a GPU runs it with backend 'nccl'";
  return false;
}

bool Device::checkCalls(const ProgramDescription &program, std::string &error) const {
  std::string performed;
  for (size_t kind = 0; kind < std::size(kCallNames); ++kind)
    if (performs(kind))
      performed += (performed.empty() ? "" : ", ") + std::string(kCallNames[kind]);
  for (int64_t kind : program.calls)
    if (!performs(kind)) {
      error = std::string("the program calls '") + kCallNames[kind] + "', which device '" +
              getName() + "' does not perform: expected " + performed;
      return false;
    }
  return true;
}

bool Device::refuse(const mw_rt_call &what, std::string &error) const {
  error = std::string("device '") + getName() + "' does not perform calls of kind " +
          std::to_string(what.kind);
  return false;
}

} // namespace meshwright::rt
