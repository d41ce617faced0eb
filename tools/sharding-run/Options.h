//===- Options.h - the command line of sharding-run -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H

#include "meshwright/Serving.h"
#include "meshwright/runtime/include/World.h"

#include <cstdint>
#include <optional>
#include <string>

namespace meshwright::run {

struct Options {
  std::string model;
  bool isBundle = false;
  std::string weights, inputs, outputs, reference;
  /// The entry to run; empty: the default one.
  std::string entry;
  /// Folders of states: to start from, and to write after the run.
  std::string state, saveState;
  /// True if memory is kept to leave the state as it was if the call fails.
  bool recover = true;
  std::optional<uint64_t> randomInputs, randomWeights;
  std::optional<std::string> parallelize;
  std::string backend = "local", target;
  double tolerance = -1;
  /// Files of prompts to serve, and of their new tokens ("-" for standard output); and how each prompt is served.
  std::string prompts, completions;
  RequestOptions request;
  /// The first option that is given of `request`.
  std::string requestOption;
  /// Threads, timeout, checks and measurements of the run.
  rt::RunOptions running;
  bool check = false;
  /// Check the hashes of a bundle's weights before the run.
  bool verifyWeights = false;
  /// The file of the report, or "-" for standard output; none without a report.
  std::optional<std::string> report;
  /// The device file to write instead of running a model; empty: the calibration of this machine.
  std::optional<std::string> calibrate;
  /// The link that collectives are slowed down to, as in MESHWRIGHT_LINK.
  std::string link;
  /// True in the one process of a run that writes files and prints messages other than errors.
  bool speaks = true;
  bool quiet = false;
  bool help = false, version = false;
  /// The help, where it is asked for.
  std::string usage;
};

/// Returns false, and sets `error`, for a wrong command line.
bool parseOptions(int argc, char **argv, Options &options, std::string &error);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_OPTIONS_H
