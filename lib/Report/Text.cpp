//===- Text.cpp - reports for people --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "TextTables.h"
#include "meshwright/lib/Support/NumberText.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/ToolOutputFile.h"
#include "llvm/Support/raw_ostream.h"

#include <map>
#include <set>

using namespace meshwright;
using namespace meshwright::text;
using llvm::ArrayRef;
using llvm::SmallVector;
using llvm::StringRef;

//===----------------------------------------------------------------------===//
// The report
//===----------------------------------------------------------------------===//

/// The axes of a collective, and its role where it does not move data: its stream.
static std::string getStream(const Report::Collective &entry) {
  std::string axes = llvm::join(entry.axes, ",");
  return entry.role == dist::CollectiveRole::Data
             ? axes
             : axes + " " + stringifyCollectiveRole(entry.role).str();
}

static void printCollectives(const Report &report, llvm::raw_ostream &os) {
  if (report.collectives.empty()) {
    os << "collectives: none\n";
    return;
  }
  Groups<Report::Collective> groups;
  for (const Report::Collective &entry : report.collectives) {
    std::string key = entry.kind + '\0' + entry.dtype + '\0' + generalize(entry.location.name) +
                      '\0' + entry.location.file + '\0' + std::to_string(entry.location.line);
    for (const std::string &axis : entry.axes)
      key += '\0' + axis;
    key += '\0' + stringifyCollectiveRole(entry.role).str();
    for (int64_t dim : entry.dims)
      key += '\0' + std::to_string(dim);
    // Only layers that send the same bytes are one entry.
    key +=
        '\0' + std::to_string(entry.traffic.bytes / std::max<int64_t>(entry.traffic.launches, 1));
    Group<Report::Collective> &group = groups.get(entry, key);
    if (group.count > 1) {
      group.first.traffic.bytes += entry.traffic.bytes;
      group.first.traffic.launches += entry.traffic.launches;
    }
  }
  os << "collectives, per rank and run\n";
  Table table("lllrrrl");
  table.row({"kind", "axes", "dims", "count", "bytes each", "bytes", "type and place"});
  for (const Group<Report::Collective> &group : groups.get()) {
    const Report::Collective &entry = group.first;
    const char *between = llvm::StringRef(entry.kind).starts_with("all_to_all") ? " to " : ",";
    table.row(
        {entry.kind, getStream(entry),
         llvm::join(llvm::map_range(entry.dims, [](int64_t dim) { return std::to_string(dim); }),
                    between),
         std::to_string(entry.traffic.launches),
         formatBytes(entry.traffic.bytes / entry.traffic.launches),
         formatBytes(entry.traffic.bytes),
         entry.dtype + "  " + Groups<Report::Collective>::where(group)});
  }
  table.row({"total", "", "", std::to_string(report.total.launches), "",
             formatBytes(report.total.bytes), ""});
  table.print(os);
}

static void printFetches(const FetchReport &fetches, llvm::raw_ostream &os) {
  int64_t gathers = 0, ahead = 0, stored = 0, whole = 0;
  std::map<std::string, int64_t> kinds;
  for (const FetchReport::Weight &weight : fetches.weights) {
    gathers += weight.gathers.size();
    stored += weight.storedBytes;
    whole += weight.bytes;
    ++kinds[weight.kind];
    for (const FetchReport::Gather &gather : weight.gathers)
      ahead = std::max(ahead, gather.ahead);
  }
  os << llvm::formatv("weights in shards over {0} ranks of {1}\n", fetches.ranks,
                      llvm::join(fetches.axes, ", "));
  Table table("lr");
  table.row({"weights in shards", std::to_string(fetches.weights.size())});
  table.row({"a rank's shards", formatBytes(stored)});
  table.row({"the same weights as they are used", formatBytes(whole)});
  for (auto &[kind, count] : kinds)
    if (kind != "plain")
      table.row({"of them travel in " + kind, std::to_string(count)});
  table.row({"gathers", std::to_string(gathers)});
  table.row({"places in the arena for them", std::to_string(fetches.slots.size())});
  table.row({"weights ahead of the one in use, at most", std::to_string(ahead)});
  table.row({"time of gathers", formatSeconds(fetches.gatherSeconds)});
  table.row({"time of scatters of gradients", formatSeconds(fetches.scatterSeconds)});
  table.row({"the part of both that shows", formatSeconds(fetches.exposedSeconds)});
  table.print(os);
}

