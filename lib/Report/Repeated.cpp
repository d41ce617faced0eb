//===- Repeated.cpp - reports of entries that repeat a function -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Repeated.h"

#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;

LogicalResult meshwright::addRepeated(FunctionOpInterface entry, Report &report) {
  FunctionOpInterface function = nn::getRepeated(entry);
  if (!function)
    return success();
  FailureOr<Report> first = buildReport(function);
  if (failed(first))
    return failure();
  int64_t times = nn::getRepeat(entry)->times;
  auto scale = [&](Traffic &traffic) {
    traffic.bytes *= times;
    traffic.launches *= times;
  };
  for (Report::Collective &collective : first->collectives)
    scale(collective.traffic);
  scale(first->total);
  report.total.bytes += first->total.bytes;
  report.total.launches += first->total.launches;
  for (Report::AttentionWork &work : first->attention) {
    work.largest *= times;
    work.mean *= double(times);
  }
  auto prepend = [](auto &to, auto &from) {
    to.insert(to.begin(), std::make_move_iterator(from.begin()),
              std::make_move_iterator(from.end()));
  };
  prepend(report.collectives, first->collectives);
  prepend(report.attention, first->attention);
  prepend(report.warnings, first->warnings);
  report.attentionBalance = std::max(report.attentionBalance, first->attentionBalance);
  report.memory.activationsPeak =
      std::max(report.memory.activationsPeak, first->memory.activationsPeak);
  return success();
}
