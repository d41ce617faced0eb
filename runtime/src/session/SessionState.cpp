//===- SessionState.cpp - the state of a session --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A change of the state has two steps. The first does everything that may fail, and all processes
// decide whether it succeeded everywhere. The second writes the state buffers.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Session.h"

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Environment.h"
#include "meshwright/runtime/src/cpu/Reduce.h"
#include "meshwright/runtime/src/ranks/RankMemory.h"

#include <cstring>

namespace meshwright::rt {

//===----------------------------------------------------------------------===//
// Global tensors
//===----------------------------------------------------------------------===//

namespace {
/// The sums or maxima of the parts of a value that is unreduced, one for each of its chunks.
class Reducer {
public:
  explicit Reducer(const ProgramValue &value)
      : value(value), whole(value), count(countOf(value.localShape)),
        isHalf(getComputeType(value.type) != value.type) {
    whole.unreduced = {};
  }

  /// Adds a rank's part. Parts of bf16 and f16 are added in f32. Returns false if there is no
  /// memory.
  bool add(int64_t rank, const void *part) {
    auto [place, isNew] = sums.try_emplace(whole.getHolder(rank));
    Memory &sum = place->second;
    if (isHalf && !wide && !(wide = allocate(count * sizeof(float))))
      return false;
    if (isNew && !(sum = allocate(isHalf ? count * sizeof(float) : value.getLocalBytes())))
      return false;
    if (isHalf) {
      float *to = reinterpret_cast<float *>(isNew ? sum.get() : wide.get());
      widen(value.type, part, to, count);
      part = to;
    } else if (isNew) {
      std::memcpy(sum.get(), part, value.getLocalBytes());
    }
    if (!isNew)
      reduce(isHalf ? DType::F32 : value.type, value.reduction, {sum.get(), part}, {sum.get()},
             count);
    return true;
  }

  /// Writes all chunks to the global tensor. bf16 and f16 are rounded here, once.
  void write(void *global) {
    for (auto &[rank, sum] : sums) {
      const void *chunk = sum.get();
      if (isHalf) {
        narrow(value.type, reinterpret_cast<const float *>(sum.get()), wide.get(), count);
        chunk = wide.get();
      }
      unshard(value.layout, rank, sizeOf(value.type), chunk, global);
    }
  }

private:
  const ProgramValue &value;
  /// The value when it is reduced.
  ProgramValue whole;
  int64_t count;
  bool isHalf;
  /// A part in f32, or a chunk that is rounded.
  Memory wide;
  /// By the first rank that holds the chunk.
  std::map<int64_t, Memory> sums;
};
} // namespace

/// Assembles a global tensor from the ranks' parts, in every process. `parts` has the parts of
/// this process's ranks, in the memory of their devices. Parts of an unreduced value are combined
/// in the order of ranks.
bool Session::assemble(const ProgramValue &value, const std::string &kind,
                       const std::vector<const void *> &parts, void *global, std::string &error) {
  int64_t bytes = value.getLocalBytes(), elementSize = sizeOf(value.type);
  auto refuseMemory = [&] {
    return refuse(error, "no memory for the " + std::to_string(bytes) + " bytes of a part of " +
                             kind + " '" + value.name + "'");
  };
  Memory scratch, arrived;
  Reducer reducer(value);
  auto put = [&](int64_t rank, const void *local) {
    if (value.unreduced.count > 0)
      return reducer.add(rank, local);
    unshard(value.layout, rank, elementSize, local, global);
    return true;
  };
  // Then no other process is needed.
  if (isSameOnAll(value)) {
    const void *local = memory->read(0, parts[0], bytes, scratch, error);
    if (!local)
      return refuse(error, std::string(error));
    return put(0, local) || refuseMemory();
  }
  for (int64_t rank = 0; rank < description.numRanks; ++rank) {
    if (value.getHolder(rank) != rank)
      continue;
    size_t position = getPosition(rank);
    bool isHere = position < ranks.size();
    const void *local =
        isHere ? memory->read(position, parts[position], bytes, scratch, error) : nullptr;
    if (isHere && !local)
      return refuse(error, std::string(error));
    if (isSplit()) {
      if (!arrived && !(arrived = allocate(bytes)))
        return refuseMemory();
      // A part of this process is only read.
      void *data = isHere ? const_cast<void *>(local) : arrived.get();
      if (!world->getBackend().broadcast(rank, data, bytes, error))
        return false;
      local = data;
    }
    if (!put(rank, local))
      return refuseMemory();
  }
  reducer.write(global);
  return true;
}

/// Returns true if all ranks hold the same value. Then no other rank is needed.
bool Session::isSameOnAll(const ProgramValue &value) const {
  for (int64_t rank = 0; rank < description.numRanks; ++rank)
    if (value.getHolder(rank) != 0)
      return false;
  return true;
}

/// The boxes of a rank's part, from there to the global tensor.
static std::vector<StridedBox> getGlobalBoxes(const ProgramValue &value, int64_t rank) {
  std::vector<StridedBox> boxes = getShardBoxes(value.layout, rank, sizeOf(value.type));
  for (StridedBox &box : boxes) {
    std::swap(box.toStrides, box.fromStrides);
    std::swap(box.toOffset, box.fromOffset);
  }
  return boxes;
}

/// Lets the ranks of all processes send their parts of outputs from GPU to GPU at the end of a run.
bool Session::shareOutputs(const EntryDescription &entry, const std::vector<void *> &outputs,
                           RunOptions &options, std::string &error) {
  std::vector<size_t> shared;
  int64_t most = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ProgramValue &value = entry.outputs[i];
    if (value.unreduced.count > 0 || value.getLocalBytes() == 0 || isSameOnAll(value))
      continue;
    shared.push_back(i);
    most = std::max(most, value.getLocalBytes());
  }
  if (shared.empty())
    return true;
  char *arriving = memory->getArriving(most);
  if (!arriving) {
    error = "no memory for the " + formatBytes(most) + " of another rank's part of an output";
    return false;
  }
  options.afterEntry = [this, &entry, outputs, shared, arriving, gpu = options.outputGpu](
                           int64_t rank, const RankBuffers &mine, std::string &problem) {
    for (size_t i : shared) {
      const ProgramValue &value = entry.outputs[i];
      for (int64_t from = 0; from < description.numRanks; ++from) {
        if (value.getHolder(from) != from)
          continue;
        void *part = from == rank ? const_cast<void *>(mine.results[i]) : arriving;
        if (!world->getDevice(rank).giveBoxesOf(from, part, value.getLocalBytes(),
                                                getGlobalBoxes(value, from), outputs[i], gpu,
                                                problem))
          return false;
      }
    }
    return true;
  };
  return true;
}

