//===- Parts.h - values that are parts of a whole ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A value may be one of several parts that combine to the whole: a term of a sum, for example. The
// layout of a value lists the wholes of which it is a part.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_PARTS_H
#define MESHWRIGHT_DIALECTS_DIST_PARTS_H

#include "meshwright/dialects/Dist/Axes.h"
#include "meshwright/dialects/Dist/Enums.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SmallBitVector.h"

namespace meshwright::dist {

/// States that a value is a part of a whole, and which one.
///
/// Across ranks, each rank of a group along `axes` has one part.
/// - `Sum`, `Max`: the value is unreduced over `axes`. A collective combines the parts.
/// - `Place`: a dimension is sharded over `axes`, and only the ranks in `covered` have their
///   chunk. Others have zeros. Not listed if all ranks have theirs.
///
/// Across steps, one rank has the parts as several values, and an op combines them. A source is cut
/// into chunks over `axes`. In step t, the rank with coordinate i computes with chunk i - t of it.
/// A part stays the same part if it moves to another rank.
/// - `Sum`, `Merge`: the values have one shape.
/// - `Place`: each value is a block of rows and columns, as `axes` shard two dimensions. A block
///   that was cut out of a value has no source: the shifts of its dimensions tell its place.
///
/// Each operation gives parts again, or the whole:
///
/// | part                  | reduction over axes | linear op | reshape | permute           | union |
/// |-----------------------|---------------------|-----------|---------|-------------------|-------|
/// | across ranks, reduced | loses them          | stays     | stays   | its axes change   | -     |
/// | across ranks, placed  | -                   | -         | -       | `covered` changes | -     |
/// | across steps          | -                   | -         | stays   | stays             | steps |
///
/// An op states which parts it takes (`LayoutOpInterface::takesPart`).
struct Part {
  enum class Spread { Ranks, Steps };

  AxisList axes;
  /// How the parts give the whole.
  ReductionKind reduction = ReductionKind::Sum;
  Spread spread = Spread::Ranks;
  /// The source of steps, by a number of its own. Parts of different sources do not combine.
  size_t source = 0;
  /// The ranks, by linear coordinate over `axes`, or the steps of the source that the value covers,
  /// and all that the whole needs. Empty if each rank has its part, or there is no source.
  llvm::SmallBitVector covered, needed;

  /// Returns true for no part.
  bool empty() const { return axes.empty(); }
  bool isUnreduced() const {
    return spread == Spread::Ranks && reduction != ReductionKind::Place;
  }
  /// Returns true if only some ranks have their chunk.
  bool isIncomplete() const {
    return spread == Spread::Ranks && reduction == ReductionKind::Place;
  }
  bool isBlock() const { return spread == Spread::Steps && reduction == ReductionKind::Place; }
  bool hasSource() const { return spread == Spread::Steps && !needed.empty(); }
  /// Returns true if the part covers all that makes up the whole.
  bool isWhole() const { return !needed.test(covered); }
  /// The ranks or steps of the whole that are not covered.
  llvm::SmallBitVector getMissing() const;

  /// Returns true if two parts are parts of one whole.
  bool isOfSameWhole(const Part &other) const {
    return spread == other.spread && reduction == other.reduction && axes == other.axes &&
           source == other.source && needed == other.needed;
  }
  bool operator==(const Part &other) const {
    return isOfSameWhole(other) && covered == other.covered;
  }
  bool operator!=(const Part &other) const { return !(*this == other); }
  /// The step that both parts cover; none if they cover different ones.
  std::optional<unsigned> findCommonStep(const Part &other) const;
  /// Adds the steps of another part of the same whole.
  void unite(const Part &other) { covered |= other.covered; }
};

llvm::hash_code hash_value(const Part &part);

/// Prints a part as the end of a layout: ` unreduced {"cp"}`.
std::string toString(const Part &part, MeshAttr mesh);
/// A set of numbers: `{0, 2}`.
std::string toString(const llvm::SmallBitVector &set);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_PARTS_H
