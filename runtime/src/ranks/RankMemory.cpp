//===- RankMemory.cpp - the memory of ranks -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RankMemory.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Progress.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

namespace meshwright::rt {

/// Bytes behind an arena, so that a write there is seen.
static constexpr int64_t kGuardBytes = 4096;
/// Fills arenas in measured runs. No program is likely to write this value.
static constexpr uint64_t kUntouched = 0x7ff5c0ffee15dead;

/// The bytes of a commit that a thread copies at a time. Fewer are faster on one thread.
static constexpr int64_t kBytesForThreads = 8 << 20;

RankMemory::RankMemory(const ProgramDescription &description, World &world)
    : description(description), world(world), ranks(world.getLocalRanks()),
      inHostMemory(world.getDevice(ranks.front()).sharesHostMemory()),
      isRead(description.findReadParameters()), constants(description.entries.size()),
      placed(description.parameters.size()), prepared(description.prepared.size()),
      isStale(description.prepared.size()),
      seconds(description.states.size()), logs(description.states.size()),
      logBytes(description.states.size()) {
  for (const EntryDescription &entry : description.entries) {
    arenaBytes = std::max(arenaBytes, entry.arenaBytes);
    inputParts.emplace_back(entry.inputs.size());
    for (size_t i = 0; i < entry.updates.size(); ++i) {
      int64_t &bytes = logBytes[entry.stateResults[i]];
      bytes = std::max(bytes, entry.updates[i].logBytes);
    }
  }
}

void RankMemory::forget(int64_t parameter) {
  placed[parameter].clear();
  for (size_t p = 0; p < description.prepared.size(); ++p)
    if (description.prepared[p].isOf(ProgramArgument::Parameter, parameter))
      prepared[p].clear();
}

//===----------------------------------------------------------------------===//
// Which memory
//===----------------------------------------------------------------------===//

bool RankMemory::readsInPlace(const ProgramValue &value, const HostTensor &tensor) const {
  return inHostMemory && value.layout.isReplicated() && value.unreduced.count == 0 &&
         value.offsets.empty() && tensor.pieces.empty() && !tensor.compute &&
         reinterpret_cast<uintptr_t>(tensor.data) % sizeOf(value.type) == 0;
}

/// Returns false if a rank of this process before this one shares its part.
bool RankMemory::isFirstHere(const ProgramValue &value, size_t position) const {
  for (size_t before = 0; inHostMemory && before < position; ++before)
    if (value.getHolder(ranks[before]) == value.getHolder(ranks[position]))
      return false;
  return true;
}

int64_t RankMemory::countCopies(const ProgramValue &value) const {
  int64_t count = 0;
  for (size_t i = 0; i < ranks.size(); ++i)
    count += isFirstHere(value, i);
  return count;
}

int64_t RankMemory::getMissingBytes(int64_t entry, const std::vector<HostTensor> &inputs,
                                    const std::vector<HostTensor> &parameters,
                                    bool recovers) const {
  // A thread of each rank.
  int64_t threads = int64_t(ranks.size()) * (64 << 10);
  int64_t bytes = inHostMemory ? countMissing(entry, inputs, parameters, recovers) : 0;
  return bytes < 0 || __builtin_add_overflow(bytes, threads, &bytes) ? -1 : bytes;
}

bool RankMemory::checkDevices(int64_t entry, const std::vector<HostTensor> &inputs,
                              const std::vector<HostTensor> &parameters, bool recovers,
                              std::string &error) const {
  if (inHostMemory)
    return true;
  // All ranks need as much.
  int64_t all = countMissing(entry, inputs, parameters, recovers);
  int64_t needed = all / int64_t(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    int64_t available = getDevice(i).getFreeBytes();
    if (available < 0 || (all >= 0 && needed <= available))
      continue;
    error = "rank " + std::to_string(ranks[i]) + " needs " +
            (all < 0 ? std::string("more than 8 EiB") : formatBytes(needed)) +
            " of its device's memory: expected at most " + formatBytes(available) +
            ", which are available";
    return false;
  }
  return true;
}

/// The bytes that all ranks of this process still have to allocate, or -1 if the number does not
/// fit into 64 bits.
int64_t RankMemory::countMissing(int64_t entry, const std::vector<HostTensor> &inputs,
                                 const std::vector<HostTensor> &parameters, bool recovers) const {
  int64_t bytes = 0;
  auto add = [&](int64_t each, int64_t count) {
    int64_t all = 0;
    if (bytes < 0 || __builtin_mul_overflow(each, count, &all) ||
        __builtin_add_overflow(bytes, all, &bytes))
      bytes = -1;
  };
  auto addPlaced = [&](const ProgramValue &value, const HostTensor &tensor, const Parts &parts) {
    if (parts.empty() && !readsInPlace(value, tensor))
      add(value.getLocalBytes(), countCopies(value));
  };
  if (arenas.empty())
    add(arenaBytes, ranks.size());
  const EntryDescription &needed = description.entries[entry];
  for (const ProgramArgument &argument : needed.arguments) {
    const ProgramValue &value = description.getValue(needed, argument);
    if (argument.kind == ProgramArgument::Input && argument.isRead)
      addPlaced(value, inputs[argument.index], inputParts[entry][argument.index]);
    else if (argument.kind == ProgramArgument::Parameter && argument.isRead)
      addPlaced(value, parameters[argument.index], placed[argument.index]);
  }
  for (int64_t i : needed.prepared)
    if (prepared[i].empty())
      add(sizeOfPacked(description.prepared[i].packing),
          countCopies(description.getValue(description.prepared[i])));
  for (const ProgramState &state : description.states)
    if (states.empty())
      add(state.value.getLocalBytes(), ranks.size());
  for (size_t i = 0; recovers && i < needed.updates.size(); ++i) {
    int64_t state = needed.stateResults[i];
    if (!isRecovered(state))
      continue;
    if (needed.updates[i].kind == StateUpdate::Whole && seconds[state].empty())
      add(description.states[state].value.getLocalBytes(), ranks.size());
    else if (needed.updates[i].kind == StateUpdate::Rows && logs[state].empty())
      add(logBytes[state], ranks.size());
  }
  return bytes;
}

/// Allocates the parts of a value, one for all ranks that share it.
bool RankMemory::allocateParts(const ProgramValue &value, int64_t bytes, Parts &parts) const {
  parts.resize(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!isFirstHere(value, i)) {
      for (size_t before = 0; before < i; ++before)
        if (value.getHolder(ranks[before]) == value.getHolder(ranks[i]))
          parts[i].data = parts[before].data;
      continue;
    }
    DeviceMemory memory = getDevice(i).allocate(bytes);
    if (!memory) {
      parts.clear();
      return false;
    }
    parts[i].writable = memory.get();
    parts[i].data = std::move(memory);
  }
  return true;
}

