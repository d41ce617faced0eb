//===- SafeTensors.cpp - tensors in files ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/SafeTensors.h"

#include "meshwright/runtime/include/WholeFile.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unistd.h>

namespace meshwright::rt {

namespace {
/// A type of files that programs do not have.
struct OtherType {
  const char *name;
  int64_t bits;
};
} // namespace

static constexpr OtherType kOtherTypes[] = {
    {"U8", 8},   {"I16", 16}, {"U16", 16},        {"U32", 32},
    {"U64", 64}, {"C64", 64}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};

/// The name of a file's metadata, which is no tensor.
static constexpr char kMetadata[] = "__metadata__";

std::unique_ptr<SafeTensorsFile> SafeTensorsFile::open(const std::string &path,
                                                       std::string &error) {
  std::shared_ptr<MappedFile> file = MappedFile::open(path, error);
  if (!file)
    return nullptr;
  std::unique_ptr<SafeTensorsFile> result(new SafeTensorsFile());
  result->file = std::move(file);
  std::string problem;
  if (!result->parse(problem)) {
    error = path + ": not a valid safetensors file: " + problem;
    return nullptr;
  }
  return result;
}

SafeTensorsFile::~SafeTensorsFile() = default;

const SafeTensorsFile::Tensor *SafeTensorsFile::find(const std::string &name) const {
  auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

const SafeTensorsFile::Tensor *
SafeTensorsFile::findParameter(const std::string &name, const std::vector<std::string> &aliases,
                               std::string &error) const {
  const Tensor *tensor = find(name);
  for (const std::string &alias : aliases)
    if (!tensor)
      tensor = find(alias);
  if (!tensor)
    error = getPath() + " has no tensor '" + name + "', a parameter of the program";
  else if (!tensor->supported)
    error = "parameter '" + name + "' is of type " + tensor->storedType + " in " + getPath() +
            ", which programs do not have";
  return tensor && tensor->supported ? tensor : nullptr;
}

/// Returns null, with an error, if the text is not an object, or if a name occurs twice in an
/// object. JSON does not define which of the two values counts, so readers would differ.
static nlohmann::json parseHeader(const char *begin, const char *end, std::string &error) {
  using Event = nlohmann::json::parse_event_t;
  // The names of the enclosing objects, by depth.
  std::vector<std::set<std::string>> names;
  std::string repeated;
  auto watch = [&](int depth, Event event, nlohmann::json &value) {
    if (event == Event::object_start) {
      names.resize(depth + 1);
      names[depth].clear();
    } else if (event == Event::key && !names[depth - 1].insert(value.get<std::string>()).second &&
               repeated.empty()) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  nlohmann::json header = nlohmann::json::parse(begin, end, watch, /*allow_exceptions=*/false);
  if (!header.is_object())
    error = "its header is not a JSON object";
  else if (!repeated.empty())
    error = "its header has '" + repeated + "' twice";
  return error.empty() ? header : nullptr;
}

namespace {
/// The range of a tensor's bytes in the data.
struct Range {
  uint64_t begin, end;
  std::string name;
};
} // namespace

/// Checks that each byte of the data belongs to exactly one tensor.
static bool checkRanges(std::vector<Range> ranges, uint64_t dataSize, std::string &error) {
  // Tensors without elements sort before the tensor that begins at the same offset.
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = 0;
  const Range *before = nullptr;
  for (const Range &range : ranges) {
    if (range.begin < at)
      error = "tensors '" + before->name + "' and '" + range.name + "' overlap";
    else if (range.begin > at)
      error = "tensor '" + range.name + "': expected its data to begin at " + std::to_string(at) +
              ", where that before it ends, got " + std::to_string(range.begin);
    if (!error.empty())
      return false;
    at = range.end;
    before = &range;
  }
  if (at != dataSize)
    error = std::to_string(dataSize - at) + " bytes of data belong to no tensor" +
            (before ? ", behind '" + before->name + "'" : "");
  return error.empty();
}

bool SafeTensorsFile::parse(std::string &error) {
  const char *mapped = file->getData();
  uint64_t size = file->getSize();
  if (size < 8) {
    error = "expected a header of at least 8 bytes, got " + std::to_string(size);
    return false;
  }
  uint64_t headerSize = 0;
  for (int i = 7; i >= 0; --i)
    headerSize = headerSize << 8 | static_cast<unsigned char>(mapped[i]);
  if (headerSize > size - 8) {
    error = "its header: expected " + std::to_string(headerSize) + " bytes behind their number, got " +
            std::to_string(size - 8);
    return false;
  }
  const char *data = mapped + 8 + headerSize;
  uint64_t dataSize = size - 8 - headerSize;
  nlohmann::json header = parseHeader(mapped + 8, data, error);
  if (header.is_null())
    return false;
  std::vector<Range> ranges;
  for (const auto &[name, entry] : header.items()) {
    if (name == kMetadata)
      continue;
    auto complain = [&, &name = name](const std::string &what) {
      error = "tensor '" + name + "': " + what;
      return false;
    };
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
        !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
        !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
      return complain("expected dtype, shape and data_offsets");
    Tensor tensor;
    tensor.storedType = entry["dtype"].get<std::string>();
    tensor.supported = findStoredDType(tensor.storedType, tensor.type);
    uint64_t bytes = tensor.supported ? sizeOf(tensor.type) : 0;
    for (const OtherType &candidate : kOtherTypes)
      if (tensor.storedType == candidate.name)
        bytes = candidate.bits / 8;
    if (!bytes)
      return complain("unknown dtype '" + tensor.storedType + "'");
    bool empty = false;
    for (const auto &extent : entry["shape"]) {
      if (!extent.is_number_unsigned())
        return complain("a size of its shape is not a natural number");
      uint64_t value = extent.get<uint64_t>();
      empty |= value == 0;
      if (!empty && __builtin_mul_overflow(bytes, value, &bytes))
        return complain("its shape is too large");
      if (value > uint64_t(INT64_MAX))
        return complain("its shape is too large");
      tensor.shape.push_back(int64_t(value));
    }
    if (empty)
      bytes = 0;
    if (int64_t shared = tensor.supported ? elementsPerByte(tensor.type) : 1; shared > 1) {
      if (tensor.shape.empty() || tensor.shape.back() % shared != 0)
        return complain("expected an even last dimension, since two elements share a byte, got " +
                        (tensor.shape.empty() ? "none" : std::to_string(tensor.shape.back())));
      tensor.shape.back() /= shared;
      bytes /= shared;
    }
    const auto &offsets = entry["data_offsets"];
    if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      return complain("its data_offsets are not natural numbers");
    uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
    if (begin > end || end > dataSize)
      return complain("expected data_offsets within the " + std::to_string(dataSize) +
                      " bytes of data, got " + std::to_string(begin) + " to " +
                      std::to_string(end));
    if (end - begin != bytes)
      return complain("expected the " + std::to_string(bytes) +
                      " bytes of its dtype and shape, got " + std::to_string(end - begin));
    tensor.data = data + begin;
    tensors.emplace(name, std::move(tensor));
    ranges.push_back({begin, end, name});
  }
  return checkRanges(std::move(ranges), dataSize, error);
}

bool writeSafeTensors(const std::string &path, const std::vector<NamedTensor> &tensors,
                      std::string &error, bool isDurable) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t offset = 0;
  for (const NamedTensor &tensor : tensors) {
    if (tensor.name == kMetadata) {
      error = path + ": cannot hold '" + tensor.name +
              "': safetensors files keep other things by that name";
      return false;
    }
    int64_t bytes = countOf(tensor.shape) * sizeOf(tensor.type);
    std::vector<int64_t> shape = tensor.shape;
    if (!shape.empty())
      shape.back() *= elementsPerByte(tensor.type);
    header[tensor.name] = {{"dtype", storedNameOf(tensor.type)},
                           {"shape", shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // The data starts at a multiple of 8.
  text.append((8 - text.size() % 8) % 8, ' ');
  std::unique_ptr<WholeFile> file = WholeFile::create(path, error);
  if (!file)
    return false;
  unsigned char length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = (uint64_t(text.size()) >> (8 * i)) & 0xff;
  file->write(length, 8);
  file->write(text.data(), text.size());
  for (const NamedTensor &tensor : tensors)
    file->write(tensor.data, countOf(tensor.shape) * sizeOf(tensor.type));
  return file->finish(error, isDurable);
}

} // namespace meshwright::rt
