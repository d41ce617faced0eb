//===- ServeSavedTests.cpp - requests that go on elsewhere ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ServeTest.h"

#include "meshwright/runtime/src/bundle/Manifest.h"

#include <functional>
#include <nlohmann/json.hpp>

using namespace meshwright;
using namespace meshwright::rt;
using namespace meshwright::rt::test;
using Json = nlohmann::ordered_json;

namespace {

ServingSizes getSmallSizes() {
  ServingSizes sizes;
  sizes.groups = 2;
  sizes.maxLength = 24;
  sizes.pageSize = 4;
  sizes.pages = 8;
  sizes.maxRequests = 2;
  sizes.vocabulary = 50;
  sizes.sharesBeginnings = true;
  return sizes;
}

std::unique_ptr<Scheduler> create(const ServingSizes &sizes) {
  std::string error;
  std::vector<BatchEntry> entries = {{"tokens=4", 4, BatchEntry::kNoSum, 1},
                                     {"tokens=16", 16, BatchEntry::kNoSum, 2}};
  return Scheduler::create(sizes, entries, error);
}

bool step(Scheduler &scheduler, Device &device) {
  std::string error;
  const Batch *batch = scheduler.plan();
  if (batch) {
    EXPECT_TRUE(scheduler.commit(device.run(*batch, scheduler), error)) << error;
    checkPages(scheduler);
  }
  return batch;
}

/// Requests that run, wait and are over, pages that are shared and kept.
std::string makeText(Scheduler &scheduler, Device &device) {
  std::string text, error;
  RequestOptions options;
  auto submit = [&](int64_t first, int64_t length, int64_t maxNewTokens) {
    std::vector<int64_t> prompt;
    for (int64_t i = 0; i < length; ++i)
      prompt.push_back(first + i);
    options.maxNewTokens = maxNewTokens;
    EXPECT_TRUE(scheduler.submit(prompt, options, error)) << error;
  };
  submit(1, 9, 2);
  while (step(scheduler, device)) {
  }
  submit(1, 10, 9);
  submit(1, 13, 8);
  options.temperature = 0.7, options.seed = -3, options.stop = {7, 8};
  submit(20, 5, 9);
  options.group = 1, options.wantsLogits = true;
  submit(30, 11, 12);
  submit(10, 4, 20);
  for (int64_t i = 0; i < 3; ++i)
    step(scheduler, device);
  EXPECT_TRUE(scheduler.save(text, error)) << error;
  return text;
}

void expectAnswers(Scheduler &scheduler, Device &device) {
  auto requests = scheduler.getRequests();
  EXPECT_EQ(requests.size(), 5u);
  while (step(scheduler, device)) {
  }
  for (const auto &request : requests) {
    auto middle = request->sequence.begin() + request->numPrompt;
    Answer expected = answer({request->sequence.begin(), middle}, request->options,
                             scheduler.getSizes().vocabulary);
    EXPECT_EQ(std::vector<int64_t>(middle, request->sequence.end()), expected.tokens);
    EXPECT_STREQ(nameOf(request->reason), expected.reason);
  }
}

TEST(ServeSavedTest, GoesOnWithTheSameSteps) {
  auto scheduler = create(getSmallSizes());
  Device device(getSmallSizes());
  std::string text = makeText(*scheduler, device), again, error;
  auto other = create(getSmallSizes());
  ASSERT_TRUE(other->restore(text, /*hasCaches=*/true, error)) << error;
  ASSERT_TRUE(other->save(again, error)) << error;
  EXPECT_EQ(text, again);
  EXPECT_EQ(other->getStats().running, scheduler->getStats().running);
  EXPECT_GT(other->getStats().running, 0);
  EXPECT_GT(other->getStats().waiting, 0);
  Device copy = device;
  while (const Batch *batch = scheduler->plan()) {
    const Batch *same = other->plan();
    ASSERT_TRUE(same);
    EXPECT_EQ(batch->tokens, same->tokens);
    EXPECT_EQ(batch->slots, same->slots);
    EXPECT_EQ(batch->tables, same->tables);
    EXPECT_EQ(batch->lengths, same->lengths);
    EXPECT_EQ(batch->seeds, same->seeds);
    EXPECT_EQ(batch->temperatures, same->temperatures);
    auto chosen = device.run(*batch, *scheduler);
    EXPECT_EQ(chosen, copy.run(*same, *other));
    EXPECT_TRUE(scheduler->commit(chosen, error));
    EXPECT_TRUE(other->commit(chosen, error));
  }
  EXPECT_FALSE(other->plan());
}

TEST(ServeSavedTest, ComputesCachesAgainElsewhere) {
  std::string text, error;
  auto scheduler = create(getSmallSizes());
  Device device(getSmallSizes());
  text = makeText(*scheduler, device);
  auto elsewhere = [&](auto change, bool hasCaches) {
    ServingSizes sizes = getSmallSizes();
    change(sizes);
    auto other = create(sizes);
    ASSERT_TRUE(other->restore(text, hasCaches, error)) << error;
    EXPECT_EQ(other->getStats().running, 0);
    Device fresh(sizes);
    expectAnswers(*other, fresh);
  };
  elsewhere([](ServingSizes &) {}, false);
  // The group that a request states is not there.
  elsewhere([](ServingSizes &sizes) { sizes.groups = 1; }, true);
  elsewhere([](ServingSizes &sizes) { sizes.pageSize = 3; }, true);
  elsewhere([](ServingSizes &sizes) { sizes.pages = 6; }, true);
  elsewhere([](ServingSizes &sizes) { sizes.deal = 2; }, true);
  elsewhere([](ServingSizes &sizes) { sizes.maxRequests = 1; }, true);
  elsewhere([](ServingSizes &sizes) { sizes.sharesBeginnings = false; }, true);
}

TEST(ServeSavedTest, RefusesTextsOfOtherModelsAndSizes) {
  std::string text, error;
  auto scheduler = create(getSmallSizes());
  Device device(getSmallSizes());
  text = makeText(*scheduler, device);
  EXPECT_FALSE(scheduler->restore(text, true, error));
  EXPECT_EQ(error, "saved requests: expected a scheduler without requests");
  auto other = create(getSmallSizes());
  EXPECT_FALSE(other->restore("{}", true, error));
  EXPECT_EQ(error, "saved requests: not a text of requests");
  ServingSizes sizes = getSmallSizes();
  sizes.vocabulary = 51;
  EXPECT_FALSE(create(sizes)->restore(text, true, error));
  EXPECT_EQ(error, "saved requests: expected those of a model of 51 tokens, got 50");
  sizes = getSmallSizes();
  sizes.maxLength = 22;
  EXPECT_FALSE(create(sizes)->restore(text, true, error));
  EXPECT_EQ(error, "saved requests: request 4: prompt and max_new_tokens: expected at most "
                   "max_length = 22 tokens together, got 11 and 12");
}

/// Each change of a byte is an error, or changes nothing that counts.
TEST(ServeSavedTest, DetectsChangedBytes) {
  std::string error;
  auto scheduler = create(getSmallSizes());
  Device device(getSmallSizes());
  std::string text = makeText(*scheduler, device), again;
  for (size_t i = 0; i < text.size(); ++i)
    for (char flip : {1, 16, 64}) {
      std::string changed = text;
      changed[i] = char(changed[i] ^ flip);
      auto other = create(getSmallSizes());
      if (!other->restore(changed, true, error)) {
        EXPECT_EQ(error.rfind("saved requests: ", 0), 0u);
        EXPECT_TRUE(other->getRequests().empty());
        continue;
      }
      EXPECT_TRUE(other->save(again, error));
      EXPECT_EQ(again, text) << "byte " << i;
    }
  for (size_t size = 0; size + 1 < text.size(); size += 7)
    EXPECT_FALSE(create(getSmallSizes())->restore(text.substr(0, size), true, error));
}

/// Texts with a right hash whose parts do not fit together.
TEST(ServeSavedTest, DetectsPartsThatDoNotFit) {
  std::string error;
  auto scheduler = create(getSmallSizes());
  Device device(getSmallSizes());
  std::string text = makeText(*scheduler, device);
  auto refuse = [&](const std::function<void(Json &)> &change) {
    Json json = Json::parse(text);
    json.erase("hash");
    change(json);
    std::string rest = json.dump();
    json["hash"] = hashOf(rest.data(), rest.size());
    auto other = create(getSmallSizes());
    EXPECT_FALSE(other->restore(json.dump(), true, error));
    EXPECT_TRUE(other->getRequests().empty());
    EXPECT_EQ(other->getStats().freePages, 16);
    return error.substr(0, error.find(','));
  };
  EXPECT_EQ(refuse([](Json &json) { json["version"] = 2; }), "saved requests: expected version 1");
  EXPECT_NE(refuse([](Json &json) { json.erase("pools"); }).find("pools"), std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["requests"][0]["id"] = "x"; }).find("type"),
            std::string::npos);
  EXPECT_EQ(refuse([](Json &json) { json["requests"][0]["id"] = 3; }),
            "saved requests: request 2: expected ascending numbers below 6");
  EXPECT_EQ(refuse([](Json &json) { json["next_id"] = 5; }),
            "saved requests: request 5: expected ascending numbers below 5");
  EXPECT_EQ(refuse([](Json &json) { json["requests"][0]["tokens"] = Json(9, 1); }),
            "saved requests: request 1: has all its tokens");
  EXPECT_EQ(refuse([](Json &json) { json["requests"][0]["tokens"][0] = 50; }),
            "saved requests: request 1: prompt: expected tokens of at least 0 and less than 50");
  EXPECT_EQ(refuse([](Json &json) { json["running"][0]["id"] = 9; }),
            "saved requests: request 9: runs");
  EXPECT_EQ(refuse([](Json &json) { json["running"][0]["group"] = -1; }),
            "saved requests: request 1: runs in group -1");
  EXPECT_NE(refuse([](Json &json) { json["running"][0]["length"] = 1000; }).find("1000 of"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["running"][0]["length"] = 3; }).find("request 1"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["running"][0]["pages"][0] = 8; }).find("page 8"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) {
              // A page that its owner writes, given to another one, too.
              json["running"][0]["pages"].back() = json["running"][1]["pages"].back();
            }).find("page"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["pools"][0]["free"][0].push_back(0); }).find("page 0"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["pools"][1]["free"][0] = Json::array(); }).find("neither"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) { json["pools"][0]["registered"] = Json::array(); }).find("page"),
            std::string::npos);
  EXPECT_NE(refuse([](Json &json) {
              Json &pages = json["pools"][0]["registered"];
              pages.push_back(pages[0]);
            }).find("page"),
            std::string::npos);
}

