//===- Checkpoint.cpp - the files of a saved state ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Checkpoint.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Session.h"
#include "meshwright/runtime/src/bundle/BundleFiles.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace meshwright::rt {

using Json = nlohmann::ordered_json;

static constexpr const char *kCheckpointFormat = "meshwright checkpoint";
static constexpr int64_t kCheckpointVersion = 1;
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
      if (factor.order != TokenOrder::Contiguous)
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

bool CheckpointWriter::createFolder(const std::string &folder, bool &isNew, std::string &error) {
  isNew = mkdir(folder.c_str(), 0777) == 0;
  if (isNew)
    return syncFolder(folderOf(folder), error);
  if (errno == EEXIST)
    return true;
  error = folder + ": cannot be created: " + std::strerror(errno);
  return false;
}

bool CheckpointWriter::write(int64_t rank, std::vector<NamedTensor> tensors,
                             const std::vector<Box> &boxes, const SavedExtras &extras,
                             std::string &error) {
  std::vector<SavedPart> &own = parts.emplace_back();
  std::string file = kPrefix + std::to_string(rank) + "." + id + kSuffix;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor &tensor = tensors[i];
    own.push_back({tensor.name, file, boxes[i],
                   hashOf(static_cast<const char *>(tensor.data),
                          countOf(tensor.shape) * sizeOf(tensor.type))});
  }
  for (const FixedTensor &tensor : extras.unread) {
    NamedTensor named{tensor.name, DType::F32, tensor.shape, tensor.data.get()};
    if (rank == 0 && findDType(tensor.type, named.type))
      tensors.push_back(std::move(named));
  }
  if (tensors.empty())
    return true;
  std::string path = fs::path(folder) / file;
  if (!writeSafeTensors(path, tensors, error, /*isDurable=*/true))
    return false;
  files.push_back(std::make_unique<Temporary>(path));
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

