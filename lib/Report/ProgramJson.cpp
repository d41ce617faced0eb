//===- ProgramJson.cpp - the launches and buffers of a plan as JSON -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/ProgramFacts.h"

#include "llvm/Support/JSON.h"

using namespace meshwright;
namespace json = llvm::json;

/// Writes a number that may be unknown.
static json::Value orNull(const std::optional<double> &number) {
  return number ? json::Value(*number) : json::Value(nullptr);
}

static void printLaunch(const ProgramFacts::Launch &launch, json::OStream &json) {
  json.attribute("kind", launch.kind);
  json.attribute("op", launch.op);
  json.attribute("ops", json::Array(launch.ops));
  json.attribute("module", json::fixUTF8(launch.location.name));
  json.attribute("file", json::fixUTF8(launch.location.file));
  json.attribute("line", launch.location.line);
  json.attribute("layer", json::fixUTF8(launch.layer));
  json.attribute("stream", launch.stream);
  json.attribute("begin_seconds", launch.begin);
  json.attribute("seconds", launch.seconds);
  json.attribute("bytes", launch.bytes);
  json.attribute("makers", json::Array(launch.makers));
  if (launch.kind != "collective") {
    json.attribute("flops", launch.flops);
    json.attribute("least_seconds", orNull(launch.least));
    return;
  }
  json.attribute("exposed_seconds", launch.exposed);
  json.attribute("axes", json::Array(launch.axes));
  json.attribute("role", launch.role);
  json.attribute("wait", launch.wait);
}

static void printArena(const ProgramFacts &facts, json::OStream &json) {
  json.attribute("bytes", facts.arena);
  json.attribute("live_bytes", facts.live);
  json.attributeArray("buffers", [&] {
    for (const ProgramFacts::Buffer &buffer : facts.buffers)
      json.object([&] {
        json.attribute("launch", buffer.launch);
        json.attribute("type", buffer.type);
        json.attribute("offset", buffer.offset);
        json.attribute("bytes", buffer.bytes);
        json.attribute("first", buffer.first);
        json.attribute("last", buffer.last);
      });
  });
  if (facts.peak)
    json.attributeObject("peak", [&] {
      json.attribute("launch", facts.peak->launch);
      json.attribute("bytes", facts.peak->bytes);
      json.attribute("buffers", json::Array(facts.peak->buffers));
    });
  else
    json.attribute("peak", nullptr);
}

static void printLayer(const ProgramFacts::Layer &layer, json::OStream &json) {
  json.attribute("name", json::fixUTF8(layer.name));
  json.attribute("kernels", layer.kernels);
  json.attribute("collectives", layer.collectives);
  json.attribute("weight_bytes", layer.weights);
  json.attribute("written_bytes", layer.written);
  json.attribute("sent_bytes", layer.sent);
  json.attribute("flops", layer.flops);
  json.attribute("seconds", layer.seconds);
  json.attribute("least_seconds", orNull(layer.least));
  json.attribute("exposed_seconds", layer.exposed);
  json.attribute("hidden_seconds", layer.hidden);
}

void meshwright::printProgramFacts(const ProgramFacts &facts, json::OStream &json) {
  auto objects = [&](llvm::StringRef name, auto &all, auto print) {
    json.attributeArray(name, [&] {
      for (auto &one : all)
        json.object([&] { print(one); });
    });
  };
  json.attribute("entry", facts.entry);
  json.attribute("seconds", facts.seconds);
  json.attribute("other_functions", facts.otherFunctions);
  objects("launches", facts.launches, [&](auto &launch) { printLaunch(launch, json); });
  json.attributeObject("arena", [&] { printArena(facts, json); });
  objects("layers", facts.layers, [&](auto &layer) { printLayer(layer, json); });
  objects("links", facts.links, [&](const ProgramFacts::Link &link) {
    json.attribute("axis", link.axis);
    json.attribute("bytes_per_second", link.bandwidth);
    json.attribute("latency_seconds", link.latency);
  });
  objects("sent", facts.sent, [&](const ProgramFacts::Sent &sent) {
    json.attribute("from", sent.from);
    json.attribute("to", sent.to);
    json.attribute("bytes", sent.bytes);
  });
  json.attribute("query_weight", facts.queryWeight.empty() ? json::Value(nullptr)
                                                           : json::Value(json::fixUTF8(facts.queryWeight)));
}

/// A list of ranks, of dimensions, and of ranges [begin, end].
static json::Array toJson(const std::vector<std::vector<std::optional<ElementRanges>>> &shards) {
  json::Array ranks;
  for (auto &shard : shards) {
    json::Array dims;
    for (const std::optional<ElementRanges> &ranges : shard) {
      json::Array listed;
      for (size_t i = 0; ranges && i < ranges->size(); ++i)
        listed.push_back(json::Array{(*ranges)[i].first, (*ranges)[i].second});
      dims.push_back(ranges ? json::Value(std::move(listed)) : json::Value(nullptr));
    }
    ranks.push_back(std::move(dims));
  }
  return ranks;
}

void meshwright::printLayouts(llvm::ArrayRef<TensorLayout> layouts, json::OStream &json) {
  for (const TensorLayout &layout : layouts)
    json.object([&] {
      json.attribute("name", json::fixUTF8(layout.name));
      json.attribute("role", layout.role);
      json.attribute("global", layout.whole);
      json.attribute("sharding", layout.sharding);
      json.attribute("local", layout.local);
      json.attribute("bytes_per_rank", layout.bytes);
      if (!layout.shards.empty())
        json.attribute("shards", toJson(layout.shards));
    });
}
