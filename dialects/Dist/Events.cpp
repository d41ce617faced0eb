//===- Events.cpp - the events that conditions of padding name ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"

#include "meshwright/dialects/Dist/Padding.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/bit.h"

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
  Key key = {event.isJoin(), event.isJoin() ? event.low : event.base};
  if (event.isJoin())
    key.push_back(event.high);
  else
    key.insert(key.end(), event.coordinates.begin(), event.coordinates.end());
  auto [it, isNew] = known.try_emplace(std::move(key), 0);
  if (isNew) {
    it->second = makeEvent((events.size() + 1) * kStep);
    if (!event.isJoin())
      event.prefix = it->second;
    events.push_back(std::move(event));
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
  if (event.isJoin()) {
    uint32_t low = move(event.low, dims);
    return join(low, move(event.high, dims));
  }
  SmallVector<int, 4> coordinates;
  for (int d : dims)
    coordinates.push_back(d < 0 ? -1 : event.coordinates[d]);
  event.coordinates = std::move(coordinates);
  return intern(std::move(event));
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

uint32_t EventTable::makeJoin(uint32_t low, uint32_t high) {
  const Event &a = at(low), &b = at(high);
  Event event;
  event.low = low;
  event.high = high;
  event.bit = llvm::bit_floor(a.prefix ^ b.prefix);
  event.prefix = a.prefix & ~(2 * event.bit - 1);
  for (auto [first, second] : llvm::zip_longest(a.coordinates, b.coordinates))
    event.coordinates.push_back(std::max(first.value_or(-1), second.value_or(-1)));
  return intern(std::move(event));
}

uint32_t EventTable::join(uint32_t a, uint32_t b) {
  a |= 1;
  b |= 1;
  if (a == b)
    return a;
  if (auto it = joined.find(std::minmax(a, b)); it != joined.end())
    return it->second;
  uint32_t both = unite(a, b);
  return joined[std::minmax(a, b)] = both;
}

/// The join of two events that differ.
uint32_t EventTable::unite(uint32_t a, uint32_t b) {
  // Interning may move the events in memory.
  struct Node {
    uint32_t low, high, bit, prefix;

    /// Returns true if a number, or all numbers with this prefix, belong below the node.
    bool covers(const Node &other) const {
      return bit > other.bit && (other.prefix & ~(2 * bit - 1)) == prefix;
    }
  };
  auto nodeOf = [&](uint32_t event) {
    const Event &own = at(event);
    return Node{own.low, own.high, own.bit, own.prefix};
  };
  Node first = nodeOf(a), second = nodeOf(b);
  if (second.covers(first)) {
    std::swap(first, second);
    std::swap(a, b);
  }
  if (first.covers(second)) {
    bool isHigh = second.prefix & first.bit;
    uint32_t low = isHigh ? first.low : join(first.low, b);
    return makeJoin(low, isHigh ? join(first.high, b) : first.high);
  }
  if (first.bit && first.bit == second.bit && first.prefix == second.prefix) {
    uint32_t low = join(first.low, second.low);
    return makeJoin(low, join(first.high, second.high));
  }
  return first.prefix < second.prefix ? makeJoin(a, b) : makeJoin(b, a);
}

bool EventTable::dependsOn(uint32_t cause, unsigned dim) const { return at(cause).coordinates[dim] >= 0; }
