//===- JoinDimensions.cpp - one launch for two dimensions -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/optimise/JoinDimensions.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// Two collectives of one kind, each of one value and one dimension.
struct Pair {
  Operation *first = nullptr, *second = nullptr;
  /// Rows of padding that go, or come, between the two; null without any.
  Operation *between = nullptr;
  /// The dimension whose chunks are larger, the other one, and their axes.
  int64_t outer = 0, inner = 0;
  AxisList axes;
  /// The number of ranks over which the outer dimension is sharded.
  int64_t shards = 1;
};

} // namespace

/// The dimension of a collective of one value; none of another one.
template <typename Op> static std::optional<int64_t> getDim(Operation *op) {
  auto collective = dyn_cast_or_null<Op>(op);
  if (!collective || op->getNumOperands() != 1 || collective.getDims().size() != 1 ||
      cast<CollectiveOpInterface>(op).getRole() != CollectiveRole::Data ||
      cast<CollectiveOpInterface>(op).getShardings(0))
    return std::nullopt;
  return collective.getDims()[0];
}

/// Returns true if the rows of `inner` follow each other in memory over all of `outer`.
static bool areAdjacent(ArrayRef<int64_t> local, const Pair &pair) {
  return llvm::all_of(local.slice(pair.outer, pair.inner - pair.outer),
                      [](int64_t size) { return size == 1; });
}

template <typename Op, typename Between>
static std::optional<Pair> findPair(Operation *op, MeshAttr mesh) {
  Pair pair;
  std::optional<int64_t> last = getDim<Op>(op);
  if (!last)
    return std::nullopt;
  pair.second = op;
  pair.first = op->getOperand(0).getDefiningOp();
  if (isa_and_nonnull<Between>(pair.first) && pair.first->hasOneUse()) {
    pair.between = pair.first;
    pair.first = pair.between->getOperand(0).getDefiningOp();
  }
  std::optional<int64_t> before = getDim<Op>(pair.first);
  if (!before || *before == *last || !pair.first->hasOneUse())
    return std::nullopt;
  pair.outer = std::min(*before, *last);
  pair.inner = std::max(*before, *last);
  AxisList firstAxes = getCollectiveAxes(pair.first, mesh);
  AxisList secondAxes = getCollectiveAxes(pair.second, mesh);
  pair.axes = pair.outer == *before ? firstAxes : secondAxes;
  if (firstAxes.empty() || secondAxes.empty())
    return std::nullopt;
  pair.shards = getNumShards(pair.axes);
  // Parts of one axis that meet are one part.
  for (const Axis &axis : pair.outer == *before ? secondAxes : firstAxes) {
    Axis &end = pair.axes.back();
    if (axis.axis == end.axis && axis.pre == end.pre * end.size)
      end.size *= axis.size;
    else
      pair.axes.push_back(axis);
  }
  return pair;
}

/// The shape with the outer dimension, and those up to the inner one, merged into it.
static SmallVector<int64_t> merge(ArrayRef<int64_t> shape, const Pair &pair) {
  SmallVector<int64_t> merged(shape.take_front(pair.outer));
  int64_t rows = 1;
  for (int64_t size : shape.slice(pair.outer, pair.inner - pair.outer + 1))
    rows *= size;
  merged.push_back(rows);
  llvm::append_range(merged, shape.drop_front(pair.inner + 1));
  return merged;
}

static Value reshape(OpBuilder &builder, Location location, Value value, ArrayRef<int64_t> shape) {
  auto type = cast<RankedTensorType>(value.getType());
  return nn::ReshapeOp::create(builder, location, type.clone(shape), value);
}

/// Writes the gather of both dimensions. Padding of the inner one goes behind it.
static Value joinGathers(OpBuilder &builder, const Pair &pair, MeshAttr mesh) {
  Location location = pair.second->getLoc();
  Value input = pair.first->getOperand(0);
  SmallVector<int64_t> whole(shapeOf(input)), local = merge(whole, pair);
  int64_t ranks = getNumShards(pair.axes);
  whole[pair.outer] *= pair.shards;
  whole[pair.inner] *= ranks / pair.shards;
  auto type = cast<RankedTensorType>(input.getType());
  Value rows = reshape(builder, location, input, local);
  local[pair.outer] *= ranks;
  Value gathered = AllGatherOp::create(builder, location, TypeRange(type.clone(local)), rows,
                                       getAxesAttr(builder.getContext(), pair.axes, mesh),
                                       builder.getDenseI64ArrayAttr(pair.outer))
                       .getResult(0);
  Value result = reshape(builder, location, gathered, whole);
  if (!pair.between)
    return result;
  auto strip = cast<nn::SliceOp>(pair.between);
  auto cut = cast<RankedTensorType>(pair.second->getResult(0).getType());
  return nn::SliceOp::create(builder, location, cut, result, strip.getStartsAttr(),
                             builder.getDenseI64ArrayAttr(cut.getShape()), strip.getStridesAttr());
}

