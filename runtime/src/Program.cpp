//===- Program.cpp - a compiled program, ready to run ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Program.h"

#include "RankMemory.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Environment.h"

#include "meshwright/runtime/include/Backend.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

//===----------------------------------------------------------------------===//
// Parts of values
//===----------------------------------------------------------------------===//

int64_t ProgramValue::getHolder(int64_t rank) const {
  int64_t holder = 0;
  auto add = [&](const mw_rt_axes &axes) {
    for (int64_t i = 0; i < axes.count; ++i)
      holder += rank / axes.axes[i].stride % axes.axes[i].size * axes.axes[i].stride;
  };
  for (const auto &dim : layout.dims)
    for (const ShardedFactor &factor : dim)
      add(factor.axes);
  add(unreduced);
  return holder;
}

void place(const ProgramValue &value, int64_t rank, const HostTensor &tensor, void *local) {
  if (coordinateOf(value.unreduced, rank) != 0) {
    std::memset(local, 0, value.getLocalBytes());
    return;
  }
  shard(value.layout, rank, sizeOf(value.type), tensor.data,
        value.offsets.empty() ? std::vector<int64_t>() : tensor.shape, value.offsets, local);
}

std::string checkParameter(const ProgramValue &parameter, const HostTensor &tensor) {
  bool fits = tensor.type == parameter.type;
  if (parameter.offsets.empty()) {
    fits &= tensor.shape == parameter.shape;
  } else {
    fits &= tensor.shape.size() == parameter.shape.size();
    for (size_t d = 0; fits && d < parameter.shape.size(); ++d)
      fits =
          parameter.offsets[d] >= 0 && parameter.offsets[d] + parameter.shape[d] <= tensor.shape[d];
  }
  if (fits)
    return "";
  std::string message = "parameter '" + parameter.name + "' is " +
                        describe(tensor.type, tensor.shape) + ", expected " +
                        describe(parameter.type, parameter.shape);
  if (!parameter.offsets.empty()) {
    message += " within it, at";
    for (int64_t offset : parameter.offsets)
      message += " " + std::to_string(offset);
  }
  return message;
}

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

std::unique_ptr<Program> Program::create(ProgramDescription description, mw_rt_entry entry,
                                         std::shared_ptr<void> code, const std::string &backend,
                                         std::string &error) {
  std::unique_ptr<Program> program(new Program());
  program->world = World::create(backend, description.numRanks, description.ops, error);
  if (!program->world)
    return nullptr;
  program->world->setFused(description.fused);
  program->ranks = program->world->getLocalRanks();
  program->stored.resize(description.parameters.size());
  // A parameter that nothing reads needs no value.
  program->given.assign(description.parameters.size(), true);
  for (const ProgramArgument &argument : description.arguments)
    if (argument.isParameter && argument.isRead)
      program->given[argument.index] = false;
  for (const PreparedParameter &parameter : description.prepared)
    program->given[description.arguments[parameter.argument].index] = false;
  program->description = std::move(description);
  program->memory = std::make_unique<RankMemory>(program->description, *program->world);
  program->entry = entry;
  program->code = std::move(code);
  return program;
}

Program::~Program() {
  if (!world || !world->isStuck())
    return;
  // A rank that never came back may still use the code and the memory: neither is freed.
  struct Kept {
    std::shared_ptr<void> code;
    std::unique_ptr<RankMemory> memory;
  };
  new Kept{std::move(code), std::move(memory)};
}

bool Program::setParameter(const std::string &name, const HostTensor &tensor, std::string &error) {
  bool found = false;
  std::lock_guard<std::mutex> lock(running);
  // Several arguments may be parts of one stored tensor.
  for (size_t i = 0; i < description.parameters.size(); ++i) {
    const ProgramValue &parameter = description.parameters[i];
    if (parameter.name != name && std::find(parameter.aliases.begin(), parameter.aliases.end(),
                                            name) == parameter.aliases.end())
      continue;
    found = true;
    error = checkParameter(parameter, tensor);
    if (!error.empty())
      return false;
    stored[i] = tensor;
    given[i] = true;
    for (size_t a = 0; a < description.arguments.size(); ++a) {
      const ProgramArgument &argument = description.arguments[a];
      if (!argument.isParameter || argument.index != int64_t(i))
        continue;
      memory->forget(a);
    }
  }
  if (!found)
    error = "the program has no parameter '" + name + "'";
  return found;
}

