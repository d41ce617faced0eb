//===- Layouts.cpp - the layouts of parameters, states and inputs ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TextTables.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::text;

std::string meshwright::formatTensor(Type type) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    for (int64_t size : tensor.getShape())
      os << size << "x";
  os << getElementTypeOrSelf(type);
  return text;
}

/// The part of a sharding behind its mesh.
static std::string spell(ShardingAttr sharding, Type type) {
  if (!sharding) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return "[" + llvm::join(SmallVector<StringRef>(tensor ? tensor.getRank() : 0, "{}"), ", ") + "]";
  }
  std::string text;
  llvm::raw_string_ostream(text) << sharding;
  StringRef rest(text);
  return rest.substr(rest.find('[')).drop_back(rest.ends_with(">")).str();
}

std::vector<TensorLayout> meshwright::listLayouts(FunctionOpInterface function) {
  llvm::DenseMap<StringAttr, nn::StateOp> states = nn::getStates(function);
  WeightFinder finder(function);
  std::vector<TensorLayout> layouts;
  for (BlockArgument argument : function.getArguments()) {
    unsigned i = argument.getArgNumber();
    TensorLayout layout;
    StringAttr name = function.getArgAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr);
    layout.role = "state";
    if (std::optional<Weight> weight = name ? std::nullopt : finder.find(argument)) {
      name = weight->name;
      layout.role = "parameter";
    } else if (!name && (name = function.getArgAttrOfType<StringAttr>(i, nn::NnDialect::kInputAttr))) {
      layout.role = "input";
    }
    if (!name)
      continue;
    if (nn::StateOp state = layout.role == "state" ? states.lookup(name) : nn::StateOp())
      if (StringRef role = state.getRole().value_or(""); !role.empty())
        layout.role = role.str();
    layout.name = name.str();
    layout.argument = i;
    Type whole = argument.getType();
    if (auto global = function.getArgAttrOfType<TypeAttr>(i, DistDialect::kGlobalAttr))
      whole = global.getValue();
    layout.whole = formatTensor(whole);
    layout.local = formatTensor(argument.getType());
    layout.sharding = spell(function.getArgAttrOfType<ShardingAttr>(i, DistDialect::kShardingAttr), whole);
    layout.bytes = getTensorBytes(argument.getType());
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

/// Returns true for a state of training that is sharded as the weight that it belongs to. The states of
/// `w` have names such as `optimizer.exp_avg.w`.
static bool followsWeight(const TensorLayout &layout, const llvm::StringMap<const TensorLayout *> &weights) {
  if (layout.role == "parameter" || layout.role == "input")
    return false;
  for (StringRef rest = layout.name; !rest.empty(); rest = rest.split('.').second)
    if (auto known = weights.find(rest); known != weights.end())
      return known->second->sharding == layout.sharding;
  return false;
}

void meshwright::printLayouts(const Report &report, llvm::raw_ostream &os) {
  if (report.layouts.empty())
    return;
  llvm::StringMap<const TensorLayout *> weights;
  for (const TensorLayout &layout : report.layouts)
    if (layout.role == "parameter")
      weights[layout.name] = &layout;
  struct Entry {
    TensorLayout layout;
    SourceLocation location;
  };
  Groups<Entry> groups;
  int64_t followers = 0;
  for (const TensorLayout &layout : report.layouts) {
    if (followsWeight(layout, weights)) {
      ++followers;
      continue;
    }
    groups.get({layout, {"", 0, layout.name}},
               generalize(layout.name) + '\0' + layout.role + '\0' + layout.whole + '\0' + layout.local +
                   '\0' + layout.sharding);
  }
  os << "layouts\n";
  Table table("lllrl");
  table.row({"tensor", "whole", "layout", "on a rank", ""});
  for (const Group<Entry> &group : groups.get()) {
    const TensorLayout &layout = group.first.layout;
    table.row({group.name.str(), layout.whole, layout.sharding, formatBytes(layout.bytes),
               layout.role == "parameter" ? "" : layout.role});
  }
  table.print(os);
  if (followers)
    os << "  and " << followers << (followers == 1 ? " state" : " states")
       << " of training with the layouts of their weights\n";
}
