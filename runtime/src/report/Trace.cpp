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
#include <tuple>

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

namespace {

/// Writes the events of a trace one after the other.
class TraceWriter {
public:
  TraceWriter(const std::vector<const Trace::Row *> &rows, const TraceOps &ops)
      : rows(rows), ops(ops) {
    // Microseconds since the first event.
    for (const Trace::Row *row : rows)
      if (!row->events.empty())
        origin = std::min(origin, row->events.front().begin);
  }
  std::string write();

private:
  void add(const std::string &event) {
    json += separator + event;
    separator = ",\n";
  }
  double toMicroseconds(int64_t time) const { return double(time - origin) / 1e3; }
  void nameProcess(int64_t rank);
  void nameStream(const Trace::Row &row);
  void addSpan(const Trace::Row &row, const TraceEvent &event);
  void addArrows();
  using Counts = std::map<int64_t, int64_t>;
  void addCounter(const char *name, int64_t rank, const Counts &bytes);
  void addBytesInFlight();
  void addArena();

  const std::vector<const Trace::Row *> &rows;
  const TraceOps &ops;
  int64_t origin = INT64_MAX;
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char *separator = "\n";
  char text[256];
};

} // namespace

void TraceWriter::nameProcess(int64_t rank) {
  std::snprintf(text, sizeof(text),
                "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %" PRId64
                ", \"args\": {\"name\": \"rank %" PRId64 "\"}}",
                rank, rank);
  add(text);
  std::snprintf(text, sizeof(text),
                "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %" PRId64
                ", \"args\": {\"sort_index\": %" PRId64 "}}",
                rank, rank);
  add(text);
}

void TraceWriter::nameStream(const Trace::Row &row) {
  std::string stream = row.stream ? "stream " + std::to_string(row.stream) : "compute";
  std::snprintf(text, sizeof(text),
                "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %" PRId64
                ", \"tid\": %" PRId64 ", \"args\": {\"name\": \"%s\"}}",
                row.rank, row.stream, stream.c_str());
  add(text);
}

void TraceWriter::addSpan(const Trace::Row &row, const TraceEvent &event) {
  std::string name =
      event.op >= 0 && event.op < int64_t(ops.names.size()) ? ops.names[event.op] : "unknown op";
  // "nn.linear at model.mlp (src/mlp.py:12)": the place in the source is an argument. The name of an op
  // outside modules keeps its short form, as in "nn.linear (mlp.py:12)".
  std::string source;
  if (size_t at = name.rfind(" ("); at != std::string::npos && name.back() == ')') {
    std::string place = name.substr(at + 2, name.size() - at - 3);
    source = ", \"source\": " + quote(place);
    name.resize(at);
    if (name.find(" at ") == std::string::npos)
      name += " (" + place.substr(place.rfind('/') + 1) + ")";
  }
  std::snprintf(text, sizeof(text),
                "\"cat\": \"%s\", \"ph\": \"X\", \"pid\": %" PRId64 ", \"tid\": %" PRId64
                ", \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"op\": %" PRId64
                ", \"flops\": %" PRId64 ", \"bytes\": %" PRId64,
                nameOf(event.kind), row.rank, row.stream, toMicroseconds(event.begin),
                double(event.end - event.begin) / 1e3, event.op, event.flops, event.bytes);
  add("{\"name\": " + quote(event.kind == TraceKind::Wait ? "wait for " + name : name) + ", " +
      text + source + "}}");
}

