//===- Alternatives.cpp - the plans that a planner compared ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"

#include <algorithm>

using namespace meshwright;

/// Splits options as `--parallelize` spells them. Braces enclose white space.
static std::vector<std::pair<std::string, std::string>> splitOptions(llvm::StringRef text) {
  std::vector<std::pair<std::string, std::string>> options;
  while (!(text = text.trim()).empty()) {
    int depth = 0;
    size_t end = 0;
    for (; end < text.size() && (depth > 0 || text[end] != ' '); ++end)
      depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    auto [key, value] = text.take_front(end).split('=');
    std::string name = key.str();
    std::replace(name.begin(), name.end(), '-', '_');
    options.push_back({std::move(name), value.str()});
    text = text.drop_front(end);
  }
  return options;
}

void meshwright::addAlternatives(Report &report) {
  for (const Report::Decision &decision : report.decisions) {
    if (decision.pass != kPlannerPass)
      continue;
    for (const Alternative &alternative : decision.alternatives) {
      auto get = [&](llvm::StringRef name) {
        for (auto &[known, number] : alternative.numbers)
          if (known == name)
            return number;
        return 0.0;
      };
      report.alternatives.push_back({splitOptions(alternative.name), alternative.chosen,
                                     get("seconds"), get("exposed_seconds"),
                                     int64_t(get("memory_bytes")), int64_t(get("bytes")),
                                     alternative.note});
    }
  }
}
