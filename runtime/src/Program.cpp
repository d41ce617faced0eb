//===- Program.cpp - a compiled program, ready to run ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Environment.h"

#include "meshwright/runtime/include/Backend.h"

#include <algorithm>
#include <cstring>
#include <thread>

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
// Making and filling
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
  // What nothing reads needs no value.
  program->given.assign(description.parameters.size(), true);
  for (const ProgramArgument &argument : description.arguments)
    if (argument.isParameter && argument.isRead)
      program->given[argument.index] = false;
  for (const PreparedParameter &parameter : description.prepared)
    program->given[description.arguments[parameter.argument].index] = false;
  program->placed.resize(description.arguments.size());
  program->prepared.resize(description.prepared.size());
  program->description = std::move(description);
  program->entry = entry;
  program->code = std::move(code);
  return program;
}

Program::~Program() {
  if (!world || !world->isStuck())
    return;
  // A rank that never came back may still use what is here: it is not freed.
  struct Kept {
    std::shared_ptr<void> code;
    std::vector<Memory> arenas;
    std::vector<Parts> placed, prepared;
    std::vector<Bytes> constants;
  };
  new Kept{std::move(code), std::move(arenas), std::move(placed), std::move(prepared),
           std::move(description.constants)};
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
      placed[a].clear();
      for (size_t p = 0; p < description.prepared.size(); ++p)
        if (description.prepared[p].argument == int64_t(a))
          prepared[p].clear();
    }
  }
  if (!found)
    error = "the program has no parameter '" + name + "'";
  return found;
}

