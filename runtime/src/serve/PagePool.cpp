//===- PagePool.cpp - the pages of a group of requests --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "PagePool.h"

#include "meshwright/runtime/src/bundle/Manifest.h"

#include <algorithm>

namespace meshwright::rt {

static constexpr int64_t kNone = -1;

PagePool::PagePool(int64_t pages, int64_t pageSize, int64_t deal, bool shares)
    : pageSize(pageSize), deal(deal), rangeSize(pages / deal), shares(shares), references(pages),
      free(deal), previous(pages + 1), next(pages + 1), numKept(deal), parents(pages, kNone),
      depths(pages), tokens(shares ? pages * pageSize : 0), chains(pages, kNone) {
  size_t size = 1;
  while (int64_t(size) < pages)
    size *= 2;
  slots.assign(size, kNone);
  previous[pages] = next[pages] = pages;
  // The page with the lowest index is taken first.
  for (int64_t page = pages - 1; page >= 0; --page)
    free[getRange(page)].push_back(page);
}

int64_t PagePool::countFree() const {
  int64_t count = 0;
  for (int64_t range = 0; range < deal; ++range)
    count += int64_t(free[range].size()) + numKept[range];
  return count;
}

//===----------------------------------------------------------------------===//
// Kept and registered pages
//===----------------------------------------------------------------------===//

void PagePool::link(int64_t page, int64_t before) {
  previous[page] = before;
  next[page] = next[before];
  previous[next[page]] = next[before] = page;
  ++numKept[getRange(page)];
}

void PagePool::unlink(int64_t page) {
  next[previous[page]] = next[page];
  previous[next[page]] = previous[page];
  --numKept[getRange(page)];
}

uint64_t PagePool::getSlot(int64_t parent, const int64_t *tokens) const {
  Hash hash;
  hash.add(reinterpret_cast<const char *>(&parent), sizeof(parent));
  hash.add(reinterpret_cast<const char *>(tokens), pageSize * sizeof(int64_t));
  return hash.getBits() & (slots.size() - 1);
}

int64_t PagePool::find(int64_t parent, const int64_t *tokens) const {
  if (!shares)
    return kNone;
  for (int64_t page = slots[getSlot(parent, tokens)]; page != kNone; page = chains[page])
    if (parents[page] == parent && std::equal(tokens, tokens + pageSize, getTokens(page)))
      return page;
  return kNone;
}

void PagePool::addToTable(int64_t page, int64_t depth) {
  int64_t &slot = slots[getSlot(parents[page], getTokens(page))];
  chains[page] = slot;
  slot = page;
  depths[page] = depth;
}

void PagePool::removeFromTable(int64_t page) {
  int64_t *at = &slots[getSlot(parents[page], getTokens(page))];
  while (*at != page)
    at = &chains[*at];
  *at = chains[page];
  depths[page] = 0;
}

/// Frees the least recently used kept page. No page has it as a parent: its children went before.
void PagePool::evict() {
  int64_t page = next[countPages()];
  unlink(page);
  log.push_back({Change::Evicted, page, depths[page]});
  removeFromTable(page);
  free[getRange(page)].push_back(page);
}

//===----------------------------------------------------------------------===//
// References
//===----------------------------------------------------------------------===//

bool PagePool::canTake(int64_t first, int64_t last, const std::vector<int64_t> &found) const {
  for (int64_t range = 0; range < deal; ++range) {
    // The blocks of [0, n) in a range are (n - range) / deal, rounded up.
    auto count = [&](int64_t n) { return (n - range + deal - 1) / deal; };
    int64_t available = int64_t(free[range].size()) + numKept[range];
    for (int64_t page : found)
      available -= getRange(page) == range && references[page] == 0;
    if (count(last) - count(first) > available)
      return false;
  }
  return true;
}

int64_t PagePool::take(int64_t block) {
  int64_t range = block % deal;
  if (free[range].empty() && numKept[range] == 0)
    return kNone;
  // Only the least recently used page of all ranges has no children for sure, so pages of other
  // ranges may be freed on the way.
  while (free[range].empty())
    evict();
  int64_t page = free[range].back();
  free[range].pop_back();
  references[page] = 1;
  log.push_back({Change::Taken, page, kNone});
  return page;
}

void PagePool::share(int64_t page) {
  log.push_back({Change::Shared, page, previous[page]});
  if (references[page]++ == 0)
    unlink(page);
}

void PagePool::release(int64_t page) {
  log.push_back({Change::Released, page, kNone});
  if (--references[page] > 0)
    return;
  if (isRegistered(page))
    link(page, previous[countPages()]);
  else
    free[getRange(page)].push_back(page);
}

void PagePool::release(const std::vector<int64_t> &pages) {
  std::for_each(pages.rbegin(), pages.rend(), [&](int64_t page) { release(page); });
}

int64_t PagePool::enter(int64_t parent, const int64_t *tokens, int64_t page) {
  int64_t found = find(parent, tokens);
  if (found == kNone) {
    parents[page] = parent;
    std::copy_n(tokens, pageSize, getTokens(page));
    addToTable(page, parent == kNone ? 1 : depths[parent] + 1);
    return page;
  }
  share(found);
  release(page);
  keep();
  return found;
}

void PagePool::undo() {
  for (; !log.empty(); log.pop_back()) {
    auto [change, page, before] = log.back();
    switch (change) {
    case Change::Taken:
      references[page] = 0;
      free[getRange(page)].push_back(page);
      break;
    case Change::Evicted:
      free[getRange(page)].pop_back();
      addToTable(page, before);
      link(page, countPages());
      break;
    case Change::Shared:
      if (--references[page] == 0)
        link(page, before);
      break;
    case Change::Released:
      if (references[page]++ > 0)
        break;
      if (isRegistered(page))
        unlink(page);
      else
        free[getRange(page)].pop_back();
      break;
    }
  }
}

//===----------------------------------------------------------------------===//
// Saved pools
//===----------------------------------------------------------------------===//

PagePool::Saved PagePool::save() const {
  Saved saved;
  saved.free = free;
  for (int64_t page = next[countPages()]; page != countPages(); page = next[page])
    saved.kept.push_back(page);
  std::vector<std::pair<int64_t, int64_t>> byDepth;
  for (int64_t page = 0; page < countPages(); ++page)
    if (isRegistered(page))
      byDepth.push_back({depths[page], page});
  std::sort(byDepth.begin(), byDepth.end());
  for (auto [depth, page] : byDepth)
    saved.registered.push_back(
        {page, parents[page], {getTokens(page), getTokens(page) + pageSize}});
  return saved;
}

bool PagePool::restore(const Saved &saved, const std::vector<std::vector<int64_t>> &used,
                       std::string &error) {
  PagePool pool(countPages(), pageSize, deal, shares);
  auto fail = [&](int64_t page, const char *what) {
    error = "page " + std::to_string(page) + ": " + what;
    return false;
  };
  auto isPage = [&](int64_t page) { return page >= 0 && page < countPages(); };
  std::vector<bool> isFree(countPages()), isKept(countPages()), isWhole(countPages());
  std::fill(pool.free.begin(), pool.free.end(), std::vector<int64_t>());
  for (const std::vector<int64_t> &pages : used)
    for (size_t block = 0; block < pages.size(); ++block) {
      if (!isPage(pages[block]) || getRange(pages[block]) != int64_t(block) % deal)
        return fail(pages[block], "expected one of the range of its block");
      ++pool.references[pages[block]];
    }
  for (const std::vector<int64_t> &pages : saved.free)
    for (int64_t page : pages) {
      if (!isPage(page) || pool.references[page] > 0 || isFree[page])
        return fail(page, "expected a free page once, and without requests");
      isFree[page] = true;
      pool.free[getRange(page)].push_back(page);
    }
  for (const auto &[page, parent, tokens] : saved.registered) {
    if (!shares || !isPage(page) || isFree[page] || isWhole[page] ||
        int64_t(tokens.size()) != pageSize ||
        (parent != kNone && (!isPage(parent) || !isWhole[parent])))
      return fail(page, "expected a registered page once, whole, and behind its parent");
    isWhole[page] = true;
    if (pool.find(parent, tokens.data()) != kNone)
      return fail(page, "its tokens are registered twice");
    pool.enter(parent, tokens.data(), page);
  }
  std::vector<int64_t> parent(countPages(), kNone);
  for (const Saved::Page &whole : saved.registered)
    parent[whole.page] = whole.parent;
  for (const std::vector<int64_t> &pages : used)
    for (size_t block = 0; block < pages.size(); ++block)
      if (isWhole[pages[block]] && parent[pages[block]] != (block ? pages[block - 1] : kNone))
        return fail(pages[block], "expected a registered page behind its parent");
  for (int64_t page : saved.kept) {
    if (!isPage(page) || !isWhole[page] || isKept[page] || pool.references[page] > 0 ||
        (parent[page] != kNone && isKept[parent[page]]))
      return fail(page,
                  "expected a kept page once, registered, before its parent, and without requests");
    isKept[page] = true;
    pool.link(page, pool.previous[countPages()]);
  }
  for (int64_t page = 0; page < countPages(); ++page) {
    if (pool.references[page] == 0 && !isFree[page] && !isKept[page])
      return fail(page, "neither free nor kept nor of a request");
    if (pool.references[page] > 1 && !isWhole[page])
      return fail(page, "of several requests, and not registered");
  }
  *this = std::move(pool);
  return true;
}

} // namespace meshwright::rt
