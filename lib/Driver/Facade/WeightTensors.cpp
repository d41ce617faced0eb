//===- WeightTensors.cpp - the weights of a program as tensors ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/WeightTensors.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Launches/IndexBound.h"
#include "meshwright/lib/Weights/Weights.h"

using namespace meshwright;

std::vector<rt::WeightTensor> meshwright::getWeightTensors(const Program::Impl &program) {
  std::vector<rt::WeightTensor> tensors;
  auto find = [&](llvm::StringRef name) {
    return llvm::find_if(tensors,
                         [&](const rt::WeightTensor &known) { return name == known.name; });
  };
  for (const Port &port : program.ports.parameters) {
    std::vector<int64_t> shape = port.shape;
    for (size_t d = 0; d < port.offsets.size(); ++d)
      shape[d] += port.offsets[d];
    auto known = find(port.name);
    if (known == tensors.end()) {
      tensors.push_back({port.name, port.aliases, getRuntimeType(port.type), shape, 0});
      continue;
    }
    for (size_t d = 0; d < std::min(shape.size(), known->shape.size()); ++d)
      known->shape[d] = std::max(known->shape[d], shape[d]);
  }
  for (const Entry &entry : program.ports.entries) {
    auto function = getEntry(*program.module, entry.name);
    for (mlir::BlockArgument argument : function.getArguments()) {
      std::optional<Weight> weight = getWeight(argument);
      int64_t bound = weight && !weight->isState ? getIndexBound(argument) : 0;
      auto known = bound > 0 ? find(weight->name) : tensors.end();
      // Indices must be valid in all entries.
      if (known != tensors.end())
        known->indexBound = known->indexBound > 0 ? std::min(known->indexBound, bound) : bound;
    }
  }
  return tensors;
}
