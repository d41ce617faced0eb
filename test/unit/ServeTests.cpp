//===- ServeTests.cpp - requests, pages and batches -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ServeTest.h"

#include <cmath>
#include <cstdlib>
#include <malloc.h>
#include <new>

using namespace meshwright;
using namespace meshwright::rt;
using namespace meshwright::rt::test;

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
/// A sanitizer has operators of its own.
#define COUNTS_ALLOCATIONS (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))

#if COUNTS_ALLOCATIONS
/// Allocations of this program so far, and bytes that are not freed. A compiler that inlines one of
/// the operators takes the other for a mismatch.
static int64_t numAllocations = 0, numBytes = 0;

__attribute__((noinline)) void *operator new(size_t size) {
  void *memory = std::malloc(size);
  if (!memory)
    std::abort();
  ++numAllocations;
  numBytes += malloc_usable_size(memory);
  return memory;
}
__attribute__((noinline)) void operator delete(void *memory) noexcept {
  numBytes -= malloc_usable_size(memory);
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void *memory, size_t) noexcept {
  operator delete(memory);
}
#endif

namespace {

using Numbers = std::vector<int64_t>;

ServingSizes getSizes(int64_t groups = 1) {
  ServingSizes sizes;
  sizes.groups = groups;
  sizes.maxLength = 48;
  sizes.pageSize = 4;
  sizes.pages = 36;
  sizes.maxRequests = 3;
  sizes.vocabulary = 203;
  return sizes;
}

/// Entries without a sum, whose times grow with the tokens.
std::vector<BatchEntry> getEntries(const Numbers &buckets) {
  std::vector<BatchEntry> entries;
  for (int64_t tokens : buckets)
    entries.push_back({"tokens=" + std::to_string(tokens), tokens, BatchEntry::kNoSum,
                       1e-4 + 1e-6 * double(tokens)});
  return entries;
}

/// A scheduler and its device.
struct Server {
  explicit Server(const ServingSizes &sizes, std::vector<BatchEntry> entries = getEntries({4, 16}))
      : device(sizes) {
    scheduler = Scheduler::create(sizes, std::move(entries), error);
    EXPECT_TRUE(scheduler) << error;
  }

  std::shared_ptr<const Request> submit(const Numbers &prompt, int64_t maxNewTokens,
                                        RequestOptions options = {}) {
    options.maxNewTokens = maxNewTokens;
    auto request = scheduler->submit(prompt, options, error);
    EXPECT_TRUE(request) << error;
    return request;
  }
  std::shared_ptr<const Request> submitTo(int64_t group, const Numbers &prompt,
                                          int64_t maxNewTokens) {
    RequestOptions options;
    options.group = group;
    return submit(prompt, maxNewTokens, options);
  }

  /// Returns the tokens that a step processes.
  int64_t step() {
    const Batch *batch = scheduler->plan();
    if (!batch)
      return 0;
    int64_t count = batch->numTokens;
    bool isFine = scheduler->commit(device.run(*batch, *scheduler), error);
    EXPECT_TRUE(isFine) << error;
    checkPages(*scheduler);
    return isFine ? count : 0;
  }
  int64_t finish() {
    int64_t steps = 0;
    while (step())
      ++steps;
    return steps;
  }

