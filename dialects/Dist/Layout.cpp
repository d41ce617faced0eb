//===- Layout.cpp - the layout algebra ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Layout.h"

#include "meshwright/dialects/Dist/Refine.h"

#include "llvm/Support/MathExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// DimLayout, Layout
//===----------------------------------------------------------------------===//

int64_t DimLayout::getLocalSize() const {
  int64_t product = 1;
  for (const LayoutFactor &factor : factors)
    product *= factor.getLocalSize();
  return product;
}

int64_t DimLayout::getGlobalSize() const {
  int64_t product = 1;
  for (const LayoutFactor &factor : factors)
    product *= factor.size;
  return product;
}

AxisList DimLayout::getAxes() const {
  AxisList axes;
  for (const LayoutFactor &factor : factors)
    axes.append(factor.axes.begin(), factor.axes.end());
  return axes;
}

bool DimLayout::isSharded() const {
  return llvm::any_of(factors, [](const LayoutFactor &f) { return !f.axes.empty(); });
}

bool DimLayout::isPadded() const {
  return llvm::any_of(factors, [](const LayoutFactor &f) { return f.isPadded(); });
}

bool DimLayout::hasRuntimeSize() const {
  return llvm::any_of(factors, [](const LayoutFactor &f) { return bool(f.runtimeSize); });
}

bool DimLayout::sameShardingAs(const DimLayout &other) const {
  return llvm::equal(factors, other.factors, [](const LayoutFactor &a, const LayoutFactor &b) {
    return a.sameShardingAs(b);
  });
}

SmallVector<int64_t> Layout::getLocalShape() const {
  SmallVector<int64_t> shape;
  for (const DimLayout &dim : dims)
    shape.push_back(dim.getLocalSize());
  return shape;
}

SmallVector<int64_t> Layout::getGlobalShape() const {
  SmallVector<int64_t> shape;
  for (const DimLayout &dim : dims)
    shape.push_back(dim.getGlobalSize());
  return shape;
}

AxisList Layout::getShardedAxes() const {
  AxisList axes;
  for (const DimLayout &dim : dims)
    for (const LayoutFactor &factor : dim.factors)
      axes.append(factor.axes.begin(), factor.axes.end());
  return axes;
}

const AxisList &Layout::getUnreduced() const {
  static const AxisList none;
  return isUnreduced() ? parts.front().axes : none;
}

void Layout::setUnreduced(AxisList axes, ReductionKind reduction) {
  if (isUnreduced())
    parts.erase(parts.begin());
  if (axes.empty())
    return;
  Part part;
  part.axes = std::move(axes);
  part.reduction = reduction;
  parts.insert(parts.begin(), std::move(part));
}

void Layout::addUnreduced(ArrayRef<Axis> axes, ReductionKind reduction) {
  AxisList all = getUnreduced();
  all.append(axes.begin(), axes.end());
  setUnreduced(std::move(all), reduction);
}

bool Layout::uses(ArrayRef<Axis> axes) const {
  if (anyOverlap(getUnreduced(), axes))
    return true;
  for (const DimLayout &dim : dims)
    for (const LayoutFactor &factor : dim.factors)
      if (anyOverlap(factor.axes, axes))
        return true;
  return false;
}

bool Layout::sameShardingAs(const Layout &other) const {
  return parts == other.parts &&
         llvm::equal(dims, other.dims, [](const DimLayout &a, const DimLayout &b) {
           return a.sameShardingAs(b);
         });
}

Layout Layout::getReplicated(ArrayRef<int64_t> shape) {
  Layout layout;
  for (int64_t size : shape) {
    LayoutFactor factor;
    factor.size = factor.padded = size;
    layout.dims.emplace_back(std::move(factor));
  }
  return layout;
}

/// The axes that shard two dimensions.
static AxisList getBlockAxes(const Layout &layout) {
  AxisList seen, block;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      for (const Axis &axis : factor.axes)
        (anyOverlap(seen, axis) ? block : seen).push_back(axis);
  return block;
}

