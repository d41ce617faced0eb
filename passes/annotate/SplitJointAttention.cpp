//===- SplitJointAttention.cpp - attention over joined sequences ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_SPLITJOINTATTENTIONPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// The pieces of a joined sequence dimension.
using Pieces = SmallVector<Value, 2>;

class AttentionSplitter {
public:
  explicit AttentionSplitter(nn::AttentionOp op) : op(op), builder(op) {}
  /// Splits the op if its keys are joined. Returns true if they are.
  bool run();

private:
  Pieces getPieces(Value value, int64_t dim);
  Value slice(Value value, int64_t dim, int64_t start, int64_t size);
  Value reshape(Value value, int64_t dim, nn::ReshapeOp like, int64_t toDim);
  Value getLengths(int64_t column);
  Value attend(Value query, ArrayRef<Value> keys, ArrayRef<Value> values, int64_t row);
  void replace(Value whole, const Pieces &pieces, int64_t dim);
  /// Marks an op as one of the stage.
  template <typename Op> Op adopt(Op made) {
    if (Attribute stage = op->getAttr(nn::NnDialect::kStageAttr))
      made->setAttr(nn::NnDialect::kStageAttr, stage);
    return made;
  }

  nn::AttentionOp op;
  OpBuilder builder;
  SmallVector<Operation *> dead;
};

int64_t sizeOf(Value value, int64_t dim) {
  return cast<RankedTensorType>(value.getType()).getDimSize(dim);
}

/// The dimension of a reshape's result that equals dimension `dim` of its operand; none
/// where the reshape splits the dimension or joins it with others.
std::optional<int64_t> follow(nn::ReshapeOp op, int64_t dim, bool backward) {
  auto from = cast<RankedTensorType>(op.getInput().getType()).getShape();
  auto to = op.getType().getShape();
  if (backward)
    std::swap(from, to);
  auto before = [](ArrayRef<int64_t> shape, int64_t d) {
    return std::accumulate(shape.begin(), shape.begin() + d, int64_t(1), std::multiplies<>());
  };
  for (int64_t d = 0; d < int64_t(to.size()); ++d)
    if (to[d] == from[dim] && before(to, d) == before(from, dim))
      return d;
  return std::nullopt;
}

} // namespace

Value AttentionSplitter::slice(Value value, int64_t dim, int64_t start, int64_t size) {
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape()),
      strides(type.getRank(), 1), shape(type.getShape());
  starts[dim] = start;
  limits[dim] = start + size;
  shape[dim] = size;
  return adopt(nn::SliceOp::create(
      builder, op.getLoc(), type.clone(shape), value, builder.getDenseI64ArrayAttr(starts),
      builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides)));
}

/// Reshapes a piece of the operand of `like`, whose dimension `dim` becomes `toDim`.
Value AttentionSplitter::reshape(Value value, int64_t dim, nn::ReshapeOp like, int64_t toDim) {
  SmallVector<int64_t> shape(like.getType().getShape());
  shape[toDim] = sizeOf(value, dim);
  return adopt(nn::ReshapeOp::create(builder, like.getLoc(), like.getType().clone(shape), value));
}

/// The pieces of dimension `dim`; a single one where it is not joined.
Pieces AttentionSplitter::getPieces(Value value, int64_t dim) {
  if (auto concat = value.getDefiningOp<nn::ConcatOp>(); concat && int64_t(concat.getDim()) == dim)
    return Pieces(concat.getInputs());
  if (auto transpose = value.getDefiningOp<nn::TransposeOp>()) {
    Pieces pieces = getPieces(transpose.getInput(), transpose.getPermutation()[dim]);
    if (pieces.size() < 2)
      return {value};
    for (Value &piece : pieces) {
      SmallVector<int64_t> shape(transpose.getType().getShape());
      shape[dim] = sizeOf(piece, transpose.getPermutation()[dim]);
      piece = adopt(nn::TransposeOp::create(builder, transpose.getLoc(),
                                            transpose.getType().clone(shape), piece,
                                            transpose.getPermutationAttr()));
    }
    return pieces;
  }
  if (auto reshaped = value.getDefiningOp<nn::ReshapeOp>())
    if (auto from = follow(reshaped, dim, /*backward=*/true)) {
      Pieces pieces = getPieces(reshaped.getInput(), *from);
      if (pieces.size() < 2)
        return {value};
      for (Value &piece : pieces)
        piece = reshape(piece, *from, reshaped, dim);
      return pieces;
    }
  return {value};
}