/// Writes an output to an array in the memory of a GPU. Parts that have to be summed go through the
/// host. Those of other processes are there already (`shareOutputs`).
bool Session::giveOutput(const ProgramValue &value, const std::vector<const void *> &parts,
                         void *global, int64_t gpu, std::string &error) {
  int64_t bytes = countOf(value.shape) * sizeOf(value.type);
  if (value.unreduced.count > 0) {
    Memory array = allocate(bytes);
    if (!array)
      return refuse(error, "no memory for the " + formatBytes(bytes) + " of output '" +
                               value.name + "'");
    return assemble(value, "output", parts, array.get(), error) &&
           world->getDevice(ranks.front()).copyIn(global, array.get(), bytes, error);
  }
  bool isSame = isSameOnAll(value);
  for (int64_t rank = 0; rank < description.numRanks; ++rank) {
    if (value.getHolder(rank) != rank || (isSplit() && !isSame))
      continue;
    size_t position = isSame ? 0 : getPosition(rank);
    if (!world->getDevice(ranks[position])
             .giveBoxes(getGlobalBoxes(value, rank), global, gpu, parts[position],
                        value.getLocalBytes(), error))
      return false;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// The initial value
//===----------------------------------------------------------------------===//

/// Returns false, with an error, if the session has ended. Waits for the ranks of a call that was
/// interrupted.
bool Session::checkEnd(std::string &error) {
  if (!world->settle(kLongestTimeout, error))
    return false;
  error = ended;
  return ended.empty();
}

void Session::restart() {
  std::lock_guard<std::timed_mutex> lock(running);
  isStarted = false;
  extras = {};
}

/// Gives states their initial value, except those that `isGiven` chooses.
bool Session::fillStates(const Choose &isGiven, std::string &error) {
  if (!memory->allocateStates(error))
    return false;
  for (size_t i = 0; i < description.states.size(); ++i) {
    const ProgramState &state = description.states[i];
    if (isGiven(state))
      continue;
    int64_t parameter = state.parameter.empty() ? -1 : description.findParameter(state.parameter);
    if (initial[i].empty() && parameter >= 0 && !given[parameter]) {
      error = "parameter '" + state.parameter + "', with which state '" + state.value.name +
              "' begins, has no value";
      return false;
    }
    std::shared_ptr<const HostTensor> tensor;
    if (initial[i].empty() && parameter >= 0 && !(tensor = getPresent(stored[parameter], error)))
      return false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      bool hasMemory = true;
      auto write = [&](char *to) {
        if (!initial[i].empty())
          std::memcpy(to, initial[i][r].data.get(), initial[i][r].size);
        else if (parameter >= 0)
          place(state.value, ranks[r], *tensor, to);
        else
          hasMemory = placeFill(state.value, ranks[r], state.fill, to);
      };
      if (memory->writeState(i, r, write, error) && hasMemory)
        continue;
      if (error.empty())
        error = "no memory for the initial value of state '" + state.value.name + "'";
      return false;
    }
  }
  return true;
}

/// Gives all states their initial value, unless they have values already.
bool Session::startStates(std::string &error) {
  auto isGiven = [](const ProgramState &) { return false; };
  isStarted = isStarted || fillStates(isGiven, error);
  return isStarted;
}

//===----------------------------------------------------------------------===//
// Getting and setting
//===----------------------------------------------------------------------===//

bool Session::getStatesLocked(const std::vector<void *> &arrays, std::string &error) {
  if (!checkEnd(error) || !restore(error) || !meet("a copy of the state", error) ||
      !decide(startStates(error), error))
    return false;
  size_t next = 0;
  for (size_t i = 0; i < description.states.size(); ++i) {
    if (description.states[i].isTransient)
      continue;
    std::vector<const void *> parts;
    for (size_t r = 0; r < ranks.size(); ++r)
      parts.push_back(memory->getState(i, r));
    if (!assemble(description.states[i].value, "state", parts, arrays[next++], error))
      return false;
  }
  return true;
}

bool Session::getStates(const std::vector<void *> &arrays, std::string &error) {
  std::lock_guard<std::timed_mutex> lock(running);
  return getStatesLocked(arrays, error);
}

/// Returns an empty string if the values fit the states of their names, else an error.
std::string Session::checkStates(const std::map<std::string, HostTensor> &values) const {
  for (const auto &[name, tensor] : values) {
    const ProgramState *state = nullptr;
    for (const ProgramState &candidate : description.states)
      if (candidate.value.name == name && !candidate.isTransient)
        state = &candidate;
    if (!state)
      return "the program has no state '" + name + "'";
    if (tensor.type != state->value.type || tensor.shape != state->value.shape)
      return "state '" + name + "': expected " + describe(state->value.type, state->value.shape) +
             ", got " + describe(tensor.type, tensor.shape);
  }
  return "";
}

/// Waits for the other processes, unless the state cannot change.
bool Session::beginChange(std::string &error) {
  if (!checkEnd(error))
    return false;
  if (world->isStuck()) {
    error = "a rank has not come back from a call that failed and may read the state: it cannot "
            "change";
    return false;
  }
  return restore(error) && meet("a change of the state", error);
}

/// Sets the states that `isGiven` chooses in all processes, unless there is a problem in one of them.
/// Behind `beginChange`.
bool Session::change(const Choose &isGiven,
                     const std::function<HostTensor(const std::string &)> &read,
                     std::string problem, std::string &error) {
  bool isFine = problem.empty() && (isStarted || fillStates(isGiven, problem));
  if (!decide(isFine, problem)) {
    error = problem;
    return false;
  }
  for (size_t i = 0; i < description.states.size(); ++i) {
    const ProgramValue &value = description.states[i].value;
    if (!isGiven(description.states[i]))
      continue;
    HostTensor tensor = read(value.name);
    for (size_t r = 0; r < ranks.size(); ++r)
      if (!memory->writeState(i, r, [&](char *to) { place(value, ranks[r], tensor, to); }, error))
        return end("state '" + value.name + "' was set in part only", error);
  }
  isStarted = true;
  return true;
}

bool Session::setStates(const std::map<std::string, HostTensor> &values, std::string &error) {
  std::lock_guard<std::timed_mutex> lock(running);
  if (!beginChange(error))
    return false;
  return change([&](const ProgramState &state) { return values.count(state.value.name) > 0; },
                [&](const std::string &name) { return values.at(name); }, checkStates(values),
                error);
}

//===----------------------------------------------------------------------===//
// Commits
//===----------------------------------------------------------------------===//

/// Ends the session, in all processes: the state of a rank is not known.
bool Session::end(const std::string &why, std::string &error) {
  refuse(ended, "the session has ended: " + why + (error.empty() ? "" : ": " + error) +
                    "; the last saved state is whole");
  error = ended;
  return false;
}

/// Makes the results of a run the new state, if the run succeeded in all processes.
bool Session::commit(const EntryDescription &entry, const std::vector<RankBuffers> &buffers,
                     bool isFine, std::string &error) {
  RankMemory::Commit copies;
  isFine = isFine && memory->prepareCommit(entry, buffers, copies, error);
  if (!decide(isFine, error))
    return false;
  return memory->perform(copies, error) || end("the commit of a call failed", error);
}

} // namespace meshwright::rt
