//===- PermuteTransfer.cpp - layouts through a permute --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The coordinate of a rank over the permuted axes is a number with digits of prime base.
// The result of a permute has a layout if each digit of the sender that the layout uses
// equals one digit of the receiver. The permute then renames axes.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/PermuteTransfer.h"

#include "meshwright/dialects/Dist/OperandLayouts.h"

#include "llvm/ADT/BitVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

struct Digit {
  Axis axis;
  int64_t stride;
};

} // namespace

llvm::SmallBitVector layout_transfer::getLeftOut(PermuteOp op, int64_t size) {
  llvm::SmallBitVector leftOut(size, /*t=*/bool(op.getPairs()));
  ArrayRef<int64_t> pairs = op.getPairs().value_or(ArrayRef<int64_t>());
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    leftOut.reset(pairs[i + 1]);
  return leftOut;
}

/// The distance by which every chunk moves; none if the distances differ.
static std::optional<int64_t> getDistance(PermuteOp op, int64_t size) {
  auto wrap = [&](int64_t distance) { return (distance % size + size) % size; };
  if (std::optional<int64_t> shift = op.getShift())
    return wrap(*shift);
  ArrayRef<int64_t> pairs = *op.getPairs();
  std::optional<int64_t> distance;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    int64_t own = wrap(pairs[i + 1] - pairs[i]);
    if (distance.value_or(own) != own)
      return std::nullopt;
    distance = own;
  }
  return distance;
}

/// Moves the chunks of one factor by `distance`, except the chunks of ranks in `leftOut`.
static LogicalResult shiftChunks(ArrayRef<Axis> axes, int64_t distance,
                                 const llvm::SmallBitVector &leftOut, Layout &layout) {
  LayoutFactor *moved = nullptr;
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors) {
      if (!anyOverlap(factor.axes, axes))
        continue;
      if (moved || factor.axes != AxisList(axes.begin(), axes.end()))
        return failure();
      moved = &factor;
    }
  if (!moved || anyOverlap(layout.getUnreduced(), axes))
    return failure();
  int64_t size = leftOut.size();
  llvm::SmallBitVector missing = leftOut;
  if (const Part *part = layout.getIncompletePart())
    for (unsigned rank : part->getMissing().set_bits())
      missing.set((rank + distance) % size);
  moved->shift = (moved->shift + distance) % size;
  llvm::erase_if(layout.parts, [](const Part &part) { return part.isIncomplete(); });
  if (missing.none())
    return success();
  Part &part = layout.parts.emplace_back();
  part.axes.assign(axes.begin(), axes.end());
  part.reduction = ReductionKind::Place;
  part.needed.resize(size, /*t=*/true);
  part.covered = missing.flip();
  return success();
}

namespace {

/// A permute by pairs of ranks as a renaming of the digits of a coordinate over `axes`.
class PairTransfer {
public:
  PairTransfer(PermuteOp op, ArrayRef<Axis> axes, MeshAttr mesh);
  LogicalResult run(Layout &layout) const;

private:
  static int64_t read(int64_t coordinate, const Digit &digit) {
    return coordinate / digit.stride % digit.axis.size;
  }
  const Digit *follow(const Digit &digit) const;
  bool rename(AxisList &list) const;
  bool keepsSums(ArrayRef<Axis> unreduced) const;

  ArrayRef<Axis> axes;
  MeshAttr mesh;
  int64_t size;
  /// The rank that sends to each rank.
  SmallVector<int64_t> source;
  SmallVector<Digit> digits;
};

} // namespace

PairTransfer::PairTransfer(PermuteOp op, ArrayRef<Axis> axes, MeshAttr mesh)
    : axes(axes), mesh(mesh), size(getNumShards(axes)), source(size, 0) {
  ArrayRef<int64_t> pairs = *op.getPairs();
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    source[pairs[i + 1]] = pairs[i];
  AxisList primes;
  for (const Axis &axis : axes)
    layout_transfer::appendPrimes(axis, primes);
  digits.resize(primes.size());
  int64_t stride = 1;
  for (int i = primes.size() - 1; i >= 0; --i) {
    digits[i] = {primes[i], stride};
    stride *= primes[i].size;
  }
}

/// The digit of the receiver that equals the sender's `digit`; null where there is none.
const Digit *PairTransfer::follow(const Digit &digit) const {
  for (const Digit &candidate : digits) {
    if (candidate.axis.size != digit.axis.size)
      continue;
    bool same = true;
    for (int64_t rank = 0; rank < size && same; ++rank)
      same = read(source[rank], digit) == read(rank, candidate);
    if (same)
      return &candidate;
  }
  return nullptr;
}