/// A text of version 1, as it was written first.
TEST(ServeSavedTest, ReadsVersion1) {
  const char *text =
      R"({"format":"meshwright requests","version":1,"vocabulary":50,"next_id":2,"layout":)"
      R"({"groups":2,"pages":8,"page_size":4,"ranks":1,"shares_beginnings":true},"requests":[)"
      R"({"id":0,"prompt":[1,2,3,4,5],"tokens":[6],"max_new_tokens":3,"stop":[9],"temperature":0.5,)"
      R"("seed":-4,"logits":true},{"id":1,"prompt":[7],"tokens":[],"max_new_tokens":2,"stop":[],)"
      R"("temperature":0.0,"seed":0,"logits":false,"group":1}],"running":[{"id":0,"group":0,)"
      R"("length":5,"pages":[0,1]}],"pools":[{"free":[[7,6,5,4,3,2]],"kept":[],"registered":)"
      R"([{"page":0,"parent":-1,"tokens":[1,2,3,4]}]},{"free":[[7,6,5,4,3,2,1,0]],"kept":[],)"
      R"("registered":[]}],"hash":"7217a3907b91d998"})";
  auto scheduler = create(getSmallSizes());
  std::string error;
  ASSERT_TRUE(scheduler->restore(text, true, error)) << error;
  auto requests = scheduler->getRequests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0]->sequence, std::vector<int64_t>({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(requests[0]->numPrompt, 5);
  EXPECT_EQ(requests[0]->length, 5);
  EXPECT_EQ(requests[0]->numShared, 1);
  EXPECT_EQ(requests[0]->options.stop, std::vector<int64_t>({9}));
  EXPECT_EQ(requests[0]->options.temperature, 0.5);
  EXPECT_EQ(requests[0]->options.seed, -4);
  EXPECT_TRUE(requests[0]->options.wantsLogits);
  EXPECT_EQ(requests[1]->status, Request::Status::Waiting);
  EXPECT_EQ(requests[1]->group, 1);
  checkPages(*scheduler);
  std::string again;
  ASSERT_TRUE(scheduler->save(again, error));
  EXPECT_EQ(again, std::string(text) + "\n");
}

} // namespace
