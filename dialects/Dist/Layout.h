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
#include "meshwright/dialects/Dist/Parts.h"

namespace meshwright::dist {

/// A factor of a dimension: `size` elements, padded at the tail to `padded`,
/// sharded over `axes` (major to minor).
struct LayoutFactor {
  int64_t size = 1;
  int64_t padded = 1;
  /// The name of the number of true elements, if that comes when the program runs: `size` is then
  /// the most that it may be, and elements behind the number are padding, whether the factor is
  /// sharded or not. Null for a factor with `size` true elements.
  mlir::FlatSymbolRefAttr runtimeSize = {};
  AxisList axes;
  /// The content of the tail beside true elements of the other factors. Has no meaning if
  /// the factor is not padded.
  Padding padding = Padding::Zero;
  /// The value does not depend on this factor (a splat or a broadcast). It has every
  /// layout with a local size of `padded`. `axes` is empty.
  bool uniform = false;
  /// The order of the elements, for `orderRanks` ranks; padding is its tail.
  TokenOrder order = TokenOrder::Contiguous;
  int64_t orderRanks = 1;
  /// The rank with coordinate i over `axes` holds chunk (i - shift) modulo the number of
  /// chunks, as in step `shift` of a source (see Part).
  int64_t shift = 0;

  bool isPadded() const { return size != padded || runtimeSize; }
  /// Returns true if there are elements behind `size`, which are padding in every run.
  bool isExtended() const { return size != padded; }
  /// Returns true if elements are in contiguous order and chunk i is on rank i.
  bool isContiguous() const { return order == TokenOrder::Contiguous && shift == 0; }
  int64_t getLocalSize() const { return padded / getNumShards(axes); }
  /// Returns true if ranks hold the same elements of the factor in the same order.
  bool sameOrderAs(const LayoutFactor &other) const {
    return order == other.order && orderRanks == other.orderRanks && shift == other.shift;
  }
  /// Returns true for equal sizes, axes and order. Does not compare run-time sizes, since true
  /// elements may be read as padding, and the content of padding.
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
  /// Returns true if the number of true elements of a factor comes when the program runs.
  bool hasRuntimeSize() const;
  bool sameShardingAs(const DimLayout &other) const;
};

/// The layout of a value on a mesh.
struct Layout {
  mlir::SmallVector<DimLayout, 4> dims;
  /// The wholes of which the value is a part, in the order that `canonicalize` gives them. No entry
  /// for a value that is whole on the ranks that `dims` say.
  mlir::SmallVector<Part, 1> parts;
  /// The content where the paddings of two factors meet.
  Padding corner = Padding::Zero;
  /// The content of the true elements.
  Padding data = Padding::Arbitrary;

  int64_t getRank() const { return dims.size(); }
  mlir::SmallVector<int64_t> getLocalShape() const;
  mlir::SmallVector<int64_t> getGlobalShape() const;
  /// Axes that shard a dimension.
  AxisList getShardedAxes() const;
  /// The first part for which `matches` is true; null if there is none.
  template <typename PredicateT> const Part *findPart(PredicateT matches) const {
    auto it = llvm::find_if(parts, matches);
    return it == parts.end() ? nullptr : it;
  }
  /// The part of a source that the value is; null for other values.
  const Part *getPartOfSource() const {
    return findPart([](const Part &part) { return part.hasSource(); });
  }
  /// The part that says which ranks have their chunk, if some lack it; else null.
  const Part *getIncompletePart() const {
    return findPart([](const Part &part) { return part.isIncomplete(); });
  }
  /// Returns true if an axis shards two dimensions: the rank holds one block of rows and
  /// columns, and no collective restores the whole value.
  bool isBlock() const {
    return findPart([](const Part &part) { return part.isBlock(); });
  }
  /// The parts across ranks that make up a sum or a maximum; null for a reduced value. Parts of one
  /// value have one kind.
  const Part *getUnreducedPart() const {
    return !parts.empty() && parts.front().isUnreduced() ? &parts.front() : nullptr;
  }
  bool isUnreduced() const { return getUnreducedPart(); }
  /// The axes over which the value is unreduced, sorted.
  const AxisList &getUnreduced() const;
  /// How the parts over these axes combine. A sum if there are none.
  ReductionKind getReduction() const {
    return isUnreduced() ? parts.front().reduction : ReductionKind::Sum;
  }
  /// Makes the value unreduced over `axes` and no others.
  void setUnreduced(AxisList axes, ReductionKind reduction = ReductionKind::Sum);
  /// Makes the value unreduced over `axes`, too. The parts over other axes combine by `reduction`.
  void addUnreduced(mlir::ArrayRef<Axis> axes, ReductionKind reduction = ReductionKind::Sum);
  /// Returns true if a factor is sharded or the value is unreduced over one of `axes`.
  bool uses(mlir::ArrayRef<Axis> axes) const;
  bool sameShardingAs(const Layout &other) const;

  /// The value replicated on all ranks, one factor a dimension.
  static Layout getReplicated(mlir::ArrayRef<int64_t> shape);
};

/// Brings a layout to its canonical form:
/// - no axis of size 1, no factor of size 1;
/// - adjacent parts of an axis are one part;
/// - an unsharded factor is part of the factor above it, if that is unpadded;
/// - a value is a block if and only if an axis shards two dimensions;
/// - parts across ranks come first, and those of a sum or a maximum before others.
void canonicalize(Layout &layout, MeshAttr mesh);

/// Makes all elements of the layout's factors true ones.
void dropRuntimeSizes(Layout &layout, MeshAttr mesh);

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

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_LAYOUT_H