bool RankMemory::allocateArenas(std::string &error) {
  while (arenas.size() < ranks.size()) {
    DeviceMemory arena = getDevice(arenas.size()).allocate(arenaBytes + kGuardBytes);
    if (!arena) {
      error = "no memory for rank " + std::to_string(ranks[arenas.size()]) + "'s arena of " +
              formatBytes(arenaBytes);
      return false;
    }
    arenas.push_back(std::move(arena));
  }
  return true;
}

char *RankMemory::getArriving(int64_t bytes) {
  if (bytes > arrivingBytes) {
    arriving.reset();
    arriving = getDevice(0).allocate(bytes);
    arrivingBytes = arriving ? bytes : 0;
  }
  return arriving.get();
}

//===----------------------------------------------------------------------===//
// Copies from and to the host
//===----------------------------------------------------------------------===//

const void *RankMemory::read(size_t position, const void *data, int64_t bytes, Memory &scratch,
                             std::string &error) const {
  if (inHostMemory)
    return data;
  if (!scratch && !(scratch = allocate(bytes))) {
    error = "no memory for " + formatBytes(bytes) + " of rank " + std::to_string(ranks[position]);
    return nullptr;
  }
  return getDevice(position).copyOut(scratch.get(), data, bytes, error) ? scratch.get() : nullptr;
}

//===----------------------------------------------------------------------===//
// Arguments and constants
//===----------------------------------------------------------------------===//

bool RankMemory::setPart(Parts &parts, int64_t rank, Bytes part, std::string &error) {
  parts.resize(ranks.size());
  size_t position = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  if (inHostMemory) {
    parts[position] = {std::move(part.data), nullptr};
    return true;
  }
  DeviceMemory memory = getDevice(position).allocate(part.size);
  if (!memory) {
    error = "no memory for " + formatBytes(part.size) + " of rank " + std::to_string(rank);
    return false;
  }
  parts[position] = {memory, nullptr};
  return getDevice(position).copyIn(memory.get(), part.data.get(), part.size, error);
}

