//===- ModelHash.cpp - a hash of a forward pass ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/ModelHash.h"

#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace meshwright;

/// Constants of more elements are tables. The import may have computed them, and other processors round in
/// another way, so their values are not a part of the hash.
static constexpr int64_t kTableElements = 16;

static std::string toHash(StringRef text) {
  return llvm::utohexstr(llvm::xxh3_64bits(text), /*LowerCase=*/true, /*Width=*/16);
}

static void writeOp(Operation *op, llvm::raw_ostream &text) {
  text << op->getName();
  for (NamedAttribute attribute : op->getAttrDictionary()) {
    auto elements = dyn_cast<ElementsAttr>(attribute.getValue());
    text << ' ' << attribute.getName().strref() << '=';
    if (elements && elements.getNumElements() > kTableElements)
      text << elements.getShapedType();
    else
      text << attribute.getValue();
  }
  text << " : " << op->getOperandTypes() << " -> " << op->getResultTypes() << '\n';
}

nn::ModelHash meshwright::hashModel(ModuleOp module) {
  // Parameters by name: the same one may be an argument of several functions, in any order.
  llvm::StringMap<std::string> byName;
  std::string operations;
  llvm::raw_string_ostream text(operations);
  for (auto func : module.getOps<func::FuncOp>()) {
    for (BlockArgument argument : func.getArguments()) {
      std::optional<Weight> weight = getWeight(argument);
      if (!weight || isComputedTable(weight->name.getValue()))
        continue;
      // The length may decide which part of a tensor is read.
      llvm::raw_string_ostream(byName[weight->name.getValue()])
          << (weight->offsets ? getElementTypeOrSelf(argument.getType()) : argument.getType()) << '\n';
    }
    func.walk([&](Operation *op) { writeOp(op, text); });
  }
  SmallVector<StringRef> names(byName.keys());
  llvm::sort(names);
  std::string parameters;
  for (StringRef name : names)
    parameters += (name + "\n" + byName[name]).str();
  return {toHash(parameters), toHash(operations)};
}
