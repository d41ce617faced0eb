//===- Layout.h - the layout algebra ----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The layout of a value on the ranks of a mesh, as plain data. The attribute
// `#dist.sharding` spells it in IR. The partitioner, the resharder and the placement
// proof work on this form.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_LAYOUT_H
#define MESHWRIGHT_DIALECTS_DIST_LAYOUT_H

#include "meshwright/dialects/Dist/Dist.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SmallBitVector.h"

namespace meshwright::dist {

/// A factor of a dimension: `size` elements, padded at the tail to `padded`,
/// sharded over `axes` (major to minor).
struct LayoutFactor {
  int64_t size = 1;
  int64_t padded = 1;
  AxisList axes;
  /// The content of the tail beside true elements of the other factors. Has no meaning if
  /// size == padded.
  Padding padding = Padding::Zero;
  /// The value does not depend on this factor (a splat or a broadcast). It has every
  /// layout with a local size of `padded`. `axes` is empty.
  bool uniform = false;
  /// The order of the elements, for `orderRanks` ranks; padding is its tail.
  TokenOrder order = TokenOrder::Contiguous;
  int64_t orderRanks = 1;
  /// The rank with coordinate i over `axes` holds chunk (i - shift) modulo the number of
  /// chunks, as the keys in a step of a ring.
  int64_t shift = 0;

  bool isPadded() const { return size != padded; }
  /// Returns true if elements are in contiguous order and chunk i is on rank i.
  bool isContiguous() const { return order == TokenOrder::Contiguous && shift == 0; }
  int64_t getLocalSize() const { return padded / getNumShards(axes); }
  /// Returns true if ranks hold the same elements of the factor in the same order.
  bool sameOrderAs(const LayoutFactor &other) const {
    return order == other.order && orderRanks == other.orderRanks && shift == other.shift;
  }
  /// Returns true for equal sizes, axes and order. Does not compare the content of padding.
  bool sameShardingAs(const LayoutFactor &other) const {
    return size == other.size && padded == other.padded && axes == other.axes && sameOrderAs(other);
  }
};

/// A dimension: a product of factors, major to minor.
struct DimLayout {
  mlir::SmallVector<LayoutFactor, 1> factors;

  DimLayout() = default;
  explicit DimLayout(LayoutFactor factor) { factors.push_back(std::move(factor)); }

  int64_t getLocalSize() const;
  int64_t getGlobalSize() const;
  /// All axes of all factors, major to minor.
  AxisList getAxes() const;
  bool isSharded() const;
  bool isPadded() const;
  bool sameShardingAs(const DimLayout &other) const;
};

/// The chunks of the keys that a partial result of attention covers. Two such results,
/// with their log-sum-exps, merge to attention over the chunks of both.
///
/// In the steps of a ring, a gradient of attention is such a part, too. Parts add up, or each takes
/// its place. A part of a query's or a bias' gradient covers chunks of the keys. A part of a key's
/// or a value's gradient covers the steps in which the chunk met queries.
struct KeyCover {
  /// The axes over which the keys are sharded; none if the value is not a part.
  AxisList axes;
  /// Parts add up: they are gradients.
  bool adds = false;
  /// Sets of chunks, by the distance that each was shifted along `axes`: on the rank with
  /// coordinate i bit t is chunk (i - t).
  llvm::SmallBitVector merged, needed;
  /// The attention that it is a part of. Parts of different attention do not merge.
  size_t source = 0;

  bool isPart() const { return !axes.empty(); }
  bool operator==(const KeyCover &other) const {
    return axes == other.axes && adds == other.adds && merged == other.merged &&
           needed == other.needed && source == other.source;
  }
};

/// Ranks that a permute left out. They hold zeros instead of their chunk; no op may read
/// them as the chunk.
struct MissingChunks {
  /// The axes along which these ranks differ from others; none if no rank is left out.
  AxisList axes;
  /// By linear coordinate over `axes`.
  llvm::SmallBitVector ranks;

