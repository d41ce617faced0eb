//===- CompileBundle.h - programs to bundles on disk ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILEBUNDLE_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILEBUNDLE_H

#include "Executable.h"

#include <map>
#include <optional>

namespace meshwright {

/// Stored tensors by name.
using TensorMap = std::map<std::string, rt::HostTensor, std::less<>>;

/// Finds a stored tensor for each parameter of a program, by name or alias. Returns false with an error.
using FindTensors =
    llvm::function_ref<bool(const rt::ProgramDescription &, TensorMap &, std::string &)>;

struct BundleOptions {
  /// Probes are ignored.
  CompileOptions compile;
  /// The reports that the bundle stores.
  std::string textReport, jsonReport;
  /// The tensors of weights that a bundle without weights is given when it is run.
  std::optional<std::vector<rt::WeightTensor>> tensors;
  /// The hash of the weights of a program that serves (rt::WeightsHash); empty if it is not known.
  std::string weightsHash;
  /// The layout of the state of a program that trains, where it is known.
  std::optional<StateDictLayout> stateDict;
};

/// Compiles a program and writes it, with its weights, as a bundle (rt::openBundle), whole or not
/// at all. A bundle without weights asks for no tensors. Fails after an error.
mlir::FailureOr<CompileStatistics> compileBundle(mlir::ModuleOp module, llvm::StringRef path,
                                                 FindTensors findTensors,
                                                 const BundleOptions &options = {});

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILEBUNDLE_H