static void printServing(const ServingReport &serving, llvm::raw_ostream &os) {
  const ServingSizes &sizes = serving.sizes;
  os << llvm::formatv("serving, {0} groups of {1} requests of {2} tokens, {3} pages of {4} by {5}, "
                      "{6} a token and rank\n",
                      sizes.groups, sizes.maxRequests, sizes.maxLength, sizes.pages, sizes.pageSize,
                      serving.getCacheSharding(), formatBytes(serving.bytesPerToken));
  Table table("lrrr");
  table.row({"step", "tokens of all groups", "sent", "time"});
  for (const ServingReport::Entry &entry : serving.entries)
    table.row({entry.name, std::to_string(entry.rows), formatBytes(entry.bytes),
               formatSeconds(entry.seconds)});
  table.print(os);
}

static void printTotals(const Report &report, llvm::raw_ostream &os) {
  if (report.before) {
    os << "communication, per rank and run\n";
    Table table("lrr");
    table.row({"", "sent", "launches"});
    table.row({"plain: no sequence parallelism, not optimised", formatBytes(report.before->bytes),
               std::to_string(report.before->launches)});
    table.row(
        {"this plan", formatBytes(report.total.bytes), std::to_string(report.total.launches)});
    table.print(os);
  }
  if (const std::optional<CommunicationEstimate> &time = report.communication;
      time && time->exposed + time->hidden > 0) {
    os << "time, per rank and run, by the cost model\n";
    Table table("lr");
    table.row({"communication that shows", formatSeconds(time->exposed)});
    table.row({"communication beside kernels", formatSeconds(time->hidden)});
    table.row({"the whole run", formatSeconds(time->run)});
    table.print(os);
  }
  if (report.fetches)
    printFetches(*report.fetches, os);
  if (report.serving)
    printServing(*report.serving, os);
  os << "memory, per rank\n";
  if (report.memory.modules.empty()) {
    Table memory("lr");
    memory.row({"weights", formatBytes(report.memory.weights)});
    if (report.memory.packing)
      memory.row({"their packing, besides", formatBytes(report.memory.packing)});
    if (report.memory.state)
      memory.row({"state", formatBytes(report.memory.state)});
    for (auto [name, bytes] : {std::pair("averages of the optimizer", report.memory.optimizer),
                               {"pages of keys and values", report.memory.cache},
                               {"parameters in f32", report.memory.masters},
                               {"sums of gradients", report.memory.gradients}})
      if (bytes)
        memory.row({name, formatBytes(bytes)});
    memory.row({"inputs and activations, at most", formatBytes(report.memory.activationsPeak)});
    memory.print(os);
  } else {
    Table memory("lrr");
    memory.row({"", "weights", "inputs and activations, at most"});
    for (const Memory::Module &module : report.memory.modules)
      memory.row({module.name, formatBytes(module.weights), formatBytes(module.activationsPeak)});
    memory.row({"together", formatBytes(report.memory.weights),
                formatBytes(report.memory.activationsPeak)});
    if (report.memory.packing)
      memory.row({"packing of weights, besides", formatBytes(report.memory.packing), ""});
    if (report.memory.state)
      memory.row({"state", formatBytes(report.memory.state), ""});
    memory.print(os);
  }
  if (report.ranks == 1 || report.attention.empty())
    return;
  std::set<std::string> orders;
  for (const Report::AttentionWork &entry : report.attention)
    orders.insert(entry.order);
  os << llvm::formatv("attention, largest work of a rank over the mean: {0:f2} ({1} order)\n",
                      report.attentionBalance, llvm::join(orders, ", "));
}

/// Prints the alternatives of a decision, one in each row.
static void printAlternatives(ArrayRef<Alternative> alternatives, llvm::raw_ostream &os) {
  if (alternatives.empty())
    return;
  std::string alignment = "ll" + std::string(alternatives.front().numbers.size(), 'r') + "l";
  Table table(alignment);
  std::vector<std::string> heads{"", "alternative"};
  for (auto &[name, number] : alternatives.front().numbers)
    heads.push_back(name);
  heads.push_back("");
  table.row(std::move(heads));
  for (const Alternative &alternative : alternatives) {
    std::vector<std::string> cells{alternative.chosen ? "    *" : "", alternative.name};
    for (auto &[name, number] : alternative.numbers)
      cells.push_back(formatNumber(name, number));
    cells.push_back(alternative.note);
    table.row(std::move(cells));
  }
  table.print(os);
}

static void printDecisions(const Report &report, llvm::raw_ostream &os) {
  if (report.decisions.size() <= (getDeviceDecision(report) ? 1 : 0))
    return;
  Groups<Report::Decision> groups;
  for (const Report::Decision &decision : report.decisions) {
    if (&decision == getDeviceDecision(report))
      continue;
    std::string key = decision.pass + '\0' + stringify(decision.outcome).str() + '\0' +
                      generalizeMessage(decision.message) + '\0' +
                      generalize(decision.location.name);
    for (auto &[name, number] : decision.numbers)
      key += '\0' + name + "=" + std::to_string(number);
    groups.get(decision, key);
  }
  os << "decisions\n";
  for (Outcome outcome : {Outcome::Applied, Outcome::Declined, Outcome::Note})
    for (const Group<Report::Decision> &group : groups.get()) {
      const Report::Decision &decision = group.first;
      if (decision.outcome != outcome)
        continue;
      os << "  " << stringify(outcome);
      if (group.count > 1)
        os << " " << group.count << "x";
      os << "  " << decision.pass << ": " << decision.message;
      if (!decision.numbers.empty()) {
        os << " [";
        llvm::interleaveComma(decision.numbers, os, [&](auto &number) {
          os << number.first << " " << formatNumber(number.first, number.second);
        });
        os << "]";
      }
      if (std::string where = Groups<Report::Decision>::where(group); !where.empty())
        os << "\n      at " << where;
      os << "\n";
      // The planner's have a section of their own.
      if (decision.pass != kPlannerPass)
        printAlternatives(decision.alternatives, os);
    }
}

static void printWarnings(const Report &report, llvm::raw_ostream &os) {
  if (report.warnings.empty())
    return;
  Groups<Report::Warning> groups;
  for (const Report::Warning &warning : report.warnings) {
    Group<Report::Warning> &group = groups.get(warning, generalizeMessage(warning.message) + '\0' +
                                                            generalize(warning.location.name));
    if (group.count > 1)
      group.first.bytes += warning.bytes;
  }
  os << "warnings\n";
  for (const Group<Report::Warning> &group : groups.get()) {
    os << "  ";
    if (group.count > 1)
      os << group.count << "x  ";
    os << group.first.message;
    if (group.first.bytes)
      os << ", " << formatBytes(group.first.bytes) << (group.count > 1 ? " together" : "");
    if (std::string where = Groups<Report::Warning>::where(group); !where.empty())
      os << "\n      at " << where;
    os << "\n";
  }
}

static void printExperts(const Report &report, llvm::raw_ostream &os) {
  if (report.experts.empty())
    return;
  os << "experts\n";
  for (const Report::Experts &layer : report.experts) {
    os << "  " << layer.location.name << (layer.location.name.empty() ? "" : " at ")
       << formatFile(layer.location) << ": rows on the ranks ";
    llvm::interleaveComma(layer.rowsPerRank, os);
    os << "; the fullest expert is " << layer.fullestExpert;
    if (layer.dropped)
      os << "; " << layer.dropped << " choices dropped";
    os << "\n";
  }
}

