//===- Json.cpp - reports for programs ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "meshwright/lib/CostModel/CostModel.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"

using namespace meshwright;
namespace json = llvm::json;

static json::Value toJson(const SourceLocation &location) {
  return json::Object{{"file", json::fixUTF8(location.file)},
                      {"line", location.line},
                      {"name", json::fixUTF8(location.name)}};
}

/// Writes counts and bytes as integers, so that readers get exact numbers.
static json::Value toJson(double number) {
  if (number == static_cast<double>(static_cast<int64_t>(number)))
    return static_cast<int64_t>(number);
  return number;
}

static void printFetches(const FetchReport &fetches, json::OStream &json) {
  auto printTimes = [&](auto &moved) {
    json.attribute("bytes_per_rank", moved.bytes);
    json.attribute("seconds", moved.seconds);
    json.attribute("exposed_seconds", moved.exposedSeconds);
  };
  json.attribute("axes", json::Array(fetches.axes));
  json.attribute("ranks", fetches.ranks);
  json.attribute("align", fetches.align);
  json.attributeArray("weights", [&] {
    for (const FetchReport::Weight &weight : fetches.weights)
      json.object([&] {
        json.attribute("name", weight.name);
        json.attribute("rows", weight.rows);
        json.attribute("stored_rows", weight.storedRows);
        json.attribute("bytes", weight.bytes);
        json.attribute("stored_bytes", weight.storedBytes);
        json.attribute("kind", weight.kind);
        json.attributeArray("gathers", [&] {
          for (const FetchReport::Gather &gather : weight.gathers)
            json.object([&] {
              json.attribute("phase", gather.phase);
              printTimes(gather);
              json.attribute("ahead", gather.ahead);
              json.attribute("slot", gather.slot);
              json.attribute("first", gather.first);
              json.attribute("last", gather.last);
            });
        });
        if (weight.scatter)
          json.attributeObject("scatter", [&] { printTimes(*weight.scatter); });
        else
          json.attribute("scatter", nullptr);
      });
  });
  json.attributeArray("slots", [&] {
    for (const FetchReport::Slot &slot : fetches.slots)
      json.object([&] {
        json.attribute("offset", slot.offset);
        json.attribute("bytes", slot.bytes);
      });
  });
  json.attributeObject("seconds", [&] {
    json.attribute("gather", fetches.gatherSeconds);
    json.attribute("scatter", fetches.scatterSeconds);
    json.attribute("exposed", fetches.exposedSeconds);
  });
  json.attributeObject("peak", [&] {
    json.attribute("bytes", fetches.peak);
    auto printKnown = [&](llvm::StringRef name, std::optional<int64_t> bytes) {
      json.attribute(name, bytes ? json::Value(*bytes) : json::Value(nullptr));
    };
    printKnown("ceiling", fetches.ceiling);
    printKnown("least", fetches.least);
  });
}

static void printServing(const ServingReport &serving, json::OStream &json) {
  json.attribute("groups", serving.sizes.groups);
  json.attribute("max_length", serving.sizes.maxLength);
  json.attribute("page_size", serving.sizes.pageSize);
  json.attribute("pages", serving.sizes.pages);
  json.attribute("cache_bytes_per_token", serving.bytesPerToken);
  json.attribute("cache", serving.getCacheSharding());
  json.attribute("dense_tp", serving.denseTp);
  json.attribute("dp_lm_head", serving.hasOwnHead ? "on" : "off");
  json.attributeArray("entries", [&] {
    for (const ServingReport::Entry &entry : serving.entries)
      json.object([&] {
        json.attribute("name", entry.name);
        json.attribute("gather", llvm::StringRef(entry.name).contains(",sum=") ? "sum" : "max");
        json.attribute("tokens", entry.tokens);
        json.attribute("rows", entry.rows);
        json.attribute("bytes_per_rank", entry.bytes);
        json.attribute("seconds", entry.seconds);
      });
  });
}

