//===- BundleWeights.cpp - weights that a bundle lacks --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BundleWeights.h"

#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/RandomWeights.h"
#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/WeightsHash.h"

namespace meshwright::rt {

std::string checkWeights(const Manifest &manifest, const BundleWeights &weights) {
  bool isGiven = !weights.file.empty() || weights.seed;
  if (!weights.file.empty() && weights.seed)
    return "a file of weights and a seed of random ones: expected one of them";
  if (manifest.hasWeights && isGiven)
    return std::string("the bundle has its weights: expected no ") +
           (weights.seed ? "random weights" : "file of weights");
  if (!manifest.hasWeights && !isGiven && !manifest.description.tensors.empty())
    return "the bundle has no weights: expected a file of weights or a seed of random ones";
  return "";
}

bool packPart(const PreparedWeight &prepared, const ProgramValue &value, int64_t rank,
              const HostTensor &tensor, float largest, char *to) {
  Memory local = allocate(value.getLocalBytes());
  if (!local)
    return false;
  place(value, rank, tensor, local.get());
  pack(prepared.packing, local.get() + prepared.offset, to, /*threads=*/1, largest);
  return true;
}

std::string measureParameter(const PreparedWeight &prepared, const ProgramValue &value,
                             const HostTensor &tensor, float &largest) {
  std::string error = measureWeight(prepared.packing, tensor, largest);
  return error.empty() ? "" : "parameter '" + value.name + "': " + error;
}

namespace {

/// Gives one tensor to the ranks of a session.
class Giver {
public:
  Giver(Session &session, const HostTensor &tensor, std::string &error)
      : session(session), program(session.getDescription()), tensor(tensor), error(error) {}

  bool giveParameter(int64_t index, bool isRead);
  bool giveState(int64_t index);

private:
  /// Calls `give` with each rank of this process and its part, which `fill` writes. Ranks that hold
  /// the same part share it.
  template <typename Fill, typename Give>
  bool forRanks(const ProgramValue &value, int64_t bytes, Fill fill, Give give);
  bool forPlaced(const ProgramValue &value, const std::function<bool(int64_t, Bytes)> &give);

  Session &session;
  const ProgramDescription &program;
  const HostTensor &tensor;
  std::string &error;
};

} // namespace

template <typename Fill, typename Give>
bool Giver::forRanks(const ProgramValue &value, int64_t bytes, Fill fill, Give give) {
  std::map<int64_t, Bytes> parts;
  for (int64_t rank : session.getRanks()) {
    Bytes &part = parts[value.getHolder(rank)];
    if (!part.data) {
      std::shared_ptr<char> memory = allocate(bytes);
      if (!memory || !fill(rank, memory.get())) {
        error = "no memory for the " + formatBytes(bytes) + " of '" + value.name + "' on rank " +
                std::to_string(rank);
        return false;
      }
      part = {std::move(memory), bytes};
    }
    if (!give(rank, part))
      return false;
  }
  return true;
}

bool Giver::forPlaced(const ProgramValue &value, const std::function<bool(int64_t, Bytes)> &give) {
  return forRanks(
      value, value.getLocalBytes(),
      [&](int64_t rank, char *to) {
        place(value, rank, tensor, to);
        return true;
      },
      give);
}

bool Giver::giveParameter(int64_t index, bool isRead) {
  const ProgramValue &value = program.parameters[index];
  error = checkParameter(value, tensor);
  if (!error.empty())
    return false;
  if (isRead && !forPlaced(value, [&](int64_t rank, Bytes part) {
        return session.setPlaced(index, rank, std::move(part), error);
      }))
    return false;
  for (size_t i = 0; i < program.prepared.size(); ++i) {
    const PreparedWeight &prepared = program.prepared[i];
    if (!prepared.isOf(ProgramArgument::Parameter, index))
      continue;
    float largest = 0;
    error = measureParameter(prepared, value, tensor, largest);
    if (!error.empty() ||
        !forRanks(
            value, sizeOfPacked(prepared.packing),
            [&](int64_t rank, char *to) {
              return packPart(prepared, value, rank, tensor, largest, to);
            },
            [&](int64_t rank, Bytes part) {
              return session.setPrepared(i, rank, std::move(part), error);
            }))
      return false;
  }
  return true;
}

bool Giver::giveState(int64_t index) {
  return forPlaced(program.states[index].value, [&](int64_t rank, Bytes part) {
    session.setInitial(index, rank, std::move(part));
    return true;
  });
}

bool giveWeights(Session &session, const BundleWeights &weights, std::string &error) {
  const ProgramDescription &program = session.getDescription();
  std::unique_ptr<SafeTensorsFile> file;
  if (!weights.file.empty() && !(file = SafeTensorsFile::open(weights.file, error)))
    return false;
  std::vector<bool> isRead = program.findReadParameters();
  WeightsHash hash;
  Progress progress(file ? "loading weights" : "drawing weights", program.tensors.size());
  for (const WeightTensor &needed : program.tensors) {
    Memory drawn;
    HostTensor tensor{needed.type, needed.shape, nullptr};
    if (file) {
      const auto *stored = file->findParameter(needed.name, needed.aliases, error);
      if (!stored)
        return false;
      tensor = {stored->type, stored->shape, stored->data};
    } else {
      drawn = drawWeight(needed, weights.seed.value_or(0));
      if (!drawn) {
        error = "out of memory for parameter '" + needed.name + "'";
        return false;
      }
      tensor.data = drawn.get();
    }
    if (program.serving)
      hash.add(needed.name, tensor);
    Giver giver(session, tensor, error);
    for (size_t i = 0; i < program.parameters.size(); ++i)
      if (program.findTensor(program.parameters[i]) == &needed &&
          !giver.giveParameter(i, isRead[i]))
        return false;
    for (size_t i = 0; i < program.states.size(); ++i)
      if (const std::string &name = program.states[i].parameter; !name.empty())
        if (const ProgramValue &value = program.parameters[program.findParameter(name)];
            program.findTensor(value) == &needed && !giver.giveState(i))
          return false;
    progress.step();
  }
  session.setWeightsHash(hash.get());
  return true;
}

} // namespace meshwright::rt
