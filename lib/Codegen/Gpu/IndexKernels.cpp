//===- IndexKernels.cpp - rows and elements by index, on GPUs -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A thread moves some consecutive elements of a row. An index out of range writes its position to
// the fault word of the launch, and gives zeros.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "meshwright/dialects/Nn/TableRows.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <limits>
#include <numeric>

using namespace mlir;

namespace meshwright::lower {

namespace {
/// Data [outer, size, inner], indices [count], or [outer, count, inner] if there is one for each
/// element, and a result [outer, count, inner]. Data has the rows from `offset` on of a table of
/// `total` rows, and other rows of the table are zeros.
struct Gather {
  Value data, indices, offset;
  int64_t outer, size, inner, count, total;
  bool isElementwise;
};
} // namespace

static std::optional<Gather> getGather(Operation *op) {
  auto shapeOf = [](Value value) { return cast<RankedTensorType>(value.getType()).getShape(); };
  auto along = [&](Value data, Value indices, int64_t dim, bool isElementwise) {
    ArrayRef<int64_t> shape = shapeOf(data);
    int64_t count = isElementwise ? shapeOf(indices)[dim]
                                  : ShapedType::getNumElements(shapeOf(indices));
    return Gather{data,
                  indices,
                  Value(),
                  ShapedType::getNumElements(shape.take_front(dim)),
                  shape[dim],
                  ShapedType::getNumElements(shape.drop_front(dim + 1)),
                  count,
                  shape[dim],
                  isElementwise};
  };
  if (auto gather = dyn_cast<nn::GatherOp>(op))
    return along(gather.getData(), gather.getIndices(), gather.getDim(), false);
  if (auto take = dyn_cast<nn::TakeAlongOp>(op))
    return along(take.getData(), take.getIndices(), take.getDim(), true);
  auto embedding = dyn_cast<nn::EmbeddingOp>(op);
  if (!embedding)
    return std::nullopt;
  Gather gather = along(embedding.getTable(), embedding.getIds(), 0, false);
  gather.offset = embedding.getOffset();
  gather.total = nn::getTableRows(embedding).value_or(std::numeric_limits<int64_t>::max());
  return gather;
}

static Value loadIndex(Builder &b, Value buffer, Value at) {
  Value value = memref::LoadOp::create(b, buffer, at);
  return emitCast(b, value, b.getI64Type());
}

/// Divides `value`, and returns the remainder.
static Value split(Builder &b, Value &value, int64_t size) {
  Value by = emitIndex(b, size), rest = arith::RemUIOp::create(b, value, by);
  value = arith::DivUIOp::create(b, value, by);
  return rest;
}

/// Emits the item: `width` elements of the result. `arguments` are the data, the indices, the
/// offset if there is one, the result and the fault word.
static void emitGather(Builder &b, const Gather &gather, Value item, int64_t width,
                       ValueRange arguments) {
  Value data = arguments[0], indices = arguments[1], fault = arguments.back();
  Value result = arguments[arguments.size() - 2];
  Value to = arith::MulIOp::create(b, item, emitIndex(b, width)), rest = to;
  Value column = split(b, rest, gather.inner), outer = rest;
  Value row = split(b, outer, gather.count);
  Value position = gather.isElementwise ? to : row;
  Value index = loadIndex(b, indices, position);
  auto isBelow = [&](Value value, int64_t bound) -> Value {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, value,
                                 arith::ConstantOp::create(b, b.getI64IntegerAttr(bound)));
  };
  Value isInside = isBelow(index, gather.total);
  {
    OpBuilder::InsertionGuard guard(b);
    Value isFault = arith::XOrIOp::create(b, isInside, emitConstant(b, b.getI1Type(), 1));
    b.setInsertionPointToStart(scf::IfOp::create(b, isFault).thenBlock());
    Value word = arith::IndexCastOp::create(b, b.getI64Type(), position);
    memref::AtomicRMWOp::create(b, arith::AtomicRMWKind::minu, word, fault, emitIndex(b, 0));
  }
  if (gather.offset) {
    index = arith::SubIOp::create(b, index, loadIndex(b, arguments[2], emitIndex(b, 0)));
    isInside = arith::AndIOp::create(b, isInside, isBelow(index, gather.size));
  } else if (gather.total > gather.size) {
    isInside = arith::AndIOp::create(b, isInside, isBelow(index, gather.size));
  }
  auto type = VectorType::get(width, cast<MemRefType>(data.getType()).getElementType());
  auto choice = scf::IfOp::create(b, type, isInside, /*withElseRegion=*/true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    Value from = arith::MulIOp::create(b, outer, emitIndex(b, gather.size));
    from = arith::AddIOp::create(b, from,
                                 arith::IndexCastOp::create(b, b.getIndexType(), index));
    from = arith::MulIOp::create(b, from, emitIndex(b, gather.inner));
    from = arith::AddIOp::create(b, from, column);
    scf::YieldOp::create(b, vector::LoadOp::create(b, type, data, from).getResult());
    b.setInsertionPointToStart(choice.elseBlock());
    scf::YieldOp::create(b, emitConstant(b, type, 0));
  }
  vector::StoreOp::create(b, choice.getResult(0), result, to);
}

std::optional<KernelInfo> GpuKernelBuilder::buildIndices(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1)
    return std::nullopt;
  std::optional<Gather> gather = getGather(&*ops.begin());
  if (!gather)
    return std::nullopt;
  constexpr int64_t threads = 128;
  Value result = launch.getResult(0);
  int64_t count = cast<RankedTensorType>(result.getType()).getNumElements();
  int64_t bytes = count ? getBytes(result) / count : 1;
  // Each element of a take_along has an index of its own.
  int64_t width = gather->isElementwise ? 1 : std::gcd(gather->inner, 16 / bytes);
  int64_t items = count / std::max<int64_t>(width, 1);
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs = {gather->data, gather->indices};
  if (gather->offset)
    info.inputs.push_back(gather->offset);
  info.items = llvm::divideCeil(items, threads);
  info.grain = threads;
  info.bytes = 2 * getBytes(result) + getBytes(gather->indices);
  info.checksIndices = true;
  func::FuncOp kernel = begin(launch, info.inputs, /*sharedBytes=*/0, threads, /*hasFault=*/true);
  Builder b = Builder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  if (items > 0) {
    OpBuilder::InsertionGuard guard(b);
    Value item = emitItem(b, info.items, threads);
    Value exists =
        arith::CmpIOp::create(b, arith::CmpIPredicate::ult, item, emitIndex(b, items));
    b.setInsertionPointToStart(scf::IfOp::create(b, exists).thenBlock());
    emitGather(b, *gather, item, width, kernel.getArguments());
  }
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
