//===- ManifestReader.cpp - reads the description in a bundle -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Manifest.h"
#include "ManifestJson.h"
#include "meshwright/runtime/src/files/Digits.h"

#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Packing.h"

#include <algorithm>

namespace meshwright::rt {

/// The most columns of a panel, and the most consecutive k of a group. No kernel reads as many.
static constexpr int64_t kMaxPanel = 1 << 10;

namespace {
/// The error of a file that was changed or is of another version.
struct Invalid {
  std::string what;
};
} // namespace

static void require(bool holds, const std::string &what) {
  if (!holds)
    throw Invalid{what};
}

static int64_t readCount(const Json &json, const char *name) {
  const Json &value = json.at(name);
  require(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(INT64_MAX),
          std::string(name) + " is not a natural number");
  return value.get<int64_t>();
}

static int64_t readIndex(const Json &json, const char *name, size_t size) {
  int64_t index = readCount(json, name);
  require(index < int64_t(size), std::string(name) + ": expected less than " +
                                     std::to_string(size) + ", got " + std::to_string(index));
  return index;
}

static DType readType(const Json &json, const char *key = "dtype") {
  std::string name = json.at(key).get<std::string>();
  DType type;
  if (findDType(name, type))
    return type;
  throw Invalid{"unknown dtype '" + name + "'"};
}

static std::vector<int64_t> readShape(const Json &json, const char *name) {
  std::vector<int64_t> shape;
  int64_t count = 1;
  for (const Json &size : json.at(name)) {
    require(size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t(INT64_MAX) / 8 &&
                !__builtin_mul_overflow(count, std::max<int64_t>(size.get<int64_t>(), 1), &count) &&
                count <= INT64_MAX / 8,
            std::string(name) + " is not a shape");
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

static mw_rt_axes readAxes(const Json &json, int64_t numRanks) {
  mw_rt_axes axes = {};
  require(json.is_array() && json.size() <= MW_RT_MAX_AXES, "too many axes");
  int64_t left = numRanks;
  for (const Json &axis : json) {
    auto &to = axes.axes[axes.count++];
    to.stride = axis.at(0).get<int64_t>();
    to.size = axis.at(1).get<int64_t>();
    require(to.stride > 0 && to.size > 0 && to.size <= numRanks / to.stride && to.size <= left,
            "an axis is beyond the ranks");
    left /= to.size;
  }
  return axes;
}

/// Reads the value of one element from hexadecimal digits.
static std::string readElement(const Json &json, const char *name, DType type) {
  std::string digits = json.at(name).get<std::string>(), bytes;
  require(fromDigits(digits, bytes) && int64_t(bytes.size()) == sizeOf(type),
          std::string(name) + ": expected the bytes of one element, got '" + digits + "'");
  return bytes;
}

static ProgramValue readValue(const Json &json, int64_t numRanks) {
  ProgramValue value;
  value.name = json.at("name").get<std::string>();
  value.type = readType(json);
  value.shape = readShape(json, "shape");
  value.localShape = readShape(json, "local_shape");
  if (json.contains("aliases"))
    value.aliases = json["aliases"].get<std::vector<std::string>>();
  if (json.contains("offsets"))
    value.offsets = json["offsets"].get<std::vector<int64_t>>();
  require(value.offsets.empty() || value.offsets.size() == value.shape.size(),
          "'" + value.name + "': expected " + std::to_string(value.shape.size()) +
              " offsets, got " + std::to_string(value.offsets.size()));
  if (json.contains("magnitude"))
    value.magnitude = json["magnitude"].get<double>();
  if (json.contains("index_bound"))
    value.indexBound = readCount(json, "index_bound");
  if (json.contains("default"))
    value.defaultElement = readElement(json, "default", value.type);
  if (json.contains("whole"))
    value.isWhole = json["whole"].get<bool>();
  if (json.contains("sharding"))
    value.sharding = json["sharding"].get<std::string>();
  for (auto [key, reduction] : {std::pair("unreduced", MW_RT_SUM), {"unreduced_max", MW_RT_MAX}})
    if (json.contains(key)) {
      value.unreduced = readAxes(json[key], numRanks);
      value.reduction = reduction;
    }
  int64_t count = 1;
  for (const Json &factors : json.at("layout")) {
    auto &dim = value.layout.dims.emplace_back();
    for (const Json &factor : factors) {
      ShardedFactor read{readCount(factor, "size"), readCount(factor, "padded"),
                         readAxes(factor.at("axes"), numRanks)};
      if (factor.contains("order")) {
        std::string order = factor["order"].get<std::string>();
        require(order == "zigzag" || order == "striped", "unknown order '" + order + "'");
        read.order = order == "zigzag" ? TokenOrder::Zigzag : TokenOrder::Striped;
        read.orderRanks = readCount(factor, "order_ranks");
      }
      require(read.orderRanks > 0 && read.padded % read.orderRanks == 0 &&
                  read.size <= read.padded && read.padded % sizeOfGroup(read.axes) == 0,
              "a factor of '" + value.name + "' is not whole");
      require(!__builtin_mul_overflow(count, std::max<int64_t>(read.padded, 1), &count) &&
                  count <= INT64_MAX / 8,
              "'" + value.name + "' is too large");
      dim.push_back(read);
    }
  }
  require(value.layout.getGlobalShape() == value.shape &&
              value.layout.getLocalShape() == value.localShape,
          "the layout of '" + value.name + "' does not fit its shapes");
  return value;
}

static Stored readStored(const Json &json, const std::vector<WeightGroup> &groups, int64_t bytes) {
  Stored stored{readIndex(json, "group", groups.size()), readCount(json, "offset"),
                readCount(json, "bytes")};
  require(bytes < 0 || stored.bytes == bytes, "a part: expected " + std::to_string(bytes) +
                                                  " bytes, got " + std::to_string(stored.bytes));
  int64_t size = groups[stored.group].bytes;
  require(stored.offset <= size && stored.bytes <= size - stored.offset &&
              stored.offset % kAlignment == 0,
          "a part is not in its file");
  return stored;
}

static std::vector<ProgramValue> readValues(const Json &json, int64_t numRanks) {
  std::vector<ProgramValue> values;
  for (const Json &value : json)
    values.push_back(readValue(value, numRanks));
  return values;
}

static ProgramArgument readArgument(const Json &json, const EntryDescription &entry,
                                    const ProgramDescription &program) {
  ProgramArgument argument;
  if (json.contains("input")) {
    argument.index = readIndex(json, "input", entry.inputs.size());
  } else if (json.contains("state")) {
    argument.kind = ProgramArgument::State;
    argument.index = readIndex(json, "state", program.states.size());
  } else {
    argument.kind = ProgramArgument::Parameter;
    argument.index = readIndex(json, "parameter", program.parameters.size());
  }
  argument.isRead = !json.contains("read") || json["read"].get<bool>();
  return argument;
}

/// Reads a list of indices that are below `size`.
static std::vector<int64_t> readIndices(const Json &json, const char *name, size_t size) {
  std::vector<int64_t> indices;
  for (const Json &index : json.at(name)) {
    require(index.is_number_unsigned() && index.get<uint64_t>() < size,
            std::string(name) + ": expected numbers less than " + std::to_string(size) + ", got " +
                index.dump());
    indices.push_back(index.get<int64_t>());
  }
  return indices;
}

static StateUpdate readUpdate(const Json &json) {
  if (json.is_object())
    return {StateUpdate::Rows, readCount(json, "log")};
  require(json.is_null() || json == "whole",
          "state_updates: expected a log, \"whole\" or null, got " + json.dump());
  return {json.is_null() ? StateUpdate::Elsewhere : StateUpdate::Whole};
}

static EntryDescription readEntry(const Json &json, const ProgramDescription &program) {
  EntryDescription entry;
  entry.name = json.at("name").get<std::string>();
  entry.arenaBytes = readCount(json, "arena_bytes");
  entry.seconds = json.value("seconds", 0.0);
  entry.inputs = readValues(json.at("inputs"), program.numRanks);
  entry.outputs = readValues(json.at("outputs"), program.numRanks);
  for (const Json &argument : json.at("arguments"))
    entry.arguments.push_back(readArgument(argument, entry, program));
  entry.prepared = readIndices(json, "prepared", program.prepared.size());
  entry.stateResults = readIndices(json, "state_results", program.states.size());
  for (const Json &update : json.at("state_updates"))
    entry.updates.push_back(readUpdate(update));
  require(entry.updates.size() == entry.stateResults.size(),
          "state_updates: expected " + std::to_string(entry.stateResults.size()) +
              " entries, got " + std::to_string(entry.updates.size()));
  for (const Json &step : json.value("steps", Json::array()))
    entry.steps.push_back({readCount(step, "entry"), readCount(step, "chunks"),
                           readCount(step, "times"),
                           step.contains("until") ? readCount(step, "until") : -1});
  entry.ops = json.at("ops").get<std::vector<std::string>>();
  if (json.contains("arena_in_use")) {
    entry.arenaInUse = json.at("arena_in_use").get<std::vector<int64_t>>();
    require(entry.arenaInUse.size() == entry.ops.size(),
            "arena_in_use: expected " + std::to_string(entry.ops.size()) + " numbers, got " +
                std::to_string(entry.arenaInUse.size()));
  }
  const Json fused = json.value("fused", Json::object());
  for (size_t op = 0; op < entry.ops.size(); ++op)
    if (auto others = fused.find(std::to_string(op)); others != fused.end())
      entry.fused[int64_t(op)] = others->get<std::string>();
  return entry;
}

static ServingSizes readServing(const Json &json) {
  ServingSizes sizes;
  sizes.groups = readCount(json, "groups");
  sizes.maxLength = readCount(json, "max_length");
  sizes.pageSize = readCount(json, "page_size");
  sizes.pages = readCount(json, "pages");
  sizes.maxRequests = readCount(json, "max_requests");
  sizes.vocabulary = readCount(json, "vocabulary");
  sizes.deal = readCount(json, "deal");
  sizes.sharesBeginnings = json.at("shares_beginnings").get<bool>();
  return sizes;
}

static PreparedWeight readPrepared(const Json &json, const ProgramDescription &program) {
  PreparedWeight prepared;
  if (json.contains("state")) {
    prepared.kind = ProgramArgument::State;
    prepared.index = readIndex(json, "state", program.states.size());
  } else {
    prepared.index = readIndex(json, "parameter", program.parameters.size());
  }
  if (json.contains("offset"))
    prepared.offset = readCount(json, "offset");
  const Json &packing = json.at("packing");
  mw_rt_packing &what = prepared.packing;
  what.stored = int64_t(readType(packing, "stored"));
  what.dtype = int64_t(readType(packing));
  what.k = readCount(packing, "k");
  what.n = readCount(packing, "n");
  what.transposed = packing.at("transposed").get<bool>();
  what.panel = readCount(packing, "panel");
  what.group = readCount(packing, "group");
  what.batch = packing.contains("batch") ? readCount(packing, "batch") : 1;
  require(what.panel <= kMaxPanel && what.group > 0 && what.group <= kMaxPanel,
          "a panel of " + std::to_string(what.panel) + " columns in groups of " +
              std::to_string(what.group) + ": expected 1 to " + std::to_string(kMaxPanel));
  require(what.stored == what.dtype || packing.contains("form") ||
              (isCastable(DType(what.stored)) && isCastable(DType(what.dtype))),
          std::string("a cast of a weight from ") + nameOf(DType(what.stored)) + " to " +
              nameOf(DType(what.dtype)) + ": expected f32, bf16 or f16");
  if (packing.contains("form")) {
    std::string form = packing.at("form").get<std::string>();
    what.form = form == nameOfForm(MW_RT_MXFP8) ? MW_RT_MXFP8 : MW_RT_NVFP4;
    require(form == nameOfForm(what.form), "the form '" + form + "': expected mxfp8 or nvfp4");
    require(what.batch == 1,
            "a form of " + std::to_string(what.batch) + " matrices: expected one matrix");
    what.along = packing.at("along").get<int64_t>();
    require(what.along >= -1 && what.along <= 1 && isFloat(DType(what.stored)),
            "a form along dimension " + std::to_string(what.along) + " of " +
                nameOf(DType(what.stored)) + ": expected floats and the dimension 0 or 1");
  }
  int64_t bytes = program.getValue(prepared).getLocalBytes(), part = 0;
  require(!__builtin_mul_overflow(what.k, what.n, &part) &&
              !__builtin_mul_overflow(part, countMatrices(what), &part) &&
              !__builtin_mul_overflow(part, sizeOf(DType(what.stored)), &part) &&
              !__builtin_add_overflow(part, prepared.offset, &part) && part <= bytes,
          "a packed part ends behind its weight's " + std::to_string(bytes) + " bytes");
  return prepared;
}

static WeightTensor readTensor(const Json &json) {
  WeightTensor tensor;
  tensor.name = json.at("name").get<std::string>();
  tensor.type = readType(json);
  tensor.shape = readShape(json, "shape");
  if (json.contains("aliases"))
    tensor.aliases = json["aliases"].get<std::vector<std::string>>();
  if (json.contains("index_bound"))
    tensor.indexBound = readCount(json, "index_bound");
  return tensor;
}

/// Reads the tensors of a program without weights. Each parameter is one or a part of one.
static void readTensors(const Json &json, ProgramDescription &description) {
  for (const Json &tensor : json)
    description.tensors.push_back(readTensor(tensor));
  for (const ProgramValue &parameter : description.parameters)
    require(description.findTensor(parameter) != nullptr,
            "parameter '" + parameter.name + "' is no part of a tensor");
}

static std::vector<WeightGroup> readGroups(const Json &json, int64_t numRanks) {
  std::vector<WeightGroup> groups;
  for (const Json &entry : json) {
    WeightGroup group;
    group.axes = readAxes(entry.at("axes"), numRanks);
    group.bytes = readCount(entry, "bytes");
    for (const Json &file : entry.at("files"))
      group.files[readIndex(file, "rank", numRanks)] = {file.at("name").get<std::string>(),
                                                        file.at("hash").get<std::string>()};
    for (int64_t rank = 0; rank < numRanks; ++rank)
      require(group.files.count(group.getHolder(rank)),
              "rank " + std::to_string(rank) + " has no file of weights");
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Reads the list of kernels. Names become parts of paths, so only letters, digits and '_' are in
/// them.
static std::set<int64_t> readCalls(const Json &json) {
  std::set<int64_t> calls;
  for (const Json &entry : json) {
    const std::string name = entry.get<std::string>();
    auto *found = std::find(std::begin(kCallNames), std::end(kCallNames), name);
    require(found != std::end(kCallNames), "unknown call '" + name + "'");
    calls.insert(found - std::begin(kCallNames));
  }
  return calls;
}

static void readKernels(const Json &json, Manifest &manifest) {
  auto read = [](const Json &file) {
    return Manifest::CodeFile{readCount(file, "bytes"), file.at("hash").get<std::string>()};
  };
  for (const Json &kernel : json) {
    std::string name = kernel.at("name").get<std::string>();
    require(!name.empty() && std::all_of(name.begin(), name.end(),
                                         [](unsigned char c) { return std::isalnum(c) || c == '_'; }),
            "a kernel is named '" + name + "'");
    manifest.description.kernels.push_back({name, {}});
    manifest.kernels.push_back(
        {read(kernel.at("ptx")),
         kernel.contains("cubin") ? read(kernel["cubin"]) : Manifest::CodeFile()});
  }
}

/// Reads how a program that trains maps to PyTorch's state_dicts.
static void readStateDict(const Json &json, Manifest &manifest) {
  StateDictLayout layout;
  const Json &optimizer = json.at("optimizer");
  layout.optimizer = {
      optimizer.at("kind").get<std::string>(),   optimizer.at("lr").get<double>(),
      optimizer.at("momentum").get<double>(),    optimizer.at("beta1").get<double>(),
      optimizer.at("beta2").get<double>(),       optimizer.at("eps").get<double>(),
      optimizer.at("weight_decay").get<double>()};
  layout.keys = json.at("keys").get<std::vector<std::pair<std::string, std::string>>>();
  layout.trained = json.at("trained").get<std::vector<std::string>>();
  for (const Json &entry : json.at("fixed")) {
    DType type = readType(entry);
    FixedTensor tensor{entry.at("name").get<std::string>(), nameOf(type), readShape(entry, "shape"),
                       entry.value("read", true)};
    tensor.bytes = countOf(tensor.shape) * sizeOf(type);
    Stored &stored = manifest.fixed.emplace_back();
    if (entry.contains("data")) {
      stored = readStored(entry["data"], manifest.groups, tensor.bytes);
      require(manifest.groups[stored.group].axes.count == 0,
              "'" + tensor.name + "' is in a file of some ranks");
    }
    layout.fixed.push_back(std::move(tensor));
  }
  manifest.description.stateDict = std::move(layout);
}

static void read(const Json &json, Manifest &manifest) {
  ProgramDescription &description = manifest.description;
  manifest.id = json.at("id").get<std::string>();
  const Json &target = json.at("target");
  manifest.architecture = target.at("architecture").get<std::string>();
  description.targetCpu = target.at("cpu").get<std::string>();
  description.targetFeatures = target.at("features").get<std::vector<std::string>>();
  description.targetChip = target.value("chip", "");
  if (json.contains("kernels"))
    readKernels(json["kernels"], manifest);
  description.calls = readCalls(json.at("calls"));
  description.numRanks = readCount(json, "ranks");
  require(description.numRanks > 0, "no ranks");
  require(description.numRanks <= kMaxRanks, "expected at most " + std::to_string(kMaxRanks) +
                                                 " ranks, got " +
                                                 std::to_string(description.numRanks));
  manifest.programBytes = readCount(json.at("program"), "bytes");
  manifest.programHash = json.at("program").at("hash").get<std::string>();
  manifest.groups = readGroups(json.at("weights"), description.numRanks);
  description.parameters = readValues(json.at("parameters"), description.numRanks);
  for (size_t i = 0; i < description.parameters.size(); ++i) {
    const Json &parameter = json["parameters"][i];
    manifest.parameters.push_back(
        parameter.contains("data") ? readStored(parameter["data"], manifest.groups,
                                                description.parameters[i].getLocalBytes())
                                   : Stored());
  }
  manifest.hasWeights = !json.contains("tensors");
  if (!manifest.hasWeights)
    readTensors(json["tensors"], description);
  for (const Json &entry : json.at("states")) {
    ProgramState state;
    state.value = readValue(entry, description.numRanks);
    state.role = entry.value("role", "");
    state.isTransient = entry.value("transient", false);
    bool isStored = entry.contains("data");
    manifest.states.push_back(
        isStored ? readStored(entry["data"], manifest.groups, state.value.getLocalBytes())
                 : Stored());
    // The parts of a state that begins with a parameter are given to the session before it starts.
    bool isParameter = !manifest.hasWeights && entry.contains("parameter");
    if (isParameter)
      state.parameter = entry["parameter"].get<std::string>();
    else
      state.fill = isStored ? std::string(sizeOf(state.value.type), '\0')
                            : readElement(entry, "fill", state.value.type);
    description.states.push_back(std::move(state));
  }
  for (const Json &entry : json.at("prepared")) {
    description.prepared.push_back(readPrepared(entry, description));
    bool isStored = manifest.hasWeights &&
                    description.prepared.back().kind == ProgramArgument::Parameter;
    manifest.prepared.push_back(
        isStored ? readStored(entry.at("data"), manifest.groups,
                              sizeOfPacked(description.prepared.back().packing))
                 : Stored());
  }
  for (const Json &entry : json.at("entries")) {
    description.entries.push_back(readEntry(entry, description));
    std::vector<Stored> &constants = manifest.constants.emplace_back();
    for (const Json &constant : entry.at("constants")) {
      constants.push_back(readStored(constant, manifest.groups, -1));
      require(manifest.groups[constants.back().group].axes.count == 0,
              "a constant is in a file of some ranks");
      ProgramConstant &known = description.entries.back().constants.emplace_back();
      if (constant.contains("axes"))
        known.axes = readAxes(constant["axes"], description.numRanks);
      require(constants.back().bytes % sizeOfGroup(known.axes) == 0,
              "a constant has parts of different sizes");
    }
    require(Json(description.entries.back().getArraySizes()) == entry.at("array_sizes"),
            "entry '" + description.entries.back().name + "' has arrays of sizes " +
                Json(description.entries.back().getArraySizes()).dump() + ", its code expects " +
                entry["array_sizes"].dump());
  }
  require(!description.entries.empty() && !description.isPart(0), "no entries");
  std::string error = description.checkSteps();
  require(error.empty(), error);
  if (json.contains("state_dict"))
    readStateDict(json["state_dict"], manifest);
  if (json.contains("serving"))
    description.serving = readServing(json["serving"]);
  if (json.contains("model"))
    description.model = {json["model"].at("parameters").get<std::string>(),
                         json["model"].at("operations").get<std::string>(),
                         json["model"].at("weights").get<std::string>()};
  std::vector<bool> isRead = description.findReadParameters();
  for (size_t i = 0; i < isRead.size(); ++i)
    require(!isRead[i] || !manifest.hasWeights || manifest.parameters[i].group >= 0,
            "parameter '" + description.parameters[i].name + "' has no data");
}

static bool hasFormat(const Json &json) {
  return json.is_object() && json.contains("format") && json["format"] == kBundleFormat;
}

bool Manifest::isOne(const std::string &text) {
  return hasFormat(Json::parse(text, nullptr, /*allow_exceptions=*/false));
}

bool Manifest::parse(const std::string &text, Manifest &manifest, std::string &error) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!hasFormat(json)) {
    error = "not a manifest of a bundle";
    return false;
  }
  auto checkVersion = [&](const char *name, const char *what, int64_t expected) {
    const Json &version = json.contains(name) ? json[name] : Json();
    if (version == expected)
      return true;
    error = std::string(what) + ": expected " + std::to_string(expected) +
            ", which this runtime reads, got " + version.dump() + ": compile the model again";
    return false;
  };
  if (!checkVersion("version", "its version", kBundleVersion) ||
      !checkVersion("abi", "its code's version", MW_RT_ABI_VERSION))
    return false;
  Json hash = json.contains("hash") ? json["hash"] : Json();
  json.erase("hash");
  if (hash != hashOf(json)) {
    error = "changed since the bundle was written";
    return false;
  }
  try {
    read(json, manifest);
    return true;
  } catch (const Invalid &invalid) {
    error = "damaged: " + invalid.what;
  } catch (const nlohmann::json::exception &exception) {
    error = std::string("damaged: ") + exception.what();
  }
  return false;
}

} // namespace meshwright::rt
