//===- Serving.cpp - the part of the module that serves -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Serving.h"

#include "Gil.h"
#include "Results.h"

#include <cstring>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace meshwright;

static std::vector<int64_t> getNewTokens(const ServedRequest &served) {
  const Request &request = *served.request;
  return {request.getNew(), request.getNew() + request.countNew()};
}

static std::vector<int64_t> getPrompt(const ServedRequest &served) {
  const Request &request = *served.request;
  return {request.sequence.begin(), request.sequence.begin() + request.numPrompt};
}

static std::optional<std::string> getReason(const ServedRequest &served) {
  const char *name = nameOf(served.request->reason);
  return name ? std::optional<std::string>(name) : std::nullopt;
}

static std::optional<int64_t> getGroup(const ServedRequest &served) {
  int64_t group = served.request->group;
  return group >= 0 ? std::optional<int64_t>(group) : std::nullopt;
}

static void bindRequests(nb::module_ &m) {
  nb::class_<RequestOptions>(m, "RequestOptions")
      .def(nb::init<>())
      .def_rw("max_new_tokens", &RequestOptions::maxNewTokens)
      .def_rw("stop", &RequestOptions::stop)
      .def_rw("temperature", &RequestOptions::temperature)
      .def_rw("seed", &RequestOptions::seed)
      .def_rw("logits", &RequestOptions::wantsLogits)
      .def_rw("group", &RequestOptions::group, nb::arg().none());
  nb::class_<ServedRequest>(m, "ServedRequest")
      .def_prop_ro("id", [](const ServedRequest &served) { return served.request->id; })
      .def_prop_ro("prompt", &getPrompt)
      .def_prop_ro("tokens", &getNewTokens)
      .def_prop_ro("done", [](const ServedRequest &served) { return served.request->isDone(); })
      .def_prop_ro("reason", &getReason)
      .def_prop_ro("group", &getGroup)
      .def_prop_ro("pages", [](const ServedRequest &served) { return served.request->pages; })
      .def_prop_ro("length", [](const ServedRequest &served) { return served.request->length; })
      // The bytes of the rows of logits, or None.
      .def_prop_ro("logits_bytes",
                   [](const ServedRequest &served) {
                     return served.logits ? std::optional<size_t>(served.logits->size())
                                          : std::nullopt;
                   })
      .def("copy_logits", [](const ServedRequest &served, uintptr_t to) {
        if (!served.logits->empty())
          std::memcpy(reinterpret_cast<void *>(to), served.logits->data(), served.logits->size());
      });
}

void meshwright::bindServing(nb::module_ &m) {
  m.def("default_buckets", &getDefaultBuckets);
  nb::enum_<TokenGather>(m, "TokenGather")
      .value("auto", TokenGather::Auto)
      .value("max", TokenGather::Max)
      .value("sum", TokenGather::Sum);
  nb::class_<ServeOptions>(m, "ServeOptions")
      .def(nb::init<>())
      .def_rw("groups", &ServeOptions::groups)
      .def_rw("deal", &ServeOptions::deal)
      .def_rw("page_size", &ServeOptions::pageSize)
      .def_rw("pages", &ServeOptions::pages)
      .def_rw("max_requests", &ServeOptions::maxRequests)
      .def_rw("buckets", &ServeOptions::buckets)
      .def_rw("gather", &ServeOptions::gather)
      .def_rw("prefix_cache", &ServeOptions::sharesBeginnings);
  nb::class_<ServingSizes>(m, "ServingSizes")
      .def_ro("groups", &ServingSizes::groups)
      .def_ro("max_length", &ServingSizes::maxLength)
      .def_ro("page_size", &ServingSizes::pageSize)
      .def_ro("pages", &ServingSizes::pages)
      .def_ro("max_requests", &ServingSizes::maxRequests)
      .def_ro("vocabulary", &ServingSizes::vocabulary);
  nb::class_<ServingStats>(m, "ServingStats")
      .def_ro("steps", &ServingStats::steps)
      .def_ro("prompt_tokens", &ServingStats::promptTokens)
      .def_ro("generated", &ServingStats::generated)
      .def_ro("preempted", &ServingStats::preempted)
      .def_ro("calls", &ServingStats::calls)
      .def_ro("pages", &ServingStats::pages)
      .def_ro("free_pages", &ServingStats::freePages)
      .def_ro("waiting", &ServingStats::waiting)
      .def_ro("running", &ServingStats::running);
  bindRequests(m);
  nb::class_<Server>(m, "Server")
      .def_static("open", [](const Session &session) { return toPython(Server::open(session)); })
      .def_prop_ro("sizes", &Server::getSizes)
      .def_prop_ro("entries", &Server::getEntries)
      .def_prop_ro("logits_type",
                   [](const Server &server) { return std::string(toString(server.getLogitsType())); })
      .def_prop_ro("requests", &Server::getRequests)
      .def_prop_ro("stats", &Server::getStats)
      .def("submit",
           [](Server &server, const std::vector<int64_t> &prompt, const RequestOptions &options) {
             return toPython(server.submit(prompt, options));
           })
      .def("cancel",
           [](Server &server, const ServedRequest &request) {
             return toPython(withoutGil([&] { return server.cancel(request); }));
           })
      .def("step", [](Server &server) { return toPython(withoutGil([&] { return server.step(); })); })
      .def("warm_up",
           [](Server &server) { return toPython(withoutGil([&] { return server.warmUp(); })); })
      .def("save", [](const Server &server, std::string_view folder) {
        return toPython(withoutGil([&] { return server.save(folder); }));
      });
}