  std::string error;
  Device device;
  std::unique_ptr<Scheduler> scheduler;
};

/// A prompt that no other shares a beginning with.
Numbers makePrompt(int64_t length, int64_t seed) {
  Numbers prompt;
  for (int64_t i = 0; i < length; ++i)
    prompt.push_back(int64_t(mix(mix(7, seed), i) % 203));
  return prompt;
}

Numbers getNew(const Request &request) {
  return {request.getNew(), request.getNew() + request.countNew()};
}

void expectAnswer(const Request &request, const Numbers &prompt) {
  Answer expected = answer(prompt, request.options, 203);
  EXPECT_TRUE(request.isDone());
  EXPECT_EQ(getNew(request), expected.tokens);
  EXPECT_STREQ(nameOf(request.reason), expected.reason);
}

//===----------------------------------------------------------------------===//
// Errors
//===----------------------------------------------------------------------===//

TEST(ServeTest, RefusesSizesThatDoNotFit) {
  auto refuse = [](auto change, std::vector<BatchEntry> entries = getEntries({4})) {
    ServingSizes sizes = getSizes();
    change(sizes);
    std::string error;
    EXPECT_FALSE(Scheduler::create(sizes, entries, error));
    return error;
  };
  EXPECT_EQ(refuse([](auto &sizes) { sizes.pageSize = 0; }),
            "page_size: expected at least 1, got 0");
  EXPECT_EQ(refuse([](auto &sizes) { sizes.maxRequests = 0; }),
            "max_requests: expected at least 1, got 0");
  EXPECT_EQ(refuse([](auto &sizes) { sizes.pages = 5; }),
            "pages: expected at least 12, for a request of max_length = 48 in pages of 4, got 5");
  EXPECT_EQ(refuse([](auto &sizes) { sizes.deal = 5; }),
            "pages: expected a multiple of 5, the ranks over which they are dealt, got 36");
  auto nothing = [](auto &) {};
  EXPECT_EQ(refuse(nothing, {}), "buckets: expected at least one, got none");
  EXPECT_EQ(refuse(nothing, {{"tokens=0", 0, 8, 1}}),
            "entry 'tokens=0': expected room for at least 1 token, got 0");
  EXPECT_EQ(refuse(nothing, {{"tokens=4", 4, 8, NAN}}),
            "entry 'tokens=4': expected a positive time, got nan");
}

TEST(ServeTest, RefusesRequestsThatCannotBeServed) {
  Server server(getSizes(2));
  auto running = server.submit(makePrompt(7, 1), 8);
  server.step();
  auto refuse = [&](const Numbers &prompt, RequestOptions options) {
    EXPECT_FALSE(server.scheduler->submit(prompt, options, server.error));
    return server.error;
  };
  RequestOptions options;
  options.maxNewTokens = 2;
  EXPECT_EQ(refuse({}, options), "prompt: expected at least one token, got none");
  EXPECT_EQ(refuse({5, 203}, options),
            "prompt: expected tokens of at least 0 and less than 203, got 203 at index 1");
  EXPECT_EQ(refuse({-1}, options),
            "prompt: expected tokens of at least 0 and less than 203, got -1 at index 0");
  options.maxNewTokens = 0;
  EXPECT_EQ(refuse({5}, options), "max_new_tokens: expected at least 1, got 0");
  options.maxNewTokens = 9;
  EXPECT_EQ(
      refuse(Numbers(40, 5), options),
      "prompt and max_new_tokens: expected at most max_length = 48 tokens together, got 40 and 9");
  options.maxNewTokens = std::numeric_limits<int64_t>::max();
  EXPECT_NE(refuse({5}, options).find("max_length = 48"), std::string::npos);
  options.maxNewTokens = 2;
  options.group = 2;
  EXPECT_EQ(refuse({5}, options), "group: expected 0 to 1, got 2");
  options.group.reset();
  options.temperature = -1;
  EXPECT_EQ(refuse({5}, options), "temperature: expected a finite number of at least 0, got -1");
  options.temperature = NAN;
  EXPECT_NE(refuse({5}, options).find("got nan"), std::string::npos);
  options.temperature = 0;
  options.stop = {300};
  EXPECT_EQ(refuse({5}, options),
            "stop: expected tokens of at least 0 and less than 203, got 300 at index 0");
  server.finish();
  expectAnswer(*running, makePrompt(7, 1));
}

TEST(ServeTest, AbortsAStepWithTokensOutOfRange) {
  Server server(getSizes());
  auto request = server.submit(makePrompt(3, 1), 2);
  ASSERT_TRUE(server.scheduler->plan());
  EXPECT_FALSE(server.scheduler->cancel(*request, server.error));
  EXPECT_EQ(server.error, "cancel: expected no step to be open");
  std::string text;
  EXPECT_FALSE(server.scheduler->save(text, server.error));
  EXPECT_FALSE(server.scheduler->commit({203, 0, 0}, server.error));
  EXPECT_EQ(server.error, "entry 'tokens=4': expected a token of at least 0 and less than 203 for "
                          "request 0, got 203");
  EXPECT_EQ(request->status, Request::Status::Waiting);
  EXPECT_EQ(server.scheduler->getStats().steps, 0);
  EXPECT_FALSE(server.scheduler->commit({1, 0, 0}, server.error));
  EXPECT_EQ(server.error, "commit: expected an open step");
  server.finish();
  expectAnswer(*request, makePrompt(3, 1));
}

//===----------------------------------------------------------------------===//
// Batches
//===----------------------------------------------------------------------===//

TEST(ServeTest, HasBucketsByDefault) {
  EXPECT_EQ(getDefaultBuckets(64), Numbers({1, 4, 16, 64, 512}));
  EXPECT_EQ(getDefaultBuckets(48), Numbers({1, 4, 16, 48, 512}));
  EXPECT_EQ(getDefaultBuckets(1), Numbers({1, 512}));
  EXPECT_EQ(getDefaultBuckets(600), Numbers({1, 4, 16, 64, 256, 512, 600}));
}

TEST(ServeTest, FillsTheInputs) {
  ServingSizes sizes = getSizes(2);
  sizes.maxLength = 8, sizes.pages = 6, sizes.maxRequests = 2;
  Server server(sizes, getEntries({8}));
  RequestOptions options;
  options.temperature = 0.5, options.seed = -9, options.group = 1;
  server.submit({11, 12, 13, 14, 15}, 3, options);
  server.submitTo(0, {21}, 2);
  server.submitTo(1, {31, 32}, 4);
  const Batch *batch = server.scheduler->plan();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->numTokens, 8);
  EXPECT_EQ(batch->counts, Numbers({1, 7}));
  EXPECT_EQ(batch->tokens, Numbers({21, 0, 0, 0, 0, 0, 0, 0, 11, 12, 13, 14, 15, 31, 32, 0}));
  EXPECT_EQ(batch->positions, Numbers({0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1, 0}));
  EXPECT_EQ(batch->slots, Numbers({0, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3, 4, 8, 9, -1}));
  EXPECT_EQ(batch->tables, Numbers({0, -1, -1, -1, 0, 1, 2, -1}));
  EXPECT_EQ(batch->starts, Numbers({0, 1, 1, 0, 5, 7}));
  EXPECT_EQ(batch->lengths, Numbers({1, 0, 5, 2}));
  EXPECT_EQ(batch->sampled, Numbers({0, -1, 4, 6}));
  EXPECT_EQ(batch->temperatures, std::vector<float>({0, 0, 0.5, 0}));
  EXPECT_EQ(batch->seeds, Numbers({0, 0, -9, 0}));
  ASSERT_TRUE(server.scheduler->commit({41, -7, 42, 43}, server.error)) << server.error;

