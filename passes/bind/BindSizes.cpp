//===- BindSizes.cpp - run-time sizes in ops that count elements ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Sizes.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/bind/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_BINDSIZESPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::ReduceKind;

namespace {

/// Rewrites the ops of one function.
class SizeBinder {
public:
  explicit SizeBinder(func::FuncOp func) : func(func) {}

  LogicalResult run();

private:
  /// The run-time size of a dimension of a value; null if it has none.
  FailureOr<Value> getSize(Value value, int64_t dim, const FactorAnalysis &factors);
  LogicalResult bind(nn::ReduceOp op, const FactorAnalysis &factors);
  LogicalResult bind(nn::CumsumOp op, const FactorAnalysis &factors);
  template <typename OpT> LogicalResult bindKeys(OpT op, const FactorAnalysis &factors);

  func::FuncOp func;
};

} // namespace

FailureOr<Value> SizeBinder::getSize(Value value, int64_t dim, const FactorAnalysis &factors) {
  for (int cls : factors.getClasses(value)[dim])
    if (FlatSymbolRefAttr name = factors.getRuntimeSize(cls)) {
      FailureOr<BlockArgument> size = nn::getSize(func, name.getAttr(), value.getLoc());
      if (failed(size))
        return failure();
      return Value(*size);
    }
  return Value();
}

/// A mean is a sum, divided by the number of true elements.
LogicalResult SizeBinder::bind(nn::ReduceOp op, const FactorAnalysis &factors) {
  if (op.getKind() != ReduceKind::Mean)
    return success();
  OpBuilder builder(op);
  nn::Writer w(builder, op.getLoc());
  Type type = elementOf(op.getInput()), wide = getComputeType(type);
  Value count;
  int64_t others = 1;
  for (int64_t dim : op.getDims()) {
    FailureOr<Value> size = getSize(op.getInput(), dim, factors);
    if (failed(size))
      return failure();
    if (!*size) {
      others *= op.getInput().getType().getDimSize(dim);
      continue;
    }
    count = count ? w.mul(count, *size) : *size;
  }
  if (!count)
    return success();
  Value sum = w.reduce(ReduceKind::Sum, w.cast(op.getInput(), wide), op.getDims(), op.getKeepDims());
  count = w.cast(count, wide);
  if (others != 1)
    count = w.scale(count, double(others));
  op.getResult().replaceAllUsesWith(w.cast(w.div(sum, count), type));
  op.erase();
  return success();
}

/// Running sums go on behind the true elements, over zeros. So does their derivative, which runs from
/// the other end and would begin in padding.
LogicalResult SizeBinder::bind(nn::CumsumOp op, const FactorAnalysis &factors) {
  ArrayRef<int> classes = factors.getClasses(op.getInput())[op.getDim()];
  FlatSymbolRefAttr name = classes.empty() ? nullptr : factors.getRuntimeSize(classes.front());
  if (!name)
    return success();
  OpBuilder builder(op);
  SmallVector<StringRef> names(op.getType().getRank(), "");
  names[op.getDim()] = name.getValue();
  ArrayAttr sizes = builder.getStrArrayAttr(names);
  op.getInputMutable().assign(nn::UncutOp::create(builder, op.getLoc(), op.getType(), op.getInput(), sizes));
  builder.setInsertionPointAfter(op);
  auto cut = nn::CutOp::create(builder, op.getLoc(), op.getType(), op.getResult(), sizes);
  op.getResult().replaceAllUsesExcept(cut.getResult(), cut);
  return success();
}

/// No query sees a key behind the run-time size.
template <typename OpT>
LogicalResult SizeBinder::bindKeys(OpT op, const FactorAnalysis &factors) {
  FailureOr<Value> size = getSize(op.getKey(), 2, factors);
  if (failed(size) || !*size)
    return failed(size) ? failure() : success();
  OpBuilder builder(op);
  nn::Writer w(builder, op.getLoc());
  int64_t batch = shapeOf(op.getQuery())[0], keys = shapeOf(op.getKey())[2];
  // Lengths count positions, which the keys may have of their own. Then the partitioner hides keys
  // by the mask of each.
  if (op.getKvPositions()) {
    if (!op.getKeyPadding())
      op.getKeyPaddingMutable().assign(
          w.fill(1, RankedTensorType::get({batch, keys}, builder.getI1Type())));
    return success();
  }
  Value lengths = op.getKvLengths();
  auto argument = cast<BlockArgument>(*size);
  auto name = func.getArgAttrOfType<StringAttr>(argument.getArgNumber(), NnDialect::kSizeAttr);
  if (lengths && nn::isAtMostSize(lengths, name, [](Value value) { return value; }))
    return success();
  Value length = w.broadcast(w.reshape(*size, {1}), {batch});
  if (lengths)
    length = w.binary<nn::MinimumOp>(lengths, length);
  op.getKvLengthsMutable().assign(length);
  return success();
}

LogicalResult SizeBinder::run() {
  FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
  if (failed(factors))
    return failure();
  SmallVector<Operation *> ops;
  for (Operation &op : func.getBody().front())
    ops.push_back(&op);
  for (Operation *op : ops) {
    if (auto reduce = dyn_cast<nn::ReduceOp>(op); reduce && failed(bind(reduce, *factors)))
      return failure();
    if (auto sums = dyn_cast<nn::CumsumOp>(op); sums && failed(bind(sums, *factors)))
      return failure();
    if (auto attention = dyn_cast<nn::AttentionOp>(op);
        attention && failed(bindKeys(attention, *factors)))
      return failure();
    if (auto gradient = dyn_cast<nn::AttentionGradOp>(op);
        gradient && failed(bindKeys(gradient, *factors)))
      return failure();
  }
  return success();
}

namespace {
struct BindSizesPass : meshwright::impl::BindSizesPassBase<BindSizesPass> {
  void runOnOperation() override {
    bool changed = false;
    for (func::FuncOp func : getGlobalFunctions(getOperation())) {
      bool hasSizes = llvm::any_of(func.getArguments(), [&](BlockArgument arg) {
        return func.getArgAttr(arg.getArgNumber(), NnDialect::kSizesAttr) ||
               func.getArgAttr(arg.getArgNumber(), NnDialect::kSizeAttr);
      });
      if (!hasSizes)
        continue;
      changed = true;
      if (failed(SizeBinder(func).run()))
        return signalPassFailure();
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace
