//===- DpAttention.cpp - the groups of data-parallel attention ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/DpAttention.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

static constexpr llvm::StringLiteral kGroups = "groups", kDenseTp = "dense_tp", kHead = "own_head";

static std::optional<DpAttention> read(Attribute attribute) {
  auto table = dyn_cast_or_null<DictionaryAttr>(attribute);
  if (!table || table.size() != 3)
    return std::nullopt;
  auto groups = table.getAs<IntegerAttr>(kGroups), dense = table.getAs<IntegerAttr>(kDenseTp);
  auto head = table.getAs<BoolAttr>(kHead);
  if (!groups || !dense || !head)
    return std::nullopt;
  return DpAttention{groups.getInt(), dense.getInt(), head.getValue()};
}

std::optional<DpAttention> dist::getDpAttention(MeshOp meshOp) {
  return read(meshOp->getAttr(kDpAttentionAttr));
}

void dist::setDpAttention(MeshOp meshOp, const DpAttention &chosen) {
  Builder builder(meshOp.getContext());
  auto number = [&](StringRef name, int64_t value) {
    return builder.getNamedAttr(name, builder.getI64IntegerAttr(value));
  };
  meshOp->setAttr(kDpAttentionAttr,
                  builder.getDictionaryAttr(
                      {number(kGroups, chosen.groups), number(kDenseTp, chosen.denseTp),
                       builder.getNamedAttr(kHead, builder.getBoolAttr(chosen.hasOwnHead))}));
}

LogicalResult dist::verifyDpAttention(Operation *op, Attribute attribute) {
  auto meshOp = dyn_cast<MeshOp>(op);
  std::optional<DpAttention> stated = read(attribute);
  if (!meshOp || !stated)
    return op->emitOpError() << "'" << kDpAttentionAttr
                             << "': expected {groups, dense_tp, own_head} on a dist.mesh, got "
                             << attribute;
  int64_t ranks = meshOp.getMesh().getNumRanks();
  for (int64_t number : {stated->groups, stated->denseTp})
    if (number < 1 || ranks % number != 0)
      return op->emitOpError() << "'" << kDpAttentionAttr << "': expected divisors of " << ranks
                               << " ranks, got " << number;
  return success();
}
