//===- MeshTranslation.cpp - layouts on other meshes ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/MeshTranslation.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Appends an axis of one mesh as axes of another over the same ranks. Returns false if the
/// other mesh cuts the ranks otherwise.
static bool translateAxis(const Axis &axis, MeshAttr from, MeshAttr to, AxisList &result) {
  int64_t stride = 1;
  for (MeshAxisAttr minor : from.getAxes().drop_front(axis.axis + 1))
    stride *= minor.getSize();
  stride *= from.getAxes()[axis.axis].getSize() / (axis.pre * axis.size);
  int64_t begin = stride, end = stride * axis.size, covered = 1, low = 1;
  AxisList reversed;
  for (int i = to.getAxes().size() - 1; i >= 0; --i) {
    int64_t size = to.getAxes()[i].getSize(), high = low * size;
    int64_t first = std::max(begin, low), last = std::min(end, high);
    if (first < last) {
      if (last % first != 0 || high % last != 0 || first % low != 0)
        return false;
      reversed.push_back({i, high / last, last / first});
      covered *= last / first;
    }
    low = high;
  }
  result.append(reversed.rbegin(), reversed.rend());
  return covered == axis.size;
}

bool layout_transfer::translate(Layout &layout, MeshAttr from, MeshAttr to) {
  auto translateList = [&](AxisList &list) {
    AxisList result;
    for (const Axis &axis : list)
      if (!translateAxis(axis, from, to, result))
        return false;
    list = result;
    return true;
  };
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      if (!translateList(factor.axes))
        return false;
  canonicalize(layout, to);
  return true;
}
