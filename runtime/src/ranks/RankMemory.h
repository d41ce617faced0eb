//===- RankMemory.h - the memory of ranks -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_RANKMEMORY_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_RANKMEMORY_H

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/World.h"

#include <memory>
#include <string>
#include <vector>

namespace meshwright::rt {

/// The memory of a program on the ranks of this process: arenas, parameters, packed weights,
/// states, and the inputs and constants of each entry.
///
/// - All of it is memory of the ranks' devices.
/// - If that is the host's memory, ranks with equal parts share one copy, and an array of the
///   host that a rank needs whole and as it is stored is read in place. Arenas and states are
///   never shared.
/// - Otherwise each rank has its own copies, which are filled from a staging buffer of the
///   host.
/// - Entries share parameters, states and the arena, which is as large as the largest entry needs.
/// - Between runs a parameter stays until `forget`; inputs are filled again by each run.
class RankMemory {
public:
  /// Both must outlive it.
  RankMemory(const ProgramDescription &description, World &world);

  /// Forgets a parameter and what was packed from it.
  void forget(int64_t parameter);
  /// Gives a rank its part of a parameter, as it is stored or packed.
  bool setPlaced(int64_t parameter, int64_t rank, Bytes part, std::string &error);
  bool setPrepared(int64_t prepared, int64_t rank, Bytes part, std::string &error);

  /// Bytes of the host's memory that `allocateArenas` and `fill` still have to allocate, or
  /// -1 if the number does not fit into 64 bits.
  int64_t getMissingBytes(int64_t entry, const std::vector<HostTensor> &inputs,
                          const std::vector<HostTensor> &parameters, bool recovers) const;
  /// Returns false, with an error, if a device with memory of its own has too little for that.
  bool checkDevices(int64_t entry, const std::vector<HostTensor> &inputs,
                    const std::vector<HostTensor> &parameters, bool recovers,
                    std::string &error) const;
  bool allocateArenas(std::string &error);
  /// Returns memory of the first rank's device, at least `bytes` bytes, for what comes from ranks of
  /// other processes. The next call may return other memory. Returns null if there is none.
  char *getArriving(int64_t bytes);
  /// Allocates the memory that leaves states as they are if a call of the entry fails: second
  /// buffers and logs. Does nothing if it is there.
  bool allocateRecovery(int64_t entry, std::string &error);
  /// Fills all that an entry reads, except states, and packs the states again that were written
  /// since. The entry may write its states then. Returns false with an empty error if there is no
  /// memory.
  bool fill(int64_t entry, const std::vector<HostTensor> &inputs,
            const std::vector<HostTensor> &parameters, std::string &error);
  /// The addresses of all that, for a run. If it does not `recover`, it writes over the states
  /// and no logs.
  std::vector<RankBuffers> getBuffers(int64_t entry, bool recovers) const;
  /// Sets whether calls that recover leave transient states as they were, too. By default they
  /// write over them.
  void setKeepsTransient(bool keeps) { keepsTransient = keeps; }

  /// Allocates the state buffers. Does nothing if they are there.
  bool allocateStates(std::string &error);
  /// Calls `write` with memory of the host, which becomes the state of the rank at `position`.
  /// Returns false if that fails, with an empty error if there is no memory.
  template <typename Write>
  bool writeState(int64_t state, size_t position, Write write, std::string &error) {
    setStale(state);
    return fillPart(position, states[state][position].get(),
                    description.states[state].value.getLocalBytes(), write, error);
  }
  /// The state buffer of the rank at `position`, in the memory of its device.
  const void *getState(int64_t state, size_t position) const {
    return states[state][position].get();
  }
  /// The steps that make the results of a run the new states: copies by rank, then the exchange
  /// of second buffers for states.
  struct Commit {
    struct Copy {
      char *to;
      const char *from;
      int64_t bytes;
    };
    std::vector<std::vector<Copy>> copies;
    std::vector<DeviceMemory> staged;
    /// States whose values are in their second buffers, on all ranks.
    std::vector<int64_t> exchanged;
  };
  /// Prepares a commit, and changes no state. A result that is the buffer of another state, or a
  /// part of it, is copied aside.
  bool prepareCommit(const EntryDescription &entry, const std::vector<RankBuffers> &buffers,
                     Commit &commit, std::string &error) const;
  /// Performs a commit. Only a device that does not work any more makes it fail.
  bool perform(const Commit &commit, std::string &error);

