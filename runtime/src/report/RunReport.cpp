//===- RunReport.cpp - the time of a run, by kind of work -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/RunReport.h"

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/PlainNumbers.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <set>

namespace meshwright::rt {

namespace {

/// Intervals of time, as pairs of begin and end.
using Spans = std::vector<std::pair<int64_t, int64_t>>;

} // namespace

/// Returns the time that intervals of `a` and of `b` overlap.
static int64_t commonTime(Spans a, Spans b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  int64_t time = 0, counted = INT64_MIN;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    int64_t begin = std::max({i->first, j->first, counted}), end = std::min(i->second, j->second);
    if (begin < end) {
      time += end - begin;
      counted = end;
    }
    // The interval that ends first overlaps no later interval of the other list.
    if (i->second < j->second)
      ++i;
    else
      ++j;
  }
  return time;
}

RunReport summarize(const Trace &trace, int64_t threadsPerRank, const Ceilings *peaks) {
  RunReport report;
  report.threadsPerRank = threadsPerRank;
  std::set<int64_t> ranks;
  for (const Trace::Row *row : trace.getRows())
    ranks.insert(row->rank);
  report.ranks = ranks.size();
  if (ranks.empty())
    return report;
  report.ceilings = peaks ? *peaks : getCeilings(report.ranks * threadsPerRank);
  if (peaks) {
    report.ceilings.gpus = report.ranks;
    for (double Ceilings::*rate : {&Ceilings::f32, &Ceilings::bf16, &Ceilings::bytes})
      report.ceilings.*rate *= double(report.ranks);
  }
  // The ceilings of one rank.
  double share = 1.0 / report.ranks;
  double possible[4] = {};
  // Operations and seconds of kernels, by class: in f32, and in narrower types.
  std::pair<double, double> work[4][2];
  std::map<int64_t, std::pair<int64_t, int64_t>> spans;
  std::map<int64_t, double> sent;
  // By rank: when it communicated, and when its compute stream waited for that.
  std::map<int64_t, Spans> communicating, still;
  // Nanoseconds.
  int64_t communication = 0, exposed = 0;
  for (const Trace::Row *row : trace.getRows()) {
    for (const TraceEvent &event : row->events) {
      double seconds = (event.end - event.begin) * 1e-9;
      auto [span, isFirst] =
          spans.try_emplace(row->rank, std::pair<int64_t, int64_t>(event.begin, event.end));
      span->second.first = std::min(span->second.first, event.begin);
      span->second.second = std::max(span->second.second, event.end);
      switch (event.kind) {
      case TraceKind::Collective:
        communication += event.end - event.begin;
        sent[row->rank] += event.bytes;
        ++report.collectives;
        communicating[row->rank].emplace_back(event.begin, event.end);
        if (row->stream == 0)
          still[row->rank].emplace_back(event.begin, event.end);
        break;
      case TraceKind::Wait:
        still[row->rank].emplace_back(event.begin, event.end);
        break;
      case TraceKind::Rows:
      case TraceKind::Gemm:
      case TraceKind::Attention:
      case TraceKind::Move: {
        RunReport::Class &kernels = report.classes[int64_t(event.kind)];
        ++kernels.launches;
        kernels.seconds += seconds;
        kernels.flops += event.flops;
        kernels.bytes += event.bytes;
        bool isNarrow = event.dtype == MW_BF16 || (peaks && event.dtype == MW_F16);
        double peak = isNarrow ? report.ceilings.bf16 : report.ceilings.f32;
        double copies = report.ceilings.getBytesPerSecond(event.bytes / std::max<int64_t>(1, threadsPerRank));
        double least = std::max(event.flops / (peak * share), event.bytes / (copies * share));
        // The clock counts nanoseconds, and another process may have slowed the measurement of ceilings down.
        possible[int64_t(event.kind)] += std::min(least, seconds);
        work[int64_t(event.kind)][isNarrow].first += event.flops;
        work[int64_t(event.kind)][isNarrow].second += seconds;
        break;
      }
      }
    }
  }
  for (const auto &[rank, span] : spans)
    report.seconds = std::max(report.seconds, (span.second - span.first) * 1e-9);
  for (auto &types : work)
    for (auto [done, ceiling] : {std::pair(types[0], &report.ceilings.f32), {types[1], &report.ceilings.bf16}})
      if (done.second > 0)
        *ceiling = std::max(*ceiling, done.first / done.second * double(report.ranks));
  for (int64_t i = 0; i < 4; ++i) {
    RunReport::Class &kernels = report.classes[i];
    kernels.ofCeiling = kernels.seconds > 0 ? possible[i] / kernels.seconds : 0;
    kernels.launches /= report.ranks;
    kernels.seconds *= share;
    kernels.flops *= share;
    kernels.bytes *= share;
  }
  // The part of a wait outside collectives, such as the time until its thread has woken up, is
  // not communication.
  for (const auto &[rank, spans] : communicating)
    exposed += commonTime(spans, still[rank]);
  report.collectives /= report.ranks;
  report.communication = communication * 1e-9 * share;
  report.exposed = exposed * 1e-9 * share;
  for (const auto &[rank, bytes] : sent) {
    report.sentBytes = std::max(report.sentBytes, bytes);
    report.sentByAll += bytes;
  }
  return report;
}

