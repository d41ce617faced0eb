//===- WeightModules.cpp - the modules of moved weights -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Weights/WeightModules.h"

#include "meshwright/lib/Weights/Weights.h"

using namespace mlir;
using namespace meshwright;

WeightModules::WeightModules(FunctionOpInterface function) {
  WeightFinder finder(function);
  for (BlockArgument argument : function.getArguments())
    if (std::optional<Weight> weight = finder.find(argument))
      modules.try_emplace(getPlace(getSourceLocation(argument.getLoc())),
                          weight->name.getValue().rsplit('.').first.str());
}

SourceLocation WeightModules::locate(Location location) const {
  SourceLocation source = getSourceLocation(location);
  if (auto known = modules.find(getPlace(source)); known != modules.end())
    source.name = known->second;
  return source;
}
