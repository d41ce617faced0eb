//===- ProductFusion.cpp - ops beside a product in its kernel -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/ProductFusion.h"

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace meshwright::lower {

nn::LinearOp findLinear(const KernelRegion &region) {
  nn::LinearOp found;
  for (Operation *op : region.ops)
    if (auto linear = dyn_cast<nn::LinearOp>(op)) {
      if (found)
        return nullptr;
      found = linear;
    }
  return found;
}

bool isEpilogueOp(Operation *op, RankedTensorType product) {
  if (op->getNumResults() != 1)
    return false;
  if (isFree(op))
    return !isa<nn::IotaOp>(op);
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  return (op->hasTrait<dist::View>() || op->hasTrait<dist::Elementwise>()) &&
         type && type.getNumElements() == product.getNumElements() && type.getRank() > 0 &&
         product.getRank() > 0 && type.getShape().back() == product.getShape().back();
}

bool isPrologueOp(Operation *op, RankedTensorType input) {
  // Each thread computes it, and repeats it for each block of columns.
  return isEpilogueOp(op, input) && (isFree(op) || isCheap(op));
}

/// Returns true if the kernel of a region computes a free op of it for free: it has all of a
/// padding mask, not only the end of it. Positions may read a run-time size.
static bool isFreeIn(const KernelRegion &region, Operation *op) {
  if (isa<dist::PositionsOp>(op))
    return true;
  return isFree(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
           Operation *producer = region.getDefiningOp(operand);
           return producer && isFree(producer);
         });
}

/// The plan of a row kernel that computes the elements of a matrix in order, without
/// reductions. Returns nothing if there is no such plan.
static std::optional<RowPiece> planElements(const KernelRegion &region, int64_t columns,
                                            const KernelTarget &target) {
  RowPlanResult plan = target.planRows(region);
  if (!plan.plan || plan.plan->isScalar || plan.plan->pieces.size() != 1)
    return std::nullopt;
  RowPiece &piece = plan.plan->pieces.front();
  bool isDense = piece.statistics.empty() && piece.space.end == columns &&
                 llvm::none_of(piece.stores, [](const Store &store) { return store.perRow; }) &&
                 llvm::all_of(piece.cuts, [](auto &entry) { return entry.second.empty(); });
  if (!isDense)
    return std::nullopt;
  return std::move(piece);
}

/// Ops that the product's input depends on.
static llvm::SetVector<Operation *> findAhead(const KernelRegion &region, nn::LinearOp linear) {
  llvm::SetVector<Operation *> ahead;
  if (Operation *op = region.getDefiningOp(linear.getInput()))
    ahead.insert(op);
  for (size_t i = 0; i < ahead.size(); ++i)
    for (Value operand : ahead[i]->getOperands())
      if (Operation *op = region.getDefiningOp(operand))
        ahead.insert(op);
  return ahead;
}

/// Returns nothing if the ops before the product cannot be computed while its input is copied.
/// They may read only one buffer of the input's size, because they read it several times.
static std::optional<ProductPrologue> planPrologue(const KernelRegion &region, nn::LinearOp linear,
                                            const KernelTarget &target) {
  auto input = cast<RankedTensorType>(linear.getInput().getType());
  llvm::SetVector<Operation *> ahead = findAhead(region, linear);
  ProductPrologue prologue;
  prologue.region.inputs = region.inputs;
  // The value before the views, which join dimensions of the rows.
  prologue.made = linear.getInput();
  while (auto op = dyn_cast_or_null<nn::ReshapeOp>(region.getDefiningOp(prologue.made))) {
    auto type = cast<RankedTensorType>(op.getInput().getType());
    if (type.getRank() == 0 || type.getShape().back() != input.getShape().back())
      break;
    prologue.made = op.getInput();
  }
  if (!region.getDefiningOp(prologue.made))
    return std::nullopt;
  prologue.region.outputs = {prologue.made};
  for (Operation *op : region.ops) {
    if (!ahead.contains(op))
      continue;
    if (!isPrologueOp(op, input) || (isFree(op) && !isFreeIn(region, op)))
      return std::nullopt;
    prologue.region.add(op);
    for (Value operand : op->getOperands()) {
      auto type = cast<RankedTensorType>(operand.getType());
      if (region.getDefiningOp(operand) || type.getNumElements() != input.getNumElements())
        continue;
      if (prologue.source && prologue.source != operand)
        return std::nullopt;
      prologue.source = operand;
    }
  }
  if (!prologue.source)
    return std::nullopt;
  Type type = getElementTypeOrSelf(prologue.source.getType());
  std::optional<RowPiece> piece = planElements(prologue.region, input.getShape().back(), target);
  if (!piece || !(type.isF32() || type.isBF16()))
    return std::nullopt;
  prologue.piece = std::move(*piece);
  return prologue;
}

