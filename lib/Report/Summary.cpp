//===- Summary.cpp - the first lines of a report --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include "meshwright/lib/Support/NumberText.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <map>

using namespace meshwright;

static void printPlan(const Report &report, llvm::raw_ostream &os) {
  os << "plan for " << report.ranks << (report.ranks == 1 ? " rank" : " ranks");
  if (!report.mesh.empty()) {
    os << ", mesh ";
    llvm::interleave(
        report.mesh, os, [&](auto &axis) { os << axis.first << "=" << axis.second; }, ",");
  }
  if (!report.device.empty())
    os << ", device " << report.device;
  if (const Report::Decision *decision = getDeviceDecision(report))
    os << " (" << llvm::StringRef(decision->message).split(": ").second << ")";
  if (report.target != "cpu")
    os << ", target " << report.target;
  os << "\n";
}

static llvm::raw_ostream &line(llvm::raw_ostream &os, llvm::StringRef name) {
  return os << "  " << llvm::left_justify(name, 10);
}

static void printTime(const Report &report, llvm::raw_ostream &os) {
  const CommunicationEstimate &time = *report.communication;
  double kernels = 0;
  for (double seconds : time.kernels)
    kernels += seconds;
  line(os, "time") << formatSeconds(time.run) << " a run by the cost model: kernels " << formatSeconds(kernels);
  if (time.exposed + time.hidden > 0)
    os << ", communication " << formatSeconds(time.exposed + time.hidden) << ", of which " << formatSeconds(time.exposed)
       << " shows";
  os << "\n";
  if (report.measured)
    line(os, "measured") << formatSeconds(report.measured->run) << " a run, of which communication shows "
                         << formatSeconds(report.measured->exposed) << "\n";
}

static void printMemory(const Memory &memory, llvm::raw_ostream &os) {
  std::pair<const char *, int64_t> parts[] = {{"weights", memory.weights},
                                              {"packing", memory.packing},
                                              {"state", memory.state},
                                              {"optimizer", memory.optimizer},
                                              {"masters", memory.masters},
                                              {"gradients", memory.gradients},
                                              {"cache", memory.cache},
                                              {"inputs and activations", memory.activationsPeak}};
  line(os, "memory") << formatBytes(memory.getAll()) << " a rank: ";
  bool isFirst = true;
  for (auto [name, bytes] : parts) {
    if (!bytes)
      continue;
    os << (isFirst ? "" : ", ") << name << " " << formatBytes(bytes);
    isFirst = false;
  }
  os << (isFirst ? "nothing\n" : "\n");
}

/// The bytes that a rank sends, and the kind of collective that sends most.
static void printBytes(const Report &report, llvm::raw_ostream &os) {
  if (report.collectives.empty()) {
    line(os, "sends") << "nothing\n";
    return;
  }
  line(os, "sends") << formatBytes(report.total.bytes) << " a rank in " << report.total.launches
                    << (report.total.launches == 1 ? " launch\n" : " launches\n");
  std::map<std::pair<std::string, std::string>, int64_t> kinds;
  for (const Report::Collective &entry : report.collectives)
    kinds[{entry.kind, llvm::join(entry.axes, ",")}] += entry.traffic.bytes;
  auto most = std::max_element(kinds.begin(), kinds.end(),
                               [](auto &a, auto &b) { return a.second < b.second; });
  if (kinds.size() > 1)
    line(os, "") << "most by " << most->first.first << " over " << most->first.second << ", "
                 << formatBytes(most->second) << "\n";
}

static void printChoice(const Report &report, llvm::raw_ostream &os) {
  if (report.alternatives.empty())
    return;
  double plans = 0;
  for (const Report::Decision &decision : report.decisions)
    for (auto &[name, number] : decision.numbers)
      if (decision.pass == kPlannerPass && name == "plans")
        plans = number;
  line(os, "planner") << "chose one of " << int64_t(plans) << " plans";
  for (const Report::PlanAlternative &plan : report.alternatives)
    if (!plan.isChosen) {
      os << "; the next takes " << formatSeconds(plan.seconds) << " and " << formatBytes(plan.memory);
      break;
    }
  os << "\n";
}

void meshwright::printSummary(const Report &report, llvm::raw_ostream &os) {
  printPlan(report, os);
  if (report.communication && report.communication->run > 0)
    printTime(report, os);
  printMemory(report.memory, os);
  printBytes(report, os);
  printChoice(report, os);
  if (report.warnings.empty()) {
    line(os, "warnings") << "none\n";
    return;
  }
  line(os, "warnings") << report.warnings.size() << ", the first: " << report.warnings.front().message << "\n";
}
