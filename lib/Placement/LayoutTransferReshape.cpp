//===- LayoutTransferReshape.cpp - layouts through a reshape --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A reshape keeps the sequence of factors and places the boundaries of dimensions anew, by
// local sizes. A factor of local size 1 fits on either side of a boundary, and into a
// dimension of local size 1. Each such choice gives a candidate layout.
//
// 1. `joinWhole` takes sharded dimensions apart, and joins neighbours that are not sharded.
// 2. `cut` finds the result dimension of each piece that has several local elements.
// 3. `openHeads` and `splitDigits` take coordinates apart that may belong to several
//    dimensions.
// 4. `enumerate` calls `expand`, which tries each dimension of `getChoices` for each piece
//    of local size 1, the likeliest first. It stops after `kMaxCandidates`.
//
// `TransferContext::isExhaustive` opens the head of each dimension, and lets each coordinate
// belong to the dimension before it.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/lib/Placement/LayoutTransferDetail.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <algorithm>
#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

/// The largest number of candidates. It grows exponentially with the pieces of local size 1.
constexpr size_t kMaxCandidates = 48;

struct Piece {
  LayoutFactor factor;
  /// The dimension of the operand.
  unsigned from;
  /// The dimension of the result; -1 while it is open.
  int to = -1;
  /// On the coordinate of a chunk: the factor that it forms with the next piece, if they belong
  /// to one dimension.
  std::optional<LayoutFactor> whole = {};
};

class Reshape {
public:
  Reshape(const Layout &input, ArrayRef<int64_t> shape, MeshAttr mesh, bool isExhaustive)
      : input(input), shape(shape), mesh(mesh), isExhaustive(isExhaustive) {}

  /// Finds the result dimension of each piece that has several local elements. With `join`,
  /// neighbours that are not sharded count as one piece, so a boundary may cut them anywhere. So do
  /// the rows of a chunk.
  bool cut(bool join);
  /// All candidates, the likeliest first.
  void enumerate(SmallVectorImpl<Layout> &candidates);

private:
  using Choice = SmallVector<int, 4>;
  void joinWhole();
  bool isMoved(size_t i) const;
  void openHeads();
  void splitDigits();
  Choice getChoices(size_t i);
  void expand(size_t i, int least, SmallVectorImpl<Layout> &candidates);
  Layout build() const;

  const Layout &input;
  ArrayRef<int64_t> shape;
  MeshAttr mesh;
  bool isExhaustive;
  SmallVector<Piece, 8> pieces;
  /// Each way to take the coordinates of the pieces apart into digits.
  SmallVector<SmallVector<Piece, 8>, 1> ways;
};

} // namespace

void Reshape::joinWhole() {
  auto isWhole = [](const Piece &p) {
    return p.factor.axes.empty() && !p.factor.isPadded() && p.factor.size > 1;
  };
  SmallVector<Piece, 8> joined;
  auto append = [&](const Piece &piece) {
    if (joined.empty() || !isWhole(joined.back()) || !isWhole(piece)) {
      joined.push_back(piece);
      return;
    }
    LayoutFactor &upper = joined.back().factor;
    upper = makeFactor(upper.size * piece.factor.size, upper.uniform && piece.factor.uniform);
  };
  for (Piece &piece : pieces) {
    // One element of equal ones may be a coordinate of any axes, or none, as here.
    if (piece.factor.uniform && piece.factor.padded == 1)
      continue;
    // The part of a chunk that no rank shares with another: 16{x} is 2{x} times 8.
    LayoutFactor upper, lower;
    int64_t minor = std::gcd(piece.factor.size, piece.factor.getLocalSize());
    if (piece.factor.axes.empty() || minor == 1 ||
        !splitFactor(piece.factor, minor, mesh, upper, lower)) {
      append(piece);
      continue;
    }
    if (upper.padded > 1)
      append({upper, piece.from});
    append({lower, piece.from});
  }
  pieces = std::move(joined);
}