  batch = server.scheduler->plan();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->counts, Numbers({1, 2}));
  EXPECT_EQ(batch->tokens, Numbers({41, 0, 0, 0, 0, 0, 0, 0, 42, 43, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch->positions, Numbers({1, 0, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch->slots, Numbers({1, -1, -1, -1, -1, -1, -1, -1, 5, 10, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batch->lengths, Numbers({2, 0, 6, 3}));
}

TEST(ServeTest, CountsDealtPagesInTheirRanges) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 20, sizes.pages = 12, sizes.maxRequests = 1, sizes.deal = 2;
  Server server(sizes, getEntries({16}));
  auto request = server.submit(makePrompt(13, 1), 1);
  const Batch *batch = server.scheduler->plan();
  ASSERT_TRUE(batch);
  EXPECT_EQ(request->pages, Numbers({0, 6, 1, 7}));
  // Two ranks with three blocks each.
  EXPECT_EQ(batch->tables, Numbers({0, 1, -1, 0, 1, -1}));
}

TEST(ServeTest, ReadsPromptsInChunksBesideDecoding) {
  Server server(getSizes(), getEntries({4}));
  auto first = server.submit(makePrompt(2, 1), 6);
  EXPECT_EQ(server.step(), 2);
  auto second = server.submit(makePrompt(7, 2), 2);
  EXPECT_EQ(server.step(), 4);
  EXPECT_EQ(first->countNew(), 2);
  EXPECT_EQ(second->length, 3);
  EXPECT_EQ(server.step(), 4);
  EXPECT_EQ(second->length, 6);
  EXPECT_EQ(second->countNew(), 0);
  server.finish();
  expectAnswer(*first, makePrompt(2, 1));
  expectAnswer(*second, makePrompt(7, 2));
  EXPECT_EQ(server.scheduler->getStats().promptTokens, 9);
  EXPECT_EQ(server.scheduler->getStats().generated, 8);
}

TEST(ServeTest, ServesMoreRequestsThanABucketHasTokens) {
  Server server(getSizes(), getEntries({1}));
  std::vector<std::shared_ptr<const Request>> requests;
  for (int64_t i = 0; i < 5; ++i)
    requests.push_back(server.submit(makePrompt(3, i), 4));
  EXPECT_EQ(server.finish(), 5 * 6);
  for (int64_t i = 0; i < 5; ++i)
    expectAnswer(*requests[i], makePrompt(3, i));
}

TEST(ServeTest, EndsAtAStopToken) {
  Server server(getSizes());
  Answer all = answer(makePrompt(7, 1), {8, {}, 0, 0, false, {}}, 203);
  RequestOptions options;
  options.stop = {all.tokens[3]};
  auto early = server.submit(makePrompt(7, 1), 8, options);
  auto last = server.submit(makePrompt(7, 1), 4, options);
  server.finish();
  EXPECT_EQ(getNew(*early), Numbers(all.tokens.begin(), all.tokens.begin() + 4));
  EXPECT_STREQ(nameOf(early->reason), "stop");
  EXPECT_STREQ(nameOf(last->reason), "stop");
}

TEST(ServeTest, ChoosesTheCheapestEntryThatHoldsTheTokens) {
  ServingSizes sizes = getSizes(4);
  std::vector<BatchEntry> entries = {{"tokens=4", 4, BatchEntry::kNoSum, 3},
                                     {"tokens=4,sum=4", 4, 4, 2},
                                     {"tokens=16", 16, BatchEntry::kNoSum, 7},
                                     {"tokens=16,sum=16", 16, 16, 5}};
  Server server(sizes, entries);
  auto getEntry = [&] { return entries[server.scheduler->plan()->entry].name; };
  server.submitTo(1, makePrompt(2, 1), 40);
  EXPECT_EQ(getEntry(), "tokens=4,sum=4");
  server.submitTo(2, makePrompt(1, 2), 40);
  EXPECT_EQ(getEntry(), "tokens=4,sum=4");
  server.submitTo(2, makePrompt(3, 3), 40);
  EXPECT_EQ(getEntry(), "tokens=4");
  server.submitTo(0, makePrompt(14, 4), 20);
  // All groups have 20 tokens, and several steps of a smaller entry take longer.
  EXPECT_EQ(getEntry(), "tokens=16");
  server.step();
  EXPECT_EQ(getEntry(), "tokens=4,sum=4");
  EXPECT_EQ(server.scheduler->getStats().calls, Numbers({0, 0, 1, 0}));
}

TEST(ServeTest, KeepsTheSumOfAllGroups) {
  ServingSizes sizes = getSizes(4);
  Server server(sizes, {{"tokens=16,sum=16", 16, 16, 1}});
  for (int64_t group = 0; group < 4; ++group)
    server.submitTo(group, makePrompt(7, group), 2);
  EXPECT_EQ(server.scheduler->plan()->counts, Numbers({7, 7, 2, 0}));
  EXPECT_EQ(server.step(), 16);
  EXPECT_EQ(server.scheduler->plan()->counts, Numbers({1, 1, 5, 7}));
}

TEST(ServeTest, PrefersSeveralSmallStepsToPadding) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 600, sizes.pages = 450;
  auto run = [&](double large) {
    Server server(sizes, {{"tokens=64", 64, BatchEntry::kNoSum, 1},
                          {"tokens=512", 512, BatchEntry::kNoSum, large}});
    auto request = server.submit(makePrompt(90, 1), 2);
    int64_t count = server.step();
    server.finish();
    expectAnswer(*request, makePrompt(90, 1));
    return count;
  };
  EXPECT_EQ(run(3), 64);
  EXPECT_EQ(run(1.9), 90);
}

//===----------------------------------------------------------------------===//
// Admission and preemption
//===----------------------------------------------------------------------===//

TEST(ServeTest, AdmitsInTheOrderOfSubmission) {
  ServingSizes sizes = getSizes(2);
  sizes.maxLength = 16, sizes.pages = 4;
  Server server(sizes);
  auto large = server.submitTo(0, makePrompt(14, 1), 2);
  server.step();
  // Waits for pages of group 0; a later one does not pass it there, but goes to group 1.
  auto waiting = server.submitTo(0, makePrompt(12, 2), 2);
  auto later = server.submitTo(0, makePrompt(1, 3), 1);
  auto other = server.submitTo(1, makePrompt(1, 4), 2);
  auto any = server.submit(makePrompt(1, 5), 2);
  server.step();
  EXPECT_EQ(waiting->status, Request::Status::Waiting);
  EXPECT_EQ(later->status, Request::Status::Waiting);
  EXPECT_EQ(waiting->group, 0);
  EXPECT_EQ(other->status, Request::Status::Running);
  EXPECT_EQ(any->group, 1);
  auto requests = server.scheduler->getRequests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests.front(), waiting);
  EXPECT_EQ(requests.back(), any);
  server.finish();
  expectAnswer(*waiting, makePrompt(12, 2));
  expectAnswer(*later, makePrompt(1, 3));
  EXPECT_EQ(any->group, 1);
}

TEST(ServeTest, BalancesTheTokensOfGroups) {
  Server server(getSizes(2));
  auto large = server.submit(makePrompt(25, 1), 2);
  auto small = server.submit(makePrompt(2, 2), 9);
  auto next = server.submit(makePrompt(3, 3), 9);
  server.step();
  EXPECT_EQ(large->group, 0);
  EXPECT_EQ(small->group, 1);
  EXPECT_EQ(next->group, 1);
  server.step();
  // All decode now: group 0 has fewer requests.
  auto last = server.submit(makePrompt(1, 4), 2);
  server.step();
  EXPECT_EQ(last->group, 0);
  server.finish();
  expectAnswer(*last, makePrompt(1, 4));
}

TEST(ServeTest, ComputesTheLastAdmittedAgainWhenPagesRunOut) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 20, sizes.pages = 6;
  Server server(sizes);
  auto first = server.submit(makePrompt(8, 1), 12), second = server.submit(makePrompt(4, 2), 12);
  server.step();
  EXPECT_EQ(second->pages.size(), 1u);
  Numbers before;
  while (server.scheduler->getStats().preempted == 0) {
    before = getNew(*second);
    ASSERT_TRUE(server.step());
  }
  EXPECT_EQ(second->status, Request::Status::Waiting);
  EXPECT_EQ(getNew(*second), before);
  EXPECT_EQ(second->group, -1);
  EXPECT_EQ(first->status, Request::Status::Running);
  server.finish();
  expectAnswer(*first, makePrompt(8, 1));
  expectAnswer(*second, makePrompt(4, 2));
  EXPECT_EQ(server.scheduler->getStats().preempted, 1);
}

TEST(ServeTest, LeavesAPageForEachRequestThatGrows) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 20, sizes.pages = 6;
  for (int64_t length : {8, 9}) {
    Server server(sizes);
    // Has three pages when the second one is submitted, and may need two more.
    auto first = server.submit(makePrompt(8, 1), 12);
    server.step();
    auto second = server.submit(makePrompt(length, 2), 2);
    server.step();
    EXPECT_EQ(second->status == Request::Status::Running, length == 8);
    server.finish();
    expectAnswer(*second, makePrompt(length, 2));
  }
  Server server(sizes);
  // Needs no more pages.
  server.submit(makePrompt(8, 1), 1);
  auto second = server.submit(makePrompt(13, 2), 2);
  server.step();
  EXPECT_EQ(second->status, Request::Status::Running);
}

