//===- Inputs.h - what a program is run on ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_INPUTS_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_INPUTS_H

#include "Model.h"

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/SafeTensors.h"

namespace meshwright::run {

/// The tensors of a program's inputs, and the memory that owns them.
struct Inputs {
  std::vector<rt::HostTensor> tensors;
  std::unique_ptr<rt::SafeTensorsFile> file;
  std::vector<rt::Memory> random;
};

/// Reads the inputs from a file, or draws them, by the options.
bool readInputs(const Options &options, const Model &model, Inputs &inputs, std::string &error);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_INPUTS_H