/// The lengths of the keys from `column` on. A length that ends before is not positive, and hides
/// all of these keys.
Value AttentionSplitter::getLengths(int64_t column) {
  Value lengths = op.getKvLengths();
  if (!lengths || column == 0)
    return lengths;
  auto type = RankedTensorType::get({}, builder.getI64Type());
  auto start = adopt(nn::ConstantOp::create(
      builder, op.getLoc(), DenseElementsAttr::get(type, builder.getI64IntegerAttr(column))));
  return adopt(nn::SubOp::create(builder, op.getLoc(), lengths.getType(), lengths, start));
}

/// Builds attention of the queries from `row` on over each piece of the keys, merged.
Value AttentionSplitter::attend(Value query, ArrayRef<Value> keys, ArrayRef<Value> values, int64_t row) {
  Location loc = op.getLoc();
  SmallVector<int64_t> shape(op.getResult().getType().getShape());
  int64_t rows = shape[2] = sizeOf(query, 2);
  auto type = RankedTensorType::get(shape, op.getResult().getType().getElementType());
  bool wide = type.getElementType().isF64();
  auto lseType = RankedTensorType::get(type.getShape().drop_back(),
                                       wide ? type.getElementType() : builder.getF32Type());
  int64_t longest = 0;
  for (Value key : keys)
    longest = std::max(longest, sizeOf(key, 2));
  Value out, lse;
  int64_t column = 0;
  for (auto [key, value] : llvm::zip_equal(keys, values)) {
    int64_t columns = sizeOf(key, 2);
    Value padding = op.getKeyPadding() ? slice(op.getKeyPadding(), 1, column, columns) : Value();
    Value bias = op.getBias();
    if (bias) {
      int64_t rank = cast<RankedTensorType>(bias.getType()).getRank();
      if (rank >= 2 && sizeOf(bias, rank - 2) != 1)
        bias = slice(bias, rank - 2, row, rows);
      if (sizeOf(bias, rank - 1) != 1)
        bias = slice(bias, rank - 1, column, columns);
    }
    Value dropRows = op.getDropRows() ? slice(op.getDropRows(), 2, row, rows) : Value();
    Value dropKeys = op.getDropKeys() ? slice(op.getDropKeys(), 0, column, columns) : Value();
    auto piece = adopt(nn::AttentionOp::create(
        builder, loc, type, lseType, query, key, value, padding, bias, Value(), Value(),
        getLengths(column), dropRows, dropKeys, op.getSeed(), op.getStep(), op.getScaleAttr(), nullptr, nullptr, nullptr, nullptr, op.getSoftCapAttr(),
        op.getDropoutAttr(), op.getStreamAttr()));
    if (columns < longest)
      piece->setAttr(nn::NnDialect::kWholeKeysAttr, builder.getUnitAttr());
    column += columns;
    if (!out) {
      out = piece.getResult();
      lse = piece.getLse();
      continue;
    }
    auto merged = adopt(nn::MergeAttentionOp::create(builder, loc, type, lseType, out, lse,
                                                     piece.getResult(), piece.getLse()));
    out = merged.getResult();
    lse = merged.getLse();
  }
  return out;
}

