//===- Compare.h - outputs against a file -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_COMPARE_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_COMPARE_H

#include "Model.h"

#include "meshwright/runtime/include/SafeTensors.h"

namespace meshwright::run {

/// Compares the outputs with the reference file, and prints a line for each.
Status compareWithReference(const Options &options, const std::vector<rt::NamedTensor> &outputs);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_COMPARE_H
