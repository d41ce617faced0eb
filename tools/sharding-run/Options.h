//===- Options.h - the command line of sharding-run -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H

#include "meshwright/runtime/include/World.h"

#include <cstdint>
#include <optional>
#include <string>

namespace meshwright::run {

struct Options {
  std::string model;
  bool isBundle = false;
  std::string weights, inputs, outputs, reference;
  std::optional<uint64_t> randomInputs, randomWeights;
  std::optional<std::string> parallelize;
  std::string backend = "local", target;
  double tolerance = -1;
  /// Threads, timeout, what to look at while running.
  rt::RunOptions running;
  bool check = false;
  /// A bundle's, before it runs.
  bool verifyWeights = false;
  /// Where the report goes: nothing, "-" for standard output, or a file.
  std::optional<std::string> report;
  /// Slows collectives down: MESHWRIGHT_LINK.
  std::string link;
  /// Of several processes one writes files and tells what is no error.
  bool speaks = true;
  bool quiet = false;
  bool help = false;
};

extern const char *const usage;

/// False, with an error, for a command line that is not one of ours.
bool parseOptions(int argc, char **argv, Options &options, std::string &error);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H