bool Reshape::cut(bool join) {
  pieces.clear();
  for (auto [d, dim] : llvm::enumerate(input.dims))
    for (const LayoutFactor &factor : dim.factors)
      if (factor.padded > 1 || factor.uniform)
        pieces.push_back({factor, static_cast<unsigned>(d)});
  if (join)
    joinWhole();
  SmallVector<Piece, 8> reversed;
  for (int d = shape.size() - 1; d >= 0; --d) {
    int64_t need = shape[d];
    while (need > 1) {
      if (pieces.empty())
        return false;
      Piece piece = pieces.pop_back_val();
      int64_t local = piece.factor.getLocalSize();
      if (local == 1) {
        reversed.push_back(piece);
        continue;
      }
      if (need % local == 0) {
        piece.to = d;
        need /= local;
        reversed.push_back(piece);
        continue;
      }
      LayoutFactor upper, lower;
      if (local % need != 0)
        return false;
      if (piece.factor.uniform) {
        upper = lower = piece.factor;
        lower.size = lower.padded = need;
        upper.size = upper.padded = local / need;
      } else if (!splitFactor(piece.factor, need, mesh, upper, lower)) {
        return false;
      }
      pieces.push_back({upper, piece.from});
      piece.factor = lower;
      piece.to = d;
      reversed.push_back(piece);
      need = 1;
    }
  }
  while (!pieces.empty()) {
    if (pieces.back().factor.getLocalSize() != 1)
      return false;
    reversed.push_back(pieces.pop_back_val());
  }
  pieces.assign(reversed.rbegin(), reversed.rend());

  openHeads();
  splitDigits();
  return true;
}

/// Returns true if the result dimension of piece `i` has other pieces than its operand dimension.
bool Reshape::isMoved(size_t i) const {
  const Piece &last = pieces[i];
  if (last.to < 0)
    return false;
  return llvm::any_of(pieces, [&](const Piece &p) {
    return p.to >= 0 && (p.to == last.to) != (p.from == last.from);
  });
}

/// Takes the coordinate off a chunk at the head of a dimension, if a boundary is new there, if
/// the dimension before it has other boundaries than in the operand, or if a dimension of size 1
/// precedes it. The coordinate belongs to the dimension before, or is the major factor of the
/// chunk.
///
/// A reshape that keeps the local shape moves coordinates alone: 12 x 6{x} to 36 x 2, where x has
/// 3 ranks. Any boundary may be new.
void Reshape::openHeads() {
  bool opensAll = isExhaustive || shape == ArrayRef(input.getLocalShape());
  for (size_t i = 0; i < pieces.size(); ++i) {
    Piece &piece = pieces[i];
    bool first = piece.to >= 0 && (i == 0 || (pieces[i - 1].to != piece.to));
    if (!first || piece.factor.axes.empty())
      continue;
    bool slot = piece.to > 0 && shape[piece.to - 1] == 1;
    bool cutHere = i > 0 && (opensAll || pieces[i - 1].from == piece.from || isMoved(i - 1));
    LayoutFactor upper, lower;
    if ((!slot && !cutHere) ||
        !splitFactor(piece.factor, piece.factor.getLocalSize(), mesh, upper, lower))
      continue;
    Piece head{upper, piece.from};
    head.whole = piece.factor;
    piece.factor = lower;
    pieces.insert(pieces.begin() + i, head);
    ++i;
  }
}

/// The digits of an axis in every order of their bases: 6 is 2 by 3 and 3 by 2.
static void appendOrders(Axis axis, SmallVectorImpl<AxisList> &digits) {
  AxisList primes;
  appendPrimes(axis, primes);
  SmallVector<int64_t> bases;
  for (const Axis &prime : primes)
    bases.push_back(prime.size);
  SmallVector<AxisList> longer;
  do {
    for (const AxisList &list : digits) {
      longer.push_back(list);
      int64_t pre = axis.pre;
      for (int64_t base : bases) {
        longer.back().push_back({axis.axis, pre, base});
        pre *= base;
      }
    }
  } while (std::next_permutation(bases.begin(), bases.end()));
  digits.assign(longer.begin(), longer.end());
}

/// Splits coordinates over several axes, or over an axis of composite size, since their
/// digits may belong to different dimensions. Digits that padding ends in stay together.
void Reshape::splitDigits() {
  ways.assign(1, {});
  for (const Piece &piece : pieces) {
    SmallVector<AxisList> orders(1);
    for (const Axis &axis : piece.factor.axes)
      appendOrders(axis, orders);
    if (piece.to >= 0 || !piece.factor.isContiguous() || orders.front().size() < 2) {
      for (auto &way : ways)
        way.push_back(piece);
      continue;
    }
    SmallVector<SmallVector<Piece, 8>, 1> longer;
    // A coordinate mostly stays in one piece. A large one has more digits than candidates.
    for (const auto &way : ways) {
      longer.push_back(way);
      longer.back().push_back(piece);
    }
    for (const AxisList &digits : orders)
      for (const auto &way : ways) {
        if (longer.size() == kMaxCandidates)
          break;
        longer.push_back(way);
        // The padding, if there is any, is the tail of the digits above those that divide
        // the true size: 6 padded to 8 is 3 padded to 4, times 2.
        Piece upper{piece.factor, piece.from};
        upper.factor.axes = digits;
        auto &own = longer.back();
        size_t place = own.size();
        while (!upper.factor.axes.empty() && !upper.factor.runtimeSize &&
               upper.factor.size % upper.factor.axes.back().size == 0) {
          Piece part = upper;
          Axis digit = upper.factor.axes.pop_back_val();
          upper.factor.size /= digit.size;
          upper.factor.padded /= digit.size;
          part.factor.size = part.factor.padded = digit.size;
          part.factor.axes = {digit};
          own.insert(own.begin() + place, part);
        }
        if (!upper.factor.axes.empty())
          own.insert(own.begin() + place, upper);
      }
    ways = std::move(longer);
  }
}

