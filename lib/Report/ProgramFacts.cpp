//===- ProgramFacts.cpp - peaks and layers of a plan ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/ProgramFacts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/MathExtras.h"

#include <set>

using namespace meshwright;

std::string meshwright::getLayerName(llvm::StringRef module) {
  size_t end = 0;
  while (end < module.size()) {
    size_t next = std::min(module.find('.', end), module.size());
    llvm::StringRef word = module.slice(end, next);
    if (!word.empty() && llvm::all_of(word, llvm::isDigit))
      return module.take_front(next).str();
    end = next + 1;
  }
  return module.empty() ? "outside modules" : module.str();
}

//===----------------------------------------------------------------------===//
// The peak of the arena
//===----------------------------------------------------------------------===//

/// Offsets in an arena are multiples of this (rt::kBufferAlignment).
constexpr int64_t kAlignment = 64;

static int64_t getPlaceBytes(const ProgramFacts::Buffer &buffer) {
  return int64_t(llvm::alignTo(uint64_t(std::max<int64_t>(buffer.bytes, 1)), kAlignment));
}

/// Bytes of the arena that buffers cover together.
static int64_t getCovered(const ProgramFacts &facts, const std::set<int64_t> &alive) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (int64_t i : alive)
    places.emplace_back(facts.buffers[i].offset,
                        facts.buffers[i].offset + getPlaceBytes(facts.buffers[i]));
  llvm::sort(places);
  int64_t covered = 0, end = 0;
  for (auto [begin, stop] : places) {
    covered += std::max<int64_t>(0, stop - std::max(begin, end));
    end = std::max(end, stop);
  }
  return covered;
}

std::optional<ProgramFacts::Peak> meshwright::findPeak(const ProgramFacts &facts) {
  size_t count = facts.launches.size();
  std::vector<std::vector<int64_t>> begins(count), ends(count + 1);
  for (auto [i, buffer] : llvm::enumerate(facts.buffers)) {
    begins[buffer.first].push_back(i);
    ends[buffer.last + 1].push_back(i);
  }
  std::set<int64_t> alive;
  int64_t together = 0;
  std::optional<ProgramFacts::Peak> best;
  for (size_t launch = 0; launch < count; ++launch) {
    for (int64_t i : ends[launch]) {
      alive.erase(i);
      together -= getPlaceBytes(facts.buffers[i]);
    }
    for (int64_t i : begins[launch]) {
      alive.insert(i);
      together += getPlaceBytes(facts.buffers[i]);
    }
    // Buffers may share a place, so they cover at most the sum of their bytes.
    if (best && together <= best->bytes)
      continue;
    int64_t covered = getCovered(facts, alive);
    if (best && covered <= best->bytes)
      continue;
    best = {int64_t(launch), covered, {alive.begin(), alive.end()}};
  }
  if (best)
    llvm::sort(best->buffers, [&](int64_t a, int64_t b) {
      return std::pair(-facts.buffers[a].bytes, a) < std::pair(-facts.buffers[b].bytes, b);
    });
  return best;
}

//===----------------------------------------------------------------------===//
// Layers
//===----------------------------------------------------------------------===//

std::vector<ProgramFacts::Layer>
meshwright::addUpLayers(const ProgramFacts &facts, llvm::ArrayRef<TensorLayout> layouts) {
  std::vector<ProgramFacts::Layer> layers;
  llvm::StringMap<size_t> index;
  auto get = [&](const std::string &name) -> ProgramFacts::Layer & {
    auto [entry, isNew] = index.try_emplace(name, layers.size());
    if (isNew)
      layers.emplace_back().name = name;
    return layers[entry->second];
  };
  for (const ProgramFacts::Launch &launch : facts.launches) {
    ProgramFacts::Layer &layer = get(launch.layer);
    layer.flops += launch.flops;
    if (launch.kind == "collective") {
      ++layer.collectives;
      layer.sent += launch.bytes;
      layer.exposed += launch.exposed;
      layer.hidden += std::max(0.0, launch.seconds - launch.exposed);
      continue;
    }
    ++layer.kernels;
    layer.seconds += launch.seconds;
    if (launch.least)
      layer.least = layer.least.value_or(0) + *launch.least;
  }
  for (const ProgramFacts::Buffer &buffer : facts.buffers)
    get(facts.launches[buffer.launch].layer).written += buffer.bytes;
  for (const TensorLayout &layout : layouts) {
    if (layout.role != "parameter")
      continue;
    auto known = index.find(getLayerName(llvm::StringRef(layout.name).rsplit('.').first));
    if (known != index.end())
      layers[known->second].weights += layout.bytes;
  }
  return layers;
}
