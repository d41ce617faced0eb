//===- Trace.cpp - events of ranks and streams ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Trace.h"

#include "meshwright/runtime/include/PlainNumbers.h"
#include "meshwright/runtime/include/WholeFile.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace meshwright::rt {

const char *nameOf(TraceKind kind) {
  switch (kind) {
  case TraceKind::Rows:
    return "rows";
  case TraceKind::Gemm:
    return "gemm";
  case TraceKind::Attention:
    return "attention";
  case TraceKind::Move:
    return "move";
  case TraceKind::Collective:
    return "collective";
  case TraceKind::Wait:
    return "wait";
  }
  return "other";
}

int64_t traceClock() {
  using namespace std::chrono;
  auto nanoseconds = [](auto time) {
    return duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  // Hosts agree on the system's clock, but it may be adjusted during a run. So it is read
  // once, and the steady clock measures from there.
  static const int64_t offset = nanoseconds(system_clock::now()) - nanoseconds(steady_clock::now());
  return offset + nanoseconds(steady_clock::now());
}

Trace::Row &Trace::getRow(int64_t rank, int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Row> &row = rows[{rank, stream}];
  if (!row) {
    row = std::make_unique<Row>();
    row->rank = rank;
    row->stream = stream;
  }
  return *row;
}

std::vector<const Trace::Row *> Trace::getRows() const {
  std::vector<const Row *> result;
  for (const auto &[key, row] : rows)
    result.push_back(row.get());
  return result;
}

void Trace::append(const Trace &other, int64_t firstOp) {
  for (const Row *row : other.getRows()) {
    std::vector<TraceEvent> &events = getRow(row->rank, row->stream).events;
    for (TraceEvent event : row->events) {
      event.op = event.op < 0 ? event.op : firstOp + event.op;
      events.push_back(event);
    }
  }
}

std::string Trace::serialize(int64_t rank) const {
  std::string bytes;
  for (const Row *row : getRows()) {
    if (row->rank != rank)
      continue;
    int64_t header[] = {row->rank, row->stream, int64_t(row->events.size())};
    bytes.append(reinterpret_cast<const char *>(header), sizeof(header));
    bytes.append(reinterpret_cast<const char *>(row->events.data()),
                 row->events.size() * sizeof(TraceEvent));
  }
  return bytes;
}

bool Trace::merge(const std::string &bytes) {
  for (size_t at = 0; at < bytes.size();) {
    int64_t header[3];
    if (bytes.size() - at < sizeof(header))
      return false;
    std::memcpy(header, bytes.data() + at, sizeof(header));
    at += sizeof(header);
    if (header[2] < 0 || uint64_t(header[2]) > (bytes.size() - at) / sizeof(TraceEvent))
      return false;
    std::vector<TraceEvent> &events = getRow(header[0], header[1]).events;
    size_t before = events.size();
    events.resize(before + header[2]);
    std::memcpy(events.data() + before, bytes.data() + at, header[2] * sizeof(TraceEvent));
    at += header[2] * sizeof(TraceEvent);
  }
  return true;
}

/// Returns a JSON string. Names come from source locations, which may contain any bytes.
static std::string quote(const std::string &text) {
  return nlohmann::json(text).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                                   nlohmann::json::error_handler_t::replace);
}

std::string Trace::toJson(const std::vector<std::string> &ops) const {
  PlainNumbers plain;
  // Microseconds since the first event.
  int64_t origin = INT64_MAX;
  for (const Row *row : getRows())
    if (!row->events.empty())
      origin = std::min(origin, row->events.front().begin);
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char *separator = "\n";
  char text[256];
  auto add = [&](const std::string &event) {
    json += separator + event;
    separator = ",\n";
  };
  int64_t named = -1;
  for (const Row *row : getRows()) {
    if (row->rank != named) {
      named = row->rank;
      std::snprintf(text, sizeof(text),
                    "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %" PRId64
                    ", \"args\": {\"name\": \"rank %" PRId64 "\"}}",
                    row->rank, row->rank);
      add(text);
      std::snprintf(text, sizeof(text),
                    "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %" PRId64
                    ", \"args\": {\"sort_index\": %" PRId64 "}}",
                    row->rank, row->rank);
      add(text);
    }
    std::string stream = row->stream ? "stream " + std::to_string(row->stream) : "compute";
    std::snprintf(text, sizeof(text),
                  "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %" PRId64
                  ", \"tid\": %" PRId64 ", \"args\": {\"name\": \"%s\"}}",
                  row->rank, row->stream, stream.c_str());
    add(text);
    for (const TraceEvent &event : row->events) {
      std::string name =
          event.op >= 0 && event.op < int64_t(ops.size()) ? ops[event.op] : "unknown op";
      std::snprintf(text, sizeof(text),
                    "\"cat\": \"%s\", \"ph\": \"X\", \"pid\": %" PRId64 ", \"tid\": %" PRId64
                    ", \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"op\": %" PRId64
                    ", \"flops\": %" PRId64 ", \"bytes\": %" PRId64 "}}",
                    nameOf(event.kind), row->rank, row->stream, (event.begin - origin) / 1e3,
                    (event.end - event.begin) / 1e3, event.op, event.flops, event.bytes);
      add("{\"name\": " + quote(event.kind == TraceKind::Wait ? "wait for " + name : name) + ", " +
          text);
    }
  }
  return json + "\n]}\n";
}

bool writeTrace(const std::string &path, const Trace &trace, const std::vector<std::string> &ops,
                std::string &error) {
  return WholeFile::write(path, trace.toJson(ops), error);
}

} // namespace meshwright::rt