/// The plan of the ops after the product. Returns nothing if they cannot be an epilogue.
static std::optional<RowPiece> planEpilogue(const KernelRegion &region, nn::LinearOp linear,
                                            const KernelTarget &target) {
  auto product = cast<RankedTensorType>(linear.getType());
  llvm::SetVector<Operation *> ahead = findAhead(region, linear);
  KernelRegion rest;
  rest.inputs.assign(region.inputs.begin(), region.inputs.end());
  rest.inputs.push_back(linear.getResult());
  rest.outputs = region.outputs;
  for (Operation *op : region.ops) {
    if (op == linear || (ahead.contains(op) && !isFree(op)))
      continue;
    if (!isEpilogueOp(op, product) || (isFree(op) && !isFreeIn(region, op)))
      return std::nullopt;
    rest.add(op);
    auto shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
    for (Value operand : op->getOperands()) {
      // The buffers of the product's operands have other forms.
      if (llvm::is_contained(linear->getOperands(), operand) && operand != linear.getBias())
        return std::nullopt;
      Operation *producer = region.getDefiningOp(operand);
      if (producer && ahead.contains(producer) && !isFree(producer))
        return std::nullopt;
      // Values of the region are in registers, so they do not broadcast.
      if (producer && !isFree(producer) && !op->hasTrait<dist::View>() &&
          cast<RankedTensorType>(operand.getType()).getShape() != shape)
        return std::nullopt;
    }
  }
  for (Value output : region.outputs)
    if (auto op = region.getDefiningOp(output);
        !op || ahead.contains(op) || (op != linear && isFree(op)))
      return std::nullopt;
  return planElements(rest, product.getShape().back(), target);
}

std::optional<ProductFusion> planFusion(const KernelRegion &region, nn::LinearOp linear,
                                        const KernelTarget &target) {
  ProductFusion fusion;
  fusion.source = linear.getInput();
  if (region.getDefiningOp(linear.getInput())) {
    if (!(fusion.prologue = planPrologue(region, linear, target)))
      return std::nullopt;
    fusion.source = fusion.prologue->source;
  }
  if (!llvm::equal(region.outputs, ValueRange(linear.getResult())) &&
      !(fusion.epilogue = planEpilogue(region, linear, target)))
    return std::nullopt;
  auto isReadOnce = [&](Operation *op) {
    return op == linear || !llvm::is_contained(op->getOperands(), fusion.source) ||
           (fusion.prologue && llvm::is_contained(fusion.prologue->region.ops, op));
  };
  bool isKnown = llvm::is_contained(region.inputs, fusion.source) &&
                 fusion.source != linear.getBias() && llvm::all_of(region.ops, isReadOnce);
  return isKnown ? std::make_optional(std::move(fusion)) : std::nullopt;
}

void FusedRows::start(RowEmitter &row, const RowPiece &piece, const ProductPoint &point) {
  Builder &b = row.builder;
  for (auto [value, buffer] : inputs)
    row.setBuffer(value, buffer);
  // The row's index in each dimension.
  SmallVector<Value> indices(piece.space.rows.size());
  Value left = point.row;
  bool isOnly = llvm::count_if(piece.space.rows, [](int64_t size) { return size != 1; }) <= 1;
  for (size_t d = indices.size(); d-- > 0;) {
    if (piece.space.rows[d] == 1)
      continue;
    Value size = emitIndex(b, piece.space.rows[d]);
    indices[d] = isOnly ? left : arith::RemUIOp::create(b, left, size);
    left = arith::DivUIOp::create(b, left, size);
  }
  row.startRow(piece.space, indices);
  row.startColumns(0, piece.space.end, point.column, point.count, /*anchor=*/nullptr);
}

Value FusedRows::emitPrologue(Builder &b, Value elements, const ProductPoint &point) {
  const ProductPrologue &prologue = *fusion.prologue;
  RowEmitter row(b, prologue.region);
  start(row, prologue.piece, point);
  // Elements are consecutive in both buffers.
  const Access &access = prologue.piece.stores.front().from;
  row.setElement(prologue.source, access,
                 emitCast(b, elements, getElementTypeOrSelf(prologue.source.getType())));
  return emitCast(b, row.emitVector(prologue.made, access), b.getF32Type());
}

void FusedRows::emitEpilogue(Builder &b, Value sums, const ProductPoint &point) {
  const RowPiece &piece = *fusion.epilogue;
  RowEmitter row(b, region);
  start(row, piece, point);
  if (point.count < point.lanes)
    sums = vector::ExtractStridedSliceOp::create(b, sums, int64_t(0), point.count, int64_t(1));
  auto add = [&](Value value) {
    Access access;
    access.rows.assign(piece.space.rows.size(), 0);
    access.column = 1;
    Value other = row.emitVector(value, access);
    sums = arith::AddFOp::create(b, sums, emitCast(b, other, b.getF32Type()));
  };
  if (linear.getBias())
    add(linear.getBias());
  row.setElement(linear.getResult(), piece.stores.front().from,
                 emitCast(b, sums, getElementTypeOrSelf(linear.getType())));
  for (const Store &store : piece.stores)
    row.store(row.emit(store.value, store.from), outputs[store.output], store.to);
}

} // namespace meshwright::lower
