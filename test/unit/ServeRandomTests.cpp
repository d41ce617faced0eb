//===- ServeRandomTests.cpp - random requests on random sizes -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each case draws sizes and entries, and lets requests come, go, fail and move to other sessions.
// All of them must get the tokens that they get alone. MESHWRIGHT_SERVE_CASES is the number of
// cases.
//
//===----------------------------------------------------------------------===//

#include "ServeTest.h"

#include <cstdlib>
#include <random>

using namespace meshwright;
using namespace meshwright::rt;
using namespace meshwright::rt::test;

namespace {

class Simulation {
public:
  explicit Simulation(int64_t seed) : random(seed) {
    vocabulary = draw(2, 30);
    longest = draw(4, 30);
    start(drawSizes());
  }

  void run() {
    int64_t count = draw(1, 25);
    bool isCareful = draw(0, 1) == 0;
    for (int64_t turn = 0; count > 0 || !requests.empty(); ++turn) {
      ASSERT_LT(turn, 5000) << "no end";
      for (; count > 0 && draw(0, 2) == 0; --count)
        submit();
      if (!requests.empty() && draw(0, 30) == 0)
        cancel();
      if (isCareful || draw(0, 9) == 0)
        checkAbort();
      if (draw(0, 19) == 0)
        moveOn();
      step();
      if (testing::Test::HasFailure())
        return;
    }
    ServingStats stats = scheduler->getStats();
    EXPECT_EQ(stats.freePages, stats.pages);
    EXPECT_EQ(stats.waiting + stats.running, 0);
  }

private:
  struct Expected {
    std::shared_ptr<const Request> request;
    /// The same request of a second scheduler, which is given the same.
    std::shared_ptr<const Request> twin;
    Answer answer;
  };

  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }

  ServingSizes drawSizes() {
    ServingSizes sizes;
    sizes.groups = draw(0, 1) ? 1 : draw(2, 4);
    sizes.maxLength = longest;
    sizes.pageSize = draw(1, draw(0, 2) ? 5 : 40);
    sizes.maxRequests = draw(1, 5);
    sizes.vocabulary = vocabulary;
    sizes.deal = draw(0, 2) ? 1 : draw(2, 3);
    sizes.sharesBeginnings = draw(0, 1);
    int64_t blocks = sizes.countBlocks();
    sizes.pages = (blocks + draw(0, blocks * (draw(0, 1) ? sizes.maxRequests - 1 : 1))) /
                  sizes.deal * sizes.deal;
    return sizes;
  }

  std::vector<BatchEntry> drawEntries(const ServingSizes &sizes) {
    std::vector<BatchEntry> entries;
    std::set<int64_t> buckets;
    for (int64_t n = draw(1, 4); n > 0; --n)
      buckets.insert(draw(1, draw(0, 1) ? 6 : 40));
    int64_t gather = draw(0, 2);
    auto cost = [&](int64_t tokens) { return 1e-6 * (draw(0, 1) ? 1 : 1 + tokens * draw(0, 3)); };
    for (int64_t tokens : buckets) {
      if (gather != 1)
        entries.push_back({"max", tokens, BatchEntry::kNoSum, cost(tokens * sizes.groups)});
      for (int64_t sum : buckets)
        if (gather != 0 && sum >= tokens)
          entries.push_back({"sum", tokens, sum, cost(sum)});
    }
    return entries;
  }

  void start(const ServingSizes &sizes) {
    std::string error;
    std::vector<BatchEntry> entries = drawEntries(sizes);
    scheduler = Scheduler::create(sizes, entries, error);
    ASSERT_TRUE(scheduler) << error;
    twin = Scheduler::create(sizes, entries, error);
    device = std::make_unique<Device>(sizes);
  }

  void submit() {
    std::vector<int64_t> prompt;
    if (!prompts.empty() && draw(0, 1)) {
      prompt = prompts[draw(0, prompts.size() - 1)];
      prompt.resize(draw(1, prompt.size()));
    }
    for (int64_t n = draw(prompt.empty(), longest - 1 - int64_t(prompt.size())); n > 0; --n)
      prompt.push_back(draw(0, vocabulary - 1));
    prompts.push_back(prompt);
    RequestOptions options;
    options.maxNewTokens = draw(1, longest - int64_t(prompt.size()));
    options.temperature = draw(0, 2) ? 0 : 0.5;
    options.seed = draw(-5, 5);
    if (draw(0, 3) == 0)
      options.stop = {draw(0, vocabulary - 1), draw(0, vocabulary - 1)};
    if (draw(0, 3) == 0)
      options.group = draw(0, scheduler->getSizes().groups - 1);
    std::string error;
    Expected expected;
    expected.answer = answer(prompt, options, vocabulary);
    expected.request = scheduler->submit(prompt, options, error);
    ASSERT_TRUE(expected.request) << error;
    expected.twin = twin->submit(prompt, options, error);
    int64_t id = expected.request->id;
    requests[id] = std::move(expected);
  }

  void cancel() {
    auto at = std::next(requests.begin(), draw(0, requests.size() - 1));
    std::string error;
    EXPECT_TRUE(scheduler->cancel(*at->second.request, error));
    EXPECT_TRUE(twin->cancel(*at->second.twin, error));
    EXPECT_STREQ(nameOf(at->second.request->reason), "cancelled");
    EXPECT_TRUE(at->second.request->pages.empty());
    requests.erase(at);
  }

