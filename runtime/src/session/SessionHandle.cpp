//===- SessionHandle.cpp - the C interface of sessions --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/SessionHandle.h"

#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Server.h"

using namespace meshwright::rt;

namespace {

/// A value, and the shape that its C view points to.
struct OwnedPort {
  ProgramValue value;
  mw_port view;
};

/// The ports of an entry. They stay where they are, because views point to them.
struct EntryPorts {
  int64_t index;
  std::string name;
  std::vector<OwnedPort> inputs, outputs;
};

} // namespace

struct mw_session {
  std::shared_ptr<Session> session;
  RunOptions options;
  mw_say say;
  void *user;
  std::vector<EntryPorts> entries;
  std::vector<OwnedPort> states;
  /// Serves the requests of a program that does; null until the first call for them.
  std::unique_ptr<Server> server;

  /// Returns null, with an error, if the program does not serve.
  Server *getServer() {
    std::string error;
    if (!server)
      server = Server::create(session, options, error);
    finish(server != nullptr, error);
    return server.get();
  }
  int32_t finish(bool isFine, const std::string &error) const {
    if (!isFine)
      say(user, MW_ERROR, "", error.c_str());
    return isFine ? 0 : 1;
  }
  /// Returns null, with an error, for a number that is no entry's.
  const EntryPorts *findEntry(int64_t entry) const {
    if (entry >= 0 && entry < int64_t(entries.size()))
      return &entries[entry];
    finish(false, "entry " + std::to_string(entry) + ": expected a number from 0 on, below " +
                      std::to_string(entries.size()));
    return nullptr;
  }
  /// Returns null, with an error, for an unknown entry or kind.
  const std::vector<OwnedPort> *findPorts(int64_t entry, int32_t kind) const {
    const EntryPorts *ports = findEntry(entry);
    if (!ports || kind == MW_STATE || kind == MW_INPUT || kind == MW_OUTPUT)
      return !ports             ? nullptr
             : kind == MW_STATE ? &states
             : kind == MW_INPUT ? &ports->inputs
                                : &ports->outputs;
    finish(false, "ports of kind " + std::to_string(kind) +
                      ": expected MW_INPUT, MW_OUTPUT or MW_STATE");
    return nullptr;
  }
  int32_t run(int64_t entry, const mw_tensor *inputs, void *const *outputs, int64_t gpu,
              bool checkFinite) const;
};

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

static void setViews(std::vector<OwnedPort> &ports) {
  for (OwnedPort &port : ports) {
    const ProgramValue &value = port.value;
    port.view = {value.name.c_str(),
                 int64_t(value.type),
                 int64_t(value.shape.size()),
                 value.shape.data(),
                 0,
                 nullptr,
                 value.indexBound,
                 value.defaultElement.empty() ? nullptr : value.defaultElement.data()};
  }
}

static std::vector<OwnedPort> ownPorts(std::vector<ProgramValue> values) {
  std::vector<OwnedPort> owned;
  for (ProgramValue &value : values)
    owned.push_back({std::move(value), {}});
  return owned;
}

/// Returns an empty string if the type and the rank of a tensor are valid, else an error.
static std::string checkTensor(const mw_tensor &tensor, const std::string &name) {
  if (!sizeOf(DType(tensor.dtype)))
    return "'" + name + "': expected a type of meshwright-c/ElementTypes.def, got " +
           std::to_string(tensor.dtype);
  if (tensor.rank < 0)
    return "'" + name + "': expected 0 or more dimensions, got " + std::to_string(tensor.rank);
  return "";
}

static HostTensor toTensor(const mw_tensor &tensor, int64_t gpu) {
  return {DType(tensor.dtype), std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank),
          tensor.data, tensor.data ? gpu : -1};
}

//===----------------------------------------------------------------------===//
// Starting
//===----------------------------------------------------------------------===//

