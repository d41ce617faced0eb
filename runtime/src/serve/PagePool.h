//===- PagePool.h - the pages of a group of requests ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SERVE_PAGEPOOL_H
#define MESHWRIGHT_RUNTIME_SRC_SERVE_PAGEPOOL_H

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::rt {

/// The pages of one group: which are free, how many requests use each, and which whole pages hold
/// which beginnings.
///
/// - A page is in use (it has references), kept (registered, without references) or free. Free and
///   kept pages can be taken; free ones are taken first, then the least recently used kept one.
/// - A registered page is whole, and is not written any more. A page in use that is not registered
///   has one reference: its owner alone writes it.
/// - Registered pages form trees: a page stands for its tokens behind those of its parent. No two
///   of one parent have the same tokens. They are compared by the tokens themselves, not by a hash.
/// - A request that uses a registered page uses its parent, and releases it later. So a page in use
///   has no parent that is kept, and among kept pages a page goes before its parent.
/// - Pages are dealt: the pool is `deal` equal ranges of pages, and block b of a request is in
///   range b mod `deal`. A rank of a cache by sequence holds a range.
/// - Between `keep` and `undo` all changes are logged; `undo` takes them back, in each list to the
///   same place.
///
/// All functions take constant time for each page that changes. The constructor allocates all
/// memory but that of the log.
class PagePool {
public:
  /// `pages` is a multiple of `deal`. Without `shares` no page is ever registered.
  PagePool(int64_t pages, int64_t pageSize, int64_t deal, bool shares);

  int64_t countPages() const { return int64_t(references.size()); }
  /// The pages that no request uses.
  int64_t countFree() const;
  int64_t countReferences(int64_t page) const { return references[page]; }
  bool isRegistered(int64_t page) const { return depths[page] > 0; }
  int64_t getRange(int64_t page) const { return page / rangeSize; }

  /// Returns true if the blocks [first, last) can be taken after the pages in `found` are shared.
  bool canTake(int64_t first, int64_t last, const std::vector<int64_t> &found) const;
  /// Takes a page for a block of a request. Returns -1 if there is none.
  int64_t take(int64_t block);
  /// Returns the registered page of these tokens, a whole page, behind a parent, or -1. The parent
  /// of a first page is -1.
  int64_t find(int64_t parent, const int64_t *tokens) const;
  /// Adds a reference to a registered page.
  void share(int64_t page);
  /// Releases the pages of a request, the last one first.
  void release(const std::vector<int64_t> &pages);
  /// Registers a page that its owner has filled. Returns the page that holds the tokens from now
  /// on: another one, with a reference more, if they are registered already. The page is then free.
  /// Changes of the log must be kept before.
  int64_t enter(int64_t parent, const int64_t *tokens, int64_t page);

  /// Makes the changes permanent, or takes them back.
  void keep() { log.clear(); }
  void undo();

  /// The pool in a form that can be saved.
  struct Saved {
    struct Page {
      int64_t page, parent;
      std::vector<int64_t> tokens;
    };
    /// By range, in the order of the list; the last one is taken first.
    std::vector<std::vector<int64_t>> free;
    /// The least recently used one first.
    std::vector<int64_t> kept;
    /// Parents first.
    std::vector<Page> registered;
  };
  Saved save() const;
  /// Sets the pool from a saved one and the pages of the requests that use it. Returns false, with
  /// an error, if an invariant does not hold; the pool is then as it was.
  bool restore(const Saved &saved, const std::vector<std::vector<int64_t>> &used,
               std::string &error);

private:
  enum class Change { Taken, Evicted, Shared, Released };
  struct Record {
    Change change;
    int64_t page;
    /// Of a page that was evicted: its depth. Of one that was kept: the page before it.
    int64_t before;
  };

  void release(int64_t page);
  void evict();
  void link(int64_t page, int64_t before);
  void unlink(int64_t page);
  void addToTable(int64_t page, int64_t depth);
  void removeFromTable(int64_t page);
  uint64_t getSlot(int64_t parent, const int64_t *tokens) const;
  int64_t *getTokens(int64_t page) { return tokens.data() + page * pageSize; }
  const int64_t *getTokens(int64_t page) const { return tokens.data() + page * pageSize; }

  int64_t pageSize, deal, rangeSize;
  bool shares;
  std::vector<int64_t> references;
  /// By range.
  std::vector<std::vector<int64_t>> free;
  /// The kept pages, as a ring that begins at the index behind the last page, and their number by
  /// range.
  std::vector<int64_t> previous, next, numKept;
  /// Of registered pages. The depth of others is 0.
  std::vector<int64_t> parents, depths, tokens;
  /// A hash table of registered pages: the first page of each slot, and the page behind each.
  std::vector<int64_t> slots, chains;
  std::vector<Record> log;
};

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SERVE_PAGEPOOL_H
