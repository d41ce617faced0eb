//===- Model.h - a program that sharding-run runs ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TOOLS_SHARDING_RUN_MODEL_H
#define MESHWRIGHT_TOOLS_SHARDING_RUN_MODEL_H

#include "Options.h"

#include "meshwright/runtime/include/Session.h"

namespace meshwright::run {

enum Status { Fine = 0, Error = 1, WrongUsage = 2, CheckFailed = 3 };

/// Prints an error. Returns `Error`.
Status fail(const std::string &message);
/// Prints an error about the command line. Returns `WrongUsage`.
Status refuse(const std::string &message);

/// A program with its weights. Functions that fail have printed the reason.
class Model {
public:
  virtual ~Model() = default;

  /// The inputs and outputs of the entry that the options name. Only names, global types and index bounds are set.
  const std::vector<rt::ProgramValue> &getInputs() const { return inputs; }
  const std::vector<rt::ProgramValue> &getOutputs() const { return outputs; }
  /// Returns true for a bundle whose entries are steps of serving.
  bool serves() const { return isServing; }

  /// Starts from the saved state and saves the state as the options say.
  virtual Status run(const std::vector<rt::HostTensor> &inputs, const std::vector<void *> &outputs,
                     const Options &options) = 0;
  /// Compares with the program before it was rewritten.
  virtual Status check(const std::vector<rt::HostTensor> &inputs, double tolerance) = 0;
  /// The report as text, as JSON, or as JSON with the launches and buffers that a page shows.
  enum class Format { Text, Json, Facts };
  virtual Status report(Format format, std::string &text) = 0;

protected:
  std::vector<rt::ProgramValue> inputs, outputs;
  bool isServing = false;
};

/// Compiles a file of MLIR by the compiler library, which is opened by name.
Status compileModel(const Options &options, std::unique_ptr<Model> &model);
/// Measures this machine by the compiler library, and writes the device file that the options name.
Status calibrate(const Options &options);
/// Opens a bundle by the runtime alone.
Status loadBundle(const Options &options, std::unique_ptr<Model> &model);

} // namespace meshwright::run

#endif // MESHWRIGHT_TOOLS_SHARDING_RUN_MODEL_H
