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

TEST(Trace, NamesAreWrittenAsUtf8) {
  Trace trace;
  add(trace, 0, 0, TraceKind::Gemm, 0, 1);
  std::string json = trace.toJson({"a \"b\\\n\xff \xc3\xa4"});
  EXPECT_NE(json.find("\"name\": \"a \\\"b\\\\\\n\xef\xbf\xbd \xc3\xa4\""), std::string::npos)
      << json;
}

} // namespace
