//===- Parameters.cpp - the parameters of a plan --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Driver/Facade/WeightTensors.h"
#include "meshwright/lib/Driver/Facade/WidenedParameters.h"
#include "meshwright/runtime/include/WeightsHash.h"

using namespace meshwright;

rt::HostTensor meshwright::toHostTensor(const HostArray &array) {
  rt::HostTensor tensor{getRuntimeType(array.type), array.shape, array.data, array.gpu};
  for (const ArrayPiece &piece : array.pieces)
    tensor.pieces.push_back({piece.offsets, piece.shape, piece.strides, piece.data});
  return tensor;
}

bool Plan::Impl::getTensors(const rt::ProgramDescription &description, TensorMap &tensors,
                             std::string &error) const {
  for (auto &[name, array] : parameters)
    tensors.emplace(name, toHostTensor(array));
  return !widened || widened->addTo(tensors, description, error);
}

static std::string describe(ElementType type, const std::vector<int64_t> &shape) {
  return rt::describe(getRuntimeType(type), shape);
}

Result<bool> Plan::setParameter(std::string_view name, const HostArray &array) {
  for (const Port &port : getParameters()) {
    if (port.name != name &&
        std::find(port.aliases.begin(), port.aliases.end(), name) == port.aliases.end())
      continue;
    bool fits = port.type == array.type && port.shape.size() == array.shape.size();
    for (size_t i = 0; fits && i < port.shape.size(); ++i)
      fits = port.offsets.empty() ? port.shape[i] == array.shape[i]
                                  : port.offsets[i] + port.shape[i] <= array.shape[i];
    if (!fits)
      return std::vector<Diagnostic>{makeError("parameter '" + port.name + "': expected " +
                                               describe(port.type, port.shape) + ", got " +
                                               describe(array.type, array.shape))};
    std::lock_guard<std::mutex> lock(impl->mutex);
    impl->parameters.insert_or_assign(port.name, array);
    if (!impl->session)
      continue;
    // A stuck rank may still read this session's parameters. So the next run starts another
    // session.
    std::string error;
    if (impl->session->getWorld().isStuck() ||
        !impl->session->setParameter(port.name, toHostTensor(array), error))
      impl->session.reset();
  }
  return true;
}

std::string Plan::Impl::hashWeights() const {
  rt::WeightsHash hash;
  if (nn::getServingSizes(*program->module))
    for (const rt::WeightTensor &tensor : getWeightTensors(*program))
      if (auto given = parameters.find(tensor.name); given != parameters.end())
        hash.add(tensor.name, toHostTensor(given->second));
  return hash.get();
}

std::unique_ptr<rt::Session> Plan::Impl::start(Executable &executable, const std::string &backend,
                                                std::vector<Diagnostic> &diagnostics) const {
  std::string error;
  auto fail = [&](std::string message) {
    SourceLocation location = getSourceLocation(get(getExecutedPhase()).getLoc());
    Diagnostic diagnostic = makeError(std::move(message));
    diagnostic.file = location.file;
    diagnostic.line = location.line;
    diagnostics.push_back(std::move(diagnostic));
    return nullptr;
  };
  std::unique_ptr<rt::Session> session = executable.start(backend, error);
  if (!session)
    return fail(error);
  TensorMap tensors;
  bool isFine = getTensors(session->getDescription(), tensors, error);
  for (auto &[name, tensor] : tensors)
    isFine = isFine && session->setParameter(name, tensor, error);
  if (!isFine) {
    diagnostics.push_back(makeError(error));
    return nullptr;
  }
  std::vector<std::string> missing = session->getMissingParameters();
  if (missing.empty()) {
    session->setWeightsHash(hashWeights());
    return session;
  }
  diagnostics.push_back(
      makeError("parameter '" + missing.front() + "' has no value" +
                (missing.size() > 1
                     ? ", nor have " + std::to_string(missing.size() - 1) + " others"
                     : "")));
  return nullptr;
}
