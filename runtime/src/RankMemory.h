//===- RankMemory.h - the memory of ranks -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKMEMORY_H
#define MESHWRIGHT_RUNTIME_SRC_RANKMEMORY_H

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/include/Program.h"

#include <memory>
#include <string>
#include <vector>

namespace meshwright::rt {

/// The memory of a program on the ranks of this process: arenas, parts of arguments, packed
/// parameters and constants.
///
/// - All of it is memory of the ranks' devices.
/// - If that is the host's memory, ranks with equal parts share one copy, and an array of the
///   host that a rank needs whole and as it is stored is read in place.
/// - Otherwise each rank has its own copies, which are filled from a staging buffer of the
///   host.
/// - Between runs an argument stays until `forget`; inputs are filled again by each run.
class RankMemory {
public:
  /// Both must outlive it.
  RankMemory(const ProgramDescription &description, World &world);

  /// Forgets an argument and what was packed from it.
  void forget(int64_t argument);
  /// Gives a rank its part of a parameter, as it is stored (an index in the description's
  /// `arguments`) or packed (in `prepared`).
  bool setPlaced(int64_t argument, int64_t rank, Bytes part, std::string &error);
  bool setPrepared(int64_t prepared, int64_t rank, Bytes part, std::string &error);

  /// Bytes of the host's memory that `allocateArenas` and `fill` still have to allocate, or
  /// -1 if the number does not fit into 64 bits.
  int64_t getMissingBytes(const std::vector<HostTensor> &inputs,
                          const std::vector<HostTensor> &parameters) const;
  bool allocateArenas(std::string &error);
  /// Fills arguments, packed parameters and constants. Returns false with an empty error if
  /// there is no memory.
  bool fill(const std::vector<HostTensor> &inputs, const std::vector<HostTensor> &parameters,
            std::string &error);
  /// The addresses of all that, for a run.
  std::vector<RankBuffers> getBuffers() const;

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
  /// A rank's part of an argument or a packed parameter.
  struct Part {
    std::shared_ptr<const void> data;
    /// The same address if this part is ours to fill, or null.
    char *writable = nullptr;
  };
  /// One for each rank of this process; empty before the first run.
  using Parts = std::vector<Part>;

  Device &getDevice(size_t position) const { return world.getDevice(ranks[position]); }
  bool readsInPlace(const ProgramValue &value, const HostTensor &tensor) const;
  bool isFirstHere(const ProgramValue &value, size_t position) const;
  int64_t countCopies(const ProgramValue &value) const;
  bool allocateParts(const ProgramValue &value, int64_t bytes, Parts &parts) const;
  bool setPart(Parts &parts, int64_t rank, Bytes part, std::string &error);
  template <typename Write>
  bool fillPart(size_t position, char *to, int64_t bytes, Write write, std::string &error) const;
  bool placeArguments(const std::vector<HostTensor> &inputs,
                      const std::vector<HostTensor> &parameters, std::string &error);
  bool prepareParameters(const std::vector<HostTensor> &parameters, std::string &error);
  bool placeConstants(std::string &error);

  const ProgramDescription &description;
  World &world;
  /// Ranks of this process, in order. The next members have one entry for each.
  const std::vector<int64_t> ranks;
  /// Whether the devices' memory is the host's.
  const bool inHostMemory;
  std::vector<DeviceMemory> arenas;
  std::vector<std::vector<std::shared_ptr<const void>>> constants;
  /// By argument and by packed parameter.
  std::vector<Parts> placed, prepared;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKMEMORY_H