/// The result dimensions to which piece `i`, of local size 1, may belong.
Reshape::Choice Reshape::getChoices(size_t i) {
  int before = -1, after = -1;
  // Whether the piece before comes from the same dimension, so that a cut may follow this one.
  bool wasBehind = false;
  for (size_t j = 0; j < i; ++j)
    if (pieces[j].factor.getLocalSize() > 1) {
      before = pieces[j].to;
      wasBehind = pieces[j].from == pieces[i].from;
    }
  for (size_t j = i + 1; j < pieces.size() && after < 0; ++j)
    after = pieces[j].to;
  Choice choices;
  if (before >= 0 && before == after)
    return {before};
  int end = after < 0 ? shape.size() : after;
  // A dimension of size 1 keeps size 1.
  bool wasDim = input.dims[pieces[i].from].getLocalSize() == 1;
  Choice slots;
  for (int d = before + 1; d < end; ++d)
    slots.push_back(d);
  if (wasDim) {
    // Prefer the dimension with the same number, counted from the right, then from the
    // left, then the last.
    int from = pieces[i].from, shift = shape.size() - input.dims.size();
    for (int d : {from + shift, from})
      if (llvm::is_contained(slots, d))
        choices.push_back(d);
    choices.append(slots.rbegin(), slots.rend());
  }
  if (after >= 0)
    choices.push_back(after);
  if (!wasDim)
    choices.append(slots.rbegin(), slots.rend());
  if (before >= 0 && (wasDim || wasBehind || slots.empty() || isExhaustive))
    choices.push_back(before);
  return choices;
}

Layout Reshape::build() const {
  Layout layout;
  layout.dims.resize(shape.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece &piece = pieces[i];
    bool isWhole = piece.whole && pieces[i + 1].to == piece.to;
    layout.dims[piece.to].factors.push_back(isWhole ? *piece.whole : piece.factor);
    i += isWhole;
  }
  // One element beside equal ones is one of them.
  auto isUniform = [&](int d, int step) {
    for (d += step; d >= 0 && d < int(layout.dims.size()); d += step)
      if (const auto &factors = layout.dims[d].factors; !factors.empty())
        return (step > 0 ? factors.front() : factors.back()).uniform;
    return false;
  };
  SmallVector<bool> alike;
  for (int d = 0, e = layout.dims.size(); d < e; ++d)
    alike.push_back(layout.dims[d].factors.empty() && (isUniform(d, -1) || isUniform(d, 1)));
  for (auto [dim, uniform] : llvm::zip_equal(layout.dims, alike))
    if (dim.factors.empty())
      dim.factors.push_back(makeFactor(1, uniform));
  layout.parts = input.parts;
  layout.corner = input.corner;
  layout.data = input.data;
  canonicalize(layout, mesh);
  return layout;
}

void Reshape::expand(size_t i, int least, SmallVectorImpl<Layout> &candidates) {
  if (candidates.size() >= kMaxCandidates)
    return;
  if (i == pieces.size()) {
    Layout layout = build();
    if (llvm::none_of(candidates, [&](const Layout &r) { return isSameCandidate(r, layout); }))
      candidates.push_back(std::move(layout));
    return;
  }
  if (pieces[i].to >= 0) {
    expand(i + 1, pieces[i].to, candidates);
    return;
  }
  for (int choice : getChoices(i)) {
    if (choice < least)
      continue;
    pieces[i].to = choice;
    expand(i + 1, choice, candidates);
    pieces[i].to = -1;
  }
}

void Reshape::enumerate(SmallVectorImpl<Layout> &candidates) {
  if (shape.empty()) {
    // The result is a scalar, which has no dimension for a sharded factor.
    if (llvm::all_of(pieces, [](const Piece &p) { return p.factor.uniform; }))
      pieces.clear();
    if (!pieces.empty())
      return;
    ways.assign(1, {});
  }
  for (auto &way : ways) {
    pieces = way;
    expand(0, 0, candidates);
  }
}