static void canonicalizeParts(Layout &layout, MeshAttr mesh) {
  // The dimensions decide whether the value is a block. An op decides which one of a source.
  llvm::erase_if(layout.parts,
                 [](const Part &part) { return part.isBlock() && !part.hasSource(); });
  if (AxisList axes = getBlockAxes(layout); !axes.empty() && !layout.isBlock()) {
    Part &block = layout.parts.emplace_back();
    block.axes = std::move(axes);
    block.reduction = ReductionKind::Place;
    block.spread = Part::Spread::Steps;
  }
  for (Part &part : layout.parts) {
    canonicalizeAxes(part.axes, mesh);
    if (!part.isUnreduced())
      continue;
    llvm::sort(part.axes);
    canonicalizeAxes(part.axes, mesh);
  }
  llvm::erase_if(layout.parts, [](const Part &part) { return part.empty(); });
  if (layout.parts.size() > 1)
    llvm::sort(layout.parts, [](const Part &a, const Part &b) {
      return std::tie(a.spread, a.reduction) < std::tie(b.spread, b.reduction);
    });
}

void dist::canonicalize(Layout &layout, MeshAttr mesh) {
  for (DimLayout &dim : layout.dims) {
    SmallVector<LayoutFactor, 1> factors;
    for (LayoutFactor &factor : dim.factors) {
      canonicalizeAxes(factor.axes, mesh);
      // A uniform factor of size 1 may be a chunk of a larger one.
      if (factor.size == 1 && factor.padded == 1 && !factor.uniform && dim.factors.size() > 1)
        continue;
      if (!factors.empty()) {
        LayoutFactor &above = factors.back();
        // Elements out of order do not form a run of the product. Shifted chunks do.
        if (above.order != TokenOrder::Contiguous || !factor.isContiguous()) {
          factors.push_back(std::move(factor));
          continue;
        }
        // Below an unpadded factor, an unsharded and unpadded one changes no chunks:
        // they are the chunks of the upper factor.
        if (!above.isPadded() && !factor.isPadded() && factor.axes.empty() &&
            above.uniform == factor.uniform) {
          above.size *= factor.size;
          above.padded *= factor.padded;
          continue;
        }
        // An upper factor cut into single elements continues in the lower one:
        // (2{a}, 4{b}) is 8{a, b}.
        if (!above.isPadded() && !factor.isPadded() && above.getLocalSize() == 1 &&
            above.isContiguous() && !above.uniform && !factor.uniform) {
          above.size *= factor.size;
          above.padded *= factor.padded;
          above.axes.append(factor.axes.begin(), factor.axes.end());
          canonicalizeAxes(above.axes, mesh);
          continue;
        }
      }
      factors.push_back(std::move(factor));
    }
    if (factors.empty())
      factors.emplace_back();
    // A padded major factor over an unpadded, unsharded minor one is a padded
    // dimension like any other: padding stays at the tail.
    if (factors.size() == 2 && factors[0].isPadded() && !factors[1].isPadded() &&
        factors[1].axes.empty() && factors[0].uniform == factors[1].uniform &&
        !factors[0].runtimeSize && factors[0].order == TokenOrder::Contiguous && factors[1].isContiguous()) {
      factors[0].size *= factors[1].size;
      factors[0].padded *= factors[1].padded;
      factors.pop_back();
    }
    dim.factors = std::move(factors);
  }
  canonicalizeParts(layout, mesh);
}

void dist::dropRuntimeSizes(Layout &layout, MeshAttr mesh) {
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      factor.runtimeSize = {};
  canonicalize(layout, mesh);
}

