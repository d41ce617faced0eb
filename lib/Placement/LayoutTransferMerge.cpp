//===- LayoutTransferMerge.cpp - two layouts of one dimension -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Operands that share a dimension state it in different ways: as a product of other factors, as one
// element that stretches, or as equal elements, which have every layout.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

static bool isSingleElement(ArrayRef<LayoutFactor> list) {
  return llvm::all_of(
      list, [](const LayoutFactor &f) { return f.size == 1 && f.padded == 1 && !f.uniform; });
}

static bool isEqualElement(ArrayRef<LayoutFactor> list) {
  return llvm::all_of(list, [](const LayoutFactor &f) { return f.uniform && f.padded == 1; });
}

/// Returns true if `coarse` has one element on each rank that stretches to `fine`. Each
/// element of `coarse` is replicated over some axes of `fine`, as a key head is that serves
/// query heads on several ranks. Padding at the tail of all elements would shift the groups.
static bool stretches(ArrayRef<LayoutFactor> coarse, ArrayRef<LayoutFactor> fine) {
  AxisList few, many;
  for (const LayoutFactor &f : coarse) {
    if (f.getLocalSize() != 1 || f.isPadded() || !f.isContiguous())
      return false;
    few.append(f.axes.begin(), f.axes.end());
  }
  for (const LayoutFactor &f : fine) {
    if (f.getLocalSize() != 1 || !f.isContiguous() || (f.isPadded() && anyOverlap(f.axes, few)))
      return false;
    many.append(f.axes.begin(), f.axes.end());
  }
  return removeAxes(many, few) && !many.empty();
}

/// Gives a factor the run-time size of an equal one: what is padding of one of them is padding of
/// both. Returns false if they have two.
static bool takeRuntimeSize(LayoutFactor &factor, const LayoutFactor &other) {
  if (!other.runtimeSize || factor.runtimeSize == other.runtimeSize)
    return true;
  if (factor.runtimeSize)
    return false;
  factor.runtimeSize = other.runtimeSize;
  return true;
}

/// Walks both lists from their minor ends. Cuts the larger of two factors to the smaller.
/// A uniform factor takes the factors of the other list that have its local size. With
/// `takesCoordinates`, one element takes the coordinate of a rank, too, which else stays for the
/// factors above.
static bool alignPieces(Pieces &a, ArrayRef<LayoutFactor> b, MeshAttr mesh,
                        bool takesCoordinates) {
  Pieces result, left(a.begin(), a.end()), right(b.begin(), b.end());
  LayoutFactor upper, lower;
  // Takes `local` elements off the uniform factor at the end of a list.
  auto shrink = [](Pieces &list, int64_t local) {
    LayoutFactor &factor = list.back();
    factor.size /= local;
    factor.padded = factor.size;
    if (factor.size == 1)
      list.pop_back();
  };
  auto adopt = [&](Pieces &uniform, Pieces &other) {
    int64_t want = uniform.back().size, got = other.back().getLocalSize();
    // A chunk: its coordinate stays for the factors above.
    if (want == got && !(want == 1 && takesCoordinates) && !other.back().axes.empty() &&
        !other.back().uniform && splitFactor(other.back(), want, mesh, upper, lower)) {
      result.push_back(lower);
      other.back() = upper;
      uniform.pop_back();
      return true;
    }
    if (want % got == 0) {
      result.push_back(other.pop_back_val());
      shrink(uniform, got);
      return true;
    }
    if (got % want != 0)
      return false;
    if (other.back().uniform) {
      lower = other.back();
      lower.size = lower.padded = want;
      result.push_back(lower);
      shrink(other, want);
    } else {
      if (!splitFactor(other.back(), want, mesh, upper, lower))
        return false;
      result.push_back(lower);
      other.back() = upper;
    }
    uniform.pop_back();
    return true;
  };
  while (!left.empty() && !right.empty()) {
    LayoutFactor &x = left.back(), &y = right.back();
    if (x.uniform || y.uniform) {
      if (!(x.uniform ? adopt(left, right) : adopt(right, left)))
        return false;
      continue;
    }
    if (x.sameShardingAs(y)) {
      if (!takeRuntimeSize(x, y))
        return false;
      result.push_back(x);
      left.pop_back();
      right.pop_back();
      continue;
    }
    // A factor of the same true size is larger by its padding: 2 padded to 4 is 1 padded to 2,
    // times 2.
    auto sizeOf = [](const LayoutFactor &f) { return std::pair(f.size, f.padded); };
    if (sizeOf(x) == sizeOf(y))
      return false;
    bool isLeft = sizeOf(x) > sizeOf(y);
    Pieces &larger = isLeft ? left : right, &smaller = isLeft ? right : left;
    if (!splitFactor(larger.back(), smaller.back().size, mesh, upper, lower) ||
        !lower.sameShardingAs(smaller.back()))
      return false;
    result.push_back(lower);
    larger.back() = upper;
    smaller.pop_back();
  }
  // Single elements that are left of one list are chunks of equal elements, if the other list
  // begins with such. Else it would have fewer elements.
  for (auto [rest, other] : {std::pair(&left, b), std::pair(&right, ArrayRef<LayoutFactor>(a))})
    while (!rest->empty()) {
      LayoutFactor factor = rest->pop_back_val();
      bool fits = factor.uniform || factor.padded == 1 || (!other.empty() && other.front().uniform);
      if (factor.getLocalSize() != 1 || !fits)
        return false;
      if (!factor.uniform)
        result.push_back(factor);
    }
  if (result.empty())
    result.push_back(makeFactor(1, /*uniform=*/true));
  std::reverse(result.begin(), result.end());
  a = std::move(result);
  return true;
}

