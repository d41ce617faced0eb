//===- SessionCalls.cpp - the calls of a session --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Outline of `run`: `runSteps` runs the steps of the call, each on its chunks and as often as it
// says. In a run, `runOnce` fills arguments and state buffers, runs the function on all ranks and
// assembles the outputs. `repeat` does so again for MESHWRIGHT_RUNS. `recordRun` adds the events to
// those of the call's other runs. Then `commit` makes the results of the run the new state: behind
// the last run all of it, behind others transient states alone. Everything that may fail comes before
// the last commit.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Session.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/src/ranks/RankMemory.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

/// The measurements of a call: the events of all of its runs, and the largest arena among them.
struct CallRecord {
  Trace trace;
  /// The names of the ops of the functions that ran, and where those of each begin.
  TraceOps ops;
  std::map<int64_t, int64_t> firstOp;
  int64_t planned = 0, seen = -1;
  /// `isLast` is true if the call is at its last run, `isDone` if the last run ended its loop.
  bool isLast = false, isDone = false;
};

bool Session::checkRun(const Call &call, const std::vector<HostTensor> &inputs,
                       const std::vector<void *> &outputs, std::string &error) const {
  const std::vector<ProgramValue> &expected = call.inputs.values;
  if (inputs.size() != expected.size()) {
    error = "inputs given: expected " + std::to_string(expected.size()) + ", got " +
            std::to_string(inputs.size());
    return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramValue &input = expected[i];
    if (!inputs[i].data && countOf(input.shape) > 0) {
      error = "input '" + input.name + "' is missing";
      return false;
    }
    if (inputs[i].gpu >= 0 && !world->getDevice(ranks.front()).reachesGpuMemory()) {
      error = "input '" + input.name + "' is in the memory of GPU " +
              std::to_string(inputs[i].gpu) + ", which ranks of this backend cannot read";
      return false;
    }
    if (inputs[i].type == input.type && inputs[i].shape == input.shape) {
      if (!checkRate(input, inputs[i], error))
        return false;
      continue;
    }
    error = "input '" + input.name + "': expected " + describe(input.type, input.shape) + ", got " +
            describe(inputs[i].type, inputs[i].shape);
    return false;
  }
  if (std::vector<std::string> missing = getMissingParameters(); !missing.empty()) {
    error = "parameter '" + missing.front() + "' has no value";
    return false;
  }
  if (size_t count = call.outputs.values.size(); outputs.size() != count) {
    error = "outputs given: expected " + std::to_string(count) + ", got " +
            std::to_string(outputs.size());
    return false;
  }
  return true;
}

/// Collects the events of all ranks in every process.
bool Session::gatherTrace(Trace &trace, std::string &error) {
  Backend &backend = world->getBackend();
  for (int64_t rank = 0; isSplit() && rank < description.numRanks; ++rank) {
    bool isHere = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    std::string bytes = isHere ? trace.serialize(rank) : std::string();
    int64_t size = bytes.size();
    if (!backend.broadcast(rank, &size, sizeof(size), error))
      return false;
    bytes.resize(size);
    if (!backend.broadcast(rank, bytes.data(), size, error))
      return false;
    if (!isHere && !trace.merge(bytes)) {
      error = "the trace of rank " + std::to_string(rank) + " did not arrive whole";
      return false;
    }
  }
  return true;
}

/// Finds how far up the ranks of this process wrote their arenas.
bool Session::findSeen(const EntryDescription &entry, CallRecord &record, std::string &error) {
  int64_t seen = 0;
  if (!memory->findTouched(seen, error))
    return false;
  record.planned = std::max(record.planned, entry.arenaBytes);
  record.seen = std::max(record.seen, seen);
  if (seen <= (entry.arenaBytes + kAlignment - 1) / kAlignment * kAlignment)
    return true;
  error = "the program wrote " + std::to_string(seen) + " bytes of an arena of " +
          std::to_string(entry.arenaBytes);
  return false;
}

