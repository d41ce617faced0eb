//===- ThinProduct.cpp - products of few rows on GPUs ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A product of few rows takes as long as its right operand takes from memory. So a block computes
// few columns, all rows of them, and its warps share the sum: many blocks, and many bytes on their
// way at a time.
//
// With g = lane / 4 and t = lane % 4, a lane reads 16 bytes of row g of an operand, piece t of 64
// consecutive bytes. Nothing passes through shared memory, because these are fragments of mma.sync
// as they are: both operands number the summed elements in the same way, and a sum has any order.
// For f32 the lane multiplies its piece of a column by the same piece of each row, and four lanes
// add up.
//
// Of rows of experts a block has few of one expert.
//
// At the end each warp writes its sums to shared memory, and each thread adds up some of them, in
// the order of the warps.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuProduct.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

/// The bytes that a lane reads at a time, and the rows and pieces of a warp.
constexpr int64_t kPieceBytes = 16, kGroups = 8, kPieces = 4;
/// More rows would be more multiplications for each byte of f32 than a GPU has.
constexpr int64_t kMostRowsOfF32 = 8;

static int64_t getBytes(Type element) { return element.getIntOrFloatBitWidth() / 8; }

bool isThinProduct(const MatrixProduct &product) {
  int64_t mostRows = product.hasRowsOfExperts() ? 16 : 64;
  int64_t bytes = getBytes(product.getElement());
  auto isWhole = [&](const ProductFactor &factor) {
    return factor.sumIsInner && getAlignment(factor.value) % kPieceBytes == 0;
  };
  return product.m > 0 && product.n > 0 && product.k > 0 && bytes <= 4 &&
         product.getRowsOfMatrix() <= (bytes == 4 ? kMostRowsOfF32 : mostRows) &&
         product.k * bytes % kPieceBytes == 0 && isWhole(product.lhs) && isWhole(product.rhs);
}

namespace {
class ThinProduct : public ProductEmitter {
public:
  ThinProduct(const MatrixProduct &product, FusedRows *epilogue);

  int64_t getNumBlocks() const override {
    int64_t matrices = product.getNumMatrices();
    if (product.hasRowsOfExperts())
      matrices = getNumExpertTiles(product.m, matrices, tileRows);
    return matrices * tiles;
  }
  int64_t getNumThreads() const override { return warps * Chip::warpSize; }
  int64_t getSharedBytes() const override { return warps * rows * columns * 4; }
  void emit(func::FuncOp kernel) override;

private:
  /// Rows 8 i + g of an operand, one i for each number here: the element of the operand's buffer at
  /// which this lane's pieces begin.
  SmallVector<Value> getLines(const ProductFactor &factor, Value first, Value end, int64_t count);
  /// This lane's piece of each of the lines, or zeros where `exists` is false.
  SmallVector<Value> read(Value buffer, ValueRange lines, Value at, Value exists);
  SmallVector<Value> multiply(ArrayRef<Value> left, ArrayRef<Value> right, ValueRange sums);
  /// The sums of this lane, over the steps of its warp.
  SmallVector<Value> emitSums(func::FuncOp kernel);
  /// Where a warp's sum of a row and a column of a group is in shared memory. Groups of columns
  /// change order from row to row, so that neither four rows of a group nor whole rows have bank
  /// conflicts.
  Value getSumIndex(Value row, Value rightGroup, Value column);
  void writeSums(SmallVector<Value> sums, Value shared);
  void storeSums(Value shared);

  bool usesMma;
  /// Elements of a piece, and of the sum that a warp reads at a time; the times it does so before
  /// it multiplies.
  int64_t piece, step, turns = 1;
  /// The rows of a block. Groups of 8 rows, and of 8 columns of it. The rows and columns of its
  /// sums in shared memory.
  int64_t tileRows, leftGroups, rightGroups, rows, columns;
  int64_t warps, tiles;
  Value thread, warp, group, inGroup, firstColumn;
};
} // namespace

