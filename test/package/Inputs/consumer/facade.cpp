//===- facade.cpp - plans and runs a model without a header of MLIR's -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/Compiler.h"

#include <cstdio>
#include <deque>
#include <numeric>
#include <vector>

using namespace meshwright;

template <typename T> static bool failed(const Result<T> &result) {
  for (const Diagnostic &diagnostic : result.getDiagnostics())
    std::fprintf(stderr, "%s\n", diagnostic.message.c_str());
  return !result;
}

/// An array of ones of a port's shape.
static HostArray ones(const Port &port, std::deque<std::vector<float>> &storage) {
  int64_t count = std::accumulate(port.shape.begin(), port.shape.end(), int64_t(1),
                                  [](int64_t a, int64_t b) { return a * b; });
  storage.emplace_back(count, 1.0f);
  return {port.type, port.shape, storage.back().data()};
}

// usage: facade FILE OPTIONS; prints the report, and the first entry of the
// first output where everything that goes in is 1.
int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: facade FILE OPTIONS\n");
    return 2;
  }
  Result<Program> program = Program::parseFile(argv[1]);
  if (failed(program))
    return 1;
  Result<Plan> plan = Plan::parallelize(*program, argv[2]);
  if (failed(plan))
    return 1;
  std::puts(plan->report(ReportFormat::Text).c_str());

  std::deque<std::vector<float>> storage;
  for (const Port &port : program->getParameters())
    if (failed(plan->setParameter(port.name, ones(port, storage))))
      return 1;
  std::vector<HostArray> inputs;
  for (const Port &port : plan->getInputs())
    inputs.push_back(ones(port, storage));
  std::vector<void *> outputs;
  for (const Port &port : plan->getOutputs())
    outputs.push_back(const_cast<void *>(ones(port, storage).data));
  if (failed(plan->run(inputs, outputs)))
    return 1;
  std::printf("first entry: %g\n", *static_cast<float *>(outputs.front()));
  return 0;
}