bool dist::splitFactor(LayoutFactor factor, int64_t minor, MeshAttr mesh, LayoutFactor &upper,
                       LayoutFactor &lower) {
  if (minor <= 0 || factor.size % minor != 0 || factor.padded % minor != 0)
    return false;
  // A number that comes at run time is no product.
  if (factor.runtimeSize && minor != 1)
    return false;
  int64_t local = factor.getLocalSize();
  bool cutsAxes = local % minor != 0;
  if (minor != 1 && (factor.order != TokenOrder::Contiguous || (factor.shift != 0 && cutsAxes)))
    return false;
  upper = factor;
  lower = factor;
  upper.size = factor.size / minor;
  upper.padded = factor.padded / minor;
  lower.size = lower.padded = minor;
  lower.padding = Padding::Zero;
  lower.runtimeSize = {};
  lower.axes.clear();
  lower.shift = 0;
  if (!cutsAxes)
    return true;
  // The cut goes through the axes: the upper part is cut into single elements. Padding is the
  // tail of the upper part alone, since its true size divides.
  if (minor % local != 0)
    return false;
  int64_t shards = minor / local;
  AxisList tail;
  while (shards > 1) {
    if (upper.axes.empty())
      return false;
    Axis axis = upper.axes.pop_back_val();
    if (shards % axis.size == 0) {
      shards /= axis.size;
    } else if (axis.size % shards == 0) {
      int64_t rest = axis.size / shards;
      upper.axes.push_back({axis.axis, axis.pre, rest});
      axis = {axis.axis, axis.pre * rest, shards};
      shards = 1;
    } else {
      return false;
    }
    tail.insert(tail.begin(), axis);
  }
  lower.axes = tail;
  return true;
}

std::optional<SmallVector<FactorPair, 2>> dist::refine(const DimLayout &from, const DimLayout &to,
                                                    MeshAttr mesh) {
  SmallVector<FactorPair, 2> pairs;
  SmallVector<LayoutFactor> a(from.factors.begin(), from.factors.end());
  SmallVector<LayoutFactor> b(to.factors.begin(), to.factors.end());
  while (!a.empty() && !b.empty()) {
    LayoutFactor x = a.pop_back_val(), y = b.pop_back_val(), upper, lower;
    if (x.size > y.size) {
      if (!splitFactor(x, y.size, mesh, upper, lower))
        return std::nullopt;
      a.push_back(upper);
      x = lower;
    } else if (y.size > x.size) {
      if (!splitFactor(y, x.size, mesh, upper, lower))
        return std::nullopt;
      b.push_back(upper);
      y = lower;
    }
    pairs.push_back({std::move(x), std::move(y)});
  }
  // The rest has size 1, but may be padded.
  LayoutFactor unit;
  for (; !a.empty(); a.pop_back())
    pairs.push_back({a.back(), unit});
  for (; !b.empty(); b.pop_back())
    pairs.push_back({unit, b.back()});
  std::reverse(pairs.begin(), pairs.end());
  return pairs;
}

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

static FailureOr<Layout> getLayoutImpl(ShardingAttr sharding, MeshAttr mesh,
                                       ArrayRef<int64_t> global,
                                       std::optional<ArrayRef<int64_t>> local, Padding padding,
                                       function_ref<InFlightDiagnostic()> emitError) {
  if (sharding.getRank() != int64_t(global.size()))
    return emitError() << "expected a sharding of " << global.size() << " dimensions, got "
                       << sharding.getRank();
  if (local && local->size() != global.size())
    return emitError() << "expected a local type of rank " << global.size() << ", got rank "
                       << local->size();
  if (failed(sharding.verifyForMesh(mesh, emitError)))
    return failure();
  Layout layout;
  for (auto [d, dimAttr] : llvm::enumerate(sharding.getDims())) {
    DimLayout dim;
    bool spelled = !(dimAttr.getFactors().size() <= 1 &&
                     (dimAttr.getFactors().empty() || dimAttr.getFactors()[0].getSize() == 0));
    if (!spelled) {
      LayoutFactor factor;
      if (!dimAttr.getFactors().empty()) {
        factor.runtimeSize = dimAttr.getFactors()[0].getRuntimeSize();
        for (AxisRefAttr axis : dimAttr.getFactors()[0].getAxes())
          factor.axes.push_back(getAxis(axis, mesh));
      }
      int64_t shards = getNumShards(factor.axes);
      factor.size = global[d];
      factor.padding = padding;
      if (local) {
        factor.padded = (*local)[d] * shards;
        if (factor.padded < factor.size)
          return emitError() << "dimension " << d << ": expected a local size for at least "
                             << global[d] << " elements on " << shards << " shards, got "
                             << (*local)[d];
      } else {
        factor.padded = llvm::alignTo(factor.size, shards);
      }
      dim.factors.push_back(std::move(factor));
    } else {
      for (FactorShardingAttr factorAttr : dimAttr.getFactors()) {
        LayoutFactor factor = getFactor(factorAttr, mesh);
        int64_t shards = getNumShards(factor.axes);
        if (factor.padded % shards != 0 || factor.padded < factor.size)
          return emitError() << "dimension " << d << ": a factor of size " << factor.size
                             << " padded to " << factor.padded << " does not divide over " << shards
                             << " shards";
        if (factor.padded % factor.orderRanks != 0)
          return emitError() << "dimension " << d << ": a factor padded to " << factor.padded
                             << " has no order for " << factor.orderRanks << " ranks";
        factor.padding = padding;
        dim.factors.push_back(std::move(factor));
      }
      if (dim.getGlobalSize() != global[d])
        return emitError() << "dimension " << d << ": expected factors that multiply to its size "
                           << global[d] << ", got " << dim.getGlobalSize();
      if (local && dim.getLocalSize() != (*local)[d])
        return emitError() << "dimension " << d
                           << ": expected local sizes of factors that multiply to " << (*local)[d]
                           << ", got " << dim.getLocalSize();
    }
    layout.dims.push_back(std::move(dim));
  }
  AxisList unreduced;
  for (AxisRefAttr axis : sharding.getUnreduced())
    unreduced.push_back(getAxis(axis, mesh));
  layout.setUnreduced(std::move(unreduced), sharding.getReduction());
  canonicalize(layout, mesh);
  return layout;
}

