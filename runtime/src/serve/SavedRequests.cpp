//===- SavedRequests.cpp - the requests of a scheduler as text ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The text is a JSON object: `format`, `version`, `hash` (of all else), the sizes of the pages, the
// requests in the order of submission, those that run in the order of admission, with their caches,
// and the pools of pages, one for each group.
//
//===----------------------------------------------------------------------===//

#include "Scheduler.h"

#include "meshwright/runtime/src/bundle/Manifest.h"
#include "meshwright/runtime/src/bundle/ManifestJson.h"

#include <algorithm>

namespace meshwright::rt {

static constexpr const char *kRequestsFormat = "meshwright requests";
static constexpr int64_t kRequestsVersion = 1;

static std::string hashOfText(const Json &json) {
  std::string text = json.dump();
  return hashOf(text.data(), text.size());
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static Json write(const Request &request) {
  auto middle = request.sequence.begin() + request.numPrompt;
  const RequestOptions &options = request.options;
  Json json = {{"id", request.id},
               {"prompt", std::vector<int64_t>(request.sequence.begin(), middle)},
               {"tokens", std::vector<int64_t>(middle, request.sequence.end())},
               {"max_new_tokens", options.maxNewTokens},
               {"stop", options.stop},
               {"temperature", options.temperature},
               {"seed", options.seed},
               {"logits", options.wantsLogits}};
  if (options.group)
    json["group"] = *options.group;
  return json;
}

static Json write(const PagePool &pool) {
  PagePool::Saved saved = pool.save();
  Json registered = Json::array();
  for (const auto &[page, parent, tokens] : saved.registered)
    registered.push_back({{"page", page}, {"parent", parent}, {"tokens", tokens}});
  return {{"free", saved.free}, {"kept", saved.kept}, {"registered", registered}};
}

/// The sizes that a text must share with a scheduler for its pages to be used.
static Json writeLayout(const ServingSizes &sizes) {
  return {{"groups", sizes.groups},
          {"pages", sizes.pages},
          {"page_size", sizes.pageSize},
          {"ranks", sizes.deal},
          {"shares_beginnings", sizes.sharesBeginnings}};
}

bool Scheduler::save(std::string &text, std::string &error) const {
  if (isOpen) {
    error = "save: expected no step to be open";
    return false;
  }
  Json json = {{"format", kRequestsFormat},      {"version", kRequestsVersion},
               {"vocabulary", sizes.vocabulary}, {"next_id", nextId},
               {"layout", writeLayout(sizes)},   {"requests", Json::array()},
               {"running", Json::array()},       {"pools", Json::array()}};
  for (const auto &[id, request] : live)
    json["requests"].push_back(write(*request));
  for (const Request *request : running)
    json["running"].push_back({{"id", request->id},
                               {"group", request->group},
                               {"length", request->length},
                               {"pages", request->pages}});
  for (const PagePool &pool : pools)
    json["pools"].push_back(write(pool));
  json["hash"] = hashOfText(json);
  text = json.dump() + "\n";
  return true;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

static std::shared_ptr<Request> readRequest(const Json &json) {
  auto request = std::make_shared<Request>();
  json.at("id").get_to(request->id);
  json.at("prompt").get_to(request->sequence);
  request->numPrompt = request->sequence.size();
  auto tokens = json.at("tokens").get<std::vector<int64_t>>();
  request->sequence.insert(request->sequence.end(), tokens.begin(), tokens.end());
  RequestOptions &options = request->options;
  json.at("max_new_tokens").get_to(options.maxNewTokens);
  json.at("stop").get_to(options.stop);
  json.at("temperature").get_to(options.temperature);
  json.at("seed").get_to(options.seed);
  json.at("logits").get_to(options.wantsLogits);
  if (json.contains("group"))
    options.group = json.at("group").get<int64_t>();
  return request;
}

static PagePool::Saved readPool(const Json &json) {
  PagePool::Saved saved;
  json.at("free").get_to(saved.free);
  json.at("kept").get_to(saved.kept);
  for (const Json &page : json.at("registered"))
    saved.registered.push_back({page.at("page"), page.at("parent"), page.at("tokens")});
  return saved;
}

/// Reads the requests into a scheduler without any, as if all had just been submitted.
std::string Scheduler::readRequests(const Json &json) {
  if (json.at("vocabulary") != sizes.vocabulary)
    return "expected those of a model of " + std::to_string(sizes.vocabulary) + " tokens, got " +
           json.at("vocabulary").dump();
  json.at("next_id").get_to(nextId);
  int64_t last = -1;
  for (const Json &saved : json.at("requests")) {
    std::shared_ptr<Request> request = readRequest(saved);
    if (request->options.group && *request->options.group >= sizes.groups)
      request->options.group.reset();
    std::string problem = check(*request);
    if (problem.empty() && (request->id <= last || request->id >= nextId))
      problem = "expected ascending numbers below " + std::to_string(nextId);
    if (problem.empty() && request->countNew() >= request->options.maxNewTokens)
      problem = "has all its tokens";
    if (!problem.empty())
      return "request " + std::to_string(request->id) + ": " + problem;
    last = request->id;
    request->group = request->options.group.value_or(-1);
    getQueue(*request)[last] = request.get();
    live[last] = std::move(request);
  }
  return "";
}

/// Gives the requests that ran their pages again.
std::string Scheduler::readCaches(const Json &json) {
  std::vector<std::vector<std::vector<int64_t>>> used(sizes.groups);
  for (const Json &saved : json.at("running")) {
    int64_t id = saved.at("id"), group = saved.at("group"), length = saved.at("length");
    std::string name = "request " + std::to_string(id) + ": ";
    auto at = live.find(id);
    if (at == live.end() || at->second->status == Request::Status::Running)
      return name + "runs, and is not there";
    Request &request = *at->second;
    saved.at("pages").get_to(request.pages);
    int64_t known = request.sequence.size(), pages = request.pages.size();
    if (group < 0 || group >= sizes.groups || request.options.group.value_or(group) != group)
      return name + "runs in group " + std::to_string(group);
    if (length < 0 || length >= known || pages > countBlocks(known) ||
        pages < countBlocks(length + 1 == known ? length : known))
      return name + std::to_string(length) + " of " + std::to_string(known) + " tokens in " +
             std::to_string(pages) + " pages";
    getQueue(request).erase(id);
    request.status = Request::Status::Running;
    request.group = group;
    request.length = length;
    running.push_back(&request);
    used[group].push_back(request.pages);
  }
  std::string error;
  for (int64_t group = 0; group < sizes.groups; ++group)
    if (!pools[group].restore(readPool(json.at("pools").at(group)), used[group], error))
      return "group " + std::to_string(group) + ": " + error;
  for (Request *request : running) {
    const PagePool &pool = pools[request->group];
    while (request->numShared < int64_t(request->pages.size()) &&
           pool.isRegistered(request->pages[request->numShared]))
      ++request->numShared;
    if (request->numShared * sizes.pageSize > request->length)
      return "request " + std::to_string(request->id) +
             ": would write to a page that is registered";
  }
  return "";
}

/// Returns true if the requests that ran can go on with their pages.
static bool canGoOn(const Json &json, const ServingSizes &sizes) {
  std::map<int64_t, int64_t> count;
  bool isFull = false;
  for (const Json &saved : json.at("running"))
    isFull |= ++count[saved.at("group").get<int64_t>()] > sizes.maxRequests;
  return !isFull && json.at("layout") == writeLayout(sizes);
}

bool Scheduler::restore(const std::string &text, bool hasCaches, std::string &error) {
  auto fail = [&](const std::string &what) {
    error = "saved requests: " + what;
    return false;
  };
  if (isOpen || !live.empty())
    return fail("expected a scheduler without requests");
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != kRequestsFormat)
    return fail("not a text of requests");
  if (Json version = json.value("version", Json()); version != kRequestsVersion)
    return fail("expected version " + std::to_string(kRequestsVersion) +
                ", which this runtime reads, got " + version.dump());
  Json hash = json.value("hash", Json());
  json.erase("hash");
  if (hash != hashOfText(json))
    return fail("changed since they were saved");
  Scheduler read(sizes, entries);
  try {
    std::string problem = read.readRequests(json);
    if (problem.empty() && hasCaches && canGoOn(json, sizes))
      problem = read.readCaches(json);
    if (!problem.empty())
      return fail(problem);
  } catch (const nlohmann::json::exception &exception) {
    return fail(exception.what());
  }
  read.stats = stats;
  *this = std::move(read);
  return true;
}

} // namespace meshwright::rt
