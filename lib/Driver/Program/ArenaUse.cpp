//===- ArenaUse.cpp - bytes of the arena in use, step by step -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Program/Step.h"

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ProgramMap.h"

using namespace mlir;

namespace meshwright::lower {

namespace {
/// A value in the arena, from its writer to its last reader.
struct Place {
  int64_t begin, end;
  size_t first, last;
};
} // namespace

/// The values of the steps in the arena. A view is part of the place that has its beginning.
static std::vector<Place> findPlaces(ArrayRef<Step> steps, ValueRange results, llvm::function_ref<Storage(Value)> getStorage) {
  // An op may have several steps: a collective reads and writes until its wait.
  ProgramMap<Operation *, size_t> lastSteps;
  for (auto [i, step] : llvm::enumerate(steps))
    lastSteps[step.op] = i;
  std::vector<Place> places;
  // By its beginning the place that a value of it had last.
  std::map<int64_t, size_t> known;
  auto read = [&](Value value, size_t last) {
    Storage storage = getStorage(value);
    auto behind = known.upper_bound(storage.index + storage.offset);
    if (storage.kind != Storage::Arena || behind == known.begin())
      return;
    Place &place = places[std::prev(behind)->second];
    place.last = std::max(place.last, last);
  };
  for (auto [i, step] : llvm::enumerate(steps)) {
    size_t last = lastSteps.lookup(step.op);
    for (Value input : step.inputs)
      if (input)
        read(input, last);
    for (Value output : step.outputs) {
      Storage storage = getStorage(output);
      if (storage.kind != Storage::Arena)
        continue;
      int64_t begin = storage.index + storage.offset;
      known[begin] = places.size();
      int64_t bytes = llvm::alignTo(std::max<int64_t>(getTensorBytes(output.getType()), 1), rt::kBufferAlignment);
      places.push_back({begin, begin + bytes, i, last});
    }
  }
  // The caller copies results out of the arena.
  for (Value result : results)
    read(result, steps.size() - 1);
  return places;
}

std::vector<int64_t> countArena(ArrayRef<Step> steps, ValueRange results, llvm::function_ref<Storage(Value)> getStorage) {
  std::vector<Place> places = findPlaces(steps, results, getStorage);
  std::vector<SmallVector<size_t, 2>> begins(steps.size()), ends(steps.size() + 1);
  for (auto [i, place] : llvm::enumerate(places)) {
    begins[place.first].push_back(i);
    ends[place.last + 1].push_back(i);
  }
  std::vector<int64_t> used;
  // The alive places by beginning. One that is written over, in place, ends there.
  std::map<int64_t, size_t> alive;
  int64_t bytes = 0;
  auto end = [&](std::map<int64_t, size_t>::iterator it) {
    bytes -= places[it->second].end - it->first;
    return alive.erase(it);
  };
  for (size_t step = 0; step < steps.size(); ++step) {
    for (size_t i : ends[step])
      if (auto it = alive.find(places[i].begin); it != alive.end() && it->second == i)
        end(it);
    for (size_t i : begins[step]) {
      auto it = alive.lower_bound(places[i].begin);
      if (it != alive.begin() && places[std::prev(it)->second].end > places[i].begin)
        --it;
      while (it != alive.end() && it->first < places[i].end)
        it = end(it);
      alive[places[i].begin] = i;
      bytes += places[i].end - places[i].begin;
    }
    used.push_back(bytes);
  }
  return used;
}

} // namespace meshwright::lower
