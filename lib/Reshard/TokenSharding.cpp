//===- TokenSharding.cpp - ops on a shard of their rows -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/TokenSharding.h"

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

std::optional<TokenDim> meshwright::chooseTokens(RankedTensorType type, AxisList axes) {
  int64_t ranks = getNumShards(axes);
  if (type.getRank() < 2 || ranks == 1)
    return std::nullopt;
  TokenDim token;
  token.dim = type.getRank() - 2;
  if (type.getDimSize(token.dim) < ranks && type.getDimSize(0) >= ranks && token.dim > 0)
    token.dim = 0;
  token.size = type.getDimSize(token.dim);
  if (token.size == 0)
    return std::nullopt;
  token.padded = llvm::alignTo(token.size, ranks);
  token.axes = std::move(axes);
  return token;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

std::optional<TokenFactor> meshwright::findTokens(const FactorRule &rule, ArrayRef<int> factors,
                                                  const TokenDim &token) {
  int64_t total = token.outer * token.size * token.inner, above = 1;
  for (int factor : factors) {
    int64_t size = rule.factors[factor].size;
    if (size == 0)
      return std::nullopt;
    int64_t below = total / (above * size);
    if (token.outer % above == 0 && below > 0 && token.inner % below == 0 &&
        (token.outer / above) * token.size * (token.inner / below) == size)
      return TokenFactor{factor, token.outer / above, token.inner / below};
    above *= size;
  }
  return std::nullopt;
}

std::optional<TokenDim> meshwright::placeTokens(const FactorRule &rule,
                                                const FactorRule::ValueFactors &dims,
                                                const TokenFactor &where, const TokenDim &token) {
  for (auto [d, factors] : llvm::enumerate(dims)) {
    int64_t above = 1, below = 1;
    bool found = false;
    for (int factor : factors) {
      if (factor == where.factor)
        found = true;
      else
        (found ? below : above) *= rule.factors[factor].size;
    }
    if (!found)
      continue;
    TokenDim result = token;
    result.dim = d;
    result.outer = above * where.outer;
    result.inner = where.inner * below;
    return result;
  }
  return std::nullopt;
}

/// Returns true for a slice that strips the tokens' padding.
static bool isStrip(nn::SliceOp slice, const TokenDim &token, const Layout &layout) {
  ArrayRef<int64_t> from = slice.getInput().getType().getShape();
  for (auto [d, size] : llvm::enumerate(from)) {
    int64_t start = slice.getStarts()[d], limit = slice.getLimits()[d];
    if (start != 0 || slice.getStrides()[d] != 1)
      return false;
    if (int64_t(d) != token.dim && limit != size)
      return false;
  }
  int64_t limit = slice.getLimits()[token.dim];
  return token.outer == 1 && limit % token.inner == 0 && limit < from[token.dim] &&
         layout.dims[token.dim].getGlobalSize() == limit;
}

std::optional<TokenOp> TokenSharding::match(Operation *op, unsigned operand,
                                            const TokenDim &token) const {
  TokenOp how;
  how.operands.resize(op->getNumOperands());
  how.operands[operand] = token;
  if (auto slice = dyn_cast<dist::SliceOp>(op)) {
    if (op->getNumOperands() != 1 || token.outer != 1 || token.inner != 1 ||
        slice.getDims()[0] != token.dim || getCollectiveAxes(op, mesh) != token.axes ||
        typeOf(op->getResult(0)).getDimSize(token.dim) != token.getChunk() ||
        slice.getShift() % getNumShards(token.axes) != 0)
      return std::nullopt;
    how.kind = TokenOp::TakeShard;
    return how;
  }
  if (auto pad = dyn_cast<dist::PadOp>(op)) {
    if (pad.getDims().size() != 1 || pad.getDims()[0] != token.dim || token.outer != 1 ||
        token.inner != 1 || typeOf(pad.getResult()).getDimSize(token.dim) != token.padded)
      return std::nullopt;
    how.kind = TokenOp::Forward;
    how.results.push_back(token);
    how.results[0].size = token.padded;
    return how;
  }
  const Layout *input = placement.lookup(op->getOperand(operand));
  if (!input)
    return std::nullopt;
  if (auto slice = dyn_cast<nn::SliceOp>(op); slice && isStrip(slice, token, *input)) {
    how.kind = TokenOp::Forward;
    how.results.push_back(token);
    how.results[0].size = slice.getLimits()[token.dim] / token.inner;
    return how;
  }
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface || op->getNumRegions() != 0 || op->getNumResults() == 0)
    return std::nullopt;
  // Only the activations of a product are sharded by token, never its weights. A product without
  // a matrix, as attention, mixes tokens.
  if (isa<MatrixOpInterface>(op) ? operand != 0 : op->hasTrait<Product>())
    return std::nullopt;
  for (ValueRange values : {ValueRange(op->getOperands()), ValueRange(op->getResults())})
    for (Value value : values) {
      const Layout *layout = placement.lookup(value);
      // Rows of some tokens alone cannot be gathered.
      if (!layout || !isa<RankedTensorType>(value.getType()) || layout->uses(token.axes) ||
          isa_and_nonnull<CompactAttrInterface>(typeOf(value).getEncoding()))
        return std::nullopt;
    }
  FactorRule rule = interface.getFactorRule();
  std::optional<TokenFactor> where = findTokens(rule, rule.operands[operand][token.dim], token);
  if (!where || rule.factors[where->factor].kind != FactorKind::Parallel)
    return std::nullopt;
  for (auto [i, dims] : llvm::enumerate(rule.operands))
    if (i != operand)
      how.operands[i] = placeTokens(rule, dims, *where, token);
  for (const FactorRule::ValueFactors &dims : rule.results) {
    std::optional<TokenDim> result = placeTokens(rule, dims, *where, token);
    if (!result)
      return std::nullopt;
    how.results.push_back(*result);
  }
  return how;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static RankedTensorType withDim(RankedTensorType type, int64_t dim, int64_t size) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] = size;
  return type.clone(shape);
}