bool RankMemory::setPlaced(int64_t parameter, int64_t rank, Bytes part, std::string &error) {
  return setPart(placed[parameter], rank, std::move(part), error);
}

bool RankMemory::setPrepared(int64_t index, int64_t rank, Bytes part, std::string &error) {
  return setPart(prepared[index], rank, std::move(part), error);
}

bool RankMemory::placeTensor(const ProgramValue &value, const HostTensor &tensor, Parts &parts,
                             std::string &error) {
  if (readsInPlace(value, tensor)) {
    // Not owned.
    parts.assign(ranks.size(),
                 {std::shared_ptr<const void>(std::shared_ptr<void>(), tensor.data), nullptr});
    return true;
  }
  std::shared_ptr<const HostTensor> present = getPresent(tensor, error);
  if (!present)
    return false;
  bool isOurs = !parts.empty() && std::any_of(parts.begin(), parts.end(),
                                              [](const Part &part) { return part.writable; });
  if (!isOurs && !allocateParts(value, value.getLocalBytes(), parts))
    return false;
  auto fill = [&](size_t r, char *to) {
    return tensor.gpu >= 0 ? takePart(value, r, to, *present, error)
                           : fillPart(
                                 r, to, value.getLocalBytes(),
                                 [&](char *local) { place(value, ranks[r], *present, local); }, error);
  };
  for (size_t r = 0; r < ranks.size(); ++r)
    if (parts[r].writable && !fill(r, parts[r].writable)) {
      parts.clear();
      return false;
    }
  return true;
}

/// As `place`, from an array in the memory of a GPU.
bool RankMemory::takePart(const ProgramValue &value, size_t position, char *to,
                          const HostTensor &tensor, std::string &error) const {
  std::vector<StridedBox> boxes;
  if (!value.isZeroOn(ranks[position]))
    boxes = getShardBoxes(value.layout, ranks[position], sizeOf(value.type));
  int64_t bytes = value.getLocalBytes(), filled = 0;
  for (const StridedBox &box : boxes)
    filled += box.getBytes();
  return getDevice(position).takeBoxes(boxes, to, filled < bytes ? bytes : 0, tensor.data,
                                       countOf(value.shape) * sizeOf(value.type), tensor.gpu, error);
}

bool RankMemory::placeArguments(int64_t entry, const std::vector<HostTensor> &inputs,
                                const std::vector<HostTensor> &parameters, std::string &error) {
  const EntryDescription &needed = description.entries[entry];
  auto isNew = [&](const ProgramArgument &argument) {
    return argument.isRead && argument.kind == ProgramArgument::Parameter &&
           placed[argument.index].empty();
  };
  std::optional<Progress> progress;
  if (int64_t count = std::count_if(needed.arguments.begin(), needed.arguments.end(), isNew))
    progress.emplace("loading weights", count);
  for (const ProgramArgument &argument : needed.arguments) {
    if (!argument.isRead || argument.kind == ProgramArgument::State)
      continue;
    bool isInput = argument.kind == ProgramArgument::Input;
    Parts &parts = isInput ? inputParts[entry][argument.index] : placed[argument.index];
    if (!isInput && !parts.empty())
      continue;
    // Parameters are placed once. Inputs do not take long.
    if (!isInput && isInterrupted()) {
      error = kInterrupted;
      return false;
    }
    const ProgramValue &value = description.getValue(needed, argument);
    const HostTensor &tensor = (isInput ? inputs : parameters)[argument.index];
    // Each run reads it.
    if (!isInput && readsInPlace(value, tensor))
      gatherPages(tensor.data, value.getLocalBytes());
    if (!placeTensor(value, tensor, parts, error))
      return false;
    if (!isInput)
      progress->step();
  }
  return true;
}

bool RankMemory::placeConstants(int64_t entry, std::string &error) {
  auto &placedHere = constants[entry];
  while (placedHere.size() < ranks.size()) {
    size_t position = placedHere.size();
    std::vector<std::shared_ptr<const void>> mine;
    for (const auto &[data, axes] : description.entries[entry].constants) {
      int64_t bytes = data.size / sizeOfGroup(axes);
      const char *part =
          static_cast<const char *>(data.data.get()) + coordinateOf(axes, ranks[position]) * bytes;
      if (inHostMemory) {
        mine.push_back(std::shared_ptr<const void>(data.data, part));
        continue;
      }
      DeviceMemory memory = getDevice(position).allocate(bytes);
      if (!memory || !getDevice(position).copyIn(memory.get(), part, bytes, error))
        return false;
      mine.push_back(std::move(memory));
    }
    placedHere.push_back(std::move(mine));
  }
  return true;
}