/// Replaces the digits in `list` by those that follow them; false where one has none.
bool PairTransfer::rename(AxisList &list) const {
  AxisList result;
  for (const Axis &axis : list) {
    if (!anyOverlap(axes, axis)) {
      result.push_back(axis);
      continue;
    }
    AxisList parts;
    layout_transfer::appendPrimes(axis, parts);
    for (const Axis &part : parts) {
      const Digit *digit = llvm::find_if(digits, [&](const Digit &d) { return d.axis == part; });
      if (digit == digits.end()) {
        if (anyOverlap(axes, part))
          return false;
        result.push_back(part);
        continue;
      }
      const Digit *renamed = follow(*digit);
      if (!renamed)
        return false;
      result.push_back(renamed->axis);
    }
  }
  list = result;
  return true;
}

/// Returns true if the parts of a sum only change places among the ranks that add them.
bool PairTransfer::keepsSums(ArrayRef<Axis> unreduced) const {
  SmallVector<Digit> summed;
  for (const Digit &digit : digits)
    if (anyOverlap(unreduced, digit.axis))
      summed.push_back(digit);
  llvm::BitVector seen(size);
  for (int64_t rank = 0; rank < size; ++rank) {
    // The group of the receiver, and the part that it gets.
    int64_t base = rank, part = 0;
    for (const Digit &digit : summed) {
      base -= read(rank, digit) * digit.stride;
      part += read(source[rank], digit) * digit.stride;
    }
    if (seen.test(base + part))
      return false;
    seen.set(base + part);
  }
  return true;
}

LogicalResult PairTransfer::run(Layout &layout) const {
  Layout result = layout;
  for (DimLayout &dim : result.dims)
    for (LayoutFactor &factor : dim.factors)
      if (!rename(factor.axes))
        return failure();
  AxisList open = layout.getUnreduced();
  if (!rename(open)) {
    if (!keepsSums(layout.getUnreduced()))
      return failure();
    open = layout.getUnreduced();
    if (anyOverlap(result.getShardedAxes(), open))
      return failure();
  }
  result.setUnreduced(std::move(open), layout.getReduction());
  canonicalize(result, mesh);
  layout = std::move(result);
  return success();
}

/// Checks that the chunks which ranks receive are those of a value with the operand's layout:
/// - ranks that hold the same chunk receive equal ones;
/// - no chunk has padding, which would leave the tail;
/// - the permuted axes add no parts of a sum.
static LogicalResult relabelChunks(PermuteOp op, ArrayRef<Axis> axes, const Layout &layout) {
  if (!layout.parts.empty() && anyOverlap(layout.getUnreduced(), axes))
    return failure();
  if (layout.getIncompletePart())
    return failure();
  int64_t size = getNumShards(axes);
  SmallVector<int64_t> sources = op.getChunkSources(size);
  AxisList primes;
  for (const Axis &axis : axes)
    layout_transfer::appendPrimes(axis, primes);
  AxisList sharded;
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors) {
      if (!anyOverlap(factor.axes, axes))
        continue;
      if (factor.isPadded() || factor.shift != 0)
        return failure();
      llvm::append_range(sharded, factor.axes);
    }
  // The chunk of a rank: its coordinates over the axes that shard the value.
  auto getChunk = [&](int64_t rank) {
    int64_t stride = 1, chunk = 0;
    for (const Axis &digit : llvm::reverse(primes)) {
      if (anyOverlap(sharded, digit))
        chunk += rank / stride % digit.size * stride;
      stride *= digit.size;
    }
    return chunk;
  };
  SmallVector<std::optional<int64_t>> received(size);
  for (int64_t rank = 0; rank < size; ++rank) {
    int64_t chunk = sources[rank] < 0 ? -1 : getChunk(sources[rank]);
    std::optional<int64_t> &known = received[getChunk(rank)];
    if (known.value_or(chunk) != chunk)
      return failure();
    known = chunk;
  }
  return success();
}

LogicalResult layout_transfer::transferPermute(PermuteOp op, ArrayRef<Axis> axes, MeshAttr mesh,
                                               Layout &layout) {
  if (op->hasAttr(kRelabelsAttr))
    return relabelChunks(op, axes, layout);
  int64_t size = getNumShards(axes);
  llvm::SmallBitVector leftOut = getLeftOut(op, size);
  const Part *incomplete = layout.getIncompletePart();
  if (leftOut.any() || incomplete) {
    // A layout describes missing chunks along one list of axes only.
    std::optional<int64_t> distance = getDistance(op, size);
    if (!distance || (incomplete && incomplete->axes != axes))
      return failure();
    return shiftChunks(axes, *distance, leftOut, layout);
  }
  if (!layout.uses(axes))
    return success();
  if (op.getShift()) {
    int64_t distance = *getDistance(op, size);
    if (distance == 0)
      return success();
    // A shift moves the parts of a sum between the ranks that add them.
    AxisList left = layout.getUnreduced();
    if (removeAxes(left, axes))
      return success();
    return shiftChunks(axes, distance, leftOut, layout);
  }

  return PairTransfer(op, axes, mesh).run(layout);
}