TEST(ServeTest, CancelsRequests) {
  Server server(getSizes());
  auto a = server.submit(makePrompt(5, 1), 12), b = server.submit(makePrompt(12, 2), 12);
  server.step();
  server.step();
  auto c = server.submit(makePrompt(8, 3), 12);
  Numbers tokens = getNew(*b);
  EXPECT_TRUE(server.scheduler->cancel(*b, server.error));
  EXPECT_TRUE(server.scheduler->cancel(*c, server.error));
  EXPECT_TRUE(server.scheduler->cancel(*c, server.error));
  EXPECT_EQ(getNew(*b), tokens);
  EXPECT_STREQ(nameOf(b->reason), "cancelled");
  EXPECT_STREQ(nameOf(c->reason), "cancelled");
  server.finish();
  expectAnswer(*a, makePrompt(5, 1));
  EXPECT_TRUE(server.scheduler->cancel(*a, server.error));
  EXPECT_STREQ(nameOf(a->reason), "length");
  EXPECT_EQ(server.scheduler->getStats().freePages, 36);
}

//===----------------------------------------------------------------------===//
// Shared beginnings
//===----------------------------------------------------------------------===//

TEST(ServeTest, SharesWholePagesOfEqualBeginnings) {
  for (bool isTogether : {false, true}) {
    ServingSizes sizes = getSizes();
    sizes.sharesBeginnings = true;
    Server server(sizes);
    Numbers prompt = makePrompt(14, 1), longer(prompt.begin(), prompt.begin() + 12), whole = longer;
    longer.insert(longer.end(), {1, 2, 3, 4, 5});
    auto first = server.submit(prompt, 6);
    while (isTogether ? first->countNew() == 0 : server.step() > 0)
      server.step();
    EXPECT_EQ(server.scheduler->getStats().promptTokens, 14);
    auto second = server.submit(longer, 6), third = server.submit(prompt, 6);
    server.step();
    if (isTogether) {
      EXPECT_EQ(Numbers(first->pages.begin(), first->pages.begin() + 3),
                Numbers(second->pages.begin(), second->pages.begin() + 3));
    }
    EXPECT_EQ(server.scheduler->getPool(0).countReferences(second->pages[0]), 2 + isTogether);
    server.finish();
    // The last token is computed, and the page that it is in.
    EXPECT_EQ(server.scheduler->getStats().promptTokens, 14 + 5 + 2);
    auto exact = server.submit(whole, 2);
    server.finish();
    EXPECT_EQ(server.scheduler->getStats().promptTokens, 14 + 5 + 2 + 4);
    expectAnswer(*first, prompt);
    expectAnswer(*second, longer);
    expectAnswer(*third, prompt);
    expectAnswer(*exact, whole);
    EXPECT_EQ(server.scheduler->getStats().freePages, 36);
  }
}

TEST(ServeTest, SharesPagesThatOneStepWroteTwice) {
  ServingSizes sizes = getSizes();
  sizes.sharesBeginnings = true;
  Server server(sizes, getEntries({48}));
  auto first = server.submit(makePrompt(9, 1), 6), second = server.submit(makePrompt(9, 1), 6);
  server.step();
  // Both were computed, because no request reads a page in the step that writes it.
  EXPECT_EQ(server.scheduler->getStats().promptTokens, 18);
  EXPECT_EQ(first->pages[1], second->pages[1]);
  EXPECT_NE(first->pages[2], second->pages[2]);
  EXPECT_EQ(server.scheduler->getStats().freePages, 36 - 4);
  server.finish();
  expectAnswer(*second, makePrompt(9, 1));
}

TEST(ServeTest, ForgetsTheLeastRecentlyUsedBeginning) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 12, sizes.pages = 6, sizes.sharesBeginnings = true;
  Server server(sizes);
  auto compute = [&](int64_t seed) {
    int64_t before = server.scheduler->getStats().promptTokens;
    auto request = server.submit(makePrompt(9, seed), 1);
    server.finish();
    expectAnswer(*request, makePrompt(9, seed));
    return server.scheduler->getStats().promptTokens - before;
  };
  EXPECT_EQ(compute(1), 9);
  EXPECT_EQ(compute(2), 9);
  EXPECT_EQ(compute(1), 1);
  // Takes two free pages and one of 2, which keeps its first.
  EXPECT_EQ(compute(3), 9);
  EXPECT_EQ(compute(1), 1);
  EXPECT_EQ(compute(2), 5);
}