FailureOr<Layout> dist::getLayout(ShardingAttr sharding, MeshAttr mesh, ArrayRef<int64_t> global,
                                  ArrayRef<int64_t> local, Padding padding,
                                  function_ref<InFlightDiagnostic()> emitError) {
  return getLayoutImpl(sharding, mesh, global, local, padding, emitError);
}

FailureOr<Layout> dist::getLayout(ShardingAttr sharding, MeshAttr mesh, ArrayRef<int64_t> global,
                                  function_ref<InFlightDiagnostic()> emitError) {
  return getLayoutImpl(sharding, mesh, global, std::nullopt, Padding::Zero, emitError);
}

int64_t dist::getOrderChunks(TokenOrder order, int64_t ranks) {
  return order == TokenOrder::Zigzag ? 2 * ranks : ranks;
}

LayoutFactor dist::getFactor(FactorShardingAttr attr, MeshAttr mesh) {
  LayoutFactor factor;
  factor.size = attr.getSize();
  factor.runtimeSize = attr.getRuntimeSize();
  for (AxisRefAttr axis : attr.getAxes())
    factor.axes.push_back(getAxis(axis, mesh));
  factor.order = attr.getOrder();
  factor.orderRanks = attr.getOrderRanks();
  int64_t chunks =
      std::lcm(getNumShards(factor.axes), getOrderChunks(factor.order, factor.orderRanks));
  factor.padded = attr.getPadded() ? attr.getPadded() : llvm::alignTo(factor.size, chunks);
  return factor;
}

LayoutFactor dist::getFactor(PositionsOp op, MeshAttr mesh) {
  LayoutFactor factor = getFactor(op.getFactor(), mesh);
  int64_t chunks = getNumShards(factor.axes);
  factor.shift = (int64_t(op.getShift()) % chunks + chunks) % chunks;
  return factor;
}

static SmallVector<AxisRefAttr> getAxisRefs(ArrayRef<Axis> axes, MeshAttr mesh) {
  SmallVector<AxisRefAttr> result;
  for (const Axis &axis : axes)
    result.push_back(getAxisRef(axis, mesh));
  return result;
}

FactorShardingAttr dist::getFactorAttr(const LayoutFactor &factor, MeshAttr mesh) {
  return FactorShardingAttr::get(mesh.getContext(), factor.size, factor.padded, factor.order,
                                 factor.orderRanks, getAxisRefs(factor.axes, mesh),
                                 factor.runtimeSize);
}

static ShardingAttr spellSharding(const Layout &layout, FlatSymbolRefAttr symbol, MeshAttr mesh,
                                  bool isExact) {
  MLIRContext *context = mesh.getContext();
  SmallVector<DimShardingAttr> dims;
  for (const DimLayout &dim : layout.dims) {
    SmallVector<FactorShardingAttr> factors;
    const LayoutFactor &first = dim.factors.front();
    bool isSmallest =
        first.padded == int64_t(llvm::alignTo(first.size, getNumShards(first.axes)));
    bool spelled = dim.factors.size() > 1 || !first.isContiguous() || (isExact && !isSmallest);
    for (const LayoutFactor &factor : dim.factors)
      factors.push_back(spelled ? getFactorAttr(factor, mesh)
                                : FactorShardingAttr::get(context, 0, 0, TokenOrder::Contiguous, 1,
                                                          getAxisRefs(factor.axes, mesh),
                                                          factor.runtimeSize));
    dims.push_back(DimShardingAttr::get(context, factors, /*isOpen=*/false));
  }
  return ShardingAttr::get(context, symbol, dims, getAxisRefs(layout.getUnreduced(), mesh),
                           layout.getReduction());
}

ShardingAttr dist::getSharding(const Layout &layout, FlatSymbolRefAttr symbol, MeshAttr mesh) {
  return spellSharding(layout, symbol, mesh, /*isExact=*/false);
}

ShardingAttr dist::getExactSharding(const Layout &layout, FlatSymbolRefAttr symbol,
                                    MeshAttr mesh) {
  return spellSharding(layout, symbol, mesh, /*isExact=*/true);
}

//===----------------------------------------------------------------------===//
// Printing and hashing
//===----------------------------------------------------------------------===//

llvm::hash_code dist::hash_value(const Layout &layout) {
  llvm::hash_code hash = llvm::hash_value(layout.dims.size());
  auto add = [&](ArrayRef<Axis> axes) {
    for (const Axis &axis : axes)
      hash = llvm::hash_combine(hash, axis.axis, axis.pre, axis.size);
    hash = llvm::hash_combine(hash, axes.size());
  };
  for (const DimLayout &dim : layout.dims) {
    for (const LayoutFactor &factor : dim.factors) {
      hash = llvm::hash_combine(hash, factor.size, factor.padded, factor.order, factor.orderRanks,
                                factor.shift, factor.runtimeSize);
      add(factor.axes);
    }
    hash = llvm::hash_combine(hash, dim.factors.size());
  }
  for (const Part &part : layout.parts)
    hash = llvm::hash_combine(hash, hash_value(part));
  return hash;
}

StringRef dist::stringify(TokenOrder order) {
  switch (order) {
  case TokenOrder::Contiguous:
    return "contiguous";
  case TokenOrder::Zigzag:
    return "zigzag";
  case TokenOrder::Striped:
    return "striped";
  }
  llvm_unreachable("unknown order");
}

std::string dist::toString(const Layout &layout, MeshAttr mesh) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << '[';
  llvm::interleaveComma(layout.dims, os, [&](const DimLayout &dim) {
    auto printRuntimeSize = [&](const LayoutFactor &factor) {
      if (factor.runtimeSize)
        os << " size " << factor.runtimeSize;
    };
    if (dim.factors.size() == 1 && dim.factors[0].isContiguous()) {
      os << toString(dim.factors[0].axes, mesh);
      printRuntimeSize(dim.factors[0]);
      return;
    }
    os << '(';
    llvm::interleaveComma(dim.factors, os, [&](const LayoutFactor &factor) {
      os << factor.size;
      if (factor.isExtended())
        os << " pad " << factor.padded;
      if (factor.order != TokenOrder::Contiguous)
        os << ' ' << stringify(factor.order) << ' ' << factor.orderRanks;
      printRuntimeSize(factor);
      if (!factor.axes.empty())
        os << toString(factor.axes, mesh);
      if (factor.shift != 0)
        os << " shifted by " << factor.shift;
    });
    os << ')';
  });
  os << ']';
  for (const Part &part : layout.parts)
    os << toString(part, mesh);
  return text;
}
