//===- MaskPadding.cpp - padding that contractions would read -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Analysis/LayoutTransfer.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

const Layout *Partitioner::derive(Value local) {
  Block *block = builder.getInsertionBlock();
  if (derived.empty())
    for (auto [arg, argType] : llvm::zip_equal(block->getArguments(), func.getArgumentTypes())) {
      const Local &own = getState(func.getArgument(arg.getArgNumber())).local;
      Layout layout = getLayout(func.getArgument(arg.getArgNumber()), own.sharding);
      for (DimLayout &dim : layout.dims)
        for (LayoutFactor &factor : dim.factors)
          factor.padding = Padding::Zero;
      derived.try_emplace(arg, std::move(layout));
    }
  // Everything written since the last time, in order.
  Operation *op =
      derivedTo ? derivedTo->getNextNode() : (block->empty() ? nullptr : &block->front());
  for (; op; op = op->getNextNode()) {
    SmallVector<Layout, 3> operands;
    for (Value operand : op->getOperands())
      operands.push_back(derived.find(operand)->second);
    SmallVector<Layout, 1> readings;
    auto results = transfer(op, operands, mesh, [&] { return op->emitOpError(); }, &readings);
    if (failed(results))
      return nullptr;
    // A reshape may be read in several ways: the one that was meant counts.
    if (auto meant = known.find(op->getNumResults() ? op->getResult(0) : Value());
        meant != known.end() && !isLayout((*results)[0], meant->second, mesh))
      for (Layout &reading : readings)
        if (isLayout(reading, meant->second, mesh)) {
          (*results)[0] = reading;
          break;
        }
    for (auto [result, layout] : llvm::zip_equal(op->getResults(), *results))
      derived[result] = std::move(layout);
    derivedTo = op;
  }
  auto it = derived.find(local);
  return it == derived.end() ? nullptr : &it->second;
}

Value Partitioner::mask(Value local, const Layout &layout, int dim, Location loc) {
  auto type = cast<RankedTensorType>(local.getType());
  const DimLayout &factors = layout.dims[dim];
  // Each factor gets a dimension of its own while it is masked.
  SmallVector<int64_t> shape(type.getShape().take_front(dim));
  for (const LayoutFactor &factor : factors.factors)
    shape.push_back(factor.getLocalSize());
  llvm::append_range(shape, type.getShape().drop_front(dim + 1));
  Value value = local;
  auto split = RankedTensorType::get(shape, type.getElementType());
  if (split != type)
    value = nn::ReshapeOp::create(builder, loc, split, value);
  for (auto [i, factor] : llvm::enumerate(factors.factors))
    if (factor.isPadded())
      value = MaskPaddingOp::create(
          builder, loc, value.getType(), value,
          getAxesAttr(builder.getContext(), factor.axes, mesh), builder.getI64IntegerAttr(dim + i),
          builder.getI64IntegerAttr(factor.size), builder.getF64FloatAttr(0.0));
  if (split != type)
    value = nn::ReshapeOp::create(builder, loc, type, value);
  return value;
}

LogicalResult Partitioner::maskContraction(Operation *op, const Assignment &assignment,
                                           MutableArrayRef<Value> operands) {
  if (!isa<nn::LinearOp, nn::MatmulOp, nn::ReduceOp>(op))
    return success();
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  bool isPadded = false;
  for (auto [i, factor] : llvm::enumerate(opFactors.rule.factors))
    if (factor.kind == FactorKind::Contracted)
      for (auto [leaf, axes] : llvm::zip_equal(opFactors.leaves[i], assignment[i]))
        isPadded |= !axes.empty() && padded[leaf] != factors.getSize(leaf);
  if (!isPadded)
    return success();

  // What stands in the padding of each operand's contracted dimension.
  struct Read {
    SmallVector<int, 2> dims;
    Padding padding = Padding::Zero;
  };
  SmallVector<Read, 2> reads(operands.size());
  for (auto [i, dims] : llvm::enumerate(ArrayRef(opFactors.rule.operands)))
    for (auto [d, dim] : llvm::enumerate(dims))
      for (int factor : dim) {
        if (i >= operands.size() || opFactors.rule.factors[factor].kind != FactorKind::Contracted)
          continue;
        const Layout *layout = derive(operands[i]);
        if (!layout)
          return failure();
        reads[i].dims.push_back(d);
        for (const LayoutFactor &f : layout->dims[d].factors)
          if (f.isPadded())
            reads[i].padding = std::max(reads[i].padding, f.padding);
      }
  auto maskOperand = [&](size_t i) {
    for (int dim : reads[i].dims) {
      Layout layout = *derive(operands[i]);
      if (layout.dims[dim].isPadded())
        operands[i] = mask(operands[i], layout, dim, op->getLoc());
    }
    reads[i].padding = Padding::Zero;
  };
  bool anyZero = false;
  for (auto [i, read] : llvm::enumerate(reads)) {
    if (read.dims.empty())
      continue;
    if (read.padding != Padding::Zero && read.padding != Padding::Finite)
      maskOperand(i);
    anyZero |= read.padding == Padding::Zero;
  }
  if (!anyZero)
    maskOperand(0);
  return success();
}