//===----------------------------------------------------------------------===//
// Cost
//===----------------------------------------------------------------------===//

#if COUNTS_ALLOCATIONS
TEST(ServeTest, LeavesMemoryAsItWas) {
  ServingSizes sizes = getSizes(2);
  sizes.sharesBeginnings = true;
  std::string error;
  auto scheduler = Scheduler::create(sizes, getEntries({4, 16}), error);
  ASSERT_TRUE(scheduler);
  std::vector<int64_t> chosen(6, 5);
  int64_t before = 0, most = 0;
  for (int64_t count = 0; count < 100000; ++count) {
    auto request =
        scheduler->submit(makePrompt(1 + count % 13, count), {3, {}, 0, 0, false, {}}, error);
    while (scheduler->getStats().waiting > 4 && scheduler->plan())
      scheduler->commit(chosen, error);
    if (count == 1000)
      before = most = numBytes;
    most = std::max(most, numBytes);
  }
  while (scheduler->plan())
    scheduler->commit(chosen, error);
  EXPECT_LE(most, before + 20000);
  EXPECT_LE(numBytes, before);
  EXPECT_EQ(scheduler->getStats().generated, 300000);
}

TEST(ServeTest, AllocatesNothingWhileRequestsDecode) {
  ServingSizes sizes = getSizes();
  sizes.maxLength = 400, sizes.pages = 300, sizes.sharesBeginnings = true;
  std::string error;
  auto scheduler = Scheduler::create(sizes, getEntries({4, 16}), error);
  for (int64_t i = 0; i < 3; ++i)
    scheduler->submit(makePrompt(5, i), {390, {}, 0, 0, false, {}}, error);
  std::vector<int64_t> chosen = {1, 2, 3};
  int64_t before = 0;
  for (int64_t step = 0; step < 380; ++step) {
    if (step == 20)
      before = numAllocations;
    ASSERT_TRUE(scheduler->plan());
    ASSERT_TRUE(scheduler->commit(chosen, error));
  }
  // The lists of pages grow.
  EXPECT_LE(numAllocations - before, 3 * 5);
}
#endif