ThinProduct::ThinProduct(const MatrixProduct &given, FusedRows *epilogue)
    : ProductEmitter(given, epilogue) {
  usesMma = getBytes(element) == 2;
  piece = kPieceBytes / getBytes(element);
  step = piece * kPieces;
  tileRows = product.m;
  if (product.hasRowsOfExperts())
    tileRows =
        std::min<int64_t>(tileRows, product.getRowsOfMatrix() > kGroups ? 2 * kGroups : kGroups);
  leftGroups = llvm::divideCeil(tileRows, kGroups);
  rows = usesMma ? leftGroups * kGroups : tileRows;
  // Blocks of more columns read the left operand less often, but need registers.
  rightGroups = std::min<int64_t>(llvm::PowerOf2Ceil(leftGroups), leftGroups > 4 ? 2 : 4);
  columns = rightGroups * kGroups;
  tiles = llvm::divideCeil(product.n, columns);
  // Registers for the pieces on their way, beside those of the sums.
  constexpr int64_t mostRegisters = 104, mostTurns = 8;
  int64_t sums = usesMma ? llvm::divideCeil(leftGroups, 2) * rightGroups * 4 : tileRows;
  int64_t pieces = ((usesMma ? leftGroups : tileRows) + rightGroups) * 4;
  while (turns < mostTurns && 2 * turns * pieces + sums <= mostRegisters &&
         2 * turns * step <= product.k)
    turns *= 2;
  int64_t mostWarps = std::min<int64_t>(8, kMostStaticShared / (rows * columns * 4));
  warps = std::min(mostWarps, int64_t(llvm::divideCeil(product.k, turns * step)));
}

SmallVector<Value> ThinProduct::getLines(const ProductFactor &factor, Value first, Value end,
                                         int64_t count) {
  SmallVector<Value> lines;
  Value base = getBase(factor);
  for (int64_t i = 0; i < count; ++i) {
    // Lanes beyond the end read the last row again. Its products are not stored.
    Value row = min(add(add(first, group), i * kGroups), sub(end, getIndex(1)));
    lines.push_back(add(add(base, mul(row, product.k)), mul(inGroup, piece)));
  }
  return lines;
}

SmallVector<Value> ThinProduct::read(Value buffer, ValueRange lines, Value at, Value exists) {
  auto type = VectorType::get(piece, stored);
  auto load = [&] {
    SmallVector<Value> pieces;
    for (Value line : lines)
      pieces.push_back(vector::LoadOp::create(b, type, buffer, add(line, at)));
    return pieces;
  };
  if (!exists)
    return load();
  return choose(exists, load,
                [&] { return SmallVector<Value>(lines.size(), emitConstant(b, type, 0)); });
}

SmallVector<Value> ThinProduct::multiply(ArrayRef<Value> left, ArrayRef<Value> right,
                                         ValueRange sums) {
  SmallVector<Value> next(sums);
  if (!usesMma) {
    for (auto [row, sum] : llvm::enumerate(next))
      for (int64_t i = 0; i < piece; ++i) {
        Value a = vector::ExtractOp::create(b, left[row], i);
        sum = math::FmaOp::create(b, a, vector::ExtractOp::create(b, right[0], i), sum);
      }
    return next;
  }
  auto split = [&](ArrayRef<Value> pieces) {
    SmallVector<SmallVector<Value>> words(pieces.size());
    for (auto [i, value] : llvm::enumerate(pieces)) {
      Value all = vector::BitCastOp::create(b, VectorType::get(4, b.getI32Type()), value);
      for (int64_t word = 0; word < 4; ++word)
        words[i].push_back(vector::ExtractOp::create(b, all, word));
    }
    return words;
  };
  SmallVector<SmallVector<Value>> lhs = split(left), rhs = split(right);
  if (lhs.size() % 2)
    lhs.emplace_back(4, emitConstant(b, b.getI32Type(), 0));
  for (int64_t word : {0, 2})
    for (size_t i = 0; i < lhs.size(); i += 2)
      for (size_t j = 0; j < rhs.size(); ++j)
        emitMma(b, element,
                {lhs[i][word], lhs[i + 1][word], lhs[i][word + 1], lhs[i + 1][word + 1]},
                {rhs[j][word], rhs[j][word + 1]},
                MutableArrayRef(next).slice((i / 2 * rhs.size() + j) * 4, 4));
  return next;
}

SmallVector<Value> ThinProduct::emitSums(func::FuncOp kernel) {
  Value lhs = kernel.getArgument(0), rhs = kernel.getArgument(1);
  Value endOfColumns = getIndex(product.n);
  SmallVector<Value> left, right = getLines(product.rhs, firstColumn, endOfColumns, rightGroups);
  if (usesMma) {
    left = getLines(product.lhs, firstRow, endOfRows, leftGroups);
  } else {
    Value base = add(getBase(product.lhs), mul(inGroup, piece));
    for (int64_t i = 0; i < tileRows; ++i) {
      Value row = min(add(firstRow, i), sub(endOfRows, getIndex(1)));
      left.push_back(add(base, mul(row, product.k)));
    }
  }
  size_t count = usesMma ? llvm::divideCeil(leftGroups, 2) * rightGroups * 4 : tileRows;
  SmallVector<Value> sums(count, emitConstant(b, compute, 0));
  int64_t unit = turns * step;
  return loop(mul(warp, unit), sumEnd, warps * unit, sums, [&](Value first, ValueRange known) {
    SmallVector<SmallVector<Value>> lefts, rights;
    for (int64_t turn = 0; turn < turns; ++turn) {
      Value at = add(first, turn * step), exists;
      if (product.k % unit)
        exists = isBelow(add(at, mul(inGroup, piece)), getIndex(product.k));
      rights.push_back(read(rhs, right, at, exists));
      lefts.push_back(read(lhs, left, at, exists));
    }
    SmallVector<Value> next(known);
    for (int64_t turn = 0; turn < turns; ++turn)
      next = multiply(lefts[turn], rights[turn], next);
    return next;
  });
}

