//===- ReplaceRows.cpp - replace the rows of a state that change ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/Builders.h"

namespace meshwright {
#define GEN_PASS_DEF_REPLACEROWSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Returns true if a piece of a concatenation along `dim`, which begins at row `first`, is these
/// rows of `whole`.
static bool isAtItsRows(Value piece, Value whole, int64_t dim, int64_t first) {
  auto slice = piece.getDefiningOp<nn::SliceOp>();
  if (!slice || slice.getInput() != whole)
    return false;
  ArrayRef<int64_t> sizes = cast<RankedTensorType>(piece.getType()).getShape();
  ArrayRef<int64_t> all = cast<RankedTensorType>(whole.getType()).getShape();
  for (int64_t d = 0; d < int64_t(all.size()); ++d)
    if (slice.getStarts()[d] != (d == dim ? first : 0) || slice.getStrides()[d] != 1 ||
        (d != dim && sizes[d] != all[d]))
      return false;
  return true;
}

/// The operand of a concatenation that is part of a state of the same type; null if none is.
static Value findState(nn::ConcatOp concat, StringAttr state) {
  for (Value piece : concat.getInputs())
    if (auto slice = piece.getDefiningOp<nn::SliceOp>();
        slice && slice.getInput().getType() == concat.getType() &&
        rt::getState(rt::getBuffer(slice.getInput())) == state)
      return slice.getInput();
  return nullptr;
}

static void replaceRows(nn::ConcatOp concat, StringAttr state) {
  Value whole = findState(concat, state);
  if (!whole)
    return;
  int64_t dim = concat.getDim(), first = 0;
  SmallVector<int64_t> rows;
  SmallVector<Value> pieces;
  for (Value piece : concat.getInputs()) {
    int64_t size = cast<RankedTensorType>(piece.getType()).getDimSize(dim);
    if (!isAtItsRows(piece, whole, dim, first)) {
      pieces.push_back(piece);
      for (int64_t row = first; row < first + size; ++row)
        rows.push_back(row);
    }
    first += size;
  }
  if (rows.empty() || 2 * int64_t(rows.size()) > first)
    return;
  OpBuilder builder(concat);
  Value source = pieces.front();
  if (pieces.size() > 1) {
    SmallVector<int64_t> shape(concat.getType().getShape());
    shape[dim] = rows.size();
    source = nn::ConcatOp::create(builder, concat.getLoc(), concat.getType().clone(shape), pieces,
                                  uint64_t(dim));
  }
  auto type = RankedTensorType::get(int64_t(rows.size()), builder.getI64Type());
  Value indices = nn::ConstantOp::create(builder, concat.getLoc(), type,
                                         DenseIntElementsAttr::get(type, rows));
  auto copy = nn::IndexCopyOp::create(builder, concat.getLoc(), concat.getType(), whole, indices,
                                      source, uint64_t(dim));
  copy->setDiscardableAttrs(concat->getDiscardableAttrDictionary());
  SmallVector<Value> old(concat.getInputs());
  concat.replaceAllUsesWith(copy.getResult());
  concat.erase();
  for (Value piece : old)
    if (piece.use_empty() && piece.getDefiningOp<nn::SliceOp>())
      piece.getDefiningOp()->erase();
}

namespace {

struct ReplaceRowsPass : meshwright::impl::ReplaceRowsPassBase<ReplaceRowsPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal() || !func.getBody().hasOneBlock())
      return;
    for (unsigned i = 0; i < func.getNumResults(); ++i) {
      auto state = func.getResultAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr);
      Value value = func.front().getTerminator()->getOperand(i);
      auto concat = state ? rt::getBuffer(value).getDefiningOp<nn::ConcatOp>() : nn::ConcatOp();
      if (concat)
        replaceRows(concat, state);
    }
  }
};

} // namespace