namespace meshwright::rt {

bool startSession(Session &session, const SessionStart &start, RunOptions &options,
                  std::string &error) {
  if (!start.state.empty() && !session.load(start.state, error))
    return false;
  session.setRecovery(start.recovers);
  const ProgramDescription &program = session.getDescription();
  if (start.graphs == "on")
    options.graphs = GraphUse::On;
  else if (start.graphs == "off")
    options.graphs = GraphUse::Off;
  else if (start.graphs == "auto")
    options.graphs = GraphUse::Auto;
  else
    error = "graphs: expected on, off or auto, got '" + start.graphs + "'";
  if (error.empty() && options.graphs == GraphUse::On && program.targetChip.empty())
    error = "graphs is 'on', and the target " + program.getTarget() +
            " has no graphs: expected off or auto";
  return error.empty();
}

mw_session *openHandle(std::shared_ptr<Session> session, const RunOptions &options, mw_say say,
                       void *user) {
  auto handle = std::make_unique<mw_session>();
  const ProgramDescription &program = session->getDescription();
  for (size_t i = 0; i < program.entries.size(); ++i) {
    if (program.isPart(i))
      continue;
    Call call = program.getCall(i);
    handle->entries.push_back({int64_t(i), program.entries[i].name,
                               ownPorts(std::move(call.inputs.values)),
                               ownPorts(std::move(call.outputs.values))});
  }
  for (const ProgramState &state : program.states)
    if (!state.isTransient)
      handle->states.push_back({state.value, {}});
  for (EntryPorts &entry : handle->entries) {
    setViews(entry.inputs);
    setViews(entry.outputs);
  }
  setViews(handle->states);
  handle->session = std::move(session);
  handle->options = options;
  handle->say = say;
  handle->user = user;
  return handle.release();
}

} // namespace meshwright::rt

mw_session *mw_bundle_start(const char *path, const mw_run_options *options, mw_say say,
                            void *user) {
  std::string error;
  auto fail = [&]() -> mw_session * {
    say(user, MW_ERROR, "", error.c_str());
    return nullptr;
  };
  if (options->target) {
    error = "a bundle is compiled already: expected no target";
    return fail();
  }
  if (options->state && !*options->state) {
    error = kEmptyState;
    return fail();
  }
  BundleWeights weights;
  if (options->weights)
    weights.file = options->weights;
  if (options->random_weights)
    weights.seed = *options->random_weights;
  std::shared_ptr<Session> session =
      openBundle(path, options->backend ? options->backend : "local", weights, error);
  if (!session)
    return fail();
  SessionStart start;
  if (options->state)
    start.state = options->state;
  start.recovers = options->no_recover == 0;
  if (options->graphs)
    start.graphs = options->graphs;
  RunOptions settings;
  settings.threadsPerRank = options->threads_per_rank;
  settings.timeout = options->timeout;
  if (options->trace)
    settings.traceFile = options->trace;
  if (!startSession(*session, start, settings, error))
    return fail();
  return openHandle(std::move(session), settings, say, user);
}

void mw_session_close(mw_session *session) { delete session; }

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

int64_t mw_session_count_entries(const mw_session *session) { return session->entries.size(); }

const char *mw_session_entry(const mw_session *session, int64_t index) {
  const EntryPorts *entry = session->findEntry(index);
  return entry ? entry->name.c_str() : nullptr;
}

int64_t mw_session_count(const mw_session *session, int64_t entry, int32_t kind) {
  const std::vector<OwnedPort> *ports = session->findPorts(entry, kind);
  return ports ? int64_t(ports->size()) : -1;
}

const mw_port *mw_session_port(const mw_session *session, int64_t entry, int32_t kind,
                               int64_t index) {
  const std::vector<OwnedPort> *ports = session->findPorts(entry, kind);
  if (ports && index >= 0 && index < int64_t(ports->size()))
    return &(*ports)[index].view;
  if (ports)
    session->finish(false, "port " + std::to_string(index) +
                               ": expected a number from 0 on, below " +
                               std::to_string(ports->size()));
  return nullptr;
}

int32_t mw_session::run(int64_t entry, const mw_tensor *inputs, void *const *outputs, int64_t gpu,
                        bool checkFinite) const {
  const EntryPorts *found = findEntry(entry);
  if (!found)
    return 1;
  const EntryPorts &ports = *found;
  std::vector<HostTensor> tensors;
  for (size_t i = 0; i < ports.inputs.size(); ++i) {
    if (std::string problem = checkTensor(inputs[i], ports.inputs[i].value.name); !problem.empty())
      return finish(false, "input " + problem);
    tensors.push_back(toTensor(inputs[i], gpu));
  }
  RunOptions settings = options;
  settings.checkFinite = checkFinite;
  settings.outputGpu = gpu;
  std::string error;
  bool isFine = session->run(ports.index, tensors, {outputs, outputs + ports.outputs.size()},
                             settings, error);
  return finish(isFine, error);
}

