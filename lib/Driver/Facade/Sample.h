//===- Sample.h - small programs that a calibration measures ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_SAMPLE_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_SAMPLE_H

#include "meshwright/Calibration.h"
#include "meshwright/runtime/include/RunReport.h"

#include "llvm/ADT/Twine.h"

#include <initializer_list>

namespace meshwright {

/// The text of a program of independent ops. With several ranks each of them computes the same.
class Sample {
public:
  explicit Sample(int64_t ranks) : ranks(ranks) {}

  /// The type of a tensor in IR.
  static std::string type(std::initializer_list<int64_t> shape, const std::string &element);

  /// Adds an argument and returns its name.
  std::string input(const std::string &type) { return addArgument(type, "nn.input"); }
  std::string parameter(const std::string &type) { return addArgument(type, "nn.parameter"); }
  /// Adds an op whose results, of one type, are outputs of the program.
  void op(const llvm::Twine &text, const std::string &type, int64_t numResults = 1);
  /// Adds an op whose result other ops read, and returns its name.
  std::string inner(const llvm::Twine &text);
  /// Makes a value that `inner` added an output.
  void output(const std::string &name, const std::string &type);
  std::string str() const;

private:
  std::string addArgument(const std::string &type, const char *attribute);
  std::string getSharding(const std::string &type) const;

  int64_t ranks;
  std::string arguments, body;
  std::vector<std::string> results, resultTypes;
  int64_t numArguments = 0, numOps = 0;
};

/// The seconds of a launch in a sample: lower quartiles of several runs.
struct Measured {
  /// The mean of kernels, of collectives, and of the whole run, by its launches.
  double kernel = 0, collective = 0, all = 0;
};

/// Compiles samples and runs them.
class SampleRunner {
public:
  explicit SampleRunner(const CalibrationOptions &options) : options(options) {}
  /// Returns none, and keeps the errors, if the sample does not run.
  std::optional<Measured> run(const std::string &text);
  std::vector<Diagnostic> takeErrors() { return std::move(errors); }

private:
  const CalibrationOptions &options;
  std::vector<Diagnostic> errors;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_SAMPLE_H