bool RankMemory::fill(int64_t entry, const std::vector<HostTensor> &inputs,
                      const std::vector<HostTensor> &parameters, std::string &error) {
  if (!placeArguments(entry, inputs, parameters, error))
    return false;
  if (!prepareWeights(description.entries[entry], parameters, error))
    return false;
  for (int64_t state : description.entries[entry].stateResults)
    setStale(state);
  return placeConstants(entry, error);
}

std::vector<RankBuffers> RankMemory::getBuffers(int64_t entry, bool recovers) const {
  const EntryDescription &needed = description.entries[entry];
  std::vector<RankBuffers> buffers(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankBuffers &mine = buffers[r];
    mine.arena = arenas[r].get();
    for (const ProgramArgument &argument : needed.arguments) {
      const void *data = nullptr;
      if (argument.isRead && argument.kind == ProgramArgument::State)
        data = states[argument.index][r].get();
      else if (argument.isRead && argument.kind == ProgramArgument::Input)
        data = inputParts[entry][argument.index][r].data.get();
      else if (argument.isRead)
        data = placed[argument.index][r].data.get();
      mine.arguments.push_back(data);
    }
    for (int64_t index : needed.prepared)
      mine.prepared.push_back(prepared[index][r].data.get());
    for (const std::shared_ptr<const void> &constant : constants[entry][r])
      mine.constants.push_back(constant.get());
    mine.results.resize(needed.outputs.size());
    for (size_t i = 0; i < needed.stateResults.size(); ++i) {
      int64_t state = needed.stateResults[i];
      StateUpdate::Kind kind = needed.updates[i].kind;
      bool isKept = recovers && isRecovered(state);
      mine.results.push_back(kind == StateUpdate::Elsewhere ? nullptr
                             : kind == StateUpdate::Rows
                                 ? (isKept ? logs[state][r].get() : nullptr)
                                 : (isKept ? seconds : states)[state][r].get());
    }
  }
  return buffers;
}

//===----------------------------------------------------------------------===//
// States
//===----------------------------------------------------------------------===//

/// Allocates a buffer on each rank, or none.
bool RankMemory::allocateForState(int64_t state, int64_t bytes, std::vector<DeviceMemory> &buffers,
                                  std::string &error) {
  std::vector<DeviceMemory> mine;
  for (size_t r = 0; r < ranks.size(); ++r) {
    mine.push_back(getDevice(r).allocate(bytes));
    if (mine.back())
      continue;
    error = "no memory for the " + formatBytes(bytes) + " of state '" +
            description.states[state].value.name + "' on rank " + std::to_string(ranks[r]);
    return false;
  }
  buffers = std::move(mine);
  return true;
}

bool RankMemory::allocateStates(std::string &error) {
  if (!states.empty())
    return true;
  std::vector<std::vector<DeviceMemory>> buffers(description.states.size());
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!allocateForState(i, description.states[i].value.getLocalBytes(), buffers[i], error))
      return false;
  states = std::move(buffers);
  return true;
}

bool RankMemory::allocateRecovery(int64_t entry, std::string &error) {
  const EntryDescription &needed = description.entries[entry];
  for (size_t i = 0; i < needed.updates.size(); ++i) {
    int64_t state = needed.stateResults[i];
    StateUpdate::Kind kind = needed.updates[i].kind;
    int64_t bytes = description.states[state].value.getLocalBytes();
    if (!isRecovered(state))
      continue;
    if (kind == StateUpdate::Whole && seconds[state].empty() &&
        !allocateForState(state, bytes, seconds[state], error))
      return false;
    if (kind == StateUpdate::Rows && logs[state].empty() &&
        !allocateForState(state, logBytes[state], logs[state], error))
      return false;
  }
  return true;
}

