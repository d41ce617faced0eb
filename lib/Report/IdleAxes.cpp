//===- IdleAxes.cpp - axes that shard nothing -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Stages/RoleAxes.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

SmallVector<MeshAxisAttr> meshwright::getIdleAxes(FunctionOpInterface function) {
  SmallVector<MeshAxisAttr> idle = llvm::filter_to_vector(
      getSpmdMesh(function).getAxes(), [](MeshAxisAttr axis) { return axis.getSize() > 1; });
  // Collectives and slices name the axes of all layouts that no signature states. The
  // signature comes first: it uses all axes of most programs.
  AttrTypeWalker walker;
  walker.addWalk([&](AxisRefAttr used) {
    llvm::erase_if(idle, [&](MeshAxisAttr axis) { return axis.getName() == used.getName(); });
    return idle.empty() ? WalkResult::interrupt() : WalkResult::advance();
  });
  function->walk<WalkOrder::PreOrder>([&](Operation *op) {
    return idle.empty() ? WalkResult::interrupt()
                        : walker.walk<WalkOrder::PreOrder>(op->getAttrDictionary());
  });
  return idle;
}

std::string meshwright::describeIdleAxis(MeshAxisAttr axis) {
  SmallVector<std::string> usual, options;
  for (const AxisRoleDescription &known : kAxisRoles) {
    if (!known.usualAxis.empty())
      usual.push_back("\"" + known.usualAxis.str() + "\"");
    if (!known.option.empty())
      options.push_back(known.option.str());
  }
  return "mesh axis \"" + axis.getName().str() + "\" of size " + std::to_string(axis.getSize()) +
         " shards nothing: all ranks along it do the same work; policies look for " +
         llvm::join(usual, ", ") + " and the axes that " + llvm::join(options, ", ") +
         " and context-parallel name";
}
