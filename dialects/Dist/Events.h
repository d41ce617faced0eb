//===- Events.h - the events that conditions of padding name ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_EVENTS_H
#define MESHWRIGHT_DIALECTS_DIST_EVENTS_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SmallVector.h"

#include <map>
#include <unordered_map>
#include <vector>

namespace meshwright::padding {

/// The events that conditions of padding name (`Padding::cause`), each stored once. Two conditions
/// name one event exactly if their numbers are equal, but for the bit that tells whether they rise.
///
/// An event tells of the elements of a *base*, a value for example, that one of them is not finite.
/// It says which: each dimension of the value whose padding depends on the event has a coordinate
/// of the base, or none. At an index of that value, the event is that there is such an element with
/// these coordinates. Coordinates that no dimension has may be any.
///
/// - "x[i, k] is not finite" is an event of a value with the dimensions (i, k). A sum over k makes
///   it "there is a k for which x[i, k] is not finite", an event of a value with the dimension (i).
/// - Rows that move make another event. Row i of x is no row i of x without its first row.
///
/// Events are numbers, since the contents that name them are copied often. Numbers of different
/// tables have nothing in common.
class EventTable {
public:
  /// The event that `what` is true of the element of a value at the same index.
  uint32_t get(llvm::StringRef what, size_t value, unsigned rank);
  /// The event of a value whose dimension d is dimension `dims[d]` of the value before; -1 if it is
  /// none of them. Dimensions that are absent are those over which the new value combines all
  /// elements. Keeps the bit of the condition.
  uint32_t move(uint32_t cause, llvm::ArrayRef<int> dims);
  /// The event that an op makes of another one by moving elements. It equals the one that another
  /// op makes of the same event with the same description. The new value has `rank` dimensions, of
  /// which it depends on those for which `depends` is true. Keeps the bit of the condition.
  uint32_t derive(uint32_t cause, llvm::StringRef how, llvm::ArrayRef<int64_t> numbers,
                  unsigned rank, llvm::function_ref<bool(unsigned)> depends);
  /// The event that either of two events of one value happened.
  uint32_t join(uint32_t a, uint32_t b);
  /// Returns true if the event is another one at other indices of a dimension.
  bool dependsOn(uint32_t cause, unsigned dim) const;

  /// Makes a table the one that arithmetic on contents uses (`padding::meet`), in this thread.
  class Scope {
  public:
    explicit Scope(EventTable &table) : previous(current) { current = &table; }
    ~Scope() { current = previous; }
    Scope(const Scope &) = delete;

  private:
    EventTable *previous;
  };
  /// The table of the innermost scope. There must be one.
  static EventTable &getCurrent();

private:
  /// Words that describe a base or an event. Equal ones are the same.
  using Key = std::vector<int64_t>;
  /// An event of a base, or a *join*: that one of several such events happened.
  ///
  /// Events along a residual stream are joined of ever more causes: each layer adds some. So joins are tries over
  /// the numbers of their causes, whose nodes are shared (Okasaki and Gill, "Fast Mergeable Integer Maps", 1998):
  /// one with a cause more takes as many new nodes as the number has bits, and equal sets have one trie.
  struct Event {
    /// The coordinate of the base that each dimension has; -1 for none. For a join -1 where no cause has one.
    llvm::SmallVector<int, 4> coordinates;
    int64_t base = 0;
    /// Two joins or events of a base, of which the first has the causes with lower numbers. 0 in an event of a base.
    uint32_t low = 0, high = 0;
    /// The highest bit in which the numbers of the causes differ, and their bits above it.
    uint32_t bit = 0, prefix = 0;

    bool isJoin() const { return low != 0; }
  };

  struct KeyHash {
    size_t operator()(const Key &key) const { return llvm::hash_combine_range(key.begin(), key.end()); }
  };

  const Event &at(uint32_t cause) const { return events[cause / kStep - 1]; }
  uint32_t intern(Event event);
  /// The join of events of which `low` has the causes with lower numbers.
  uint32_t makeJoin(uint32_t low, uint32_t high);
  uint32_t unite(uint32_t a, uint32_t b);
  uint32_t moveEvent(uint32_t cause, llvm::ArrayRef<int> dims);
  int64_t getWord(llvm::StringRef text);
  int64_t getBase(Key key);

  /// The lowest bits belong to the condition (see makeEvent).
  static constexpr uint32_t kStep = 4;
  static thread_local EventTable *current;
  std::vector<Event> events;
  std::unordered_map<Key, uint32_t, KeyHash> known;
  std::unordered_map<Key, int64_t, KeyHash> bases;
  /// Moves and joins of before. Many ops move or join the same parts of joins.
  std::unordered_map<Key, uint32_t, KeyHash> moved;
  llvm::DenseMap<std::pair<uint32_t, uint32_t>, uint32_t> joined;
  std::map<std::string, int64_t, std::less<>> words;
};

} // namespace meshwright::padding

#endif // MESHWRIGHT_DIALECTS_DIST_EVENTS_H
