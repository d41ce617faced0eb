//===- Server.cpp - the public class Server -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Server.h"

#include "meshwright/lib/Driver/Facade/PlanImpl.h"

using namespace meshwright;

/// Reads options, and asks them. `get` fails after an error.
template <typename T, typename Get> static Result<T> askOptions(std::string_view text, Get get) {
  std::vector<Diagnostic> errors;
  mlir::FailureOr<ParallelizeOptions> options = readOptions(text, errors);
  if (mlir::succeeded(options) && options->mesh.empty() && options->asksForAll())
    options = collectInto(errors)("ranks: a model that serves forms groups by its mesh: expected a mesh");
  mlir::FailureOr<T> found = mlir::failed(options) ? mlir::FailureOr<T>(mlir::failure()) : mlir::FailureOr<T>(get(*options, collectInto(errors)));
  return mlir::failed(found) ? Result<T>(errors) : Result<T>(*found);
}

Result<int64_t> Plan::countGroups(std::string_view text) {
  return askOptions<int64_t>(text, [](auto &options, auto) { return options.countGroups(); });
}
Result<int64_t> Plan::countDealt(std::string_view text) {
  return askOptions<int64_t>(text, [](auto &options, auto) { return options.countDealt(); });
}
Result<TokenGather> Plan::getTokenGather(std::string_view text) {
  return askOptions<TokenGather>(text, [](auto &options, auto) { return options.getTokenGather(); });
}

struct Server::Impl {
  std::unique_ptr<rt::Server> server;
};

Result<Server> Server::open(const Session &session) {
  std::string error;
  auto impl = std::make_shared<Impl>();
  const Session::Impl &own = session.getImpl();
  impl->server = rt::Server::create(own.session, own.options, error);
  if (!impl->server)
    return std::vector<Diagnostic>{makeError(error)};
  Server server;
  server.impl = std::move(impl);
  return server;
}

/// A value, or the error if there is one.
template <typename T> static Result<T> finish(T value, const std::string &error) {
  if (!error.empty())
    return std::vector<Diagnostic>{makeError(error)};
  return value;
}

const ServingSizes &Server::getSizes() const { return impl->server->getSizes(); }
ElementType Server::getLogitsType() const { return getElementType(impl->server->getLogitsType()); }
std::vector<std::string> Server::getEntries() const { return impl->server->getEntries(); }
ServingStats Server::getStats() const { return impl->server->getStats(); }

std::vector<ServedRequest> Server::getRequests() const {
  std::vector<ServedRequest> requests;
  for (rt::ServedRequest &request : impl->server->getRequests())
    requests.push_back({std::move(request.request), std::move(request.logits)});
  return requests;
}

Result<ServedRequest> Server::submit(const std::vector<int64_t> &prompt,
                                     const RequestOptions &options) {
  std::string error;
  rt::ServedRequest made = impl->server->submit(prompt, options, error);
  return finish(ServedRequest{std::move(made.request), std::move(made.logits)}, error);
}

Result<bool> Server::cancel(const ServedRequest &request) {
  std::string error;
  bool isFine = impl->server->cancel(*request.request, error);
  return finish(isFine, error);
}

Result<int64_t> Server::step() {
  std::string error;
  int64_t tokens = impl->server->step(error);
  return finish(tokens, error);
}

Result<bool> Server::warmUp() {
  std::string error;
  bool isFine = impl->server->warmUp(error);
  return finish(isFine, error);
}

Result<bool> Server::save(std::string_view folder) const {
  std::string error;
  bool isFine = impl->server->save(std::string(folder), error);
  return finish(isFine, error);
}
