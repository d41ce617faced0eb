//===- States.cpp - the states of a training step -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/States.h"

using namespace mlir;
using namespace meshwright;
using nn::Writer;

void States::add(StringRef name, Type type, TypedAttr fill, StringRef parameter, StringRef role,
                 Location loc, bool isTransient) {
  OpBuilder builder(module.getContext());
  if (!last)
    for (nn::StateOp state : module.getOps<nn::StateOp>())
      last = state;
  if (last)
    builder.setInsertionPointAfter(last);
  else
    builder.setInsertionPointToStart(module.getBody());
  auto state = nn::StateOp::create(
      builder, loc, builder.getStringAttr(name), TypeAttr::get(type),
      parameter.empty() ? StringAttr() : builder.getStringAttr(parameter), fill,
      role.empty() ? StringAttr() : builder.getStringAttr(role));
  state.setTransient(isTransient);
  names.insert(name);
  last = state;
}

Value States::read(Writer &w, StringRef name, Type type) {
  return nn::ReadOp::create(w.getBuilder(), w.getLoc(), type, name);
}

Value States::readZeros(Writer &w, StringRef name, RankedTensorType type, StringRef role,
                        bool isTransient) {
  if (!has(name))
    add(name, type, cast<TypedAttr>(w.getBuilder().getZeroAttr(type.getElementType())), "", role,
        w.getLoc(), isTransient);
  return read(w, name, type);
}

void States::write(Writer &w, StringRef name, Value value) {
  nn::WriteOp::create(w.getBuilder(), w.getLoc(), name, value);
}

void States::update(Writer &w, StringRef name, Value old, Value value) {
  write(w, name, isTaken ? w.select(isTaken, value, old) : value);
}