size_t Program::getPosition(int64_t rank) const {
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

void Program::setPlaced(int64_t argument, int64_t rank, Bytes part) {
  placed[argument].resize(ranks.size());
  placed[argument][getPosition(rank)] = {std::move(part.data), nullptr};
  given[description.arguments[argument].index] = true;
}

void Program::setPrepared(int64_t index, int64_t rank, Bytes part) {
  prepared[index].resize(ranks.size());
  prepared[index][getPosition(rank)] = {std::move(part.data), nullptr};
  given[description.arguments[description.prepared[index].argument].index] = true;
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

/// Whether ranks read the host's array where it is.
bool Program::readsInPlace(const ProgramValue &value, const HostTensor &tensor) const {
  return value.layout.isReplicated() && value.unreduced.count == 0 && value.offsets.empty() &&
         reinterpret_cast<uintptr_t>(tensor.data) % sizeOf(value.type) == 0;
}

/// Whether no rank of this process before this one holds the same part.
bool Program::isFirstHere(const ProgramValue &value, size_t position) const {
  for (size_t before = 0; before < position; ++before)
    if (value.getHolder(ranks[before]) == value.getHolder(ranks[position]))
      return false;
  return true;
}

int64_t Program::countHolders(const ProgramValue &value) const {
  int64_t count = 0;
  for (size_t i = 0; i < ranks.size(); ++i)
    count += isFirstHere(value, i);
  return count;
}

/// Bytes that the next run still has to allocate, or -1 if they are beyond
/// counting.
int64_t Program::missingBytes(const std::vector<HostTensor> &inputs) const {
  int64_t bytes = 0;
  auto add = [&](int64_t each, int64_t count) {
    int64_t all = 0;
    if (bytes < 0 || __builtin_mul_overflow(each, count, &all) ||
        __builtin_add_overflow(bytes, all, &bytes))
      bytes = -1;
  };
  if (arenas.empty())
    add(description.arenaBytes, ranks.size());
  for (size_t i = 0; i < description.arguments.size(); ++i) {
    const ProgramArgument &argument = description.arguments[i];
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor =
        argument.isParameter ? stored[argument.index] : inputs[argument.index];
    if (placed[i].empty() && argument.isRead && !readsInPlace(value, tensor))
      add(value.getLocalBytes(), countHolders(value));
  }
  for (size_t i = 0; i < description.prepared.size(); ++i)
    if (prepared[i].empty())
      add(sizeOfPacked(description.prepared[i].packing),
          countHolders(
              description.getValue(description.arguments[description.prepared[i].argument])));
  // A thread of each rank.
  add(64 << 10, ranks.size());
  return bytes;
}

/// Memory for the parts of a value, one for all ranks that hold the same.
bool Program::allocateParts(const ProgramValue &value, int64_t bytes, Parts &parts) const {
  parts.resize(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!isFirstHere(value, i)) {
      for (size_t before = 0; before < i; ++before)
        if (value.getHolder(ranks[before]) == value.getHolder(ranks[i]))
          parts[i].data = parts[before].data;
      continue;
    }
    Memory memory = allocate(bytes);
    if (!memory) {
      parts.clear();
      return false;
    }
    parts[i].writable = memory.get();
    parts[i].data = std::move(memory);
  }
  return true;
}

/// Brings arguments onto the ranks of this process.
bool Program::placeArguments(const std::vector<HostTensor> &inputs) {
  for (size_t i = 0; i < description.arguments.size(); ++i) {
    const ProgramArgument &argument = description.arguments[i];
    if (!argument.isRead || (argument.isParameter && !placed[i].empty()))
      continue;
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor =
        argument.isParameter ? stored[argument.index] : inputs[argument.index];
    if (readsInPlace(value, tensor)) {
      // Not owned.
      placed[i].assign(
          ranks.size(),
          {std::shared_ptr<const void>(std::shared_ptr<void>(), tensor.data), nullptr});
      continue;
    }
    bool isOurs = !placed[i].empty() && std::any_of(placed[i].begin(), placed[i].end(),
                                                    [](const Part &part) { return part.writable; });
    if (!isOurs && !allocateParts(value, value.getLocalBytes(), placed[i]))
      return false;
    for (size_t r = 0; r < ranks.size(); ++r)
      if (placed[i][r].writable)
        place(value, ranks[r], tensor, placed[i][r].writable);
  }
  return true;
}

/// Packs the parameters that kernels read packed.
bool Program::prepareParameters() {
  for (size_t i = 0; i < description.prepared.size(); ++i) {
    if (!prepared[i].empty())
      continue;
    const auto &[index, offset, packing] = description.prepared[i];
    const ProgramArgument &argument = description.arguments[index];
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor = stored[argument.index];
    if (!allocateParts(value, sizeOfPacked(packing), prepared[i]))
      return false;
    // The part as it lies is kept only where the program reads it, too.
    Memory scratch;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!prepared[i][r].writable)
        continue;
      const void *local = argument.isRead ? placed[index][r].data.get() : tensor.data;
      if (!argument.isRead && !readsInPlace(value, tensor)) {
        if (!scratch)
          scratch = allocate(value.getLocalBytes());
        if (!scratch) {
          prepared[i].clear();
          return false;
        }
        place(value, ranks[r], tensor, scratch.get());
        local = scratch.get();
      }
      pack(packing, static_cast<const char *>(local) + offset, prepared[i][r].writable,
           int(std::thread::hardware_concurrency()));
    }
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Run
//===----------------------------------------------------------------------===//

/// Other processes may have no reason to refuse, and wait.
bool Program::refuse(std::string &error, const std::string &message) const {
  error = message;
  if (int64_t(ranks.size()) < description.numRanks) {
    error = "rank " + std::to_string(ranks.front()) + ": " + message;
    world->getBackend().fail(error);
  }
  return false;
}

/// Behind an arena, so that a write there is seen.
static constexpr int64_t kGuardBytes = 4096;
/// What nobody wrote; no program's values are likely to be this.
static constexpr uint64_t kUntouched = 0x7ff5c0ffee15dead;

bool Program::allocateArenas(std::string &error) {
  while (arenas.size() < ranks.size()) {
    arenas.push_back(allocate(description.arenaBytes + kGuardBytes));
    if (!arenas.back()) {
      arenas.pop_back();
      error = "no memory for rank " + std::to_string(ranks[arenas.size()]) + "'s arena of " +
              formatBytes(description.arenaBytes);
      return false;
    }
  }
  return true;
}

static void markUntouched(char *arena, int64_t bytes) {
  for (int64_t at = 0; at + 8 <= bytes; at += 8)
    std::memcpy(arena + at, &kUntouched, 8);
}

/// How far up an arena was written, up to alignment.
static int64_t findTouched(const char *arena, int64_t bytes) {
  int64_t touched = bytes / 8 * 8;
  while (touched > 0 && std::memcmp(arena + touched - 8, &kUntouched, 8) == 0)
    touched -= 8;
  return (touched + kAlignment - 1) / kAlignment * kAlignment;
}

/// Events of ranks in other processes come here, since each tells all.
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

/// As far up as any rank of this process wrote its arena.
bool Program::findSeen(std::string &error) {
  report.planned = description.arenaBytes;
  report.seen = 0;
  for (size_t r = 0; r < ranks.size(); ++r)
    report.seen =
        std::max(report.seen, findTouched(arenas[r].get(), description.arenaBytes + kGuardBytes));
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
  int64_t needed = missingBytes(inputs), available = availableMemory();
  if (needed < 0 || (available >= 0 && needed > available)) {
    return refuse(error, "running on " + onRanks + " needs " +
                             (needed < 0 ? std::string("more than 8 EiB") : formatBytes(needed)) +
                             " of memory, " + formatBytes(available) + " are available");
  }
  if (!allocateArenas(error))
    return refuse(error, std::string(error));
  if (!placeArguments(inputs) || !prepareParameters()) {
    return refuse(error, "out of memory for " + onRanks);
  }
  std::vector<RankBuffers> buffers(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankBuffers &mine = buffers[r];
    mine.arena = arenas[r].get();
    for (const Parts &parts : placed)
      mine.arguments.push_back(parts.empty() ? nullptr : parts[r].data.get());
    for (const Parts &parts : prepared)
      mine.prepared.push_back(parts[r].data.get());
    for (const Bytes &constant : description.constants)
      mine.constants.push_back(constant.data.get());
    mine.results.resize(description.outputs.size());
  }
  RunOptions settings = options;
  if (!settings.trace && (options.measure || !options.traceFile.empty()))
    settings.trace = std::make_shared<Trace>();
  for (size_t r = 0; options.measure && r < ranks.size(); ++r)
    markUntouched(arenas[r].get(), description.arenaBytes + kGuardBytes);
  if (!world->run(entry, buffers, settings, error))
    return false;
  if (settings.trace && !gatherTrace(*settings.trace, error))
    return false;
  if (!collect(buffers, outputs, error))
    return false;
  // What fails from here on fails in this process alone.
  if (options.measure) {
    report = summarize(*settings.trace, world->getThreadsPerRank());
    if (!findSeen(error))
      return false;
  }
  // One process writes for all.
  return options.traceFile.empty() || ranks.front() != 0 ||
         writeTrace(options.traceFile, *settings.trace, description.ops, error);
}

/// Puts the ranks' parts of results together, in every process.
bool Program::collect(const std::vector<RankBuffers> &buffers, const std::vector<void *> &outputs,
                      std::string &error) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ProgramValue &output = description.outputs[i];
    auto put = [&](int64_t rank, const void *local) {
      unshard(output.layout, rank, sizeOf(output.type), local, outputs[i]);
    };
    // Where all ranks hold the same, nothing has to come from another process.
    bool isSame = true;
    for (int64_t rank = 0; rank < description.numRanks; ++rank)
      isSame &= output.getHolder(rank) == 0;
    if (isSame) {
      put(0, buffers.front().results[i]);
      continue;
    }
    Memory arrived;
    for (int64_t rank = 0; rank < description.numRanks; ++rank) {
      if (output.getHolder(rank) != rank)
        continue;
      size_t position = getPosition(rank);
      bool isHere = position < ranks.size();
      const void *local = isHere ? buffers[position].results[i] : nullptr;
      if (int64_t(ranks.size()) < description.numRanks) {
        if (!arrived && !(arrived = allocate(output.getLocalBytes())))
          return refuse(error, "no memory for the " + std::to_string(output.getLocalBytes()) +
                                   " bytes of a part of output '" + output.name + "'");
        // What is here is only read.
        void *data = isHere ? const_cast<void *>(local) : arrived.get();
        if (!world->getBackend().broadcast(rank, data, output.getLocalBytes(), error))
          return false;
        local = data;
      }
      put(rank, local);
    }
  }
  return true;
}

} // namespace meshwright::rt
