//===- Json.cpp - reports for programs ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "llvm/Support/JSON.h"

using namespace meshwright;
namespace json = llvm::json;

static json::Value toJson(const SourceLocation &location) {
  return json::Object{{"file", json::fixUTF8(location.file)},
                      {"line", location.line},
                      {"name", json::fixUTF8(location.name)}};
}

/// Counts and bytes as integers, so that they read back exactly.
static json::Value toJson(double number) {
  if (number == static_cast<double>(static_cast<int64_t>(number)))
    return static_cast<int64_t>(number);
  return number;
}

void meshwright::printJson(const Report &report, llvm::raw_ostream &os) {
  json::OStream json(os, 1);
  json.object([&] {
    json.attribute("schema", 1);
    json.attribute("ranks", report.ranks);
    json.attributeObject("mesh", [&] {
      for (auto &[name, size] : report.mesh)
        json.attribute(name, size);
    });
    json.attribute("device", report.device);
    json.attributeArray("collectives", [&] {
      for (const Report::Collective &entry : report.collectives)
        json.object([&] {
          json.attribute("kind", entry.kind);
          json.attribute("axes", json::Array(entry.axes));
          json.attribute("dims", json::Array(entry.dims));
          json.attribute("dtype", entry.dtype);
          json.attribute("count", entry.traffic.launches);
          json.attribute("bytes_per_rank", entry.traffic.bytes);
          json.attribute("location", toJson(entry.location));
        });
    });
    json.attribute("bytes_per_rank", report.total.bytes);
    json.attribute("launches_per_rank", report.total.launches);
    if (report.before)
      json.attributeObject("before", [&] {
        json.attribute("bytes_per_rank", report.before->bytes);
        json.attribute("launches_per_rank", report.before->launches);
      });
    json.attributeObject("memory_per_rank", [&] {
      json.attribute("weights", report.memory.weights);
      json.attribute("activations_peak", report.memory.activationsPeak);
    });
    json.attributeArray("decisions", [&] {
      for (const Report::Decision &decision : report.decisions)
        json.object([&] {
          json.attribute("pass", decision.pass);
          json.attribute("outcome", stringify(decision.outcome));
          json.attribute("message", json::fixUTF8(decision.message));
          json.attribute("location", toJson(decision.location));
          json.attributeObject("numbers", [&] {
            for (auto &[name, number] : decision.numbers)
              json.attribute(name, toJson(number));
          });
        });
    });
    json.attributeArray("warnings", [&] {
      for (const Report::Warning &warning : report.warnings)
        json.object([&] {
          json.attribute("message", json::fixUTF8(warning.message));
          json.attribute("location", toJson(warning.location));
          json.attribute("bytes", warning.bytes);
        });
    });
    if (!report.runJson.empty()) {
      json.attributeBegin("run");
      json.rawValue(report.runJson);
      json.attributeEnd();
    }
  });
  os << "\n";
}