int32_t mw_session_run(mw_session *session, int64_t entry, const mw_tensor *inputs,
                       void *const *outputs, int32_t check_finite) {
  return session->run(entry, inputs, outputs, /*gpu=*/-1, check_finite != 0);
}

int32_t mw_session_run_on_gpu(mw_session *session, int64_t entry, const mw_tensor *inputs,
                              void *const *outputs, int64_t gpu, int32_t check_finite) {
  if (gpu < 0 || session->session->getDescription().targetChip.empty())
    return session->finish(false, "a call on GPU " + std::to_string(gpu) +
                                      ": expected a program for GPUs, and a number from 0 on");
  return session->run(entry, inputs, outputs, gpu, check_finite != 0);
}

int32_t mw_session_get_state(mw_session *session, void *const *arrays) {
  std::string error;
  bool isFine = session->session->getStates({arrays, arrays + session->states.size()}, error);
  return session->finish(isFine, error);
}

int32_t mw_session_set_state(mw_session *session, int64_t count, const char *const *names,
                             const mw_tensor *tensors) {
  std::map<std::string, HostTensor> values;
  if (count < 0)
    return session->finish(false, "states: expected 0 or more, got " + std::to_string(count));
  for (int64_t i = 0; i < count; ++i)
    if (std::string problem = checkTensor(tensors[i], names[i]); !problem.empty())
      return session->finish(false, "state " + problem);
    else if (!values.emplace(names[i], toTensor(tensors[i], /*gpu=*/-1)).second)
      return session->finish(false, "state '" + std::string(names[i]) + "' is given twice");
  std::string error;
  bool isFine = session->session->setStates(values, error);
  return session->finish(isFine, error);
}

int32_t mw_session_save(mw_session *session, const char *folder) {
  std::string error;
  bool isFine = session->server ? session->server->save(folder, error)
                                : session->session->save(folder, error);
  return session->finish(isFine, error);
}

//===----------------------------------------------------------------------===//
// Requests
//===----------------------------------------------------------------------===//

struct mw_request {
  ServedRequest served;
};

mw_request *mw_serve_submit(mw_session *session, const int64_t *prompt, int64_t length,
                            const mw_request_options *options) {
  Server *server = session->getServer();
  if (!server)
    return nullptr;
  meshwright::RequestOptions wanted;
  if (options->max_new_tokens != 0)
    wanted.maxNewTokens = options->max_new_tokens;
  if (length < 0 || options->num_stop < 0) {
    session->finish(false, "a request: expected 0 or more tokens of the prompt and to stop, got " +
                               std::to_string(length) + " and " +
                               std::to_string(options->num_stop));
    return nullptr;
  }
  wanted.stop.assign(options->stop, options->stop + options->num_stop);
  wanted.temperature = options->temperature;
  wanted.seed = options->seed;
  if (options->group != 0)
    wanted.group = options->group - 1;
  std::string error;
  ServedRequest served = server->submit({prompt, prompt + length}, std::move(wanted), error);
  if (session->finish(served.request != nullptr, error) != 0)
    return nullptr;
  return new mw_request{std::move(served)};
}

int64_t mw_serve_step(mw_session *session) {
  Server *server = session->getServer();
  std::string error;
  int64_t tokens = server ? server->step(error) : -1;
  if (server)
    session->finish(tokens >= 0, error);
  return tokens;
}

int32_t mw_serve_cancel(mw_session *session, mw_request *request) {
  Server *server = session->getServer();
  std::string error;
  if (!server)
    return 1;
  bool isFine = server->cancel(*request->served.request, error);
  return session->finish(isFine, error);
}

const int64_t *mw_serve_tokens(const mw_request *request, int64_t *count) {
  const meshwright::Request &own = *request->served.request;
  *count = own.countNew();
  return own.getNew();
}

int32_t mw_serve_state(const mw_request *request) {
  return int32_t(request->served.request->reason);
}

void mw_serve_free(mw_request *request) { delete request; }

int32_t mw_session_is_stuck(const mw_session *session) {
  return session->session->getWorld().isStuck();
}
