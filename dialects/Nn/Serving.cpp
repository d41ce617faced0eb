//===- Serving.cpp - the sizes of a module that serves --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Serving.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace meshwright;
using nn::kModelAttr;
using nn::kServingAttr;

static constexpr StringLiteral kSharesBeginnings = "prefix_cache";

static constexpr std::pair<StringLiteral, std::string nn::ModelHash::*> kHashes[] = {
    {"parameters", &nn::ModelHash::parameters}, {"operations", &nn::ModelHash::operations}};

static constexpr std::pair<StringLiteral, int64_t ServingSizes::*> kNumbers[] = {
    {"groups", &ServingSizes::groups},
    {"max_length", &ServingSizes::maxLength},
    {"page_size", &ServingSizes::pageSize},
    {"pages", &ServingSizes::pages},
    {"requests", &ServingSizes::maxRequests},
    {"vocabulary", &ServingSizes::vocabulary},
    {"deal", &ServingSizes::deal}};

std::optional<ServingSizes> nn::getServingSizes(ModuleOp module) {
  auto attr = module->getAttrOfType<DictionaryAttr>(kServingAttr);
  if (!attr)
    return std::nullopt;
  ServingSizes sizes;
  for (auto [name, member] : kNumbers)
    if (auto number = attr.getAs<IntegerAttr>(name))
      sizes.*member = number.getInt();
  sizes.sharesBeginnings = attr.contains(kSharesBeginnings);
  return sizes;
}

void nn::setServingSizes(ModuleOp module, const ServingSizes &sizes) {
  Builder builder(module.getContext());
  NamedAttrList attrs;
  for (auto [name, member] : kNumbers)
    attrs.set(name, builder.getI64IntegerAttr(sizes.*member));
  if (sizes.sharesBeginnings)
    attrs.set(kSharesBeginnings, builder.getUnitAttr());
  module->setAttr(kServingAttr, attrs.getDictionary(module.getContext()));
}

LogicalResult nn::verifyServingAttr(Operation *op, Attribute attribute) {
  if (!isa<ModuleOp>(op))
    return op->emitOpError() << "expected " << kServingAttr << " on a module";
  auto sizes = dyn_cast<DictionaryAttr>(attribute);
  if (!sizes)
    return op->emitOpError() << "expected " << kServingAttr << " to be a dictionary, got " << attribute;
  for (auto [name, member] : kNumbers) {
    auto number = sizes.getAs<IntegerAttr>(name);
    if (!number || !number.getType().isInteger(64) || number.getInt() < 1)
      return op->emitOpError() << "expected " << kServingAttr << " to have an i64 integer '" << name
                               << "' from 1 on, got " << attribute;
  }
  return success();
}

std::optional<nn::ModelHash> nn::getModelHash(ModuleOp module) {
  auto attr = module->getAttrOfType<DictionaryAttr>(kModelAttr);
  if (!attr)
    return std::nullopt;
  ModelHash hash;
  for (auto [name, member] : kHashes)
    hash.*member = attr.getAs<StringAttr>(name).str();
  return hash;
}

void nn::setModelHash(ModuleOp module, const ModelHash &hash) {
  Builder builder(module.getContext());
  NamedAttrList attrs;
  for (auto [name, member] : kHashes)
    attrs.set(name, builder.getStringAttr(hash.*member));
  module->setAttr(kModelAttr, attrs.getDictionary(module.getContext()));
}

LogicalResult nn::verifyModelAttr(Operation *op, Attribute attribute) {
  auto hash = dyn_cast<DictionaryAttr>(attribute);
  if (isa<ModuleOp>(op) && hash && llvm::all_of(kHashes, [&](const auto &entry) {
        return hash.getAs<StringAttr>(entry.first);
      }))
    return success();
  return op->emitOpError() << "expected " << kModelAttr
                           << " on a module, a dictionary with strings 'parameters' and 'operations', got "
                           << attribute;
}

std::optional<int64_t> nn::getTokenSum(func::FuncOp func) {
  auto sum = func->getAttrOfType<IntegerAttr>(kTokenSumAttr);
  return sum ? std::optional(sum.getInt()) : std::nullopt;
}

BlockArgument nn::findInput(func::FuncOp func, StringRef name) {
  for (BlockArgument arg : func.getArguments())
    if (auto own = func.getArgAttrOfType<StringAttr>(arg.getArgNumber(), NnDialect::kInputAttr);
        own && own.getValue() == name)
      return arg;
  return {};
}

LogicalResult nn::verifyTokenSumAttr(Operation *op, Attribute attribute) {
  auto sum = dyn_cast<IntegerAttr>(attribute);
  if (isa<func::FuncOp>(op) && sum && sum.getType().isInteger(64) && sum.getInt() > 0)
    return success();
  return op->emitOpError() << "expected " << kTokenSumAttr
                           << " on a function, an i64 integer from 1 on, got " << attribute;
}