static void printAlternatives(const Report &report, json::OStream &json) {
  json.attributeArray("alternatives", [&] {
    for (const Report::PlanAlternative &plan : report.alternatives)
      json.object([&] {
        json.attributeObject("options", [&] {
          for (auto &[name, value] : plan.options)
            json.attribute(name, json::fixUTF8(value));
        });
        json.attributeObject("mesh", [&] {
          for (auto &[name, value] : plan.options)
            if (name == "mesh")
              for (llvm::StringRef axis : llvm::split(value, ',')) {
                int64_t size = 0;
                axis.split('=').second.getAsInteger(10, size);
                json.attribute(axis.split('=').first, size);
              }
        });
        json.attribute("chosen", plan.isChosen);
        json.attribute("seconds", plan.seconds);
        json.attribute("exposed_seconds", plan.exposedSeconds);
        json.attribute("memory_per_rank", plan.memory);
        json.attribute("bytes_per_rank", plan.bytes);
        json.attribute("loses", json::fixUTF8(plan.reason));
      });
  });
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
    if (std::optional<Device> device = getDevice(report.device))
      json.attribute("device_memory", device->memorySize);
    if (const Report::Decision *decision = getDeviceDecision(report))
      json.attribute("device_reason", llvm::StringRef(decision->message).split(": ").second);
    json.attribute("target", report.target);
    json.attributeArray("collectives", [&] {
      for (const Report::Collective &entry : report.collectives)
        json.object([&] {
          json.attribute("kind", entry.kind);
          json.attribute("axes", json::Array(entry.axes));
          json.attribute("role", stringifyCollectiveRole(entry.role));
          json.attribute("dims", json::Array(entry.dims));
          json.attribute("dtype", entry.dtype);
          json.attribute("count", entry.traffic.launches);
          json.attribute("bytes_per_rank", entry.traffic.bytes);
          json.attribute("bytes_of_all_ranks", entry.traffic.bytesOfAll);
          if (entry.bytesAtCapacity)
            json.attribute("bytes_at_capacity", *entry.bytesAtCapacity);
          json.attribute("location", toJson(entry.location));
        });
    });
    json.attribute("bytes_per_rank", report.total.bytes);
    json.attribute("bytes_of_all_ranks", report.total.bytesOfAll);
    json.attribute("launches_per_rank", report.total.launches);
    if (report.before)
      json.attributeObject("before", [&] {
        json.attribute("bytes_per_rank", report.before->bytes);
        json.attribute("launches_per_rank", report.before->launches);
      });
    if (report.communication)
      json.attributeObject("communication", [&] {
        json.attribute("exposed_seconds", report.communication->exposed);
        json.attribute("hidden_seconds", report.communication->hidden);
        json.attribute("run_seconds", report.communication->run);
        json.attributeObject("kernel_seconds", [&] {
          const char *const classes[] = {"rows", "gemm", "attention", "move"};
          for (int i = 0; i < 4; ++i)
            json.attribute(classes[i], report.communication->kernels[i]);
        });
      });
    if (report.fetches)
      json.attributeObject("gtp", [&] { printFetches(*report.fetches, json); });
    if (report.serving)
      json.attributeObject("serving", [&] { printServing(*report.serving, json); });
    json.attributeObject("memory_per_rank", [&] {
      json.attribute("weights", report.memory.weights);
      json.attribute("packing", report.memory.packing);
      json.attribute("state", report.memory.state);
      if (report.isTrained) {
        json.attribute("optimizer", report.memory.optimizer);
        json.attribute("masters", report.memory.masters);
        json.attribute("gradients", report.memory.gradients);
      }
      if (report.serving)
        json.attribute("cache", report.memory.cache);
      json.attribute("activations_peak", report.memory.activationsPeak);
      if (report.memory.modules.empty())
        return;
      json.attributeObject("modules", [&] {
        for (const Memory::Module &module : report.memory.modules)
          json.attributeObject(module.name, [&] {
            json.attribute("weights", module.weights);
            json.attribute("activations_peak", module.activationsPeak);
          });
      });
    });
    if (!report.attention.empty())
      json.attributeObject("attention_work", [&] {
        json.attribute("largest_over_mean", report.attentionBalance);
        json.attributeArray("places", [&] {
          for (const Report::AttentionWork &entry : report.attention)
            json.object([&] {
              json.attribute("order", entry.order);
              json.attribute("largest_pairs", entry.largest);
              json.attribute("mean_pairs", entry.mean);
              json.attribute("location", toJson(entry.location));
            });
        });
      });
    json.attributeArray("decisions", [&] {
      for (const Report::Decision &decision : report.decisions) {
        if (&decision == getDeviceDecision(report))
          continue;
        json.object([&] {
          json.attribute("pass", decision.pass);
          json.attribute("outcome", stringify(decision.outcome));
          json.attribute("message", json::fixUTF8(decision.message));
          json.attribute("location", toJson(decision.location));
          auto printNumbers = [&](auto &numbers) {
            json.attributeObject("numbers", [&] {
              for (auto &[name, number] : numbers)
                json.attribute(name, toJson(number));
            });
          };
          printNumbers(decision.numbers);
          if (decision.alternatives.empty())
            return;
          json.attributeArray("alternatives", [&] {
            for (const Alternative &alternative : decision.alternatives)
              json.object([&] {
                json.attribute("name", json::fixUTF8(alternative.name));
                json.attribute("chosen", alternative.chosen);
                json.attribute("note", json::fixUTF8(alternative.note));
                printNumbers(alternative.numbers);
              });
          });
        });
      }
    });
    json.attributeArray("warnings", [&] {
      for (const Report::Warning &warning : report.warnings)
        json.object([&] {
          json.attribute("message", json::fixUTF8(warning.message));
          json.attribute("location", toJson(warning.location));
          json.attribute("bytes", warning.bytes);
        });
    });
    if (!report.alternatives.empty())
      printAlternatives(report, json);
    if (report.program) {
      json.attributeArray("layouts", [&] { printLayouts(report.layouts, json); });
      json.attributeObject("program", [&] { printProgramFacts(*report.program, json); });
    }
    if (!report.experts.empty())
      json.attributeArray("experts", [&] {
        for (const Report::Experts &layer : report.experts)
          json.object([&] {
            json.attribute("location", toJson(layer.location));
            json.attribute("rows_per_rank", json::Array(layer.rowsPerRank));
            json.attribute("fullest_expert", layer.fullestExpert);
            json.attribute("dropped_tokens", layer.dropped);
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