/// Reshapes what an earlier reshape reads. A reshape that may move a dimension of one element stays a
/// reshape of its own: shapes do not tell to which dimension such an element belongs.
static Value reshape(OpBuilder &builder, Location location, Value value, ArrayRef<int64_t> shape,
                     bool mayMove) {
  RankedTensorType type = typeOf(value);
  if (type.getShape() == shape)
    return value;
  if (auto earlier = value.getDefiningOp<nn::ReshapeOp>(); earlier && !mayMove)
    return reshape(builder, location, earlier.getInput(), shape, mayMove);
  return nn::ReshapeOp::create(builder, location, type.clone(shape), value);
}

/// Returns whether an axis shards a factor above the tokens in their dimension, and one
/// below. A sharded factor may have one element on a rank, and one of equal elements may be sharded.
static std::pair<bool, bool> getShardedSides(const DimLayout &dim, const TokenDim &token) {
  bool above = false, below = false;
  int64_t local = 1, whole = token.outer * token.size * token.inner;
  for (const LayoutFactor &factor : dim.factors) {
    if (!factor.axes.empty() || (factor.uniform && factor.padded == 1)) {
      above |= local <= token.outer;
      below |= whole / local <= token.inner;
    }
    local *= factor.getLocalSize();
  }
  return {above, below};
}

namespace {
/// The shape on which collectives act: factors above and below the tokens in their dimension
/// may become dimensions.
struct TokenView {
  bool above, below = false;

  TokenView(const TokenDim &token, const Layout *layout) : above(token.outer != 1) {
    // Padding is the tail of a dimension, which no other axis may shard.
    if (token.padded == token.size || !layout)
      return;
    auto [shardedAbove, shardedBelow] = getShardedSides(layout->dims[token.dim], token);
    above |= shardedAbove;
    below = shardedBelow;
  }

