//===- DeviceFile.cpp - devices as JSON -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/DeviceFile.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/TargetParser/Host.h"

#include <cmath>
#include <cstdio>

using namespace meshwright;
using llvm::StringRef;

/// A device file has a few kilobytes. The bounds keep a parser from damaged and hostile files.
static constexpr uint64_t kMaxBytes = 1 << 20;
static constexpr int kMaxDepth = 8;

static constexpr StringRef kFormat = "meshwright device";

/// Returns true if brackets nest deeper than any device file. The parser of JSON recurses.
static bool isTooDeep(StringRef text) {
  int depth = 0;
  bool inString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (inString) {
      i += c == '\\';
      inString = c != '"';
    } else if (c == '"') {
      inString = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth)
        return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

namespace {

/// Reads members of one object, and keeps the first error.
class Reader {
public:
  Reader(const llvm::json::Object &object, StringRef where, std::string &error)
      : object(object), where(where), error(error) {}

  bool text(StringRef key, std::string &to, bool isRequired = true) {
    const llvm::json::Value *value = find(key, isRequired);
    if (!value)
      return error.empty();
    std::optional<StringRef> found = value->getAsString();
    if (!found || found->empty() || found->size() > 256)
      return fail(key, "expected a text of 1 to 256 characters, got ", value);
    if (!llvm::all_of(*found, [](char c) { return llvm::isPrint(c); }))
      return fail(key, "expected printable characters", nullptr);
    to = found->str();
    return true;
  }
  bool count(StringRef key, int64_t least, int64_t &to) {
    const llvm::json::Value *value = find(key, /*isRequired=*/true);
    if (!value)
      return false;
    std::optional<int64_t> found = value->getAsInteger();
    if (!found || *found < least || *found > 1'000'000)
      return fail(key, llvm::formatv("expected a whole number from {0} to 1000000, got ", least).str(), value);
    to = *found;
    return true;
  }
  const llvm::json::Object *child(StringRef key, bool isRequired = true) {
    const llvm::json::Value *value = find(key, isRequired);
    if (!value)
      return nullptr;
    if (!value->getAsObject())
      fail(key, "expected an object, got ", value);
    return value->getAsObject();
  }
  /// Fails on a key that is none of these.
  bool only(llvm::ArrayRef<StringRef> known) {
    for (auto &member : object)
      if (!llvm::is_contained(known, StringRef(member.first)))
        return fail(member.first, "is no key of a device file", nullptr);
    return true;
  }
  bool fail(StringRef key, const llvm::Twine &what, const llvm::json::Value *got) {
    if (!error.empty())
      return false;
    std::string shown;
    if (got)
      shown = llvm::formatv("{0}", *got).str();
    if (shown.size() > 40)
      shown = shown.substr(0, 40) + "...";
    error = ("'" + (where.empty() ? "" : where + ".") + key.substr(0, 60) + "': " + what + shown).str();
    return false;
  }

private:
  const llvm::json::Value *find(StringRef key, bool isRequired) {
    const llvm::json::Value *value = object.get(key);
    if (!value && isRequired)
      fail(key, "is missing", nullptr);
    return value;
  }
  const llvm::json::Object &object;
  StringRef where;
  std::string &error;
};

} // namespace

static bool isDeviceKey(StringRef key) {
  std::string error;
  return key != "name" && (getDevice((key + "=1").str(), &error) || getDevice((key + "=1:1").str(), &error));
}

/// Writes a number so that it reads back as it was, to six digits.
static std::string spellNumber(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", number);
  return text;
}

/// Appends the spelling of a table.
static bool readTable(Reader &reader, StringRef key, const llvm::json::Value &value, std::string &spelling) {
  const llvm::json::Array *rows = value.getAsArray();
  RateTable table;
  if (!rows || rows->empty() || rows->size() > 256)
    return reader.fail(key, "expected a list of 1 to 256 pairs [size, rate], got ", &value);
  for (const llvm::json::Value &row : *rows) {
    const llvm::json::Array *pair = row.getAsArray();
    if (!pair || pair->size() != 2 || !(*pair)[0].getAsNumber() || !(*pair)[1].getAsNumber())
      return reader.fail(key, "expected pairs [size, rate] of numbers, got ", &row);
    std::string problem;
    if (!table.addChecked(*(*pair)[0].getAsNumber(), *(*pair)[1].getAsNumber(), problem))
      return reader.fail(key, problem, nullptr);
  }
  spelling += (" " + key + "=" + table.str()).str();
  return true;
}

/// Reads the numbers and tables of a device by their spelling, which has one reader for all.
static bool readDevice(const llvm::json::Object &object, Device &device, std::string &error) {
  Reader reader(object, "device", error);
  std::string spelling;
  for (StringRef needed : {"flops_f32", "memory_bandwidth", "launch"})
    if (!object.get(needed))
      return reader.fail(needed, "is missing", nullptr);
  for (auto &[name, value] : object) {
    StringRef key = name;
    if (!isDeviceKey(key))
      return reader.fail(key, "is no key of a device", nullptr);
    if (std::optional<double> number = value.getAsNumber()) {
      if (!std::isfinite(*number) || *number < 0 || *number > 1e18)
        return reader.fail(key, "expected a number from 0 to 1e18, got ", &value);
      spelling += (" " + key + "=" + spellNumber(*number)).str();
      continue;
    }
    if (!readTable(reader, key, value, spelling))
      return false;
  }
  std::optional<Device> read = getDevice(spelling, &error);
  if (read)
    device = *read;
  return read.has_value();
}

std::optional<DeviceFile> DeviceFile::parse(StringRef text, std::string &error) {
  error.clear();
  auto fail = [&](const llvm::Twine &what) -> std::optional<DeviceFile> {
    error = what.str();
    return std::nullopt;
  };
  if (isTooDeep(text))
    return fail("brackets nest deeper than in a device file");
  llvm::Expected<llvm::json::Value> json = llvm::json::parse(text);
  if (!json)
    return fail("is no JSON: " + llvm::toString(json.takeError()));
  const llvm::json::Object *top = json->getAsObject();
  if (!top)
    return fail("expected an object at the top");
  DeviceFile file;
  Reader reader(*top, "", error);
  std::string format;
  int64_t version = 0;
  if (!reader.text("format", format))
    return std::nullopt;
  if (format != kFormat)
    return fail("'format': expected '" + kFormat + "', got '" + format.substr(0, 40) + "'");
  if (!reader.count("version", 1, version))
    return std::nullopt;
  if (version != kVersion)
    return fail(llvm::formatv("'version': expected {0}, got {1}: measure again with --calibrate", kVersion, version));
  if (!reader.only({"format", "version", "machine", "date", "backend", "target", "ranks", "threads", "device"}))
    return std::nullopt;
  // A device of data sheets has no machine.
  const llvm::json::Object *machine = reader.child("machine", /*isRequired=*/false);
  if (machine) {
    Reader own(*machine, "machine", error);
    if (!own.only({"processor", "cores"}) || !own.text("processor", file.processor) ||
        !own.count("cores", 1, file.cores) || !reader.text("date", file.date))
      return std::nullopt;
  }
  if (!error.empty() || !reader.text("backend", file.backend, bool(machine)) ||
      !reader.text("target", file.target, bool(machine)) || (top->get("ranks") && !reader.count("ranks", 1, file.ranks)) ||
      (top->get("threads") && !reader.count("threads", 1, file.threads)))
    return std::nullopt;
  const llvm::json::Object *device = reader.child("device");
  if (!device || !readDevice(*device, file.device, error))
    return std::nullopt;
  return file;
}

std::optional<DeviceFile> DeviceFile::read(StringRef path, std::string &error) {
  auto fail = [&](const llvm::Twine &what) -> std::optional<DeviceFile> {
    error = ("device file '" + path + "': " + what).str();
    return std::nullopt;
  };
  llvm::sys::fs::file_status status;
  if (std::error_code code = llvm::sys::fs::status(path, status))
    return fail(code.message());
  if (!llvm::sys::fs::is_regular_file(status))
    return fail("expected a file");
  if (status.getSize() > kMaxBytes)
    return fail("expected at most 1 MiB, got " + llvm::Twine(status.getSize()) + " bytes");
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (!buffer)
    return fail(buffer.getError().message());
  std::optional<DeviceFile> file = parse((*buffer)->getBuffer(), error);
  return file ? file : fail(error);
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// Calls `number(key, value)` for each number above 0 and `table(key, table)` for each table.
template <typename Number, typename Table> static void visit(const Device &device, Number number, Table table) {
  const std::pair<StringRef, double> numbers[] = {
      {"flops_f32", device.flopsF32},
      {"flops_bf16", device.flopsBF16},
      {"flops_f16", device.flopsF16},
      {"memory_bandwidth", device.memoryBandwidth},
      {"memory_size", double(device.memorySize)},
      {"link_bandwidth", device.linkBandwidth},
      {"link_latency", device.linkLatency},
      {"network_bandwidth", device.networkBandwidth},
      {"network_latency", device.networkLatency},
      {"launch", device.launch},
      {"overlap", device.overlap},
      {"cheap_element", device.rates ? device.rates->cheapElement : 0},
      {"costly_element", device.rates ? device.rates->costlyElement : 0}};
  for (auto [key, value] : numbers)
    if (value > 0 || key == "overlap")
      number(key, value);
  if (!device.rates)
    return;
  Rates rates = *device.rates;
  for (const RateKey &key : getRateKeys())
    if (const RateTable &found = key.get(rates); !found.empty())
      table(key.name, found);
}

std::string DeviceFile::spell(StringRef name) const {
  std::string text = "name=";
  for (char c : name)
    text += c == ' ' || c == ',' ? '_' : c;
  visit(
      device, [&](StringRef key, double value) { text += (" " + key + "=" + spellNumber(value)).str(); },
      [&](StringRef key, const RateTable &table) { text += (" " + key + "=" + table.str()).str(); });
  return text;
}

std::string DeviceFile::toJson() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::json::OStream json(os, /*IndentSize=*/2);
  auto number = [&](double value) { json.rawValue(spellNumber(value)); };
  json.object([&] {
    json.attribute("format", kFormat);
    json.attribute("version", kVersion);
    json.attributeObject("machine", [&] {
      json.attribute("processor", processor);
      json.attribute("cores", cores);
    });
    json.attribute("date", date);
    json.attribute("backend", backend);
    json.attribute("target", target);
    json.attribute("ranks", ranks);
    json.attribute("threads", threads);
    json.attributeObject("device", [&] {
      visit(
          device,
          [&](StringRef key, double value) {
            json.attributeBegin(key);
            number(value);
            json.attributeEnd();
          },
          [&](StringRef key, const RateTable &table) {
            json.attributeArray(key, [&] {
              for (auto [size, rate] : table.get())
                json.array([&, size = size, rate = rate] {
                  number(size);
                  number(rate);
                });
            });
          });
    });
  });
  return text + "\n";
}

std::string meshwright::getProcessorName() {
  if (auto info = llvm::MemoryBuffer::getFileAsStream("/proc/cpuinfo"))
    for (StringRef line : llvm::split((*info)->getBuffer(), '\n'))
      if (line.starts_with("model name"))
        return line.split(':').second.trim().str();
  return llvm::sys::getHostCPUName().str();
}
