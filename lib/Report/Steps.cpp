//===- Steps.cpp - reports of the steps of a call -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Steps.h"

using namespace meshwright;

void meshwright::addStep(Report step, int64_t runs, Report &report) {
  auto scale = [&](Traffic &traffic) {
    traffic.bytes *= runs;
    traffic.bytesOfAll *= runs;
    traffic.launches *= runs;
  };
  for (Report::Collective &collective : step.collectives)
    scale(collective.traffic);
  scale(step.total);
  report.total.bytes += step.total.bytes;
  report.total.bytesOfAll += step.total.bytesOfAll;
  report.total.launches += step.total.launches;
  for (Report::AttentionWork &work : step.attention) {
    work.largest *= runs;
    work.mean *= double(runs);
  }
  auto append = [](auto &to, auto &from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()),
              std::make_move_iterator(from.end()));
  };
  append(report.collectives, step.collectives);
  append(report.attention, step.attention);
  append(report.warnings, step.warnings);
  report.attentionBalance = std::max(report.attentionBalance, step.attentionBalance);
  int64_t peak = std::max(report.memory.activationsPeak, step.memory.activationsPeak);
  report.memory = std::move(step.memory);
  report.memory.activationsPeak = peak;
}