  int64_t getDim(const TokenDim &token) const { return token.dim + above; }
  /// Returns true if the tokens of a rank, or a factor beside them, are one element.
  bool hasOneElement(const TokenDim &token) const {
    return token.getChunk() == 1 || (above && token.outer == 1) || (below && token.inner == 1);
  }
  /// The shape of a value of this type, with `rows` tokens.
  SmallVector<int64_t> getShape(RankedTensorType type, const TokenDim &token, int64_t rows) const {
    SmallVector<int64_t> shape(type.getShape());
    shape[token.dim] = below ? rows : rows * token.inner;
    if (below)
      shape.insert(shape.begin() + token.dim + 1, token.inner);
    if (above)
      shape.insert(shape.begin() + token.dim, token.outer);
    return shape;
  }
};
} // namespace

/// A slice of equal elements shows how many chunks there are, but not whether the elements before it
/// were all of their dimension.
void TokenSharding::stateTokens(Operation *slice, Value whole, const TokenDim &token, Value beside,
                                int64_t besideDim) const {
  const Layout *own = placement.lookup(whole), *other = placement.lookup(beside);
  if (!own || !other || !llvm::all_of(own->dims[token.dim].factors,
                                      [](const LayoutFactor &factor) { return factor.uniform; }))
    return;
  const DimLayout &shown = other->dims[besideDim];
  if (!shown.isSharded() || shown.getLocalSize() != own->dims[token.dim].getLocalSize() ||
      llvm::any_of(shown.factors, [](const LayoutFactor &factor) { return factor.uniform; }))
    return;
  Layout layout = *own;
  layout.dims[token.dim] = shown;
  llvm::SmallBitVector dims(layout.getRank());
  dims.set(token.dim);
  stateLayout(slice, 0, layout, dims,
              getSpmdMeshSymbol(slice->getParentOfType<func::FuncOp>()), mesh);
}

Value TokenSharding::slice(OpBuilder &builder, Location location, Value whole,
                           const TokenDim &token, Value beside, int64_t besideDim) const {
  RankedTensorType type = typeOf(whole);
  TokenView view(token, placement.lookup(whole));
  Value value = reshape(builder, location, whole, view.getShape(type, token, token.size),
                        view.hasOneElement(token));
  Type shard = type.clone(view.getShape(type, token, token.getChunk()));
  auto slice = dist::SliceOp::create(builder, location, TypeRange(shard), value,
                                     getAxesAttr(builder.getContext(), token.axes, mesh),
                                     builder.getDenseI64ArrayAttr(view.getDim(token)));
  if (value == whole)
    stateTokens(slice, whole, token, beside, besideDim);
  value = slice.getResult(0);
  int64_t size = token.outer * token.getChunk() * token.inner;
  return reshape(builder, location, value, withDim(type, token.dim, size).getShape(),
                 view.hasOneElement(token));
}

/// Cuts the tokens of a dimension along their axes. Returns false for a dimension of several factors.
static bool cutTokens(DimLayout &dim, const TokenDim &token) {
  if (dim.factors.size() != 1 || token.outer * token.inner != 1)
    return false;
  LayoutFactor &factor = dim.factors.front();
  factor.uniform = false;
  factor.padded = token.padded * getNumShards(factor.axes);
  factor.axes.append(token.axes.begin(), token.axes.end());
  return true;
}

/// The shard is the whole value's, cut along the axes of the tokens.
void TokenSharding::stateShard(Operation *gather, Value whole, const TokenDim &token) const {
  const Layout *known = placement.lookup(whole);
  if (!known)
    return;
  Layout layout = *known;
  if (!cutTokens(layout.dims[token.dim], token))
    return;
  llvm::SmallBitVector dims(layout.getRank());
  dims.set(token.dim);
  stateLayout(gather, 0, layout, dims,
              getSpmdMeshSymbol(gather->getParentOfType<func::FuncOp>()), mesh);
}

