//===- RoleAxes.cpp - the axes of a role, for a policy --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Stages/RoleAxes.h"

#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

SmallVector<StringRef> RoleAxes::getNames(const StageMesh &view) const {
  const AxisRoleDescription &description = getRoleDescription(role);
  SmallVector<StringRef> names;
  switch (choice.kind) {
  case AxisChoice::None:
    break;
  case AxisChoice::Named:
    if (description.isSingle)
      names.push_back(choice.name);
    else
      StringRef(choice.name).split(names, ',');
    break;
  case AxisChoice::Auto:
    if (view.mesh.hasRoles())
      names = view.mesh.getAxesWithRole(role);
    else if (!description.usualAxis.empty())
      names.push_back(description.usualAxis);
    break;
  }
  return names;
}

LogicalResult RoleAxes::check(MeshOp meshOp, StringRef purpose) const {
  const AxisRoleDescription &description = getRoleDescription(role);
  if (purpose.empty())
    purpose = description.purpose;
  for (const StageMesh &view : getStageMeshes(meshOp)) {
    if (choice.kind == AxisChoice::Auto && description.usualAxis.empty() && !view.mesh.hasRoles())
      return emitError(meshOp.getLoc()) << stringify(role) << "=auto: expected an axis, or "
                                        << description.chooser << " before";
    for (StringRef name : getNames(view))
      if (!anyHasAxis(meshOp, name))
        return emitMissingAxis(meshOp, name, purpose);
  }
  return success();
}

bool RoleAxes::areIn(const StageMesh &view) const {
  SmallVector<StringRef> names = getNames(view);
  return !names.empty() && llvm::all_of(names, [&](StringRef name) {
    return view.mesh.getAxisIndex(name) >= 0;
  });
}

AxisList RoleAxes::get(MeshOp meshOp, const StageMesh &view) const {
  AxisList axes;
  if (areIn(view))
    for (StringRef name : getNames(view))
      if (std::optional<Axis> axis = findAxis(meshOp, view, name); axis && axis->size > 1)
        axes.push_back(*axis);
  return axes;
}

std::string RoleAxes::toString(const StageMesh &view) const {
  std::string text;
  llvm::ListSeparator comma;
  for (StringRef name : getNames(view))
    text += (Twine(StringRef(comma)) + "\"" + name + "\"").str();
  return text;
}
