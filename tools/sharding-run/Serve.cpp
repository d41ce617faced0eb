//===- Serve.cpp - prompts and what a bundle continues them with ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Serve.h"

#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/Server.h"
#include "meshwright/runtime/include/SessionHandle.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace meshwright;
using namespace meshwright::run;

using Prompts = std::vector<std::vector<int64_t>>;

static bool readPrompts(const std::string &path, Prompts &prompts, std::string &error) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    error = path + ": cannot be read";
    return false;
  }
  auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  bool isFine = json.is_array();
  for (size_t i = 0; isFine && i < json.size(); ++i) {
    isFine = json[i].is_array();
    for (size_t j = 0; isFine && j < json[i].size(); ++j)
      isFine = json[i][j].is_number_integer();
    if (isFine)
      prompts.push_back(json[i].get<std::vector<int64_t>>());
  }
  if (!isFine)
    error = path + ": expected a list of prompts, each a list of tokens, as in [[1, 15, 7], [1, 4]]";
  return isFine;
}

/// Steps until all requests are done.
static bool finish(rt::Server &server, size_t count, std::string &error) {
  rt::Progress progress("serving", int64_t(count));
  size_t left = count;
  while (true) {
    int64_t tokens = server.step(error);
    if (tokens <= 0)
      return tokens == 0;
    for (size_t live = server.getRequests().size(); left > live; --left)
      progress.step();
  }
}

Status run::servePrompts(const Options &options) {
  std::string error;
  Prompts prompts;
  if (!readPrompts(options.prompts, prompts, error))
    return fail(error);
  rt::BundleWeights weights{options.weights, options.randomWeights, options.verifyWeights};
  std::shared_ptr<rt::Session> session =
      rt::openBundle(options.model, options.backend, weights, error);
  rt::RunOptions running = options.running;
  if (!session ||
      !rt::startSession(*session, {options.state, options.recover, "auto"}, running, error))
    return fail(error);
  std::unique_ptr<rt::Server> server = rt::Server::create(session, running, error);
  if (!server)
    return fail(error);
  std::vector<rt::ServedRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(server->submit(prompts[i], options.request, error));
    static const std::string ofStop = "stop: ";
    if (!requests.back().request && error.rfind(ofStop, 0) == 0)
      return fail("--" + error);
    if (!requests.back().request)
      return fail(options.prompts + ": prompt " + std::to_string(i) + ": " + error);
  }
  if (!finish(*server, requests.size(), error) ||
      (!options.saveState.empty() && !server->save(options.saveState, error)))
    return fail(error);
  if (!options.speaks)
    return Fine;
  nlohmann::json completions = nlohmann::json::array();
  for (const rt::ServedRequest &served : requests) {
    const Request &request = *served.request;
    completions.push_back(
        std::vector<int64_t>(request.getNew(), request.getNew() + request.countNew()));
  }
  std::string text = completions.dump() + "\n";
  if (options.completions.empty() || options.completions == "-")
    std::fputs(text.c_str(), stdout);
  else if (!rt::WholeFile::write(options.completions, text, error))
    return fail(error);
  return Fine;
}