  /// Returns memory of the host with the `bytes` at `data`, which the rank at `position`
  /// holds: `data` itself, or a copy in `scratch`. Returns null, with an error, if there is
  /// no memory or the copy fails.
  const void *read(size_t position, const void *data, int64_t bytes, Memory &scratch,
                   std::string &error) const;

  /// Marks all bytes of the arenas, so that `findTouched` sees which were written since.
  bool markArenas(std::string &error);
  /// Finds how far up a rank wrote its arena, up to alignment. A program that writes
  /// beyond its arena shows there, too.
  bool findTouched(int64_t &bytes, std::string &error) const;

private:
  /// A rank's part of an argument or a packed weight.
  struct Part {
    std::shared_ptr<const void> data;
    /// The same address if this part is ours to fill, or null.
    char *writable = nullptr;
  };
  /// One for each rank of this process; empty before the first run.
  using Parts = std::vector<Part>;

  Device &getDevice(size_t position) const { return world.getDevice(ranks[position]); }
  bool readsInPlace(const ProgramValue &value, const HostTensor &tensor) const;
  bool isRecovered(int64_t state) const {
    return keepsTransient || !description.states[state].isTransient;
  }
  bool isFirstHere(const ProgramValue &value, size_t position) const;
  int64_t countCopies(const ProgramValue &value) const;
  int64_t countMissing(int64_t entry, const std::vector<HostTensor> &inputs,
                       const std::vector<HostTensor> &parameters, bool recovers) const;
  bool allocateParts(const ProgramValue &value, int64_t bytes, Parts &parts) const;
  bool setPart(Parts &parts, int64_t rank, Bytes part, std::string &error);
  template <typename Write>
  bool fillPart(size_t position, char *to, int64_t bytes, Write write, std::string &error) const;
  bool placeTensor(const ProgramValue &value, const HostTensor &tensor, Parts &parts,
                   std::string &error);
  bool takePart(const ProgramValue &value, size_t position, char *to, const HostTensor &tensor,
                std::string &error) const;
  bool placeArguments(int64_t entry, const std::vector<HostTensor> &inputs,
                      const std::vector<HostTensor> &parameters, std::string &error);
  const void *getUnpacked(const PreparedWeight &weight, size_t position,
                          const HostTensor &tensor, Memory &scratch,
                          std::string &error) const;
  bool prepareWeight(int64_t index, const std::vector<HostTensor> &parameters, PackingQueue &queue,
                     std::string &error);
  bool prepareWeights(const EntryDescription &entry, const std::vector<HostTensor> &parameters,
                      std::string &error);
  void setStale(int64_t state);
  bool placeConstants(int64_t entry, std::string &error);
  bool allocateForState(int64_t state, int64_t bytes, std::vector<DeviceMemory> &buffers,
                        std::string &error);

  const ProgramDescription &description;
  World &world;
  /// Ranks of this process, in order.
  const std::vector<int64_t> ranks;
  /// True if the devices' memory is the host's.
  const bool inHostMemory;
  /// True if an entry reads a parameter as it is stored.
  const std::vector<bool> isRead;
  /// The bytes of an arena.
  int64_t arenaBytes = 0;
  /// By rank.
  std::vector<DeviceMemory> arenas;
  DeviceMemory arriving;
  int64_t arrivingBytes = 0;
  /// By entry and rank.
  std::vector<std::vector<std::vector<std::shared_ptr<const void>>>> constants;
  /// By entry and input.
  std::vector<std::vector<Parts>> inputParts;
  /// By parameter and by packed weight.
  std::vector<Parts> placed, prepared;
  /// For each packed weight, true if the state may have another value than what was packed.
  std::vector<bool> isStale;
  /// By state and rank; empty before `allocateStates`.
  std::vector<std::vector<DeviceMemory>> states;
  /// By state and rank; null before `allocateRecovery`. A log has the bytes that the largest entry
  /// needs.
  std::vector<std::vector<DeviceMemory>> seconds, logs;
  bool keepsTransient = false;
  std::vector<int64_t> logBytes;
};

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

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_RANKMEMORY_H