size_t Program::getPosition(int64_t rank) const {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

bool Program::setPlaced(int64_t argument, int64_t rank, Bytes part, std::string &error) {
  given[description.arguments[argument].index] = true;
  return memory->setPlaced(argument, rank, std::move(part), error);
}

bool Program::setPrepared(int64_t index, int64_t rank, Bytes part, std::string &error) {
  given[description.arguments[description.prepared[index].argument].index] = true;
  return memory->setPrepared(index, rank, std::move(part), error);
}

std::vector<std::string> Program::getMissingParameters() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < given.size(); ++i)
    if (!given[i])
      missing.push_back(description.parameters[i].name);
  return missing;
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

bool Program::checkRun(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
                       std::string &error) const {
  if (inputs.size() != description.inputs.size()) {
    error = std::to_string(inputs.size()) + " inputs given, expected " +
            std::to_string(description.inputs.size());
    return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramValue &input = description.inputs[i];
    if (inputs[i].type == input.type && inputs[i].shape == input.shape)
      continue;
    error = "input '" + input.name + "' is " + describe(inputs[i].type, inputs[i].shape) +
            ", expected " + describe(input.type, input.shape);
    return false;
  }
  if (std::vector<std::string> missing = getMissingParameters(); !missing.empty()) {
    error = "parameter '" + missing.front() + "' has no value";
    return false;
  }
  if (outputs.size() != description.outputs.size()) {
    error = std::to_string(outputs.size()) + " outputs given, expected " +
            std::to_string(description.outputs.size());
    return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Run
//===----------------------------------------------------------------------===//

/// Refuses a run. Other processes may have no reason to refuse it and would wait, so they are
/// told.
bool Program::refuse(std::string &error, const std::string &message) const {
  error = message;
  if (int64_t(ranks.size()) < description.numRanks) {
    error = "rank " + std::to_string(ranks.front()) + ": " + message;
    world->getBackend().fail(error);
  }
  return false;
}

/// Collects the events of all ranks in every process.
bool Program::gatherTrace(Trace &trace, std::string &error) {
  Backend &backend = world->getBackend();
  for (int64_t rank = 0;
       int64_t(ranks.size()) < description.numRanks && rank < description.numRanks; ++rank) {
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
bool Program::findSeen(std::string &error) {
  report.planned = description.arenaBytes;
  if (!memory->findTouched(report.seen, error))
    return false;
  if (report.seen <= (report.planned + kAlignment - 1) / kAlignment * kAlignment)
    return true;
  error = "the program wrote " + std::to_string(report.seen) + " bytes of an arena of " +
          std::to_string(report.planned);
  return false;
}

bool Program::run(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
                  const RunOptions &options, std::string &error) {
  std::lock_guard<std::mutex> lock(running);
  if (!checkRun(inputs, outputs, error) || !runOnce(inputs, outputs, options, error))
    return false;
  int64_t runs = defaultRuns();
  if (runs == 1)
    return true;
  std::vector<Memory> arrays;
  std::vector<void *> again;
  for (const ProgramValue &output : description.outputs) {
    int64_t bytes = countOf(output.shape) * sizeOf(output.type);
    if (!arrays.emplace_back(allocate(bytes)))
      return refuse(error, "no memory for the " + std::to_string(bytes) + " bytes of output '" +
                               output.name + "'");
    again.push_back(arrays.back().get());
  }
  for (int64_t i = 2; i <= runs; ++i) {
    if (!runOnce(inputs, again, options, error)) {
      error = "run " + std::to_string(i) + ": " + error;
      return false;
    }
    for (size_t j = 0; j < outputs.size(); ++j) {
      const ProgramValue &output = description.outputs[j];
      if (std::memcmp(outputs[j], again[j], countOf(output.shape) * sizeOf(output.type)) != 0)
        return refuse(error, "run " + std::to_string(i) + " gave output '" + output.name +
                                 "' other bits than the first run");
    }
  }
  return true;
}

bool Program::runOnce(const std::vector<HostTensor> &inputs, const std::vector<void *> &outputs,
                      const RunOptions &options, std::string &error) {
  std::string onRanks = std::to_string(description.numRanks) + " ranks";
  int64_t needed = memory->getMissingBytes(inputs, stored), available = availableMemory();
  if (needed < 0 || (available >= 0 && needed > available)) {
    return refuse(error, "running on " + onRanks + " needs " +
                             (needed < 0 ? std::string("more than 8 EiB") : formatBytes(needed)) +
                             " of memory, " + formatBytes(available) + " are available");
  }
  if (!memory->allocateArenas(error))
    return refuse(error, std::string(error));
  std::string problem;
  if (!memory->fill(inputs, stored, problem))
    return refuse(error, problem.empty() ? "out of memory for " + onRanks : problem);
  std::vector<RankBuffers> buffers = memory->getBuffers();
  RunOptions settings = options;
  if (!settings.trace && (options.measure || !options.traceFile.empty()))
    settings.trace = std::make_shared<Trace>();
  if (options.measure && !memory->markArenas(problem))
    return refuse(error, problem.empty() ? "out of memory for " + onRanks : problem);
  if (!world->run(entry, buffers, settings, error))
    return false;
  if (settings.trace && !gatherTrace(*settings.trace, error))
    return false;
  if (!collect(buffers, outputs, error))
    return false;
  // From here on a failure concerns this process alone.
  if (options.measure) {
    report = summarize(*settings.trace, world->getThreadsPerRank());
    if (!findSeen(error))
      return false;
  }
  // One process writes the file.
  return options.traceFile.empty() || ranks.front() != 0 ||
         writeTrace(options.traceFile, *settings.trace, description.ops, error);
}

/// Assembles the results from the ranks' parts, in every process.
bool Program::collect(const std::vector<RankBuffers> &buffers, const std::vector<void *> &outputs,
                      std::string &error) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ProgramValue &output = description.outputs[i];
    int64_t bytes = output.getLocalBytes();
    Memory scratch;
    auto read = [&](size_t position) {
      return memory->read(position, buffers[position].results[i], bytes, scratch, error);
    };
    auto put = [&](int64_t rank, const void *local) {
      unshard(output.layout, rank, sizeOf(output.type), local, outputs[i]);
    };
    // If all ranks hold the same value, no other process is needed.
    bool isSame = true;
    for (int64_t rank = 0; rank < description.numRanks; ++rank)
      isSame &= output.getHolder(rank) == 0;
    if (isSame) {
      const void *local = read(0);
      if (!local)
        return refuse(error, std::string(error));
      put(0, local);
      continue;
    }
    Memory arrived;
    for (int64_t rank = 0; rank < description.numRanks; ++rank) {
      if (output.getHolder(rank) != rank)
        continue;
      size_t position = getPosition(rank);
      bool isHere = position < ranks.size();
      const void *local = isHere ? read(position) : nullptr;
      if (isHere && !local)
        return refuse(error, std::string(error));
      if (int64_t(ranks.size()) < description.numRanks) {
        if (!arrived && !(arrived = allocate(bytes)))
          return refuse(error, "no memory for the " + std::to_string(bytes) +
                                   " bytes of a part of output '" + output.name + "'");
        // A part of this process is only read.
        void *data = isHere ? const_cast<void *>(local) : arrived.get();
        if (!world->getBackend().broadcast(rank, data, bytes, error))
          return false;
        local = data;
      }
      put(rank, local);
    }
  }
  return true;
}

} // namespace meshwright::rt
