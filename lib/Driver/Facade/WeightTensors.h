//===- WeightTensors.h - the weights of a program as tensors ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_WEIGHTTENSORS_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_WEIGHTTENSORS_H

#include "meshwright/lib/Driver/Facade/ProgramImpl.h"
#include "meshwright/runtime/include/Program.h"

namespace meshwright {

/// The tensors that a file of weights has for a program, in the order of its parameters. Parameters
/// that are parts of one tensor share its name: the tensor is as large as its parts need.
std::vector<rt::WeightTensor> getWeightTensors(const Program::Impl &program);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_WEIGHTTENSORS_H