  bool isAny() const { return !axes.empty(); }
  bool operator==(const MissingChunks &other) const {
    return axes == other.axes && ranks == other.ranks;
  }
};

/// The layout of a value on a mesh.
struct Layout {
  mlir::SmallVector<DimLayout, 4> dims;
  AxisList unreduced; // sorted
  ReductionKind reduction = ReductionKind::Sum;
  /// The content where the paddings of two factors meet.
  Padding corner = Padding::Zero;
  /// The content of the true elements.
  Padding data = Padding::Arbitrary;
  /// For results of attention over a part of the keys, and their log-sum-exps.
  KeyCover keys;
  /// For keys and values between the steps of a ring.
  MissingChunks missing;

  int64_t getRank() const { return dims.size(); }
  mlir::SmallVector<int64_t> getLocalShape() const;
  mlir::SmallVector<int64_t> getGlobalShape() const;
  /// Axes that shard a dimension.
  AxisList getShardedAxes() const;
  bool isUnreduced() const { return !unreduced.empty(); }
  /// Returns true if an axis shards two dimensions: the rank holds one block of rows and
  /// columns, and no collective restores the whole value. Only the bias of attention in the steps
  /// of a ring has such a layout, the values that it is computed from, and its gradient.
  bool isBlockwise() const;
  /// Returns true if a factor is sharded or the value is unreduced over one of `axes`.
  bool uses(mlir::ArrayRef<Axis> axes) const;
  bool sameShardingAs(const Layout &other) const;

  /// The value replicated on all ranks, one factor a dimension.
  static Layout getReplicated(mlir::ArrayRef<int64_t> shape);
};

/// Brings a layout to its canonical form:
/// - no axis of size 1, no factor of size 1;
/// - adjacent parts of an axis are one part;
/// - an unsharded factor is part of the factor above it, if that is unpadded.
void canonicalize(Layout &layout, MeshAttr mesh);

/// Splits a factor into an upper one and a lower one of size `minor`. Returns false if the
/// elements of a rank do not form such a product.
bool splitFactor(LayoutFactor factor, int64_t minor, MeshAttr mesh, LayoutFactor &upper,
                 LayoutFactor &lower);

/// The layout that `sharding` gives a value of shape `global` with local shape `local`,
/// which fixes the padded sizes. The content of its padding is `padding`. Fails, with an
/// error through `emitError`, if they do not fit.
mlir::FailureOr<Layout> getLayout(ShardingAttr sharding, MeshAttr mesh,
                                  mlir::ArrayRef<int64_t> global, mlir::ArrayRef<int64_t> local,
                                  Padding padding,
                                  mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// As above without a local shape: each factor is padded as the attribute says, or to the
/// smallest multiple of its number of shards.
mlir::FailureOr<Layout> getLayout(ShardingAttr sharding, MeshAttr mesh,
                                  mlir::ArrayRef<int64_t> global,
                                  mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// The attribute that spells a layout.
FactorShardingAttr getFactorAttr(const LayoutFactor &factor, MeshAttr mesh);
/// The number of equal parts that an order for `ranks` ranks arranges.
int64_t getOrderChunks(TokenOrder order, int64_t ranks);
/// The factor that an attribute with a size spells.
LayoutFactor getFactor(FactorShardingAttr attr, MeshAttr mesh);
/// The layout of the dimension of `dist.positions`, with its shift from 0 on.
LayoutFactor getFactor(PositionsOp op, MeshAttr mesh);
ShardingAttr getSharding(const Layout &layout, mlir::FlatSymbolRefAttr symbol, MeshAttr mesh);
/// As above for a place without a local type: a factor that is not padded to the smallest
/// multiple of its number of shards is spelt out.
ShardingAttr getExactSharding(const Layout &layout, mlir::FlatSymbolRefAttr symbol, MeshAttr mesh);

llvm::hash_code hash_value(const Layout &layout);

llvm::StringRef stringify(TokenOrder order);

/// Prints a layout for messages: `[{"dp"}, {"tp"}, {}] unreduced {"cp"}`.
std::string toString(const Layout &layout, MeshAttr mesh);
/// A set of numbers: `{0, 2}`.
std::string toString(const llvm::SmallBitVector &set);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_LAYOUT_H
