//===- Cpu.h - the instruction set of this processor ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_CPU_H
#define MESHWRIGHT_RUNTIME_INCLUDE_CPU_H

#include <string>
#include <vector>

namespace meshwright::rt {

/// "x86-64", "aarch64" or "unknown".
std::string getArchitecture();

/// Extensions of the architecture's instruction set that compiled code may use, as LLVM spells
/// them ("avx512bf16").
const std::vector<std::string> &getKnownFeatures();
/// Returns true if this processor and system support an extension; false for unknown names.
bool hasFeature(const std::string &name);
/// Returns the extensions that this processor does not support, separated by commas.
std::string getMissingFeatures(const std::vector<std::string> &names);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_CPU_H
