//===- Manifest.cpp - the description in a bundle -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Manifest.h"

#include "ManifestJson.h"
#include "meshwright/Calls.h"
#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/src/files/Digits.h"

#include <cmath>

namespace meshwright::rt {

int64_t WeightGroup::getHolder(int64_t rank) const {
  int64_t holder = 0;
  for (int64_t i = 0; i < axes.count; ++i)
    holder += rank / axes.axes[i].stride % axes.axes[i].size * axes.axes[i].stride;
  return holder;
}

static Json write(const mw_rt_axes &axes) {
  Json json = Json::array();
  for (int64_t i = 0; i < axes.count; ++i)
    json.push_back({axes.axes[i].stride, axes.axes[i].size});
  return json;
}

static Json write(const ProgramValue &value) {
  Json json = {{"name", value.name},
               {"dtype", nameOf(value.type)},
               {"shape", value.shape},
               {"local_shape", value.localShape}};
  if (!value.aliases.empty())
    json["aliases"] = value.aliases;
  if (!value.offsets.empty())
    json["offsets"] = value.offsets;
  if (std::isfinite(value.magnitude))
    json["magnitude"] = value.magnitude;
  if (value.indexBound > 0)
    json["index_bound"] = value.indexBound;
  if (value.isWhole)
    json["whole"] = true;
  if (!value.defaultElement.empty())
    json["default"] = toDigits(value.defaultElement);
  if (!value.sharding.empty())
    json["sharding"] = value.sharding;
  if (value.unreduced.count > 0)
    json[value.reduction == MW_RT_MAX ? "unreduced_max" : "unreduced"] = write(value.unreduced);
  Json &dims = json["layout"] = Json::array();
  for (const auto &dim : value.layout.dims) {
    Json factors = Json::array();
    for (const ShardedFactor &factor : dim) {
      Json &written = factors.emplace_back(
          Json{{"size", factor.size}, {"padded", factor.padded}, {"axes", write(factor.axes)}});
      if (factor.order != TokenOrder::Contiguous) {
        written["order"] = factor.order == TokenOrder::Zigzag ? "zigzag" : "striped";
        written["order_ranks"] = factor.orderRanks;
      }
    }
    dims.push_back(std::move(factors));
  }
  return json;
}

static Json write(const Stored &stored) {
  return {{"group", stored.group}, {"offset", stored.offset}, {"bytes", stored.bytes}};
}

static Json write(const WeightTensor &tensor) {
  Json json = {{"name", tensor.name}, {"dtype", nameOf(tensor.type)}, {"shape", tensor.shape}};
  if (!tensor.aliases.empty())
    json["aliases"] = tensor.aliases;
  if (tensor.indexBound > 0)
    json["index_bound"] = tensor.indexBound;
  return json;
}

static std::string dump(const Json &json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string hashOf(const Json &json) {
  std::string text = dump(json, /*indent=*/-1);
  return hashOf(text.data(), text.size());
}

static Json write(const std::vector<ProgramValue> &values) {
  Json list = Json::array();
  for (const ProgramValue &value : values)
    list.push_back(write(value));
  return list;
}

static Json write(const ProgramArgument &argument) {
  const char *names[] = {"input", "parameter", "state"};
  Json json = {{names[argument.kind], argument.index}};
  if (!argument.isRead)
    json["read"] = false;
  return json;
}

static Json write(const CallStep &step) {
  Json json = {{"entry", step.entry}, {"chunks", step.chunks}, {"times", step.times}};
  if (step.until >= 0)
    json["until"] = step.until;
  return json;
}

static Json write(const EntryDescription &entry, const std::vector<Stored> &constants) {
  Json json = {{"name", entry.name},
               {"arena_bytes", entry.arenaBytes},
               {"inputs", write(entry.inputs)},
               {"outputs", write(entry.outputs)}};
  if (entry.seconds > 0)
    json["seconds"] = entry.seconds;
  for (const CallStep &step : entry.steps)
    json["steps"].push_back(write(step));
  Json &arguments = json["arguments"] = Json::array();
  for (const ProgramArgument &argument : entry.arguments)
    arguments.push_back(write(argument));
  json["prepared"] = entry.prepared;
  json["state_results"] = entry.stateResults;
  Json &updates = json["state_updates"] = Json::array();
  for (const StateUpdate &update : entry.updates)
    updates.push_back(update.kind == StateUpdate::Rows    ? Json{{"log", update.logBytes}}
                      : update.kind == StateUpdate::Whole ? Json("whole")
                                                          : Json());
  Json &data = json["constants"] = Json::array();
  for (size_t i = 0; i < constants.size(); ++i) {
    Json &constant = data.emplace_back(write(constants[i]));
    if (entry.constants[i].axes.count > 0)
      constant["axes"] = write(entry.constants[i].axes);
  }
  json["array_sizes"] = entry.getArraySizes();
  json["ops"] = entry.ops;
  if (!entry.arenaInUse.empty())
    json["arena_in_use"] = entry.arenaInUse;
  Json &fused = json["fused"] = Json::object();
  for (const auto &[op, others] : entry.fused)
    fused[std::to_string(op)] = others;
  return json;
}

static Json write(const PreparedWeight &prepared) {
  const mw_rt_packing &packing = prepared.packing;
  bool isState = prepared.kind == ProgramArgument::State;
  Json json = {{isState ? "state" : "parameter", prepared.index},
               {"packing",
                {{"stored", nameOf(DType(packing.stored))},
                 {"dtype", nameOf(DType(packing.dtype))},
                 {"k", packing.k},
                 {"n", packing.n},
                 {"transposed", packing.transposed != 0},
                 {"panel", packing.panel},
                 {"group", packing.group}}}};
  if (packing.form)
    json["packing"].update({{"form", nameOfForm(packing.form)}, {"along", packing.along}});
  if (packing.batch > 1)
    json["packing"]["batch"] = packing.batch;
  if (prepared.offset)
    json["offset"] = prepared.offset;
  return json;
}

static Json write(const StateDictLayout &layout, const std::vector<Stored> &stored) {
  const OptimizerOptions &optimizer = layout.optimizer;
  Json json = {{"optimizer",
                {{"kind", optimizer.kind},
                 {"lr", optimizer.lr},
                 {"momentum", optimizer.momentum},
                 {"beta1", optimizer.beta1},
                 {"beta2", optimizer.beta2},
                 {"eps", optimizer.eps},
                 {"weight_decay", optimizer.weightDecay}}},
               {"keys", layout.keys},
               {"trained", layout.trained}};
  Json &fixed = json["fixed"] = Json::array();
  for (size_t i = 0; i < layout.fixed.size(); ++i) {
    const FixedTensor &tensor = layout.fixed[i];
    Json &written = fixed.emplace_back(
        Json{{"name", tensor.name}, {"dtype", tensor.type}, {"shape", tensor.shape}});
    if (!tensor.isRead)
      written["read"] = false;
    if (stored[i].group >= 0)
      written["data"] = write(stored[i]);
  }
  return json;
}

static Json write(const ServingSizes &sizes) {
  return {{"groups", sizes.groups},
          {"max_length", sizes.maxLength},
          {"page_size", sizes.pageSize},
          {"pages", sizes.pages},
          {"max_requests", sizes.maxRequests},
          {"vocabulary", sizes.vocabulary},
          {"deal", sizes.deal},
          {"shares_beginnings", sizes.sharesBeginnings}};
}

static Json writeKernels(const Manifest &manifest) {
  auto write = [](const Manifest::CodeFile &file) {
    return Json{{"bytes", file.bytes}, {"hash", file.hash}};
  };
  Json list = Json::array();
  for (size_t i = 0; i < manifest.kernels.size(); ++i) {
    const Manifest::KernelFiles &files = manifest.kernels[i];
    Json &kernel = list.emplace_back(
        Json{{"name", manifest.description.kernels[i].name}, {"ptx", write(files.text)}});
    if (files.binary.bytes > 0)
      kernel["cubin"] = write(files.binary);
  }
  return list;
}

std::string Manifest::toJson() const {
  Json json = {{"format", kBundleFormat},
               {"version", kBundleVersion},
               {"abi", MW_RT_ABI_VERSION},
               {"id", id},
               {"target",
                {{"architecture", architecture},
                 {"cpu", description.targetCpu},
                 {"features", description.targetFeatures}}},
               {"ranks", description.numRanks},
               {"program", {{"bytes", programBytes}, {"hash", programHash}}}};
  if (!description.targetChip.empty())
    json["target"]["chip"] = description.targetChip;
  if (!kernels.empty())
    json["kernels"] = writeKernels(*this);
  Json &calls = json["calls"] = Json::array();
  for (int64_t kind : description.calls)
    calls.push_back(kCallNames[kind]);
  auto addData = [](Json &to, const Stored &stored) {
    if (stored.group >= 0)
      to["data"] = write(stored);
  };
  Json &list = json["parameters"] = write(description.parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    addData(list[i], parameters[i]);
  Json &packed = json["prepared"] = Json::array();
  for (size_t i = 0; i < prepared.size(); ++i)
    addData(packed.emplace_back(write(description.prepared[i])), prepared[i]);
  Json &kept = json["states"] = Json::array();
  for (size_t i = 0; i < states.size(); ++i) {
    Json &state = kept.emplace_back(write(description.states[i].value));
    addData(state, states[i]);
    if (!hasWeights && !description.states[i].parameter.empty())
      state["parameter"] = description.states[i].parameter;
    else if (states[i].group < 0)
      state["fill"] = toDigits(description.states[i].fill);
    if (!description.states[i].role.empty())
      state["role"] = description.states[i].role;
    if (description.states[i].isTransient)
      state["transient"] = true;
  }
  Json &entries = json["entries"] = Json::array();
  for (size_t i = 0; i < description.entries.size(); ++i)
    entries.push_back(write(description.entries[i], constants[i]));
  if (!hasWeights) {
    Json &tensors = json["tensors"] = Json::array();
    for (const WeightTensor &tensor : description.tensors)
      tensors.push_back(write(tensor));
  }
  if (description.stateDict)
    json["state_dict"] = write(*description.stateDict, fixed);
  if (description.serving)
    json["serving"] = write(*description.serving);
  if (const ModelIdentity &model = description.model; description.serving)
    json["model"] = {{"parameters", model.parameters},
                     {"operations", model.operations},
                     {"weights", model.weights}};
  Json &files = json["weights"] = Json::array();
  for (const WeightGroup &group : groups) {
    Json names = Json::array();
    for (const auto &[rank, file] : group.files)
      names.push_back({{"rank", rank}, {"name", file.name}, {"hash", file.hash}});
    files.push_back({{"axes", write(group.axes)}, {"bytes", group.bytes}, {"files", names}});
  }
  json["hash"] = hashOf(json);
  return dump(json, /*indent=*/1) + "\n";
}

} // namespace meshwright::rt
