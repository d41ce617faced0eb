//===- WeightModules.h - the modules of moved weights -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A collective that moves a weight has the place of the weight's declaration, which names no module. The
// name of the weight does.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_WEIGHTS_WEIGHTMODULES_H
#define MESHWRIGHT_LIB_WEIGHTS_WEIGHTMODULES_H

#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <map>
#include <string>
#include <tuple>

namespace meshwright {

/// The modules of a function's weights, by the places of the program that declare them.
class WeightModules {
public:
  explicit WeightModules(mlir::FunctionOpInterface function);
  /// The place of a collective of the function; where that is the place of a weight, with the name of its module.
  SourceLocation locate(mlir::Location location) const;

private:
  using Place = std::tuple<std::string, std::string, int64_t>;
  static Place getPlace(const SourceLocation &location) { return {location.name, location.file, location.line}; }

  std::map<Place, std::string> modules;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_WEIGHTS_WEIGHTMODULES_H