/// So the bits of a request are the same beside any neighbours of the same lengths.
TEST(ServeTest, DecidesByLengthsAlone) {
  auto run = [](int64_t seed) {
    ServingSizes sizes = getSizes(2);
    sizes.maxLength = 20, sizes.pages = 6;
    Server server(sizes);
    for (int64_t i = 0; i < 9; ++i)
      server.submit(makePrompt(1 + 5 * i % 11, seed + i), 9);
    std::vector<Numbers> decisions;
    while (const Batch *batch = server.scheduler->plan()) {
      decisions.insert(decisions.end(), {{batch->entry},
                                         batch->positions,
                                         batch->slots,
                                         batch->tables,
                                         batch->starts,
                                         batch->lengths});
      server.scheduler->commit(server.device.run(*batch, *server.scheduler), server.error);
    }
    EXPECT_GT(server.scheduler->getStats().preempted, 0);
    return decisions;
  };
  EXPECT_EQ(run(0), run(100));
}

TEST(ServeTest, TellsDecisionsApartByHash) {
  auto run = [](int64_t token, int64_t maxNewTokens) {
    Server server(getSizes());
    server.submit({1, 2, 3}, maxNewTokens);
    server.submit({1, token, 3}, 3);
    std::vector<uint64_t> hashes;
    while (const Batch *batch = server.scheduler->plan()) {
      hashes.push_back(batch->hash);
      server.scheduler->commit(server.device.run(*batch, *server.scheduler), server.error);
    }
    return hashes;
  };
  auto hashes = run(2, 3);
  EXPECT_EQ(hashes, run(2, 3));
  EXPECT_NE(hashes[0], run(4, 3)[0]);
  EXPECT_EQ(std::set<uint64_t>(hashes.begin(), hashes.end()).size(), hashes.size());
}

} // namespace
