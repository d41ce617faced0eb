//===- CompileBundle.cpp - programs to bundles on disk --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CompileBundle.h"

#include "AssembleKernels.h"
#include "Link.h"

#include "meshwright/runtime/include/Bundle.h"

using namespace mlir;

namespace meshwright {

/// Finds the stored tensor of each parameter. Returns an error, or an empty string.
static std::string
findStored(const rt::ProgramDescription &description, FindTensors findTensors,
           std::vector<rt::HostTensor> &stored) {
  TensorMap parameters;
  std::string error;
  if (!findTensors(description, parameters, error))
    return error;
  for (const rt::ProgramValue &parameter : description.parameters) {
    auto found = parameters.find(parameter.name);
    for (const std::string &alias : parameter.aliases)
      if (found == parameters.end())
        found = parameters.find(alias);
    if (found == parameters.end())
      return "parameter '" + parameter.name + "' has no value";
    if (std::string problem = rt::checkParameter(parameter, found->second); !problem.empty())
      return problem;
    stored.push_back(found->second);
  }
  return "";
}

FailureOr<CompileStatistics>
compileBundle(ModuleOp module, StringRef path, FindTensors findTensors,
              const BundleOptions &options) {
  auto fail = [&](const Twine &message) { return emitError(module.getLoc()) << message; };
  // Errors of the path come before the compilation.
  std::string error;
  auto writer = rt::BundleWriter::create(path.str(), error);
  if (!writer)
    return fail(error);
  FailureOr<CompiledProgram> program = compileProgram(module, options.compile);
  if (failed(program))
    return failure();

  if (llvm::Error problem = assembleKernels(program->description))
    return fail(llvm::toString(std::move(problem)));
  program->description.stateDict = options.stateDict;
  program->description.model.weights = options.weightsHash;
  std::vector<rt::HostTensor> stored;
  if (options.tensors)
    program->description.tensors = *options.tensors;
  else if (std::string problem = findStored(program->description, findTensors, stored);
           !problem.empty())
    return fail(problem);
  if (llvm::Error problem = linkSharedObject(program->objects, writer->getProgramPath()))
    return fail(llvm::toString(std::move(problem)));
  rt::BundleWriter::Weights weights;
  // A tensor that is computed stays until the next one is wanted: each rank's part is written from it.
  std::shared_ptr<const rt::HostTensor> present;
  int64_t last = -1;
  if (!options.tensors)
    weights = [&](int64_t parameter, std::string &problem) {
      if (std::exchange(last, parameter) != parameter) {
        present.reset();
        present = rt::getPresent(stored[parameter], problem);
      }
      return present;
    };
  if (!writer->write(program->description, weights, options.textReport, options.jsonReport,
                     error) ||
      !writer->finish(error))
    return fail(error);
  return std::move(program->statistics);
}

} // namespace meshwright
