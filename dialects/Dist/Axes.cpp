//===- Axes.cpp - mesh axes and their parts -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Axes.h"

#include "meshwright/dialects/Dist/Dist.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace meshwright::dist;
namespace dist = meshwright::dist;

bool Axis::overlaps(const Axis &other) const {
  if (axis != other.axis)
    return false;
  // A part covers the digits [pre, pre * size) of the axis.
  int64_t end = pre * size, otherEnd = other.pre * other.size;
  if (pre < otherEnd && other.pre < end)
    return true;
  return pre < other.pre ? other.pre % end != 0 : pre % otherEnd != 0;
}

int64_t dist::getNumShards(ArrayRef<Axis> axes) {
  int64_t product = 1;
  for (const Axis &axis : axes)
    product *= axis.size;
  return product;
}

bool dist::anyOverlap(ArrayRef<Axis> a, ArrayRef<Axis> b) {
  for (const Axis &x : a)
    for (const Axis &y : b)
      if (x.overlaps(y))
        return true;
  return false;
}

bool dist::contains(ArrayRef<Axis> axes, const Axis &axis) {
  for (const Axis &other : axes)
    if (other == axis)
      return true;
  return false;
}

std::optional<AxisList> dist::subtract(ArrayRef<Axis> axes, ArrayRef<Axis> others) {
  AxisList result(axes.begin(), axes.end());
  for (const Axis &other : others) {
    auto *it = llvm::find_if(result, [&](const Axis &a) { return a.overlaps(other); });
    if (it == result.end())
      return std::nullopt;
    Axis whole = *it;
    result.erase(it);
    // The parts of `whole` above and below `other` remain.
    if (other.pre % whole.pre != 0 || whole.pre * whole.size % (other.pre * other.size) != 0)
      return std::nullopt;
    int64_t above = other.pre / whole.pre;
    int64_t below = whole.pre * whole.size / (other.pre * other.size);
    if (above > 1)
      result.push_back({whole.axis, whole.pre, above});
    if (below > 1)
      result.push_back({whole.axis, other.pre * other.size, below});
  }
  llvm::sort(result);
  return result;
}

void dist::canonicalizeAxes(AxisList &axes, MeshAttr mesh) {
  AxisList result;
  for (const Axis &axis : axes) {
    if (axis.size == 1)
      continue;
    if (!result.empty() && result.back().axis == axis.axis &&
        result.back().pre * result.back().size == axis.pre) {
      result.back().size *= axis.size;
      continue;
    }
    result.push_back(axis);
  }
  axes = std::move(result);
}

Axis dist::getAxis(AxisRefAttr attr, MeshAttr mesh) {
  int index = mesh.getAxisIndex(attr.getName());
  if (attr.getSubSize() == 0)
    return {index, 1, mesh.getAxes()[index].getSize()};
  return {index, attr.getPreSize(), attr.getSubSize()};
}

AxisRefAttr dist::getAxisRef(const Axis &axis, MeshAttr mesh) {
  MeshAxisAttr meshAxis = mesh.getAxes()[axis.axis];
  bool whole = axis.pre == 1 && axis.size == meshAxis.getSize();
  return AxisRefAttr::get(mesh.getContext(), meshAxis.getName(), whole ? 1 : axis.pre,
                          whole ? 0 : axis.size);
}

AxisList dist::getAxes(ArrayAttr attrs, MeshAttr mesh) {
  AxisList axes;
  for (auto attr : attrs.getAsRange<AxisRefAttr>())
    axes.push_back(getAxis(attr, mesh));
  return axes;
}

ArrayAttr dist::getAxesAttr(MLIRContext *context, ArrayRef<Axis> axes, MeshAttr mesh) {
  SmallVector<Attribute> attrs;
  for (const Axis &axis : axes)
    attrs.push_back(getAxisRef(axis, mesh));
  return ArrayAttr::get(context, attrs);
}

//===----------------------------------------------------------------------===//
// Ranks
//===----------------------------------------------------------------------===//

/// The stride of ranks along `axis`: the product of the sizes of the axes behind it.
static int64_t getStride(int axis, MeshAttr mesh) {
  int64_t stride = 1;
  for (MeshAxisAttr other : mesh.getAxes().drop_front(axis + 1))
    stride *= other.getSize();
  return stride;
}

int64_t dist::getCoordinate(int64_t rank, const Axis &axis, MeshAttr mesh) {
  int64_t size = mesh.getAxes()[axis.axis].getSize();
  int64_t whole = rank / getStride(axis.axis, mesh) % size;
  return whole / (size / (axis.pre * axis.size)) % axis.size;
}

int64_t dist::getCoordinate(int64_t rank, ArrayRef<Axis> axes, MeshAttr mesh) {
  int64_t linear = 0;
  for (const Axis &axis : axes)
    linear = linear * axis.size + getCoordinate(rank, axis, mesh);
  return linear;
}

SmallVector<int64_t> dist::getGroup(int64_t rank, ArrayRef<Axis> axes, MeshAttr mesh) {
  int64_t base = rank;
  SmallVector<int64_t> strides;
  for (const Axis &axis : axes) {
    int64_t size = mesh.getAxes()[axis.axis].getSize();
    int64_t stride = getStride(axis.axis, mesh) * (size / (axis.pre * axis.size));
    strides.push_back(stride);
    base -= getCoordinate(rank, axis, mesh) * stride;
  }
  SmallVector<int64_t> group{base};
  for (auto [axis, stride] : llvm::zip_equal(axes, strides)) {
    SmallVector<int64_t> next;
    for (int64_t start : group)
      for (int64_t i = 0; i < axis.size; ++i)
        next.push_back(start + i * stride);
    group = std::move(next);
  }
  return group;
}

std::string dist::toString(ArrayRef<Axis> axes, MeshAttr mesh) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << '{';
  llvm::interleaveComma(axes, os, [&](const Axis &axis) {
    os << '"' << mesh.getAxes()[axis.axis].getName() << '"';
    if (axis.pre != 1 || axis.size != mesh.getAxes()[axis.axis].getSize())
      os << ":(" << axis.pre << ")" << axis.size;
  });
  os << '}';
  return text;
}