bool Session::runOnce(int64_t index, const std::vector<HostTensor> &inputs,
                      const std::vector<void *> &outputs, RunOptions &options,
                      std::vector<RankBuffers> &buffers, std::string &error) {
  const EntryDescription &entry = description.entries[index];
  if (options.measure || !options.traceFile.empty())
    options.trace = std::make_shared<Trace>();
  std::string onRanks = std::to_string(description.numRanks) + " ranks";
  // A run that is repeated begins with the same state.
  bool keepsState = recovers || defaultRuns() > 1;
  memory->setKeepsTransient(defaultRuns() > 1);
  int64_t needed = memory->getMissingBytes(index, inputs, stored, keepsState),
          available = availableMemory();
  if (needed < 0 || (available >= 0 && needed > available)) {
    return refuse(error, "running on " + onRanks + " needs " +
                             (needed < 0 ? std::string("more than 8 EiB") : formatBytes(needed)) +
                             " of memory: expected at most " + formatBytes(available) +
                             ", which are available");
  }
  if (!memory->checkDevices(index, inputs, stored, keepsState, error))
    return refuse(error, std::string(error));
  std::string problem;
  if (!memory->allocateArenas(problem) || !startStates(problem) ||
      (keepsState && !memory->allocateRecovery(index, problem)))
    return refuse(error, problem);
  if (!memory->fill(index, inputs, stored, problem))
    return refuse(error, problem.empty() ? "out of memory for " + onRanks : problem);
  buffers = memory->getBuffers(index, keepsState);
  if (options.outputGpu >= 0 && isSplit() && !shareOutputs(entry, outputs, options, problem))
    return refuse(error, problem);
  if (options.measure && !memory->markArenas(problem))
    return refuse(error, problem.empty() ? "out of memory for " + onRanks : problem);
  if (!world->run(code[index], buffers, options, error))
    return false;
  if ((options.trace && !gatherTrace(*options.trace, error)) || !gatherExperts(error))
    return false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i])
      continue;
    std::vector<const void *> parts;
    for (const RankBuffers &mine : buffers)
      parts.push_back(mine.results[i]);
    if (options.outputGpu < 0 ? !assemble(entry.outputs[i], "output", parts, outputs[i], error)
                              : !giveOutput(entry.outputs[i], parts, outputs[i],
                                            options.outputGpu, error))
      return false;
  }
  return options.outputGpu < 0 ||
         world->getDevice(ranks.front()).finishGiving(options.outputGpu, error);
}

/// Runs again as often as MESHWRIGHT_RUNS asks for, from the same state, and compares the bits of
/// outputs and new states. `buffers` are those of the run before, then of the last one.
bool Session::repeat(int64_t index, const std::vector<HostTensor> &inputs,
                     const std::vector<void *> &outputs, RunOptions &options,
                     std::vector<RankBuffers> &buffers, std::string &error) {
  const EntryDescription &entry = description.entries[index];
  int64_t runs = defaultRuns();
  if (runs == 1)
    return true;
  if (options.outputGpu >= 0)
    return refuse(error, "MESHWRIGHT_RUNS compares outputs on the host, and they are in the "
                         "memory of a GPU");
  std::vector<Memory> arrays;
  auto add = [&](int64_t bytes) { return (arrays.emplace_back(allocate(bytes))).get(); };
  std::vector<void *> again;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ProgramValue &output = entry.outputs[i];
    again.push_back(outputs[i] ? add(countOf(output.shape) * sizeOf(output.type)) : nullptr);
    if (outputs[i] && !again[i])
      return refuse(error, "no memory for a copy of output '" + output.name + "'");
  }
  // The new states of the first run, by rank and state.
  auto forStates = [&](auto body) {
    Memory scratch;
    for (size_t r = 0; r < ranks.size(); ++r)
      for (size_t i = 0; i < entry.stateResults.size(); ++i) {
        const ProgramValue &value = description.states[entry.stateResults[i]].value;
        scratch.reset();
        const void *data =
            memory->read(r, buffers[r].results[outputs.size() + i], value.getLocalBytes(), scratch,
                         error);
        if (!data || !body(value, data))
          return refuse(error, std::string(error));
      }
    return true;
  };
  size_t firstState = arrays.size();
  if (!forStates([&](const ProgramValue &value, const void *data) {
        char *copy = add(value.getLocalBytes());
        if (copy)
          std::memcpy(copy, data, value.getLocalBytes());
        else
          error = "no memory for a copy of state '" + value.name + "'";
        return copy != nullptr;
      }))
    return false;
  for (int64_t i = 2; i <= runs; ++i) {
    std::string run = "run " + std::to_string(i);
    if (!world->undo(error))
      return end("a run could not be undone", error);
    if (!runOnce(index, inputs, again, options, buffers, error)) {
      error = run + ": " + error;
      return false;
    }
    for (size_t j = 0; j < outputs.size(); ++j) {
      const ProgramValue &output = entry.outputs[j];
      if (outputs[j] &&
          std::memcmp(outputs[j], again[j], countOf(output.shape) * sizeOf(output.type)) != 0)
        return refuse(error,
                      run + " gave output '" + output.name + "' other bits than the first run");
    }
    size_t next = firstState;
    if (!forStates([&](const ProgramValue &value, const void *data) {
          if (std::memcmp(arrays[next++].get(), data, value.getLocalBytes()) == 0)
            return true;
          error = run + " gave state '" + value.name + "' other bits than the first run";
          return false;
        }))
      return false;
  }
  return true;
}