/// The event of a reshaped value that an event of the input is. A dimension on which the event
/// depends has the same indices in the result if it has the same layout there, and all dimensions
/// that hold the same elements have one element.
static uint32_t reshapeEvent(const Layout &input, const Layout &result, uint32_t cause) {
  padding::EventTable &events = padding::EventTable::getCurrent();
  SmallVector<int64_t> from = input.getLocalShape(), to = result.getLocalShape();
  SmallVector<int> dims(to.size(), -1);
  SmallVector<bool> depends(to.size(), false);
  bool isKept = true;
  auto isSingle = [](const DimLayout &dim) { return dim.getGlobalSize() == 1 && !dim.isPadded(); };
  // Groups of dimensions that hold the same elements, from the front.
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    size_t firstFrom = i, firstTo = j;
    int64_t left = i < from.size() ? from[i++] : 1, right = j < to.size() ? to[j++] : 1;
    while (left != right) {
      if (left < right)
        left *= from[i++];
      else
        right *= to[j++];
    }
    SmallVector<int> before, after;
    bool dependsOnGroup = false;
    for (size_t d = firstFrom; d < i; ++d) {
      if (isSingle(input.dims[d]))
        continue;
      before.push_back(d);
      dependsOnGroup |= events.dependsOn(cause, d);
    }
    for (size_t d = firstTo; d < j; ++d)
      if (!isSingle(result.dims[d]))
        after.push_back(d);
    if (!dependsOnGroup)
      continue;
    bool isSame = before.size() == 1 && after.size() == 1 &&
                  input.dims[before[0]].sameShardingAs(result.dims[after[0]]);
    if (isSame)
      dims[after[0]] = before[0];
    isKept &= isSame;
    for (size_t d = firstTo; d < j; ++d)
      depends[d] = true;
  }
  if (isKept)
    return events.move(cause, dims);
  SmallVector<int64_t> numbers(from.begin(), from.end());
  numbers.push_back(-1);
  numbers.append(to.begin(), to.end());
  return events.derive(cause, "reshape", numbers, to.size(), [&](unsigned d) { return depends[d]; });
}

/// The layouts that the result of a reshape may have, the likeliest first.
static SmallVector<Layout, 1> reshape(const Layout &input, ArrayRef<int64_t> shape,
                                      const TransferContext &context) {
  SmallVector<Layout, 1> candidates;
  bool uniform = llvm::all_of(input.dims, [](const DimLayout &dim) {
    return llvm::all_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; });
  });
  if (uniform && !input.dims.empty()) {
    // A uniform value is uniform in every shape.
    Layout &layout = candidates.emplace_back();
    for (int64_t size : shape)
      layout.dims.emplace_back(makeFactor(size, /*uniform=*/true));
    layout.data = input.data;
    layout.parts = input.parts;
  } else if (Reshape reshape(input, shape, context.mesh, context.isExhaustive);
             reshape.cut(/*join=*/false) || reshape.cut(/*join=*/true))
    reshape.enumerate(candidates);
  for (Layout &candidate : candidates)
    mapEvents(candidate, [&](uint32_t cause) { return reshapeEvent(input, candidate, cause); });
  return candidates;
}

/// The same of rows of experts, which stay: fewer of them exist than their layout counts.
static SmallVector<Layout, 1> reshapeRows(const Layout &input, ArrayRef<int64_t> shape,
                                          const TransferContext &context) {
  Layout features = input;
  DimLayout rows = features.dims.front();
  features.dims.erase(features.dims.begin());
  mapEvents(features, [](uint32_t) { return 0; });
  SmallVector<Layout, 1> candidates = reshape(features, shape.drop_front(), context);
  for (Layout &candidate : candidates)
    candidate.dims.insert(candidate.dims.begin(), rows);
  return candidates;
}

MaybeLayouts layout_transfer::transferReshape(const TransferContext &context,
                                              SmallVectorImpl<Layout> *alternatives) {
  ArrayRef<int64_t> from = shapeOf(context.op->getOperand(0)), to = shapeOf(context.op->getResult(0));
  const Layout &input = *context.operands[0];
  bool areRows = !from.empty() && !to.empty() && from.front() == to.front() &&
                 input.dims.front().getLocalSize() != from.front();
  SmallVector<Layout, 1> candidates =
      areRows ? reshapeRows(input, to, context) : reshape(input, to, context);
  if (candidates.empty())
    return LogicalResult(report(context,
                                "does not keep the factors of its operand, which has layout " +
                                    toString(input, context.mesh),
                                0));
  if (alternatives)
    for (Layout &candidate : MutableArrayRef<Layout>(candidates).drop_front())
      alternatives->push_back(std::move(candidate));
  candidates.truncate(1);
  return ResultLayouts(std::move(candidates));
}
