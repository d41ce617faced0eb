//===- Session.cpp - a program on ranks -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Session.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/src/ranks/RankMemory.h"

#include <algorithm>

namespace meshwright::rt {

/// How long the end of a session waits for ranks of a call that was interrupted, before it gives up
/// their memory.
static constexpr double kSettleSeconds = 5;

//===----------------------------------------------------------------------===//
// Beginning and end
//===----------------------------------------------------------------------===//

bool Session::checkDescription(std::string &error) const {
  if (description.entries.empty() || description.entries.size() != code.size())
    error = "the program has " + std::to_string(description.entries.size()) +
            " entries and code of " + std::to_string(code.size()) +
            ": expected as many, at least 1";
  for (const ProgramState &state : description.states) {
    int64_t from =
        state.parameter.empty() ? -1 : description.findParameter(state.parameter);
    if (state.parameter.empty() && int64_t(state.fill.size()) != sizeOf(state.value.type))
      error = "state '" + state.value.name + "': expected to begin with elements of " +
              std::to_string(sizeOf(state.value.type)) + " bytes, got " +
              std::to_string(state.fill.size());
    else if (!state.parameter.empty() && from < 0)
      error = "state '" + state.value.name + "' begins with parameter '" + state.parameter +
              "', which the program does not have";
    else if (from >= 0 && !state.canBegin(description.parameters[from]))
      error = "state '" + state.value.name + "': expected " +
              describe(description.parameters[from].type, description.parameters[from].shape) +
              ", that of parameter '" + state.parameter + "', got " +
              describe(state.value.type, state.value.shape);
  }
  for (const EntryDescription &entry : description.entries)
    for (size_t i = 0; i < entry.stateResults.size(); ++i)
      if (std::count(entry.stateResults.begin(), entry.stateResults.end(), entry.stateResults[i]) !=
          1)
        error = "entry '" + entry.name + "' writes state '" +
                description.states[entry.stateResults[i]].value.name +
                "' twice: expected at most once";
  if (error.empty())
    error = description.checkSteps();
  return error.empty();
}

std::unique_ptr<Session> Session::create(ProgramDescription description,
                                         std::vector<mw_rt_entry> code, std::shared_ptr<void> owner,
                                         const std::string &backend, std::string &error) {
  std::unique_ptr<Session> session(new Session());
  session->description = std::move(description);
  session->code = std::move(code);
  session->owner = std::move(owner);
  ProgramDescription &program = session->description;
  if (!session->checkDescription(error))
    return nullptr;
  for (EntryDescription &entry : program.entries)
    entry.updates.resize(entry.stateResults.size());
  session->ops = std::make_shared<std::vector<OpNames>>();
  for (const EntryDescription &entry : program.entries)
    session->ops->push_back({entry.ops, entry.fused});
  session->world = World::create(backend, program.numRanks, {}, error);
  if (!session->world)
    return nullptr;
  session->world->setOps(session->ops->front());
  session->ranks = session->world->getLocalRanks();
  for (int64_t rank : session->ranks) {
    Device &device = session->world->getDevice(rank);
    if (!device.load(program, error) || !device.checkCalls(program, error))
      return nullptr;
  }
  session->stored.resize(program.parameters.size());
  session->given.assign(program.parameters.size(), false);
  session->initial.resize(program.states.size());
  session->memory = std::make_unique<RankMemory>(program, *session->world);
  return session;
}

Session::~Session() {
  std::string error;
  if (!world || (world->settle(kSettleSeconds, error), !world->isStuck()))
    return;
  // A rank that never came back may still use the code and the memory: none of it is freed.
  struct Kept {
    std::shared_ptr<void> owner;
    std::shared_ptr<std::vector<OpNames>> ops;
    std::unique_ptr<RankMemory> memory;
    std::unique_ptr<Defaults> defaults;
  };
  new Kept{std::move(owner), std::move(ops), std::move(memory), std::move(defaults)};
}

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

bool Session::setParameter(const std::string &name, const HostTensor &tensor, std::string &error) {
  bool found = false;
  std::lock_guard<std::timed_mutex> lock(running);
  // Several parameters may be parts of one stored tensor.
  for (size_t i = 0; i < description.parameters.size(); ++i) {
    const ProgramValue &parameter = description.parameters[i];
    if (!parameter.isNamed(name))
      continue;
    found = true;
    error = checkParameter(parameter, tensor);
    if (!error.empty())
      return false;
    stored[i] = tensor;
    given[i] = true;
    memory->forget(i);
  }
  if (!found)
    error = "the program has no parameter '" + name + "'";
  return found;
}

bool Session::setPlaced(int64_t parameter, int64_t rank, Bytes part, std::string &error) {
  given[parameter] = true;
  return memory->setPlaced(parameter, rank, std::move(part), error);
}

bool Session::setPrepared(int64_t index, int64_t rank, Bytes part, std::string &error) {
  given[description.prepared[index].index] = true;
  return memory->setPrepared(index, rank, std::move(part), error);
}

void Session::setInitial(int64_t state, int64_t rank, Bytes part) {
  initial[state].resize(ranks.size());
  initial[state][getPosition(rank)] = std::move(part);
}

std::vector<std::string> Session::getMissingParameters() const {
  // A parameter that nothing reads needs no value.
  std::vector<bool> isNeeded = description.findReadParameters();
  for (const PreparedWeight &prepared : description.prepared)
    if (prepared.kind == ProgramArgument::Parameter)
      isNeeded[prepared.index] = true;
  for (size_t i = 0; !isStarted && i < description.states.size(); ++i)
    if (const std::string &name = description.states[i].parameter;
        !name.empty() && initial[i].empty())
      isNeeded[description.findParameter(name)] = true;
  std::vector<std::string> missing;
  for (size_t i = 0; i < given.size(); ++i)
    if (isNeeded[i] && !given[i])
      missing.push_back(description.parameters[i].name);
  return missing;
}

size_t Session::getPosition(int64_t rank) const {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

//===----------------------------------------------------------------------===//
// Other processes
//===----------------------------------------------------------------------===//

/// Refuses a run. Other processes may have no reason to refuse it and would wait, so they are
/// told.
bool Session::refuse(std::string &error, const std::string &message) const {
  error = message;
  if (isSplit()) {
    error = "rank " + std::to_string(ranks.front()) + ": " + message;
    world->getBackend().fail(error);
  }
  return false;
}

/// Returns true if this step succeeded in all processes. Sets `error` if it failed in another one
/// only.
bool Session::decide(bool isFine, std::string &error) const {
  if (!isSplit())
    return isFine;
  bool everywhere = isFine;
  std::string problem;
  if (!world->getBackend().decide(everywhere, problem)) {
    if (isFine)
      error = problem;
    return false;
  }
  if (isFine && !everywhere)
    error = "the call failed in another process";
  return everywhere;
}

/// Waits for the other processes, which must come with the same purpose.
bool Session::meet(const std::string &purpose, std::string &error) {
  if (!isSplit())
    return true;
  world->setPurpose(purpose);
  int64_t least = 0;
  return world->getBackend().reset(error) && world->getBackend().agree(least, error);
}

} // namespace meshwright::rt
