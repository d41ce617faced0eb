//===- WidenedParameters.cpp - parameters that are computed at load -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/WidenedParameters.h"

#include "meshwright/lib/Support/ElementTypes.h"

using namespace meshwright;
using mlir::failed;
using mlir::FailureOr;

std::shared_ptr<WidenedParameters> WidenedParameters::create(const Program::Impl &program) {
  std::shared_ptr<WidenedParameters> parameters(new WidenedParameters());
  parameters->context = createContext();
  auto module = program.cloneInto(parameters->context.get());
  if (module)
    parameters->weights = widenStored(*module);
  return parameters->weights.empty() ? nullptr : parameters;
}

bool WidenedParameters::addTo(TensorMap &tensors, const rt::ProgramDescription &description,
                              std::string &error) {
  const std::vector<rt::ProgramValue> &read = description.parameters;
  auto isRead = [&](const std::string &name) {
    return llvm::any_of(read, [&](const rt::ProgramValue &value) { return value.isNamed(name); });
  };
  TensorMap computed;
  for (const WidenedWeight &weight : weights) {
    auto type = rt::DType(getTypeCode(weight.type.getElementType()));
    // The program before the rewrite may have codes by this name.
    if (llvm::none_of(read, [&](const rt::ProgramValue &value) {
          return value.name == weight.name && value.type == type;
        }))
      continue;
    std::vector<rt::HostTensor> sources;
    for (const std::string &name : weight.sources) {
      auto found = tensors.find(name);
      if (found == tensors.end()) {
        error = "parameter '" + name + "' has no value";
        return false;
      }
      sources.push_back(found->second);
    }
    rt::HostTensor &tensor = computed[weight.name];
    tensor = {type, weight.type.getShape(), nullptr};
    tensor.compute = [self = shared_from_this(), &weight, sources](std::string &problem) {
      return self->compute(weight, sources, problem);
    };
  }
  for (const WidenedWeight &weight : weights)
    for (const std::string &name : weight.sources)
      if (computed.count(weight.name) && !isRead(name))
        tensors.erase(name);
  for (auto &[name, tensor] : computed)
    tensors.insert_or_assign(name, std::move(tensor));
  return true;
}

Executable *WidenedParameters::compile(const WidenedWeight &weight, std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Executable> &executable = executables[print(*weight.program, /*locations=*/false)];
  if (executable)
    return executable.get();
  DiagnosticCollector collector(context.get());
  FailureOr<std::unique_ptr<Executable>> compiled = Executable::compile(*weight.program);
  if (!failed(compiled))
    executable = std::move(*compiled);
  else
    for (const Diagnostic &diagnostic : collector.take())
      error = diagnostic.message;
  return executable.get();
}

std::shared_ptr<const void> WidenedParameters::compute(const WidenedWeight &weight,
                                                       const std::vector<rt::HostTensor> &sources,
                                                       std::string &error) {
  Executable *executable = compile(weight, error);
  std::unique_ptr<rt::Session> session = executable ? executable->start("local", error) : nullptr;
  if (!session)
    return nullptr;
  for (size_t i = 0; i < sources.size(); ++i)
    if (!session->setParameter(std::to_string(i), sources[i], error))
      return nullptr;
  rt::Memory array = rt::allocate(
      getBytesOf(weight.type.getElementType(), weight.type.getNumElements()));
  if (!array)
    error = "no memory for '" + weight.name + "', which is widened at load";
  else if (!session->run(/*entry=*/0, /*inputs=*/{}, {array.get()}, {}, error))
    array = nullptr;
  return array;
}
