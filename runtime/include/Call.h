//===- Call.h - the steps of a call -----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A call of an entry runs a few functions, one after another: these are its steps. Inputs and
// outputs of the call are those of all steps, joined by name.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_CALL_H
#define MESHWRIGHT_RUNTIME_INCLUDE_CALL_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// A step of a call. It runs one function on each of its chunks in turn.
/// - A chunk of an input or an output is a contiguous part of its dimension 0. Values without
///   dimensions, and whole inputs, are the same in all runs.
/// - The function runs on a chunk `times` times, or until its output `until` is true. Each run
///   replaces the outputs of the one before.
struct CallStep {
  /// The index of the function in the program's list of entries.
  int64_t entry = 0;
  int64_t chunks = 1;
  int64_t times = 1;
  /// The index of an output of type i1 without dimensions, or -1.
  int64_t until = -1;

  /// The most runs that the step makes.
  int64_t getRuns() const { return chunks * times; }
};

/// The inputs, or the outputs, of a call.
template <typename Value> struct CallPorts {
  /// The place of an input of a step's function: a value of the call, and the number of the value's
  /// chunk that the first run of the step is given. -1 stands for all of the value.
  struct Use {
    size_t value = 0;
    int64_t chunk = -1;
  };
  std::vector<Value> values;
  /// The indices are a step and an input of its function.
  std::vector<std::vector<Use>> uses;
};

/// Joins the inputs, or the outputs, of the functions of steps by name. The values of the last
/// step, which is the entry itself, come first. A value has the chunks of all steps that have it, in
/// the order of steps. `isCut` says whether a value is given in chunks. Values of one name have one
/// shape, and all or none of them are cut.
template <typename Value, typename Predicate>
CallPorts<Value> joinPorts(const std::vector<std::vector<Value>> &functions,
                           const std::vector<int64_t> &chunks, Predicate isCut) {
  CallPorts<Value> joined;
  auto find = [&](const Value &value) -> size_t {
    auto known = std::find_if(joined.values.begin(), joined.values.end(),
                              [&](const Value &other) { return other.name == value.name; });
    if (known == joined.values.end())
      known = joined.values.insert(known, value);
    return known - joined.values.begin();
  };
  for (const Value &value : functions.back())
    find(value);
  joined.uses.resize(functions.size());
  std::vector<int64_t> counts;
  for (size_t step = 0; step < functions.size(); ++step)
    for (const Value &value : functions[step]) {
      size_t place = find(value);
      counts.resize(joined.values.size());
      joined.uses[step].push_back({place, isCut(value) ? counts[place] : -1});
      counts[place] += isCut(value) ? chunks[step] : 0;
    }
  for (size_t i = 0; i < joined.values.size(); ++i)
    if (counts[i] > 0)
      joined.values[i].shape[0] *= counts[i];
  return joined;
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_CALL_H