namespace {

/// Formats as printf does.
class Text {
public:
  __attribute__((format(printf, 2, 3))) void add(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    text += line;
  }
  std::string take() { return std::move(text); }

private:
  std::string text;
};

} // namespace

std::string RunReport::toText() const {
  PlainNumbers plain;
  Text text;
  text.add("run: %lld rank%s, %lld thread%s each, %.3f ms\n", (long long)ranks,
           ranks == 1 ? "" : "s", (long long)threadsPerRank, threadsPerRank == 1 ? "" : "s",
           seconds * 1e3);
  text.add("  per rank      launches         ms   of run     GFLOP/s        GB/s  of ceiling\n");
  double busy = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const Class &kernels = classes[i];
    if (kernels.launches == 0)
      continue;
    busy += kernels.seconds;
    text.add("  %-12s %9lld %10.3f %7.1f%% %11.1f %11.1f %10.0f%%\n", nameOf(TraceKind(i)),
             (long long)kernels.launches, kernels.seconds * 1e3,
             100 * kernels.seconds / std::max(seconds, 1e-12),
             kernels.flops / std::max(kernels.seconds, 1e-12) * 1e-9,
             kernels.bytes / std::max(kernels.seconds, 1e-12) * 1e-9, 100 * kernels.ofCeiling);
  }
  if (collectives > 0)
    text.add("  %-12s %9lld %10.3f: exposed %.3f ms, hidden %.3f ms (%.0f%%), %s sent\n",
             "collectives", (long long)collectives, communication * 1e3, exposed * 1e3,
             getHidden() * 1e3, 100 * getHidden() / std::max(communication, 1e-12),
             formatBytes(int64_t(sentBytes)).c_str());
  text.add("  %-12s %9s %10.3f %7.1f%%\n", "other", "",
           std::max(0.0, seconds - busy - exposed) * 1e3,
           100 * std::max(0.0, seconds - busy - exposed) / std::max(seconds, 1e-12));
  int64_t units = ceilings.gpus ? ceilings.gpus : ceilings.threads;
  text.add("  ceilings of %lld %s%s: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, copy %.1f GB/s",
           (long long)units, ceilings.gpus ? "GPU" : "thread", units == 1 ? "" : "s",
           ceilings.f32 * 1e-9, ceilings.bf16 * 1e-9, ceilings.bytes * 1e-9);
  for (auto [bytes, rate] : ceilings.cached)
    text.add("%s %.0f", bytes == ceilings.cached.front().first ? ", in caches" : ",", rate * 1e-9);
  text.add("\n");
  text.add("  arena of a rank: planned %s (%lld bytes)", formatBytes(planned).c_str(),
           (long long)planned);
  if (seen >= 0)
    text.add(", seen %s (%lld bytes)", formatBytes(seen).c_str(), (long long)seen);
  text.add("\n");
  return text.take();
}

std::string RunReport::toJson() const {
  PlainNumbers plain;
  Text text;
  text.add("{\"ranks\": %lld, \"threads_per_rank\": %lld, \"seconds\": %.9g, \"kernels\": [",
           (long long)ranks, (long long)threadsPerRank, seconds);
  const char *separator = "";
  for (int64_t i = 0; i < 4; ++i) {
    const Class &kernels = classes[i];
    if (kernels.launches == 0)
      continue;
    text.add("%s{\"class\": \"%s\", \"launches\": %lld, \"seconds\": %.9g, \"flops\": %.0f, "
             "\"bytes\": %.0f, \"of_ceiling\": %.4g}",
             separator, nameOf(TraceKind(i)), (long long)kernels.launches, kernels.seconds,
             kernels.flops, kernels.bytes, kernels.ofCeiling);
    separator = ", ";
  }
  text.add("], \"communication\": {\"collectives\": %lld, \"seconds\": %.9g, "
           "\"exposed_seconds\": %.9g, \"hidden_seconds\": %.9g, \"bytes_sent\": %.0f, "
           "\"bytes_sent_by_all\": %.0f}, ",
           (long long)collectives, communication, exposed, getHidden(), sentBytes, sentByAll);
  text.add("\"arena\": {\"planned\": %lld, \"seen\": ", (long long)planned);
  if (seen >= 0)
    text.add("%lld}, ", (long long)seen);
  else
    text.add("null}, ");
  text.add("\"ceilings\": {\"threads\": %lld, \"gpus\": %lld, \"f32_flops_per_second\": %.4g, "
           "\"bf16_flops_per_second\": %.4g, \"bytes_per_second\": %.4g}}",
           (long long)ceilings.threads, (long long)ceilings.gpus, ceilings.f32, ceilings.bf16,
           ceilings.bytes);
  return text.take();
}

} // namespace meshwright::rt
