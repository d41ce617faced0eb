//===- LayoutTransferChunks.cpp - chunks of a dimension -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A dimension that is cut into chunks, and chunks that are concatenated.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

bool layout_transfer::isUniform(const DimLayout &dim) {
  return llvm::all_of(dim.factors,
                      [](const LayoutFactor &f) {
                        return f.uniform || (f.size == 1 && f.padded == 1 && f.axes.empty());
                      }) &&
         llvm::any_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; });
}

/// Removes `axes` (major to minor) from the minor end of `list`; leaves in
/// `axes` what did not match.
static void popAxes(AxisList &list, AxisList &axes) {
  while (!list.empty() && !axes.empty()) {
    Axis &have = list.back(), &want = axes.back();
    if (have == want) {
      list.pop_back();
      axes.pop_back();
      continue;
    }
    bool sameEnd = have.axis == want.axis && have.pre * have.size == want.pre * want.size;
    if (sameEnd && want.pre > have.pre && want.pre % have.pre == 0) {
      have.size = want.pre / have.pre;
      axes.pop_back();
    } else if (sameEnd && have.pre > want.pre && have.pre % want.pre == 0) {
      want.size = have.pre / want.pre;
      list.pop_back();
    } else {
      return;
    }
  }
}

/// The index of the first factor that has several local elements, or of the last one. Chunks
/// of it and of factors above it concatenate.
static int getOutermost(const DimLayout &dim) {
  int first =
      llvm::find_if(dim.factors, [](const LayoutFactor &f) { return f.getLocalSize() > 1; }) -
      dim.factors.begin();
  return std::min<int>(first, dim.factors.size() - 1);
}

/// The dimension with the axes behind the last one of `axes` on a factor of their own: without
/// x, 8{x, y} is the product of 4 and 2{y}. Unchanged if there is no such factor.
static DimLayout cutBehind(DimLayout dim, ArrayRef<Axis> axes, MeshAttr mesh) {
  int64_t end = axes.empty() ? 0 : axes.back().pre * axes.back().size;
  for (int i = getOutermost(dim); i >= 0; --i) {
    LayoutFactor &factor = dim.factors[i], upper, lower;
    auto found = llvm::find_if(factor.axes, [&](const Axis &axis) {
      return end && axis.axis == axes.back().axis && axis.pre < end && axis.pre * axis.size % end == 0;
    });
    if (factor.uniform || found == factor.axes.end())
      continue;
    int64_t behind = found->pre * found->size / end *
                     getNumShards(ArrayRef<Axis>(std::next(found), factor.axes.end()));
    if (splitFactor(factor, behind * factor.getLocalSize(), mesh, upper, lower)) {
      factor = lower;
      dim.factors.insert(dim.factors.begin() + i, upper);
    }
    return dim;
  }
  return dim;
}

static bool popAxesOfFactors(DimLayout &dim, AxisList axes) {
  // Chunks out of place do not concatenate.
  if (llvm::any_of(dim.factors, [](const LayoutFactor &f) { return f.shift != 0; }))
    return false;
  for (int i = getOutermost(dim); i >= 0 && !axes.empty(); --i) {
    AxisList &own = dim.factors[i].axes, before = own;
    popAxes(own, axes);
    // Factors that keep all of their axes have one local element, so chunks of those above
    // them concatenate.
    if (!own.empty() && own != before)
      break;
  }
  return axes.empty();
}

bool layout_transfer::loseAxes(DimLayout &dim, ArrayRef<Axis> axes, MeshAttr mesh) {
  AxisList own(axes.begin(), axes.end());
  DimLayout whole = dim;
  return popAxesOfFactors(dim, own) || popAxesOfFactors(dim = cutBehind(whole, own, mesh), own);
}

/// Appends `axes`, as the minor-most ones, to factors that they divide, the major ones first.
static bool appendAxes(DimLayout &dim, AxisList axes) {
  // Which of equal elements a rank has does not matter, but how many others there are does.
  auto cut = [](LayoutFactor &factor, ArrayRef<Axis> by) {
    factor.uniform = false;
    factor.axes.append(by.begin(), by.end());
  };
  for (LayoutFactor &factor : dim.factors) {
    int64_t local = factor.getLocalSize();
    if (local == 1)
      continue;
    if (local % getNumShards(axes) == 0) {
      cut(factor, axes);
      return true;
    }
    // Cut this factor into single elements, go on with the next.
    while (local > 1) {
      if (axes.empty())
        return false;
      Axis &axis = axes.front();
      if (local % axis.size == 0) {
        cut(factor, axis);
        local /= axis.size;
        axes.erase(axes.begin());
      } else if (axis.size % local == 0) {
        cut(factor, Axis{axis.axis, axis.pre, local});
        axis = {axis.axis, axis.pre * local, axis.size / local};
        local = 1;
      } else {
        return false;
      }
    }
  }
  return axes.empty();
}

bool layout_transfer::gainAxes(DimLayout &dim, AxisList axes, int64_t chunk, bool &padded) {
  int64_t shards = getNumShards(axes);
  padded = chunk * shards > dim.getLocalSize();
  if (isUniform(dim))
    dim = DimLayout(makeFactor(dim.getLocalSize()));
  if (padded) {
    collapse(dim);
    // Only behind the whole dimension is there a tail; an order depends on where it
    // ends.
    if (dim.isSharded() || dim.factors.size() != 1 || !dim.factors.front().isContiguous())
      return false;
    LayoutFactor &factor = dim.factors.front();
    factor.padding =
        factor.isPadded() ? padding::meet(factor.padding, Padding::Zero) : Padding::Zero;
    factor.uniform = false;
    factor.padded = chunk * shards;
    factor.axes = axes;
    return true;
  }
  if (llvm::any_of(dim.factors, [](const LayoutFactor &f) { return f.shift != 0; }))
    return false;
  DimLayout whole = dim;
  if (appendAxes(dim, axes))
    return true;
  // A chunk may begin within a run of equal elements.
  dim = whole;
  collapse(dim);
  return appendAxes(dim, axes);
}