bool RankMemory::prepareCommit(const EntryDescription &entry,
                               const std::vector<RankBuffers> &buffers, Commit &commit,
                               std::string &error) const {
  for (const int64_t &state : entry.stateResults) {
    size_t result = entry.outputs.size() + (&state - entry.stateResults.data());
    if (!seconds[state].empty() && buffers[0].results[result] == seconds[state][0].get())
      commit.exchanged.push_back(state);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto &copies = commit.copies.emplace_back();
    for (size_t i = 0; i < entry.stateResults.size(); ++i) {
      int64_t state = entry.stateResults[i];
      if (std::count(commit.exchanged.begin(), commit.exchanged.end(), state))
        continue;
      Commit::Copy copy{states[state][r].get(),
                        static_cast<const char *>(buffers[r].results[entry.outputs.size() + i]),
                        description.states[state].value.getLocalBytes()};
      if (copy.to != copy.from && copy.bytes > 0)
        copies.push_back(copy);
    }
    for (Commit::Copy &copy : copies) {
      bool overlaps = std::any_of(copies.begin(), copies.end(), [&](const Commit::Copy &other) {
        return copy.from < other.to + other.bytes && other.to < copy.from + copy.bytes;
      });
      if (!overlaps)
        continue;
      commit.staged.push_back(getDevice(r).allocate(copy.bytes));
      char *aside = commit.staged.back().get();
      if (!aside)
        error = "no memory for the " + formatBytes(copy.bytes) + " of a state on rank " +
                std::to_string(ranks[r]);
      if (!aside || !getDevice(r).copy(aside, copy.from, copy.bytes, error))
        return false;
      copy.from = aside;
    }
  }
  return true;
}

bool RankMemory::perform(const Commit &commit, std::string &error) {
  // Threads share the copies of the host, by pieces. A device performs its own one by one.
  std::vector<std::pair<size_t, std::vector<Commit::Copy>>> pieces;
  int64_t bytes = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!inHostMemory)
      pieces.push_back({r, commit.copies[r]});
    for (const Commit::Copy &copy : commit.copies[r]) {
      bytes += copy.bytes;
      for (int64_t at = 0; inHostMemory && at < copy.bytes; at += kBytesForThreads)
        pieces.push_back({r, {{copy.to + at, copy.from + at,
                               std::min(kBytesForThreads, copy.bytes - at)}}});
    }
  }
  std::vector<std::string> errors(pieces.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> isFine{true};
  auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++)
      for (const Commit::Copy &copy : pieces[i].second)
        if (!getDevice(pieces[i].first).copy(copy.to, copy.from, copy.bytes, errors[i]))
          isFine = false;
  };
  std::vector<std::thread> helpers;
  size_t most = bytes < kBytesForThreads
                    ? 1
                    : std::min<size_t>(pieces.size(), std::thread::hardware_concurrency());
  try {
    while (helpers.size() + 1 < most)
      helpers.emplace_back(work);
  } catch (const std::system_error &) {
    // This thread does the work alone.
  }
  work();
  for (std::thread &helper : helpers)
    helper.join();
  for (int64_t state : commit.exchanged)
    states[state].swap(seconds[state]);
  for (size_t i = 0; i < pieces.size() && error.empty(); ++i)
    if (!errors[i].empty())
      error = "rank " + std::to_string(ranks[pieces[i].first]) + ": " + errors[i];
  return isFine;
}

//===----------------------------------------------------------------------===//
// Measuring arenas
//===----------------------------------------------------------------------===//

bool RankMemory::markArenas(std::string &error) {
  int64_t bytes = arenaBytes + kGuardBytes;
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto write = [&](char *arena) {
      for (int64_t at = 0; at + 8 <= bytes; at += 8)
        std::memcpy(arena + at, &kUntouched, 8);
    };
    if (!fillPart(r, arenas[r].get(), bytes, write, error))
      return false;
  }
  return true;
}

bool RankMemory::findTouched(int64_t &touched, std::string &error) const {
  int64_t bytes = arenaBytes + kGuardBytes;
  touched = 0;
  Memory scratch;
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto *arena = static_cast<const char *>(read(r, arenas[r].get(), bytes, scratch, error));
    if (!arena)
      return false;
    int64_t end = bytes / 8 * 8;
    while (end > 0 && std::memcmp(arena + end - 8, &kUntouched, 8) == 0)
      end -= 8;
    touched = std::max(touched, (end + kAlignment - 1) / kAlignment * kAlignment);
  }
  return true;
}

} // namespace meshwright::rt