/// The plan that the planner chose, the next three, and why each lost.
static void printAlternatives(const Report &report, llvm::raw_ostream &os) {
  if (report.alternatives.empty())
    return;
  os << "planner: the chosen plan, and the next best\n";
  Table table("lrrrl");
  table.row({"plan", "time", "memory", "sent", "why it lost"});
  for (const Report::PlanAlternative &plan : ArrayRef(report.alternatives).take_front(4)) {
    std::string name;
    for (auto &[key, value] : plan.options)
      name += (name.empty() ? "" : " ") + key + "=" + value;
    table.row({std::move(name), formatSeconds(plan.seconds), formatBytes(plan.memory),
               formatBytes(plan.bytes), plan.isChosen ? "chosen" : plan.reason});
  }
  table.print(os);
  for (const Report::Decision &decision : report.decisions)
    if (decision.pass == kPlannerNotes)
      os << "  " << decision.message << "\n";
}

/// The classes of kernels, as runs name them.
static constexpr const char *kClasses[] = {"rows", "gemm", "attention", "move"};

static void printMeasured(const Report &report, llvm::raw_ostream &os) {
  if (!report.measured || !report.communication)
    return;
  const CommunicationEstimate &expected = *report.communication;
  const MeasuredTimes &measured = *report.measured;
  os << "expected times beside measured ones, per rank and run\n";
  Table table("lrrr");
  table.row({"", "expected", "measured", "quotient"});
  auto row = [&](const char *name, double model, double time) {
    if (model > 0 || time > 0)
      table.row({name, formatSeconds(model), formatSeconds(time),
                 time > 0 ? llvm::formatv("{0:f2}", model / time).str() : ""});
  };
  for (int i = 0; i < 4; ++i)
    row(kClasses[i], expected.kernels[i], measured.kernels[i]);
  row("collectives", expected.exposed + expected.hidden, measured.collectives);
  row("collectives that show", expected.exposed, measured.exposed);
  row("the whole run", expected.run, measured.run);
  table.print(os);
}

void meshwright::printText(const Report &report, llvm::raw_ostream &os, bool verbose) {
  printSummary(report, os);
  printLayouts(report, os);
  printTotals(report, os);
  printAlternatives(report, os);
  printCollectives(report, os);
  printWarnings(report, os);
  if (verbose)
    printDecisions(report, os);
  printExperts(report, os);
  printMeasured(report, os);
  os << report.runText;
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

mlir::LogicalResult
meshwright::writeReport(const Report &report, StringRef file,
                        llvm::function_ref<mlir::LogicalResult(const llvm::Twine &)> error) {
  if (file.empty()) {
    printText(report, llvm::errs());
    return mlir::success();
  }
  auto print = [&](llvm::raw_ostream &os) {
    if (file.ends_with(".json"))
      printJson(report, os);
    else
      printText(report, os);
  };
  if (file == "-") {
    print(llvm::outs());
    llvm::outs().flush();
    std::error_code code = llvm::outs().error();
    llvm::outs().clear_error();
    return code ? error("cannot write the report to standard output: " + code.message())
                : mlir::success();
  }
  // A pipe or a device is not replaced by a file.
  llvm::sys::fs::file_status status;
  if (!llvm::sys::fs::status(file, status) && llvm::sys::fs::is_other(status)) {
    std::error_code code;
    llvm::raw_fd_ostream os(file, code);
    if (!code) {
      print(os);
      os.close();
      code = os.error();
      os.clear_error();
    }
    return code ? error("cannot write report '" + file + "': " + code.message()) : mlir::success();
  }
  // The file is first written under another name, so that no reader sees a part of it.
  llvm::SmallString<128> temporary;
  int descriptor;
  if (std::error_code code =
          llvm::sys::fs::createUniqueFile(file + ".%%%%%%", descriptor, temporary))
    return error("cannot write report '" + file + "': " + code.message());
  {
    llvm::raw_fd_ostream os(descriptor, /*shouldClose=*/true);
    print(os);
    os.close();
    if (os.has_error()) {
      std::string reason = os.error().message();
      os.clear_error();
      llvm::sys::fs::remove(temporary);
      return error("cannot write report '" + file + "': " + reason);
    }
  }
  if (std::error_code code = llvm::sys::fs::rename(temporary, file)) {
    llvm::sys::fs::remove(temporary);
    return error("cannot write report '" + file + "': " + code.message());
  }
  return mlir::success();
}