/// Writes the scatter of both dimensions. Padding of the inner one comes before it.
static Value joinScatters(OpBuilder &builder, const Pair &pair, MeshAttr mesh) {
  Location location = pair.second->getLoc();
  Value input = pair.first->getOperand(0);
  int64_t ranks = getNumShards(pair.axes);
  auto result = cast<RankedTensorType>(pair.second->getResult(0).getType());
  SmallVector<int64_t> whole(shapeOf(input));
  if (pair.between) {
    whole[pair.inner] = result.getDimSize(pair.inner) * (ranks / pair.shards);
    input = PadOp::create(builder, location, result.clone(whole), input,
                          builder.getDenseI64ArrayAttr(pair.inner));
  }
  SmallVector<int64_t> rows = merge(whole, pair);
  Value merged = reshape(builder, location, input, rows);
  rows[pair.outer] /= ranks;
  Value scattered =
      ReduceScatterOp::create(builder, location, TypeRange(result.clone(rows)), merged,
                              cast<ReduceScatterOp>(pair.second).getReductionAttr(),
                              getAxesAttr(builder.getContext(), pair.axes, mesh),
                              builder.getDenseI64ArrayAttr(pair.outer))
          .getResult(0);
  return reshape(builder, location, scattered, result.getShape());
}

/// Returns true if the op cuts off rows of padding at the tail of the inner dimension.
static bool isStrip(const Pair &pair) {
  auto slice = cast<nn::SliceOp>(pair.between);
  auto isOne = [](int64_t stride) { return stride == 1; };
  auto isZero = [](int64_t start) { return start == 0; };
  if (!llvm::all_of(slice.getStrides(), isOne) || !llvm::all_of(slice.getStarts(), isZero))
    return false;
  for (auto [d, sizes] : llvm::enumerate(
           llvm::zip_equal(shapeOf(slice.getInput()), shapeOf(slice.getResult()))))
    if (int64_t(d) != pair.inner && std::get<0>(sizes) != std::get<1>(sizes))
      return false;
  return true;
}

/// Moves an all-gather in front of a reshape that drops a dimension of one row, directly before the gathered
/// one, so that a gather of another dimension is next to it. The dropped dimension is gathered then: the
/// chunks follow each other as before. Returns the gather, or null without such a reshape.
static Operation *gatherDropped(Operation *op, MeshAttr mesh) {
  std::optional<int64_t> dim = getDim<AllGatherOp>(op);
  auto drop = dim ? op->getOperand(0).getDefiningOp<nn::ReshapeOp>() : nn::ReshapeOp();
  if (!drop || !drop->hasOneUse())
    return nullptr;
  Value input = drop.getInput();
  SmallVector<int64_t> shape(shapeOf(input)), rest = shape;
  Operation *before = input.getDefiningOp();
  if (isa_and_nonnull<nn::SliceOp>(before))
    before = before->getOperand(0).getDefiningOp();
  if (!getDim<AllGatherOp>(before) || int64_t(shape.size()) <= *dim || shape[*dim] != 1)
    return nullptr;
  rest.erase(rest.begin() + *dim);
  if (ArrayRef<int64_t>(rest) != shapeOf(drop.getResult()))
    return nullptr;
  OpBuilder builder(op);
  shape[*dim] = getNumShards(getCollectiveAxes(op, mesh));
  auto type = cast<RankedTensorType>(input.getType());
  Operation *gather = builder.clone(*op);
  gather->setOperand(0, input);
  gather->getResult(0).setType(type.clone(shape));
  Value merged = reshape(builder, op->getLoc(), gather->getResult(0), shapeOf(op->getResult(0)));
  op->getResult(0).replaceAllUsesWith(merged);
  op->erase();
  drop->erase();
  return gather;
}

static bool mayJoinGathers(const Pair &pair) {
  return areAdjacent(shapeOf(pair.first->getOperand(0)), pair) &&
         (!pair.between || isStrip(pair));
}

static bool mayJoinScatters(const Pair &pair) {
  if (!areAdjacent(shapeOf(pair.second->getResult(0)), pair) ||
      cast<ReduceScatterOp>(pair.first).getReduction() !=
          cast<ReduceScatterOp>(pair.second).getReduction())
    return false;
  if (!pair.between)
    return true;
  ArrayRef<int64_t> dims = cast<PadOp>(pair.between).getDims();
  return dims.size() == 1 && dims[0] == pair.inner;
}

bool meshwright::joinDimensions(func::FuncOp func, const CostModel &model, StringRef pass) {
  MeshAttr mesh = model.getMesh();
  bool changed = false;
  for (Operation &each : llvm::make_early_inc_range(func.front())) {
    Operation *op = &each;
    if (Operation *moved = gatherDropped(op, mesh)) {
      op = moved;
      changed = true;
    }
    OpBuilder builder(op);
    std::optional<Pair> pair = findPair<AllGatherOp, nn::SliceOp>(op, mesh);
    Value joint;
    if (pair && mayJoinGathers(*pair))
      joint = joinGathers(builder, *pair, mesh);
    else if ((pair = findPair<ReduceScatterOp, PadOp>(op, mesh)) && mayJoinScatters(*pair))
      joint = joinScatters(builder, *pair, mesh);
    if (!joint)
      continue;
    DistDialect::getDecisionLog(func.getContext())
        .add(pass.str(), Outcome::Applied, op->getLoc(),
             op->getName().getStringRef().str() + " of two dimensions takes one launch", {});
    op->getResult(0).replaceAllUsesWith(joint);
    op->erase();
    if (pair->between)
      pair->between->erase();
    pair->first->erase();
    changed = true;
  }
  return changed;
}
