//===- Handles.cpp - views for the C interface ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Handles.h"

#include "meshwright/lib/Driver/Facade/PlanImpl.h"

using namespace meshwright;

std::vector<OwnedPort> meshwright::ownPorts(const std::vector<Port> &ports) {
  std::vector<OwnedPort> owned(ports.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    OwnedPort &to = owned[i];
    to.port = ports[i];
    for (const std::string &alias : to.port.aliases)
      to.aliases.push_back(alias.c_str());
    to.view = {to.port.name.c_str(),
               int64_t(getRuntimeType(to.port.type)),
               int64_t(to.port.shape.size()),
               to.port.shape.data(),
               int64_t(to.aliases.size()),
               to.aliases.data(),
               0,
               to.port.defaultElement.empty() ? nullptr : to.port.defaultElement.data()};
  }
  return owned;
}

std::vector<HostArray> meshwright::toArrays(const mw_tensor *tensors, size_t count) {
  std::vector<HostArray> arrays;
  for (size_t i = 0; i < count; ++i) {
    const mw_tensor &tensor = tensors[i];
    arrays.push_back({getElementType(rt::DType(tensor.dtype)),
                      std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank),
                      tensor.data});
  }
  return arrays;
}

SessionOptions meshwright::toSessionOptions(const mw_run_options &options) {
  SessionOptions settings;
  if (options.backend)
    settings.backend = options.backend;
  settings.threadsPerRank = options.threads_per_rank;
  settings.timeout = options.timeout;
  if (options.target)
    settings.target = options.target;
  if (options.state)
    settings.state = options.state;
  settings.recover = options.no_recover == 0;
  if (options.graphs)
    settings.graphs = options.graphs;
  return settings;
}

void meshwright::tell(const std::vector<Diagnostic> &diagnostics, mw_say say, void *user) {
  for (const Diagnostic &diagnostic : diagnostics) {
    std::string where = diagnostic.file;
    if (!where.empty() && diagnostic.line)
      where += ":" + std::to_string(diagnostic.line);
    say(user, int32_t(diagnostic.severity), where.c_str(), diagnostic.message.c_str());
  }
}