Value TokenSharding::gather(OpBuilder &builder, Value whole, Value shard, const TokenDim &token,
                            bool statesShard) const {
  Location location = whole.getLoc();
  RankedTensorType type = typeOf(whole);
  TokenView view(token, placement.lookup(whole));
  Value value = reshape(builder, location, shard, view.getShape(type, token, token.getChunk()),
                        view.hasOneElement(token));
  Type padded = type.clone(view.getShape(type, token, token.padded));
  auto gather = AllGatherOp::create(builder, location, TypeRange(padded), value,
                                    getAxesAttr(builder.getContext(), token.axes, mesh),
                                    builder.getDenseI64ArrayAttr(view.getDim(token)));
  if (statesShard && value == shard)
    stateShard(gather, whole, token);
  value = gather.getResult(0);
  if (token.padded != token.size) {
    RankedTensorType stripped = type.clone(view.getShape(type, token, token.size));
    SmallVector<int64_t> zeros(stripped.getRank(), 0), ones(stripped.getRank(), 1);
    value = nn::SliceOp::create(
        builder, location, stripped, value, builder.getDenseI64ArrayAttr(zeros),
        builder.getDenseI64ArrayAttr(stripped.getShape()), builder.getDenseI64ArrayAttr(ones));
  }
  return reshape(builder, location, value, type.getShape(), view.hasOneElement(token));
}

/// The layouts that an op states of whole operands become those of their shards.
void TokenSharding::stateShards(Operation *sharded, const TokenOp &how) const {
  for (auto [i, token] : llvm::enumerate(how.operands)) {
    StatedDims stated = token ? getStatedDims(sharded, i, mesh) : StatedDims();
    if (stated.empty() || !stated[token->dim])
      continue;
    Layout layout;
    llvm::SmallBitVector dims(stated.size());
    for (auto [d, dim] : llvm::enumerate(stated)) {
      layout.dims.push_back(dim.value_or(DimLayout()));
      dims[d] = dim.has_value();
    }
    if (!cutTokens(layout.dims[token->dim], *token))
      dims.reset(token->dim);
    stateLayout(sharded, i, layout, dims,
                getSpmdMeshSymbol(sharded->getParentOfType<func::FuncOp>()), mesh);
  }
}

Operation *TokenSharding::runOnShard(OpBuilder &builder, Operation *op, const TokenOp &how,
                                     ValueRange operands) const {
  Operation *sharded = builder.clone(*op);
  sharded->setOperands(operands);
  sharded->removeAttr(kResultsAttr);
  stateShards(sharded, how);
  for (auto [result, token] : llvm::zip_equal(sharded->getResults(), how.results))
    result.setType(
        withDim(typeOf(result), token.dim, token.outer * token.getChunk() * token.inner));
  // A slice states the sizes of dimensions that it does not change.
  if (auto slice = dyn_cast<nn::SliceOp>(sharded)) {
    SmallVector<int64_t> limits(slice.getLimits());
    limits[how.results[0].dim] = typeOf(slice.getResult()).getDimSize(how.results[0].dim);
    slice.setLimits(limits);
  }
  return sharded;
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

Cost TokenSharding::getGatherCost(Value whole, const TokenDim &token) const {
  int64_t bytes = getTensorBytes(whole.getType()) / token.size * token.padded;
  bool isOutermost = token.outer == 1;
  for (int64_t size : shapeOf(whole).take_front(token.dim))
    isOutermost &= size == 1;
  Cost cost = model.getCost(CollectiveKind::AllGather, token.axes, bytes, isOutermost ? 0 : 1);
  if (token.padded != token.size)
    cost.time += model.getMemoryTime(2 * bytes);
  return cost;
}

int64_t TokenSharding::getSaving(Operation *op, const TokenOp &how) const {
  if (how.kind != TokenOp::Compute)
    return 0;
  const TokenDim &token = how.results[0];
  __int128 time = op->hasTrait<Product>() ? getComputeTime(op, model)
                                          : model.getMemoryTime(getFusedBytes(op, inMemory));
  return int64_t(time - time * token.getChunk() / token.size);
}