/// Records a run of a call. A failure concerns this process alone, here and below.
bool Session::recordRun(int64_t index, const RunOptions &options, CallRecord &record,
                        std::string &error) {
  const EntryDescription &entry = description.entries[index];
  if (options.measure && !findSeen(entry, record, error))
    return false;
  if (!options.trace)
    return true;
  auto [first, isNew] = record.firstOp.try_emplace(index, record.ops.names.size());
  if (isNew)
    record.ops.add(entry.ops, entry.arenaInUse);
  record.trace.append(*options.trace, first->second);
  return !record.isLast || finishRecord(options, record, error);
}

/// Makes the report on a call and the file of its trace.
bool Session::finishRecord(const RunOptions &options, CallRecord &record, std::string &error) {
  if (options.measure) {
    Ceilings peaks;
    bool hasPeaks = world->getDevice(ranks.front()).getPeaks(peaks);
    report = summarize(record.trace, world->getThreadsPerRank(), hasPeaks ? &peaks : nullptr);
    report.planned = record.planned;
    report.seen = record.seen;
  }
  // One process writes the file.
  return options.traceFile.empty() || ranks.front() != 0 ||
         writeTrace(options.traceFile, record.trace, record.ops, error);
}

/// Restores the rows that a call replaced before it failed. A rank that has not come back may
/// still replace some: then nothing may read the state before it does.
bool Session::restore(std::string &error) {
  if (!isChanged)
    return true;
  if (world->isStuck()) {
    error = "a rank has not come back from a call that failed and may write the state";
    return false;
  }
  if (!world->undo(error))
    return end("a call that failed could not be undone", error);
  isChanged = false;
  return true;
}

/// Gives the inputs that a call leaves out their default values. Returns false if there is no
/// memory.
bool Session::addDefaults(int64_t index, const Call &call, std::vector<HostTensor> &inputs,
                          std::string &error) {
  for (size_t i = 0; i < std::min(inputs.size(), call.inputs.values.size()); ++i) {
    const ProgramValue &input = call.inputs.values[i];
    if (inputs[i].data || input.defaultElement.empty())
      continue;
    Memory &value = (*defaults)[{index, i}];
    int64_t count = countOf(input.shape), size = sizeOf(input.type);
    if (!value) {
      if (!(value = allocate(count * size))) {
        error = "no memory for the value of input '" + input.name + "'";
        return false;
      }
      for (int64_t e = 0; e < count; ++e)
        std::memcpy(value.get() + e * size, input.defaultElement.data(), size);
    }
    giveRate(input, value.get());
    inputs[i] = {input.type, input.shape, value.get()};
  }
  return true;
}

bool Session::run(int64_t index, const std::vector<HostTensor> &given,
                  const std::vector<void *> &outputs, const RunOptions &options,
                  std::string &error) {
  std::unique_lock<std::timed_mutex> lock(running, std::defer_lock);
  while (!lock.try_lock_for(std::chrono::milliseconds(100)))
    if (isInterrupted())
      return refuse(error, kInterrupted);
  const Call call = description.getCall(index);
  experts.clear();
  std::vector<HostTensor> inputs = given;
  if (!addDefaults(index, call, inputs, error) || !checkEnd(error) || !restore(error) ||
      !clearTransient(error) || !checkRun(call, inputs, outputs, error))
    return false;
  if (runSteps(call, inputs, outputs, options, error))
    return true;
  isCleared = std::none_of(description.states.begin(), description.states.end(),
                           [](const ProgramState &state) { return state.isTransient; });
  // The error is that of the call. If this fails, too, the next call says so.
  std::string problem;
  if (restore(problem))
    clearTransient(problem);
  return false;
}

