//===- Checkpoint.cpp - the files of a saved state ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checkpoint.h"

#include "BundleFiles.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Session.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sys/stat.h>

namespace fs = std::filesystem;

namespace meshwright::rt {

using Json = nlohmann::ordered_json;

static constexpr const char *kFormat = "meshwright checkpoint";
static constexpr int64_t kVersion = 1;
static constexpr const char *kPrefix = "rank-", *kSuffix = ".safetensors", *kPartial = WholeFile::kPartial;
static constexpr size_t kIdLength = 16;

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

std::optional<Box> findBox(const ProgramValue &value, int64_t rank) {
  if (value.unreduced.count > 0)
    return std::nullopt;
  Box box;
  for (const auto &dim : value.layout.dims) {
    int64_t begin = 0, count = 1;
    for (size_t f = 0; f < dim.size(); ++f) {
      const ShardedFactor &factor = dim[f];
      int64_t ranks = sizeOfGroup(factor.axes);
      if (factor.order != TokenOrder::Natural)
        return std::nullopt;
      // Behind the first factor all elements must be here: those of the dimension are then
      // consecutive.
      if (f > 0 && (ranks != 1 || factor.size != factor.padded))
        return std::nullopt;
      int64_t chunk = factor.padded / ranks;
      int64_t first = f > 0 ? 0 : coordinateOf(factor.axes, rank) * chunk;
      begin = begin * factor.size + first;
      count *= std::clamp<int64_t>(factor.size - first, 0, chunk);
    }
    box.offset.push_back(begin);
    box.shape.push_back(count);
  }
  return box;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static std::string dump(const Json &json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string CheckpointWriter::makeId() {
  std::random_device random;
  char digits[kIdLength + 1];
  std::snprintf(digits, sizeof(digits), "%08x%08x", random(), random());
  return digits;
}

bool CheckpointWriter::createFolder(const std::string &folder, bool &isNew, std::string &error) {
  isNew = mkdir(folder.c_str(), 0777) == 0;
  if (isNew || errno == EEXIST)
    return true;
  error = folder + ": cannot be created: " + std::strerror(errno);
  return false;
}

bool CheckpointWriter::write(int64_t rank, const std::vector<NamedTensor> &tensors,
                             const std::vector<Box> &boxes, std::string &error) {
  std::vector<SavedPart> &own = parts.emplace_back();
  if (tensors.empty())
    return true;
  std::string file = kPrefix + std::to_string(rank) + "." + id + kSuffix;
  std::string path = fs::path(folder) / file;
  if (!writeSafeTensors(path, tensors, error, /*isDurable=*/true))
    return false;
  files.push_back(std::make_unique<Temporary>(path));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor &tensor = tensors[i];
    own.push_back({tensor.name, file, boxes[i],
                   hashOf(static_cast<const char *>(tensor.data),
                          countOf(tensor.shape) * sizeOf(tensor.type))});
  }
  return true;
}

std::string CheckpointWriter::toText(const std::vector<SavedPart> &parts) {
  Json list = Json::array();
  for (const SavedPart &part : parts)
    list.push_back({part.state, part.file, part.box.offset, part.box.shape, part.hash});
  return dump(list);
}

std::vector<SavedPart> CheckpointWriter::fromText(const std::string &text) {
  std::vector<SavedPart> parts;
  for (const Json &part : Json::parse(text))
    parts.push_back({part[0].get<std::string>(),
                     part[1].get<std::string>(),
                     {part[2].get<std::vector<int64_t>>(), part[3].get<std::vector<int64_t>>()},
                     part[4].get<std::string>()});
  return parts;
}

/// Whether a file belongs to a saved state, or is a part of one that was never finished.
static bool isOfCheckpoint(std::string name) {
  auto isOnly = [](const std::string &text, const char *characters) {
    return !text.empty() && text.find_first_not_of(characters) == std::string::npos;
  };
  const char *digits = "0123456789", *hexadecimal = "0123456789abcdef";
  if (size_t end = name.find(kPartial); end != std::string::npos) {
    if (!isOnly(name.substr(end + std::strlen(kPartial)), digits))
      return false;
    name.resize(end);
    if (name == kStateIndex)
      return true;
  }
  size_t prefix = std::strlen(kPrefix), dot = name.find('.');
  return name.rfind(kPrefix, 0) == 0 && dot != std::string::npos &&
         isOnly(name.substr(prefix, dot - prefix), digits) &&
         isOnly(name.substr(dot + 1, kIdLength), hexadecimal) &&
         name.substr(std::min(name.size(), dot + 1 + kIdLength)) == kSuffix;
}

bool CheckpointWriter::finish(const ProgramDescription &description,
                              const std::vector<SavedPart> &all, std::string &error) {
  std::set<std::string> names;
  std::error_code code;
  for (const SavedPart &part : all)
    if (names.insert(part.file).second && !fs::exists(fs::path(folder) / part.file, code)) {
      error = fs::path(folder) / part.file;
      error += ": is not there: expected a folder that all processes share";
      return false;
    }
  Json index = {{"format", kFormat}, {"version", kVersion}};
  Json &states = index["states"] = Json::object();
  for (const ProgramState &state : description.states)
    if (!state.isTransient)
      states[state.value.name] = {{"dtype", nameOf(state.value.type)},
                                  {"shape", state.value.shape},
                                  {"parts", Json::array()}};
  for (const SavedPart &part : all)
    states[part.state]["parts"].push_back({{"file", part.file},
                                           {"offset", part.box.offset},
                                           {"shape", part.box.shape},
                                           {"hash", part.hash}});
  std::string text = dump(index);
  index["hash"] = hashOf(text.data(), text.size());
  text = index.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  auto file = WholeFile::create(fs::path(folder) / kStateIndex, error);
  if (!file)
    return false;
  file->write(text.data(), text.size());
  if (!file->finish(error, /*isDurable=*/true))
    return false;
  // The files of the state before, and those of a process that was killed.
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (std::string name = entry->path().filename(); isOfCheckpoint(name) && !names.count(name))
      old.push_back(entry->path());
  for (const fs::path &path : old)
    fs::remove(path, code);
  return true;
}

void CheckpointWriter::keep() {
  for (std::unique_ptr<Temporary> &file : files)
    file->keep();
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

/// Reads the index of a folder, and the files that it names.
class IndexReader {
public:
  IndexReader(std::string folder, const ProgramDescription &description, Checkpoint &checkpoint,
              std::string &error)
      : folder(std::move(folder)), description(description), checkpoint(checkpoint), error(error),
        path(fs::path(this->folder) / kStateIndex) {}

  bool read();

private:
  bool fail(const std::string &what) {
    error = path + ": " + what;
    return false;
  }
  bool parse();
  bool readStates();
  bool readState(const ProgramValue &value, const Json &saved);
  bool readPart(const ProgramValue &value, const Json &saved, Checkpoint::Saved &to);
  const SafeTensorsFile *openFile(const std::string &name);

  std::string folder;
  const ProgramDescription &description;
  Checkpoint &checkpoint;
  std::string &error;
  std::string path;
  Json index;
};

bool IndexReader::parse() {
  std::error_code code;
  if (!fs::exists(path, code)) {
    error = folder + ": no saved state: it has no " + kStateIndex;
    return false;
  }
  std::string text;
  if (!readFile(path, text, error))
    return false;
  index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || index.value("format", Json()) != kFormat)
    return fail("not the index of a checkpoint");
  if (Json version = index.value("version", Json()); version != kVersion)
    return fail("its version is " + version.dump() + ", this runtime reads " +
                std::to_string(kVersion));
  Json hash = index.value("hash", Json());
  index.erase("hash");
  text = dump(index);
  return hash == hashOf(text.data(), text.size()) || fail("changed since the checkpoint was saved");
}

/// Returns a file that the index names. Opens it if no part before was in it.
const SafeTensorsFile *IndexReader::openFile(const std::string &name) {
  std::unique_ptr<SafeTensorsFile> &file = checkpoint.files[name];
  if (!file && fs::path(name).filename() != name)
    fail("names the file '" + name + "': expected one in its folder");
  else if (!file)
    file = SafeTensorsFile::open(fs::path(folder) / name, error);
  return file.get();
}

bool IndexReader::readPart(const ProgramValue &value, const Json &saved, Checkpoint::Saved &to) {
  Box box{saved.at("offset").get<std::vector<int64_t>>(),
          saved.at("shape").get<std::vector<int64_t>>()};
  size_t rank = value.shape.size();
  bool isInside = box.offset.size() == rank && box.shape.size() == rank;
  for (size_t d = 0; isInside && d < rank; ++d)
    isInside = box.offset[d] >= 0 && box.shape[d] > 0 && box.offset[d] <= value.shape[d] &&
               box.shape[d] <= value.shape[d] - box.offset[d];
  if (!isInside)
    return fail("a part of state '" + value.name + "' is beyond the state");
  std::string name = saved.at("file").get<std::string>();
  const SafeTensorsFile *file = openFile(name);
  if (!file)
    return false;
  const SafeTensorsFile::Tensor *tensor = file->find(value.name);
  if (!tensor || !tensor->supported || tensor->type != value.type || tensor->shape != box.shape ||
      hashOf(static_cast<const char *>(tensor->data), countOf(box.shape) * sizeOf(value.type)) !=
          saved.at("hash").get<std::string>()) {
    error = file->getPath() + ": state '" + value.name + "' changed since the checkpoint was saved";
    return false;
  }
  to.parts.push_back({std::move(box), tensor->data});
  return true;
}

bool IndexReader::readState(const ProgramValue &value, const Json &saved) {
  std::string type = saved.at("dtype").get<std::string>();
  auto shape = saved.at("shape").get<std::vector<int64_t>>();
  if (type != nameOf(value.type) || shape != value.shape)
    return fail("state '" + value.name + "' is " + type +
                describe(value.type, shape).substr(std::strlen(nameOf(value.type))) +
                ", expected " + describe(value.type, value.shape));
  Checkpoint::Saved &to = checkpoint.states[value.name];
  to.type = value.type;
  to.shape = value.shape;
  int64_t left = countOf(value.shape);
  for (const Json &part : saved.at("parts")) {
    if (!readPart(value, part, to))
      return false;
    left -= countOf(to.parts.back().box.shape);
  }
  if (left != 0)
    return fail("parts of state '" + value.name + "' are missing");
  if (to.parts.size() > 1)
    checkpoint.scratchBytes =
        std::max(checkpoint.scratchBytes, countOf(value.shape) * sizeOf(value.type));
  return true;
}

bool IndexReader::readStates() {
  const Json &states = index.at("states");
  size_t found = 0;
  for (const ProgramState &state : description.states) {
    if (state.isTransient)
      continue;
    auto saved = states.find(state.value.name);
    if (saved == states.end())
      return fail("has no state '" + state.value.name + "': expected the saved state of this model");
    if (!readState(state.value, *saved))
      return false;
    ++found;
  }
  if (found == states.size())
    return true;
  for (const auto &[name, saved] : states.items())
    if (!checkpoint.states.count(name))
      return fail("has '" + name +
                  "', which is no state of the program: expected the saved state of this model");
  return true;
}

bool IndexReader::read() {
  try {
    return parse() && readStates();
  } catch (const nlohmann::json::exception &exception) {
    return fail(std::string("damaged: ") + exception.what());
  }
}

std::unique_ptr<Checkpoint> Checkpoint::open(const std::string &folder,
                                             const ProgramDescription &description,
                                             std::string &error) {
  auto checkpoint = std::make_unique<Checkpoint>();
  if (!IndexReader(folder, description, *checkpoint, error).read())
    return nullptr;
  return checkpoint;
}

HostTensor Checkpoint::read(const std::string &state, char *scratch) const {
  const Saved &saved = states.at(state);
  if (saved.parts.size() == 1)
    return {saved.type, saved.shape, saved.parts.front().data};
  for (const Part &part : saved.parts)
    copyBox(part.data, part.box.shape, std::vector<int64_t>(saved.shape.size()), scratch,
            saved.shape, part.box.offset, part.box.shape, sizeOf(saved.type));
  return {saved.type, saved.shape, scratch};
}

} // namespace meshwright::rt