/// Joins the ranks of each collective, in the order in which they begin it.
void TraceWriter::addArrows() {
  struct End {
    int64_t begin, rank, stream;
    bool operator<(const End &other) const {
      return std::tie(begin, rank) < std::tie(other.begin, other.rank);
    }
  };
  // By op, first rank of the group, and the number of the op's runs before.
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<End>> collectives;
  for (const Trace::Row *row : rows) {
    std::map<int64_t, int64_t> runs;
    for (const TraceEvent &event : row->events)
      if (event.kind == TraceKind::Collective && event.group >= 0)
        collectives[{event.op, event.group, runs[event.op]++}].push_back(
            {event.begin, row->rank, row->stream});
  }
  int64_t id = 0;
  for (auto &[key, ends] : collectives) {
    ++id;
    if (ends.size() < 2)
      continue;
    std::sort(ends.begin(), ends.end());
    for (size_t i = 0; i < ends.size(); ++i) {
      bool isLast = i + 1 == ends.size();
      std::snprintf(text, sizeof(text),
                    "{\"name\": \"collective\", \"cat\": \"collective\", \"ph\": \"%s\"%s, \"id\": %" PRId64
                    ", \"pid\": %" PRId64 ", \"tid\": %" PRId64 ", \"ts\": %.3f}",
                    i == 0 ? "s" : isLast ? "f" : "t", isLast ? ", \"bp\": \"e\"" : "", id,
                    ends[i].rank, ends[i].stream, toMicroseconds(ends[i].begin));
      add(text);
    }
  }
}

/// The bytes from each time on.
void TraceWriter::addCounter(const char *name, int64_t rank, const Counts &bytes) {
  for (auto [time, count] : bytes) {
    std::snprintf(text, sizeof(text),
                  "{\"name\": \"%s\", \"ph\": \"C\", \"pid\": %" PRId64
                  ", \"ts\": %.3f, \"args\": {\"bytes\": %" PRId64 "}}",
                  name, rank, toMicroseconds(time), count);
    add(text);
  }
}

/// The bytes of the collectives that run on each rank.
void TraceWriter::addBytesInFlight() {
  std::map<int64_t, Counts> changes;
  for (const Trace::Row *row : rows)
    for (const TraceEvent &event : row->events)
      if (event.kind == TraceKind::Collective) {
        changes[row->rank][event.begin] += event.bytes;
        changes[row->rank][event.end] -= event.bytes;
      }
  for (auto &[rank, bytes] : changes) {
    int64_t sum = 0;
    for (auto &[time, change] : bytes)
      change = sum += change;
    addCounter("bytes in flight", rank, bytes);
  }
}

/// The bytes of the arena that values take on each rank, from the begin of each op on.
void TraceWriter::addArena() {
  std::map<int64_t, Counts> counts;
  std::map<int64_t, int64_t> ends;
  for (const Trace::Row *row : rows)
    for (const TraceEvent &event : row->events) {
      if (event.kind == TraceKind::Wait || event.op < 0 || event.op >= int64_t(ops.arenaInUse.size()))
        continue;
      counts[row->rank][event.begin] = ops.arenaInUse[event.op];
      int64_t &end = ends[row->rank];
      end = std::max(end, event.end);
    }
  for (auto &[rank, bytes] : counts) {
    bytes[ends[rank]] = 0;
    addCounter("arena", rank, bytes);
  }
}

std::string TraceWriter::write() {
  PlainNumbers plain;
  int64_t named = -1;
  for (const Trace::Row *row : rows) {
    if (row->rank != named)
      nameProcess(named = row->rank);
    nameStream(*row);
    for (const TraceEvent &event : row->events)
      addSpan(*row, event);
  }
  addArrows();
  addArena();
  addBytesInFlight();
  return json + "\n]}\n";
}

void TraceOps::add(const std::vector<std::string> &entryNames, const std::vector<int64_t> &entryBytes) {
  arenaInUse.resize(names.size());
  arenaInUse.insert(arenaInUse.end(), entryBytes.begin(), entryBytes.end());
  names.insert(names.end(), entryNames.begin(), entryNames.end());
}

std::string Trace::toJson(const TraceOps &ops) const {
  std::vector<const Row *> all = getRows();
  return TraceWriter(all, ops).write();
}

bool writeTrace(const std::string &path, const Trace &trace, const TraceOps &ops,
                std::string &error) {
  return WholeFile::write(path, trace.toJson(ops), error);
}

} // namespace meshwright::rt
