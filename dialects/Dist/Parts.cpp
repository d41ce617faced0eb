//===- Parts.cpp - values that are parts of a whole -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Parts.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/ErrorHandling.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

llvm::SmallBitVector Part::getMissing() const {
  llvm::SmallBitVector missing = needed;
  missing.reset(covered);
  return missing;
}

std::optional<unsigned> Part::findCommonStep(const Part &other) const {
  if (!covered.anyCommon(other.covered))
    return std::nullopt;
  llvm::SmallBitVector common = covered;
  common &= other.covered;
  return common.find_first();
}

llvm::hash_code dist::hash_value(const Part &part) {
  llvm::hash_code hash =
      llvm::hash_combine(part.reduction, part.spread, part.source, part.axes.size());
  for (const Axis &axis : part.axes)
    hash = llvm::hash_combine(hash, axis.axis, axis.pre, axis.size);
  for (unsigned member : part.covered.set_bits())
    hash = llvm::hash_combine(hash, member);
  return hash;
}

std::string dist::toString(const llvm::SmallBitVector &set) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << '{';
  llvm::interleaveComma(set.set_bits(), os);
  os << '}';
  return text;
}

std::string dist::toString(const Part &part, MeshAttr mesh) {
  std::string axes = toString(part.axes, mesh);
  if (part.isUnreduced())
    return (part.reduction == ReductionKind::Max ? " unreduced max " : " unreduced ") + axes;
  if (part.isIncomplete())
    return " missing on ranks " + toString(part.getMissing()) + " of " + axes;
  // The dimensions of a block without a source show it.
  return part.hasSource() ? " in steps " + toString(part.covered) + " of " + axes : "";
}
