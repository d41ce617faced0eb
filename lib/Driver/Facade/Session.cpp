//===- Session.cpp - the public classes Session and Bundle ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/include/SessionHandle.h"

using namespace meshwright;
using mlir::failed;

static Port toPort(const rt::ProgramValue &value) {
  Port port;
  port.name = value.name;
  port.type = getElementType(value.type);
  port.shape = value.shape;
  port.defaultElement = value.defaultElement;
  return port;
}

static std::vector<Port> toPorts(const std::vector<rt::ProgramValue> &values) {
  std::vector<Port> ports;
  for (const rt::ProgramValue &value : values)
    ports.push_back(toPort(value));
  return ports;
}

static std::vector<Entry> getEntriesOf(const rt::ProgramDescription &description) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < description.entries.size(); ++i) {
    if (description.isPart(i))
      continue;
    const rt::Call call = description.getCall(i);
    entries.push_back({description.entries[i].name, toPorts(call.inputs.values),
                       toPorts(call.outputs.values)});
  }
  return entries;
}

static std::vector<Port> getStatesOf(const rt::ProgramDescription &description) {
  std::vector<Port> states;
  for (const rt::ProgramState &state : description.states)
    if (!state.isTransient) {
      states.push_back(toPort(state.value));
      states.back().role = state.role;
    }
  return states;
}

static std::vector<Diagnostic> makeErrors(std::string message) {
  return {makeError(std::move(message))};
}

//===----------------------------------------------------------------------===//
// Session
//===----------------------------------------------------------------------===//

Result<Session> meshwright::openSession(std::shared_ptr<rt::Session> session,
                                        const SessionOptions &options) {
  auto impl = std::make_shared<Session::Impl>();
  rt::SessionStart start{options.state, options.recover, options.graphs};
  if (std::string error; !rt::startSession(*session, start, impl->options, error))
    return makeErrors(error);
  impl->entries = getEntriesOf(session->getDescription());
  impl->states = getStatesOf(session->getDescription());
  impl->session = std::move(session);
  impl->options.timeout = options.timeout;
  impl->options.threadsPerRank = options.threadsPerRank;
  return Session::Impl::wrap(std::move(impl));
}

const std::vector<Entry> &Session::getEntries() const { return impl->entries; }
const std::vector<Port> &Session::getStates() const { return impl->states; }
const std::optional<StateDictLayout> &Session::getStateDict() const {
  return impl->session->getDescription().stateDict;
}
bool Session::serves() const { return impl->session->getDescription().serving.has_value(); }
bool Session::isStuck() const { return impl->session->getWorld().isStuck(); }

Result<bool> Session::run(const std::vector<HostArray> &inputs, const std::vector<void *> &outputs,
                          std::string_view entry, bool checkFinite, int64_t outputGpu) {
  rt::RunOptions options = impl->options;
  options.outputGpu = outputGpu;
  options.checkFinite = checkFinite;
  std::vector<Diagnostic> diagnostics;
  if (failed(callEntry(*impl->session, inputs, outputs, entry, options, diagnostics)))
    return diagnostics;
  return {true, diagnostics};
}

Result<bool> Session::getState(const std::vector<void *> &arrays) const {
  if (arrays.size() != impl->states.size())
    return makeErrors("expected " + std::to_string(impl->states.size()) +
                      " arrays for states, got " + std::to_string(arrays.size()));
  if (std::string error; !impl->session->getStates(arrays, error))
    return makeErrors(error);
  return true;
}

Result<bool> Session::setState(const std::vector<NamedArray> &values) {
  std::map<std::string, rt::HostTensor> tensors;
  for (const NamedArray &value : values)
    if (!tensors.emplace(value.name, toHostTensor(value.array)).second)
      return makeErrors("state '" + value.name + "' is given twice");
  if (std::string error; !impl->session->setStates(tensors, error))
    return makeErrors(error);
  return true;
}

Result<bool> Session::save(std::string_view folder) const {
  if (std::string error; !impl->session->save(std::string(folder), error))
    return makeErrors(error);
  return true;
}

SavedExtras Session::getExtras() const { return impl->session->getExtras(); }

Result<bool> Session::setExtras(SavedExtras extras) {
  if (std::string error; !impl->session->setExtras(std::move(extras), error))
    return makeErrors(error);
  return true;
}

void meshwright::setInterruptCheck(bool (*check)()) { rt::setInterruptCheck(check); }
bool meshwright::endRuns(double seconds) { return rt::endRuns(seconds); }

//===----------------------------------------------------------------------===//
// GpuMemory
//===----------------------------------------------------------------------===//

struct GpuMemory::Impl {
  std::shared_ptr<rt::GpuSpace> space;
};

Result<GpuMemory> GpuMemory::open(std::string_view backend, int64_t gpu) {
  std::string error;
  GpuMemory memory;
  memory.impl = std::make_shared<Impl>();
  memory.impl->space = rt::openGpuSpace(std::string(backend), gpu, error);
  if (!memory.impl->space)
    return makeErrors(error);
  return memory;
}

uintptr_t GpuMemory::getStream() const {
  return reinterpret_cast<uintptr_t>(impl->space->getStream());
}

Result<std::shared_ptr<void>> GpuMemory::allocate(int64_t bytes) const {
  std::string error;
  std::shared_ptr<void> memory = impl->space->allocate(bytes, error);
  if (!memory)
    return makeErrors(error);
  return memory;
}

//===----------------------------------------------------------------------===//
// Bundle
//===----------------------------------------------------------------------===//

struct Bundle::Impl {
  std::string path;
  std::vector<Entry> entries;
  std::vector<Port> states;
  int64_t numRanks = 1;
};

Result<Bundle> Bundle::open(std::string_view path) {
  rt::ProgramDescription description;
  std::string error;
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  if (!rt::readDescription(impl->path, description, error))
    return makeErrors(error);
  impl->entries = getEntriesOf(description);
  impl->states = getStatesOf(description);
  impl->numRanks = description.numRanks;
  Bundle bundle;
  bundle.impl = std::move(impl);
  return bundle;
}

const std::vector<Entry> &Bundle::getEntries() const { return impl->entries; }
const std::vector<Port> &Bundle::getStates() const { return impl->states; }
int64_t Bundle::getNumRanks() const { return impl->numRanks; }

Result<Session> Bundle::start(const SessionOptions &options) const {
  if (!options.target.empty())
    return makeErrors("a bundle is compiled already: expected no target");
  std::string error;
  std::shared_ptr<rt::Session> session =
      rt::openBundle(impl->path, options.backend, {options.weights, options.randomWeights}, error);
  if (!session)
    return makeErrors(error);
  return openSession(std::move(session), options);
}
