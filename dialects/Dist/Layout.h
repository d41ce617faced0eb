//===- Layout.h - the layout algebra ----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// How a value lies on the ranks of a mesh, as plain data. The attribute
// (`#dist.sharding`) is its spelling in IR; partitioner, resharder, verifier and
// runtime work on this.
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
  /// Meaningless where size == padded.
  Padding padding = Padding::Zero;
  /// The value does not depend on this factor (a splat or broadcast): it has
  /// every layout whose local size is `padded`. `axes` is empty.
  bool uniform = false;
  /// The order of the elements, for `orderRanks` ranks; padding is its tail.
  TokenOrder order = TokenOrder::Natural;
  int64_t orderRanks = 1;
  /// The rank with coordinate i over `axes` holds chunk (i - shift) mod their
  /// number, as keys do on their way around a ring.
  int64_t shift = 0;

  bool isPadded() const { return size != padded; }
  /// Whether elements lie as they are numbered, chunk i on rank i.
  bool isNatural() const { return order == TokenOrder::Natural && shift == 0; }
  int64_t getLocalSize() const { return padded / getNumShards(axes); }
  /// Same elements in the same order, in or out of place.
  bool sameOrderAs(const LayoutFactor &other) const {
    return order == other.order && orderRanks == other.orderRanks && shift == other.shift;
  }
  /// Same sizes, axes and order; the padding's content is not compared.
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

/// What attention over some chunks of the keys is a part of. Two such results with
/// their log-sum-exps make up attention over the chunks of both.
struct KeyCover {
  /// The axes over which the keys are sharded; none where the value is not a part.
  AxisList axes;
  /// Chunks by how far they were shifted along `axes`: on a rank with coordinate i
  /// bit t stands for chunk (i - t).
  llvm::SmallBitVector merged, needed;
  /// The attention that it is a part of: what differs is no part of the same whole.
  size_t source = 0;

  bool isPart() const { return !axes.empty(); }
  bool operator==(const KeyCover &other) const {
    return axes == other.axes && merged == other.merged && needed == other.needed &&
           source == other.source;
  }
};

/// Ranks that a permute left out: they have zeros in place of their chunk, which nobody
/// may take for it.
struct MissingChunks {
  /// The axes along which these ranks differ from others; none where none is left out.
  AxisList axes;
  /// By linear coordinate over `axes`.
  llvm::SmallBitVector ranks;

  bool isAny() const { return !axes.empty(); }
  bool operator==(const MissingChunks &other) const {
    return axes == other.axes && ranks == other.ranks;
  }
};

/// How a value lies on a mesh.
struct Layout {
  mlir::SmallVector<DimLayout, 4> dims;
  AxisList unreduced; // sorted
  ReductionKind reduction = ReductionKind::Sum;
  /// What stands where the paddings of two factors meet; a factor's own
  /// `padding` speaks of its tail beside true rows of the others.
  Padding corner = Padding::Zero;
  /// Of results of attention over a part of the keys, and their log-sum-exps.
  KeyCover keys;
  /// Of keys and values on their way around a ring.
  MissingChunks missing;

  int64_t getRank() const { return dims.size(); }
  mlir::SmallVector<int64_t> getLocalShape() const;
  mlir::SmallVector<int64_t> getGlobalShape() const;
  /// Axes that shard a dimension.
  AxisList getShardedAxes() const;
  bool isUnreduced() const { return !unreduced.empty(); }
  /// Whether an axis shards two dimensions: a rank has blocks of rows and of columns
  /// that go together, and no collective makes the value whole. Only the bias of
  /// attention in steps around a ring lies so, and what it is computed from.
  bool isBlockwise() const;
  /// Whether any factor is sharded or the value unreduced over one of `axes`.
  bool uses(mlir::ArrayRef<Axis> axes) const;
  bool sameShardingAs(const Layout &other) const;

  /// The value replicated on all ranks, one factor a dimension.
  static Layout getReplicated(mlir::ArrayRef<int64_t> shape);
};

/// Canonical form: axes of size 1 dropped, adjacent parts of an axis joined,
/// factors of size 1 dropped, adjacent factors that no axis and no padding
/// tells apart joined (an unsharded factor joins the one above it when that is
/// unpadded).
void canonicalize(Layout &layout, MeshAttr mesh);

/// Splits a factor into an upper one and a lower one of size `minor`; false
/// where a rank's elements do not form such a product.
bool splitFactor(LayoutFactor factor, int64_t minor, MeshAttr mesh, LayoutFactor &upper,
                 LayoutFactor &lower);

/// The layout that `sharding` gives a value of global shape `global` whose local
/// shape is `local` (which fixes the padding). Padding content is `padding`.
/// Fails, with an error through `emitError`, where they do not fit.
mlir::FailureOr<Layout> getLayout(ShardingAttr sharding, MeshAttr mesh,
                                  mlir::ArrayRef<int64_t> global, mlir::ArrayRef<int64_t> local,
                                  Padding padding,
                                  mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// The same without a local shape: each factor is padded to the smallest
/// multiple of its number of shards, or as the attribute says.
mlir::FailureOr<Layout> getLayout(ShardingAttr sharding, MeshAttr mesh,
                                  mlir::ArrayRef<int64_t> global,
                                  mlir::function_ref<mlir::InFlightDiagnostic()> emitError);

/// The attribute that spells a layout.
FactorShardingAttr getFactorAttr(const LayoutFactor &factor, MeshAttr mesh);
/// Of how many equal parts chunks in an order for so many ranks are made.
int64_t getOrderChunks(TokenOrder order, int64_t ranks);
/// The factor that an attribute with a size spells.
LayoutFactor getFactor(FactorShardingAttr attr, MeshAttr mesh);
ShardingAttr getSharding(const Layout &layout, mlir::FlatSymbolRefAttr symbol, MeshAttr mesh);

llvm::hash_code hash_value(const Layout &layout);

llvm::StringRef stringify(TokenOrder order);

/// Prints a layout for messages: `[{"dp"}, {"tp"}, {}] unreduced {"cp"}`.
std::string toString(const Layout &layout, MeshAttr mesh);
/// A set of numbers: `{0, 2}`.
std::string toString(const llvm::SmallBitVector &set);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_LAYOUT_H