/// Gives transient states the values that they begin with, after a call that failed: it may have
/// changed some of them. A rank that has not come back may still write them, so the next call does
/// it.
bool Session::clearTransient(std::string &error) {
  if (isCleared)
    return true;
  if (world->isStuck()) {
    error = "a rank has not come back from a call that failed and may write the state";
    return false;
  }
  for (size_t i = 0; isStarted && i < description.states.size(); ++i) {
    const ProgramState &state = description.states[i];
    for (size_t r = 0; state.isTransient && r < ranks.size(); ++r) {
      bool hasMemory = true;
      auto write = [&](char *to) { hasMemory = placeFill(state.value, ranks[r], state.fill, to); };
      if (!memory->writeState(i, r, write, error) || !hasMemory)
        return end("state '" + state.value.name + "' could not be cleared", error);
    }
  }
  isCleared = true;
  return true;
}

/// The bytes in front of the chunk of a value that a run reads or gives, in the value of the call.
static int64_t getOffset(const ProgramValue &value, int64_t firstChunk, int64_t chunk) {
  return firstChunk < 0 ? 0 : (firstChunk + chunk) * countOf(value.shape) * sizeOf(value.type);
}

/// Runs the steps of a call, each on its chunks in turn, and on a chunk until it is done.
bool Session::runSteps(const Call &call, const std::vector<HostTensor> &inputs,
                       const std::vector<void *> &outputs, const RunOptions &options,
                       std::string &error) {
  CallRecord record;
  for (size_t s = 0; s < call.steps.size(); ++s) {
    const CallStep &step = call.steps[s];
    const EntryDescription &entry = description.entries[step.entry];
    record.isLast = s + 1 == call.steps.size();
    for (int64_t chunk = 0; chunk < step.chunks; ++chunk) {
      std::vector<HostTensor> given;
      std::vector<void *> filled;
      for (size_t i = 0; i < entry.inputs.size(); ++i) {
        const ProgramValue &value = entry.inputs[i];
        auto [place, first] = call.inputs.uses[s][i];
        given.push_back({value.type, value.shape,
                         static_cast<const char *>(inputs[place].data) +
                             getOffset(value, first, chunk),
                         inputs[place].gpu});
      }
      for (size_t i = 0; i < entry.outputs.size(); ++i) {
        auto [place, first] = call.outputs.uses[s][i];
        auto *whole = static_cast<char *>(outputs[place]);
        filled.push_back(whole ? whole + getOffset(entry.outputs[i], first, chunk) : nullptr);
      }
      record.isDone = false;
      for (int64_t time = 0; time < step.times && !record.isDone; ++time)
        if (!runStep(step, given, filled, options, record, error))
          return false;
    }
  }
  return true;
}

/// Runs the function of a step on a chunk, as often as MESHWRIGHT_RUNS asks for, and commits. The
/// record learns whether the output `until` is true.
bool Session::runStep(const CallStep &step, const std::vector<HostTensor> &inputs,
                      const std::vector<void *> &outputs, const RunOptions &options,
                      CallRecord &record, std::string &error) {
  const EntryDescription &entry = description.entries[step.entry];
  world->setOps((*ops)[step.entry]);
  world->setPurpose("entry '" + entry.name + "'" +
                    (options.outputGpu >= 0 ? " with outputs on a GPU" : ""));
  RunOptions settings = options;
  std::vector<RankBuffers> buffers;
  bool isFine = runOnce(step.entry, inputs, outputs, settings, buffers, error) &&
                repeat(step.entry, inputs, outputs, settings, buffers, error);
  // The output that the caller is given may be in the memory of a GPU.
  if (isFine && step.until >= 0) {
    std::vector<const void *> parts;
    for (const RankBuffers &mine : buffers)
      parts.push_back(mine.results[step.until]);
    char isDone = 0;
    isFine = assemble(entry.outputs[step.until], "output", parts, &isDone, error);
    record.isDone = isDone != 0;
  }
  if (isFine) {
    isFine = recordRun(step.entry, settings, record, error);
    if (!entry.stateResults.empty())
      isFine = commit(entry, buffers, isFine, error);
  }
  for (const StateUpdate &update : entry.updates)
    isChanged |= !isFine && update.kind == StateUpdate::Rows;
  return isFine;
}

} // namespace meshwright::rt
