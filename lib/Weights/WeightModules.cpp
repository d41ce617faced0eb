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
  // A place that other arguments share names no module.
  for (BlockArgument argument : function.getArguments()) {
    std::optional<Weight> weight = finder.find(argument);
    std::string module = weight ? weight->name.getValue().rsplit('.').first.str() : "";
    auto [known, isNew] = modules.try_emplace(getPlace(getSourceLocation(argument.getLoc())), module);
    if (!isNew && known->second != module)
      known->second.clear();
  }
}

SourceLocation WeightModules::locate(Location location) const {
  SourceLocation source = getSourceLocation(location);
  if (source.name.empty() && source.file.empty())
    return source;
  if (auto known = modules.find(getPlace(source)); known != modules.end() && !known->second.empty())
    source.name = known->second;
  return source;
}