/// Aligns two dimensions after their factors are joined. Runs of equal elements in one of them may
/// cross those in the other: (21, 2) whose pairs are equal, and (2, 21) whose halves are.
static bool alignJoined(Pieces &a, ArrayRef<LayoutFactor> b, MeshAttr mesh) {
  DimLayout left, right;
  left.factors.assign(a.begin(), a.end());
  right.factors.assign(b.begin(), b.end());
  collapse(left);
  collapse(right);
  Pieces joined(left.factors.begin(), left.factors.end());
  if (!alignPieces(joined, right.factors, mesh, /*takesCoordinates=*/false))
    return false;
  a = std::move(joined);
  return true;
}

bool layout_transfer::mergePieces(Pieces &a, ArrayRef<LayoutFactor> b, MeshAttr mesh,
                                  bool broadcasts, bool groups) {
  if (broadcasts) {
    // One of equal elements beside the only element of a dimension is the only one, too. It is no
    // row of each rank without an operand or a statement that says so.
    if (isSingleElement(b)) {
      if (isEqualElement(a))
        a.assign(b.begin(), b.end());
      return true;
    }
    if (isSingleElement(a)) {
      if (!isEqualElement(b))
        a.assign(b.begin(), b.end());
      return true;
    }
    if (groups && stretches(b, a))
      return true;
    if (groups && stretches(a, b)) {
      a.assign(b.begin(), b.end());
      return true;
    }
  }
  if (a.size() == 1 && b.size() == 1) {
    LayoutFactor &x = a.front();
    const LayoutFactor &y = b.front();
    if (x.uniform && x.size == y.getLocalSize()) {
      x = y;
      return true;
    }
    if (y.uniform && y.size == x.getLocalSize())
      return true;
    if (!x.uniform && x.sameShardingAs(y))
      return takeRuntimeSize(x, y);
  }
  auto isUniform = [](const LayoutFactor &f) { return f.uniform; };
  bool uniform = llvm::any_of(a, isUniform) || llvm::any_of(b, isUniform);
  int64_t sizeA = 1, sizeB = 1;
  for (const LayoutFactor &f : a)
    sizeA *= f.size;
  for (const LayoutFactor &f : b)
    sizeB *= f.size;
  // Without uniform factors the true sizes must agree.
  if (!uniform && sizeA != sizeB)
    return false;
  return alignPieces(a, b, mesh, /*takesCoordinates=*/false) ||
         alignPieces(a, b, mesh, /*takesCoordinates=*/true) || (uniform && alignJoined(a, b, mesh));
}
