//===- Events.cpp - the events that conditions of padding name ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"

#include "meshwright/dialects/Dist/Padding.h"

#include "llvm/ADT/STLExtras.h"

#include <cassert>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::padding;

thread_local EventTable *EventTable::current = nullptr;

EventTable &EventTable::getCurrent() {
  assert(current && "arithmetic on conditional contents needs a table of events");
  return *current;
}

int64_t EventTable::getWord(StringRef text) {
  return words.try_emplace(text.str(), words.size()).first->second;
}

int64_t EventTable::getBase(Key key) {
  return bases.try_emplace(std::move(key), bases.size()).first->second;
}

uint32_t EventTable::intern(Event event) {
  Key key;
  if (event.causes.empty()) {
    key = {0, event.base};
    key.insert(key.end(), event.coordinates.begin(), event.coordinates.end());
  } else {
    key = {1};
    key.insert(key.end(), event.causes.begin(), event.causes.end());
  }
  auto [it, isNew] = known.try_emplace(std::move(key), 0);
  if (isNew) {
    events.push_back(std::move(event));
    it->second = makeEvent(events.size() * kStep);
  }
  return it->second;
}

uint32_t EventTable::get(StringRef what, size_t value, unsigned rank) {
  Event event;
  event.base = getBase({getWord(what), int64_t(value)});
  for (unsigned d = 0; d < rank; ++d)
    event.coordinates.push_back(d);
  return intern(std::move(event));
}

/// The event `number` in a condition that rises if that of `cause` does.
static uint32_t withBitOf(uint32_t cause, uint32_t number) {
  return (number | 1) & ~(~cause & 1);
}

uint32_t EventTable::move(uint32_t cause, ArrayRef<int> dims) {
  Key key = {int64_t(cause | 1)};
  key.insert(key.end(), dims.begin(), dims.end());
  if (auto it = moved.find(key); it != moved.end())
    return withBitOf(cause, it->second);
  uint32_t event = moveEvent(cause | 1, dims);
  moved.try_emplace(std::move(key), event);
  return withBitOf(cause, event);
}

uint32_t EventTable::moveEvent(uint32_t cause, ArrayRef<int> dims) {
  // Interning may move the events in memory.
  Event event = at(cause);
  if (event.causes.empty()) {
    SmallVector<int, 4> coordinates;
    for (int d : dims)
      coordinates.push_back(d < 0 ? -1 : event.coordinates[d]);
    event.coordinates = std::move(coordinates);
    return intern(std::move(event));
  }
  for (uint32_t &one : event.causes)
    one = move(one, dims);
  return joinAll(std::move(event.causes));
}

uint32_t EventTable::derive(uint32_t cause, StringRef how, ArrayRef<int64_t> numbers,
                            unsigned rank, function_ref<bool(unsigned)> depends) {
  Key key = {getWord(how), int64_t(cause | 1)};
  key.insert(key.end(), numbers.begin(), numbers.end());
  Event event;
  event.base = getBase(std::move(key));
  for (unsigned d = 0; d < rank; ++d)
    event.coordinates.push_back(depends(d) ? int(d) : -1);
  return withBitOf(cause, intern(std::move(event)));
}

uint32_t EventTable::joinAll(SmallVector<uint32_t, 2> causes) {
  llvm::sort(causes);
  causes.erase(llvm::unique(causes), causes.end());
  if (causes.size() == 1)
    return causes.front();
  Event event;
  event.causes = std::move(causes);
  return intern(std::move(event));
}

uint32_t EventTable::join(uint32_t a, uint32_t b) {
  auto [it, isNew] = joined.try_emplace(std::minmax(a | 1, b | 1));
  if (!isNew)
    return it->second;
  SmallVector<uint32_t, 2> causes;
  for (uint32_t cause : {a, b}) {
    const Event &own = at(cause);
    if (own.causes.empty())
      causes.push_back(cause | 1);
    else
      causes.append(own.causes);
  }
  return it->second = joinAll(std::move(causes));
}

bool EventTable::dependsOn(uint32_t cause, unsigned dim) const {
  const Event &event = at(cause);
  if (event.causes.empty())
    return event.coordinates[dim] >= 0;
  return llvm::any_of(event.causes, [&](uint32_t one) { return dependsOn(one, dim); });
}
