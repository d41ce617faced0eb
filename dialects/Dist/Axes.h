//===- Axes.h - mesh axes and their parts -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Mesh axes as plain data, lists of them, and the ranks that differ along them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_AXES_H
#define MESHWRIGHT_DIALECTS_DIST_AXES_H

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/Support/LLVM.h"

#include <optional>
#include <tuple>

namespace meshwright::dist {

class AxisRefAttr;
class MeshAttr;

/// A mesh axis (its index in the mesh), or the middle dimension of the axis, taken apart into
/// dimensions of sizes (`pre`, `size`, rest), major to minor. A whole axis has `pre` 1.
struct Axis {
  int axis;
  int64_t pre = 1;
  int64_t size;

  bool operator==(const Axis &other) const {
    return axis == other.axis && pre == other.pre && size == other.size;
  }
  bool operator!=(const Axis &other) const { return !(*this == other); }
  bool operator<(const Axis &other) const {
    return std::tie(axis, pre, size) < std::tie(other.axis, other.pre, other.size);
  }
  /// Returns true if no layout can use both: they share a part of an axis, or cut it in
  /// ways that do not fit. Of an axis of size 6, "(1)2" (pre 1, size 2) and "(3)2" share no
  /// part, but no dimensions of the axis have both among them.
  bool overlaps(const Axis &other) const;
};

/// Most lists have one axis. Large programs have many lists, so they are kept small.
using AxisList = mlir::SmallVector<Axis, 1>;

/// Product of the axes' sizes.
int64_t getNumShards(mlir::ArrayRef<Axis> axes);
/// Returns true if any axis of `a` overlaps one of `b`.
bool anyOverlap(mlir::ArrayRef<Axis> a, mlir::ArrayRef<Axis> b);
bool contains(mlir::ArrayRef<Axis> axes, const Axis &axis);

/// The parts of `axes` that remain without `others`, which are parts of them. None if an
/// axis does not split in this way.
std::optional<AxisList> subtract(mlir::ArrayRef<Axis> axes, mlir::ArrayRef<Axis> others);

/// Joins adjacent parts of one axis: ("tp":(1)2, "tp":(2)2) is "tp":(1)4.
void canonicalizeAxes(AxisList &axes, MeshAttr mesh);

Axis getAxis(AxisRefAttr attr, MeshAttr mesh);
AxisRefAttr getAxisRef(const Axis &axis, MeshAttr mesh);
AxisList getAxes(mlir::ArrayAttr attrs, MeshAttr mesh);
mlir::ArrayAttr getAxesAttr(mlir::MLIRContext *context, mlir::ArrayRef<Axis> axes, MeshAttr mesh);

/// Coordinate of `rank` along `axis`, and along a list of axes (row-major).
int64_t getCoordinate(int64_t rank, const Axis &axis, MeshAttr mesh);
int64_t getCoordinate(int64_t rank, mlir::ArrayRef<Axis> axes, MeshAttr mesh);

/// The ranks that differ from `rank` only along `axes`, ordered by their linear
/// coordinate over `axes`.
mlir::SmallVector<int64_t> getGroup(int64_t rank, mlir::ArrayRef<Axis> axes, MeshAttr mesh);

/// Prints axes for messages: `{"dp", "tp":(1)2}`.
std::string toString(mlir::ArrayRef<Axis> axes, MeshAttr mesh);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_AXES_H
