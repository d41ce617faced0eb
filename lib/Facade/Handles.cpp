//===- Handles.cpp - the C interface of sessions --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Handles.h"

#include "meshwright/lib/Facade/PlanState.h"

using namespace meshwright;

/// A session and the views of its ports.
struct mw_session {
  Session session;
  mw_say say;
  void *user;
  std::vector<EntryPorts> entries;
  std::vector<OwnedPort> states;

  template <typename T> int32_t finish(const Result<T> &result) const {
    tell(result.getDiagnostics(), say, user);
    return result ? 0 : 1;
  }
  const std::vector<OwnedPort> &getPorts(int64_t entry, int32_t kind) const {
    return kind == MW_STATE   ? states
           : kind == MW_INPUT ? entries[entry].inputs
                              : entries[entry].outputs;
  }
};

//===----------------------------------------------------------------------===//
// Views
//===----------------------------------------------------------------------===//

std::vector<OwnedPort> meshwright::ownPorts(const std::vector<Port> &ports) {
  std::vector<OwnedPort> owned(ports.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    OwnedPort &to = owned[i];
    to.port = ports[i];
    for (const std::string &alias : to.port.aliases)
      to.aliases.push_back(alias.c_str());
    to.view = {to.port.name.c_str(),
               int64_t(getRuntimeType(to.port.type)),
               int64_t(to.port.shape.size()),
               to.port.shape.data(),
               int64_t(to.aliases.size()),
               to.aliases.data(),
               0,
               to.port.defaultElement.empty() ? nullptr : to.port.defaultElement.data()};
  }
  return owned;
}

std::vector<HostArray> meshwright::toArrays(const mw_tensor *tensors, size_t count) {
  std::vector<HostArray> arrays;
  for (size_t i = 0; i < count; ++i) {
    const mw_tensor &tensor = tensors[i];
    arrays.push_back({getElementType(rt::DType(tensor.dtype)),
                      std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank),
                      tensor.data});
  }
  return arrays;
}

SessionOptions meshwright::toSessionOptions(const mw_run_options &options) {
  SessionOptions settings;
  if (options.backend)
    settings.backend = options.backend;
  settings.threadsPerRank = options.threads_per_rank;
  settings.timeout = options.timeout;
  if (options.target)
    settings.target = options.target;
  if (options.state)
    settings.state = options.state;
  settings.recover = options.no_recover == 0;
  return settings;
}

void meshwright::tell(const std::vector<Diagnostic> &diagnostics, mw_say say, void *user) {
  for (const Diagnostic &diagnostic : diagnostics) {
    std::string where = diagnostic.file;
    if (!where.empty() && diagnostic.line)
      where += ":" + std::to_string(diagnostic.line);
    say(user, int32_t(diagnostic.severity), where.c_str(), diagnostic.message.c_str());
  }
}

//===----------------------------------------------------------------------===//
// Sessions
//===----------------------------------------------------------------------===//

mw_session *meshwright::openHandle(Result<Session> session, mw_say say, void *user) {
  tell(session.getDiagnostics(), say, user);
  if (!session)
    return nullptr;
  auto handle = std::make_unique<mw_session>();
  for (const Entry &entry : session->getEntries())
    handle->entries.push_back({ownPorts(entry.inputs), ownPorts(entry.outputs)});
  handle->states = ownPorts(session->getStates());
  handle->session = std::move(*session);
  handle->say = say;
  handle->user = user;
  return handle.release();
}

mw_session *mw_bundle_start(const char *path, const mw_run_options *options, mw_say say,
                            void *user) {
  Result<Bundle> bundle = Bundle::open(path);
  if (!bundle) {
    tell(bundle.getDiagnostics(), say, user);
    return nullptr;
  }
  return openHandle(bundle->start(toSessionOptions(*options)), say, user);
}

void mw_session_close(mw_session *session) { delete session; }

int64_t mw_session_count_entries(const mw_session *session) { return session->entries.size(); }

const char *mw_session_entry(const mw_session *session, int64_t index) {
  return session->session.getEntries()[index].name.c_str();
}

int64_t mw_session_count(const mw_session *session, int64_t entry, int32_t kind) {
  return session->getPorts(entry, kind).size();
}

const mw_port *mw_session_port(const mw_session *session, int64_t entry, int32_t kind,
                               int64_t index) {
  return &session->getPorts(entry, kind)[index].view;
}

int32_t mw_session_run(mw_session *session, int64_t entry, const mw_tensor *inputs,
                       void *const *outputs, int32_t check_finite) {
  const EntryPorts &ports = session->entries[entry];
  std::vector<void *> results(outputs, outputs + ports.outputs.size());
  return session->finish(session->session.run(toArrays(inputs, ports.inputs.size()), results,
                                              session->session.getEntries()[entry].name,
                                              check_finite != 0));
}

int32_t mw_session_get_state(mw_session *session, void *const *arrays) {
  return session->finish(
      session->session.getState({arrays, arrays + session->states.size()}));
}

int32_t mw_session_set_state(mw_session *session, int64_t count, const char *const *names,
                             const mw_tensor *tensors) {
  std::vector<HostArray> arrays = toArrays(tensors, count);
  std::vector<NamedArray> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back({names[i], std::move(arrays[i])});
  return session->finish(session->session.setState(values));
}

int32_t mw_session_save(mw_session *session, const char *folder) {
  return session->finish(session->session.save(folder));
}

int32_t mw_session_is_stuck(const mw_session *session) { return session->session.isStuck(); }
