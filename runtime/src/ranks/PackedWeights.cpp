//===- PackedWeights.cpp - weights in the form that kernels read ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The packed weights of the ranks' memory. A parameter is packed before the first run that reads it. A
// state is packed again if it may have another value: whatever writes states notes that (`setStale`),
// and the next run packs what it reads.
//
//===----------------------------------------------------------------------===//

#include "RankMemory.h"

#include "meshwright/runtime/include/Interrupts.h"
#include "meshwright/runtime/include/Progress.h"

#include <thread>

namespace meshwright::rt {

/// Bytes that are packed before the user may interrupt again.
static constexpr int64_t kQueuedBytes = 256 << 20;

static int countThreads() { return int(std::thread::hardware_concurrency()); }

/// Returns the rank's part of a weight as it is stored, in the host's memory: in its place, or in
/// `scratch`. A parameter is `tensor`. Returns null if there is no memory, or with an error if a copy fails.
const void *RankMemory::getUnpacked(const PreparedWeight &weight, size_t position,
                                    const HostTensor &tensor, Memory &scratch,
                                    std::string &error) const {
  const ProgramValue &value = description.getValue(weight);
  if (weight.kind == ProgramArgument::State)
    return read(position, getState(weight.index, position), value.getLocalBytes(), scratch, error);
  // The unpacked part is kept only where an entry reads it, too.
  if (inHostMemory && isRead[weight.index] && !placed[weight.index].empty())
    return placed[weight.index][position].data.get();
  if (readsInPlace(value, tensor))
    return tensor.data;
  if (!scratch)
    scratch = allocate(value.getLocalBytes());
  if (scratch)
    place(value, ranks[position], tensor, scratch.get());
  return scratch.get();
}

/// Packs a weight for all ranks of this process, now or when the queue runs.
bool RankMemory::prepareWeight(int64_t index, const std::vector<HostTensor> &parameters,
                               PackingQueue &queue, std::string &error) {
  Parts &parts = prepared[index];
  const PreparedWeight &weight = description.prepared[index];
  int64_t bytes = sizeOfPacked(weight.packing);
  if (parts.empty() && !allocateParts(description.getValue(weight), bytes, parts))
    return false;
  float largest = 0;
  std::shared_ptr<const HostTensor> tensor = std::make_shared<HostTensor>();
  if (weight.kind == ProgramArgument::Parameter) {
    tensor = getPresent(parameters[weight.index], error);
    if (tensor)
      error = measureWeight(weight.packing, *tensor, largest);
    if (!error.empty()) {
      error = "parameter '" + description.getValue(weight).name + "': " + error;
      parts.clear();
      queue.run(countThreads());
      return false;
    }
  }
  Memory scratch;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!parts[r].writable)
      continue;
    auto *local = static_cast<const char *>(getUnpacked(weight, r, *tensor, scratch, error));
    if (local && inHostMemory && local != scratch.get()) {
      queue.add(weight.packing, local + weight.offset, parts[r].writable, largest);
      continue;
    }
    auto write = [&](char *to) {
      pack(weight.packing, local + weight.offset, to, countThreads(), largest);
    };
    if (!local || !fillPart(r, parts[r].writable, bytes, write, error)) {
      // Ranks before this one may wait in the queue.
      queue.run(countThreads());
      parts.clear();
      return false;
    }
  }
  isStale[index] = false;
  return true;
}

/// Packs the weights that an entry reads, and that are not packed or may have other values since.
bool RankMemory::prepareWeights(const EntryDescription &entry,
                                const std::vector<HostTensor> &parameters, std::string &error) {
  PackingQueue queue;
  bool isFine = true;
  std::optional<Progress> progress;
  if (int64_t count = std::count_if(entry.prepared.begin(), entry.prepared.end(),
                                    [&](int64_t i) { return prepared[i].empty(); }))
    progress.emplace("packing weights", count);
  for (int64_t index : entry.prepared) {
    if (!prepared[index].empty() && !isStale[index])
      continue;
    if (isInterrupted()) {
      error = kInterrupted;
      isFine = false;
    }
    isFine = isFine && prepareWeight(index, parameters, queue, error);
    if (!isFine)
      break;
    if (queue.getBytes() >= kQueuedBytes)
      queue.run(countThreads());
    if (progress)
      progress->step();
  }
  queue.run(countThreads());
  return isFine;
}

/// Notes that a state may have a new value.
void RankMemory::setStale(int64_t state) {
  for (size_t p = 0; p < description.prepared.size(); ++p)
    if (description.prepared[p].isOf(ProgramArgument::State, state))
      isStale[p] = true;
}

} // namespace meshwright::rt
