//===- WidenedParameters.h - parameters that are computed at load -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to the facade.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_WIDENEDPARAMETERS_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_WIDENEDPARAMETERS_H

#include "meshwright/lib/Driver/Execute/CompileBundle.h"
#include "meshwright/lib/Driver/Facade/ProgramImpl.h"
#include "meshwright/passes/bind/WidenStored.h"

#include <mutex>

namespace meshwright {

/// The parameters that `--widen-stored` makes of a program, and the programs that compute them. Programs of
/// equal text are compiled once.
class WidenedParameters : public std::enable_shared_from_this<WidenedParameters> {
public:
  /// Returns null if there are none.
  static std::shared_ptr<WidenedParameters> create(const Program::Impl &program);

  /// Adds the widened parameters of a program. A tensor from which they are computed goes where the program
  /// reads it no more. Fails with an error if such a tensor is missing.
  bool addTo(TensorMap &tensors, const rt::ProgramDescription &description, std::string &error);

private:
  WidenedParameters() = default;

  std::shared_ptr<const void> compute(const WidenedWeight &weight,
                                      const std::vector<rt::HostTensor> &sources, std::string &error);
  Executable *compile(const WidenedWeight &weight, std::string &error);

  std::unique_ptr<mlir::MLIRContext> context;
  mlir::SmallVector<WidenedWeight> weights;
  /// Protects the context and what is compiled in it.
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Executable>> executables;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_WIDENEDPARAMETERS_H
