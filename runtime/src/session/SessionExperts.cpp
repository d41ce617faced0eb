//===- SessionExperts.cpp - the load of experts in a call -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Session.h"

#include "meshwright-c/Runtime.h"

#include <algorithm>

namespace meshwright::rt {

/// For each layer of a rank: its number, first expert, dropped choices, and the rows of its experts.
static std::vector<int64_t> serialize(const std::map<int64_t, ExpertRows> &layers) {
  std::vector<int64_t> numbers;
  for (const auto &[layer, own] : layers) {
    numbers.insert(numbers.end(), {layer, own.first, own.dropped, int64_t(own.rows.size())});
    numbers.insert(numbers.end(), own.rows.begin(), own.rows.end());
  }
  return numbers;
}

static ExpertLoad &find(std::vector<ExpertLoad> &loads, int64_t layer, int64_t ranks) {
  auto at = std::lower_bound(loads.begin(), loads.end(), layer,
                             [](const ExpertLoad &a, int64_t b) { return a.layer < b; });
  if (at == loads.end() || at->layer != layer) {
    at = loads.insert(at, ExpertLoad());
    at->layer = layer;
    at->rowsPerRank.resize(ranks);
  }
  return *at;
}

/// Adds the loads of a run of a step to those of the call, in every process. All ranks see all choices
/// that a limit drops.
bool Session::gatherExperts(std::string &error) {
  if (description.calls.count(MW_RT_CALL_ROUTE) + description.calls.count(MW_RT_CALL_NOTE_ROWS) == 0)
    return true;
  std::map<int64_t, int64_t> dropped;
  for (int64_t rank = 0; rank < description.numRanks; ++rank) {
    bool isHere = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    std::vector<int64_t> numbers;
    if (isHere)
      numbers = serialize(world->getExperts(rank));
    if (isSplit()) {
      int64_t size = numbers.size();
      if (!world->getBackend().broadcast(rank, &size, sizeof(size), error))
        return false;
      numbers.resize(size);
      if (size && !world->getBackend().broadcast(rank, numbers.data(), size * sizeof(int64_t), error))
        return false;
    }
    for (size_t i = 0; i + 4 <= numbers.size();) {
      ExpertLoad &load = find(experts, numbers[i], description.numRanks);
      int64_t first = numbers[i + 1], count = numbers[i + 3];
      dropped[load.layer] = std::max(dropped[load.layer], numbers[i + 2]);
      i += 4;
      if (int64_t(load.rowsPerExpert.size()) < first + count)
        load.rowsPerExpert.resize(first + count);
      for (int64_t expert = 0; expert < count; ++expert, ++i) {
        load.rowsPerExpert[first + expert] += numbers[i];
        load.rowsPerRank[rank] += numbers[i];
      }
    }
  }
  for (auto [layer, count] : dropped)
    find(experts, layer, description.numRanks).dropped += count;
  return true;
}

} // namespace meshwright::rt