Value ThinProduct::getSumIndex(Value row, Value rightGroup, Value column) {
  if (rightGroups > 1) {
    Value turn = rem(div(row, 4 / rightGroups), rightGroups);
    rightGroup = b.createOrFold<arith::XOrIOp>(rightGroup, turn);
  }
  return add(mul(row, columns), add(mul(rightGroup, kGroups), column));
}

void ThinProduct::writeSums(SmallVector<Value> sums, Value shared) {
  Value base = mul(warp, rows * columns);
  if (!usesMma) {
    for (auto [row, sum] : llvm::enumerate(sums)) {
      Value whole = emitLaneReduction(b, sum, kPieces, [&](Value a, Value c) -> Value {
        return arith::AddFOp::create(b, a, c);
      });
      when(isBelow(inGroup, getIndex(1)), [&, row = row] {
        memref::StoreOp::create(b, whole, shared,
                                add(base, getSumIndex(getIndex(row), getIndex(0), group)));
      });
    }
    return;
  }
  for (int64_t i = 0; i < leftGroups; ++i)
    for (int64_t j = 0; j < rightGroups; ++j) {
      size_t first = (i / 2 * rightGroups + j) * 4 + i % 2 * 2;
      Value pair = vector::FromElementsOp::create(b, VectorType::get(2, compute),
                                                  ValueRange{sums[first], sums[first + 1]});
      Value at = getSumIndex(add(group, i * kGroups), getIndex(j), mul(inGroup, 2));
      vector::StoreOp::create(b, pair, shared, add(base, at));
    }
}

void ThinProduct::storeSums(Value shared) {
  int64_t width = product.n % 2 == 0 ? 2 : 1;
  auto type = VectorType::get(width, compute);
  loop(thread, getIndex(tileRows * columns / width), getNumThreads(), [&](Value number) {
    Value row = div(number, columns / width), column = mul(rem(number, columns / width), width);
    Value at = getSumIndex(row, div(column, kGroups), rem(column, kGroups)), sum;
    for (int64_t i = 0; i < warps; ++i) {
      Value part = vector::LoadOp::create(b, type, shared, add(at, i * rows * columns));
      sum = sum ? arith::AddFOp::create(b, sum, part).getResult() : part;
    }
    SmallVector<Value> values;
    for (int64_t i = 0; i < width; ++i)
      values.push_back(vector::ExtractOp::create(b, sum, i));
    Value whole = add(firstColumn, column), exists;
    if (product.n % columns)
      exists = isBelow(whole, getIndex(product.n));
    if (product.hasRowsOfExperts())
      exists = both(exists, isBelow(add(firstRow, row), endOfRows));
    store(values, add(firstRow, row), whole, exists);
  });
}

void ThinProduct::emit(func::FuncOp kernel) {
  start(kernel);
  thread = emitThread(b, getNumThreads());
  Value block = emitBlock(b, getNumBlocks());
  if (product.hasRowsOfExperts()) {
    findRowsOfExpert(div(block, tiles), tileRows);
  } else {
    matrix = div(block, tiles);
    firstRow = getIndex(0);
    endOfRows = getIndex(product.m);
  }
  firstColumn = mul(rem(block, tiles), columns);
  Value lane = rem(thread, Chip::warpSize);
  warp = div(thread, Chip::warpSize);
  group = div(lane, kPieces);
  inGroup = rem(lane, kPieces);
  Value shared = emitShared(b, kernel.getArguments().back(), 0, warps * rows * columns, compute);
  writeSums(emitSums(kernel), shared);
  emitBarrier(b);
  startResult();
  storeSums(shared);
}

std::unique_ptr<ProductEmitter> makeThinProduct(const MatrixProduct &product, FusedRows *epilogue) {
  return std::make_unique<ThinProduct>(product, epilogue);
}

} // namespace meshwright::lower
