//===- SignatureAttrs.cpp - attributes of arguments and results -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SignatureAttrs.h"

using namespace mlir;
using namespace meshwright;

static void set(NamedAttrList &list, StringRef name, Attribute attr) {
  if (attr)
    list.set(name, attr);
  else
    list.erase(name);
}

void SignatureAttrs::setArgument(func::FuncOp func, unsigned i, StringRef name, Attribute attr) {
  auto [it, isNew] = changes[func].arguments.try_emplace(i);
  if (isNew)
    it->second = NamedAttrList(func.getArgAttrDict(i));
  set(it->second, name, attr);
}

void SignatureAttrs::setResult(func::FuncOp func, unsigned i, StringRef name, Attribute attr) {
  auto [it, isNew] = changes[func].results.try_emplace(i);
  if (isNew)
    it->second = NamedAttrList(func.getResultAttrDict(i));
  set(it->second, name, attr);
}

/// The dictionaries of all arguments or results: new ones where `changed` has an entry, else the old ones.
template <typename Changed, typename GetOld>
static SmallVector<DictionaryAttr> collect(MLIRContext *context, unsigned count, Changed &changed,
                                           GetOld getOld) {
  SmallVector<DictionaryAttr> all;
  for (unsigned i = 0; i < count; ++i) {
    auto known = changed.find(i);
    DictionaryAttr own = known == changed.end() ? getOld(i) : known->second.getDictionary(context);
    all.push_back(own ? own : DictionaryAttr::get(context));
  }
  return all;
}

void SignatureAttrs::apply() {
  for (auto &[op, own] : changes) {
    auto func = cast<func::FuncOp>(op);
    MLIRContext *context = func.getContext();
    if (!own.arguments.empty())
      func.setAllArgAttrs(collect(context, func.getNumArguments(), own.arguments,
                                  [&](unsigned i) { return func.getArgAttrDict(i); }));
    if (!own.results.empty())
      func.setAllResultAttrs(collect(context, func.getNumResults(), own.results,
                                     [&](unsigned i) { return func.getResultAttrDict(i); }));
  }
  changes.clear();
}