/// Makes users that slice a joined value use its pieces.
void AttentionSplitter::replace(Value whole, const Pieces &pieces, int64_t dim) {
  Value joined;
  for (OpOperand &use : llvm::make_early_inc_range(whole.getUses())) {
    Operation *user = use.getOwner();
    builder.setInsertionPoint(user);
    if (auto transpose = dyn_cast<nn::TransposeOp>(user)) {
      ArrayRef<int64_t> permutation = transpose.getPermutation();
      int64_t to = llvm::find(permutation, dim) - permutation.begin();
      Pieces moved;
      for (Value piece : pieces) {
        SmallVector<int64_t> shape(transpose.getType().getShape());
        shape[to] = sizeOf(piece, dim);
        moved.push_back(
            adopt(nn::TransposeOp::create(builder, user->getLoc(), transpose.getType().clone(shape),
                                          piece, transpose.getPermutationAttr())));
      }
      replace(transpose.getResult(), moved, to);
    } else if (auto like = dyn_cast<nn::ReshapeOp>(user); like && follow(like, dim, false)) {
      int64_t to = *follow(like, dim, false);
      Pieces moved;
      for (Value piece : pieces)
        moved.push_back(reshape(piece, dim, like, to));
      replace(like.getResult(), moved, to);
    } else if (auto cut = dyn_cast<nn::SliceOp>(user)) {
      int64_t start = cut.getStarts()[dim], limit = cut.getLimits()[dim], offset = 0;
      Value from;
      for (Value piece : pieces) {
        int64_t size = sizeOf(piece, dim);
        if (start >= offset && limit <= offset + size && cut.getStrides()[dim] == 1)
          from = piece;
        if (from)
          break;
        offset += size;
      }
      if (from) {
        SmallVector<int64_t> starts(cut.getStarts()), limits(cut.getLimits());
        starts[dim] -= offset;
        limits[dim] -= offset;
        Value taken = from;
        if (from.getType() != cut.getType())
          taken = adopt(nn::SliceOp::create(
              builder, cut.getLoc(), cut.getType(), from, builder.getDenseI64ArrayAttr(starts),
              builder.getDenseI64ArrayAttr(limits), cut.getStridesAttr()));
        cut.getResult().replaceAllUsesWith(taken);
      } else {
        use.set(joined ? joined : whole);
      }
    } else if (!joined) {
      // The other users keep the whole value.
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointAfterValue(pieces.back());
      joined = adopt(nn::ConcatOp::create(builder, op.getLoc(), whole.getType(), pieces,
                                          builder.getI64IntegerAttr(dim)));
      use.set(joined);
    } else {
      use.set(joined);
    }
    if (user->use_empty() && isa<nn::TransposeOp, nn::ReshapeOp, nn::SliceOp>(user))
      user->erase();
  }
}

bool AttentionSplitter::run() {
  // Masks by position and counts of keys refer to the whole sequence.
  if (op.getCausal() || op.getWindowLeft() || op.getWindowRight() || op.getKvLength() ||
      op.getQPositions() || op.getLse())
    return false;
  Pieces keys = getPieces(op.getKey(), 2), values = getPieces(op.getValue(), 2);
  if (keys.size() < 2 || keys.size() != values.size())
    return false;
  for (auto [key, value] : llvm::zip_equal(keys, values))
    if (sizeOf(key, 2) != sizeOf(value, 2))
      return false;
  Pieces outs;
  int64_t row = 0;
  for (Value query : getPieces(op.getQuery(), 2)) {
    outs.push_back(attend(query, keys, values, row));
    row += sizeOf(query, 2);
  }
  if (outs.size() == 1)
    op.getResult().replaceAllUsesWith(outs.front());
  else
    replace(op.getResult(), outs, 2);
  op.erase();
  return true;
}

namespace {
struct SplitJointAttentionPass
    : meshwright::impl::SplitJointAttentionPassBase<SplitJointAttentionPass> {
  using SplitJointAttentionPassBase::SplitJointAttentionPassBase;

  void runOnOperation() override {
    DecisionLog &log = DistDialect::getDecisionLog(&getContext());
    for (func::FuncOp func : getOperation().getOps<func::FuncOp>()) {
      if (func->hasAttr(DistDialect::kSpmdAttr))
        continue;
      SmallVector<nn::AttentionOp> attentions;
      func.walk([&](nn::AttentionOp op) { attentions.push_back(op); });
      for (nn::AttentionOp op : attentions) {
        Location loc = op.getLoc();
        int64_t length = sizeOf(op.getKey(), 2);
        if (AttentionSplitter(op).run())
          log.add("split-joint-attention", Outcome::Applied, loc,
                  llvm::formatv("attention over {0} keys of several sequences goes over each "
                                "for itself",
                                length)
                      .str());
      }
      // Erases joins without users.
      SmallVector<Operation *> all;
      func.walk([&](Operation *op) { all.push_back(op); });
      for (Operation *op : llvm::reverse(all))
        if (isa<nn::ConcatOp, nn::TransposeOp, nn::ReshapeOp>(op) && op->use_empty())
          op->erase();
    }
  }
};
} // namespace