/// Returns true if a file belongs to a saved state, or is a part of one that was never finished.
static bool isOfCheckpoint(std::string name) {
  auto isOnly = [](const std::string &text, const char *characters) {
    return !text.empty() && text.find_first_not_of(characters) == std::string::npos;
  };
  const char *digits = "0123456789", *hexadecimal = "0123456789abcdef";
  if (size_t end = name.find(kPartial); end != std::string::npos) {
    if (!isOnly(name.substr(end + std::strlen(kPartial)), hexadecimal))
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

/// The files that an index names; none for a text that is no index.
static std::set<std::string> findNamed(const std::string &text) {
  std::set<std::string> files;
  try {
    Json index = Json::parse(text);
    for (const char *kind : {"states", "unread"}) {
      Json all = index.value(kind, Json::object());
      for (const auto &[name, saved] : all.items()) {
        if (saved.contains("file"))
          files.insert(saved.at("file").get<std::string>());
        Json parts = saved.value("parts", Json::array());
        for (const Json &part : parts)
          files.insert(part.at("file").get<std::string>());
      }
    }
  } catch (const nlohmann::json::exception &) {
  }
  return files;
}

bool CheckpointWriter::prepare(const ProgramDescription &description,
                               const std::vector<SavedPart> &all, const SavedExtras &extras,
                               std::string &error) {
  std::error_code code;
  Json json = {{"format", kCheckpointFormat}, {"version", kCheckpointVersion}};
  Json &states = json["states"] = Json::object();
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
  if (extras.learningRate)
    json["learning_rate"] = *extras.learningRate;
  if (!extras.requests.empty())
    json["requests"] = extras.requests;
  if (const ModelIdentity &model = description.model; description.serving)
    json["model"] = {{"parameters", model.parameters},
                     {"operations", model.operations},
                     {"max_length", description.serving->maxLength},
                     {"weights", model.weights}};
  for (const FixedTensor &tensor : extras.unread)
    json["unread"][tensor.name] = {
        {"dtype", tensor.type},
        {"shape", tensor.shape},
        {"file", kPrefix + std::string("0.") + id + kSuffix},
        {"hash", hashOf(static_cast<const char *>(tensor.data.get()), tensor.bytes)}};
  std::string text = dump(json);
  json["hash"] = hashOf(text.data(), text.size());
  text = json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  named = findNamed(text);
  for (const std::string &file : named)
    if (!fs::exists(fs::path(folder) / file, code)) {
      error = fs::path(folder) / file;
      error += ": is not there: expected a folder that all processes share";
      return false;
    }
  index = WholeFile::create(fs::path(folder) / kStateIndex, error);
  if (!index)
    return false;
  index->write(text.data(), text.size());
  return index->complete(error, /*isDurable=*/true);
}

bool CheckpointWriter::release(std::string &error) {
  bool areThere = true;
  for (std::unique_ptr<Temporary> &file : files)
    areThere &= file->keep();
  if (!areThere)
    error = folder + ": cannot be written: the process is about to end";
  return areThere;
}

void CheckpointWriter::discard() {
  for (const std::string &file : named)
    unlink((fs::path(folder) / file).c_str());
}

bool CheckpointWriter::commit(const FolderLock &lock, std::string &error) {
  std::string before, problem;
  readIndex(folder, before, problem);
  if (!lock.check(error) || !index->place(error)) {
    discard();
    return false;
  }
  // The names may not be permanent: after a loss of power either index may be there.
  if (!syncFolder(folder, error))
    return false;
  // The files of the state before, and, if no other process writes there, those of processes that
  // were killed.
  std::vector<std::string> old;
  std::set<std::string> replaced = findNamed(before);
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (std::string name = entry->path().filename();
        isOfCheckpoint(name) && !named.count(name) && (lock.isHeld() || replaced.count(name)))
      old.push_back(entry->path());
  for (const std::string &path : old)
    unlink(path.c_str());
  return true;
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

bool readIndex(const std::string &folder, std::string &text, std::string &error) {
  fs::path path = fs::path(folder) / kStateIndex;
  std::error_code code;
  if (fs::exists(path, code))
    return readFile(path, text, error);
  error = folder + ": no saved state: it has no " + kStateIndex;
  return false;
}

/// Reads an index, and the files that it names.
class IndexReader {
public:
  IndexReader(std::string folder, const std::string &text, const ProgramDescription &description,
              Checkpoint &checkpoint, bool &isGone, std::string &error)
      : folder(std::move(folder)), text(text), description(description), checkpoint(checkpoint),
        isGone(isGone), error(error), path(fs::path(this->folder) / kStateIndex) {}

  bool read();

private:
  bool fail(const std::string &what) {
    error = path + ": " + what;
    return false;
  }
  bool parse();
  bool checkModel();
  bool openFiles();
  bool readStates();
  bool readExtras();
  bool readState(const ProgramState &state, const Json &saved);
  bool readPart(const ProgramValue &value, const Json &saved, Checkpoint::Saved &to);
  const SafeTensorsFile *getFile(const std::string &name);

  std::string folder;
  const std::string &text;
  const ProgramDescription &description;
  Checkpoint &checkpoint;
  bool &isGone;
  std::string &error;
  std::string path;
  Json index;
};

bool IndexReader::parse() {
  index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || index.value("format", Json()) != kCheckpointFormat)
    return fail("not the index of a checkpoint");
  if (Json version = index.value("version", Json()); version != kCheckpointVersion)
    return fail("expected version " + std::to_string(kCheckpointVersion) + ", which this runtime reads, got " +
                version.dump());
  Json hash = index.value("hash", Json());
  index.erase("hash");
  std::string rest = dump(index);
  return hash == hashOf(rest.data(), rest.size()) || fail("changed since the checkpoint was saved");
}

/// Compares the model of a session that serves. One that was saved before sessions named their model has none.
bool IndexReader::checkModel() {
  if (!description.serving || !index.contains("model"))
    return true;
  const ModelIdentity &own = description.model;
  const Json &saved = index["model"];
  auto differs = [&](const char *name, const std::string &hash) {
    auto other = saved.at(name).get<std::string>();
    return !hash.empty() && !other.empty() && hash != other;
  };
  bool isAsLong = saved.at("max_length") == description.serving->maxLength;
  const char *other = differs("parameters", own.parameters)               ? "parameters"
                      : isAsLong && differs("operations", own.operations) ? "operations"
                      : differs("weights", own.weights)                   ? "weights"
                                                                          : nullptr;
  return !other || fail("expected the saved state of this model, got that of another model, which has other " +
                        std::string(other));
}

/// Opens all files that the index names, before it reads one: a session that saves meanwhile may
/// delete them, and they stay as long as they are open.
bool IndexReader::openFiles() {
  for (const std::string &name : findNamed(text)) {
    if (fs::path(name).filename() != name)
      return fail("names the file '" + name + "': expected one in its folder");
    fs::path place = fs::path(folder) / name;
    std::unique_ptr<SafeTensorsFile> file = SafeTensorsFile::open(place, error);
    if (!file) {
      isGone = access(place.c_str(), F_OK) != 0;
      return false;
    }
    checkpoint.files.emplace(name, std::move(file));
  }
  return true;
}

const SafeTensorsFile *IndexReader::getFile(const std::string &name) {
  return checkpoint.files.at(name).get();
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
  const SafeTensorsFile *file = getFile(name);
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

/// Returns true for a cache of other groups or pages. The session computes its values again.
static bool isOtherCache(const ProgramState &state, const std::string &type,
                         const std::vector<int64_t> &shape) {
  const ProgramValue &value = state.value;
  // Groups, pages and rows of a page come first.
  constexpr size_t kPaging = 3;
  return state.role == kCacheRole && type == nameOf(value.type) && shape != value.shape &&
         shape.size() == value.shape.size() && shape.size() >= kPaging &&
         std::equal(shape.begin() + kPaging, shape.end(), value.shape.begin() + kPaging);
}

bool IndexReader::readState(const ProgramState &state, const Json &saved) {
  const ProgramValue &value = state.value;
  std::string type = saved.at("dtype").get<std::string>();
  auto shape = saved.at("shape").get<std::vector<int64_t>>();
  if (isOtherCache(state, type, shape))
    return true;
  if (type != nameOf(value.type) || shape != value.shape)
    return fail("state '" + value.name + "': expected " + describe(value.type, value.shape) +
                ", got " + type +
                describe(value.type, shape).substr(std::strlen(nameOf(value.type))));
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
    if (!readState(state, *saved))
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

bool IndexReader::readExtras() {
  if (auto rate = index.find("learning_rate"); rate != index.end()) {
    checkpoint.extras.learningRate = rate->get<double>();
    if (std::string problem = checkLearningRate(rate->get<double>()); !problem.empty())
      return fail(problem);
  }
  checkpoint.extras.requests = index.value("requests", "");
  Json unread = index.value("unread", Json::object());
  for (const auto &[name, saved] : unread.items()) {
    const SafeTensorsFile *file = getFile(saved.at("file").get<std::string>());
    FixedTensor extra;
    extra.name = name;
    extra.type = saved.at("dtype").get<std::string>();
    extra.shape = saved.at("shape").get<std::vector<int64_t>>();
    extra.isRead = false;
    const SafeTensorsFile::Tensor *tensor = file->find(name);
    DType type;
    bool isSame = tensor && tensor->supported && findDType(extra.type, type) &&
                  tensor->type == type && tensor->shape == extra.shape;
    if (isSame)
      extra.bytes = countOf(tensor->shape) * sizeOf(type);
    if (!isSame || hashOf(static_cast<const char *>(tensor->data), extra.bytes) !=
                       saved.at("hash").get<std::string>()) {
      error = file->getPath() + ": tensor '" + name + "' changed since the checkpoint was saved";
      return false;
    }
    // A copy: the file may be overwritten in place.
    std::shared_ptr<char> copy = allocate(extra.bytes);
    if (!copy) {
      error = "no memory for a copy of tensor '" + extra.name + "'";
      return false;
    }
    std::memcpy(copy.get(), tensor->data, extra.bytes);
    extra.data = std::move(copy);
    checkpoint.extras.unread.push_back(std::move(extra));
  }
  return true;
}

bool IndexReader::read() {
  try {
    return parse() && checkModel() && openFiles() && readStates() && readExtras();
  } catch (const nlohmann::json::exception &exception) {
    return fail(std::string("damaged: ") + exception.what());
  }
}

std::unique_ptr<Checkpoint> Checkpoint::open(const std::string &folder, const std::string &index,
                                             const ProgramDescription &description, bool &isGone,
                                             std::string &error) {
  auto checkpoint = std::make_unique<Checkpoint>();
  isGone = false;
  if (!IndexReader(folder, index, description, *checkpoint, isGone, error).read())
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
