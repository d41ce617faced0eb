//===- AxisRole.h - what the axes of a mesh are for -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The one list of roles that an axis of a mesh may have, with the usual name of the axis and the
// option that names another one. Policies look up axes by role, and never by name. A new role
// costs a value of the enum, its spelling and its line of the table.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_AXISROLE_H
#define MESHWRIGHT_LIB_SUPPORT_AXISROLE_H

#include "meshwright/lib/Support/Spellings.h"

#include "llvm/ADT/Hashing.h"

#include <cstdint>

namespace meshwright {

/// The ranks along an axis have a share of this:
enum class AxisRole {
  /// The rows of a batch.
  Data,
  /// The features of weights, and tokens between blocks.
  Tensor,
  /// Sequences; keys and values move around while attention runs.
  Ring,
  /// Sequences; heads instead while attention runs.
  Ulysses,
  /// The rows of weights as they are stored, and of what an update keeps for them.
  Gtp,
  /// Experts.
  Expert,
};

template <> struct Spellings<AxisRole> {
  static constexpr Spelling<AxisRole> all[] = {
      {AxisRole::Data, "data"},
      {AxisRole::Tensor, "tensor"},
      {AxisRole::Ring, "ring"},
      {AxisRole::Ulysses, "ulysses"},
      {AxisRole::Gtp, "gtp"},
      {AxisRole::Expert, "expert"},
  };
};

/// A line of the table of roles.
struct AxisRoleDescription {
  AxisRole role;
  /// The axis that has the role where no option says otherwise, if the mesh has an axis of this
  /// name. Empty: no axis has the role unless an option says so.
  llvm::StringLiteral usualAxis;
  /// The pass that chooses the axis where an option says `auto`.
  llvm::StringLiteral chooser;
  /// At most one axis of a mesh may have the role.
  bool isSingle;
  /// Ends the message about a missing axis.
  llvm::StringLiteral purpose;
  /// The option that names the axis, its values and its help. Empty: it is a part of another one.
  llvm::StringLiteral option, values, help;
};

inline constexpr AxisRoleDescription kAxisRoles[] = {
    {AxisRole::Data, "dp", "declare-mesh", /*isSingle=*/false, "to split the batch over",
     "data-parallel", "axis | none | auto",
     "splits the batch over an axis; auto: 'dp' where the mesh has it"},
    {AxisRole::Tensor, "tp", "declare-mesh", /*isSingle=*/false, "for tensor parallelism",
     "tensor-parallel", "axis | none | auto",
     "splits linears and attention over an axis; auto: 'tp' where the mesh has it"},
    {AxisRole::Ring, "", "choose-context-parallel", /*isSingle=*/true, "for ring attention", "",
     "", ""},
    {AxisRole::Ulysses, "", "choose-context-parallel", /*isSingle=*/true,
     "for Ulysses attention", "", "", ""},
    {AxisRole::Gtp, "gtp", "declare-mesh", /*isSingle=*/false, "to store weights in shards over",
     "gtp", "axis[,axis...] | {\"pattern\": [\"axis\", ...], ...} | none | auto",
     "stores weights, gradients and averages in shards over axes, and gathers weights before they "
     "are used, by their names, of which the first pattern that matches wins; an axis that no other "
     "option names splits the batch, too; auto: 'gtp' where the mesh has it"},
    {AxisRole::Expert, "ep", "declare-mesh", /*isSingle=*/false,
     "to split experts over (expert-parallel)", "expert-parallel", "axis[,axis...] | none | auto",
     "splits the experts of each layer over axes, which other options may name, too; auto: 'ep' where "
     "the mesh has it"},
};

inline const AxisRoleDescription &getRoleDescription(AxisRole role) {
  for (const AxisRoleDescription &known : kAxisRoles)
    if (known.role == role)
      return known;
  llvm_unreachable("a role without a line of the table");
}

/// A set of roles.
class AxisRoles {
public:
  bool empty() const { return bits == 0; }
  bool contains(AxisRole role) const { return bits & getBit(role); }
  void insert(AxisRole role) { bits |= getBit(role); }
  void erase(AxisRole role) { bits &= ~getBit(role); }

  bool operator==(const AxisRoles &other) const { return bits == other.bits; }
  bool operator!=(const AxisRoles &other) const { return bits != other.bits; }
  friend llvm::hash_code hash_value(const AxisRoles &roles) {
    return llvm::hash_value(roles.bits);
  }
  /// Prints `[data, ring]`, in the order of the table.
  friend llvm::raw_ostream &operator<<(llvm::raw_ostream &os, const AxisRoles &roles) {
    llvm::StringRef separator = "[";
    for (const AxisRoleDescription &known : kAxisRoles)
      if (roles.contains(known.role)) {
        os << separator << known.role;
        separator = ", ";
      }
    return os << (roles.empty() ? "[]" : "]");
  }

private:
  static uint32_t getBit(AxisRole role) { return uint32_t(1) << uint32_t(role); }
  uint32_t bits = 0;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_AXISROLE_H
