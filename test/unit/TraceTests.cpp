//===- TraceTests.cpp - what is made of traces ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/RunReport.h"

#include "gtest/gtest.h"

using namespace meshwright::rt;

namespace {

/// In milliseconds.
void add(Trace &trace, int64_t rank, int64_t stream, TraceKind kind, int64_t begin, int64_t end) {
  trace.getRow(rank, stream).events.push_back({begin * 1000000, end * 1000000, kind, 0, 0, 0, -1});
}

void expectCommunication(const Trace &trace, double all, double exposed) {
  RunReport report = summarize(trace, 1);
  EXPECT_DOUBLE_EQ(report.communication, all * 1e-3);
  EXPECT_DOUBLE_EQ(report.exposed, exposed * 1e-3);
  EXPECT_DOUBLE_EQ(report.exposed + report.getHidden(), report.communication);
  EXPECT_GE(report.getHidden(), 0);
}

TEST(RunReport, CollectivesOfTheComputeStreamAreExposed) {
  Trace trace;
  add(trace, 0, 0, TraceKind::Gemm, 0, 10);
  add(trace, 0, 0, TraceKind::Collective, 10, 13);
  add(trace, 0, 0, TraceKind::Collective, 14, 15);
  expectCommunication(trace, 4, 4);
}

TEST(RunReport, WaitsAreExposedAsFarAsSomethingIsOnItsWay) {
  Trace trace;
  add(trace, 0, 0, TraceKind::Gemm, 0, 10);
  add(trace, 0, 1, TraceKind::Collective, 4, 12);
  // Its thread was woken late.
  add(trace, 0, 0, TraceKind::Wait, 10, 20);
  expectCommunication(trace, 8, 2);
  // Done long ago.
  add(trace, 0, 0, TraceKind::Wait, 20, 21);
  expectCommunication(trace, 8, 2);
  // Several in one wait, of which one begins before it.
  add(trace, 0, 1, TraceKind::Collective, 22, 25);
  add(trace, 0, 1, TraceKind::Collective, 26, 28);
  add(trace, 0, 0, TraceKind::Wait, 24, 30);
  expectCommunication(trace, 13, 5);
}

TEST(RunReport, CollectivesAtOnceAreExposedOnce) {
  Trace trace;
  add(trace, 0, 0, TraceKind::Wait, 0, 10);
  add(trace, 0, 1, TraceKind::Collective, 0, 8);
  add(trace, 0, 2, TraceKind::Collective, 1, 5);
  add(trace, 0, 2, TraceKind::Collective, 6, 12);
  expectCommunication(trace, 18, 10);
}

TEST(RunReport, RanksWaitForTheirOwn) {
  Trace trace;
  for (int64_t rank : {0, 1})
    add(trace, rank, 1, TraceKind::Collective, 0, 10);
  add(trace, 0, 0, TraceKind::Wait, 2, 30);
  add(trace, 1, 0, TraceKind::Gemm, 0, 30);
  // Means over ranks.
  expectCommunication(trace, 10, 4);
}

TEST(RunReport, NoShareOfACeilingIsAboveOne) {
  Ceilings peaks;
  peaks.f32 = 1e9;
  peaks.bf16 = 2e9;
  peaks.bytes = 1e9;
  peaks.cached = {{1000, 8e9}, {100000, 4e9}};
  EXPECT_EQ(peaks.getBytesPerSecond(1000), 8e9);
  EXPECT_EQ(peaks.getBytesPerSecond(1001), 4e9);
  EXPECT_EQ(peaks.getBytesPerSecond(100001), 1e9);
  Trace trace;
  auto add = [&](TraceKind kind, int64_t nanoseconds, int64_t flops, int64_t bytes, int64_t dtype) {
    trace.getRow(0, 0).events.push_back({0, nanoseconds, kind, 0, flops, bytes, dtype});
  };
  // In a cache, at half of its rate; at ten times the rate of memory; at 2.5 times the peak of f32.
  add(TraceKind::Rows, 250, 0, 1000, MW_F32);
  add(TraceKind::Move, 100000, 0, 1000000, MW_F32);
  add(TraceKind::Gemm, 1000, 2500, 0, MW_F32);
  RunReport report = summarize(trace, 1, &peaks);
  EXPECT_DOUBLE_EQ(report.classes[int64_t(TraceKind::Rows)].ofCeiling, 0.5);
  EXPECT_DOUBLE_EQ(report.classes[int64_t(TraceKind::Move)].ofCeiling, 1);
  EXPECT_DOUBLE_EQ(report.classes[int64_t(TraceKind::Gemm)].ofCeiling, 1);
  // The ceiling that the report shows is none that the run exceeds.
  for (const RunReport::Class &kernels : report.classes)
    if (kernels.seconds > 0)
      EXPECT_GE(std::max(report.ceilings.f32, report.ceilings.bf16), kernels.flops / kernels.seconds);
}

TEST(Trace, NamesAreWrittenAsUtf8) {
  Trace trace;
  add(trace, 0, 0, TraceKind::Gemm, 0, 1);
  std::string json = trace.toJson({{"a \"b\\\n\xff \xc3\xa4"}, {}});
  EXPECT_NE(json.find("\"name\": \"a \\\"b\\\\\\n\xef\xbf\xbd \xc3\xa4\""), std::string::npos)
      << json;
}

} // namespace
