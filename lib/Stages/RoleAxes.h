//===- RoleAxes.h - the axes of a role, for a policy ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_STAGES_ROLEAXES_H
#define MESHWRIGHT_LIB_STAGES_ROLEAXES_H

#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/lib/Support/AxisChoices.h"

namespace meshwright {

/// The axes that a policy uses for a role, by the option of its pass:
/// - `auto`: the axes that have the role in the mesh of a stage, major to minor. Where no pass has
///   declared the roles of this mesh, the role's usual axis;
/// - a name: this axis, with or without the role. Of a role that several axes may have, a list of
///   names that commas separate, major to minor;
/// - `none`: no axes.
class RoleAxes {
public:
  RoleAxes(AxisRole role, AxisChoice choice) : role(role), choice(std::move(choice)) {}

  /// Checks that some stage has each axis, and that `auto` stands for a choice. Without a
  /// `purpose`, an error about a missing axis ends by the one of the role.
  mlir::LogicalResult check(dist::MeshOp meshOp, llvm::StringRef purpose = "") const;

  /// The names of the axes, which the mesh of the stage need not have. They live as long as the
  /// mesh and this object.
  llvm::SmallVector<llvm::StringRef> getNames(const StageMesh &view) const;
  /// Returns true if there are axes, and the mesh of the stage has them.
  bool areIn(const StageMesh &view) const;
  /// The axes, as parts of axes of the program's mesh, without those of one rank. Empty if the
  /// mesh of the stage lacks one of them.
  dist::AxisList get(dist::MeshOp meshOp, const StageMesh &view) const;
  /// The names for messages: `"dp"`.
  std::string toString(const StageMesh &view) const;

private:
  AxisRole role;
  AxisChoice choice;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_STAGES_ROLEAXES_H