  /// A step that fails changes nothing.
  void checkAbort() {
    std::string before, after, error;
    scheduler->save(before, error);
    ServingStats stats = scheduler->getStats();
    uint64_t hash = 0;
    for (int64_t i = 0; i < 2; ++i) {
      const Batch *batch = scheduler->plan();
      EXPECT_EQ(batch == nullptr, requests.empty());
      EXPECT_EQ(scheduler->hasOpenStep(), batch != nullptr);
      EXPECT_TRUE(i == 0 || !batch || batch->hash == hash);
      hash = batch ? batch->hash : 0;
      scheduler->abort();
      checkPages(*scheduler);
      EXPECT_TRUE(scheduler->save(after, error));
      EXPECT_EQ(before, after);
      EXPECT_EQ(stats.steps, scheduler->getStats().steps);
      EXPECT_EQ(stats.preempted, scheduler->getStats().preempted);
    }
  }

  /// Saves, and goes on with a scheduler of the same sizes or of others.
  void moveOn() {
    std::string text, error;
    scheduler->save(text, error);
    ServingSizes sizes = scheduler->getSizes();
    auto before = std::move(scheduler);
    bool isHere = draw(0, 1);
    if (isHere) {
      sizes.sharesBeginnings ^= draw(0, 3) == 0;
      scheduler = Scheduler::create(sizes, before->getEntries(), error);
      twin = Scheduler::create(sizes, before->getEntries(), error);
    } else {
      start(drawSizes());
    }
    // Elsewhere the caches can be set only where they have the same shape, and this device has
    // none.
    const ServingSizes &now = scheduler->getSizes();
    bool isOther = now.groups != sizes.groups || now.pages != sizes.pages ||
                   now.pageSize != sizes.pageSize || now.deal != sizes.deal ||
                   now.sharesBeginnings != sizes.sharesBeginnings;
    bool hasCaches = isHere ? draw(0, 3) > 0 : isOther;
    for (Scheduler *next : {scheduler.get(), twin.get()})
      ASSERT_TRUE(next->restore(text, hasCaches, error)) << error;
    checkPages(*scheduler);
    auto again = scheduler->getRequests(), others = twin->getRequests();
    ASSERT_EQ(again.size(), requests.size());
    for (size_t i = 0; i < again.size(); ++i) {
      Expected &expected = requests.at(again[i]->id);
      EXPECT_EQ(again[i]->sequence, expected.request->sequence);
      expected.request = again[i];
      expected.twin = others[i];
    }
  }

  void checkEntry(const Batch &batch) {
    const std::vector<BatchEntry> &entries = scheduler->getEntries();
    int64_t most = 0, sum = 0;
    for (int64_t count : batch.counts) {
      most = std::max(most, count);
      sum += count;
    }
    EXPECT_EQ(sum, batch.numTokens);
    EXPECT_GT(sum, 0);
    auto holds = [&](const BatchEntry &entry) { return most <= entry.tokens && sum <= entry.sum; };
    EXPECT_TRUE(holds(entries[batch.entry]));
    for (const BatchEntry &entry : entries)
      EXPECT_TRUE(!holds(entry) || entry.seconds >= entries[batch.entry].seconds);
  }

  void step() {
    if (draw(0, 3) > 0)
      device->poison(*scheduler);
    const Batch *batch = scheduler->plan(), *other = twin->plan();
    ASSERT_EQ(batch == nullptr, requests.empty());
    ASSERT_EQ(other == nullptr, requests.empty());
    if (!batch)
      return;
    EXPECT_EQ(batch->hash, other->hash);
    EXPECT_EQ(batch->tables, other->tables);
    checkEntry(*batch);
    std::vector<int64_t> chosen = device->run(*batch, *scheduler);
    std::string error;
    ASSERT_TRUE(scheduler->commit(chosen, error)) << error;
    ASSERT_TRUE(twin->commit(chosen, error)) << error;
    checkPages(*scheduler);
    for (auto at = requests.begin(); at != requests.end();) {
      const Request &request = *at->second.request;
      const Answer &answer = at->second.answer;
      std::vector<int64_t> tokens(request.getNew(), request.getNew() + request.countNew());
      if (!request.isDone()) {
        EXPECT_LT(tokens.size(), answer.tokens.size());
        EXPECT_EQ(nameOf(request.reason), nullptr);
        ++at;
        continue;
      }
      EXPECT_EQ(tokens, answer.tokens);
      EXPECT_STREQ(nameOf(request.reason), answer.reason);
      EXPECT_TRUE(request.pages.empty());
      at = requests.erase(at);
    }
  }

  std::mt19937 random;
  int64_t vocabulary, longest;
  std::unique_ptr<Scheduler> scheduler, twin;
  std::unique_ptr<Device> device;
  std::vector<std::vector<int64_t>> prompts;
  std::map<int64_t, Expected> requests;
};

TEST(ServeRandomTest, AllGetTheirTokens) {
  const char *cases = std::getenv("MESHWRIGHT_SERVE_CASES");
  for (int64_t seed = 0; seed < (cases ? std::atoll(cases) : 200); ++seed) {
    Simulation(seed).run();
    if (HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      return;
    }
  }
}

} // namespace
