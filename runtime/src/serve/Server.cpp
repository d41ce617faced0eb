//===- Server.cpp - a session that serves requests ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Server.h"

#include "Draw.h"
#include "Scheduler.h"

#include <algorithm>
#include <cstdlib>

namespace meshwright::rt {

Server::Server(std::shared_ptr<Session> session, const RunOptions &options)
    : session(std::move(session)), options(options) {}
Server::~Server() = default;

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

static size_t findValue(const std::vector<ProgramValue> &values, const std::string &name) {
  auto found = std::find_if(values.begin(), values.end(),
                            [&](const ProgramValue &value) { return value.name == name; });
  return found - values.begin();
}

/// The inputs of a batch, by name.
static const std::pair<const char *, std::vector<int64_t> Batch::*> kInputs[] = {
    {"tokens", &Batch::tokens}, {"positions", &Batch::positions}, {"slots", &Batch::slots},
    {"tables", &Batch::tables}, {"starts", &Batch::starts},       {"lengths", &Batch::lengths},
    {"counts", &Batch::counts}};

static const std::vector<int64_t> *findInput(const Batch &batch, const std::string &name) {
  for (auto [known, member] : kInputs)
    if (name == known)
      return &(batch.*member);
  return nullptr;
}

/// The most tokens of all groups of an entry "tokens=16,sum=32"; no limit if the name states none.
static int64_t findSum(const std::string &name) {
  static const std::string key = ",sum=";
  size_t at = name.find(key);
  return at == std::string::npos ? BatchEntry::kNoSum : std::strtoll(name.c_str() + at + key.size(), nullptr, 10);
}

bool Server::readEntries(std::string &error) {
  const ProgramDescription &program = session->getDescription();
  for (size_t i = 0; i < program.entries.size(); ++i) {
    if (program.isPart(i))
      continue;
    Call call = program.getCall(i);
    const std::vector<ProgramValue> &outputs = call.outputs.values;
    Entry entry{int64_t(i), 0, call.inputs.values, outputs.size(), findValue(outputs, "next"),
                findValue(outputs, "logits")};
    auto refuse = [&](const std::string &what) {
      error = "entry '" + program.entries[i].name + "' is no step of serving: " + what;
      return false;
    };
    if (entry.next == outputs.size() || entry.logits == outputs.size())
      return refuse("expected the outputs 'next' and 'logits'");
    size_t tokens = findValue(entry.inputs, "tokens");
    if (tokens == entry.inputs.size() || entry.inputs[tokens].shape.size() != 2)
      return refuse("expected an input 'tokens' of groups and their tokens");
    entry.tokens = entry.inputs[tokens].shape[1];
    for (const ProgramValue &input : entry.inputs)
      if (!findInput(Batch(), input.name) || input.type != DType::I64)
        return refuse("it has an input '" + input.name + "'");
    logitsType = outputs[entry.logits].type;
    entries.push_back(std::move(entry));
  }
  return true;
}

std::unique_ptr<Server> Server::create(std::shared_ptr<Session> session, const RunOptions &options,
                                       std::string &error) {
  const ProgramDescription &program = session->getDescription();
  if (!program.serving) {
    error = "the program does not serve requests: expected one of Model.serve";
    return nullptr;
  }
  std::unique_ptr<Server> server(new Server(session, options));
  if (!server->readEntries(error))
    return nullptr;
  std::vector<BatchEntry> steps;
  for (const Entry &entry : server->entries) {
    const EntryDescription &described = program.entries[entry.index];
    // Without a prediction a token costs as much as any other, and a call as much as some tokens.
    constexpr double kCallTokens = 8;
    double seconds = described.seconds > 0 ? described.seconds : 1e-6 * (entry.tokens + kCallTokens);
    steps.push_back({described.name, entry.tokens, findSum(described.name), seconds});
  }
  server->scheduler = Scheduler::create(*program.serving, std::move(steps), error);
  if (!server->scheduler)
    return nullptr;
  const ServingSizes &sizes = server->getSizes();
  server->chosen.resize(sizes.groups * sizes.maxRequests);
  SavedExtras extras = session->getExtras();
  if (!extras.requests.empty()) {
    if (!server->scheduler->restore(extras.requests, /*hasCaches=*/true, error))
      return nullptr;
    for (const std::shared_ptr<const Request> &request : server->scheduler->getRequests())
      if (request->options.wantsLogits)
        server->logitsOf[request->id] = std::make_shared<std::vector<char>>();
  }
  return server;
}

const ServingSizes &Server::getSizes() const { return scheduler->getSizes(); }

std::vector<std::string> Server::getEntries() const {
  std::vector<std::string> names;
  for (const BatchEntry &entry : scheduler->getEntries())
    names.push_back(entry.name);
  return names;
}

//===----------------------------------------------------------------------===//
// Requests
//===----------------------------------------------------------------------===//

ServedRequest Server::submit(const std::vector<int64_t> &prompt, RequestOptions options,
                             std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  bool wantsLogits = options.wantsLogits;
  ServedRequest served{scheduler->submit(prompt, std::move(options), error), nullptr};
  if (served.request && wantsLogits)
    served.logits = logitsOf[served.request->id] = std::make_shared<std::vector<char>>();
  return served;
}

bool Server::cancel(const Request &request, std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t id = request.id;
  if (!scheduler->cancel(request, error))
    return false;
  logitsOf.erase(id);
  return true;
}

std::vector<ServedRequest> Server::getRequests() const {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<ServedRequest> requests;
  for (std::shared_ptr<const Request> &request : scheduler->getRequests()) {
    auto logits = logitsOf.find(request->id);
    requests.push_back({request, logits == logitsOf.end() ? nullptr : logits->second});
  }
  return requests;
}

ServingStats Server::getStats() const {
  std::lock_guard<std::mutex> lock(mutex);
  return scheduler->getStats();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

/// Calls the entry on a batch, and fills `chosen`, and `logits` if they are wanted.
bool Server::call(const Entry &entry, const Batch &batch, bool wantsLogits, std::string &error) {
  std::vector<HostTensor> inputs;
  for (const ProgramValue &input : entry.inputs)
    inputs.push_back({input.type, input.shape, findInput(batch, input.name)->data()});
  // The session leaves out an output without memory.
  std::vector<void *> outputs(entry.numOutputs);
  outputs[entry.next] = chosen.data();
  if (wantsLogits) {
    logits.resize(chosen.size() * getSizes().vocabulary * sizeOf(logitsType));
    outputs[entry.logits] = logits.data();
  }
  return session->run(entry.index, inputs, outputs, options, error);
}

const char *Server::getRow(const BatchRow &row) const {
  int64_t index = row.group * getSizes().maxRequests + row.row;
  return logits.data() + index * getSizes().vocabulary * sizeOf(logitsType);
}

/// Draws the tokens of requests with a temperature, from their logits.
bool Server::choose(const Batch &batch, std::string &error) {
  for (const BatchRow &row : batch.rows) {
    const RequestOptions &wanted = row.request->options;
    if (!row.isSampled || wanted.temperature == 0)
      continue;
    int64_t token = drawToken(logitsType, getRow(row), getSizes().vocabulary, wanted.temperature,
                              wanted.seed, row.start + row.count);
    if (token < 0) {
      error = "request " + std::to_string(row.request->id) +
              ": expected logits that are numbers, got NaN";
      return false;
    }
    chosen[row.group * getSizes().maxRequests + row.row] = token;
  }
  return true;
}

int64_t Server::step(std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  const Batch *batch = scheduler->plan();
  if (!batch)
    return 0;
  bool wantsLogits = false;
  for (const BatchRow &row : batch->rows)
    wantsLogits |= row.isSampled &&
                   (row.request->options.wantsLogits || row.request->options.temperature > 0);
  if (!call(entries[batch->entry], *batch, wantsLogits, error) || !choose(*batch, error)) {
    scheduler->abort();
    return -1;
  }
  // The rows end with the step.
  std::vector<std::pair<std::shared_ptr<std::vector<char>>, const char *>> added;
  for (const BatchRow &row : batch->rows)
    if (row.isSampled && row.request->options.wantsLogits)
      added.emplace_back(logitsOf.at(row.request->id), getRow(row));
  int64_t numTokens = batch->numTokens;
  if (!scheduler->commit(chosen, error))
    return -1;
  for (auto &[to, row] : added)
    to->insert(to->end(), row, row + getSizes().vocabulary * sizeOf(logitsType));
  // Its callers keep the logits of a request that is done.
  for (auto at = logitsOf.begin(); !added.empty() && at != logitsOf.end();)
    at = scheduler->isLive(at->first) ? std::next(at) : logitsOf.erase(at);
  return numTokens;
}

bool Server::warmUp(std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  const ServingSizes &sizes = getSizes();
  for (const Entry &entry : entries) {
    Batch batch;
    batch.tokens.assign(sizes.groups * entry.tokens, 0);
    batch.positions = batch.tokens;
    batch.slots.assign(sizes.groups * entry.tokens, -1);
    batch.tables.assign(sizes.groups * sizes.maxRequests * sizes.countBlocks(), -1);
    batch.starts.assign(sizes.groups * (sizes.maxRequests + 1), 0);
    batch.lengths.assign(sizes.groups * sizes.maxRequests, 0);
    batch.counts.assign(sizes.groups, 0);
    if (!call(entry, batch, /*wantsLogits=*/false, error))
      return false;
  }
  return true;
}

bool Server::save(const std::string &folder, std::string &error) {
  std::lock_guard<std::mutex> lock(mutex);
  SavedExtras extras = session->getExtras();
  return scheduler->save(extras.requests, error) && session->setExtras(std::move(extras), error) &&
         session->save(folder, error);
}

} // namespace meshwright::rt
