//===- RankMemory.cpp - the memory of ranks -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RankMemory.h"

#include "meshwright/runtime/include/Memory.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace meshwright::rt {

/// Bytes behind an arena, so that a write there is seen.
static constexpr int64_t kGuardBytes = 4096;
/// Fills arenas in measured runs. No program is likely to write this value.
static constexpr uint64_t kUntouched = 0x7ff5c0ffee15dead;

RankMemory::RankMemory(const ProgramDescription &description, World &world)
    : description(description), world(world), ranks(world.getLocalRanks()),
      inHostMemory(world.getDevice(ranks.front()).sharesHostMemory()),
      placed(description.arguments.size()), prepared(description.prepared.size()) {}

void RankMemory::forget(int64_t argument) {
  placed[argument].clear();
  for (size_t p = 0; p < description.prepared.size(); ++p)
    if (description.prepared[p].argument == argument)
      prepared[p].clear();
}

//===----------------------------------------------------------------------===//
// Which memory
//===----------------------------------------------------------------------===//

bool RankMemory::readsInPlace(const ProgramValue &value, const HostTensor &tensor) const {
  return inHostMemory && value.layout.isReplicated() && value.unreduced.count == 0 &&
         value.offsets.empty() &&
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

int64_t RankMemory::getMissingBytes(const std::vector<HostTensor> &inputs,
                                    const std::vector<HostTensor> &parameters) const {
  int64_t bytes = 0;
  auto add = [&](int64_t each, int64_t count) {
    int64_t all = 0;
    if (bytes < 0 || __builtin_mul_overflow(each, count, &all) ||
        __builtin_add_overflow(bytes, all, &bytes))
      bytes = -1;
  };
  // A thread of each rank.
  add(64 << 10, ranks.size());
  if (!inHostMemory)
    return bytes;
  if (arenas.empty())
    add(description.arenaBytes, ranks.size());
  for (size_t i = 0; i < description.arguments.size(); ++i) {
    const ProgramArgument &argument = description.arguments[i];
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor =
        argument.isParameter ? parameters[argument.index] : inputs[argument.index];
    if (placed[i].empty() && argument.isRead && !readsInPlace(value, tensor))
      add(value.getLocalBytes(), countCopies(value));
  }
  for (size_t i = 0; i < description.prepared.size(); ++i)
    if (prepared[i].empty())
      add(sizeOfPacked(description.prepared[i].packing),
          countCopies(
              description.getValue(description.arguments[description.prepared[i].argument])));
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
    DeviceMemory arena = getDevice(arenas.size()).allocate(description.arenaBytes + kGuardBytes);
    if (!arena) {
      error = "no memory for rank " + std::to_string(ranks[arenas.size()]) + "'s arena of " +
              formatBytes(description.arenaBytes);
      return false;
    }
    arenas.push_back(std::move(arena));
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Copies from and to the host
//===----------------------------------------------------------------------===//

/// Calls `write` with memory of the host, which becomes the `bytes` at `to`.
template <typename Write>
bool RankMemory::fillPart(size_t position, char *to, int64_t bytes, Write write,
                          std::string &error) const {
  if (inHostMemory) {
    write(to);
    return true;
  }
  Memory staging = allocate(bytes);
  if (!staging)
    return false;
  write(staging.get());
  return getDevice(position).copyIn(to, staging.get(), bytes, error);
}

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
// Arguments, packed parameters and constants
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

bool RankMemory::setPlaced(int64_t argument, int64_t rank, Bytes part, std::string &error) {
  return setPart(placed[argument], rank, std::move(part), error);
}

bool RankMemory::setPrepared(int64_t index, int64_t rank, Bytes part, std::string &error) {
  return setPart(prepared[index], rank, std::move(part), error);
}

bool RankMemory::placeArguments(const std::vector<HostTensor> &inputs,
                                const std::vector<HostTensor> &parameters, std::string &error) {
  for (size_t i = 0; i < description.arguments.size(); ++i) {
    const ProgramArgument &argument = description.arguments[i];
    if (!argument.isRead || (argument.isParameter && !placed[i].empty()))
      continue;
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor =
        argument.isParameter ? parameters[argument.index] : inputs[argument.index];
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
      if (placed[i][r].writable &&
          !fillPart(
              r, placed[i][r].writable, value.getLocalBytes(),
              [&](char *to) { place(value, ranks[r], tensor, to); }, error)) {
        placed[i].clear();
        return false;
      }
  }
  return true;
}

bool RankMemory::prepareParameters(const std::vector<HostTensor> &parameters, std::string &error) {
  for (size_t i = 0; i < description.prepared.size(); ++i) {
    if (!prepared[i].empty())
      continue;
    const auto &[index, offset, packing] = description.prepared[i];
    const ProgramArgument &argument = description.arguments[index];
    const ProgramValue &value = description.getValue(argument);
    const HostTensor &tensor = parameters[argument.index];
    if (!allocateParts(value, sizeOfPacked(packing), prepared[i]))
      return false;
    // The unpacked part is kept only where the program reads it, too.
    bool isPlaced = argument.isRead && inHostMemory;
    Memory scratch;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (!prepared[i][r].writable)
        continue;
      const void *local = isPlaced ? placed[index][r].data.get() : tensor.data;
      if (!isPlaced && !readsInPlace(value, tensor)) {
        if (!scratch)
          scratch = allocate(value.getLocalBytes());
        if (!scratch) {
          prepared[i].clear();
          return false;
        }
        place(value, ranks[r], tensor, scratch.get());
        local = scratch.get();
      }
      auto write = [&, &packing = packing, offset = offset](char *to) {
        pack(packing, static_cast<const char *>(local) + offset, to,
             int(std::thread::hardware_concurrency()));
      };
      if (!fillPart(r, prepared[i][r].writable, sizeOfPacked(packing), write, error)) {
        prepared[i].clear();
        return false;
      }
    }
  }
  return true;
}

bool RankMemory::placeConstants(std::string &error) {
  while (constants.size() < ranks.size()) {
    size_t position = constants.size();
    std::vector<std::shared_ptr<const void>> mine;
    for (const Bytes &constant : description.constants) {
      if (inHostMemory) {
        mine.push_back(constant.data);
        continue;
      }
      DeviceMemory memory = getDevice(position).allocate(constant.size);
      if (!memory ||
          !getDevice(position).copyIn(memory.get(), constant.data.get(), constant.size, error))
        return false;
      mine.push_back(std::move(memory));
    }
    constants.push_back(std::move(mine));
  }
  return true;
}

bool RankMemory::fill(const std::vector<HostTensor> &inputs,
                      const std::vector<HostTensor> &parameters, std::string &error) {
  return placeArguments(inputs, parameters, error) && prepareParameters(parameters, error) &&
         placeConstants(error);
}

std::vector<RankBuffers> RankMemory::getBuffers() const {
  std::vector<RankBuffers> buffers(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankBuffers &mine = buffers[r];
    mine.arena = arenas[r].get();
    for (const Parts &parts : placed)
      mine.arguments.push_back(parts.empty() ? nullptr : parts[r].data.get());
    for (const Parts &parts : prepared)
      mine.prepared.push_back(parts[r].data.get());
    for (const std::shared_ptr<const void> &constant : constants[r])
      mine.constants.push_back(constant.get());
    mine.results.resize(description.outputs.size());
  }
  return buffers;
}

//===----------------------------------------------------------------------===//
// Measuring arenas
//===----------------------------------------------------------------------===//

bool RankMemory::markArenas(std::string &error) {
  int64_t bytes = description.arenaBytes + kGuardBytes;
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
  int64_t bytes = description.arenaBytes + kGuardBytes;
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
