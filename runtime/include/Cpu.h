//===- Cpu.h - what this processor can do -----------------------*- C++ -*-===//
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

/// Extensions of the instruction set that compiled code may use, as LLVM spells
/// them ("avx512bf16"), beyond what every processor of the architecture has.
const std::vector<std::string> &getKnownFeatures();
/// Whether this processor and system have one of them; false for unknown ones.
bool hasFeature(const std::string &name);
/// Those that it does not have, with commas.
std::string getMissingFeatures(const std::vector<std::string> &names);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_CPU_H
