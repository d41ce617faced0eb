//===- ProductKernels.cpp - matrix products on GPUs -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block computes a tile of the result. It goes over the summed dimension in steps. For each step,
// its threads copy a tile of both operands to shared memory, and read the next tiles to registers
// while they multiply. bf16 and f16 are multiplied by mma.sync, each warp some fragments of the
// tile; f32 and f64 by multiply-add, each thread some elements of the tile. Sums are in f32, or f64
// for f64.
//
// Accesses of shared memory have no bank conflicts. By mma.sync, tiles have the order of their
// operand, and chunks of 16 bytes of a line are permuted by the line's number: a write fills 128
// consecutive bytes, and eight lines of a matrix are in different banks. By multiply-add, lines of
// tiles are along rows, since lanes read neighbouring rows. Where the operand has another order,
// lines are 8 bytes longer, so that lanes that write a column are in different banks.
//
// Rows of experts: a tile has rows of one expert, whose number follows from that of the tile and
// the offsets of the experts (ExpertRows.h). The grid has a tile for all rows that could exist.
// Where rows are summed, a tile goes over those of its expert.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuProduct.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;

namespace meshwright::lower {

constexpr int64_t kFewRows = 64;

bool hasFewRows(RankedTensorType product) {
  return product.getRank() > 0 &&
         ShapedType::getNumElements(product.getShape().drop_back()) <= kFewRows;
}

std::optional<ProductFusion> planGpuProduct(const KernelRegion &region, const GpuTarget &target) {
  nn::LinearOp linear = findLinear(region);
  if (!linear || !hasFewRows(cast<RankedTensorType>(linear.getType())) ||
      getElementTypeOrSelf(linear.getType()).isF64() ||
      !llvm::is_contained(region.inputs, linear.getWeight()))
    return std::nullopt;
  std::optional<ProductFusion> fusion = planFusion(region, linear, target);
  if (!fusion || fusion->prologue)
    return std::nullopt;
  return fusion;
}

/// Returns true if the library multiplies the matrices: it has the op, there are more than a few
/// rows, and lines of matrices with elements of 16 bits are whole 16 bytes.
static bool isForLibrary(const MatrixProduct &product, const GpuTarget &target) {
  constexpr int64_t widest = 16;
  bool isLibraryOp = target.isLibraryOp(product.result.getDefiningOp());
  if (!isLibraryOp || product.m <= kFewRows || product.n == 0 || product.k == 0)
    return false;
  if (product.getElement().getIntOrFloatBitWidth() != 16)
    return true;
  auto isAligned = [&](Value value, int64_t line) {
    return line * 2 % widest == 0 && getAlignment(value) % widest == 0;
  };
  auto isAlignedFactor = [&](const ProductFactor &factor) {
    return isAligned(factor.value, factor.sumIsInner ? product.k : factor.rows);
  };
  return isAlignedFactor(product.lhs) && isAlignedFactor(product.rhs) &&
         isAligned(product.result, product.n) && (!product.bias || isAligned(product.bias, 8));
}

namespace {
class ProductKernel : public ProductEmitter {
public:
  ProductKernel(const MatrixProduct &product, FusedRows *epilogue);

  int64_t getNumBlocks() const override {
    int64_t matrices = product.getNumMatrices();
    if (product.hasRowsOfExperts())
      return getNumExpertTiles(product.m, matrices, tileM) * tilesN;
    return matrices * tilesM * tilesN;
  }
  int64_t getNumThreads() const override { return threads; }
  int64_t getSharedBytes() const override { return lhs.getBytes() + rhs.getBytes(); }
  /// 168 registers for a thread, 128, or 255.
  int64_t getLeastBlocks() const override { return threads == 128 ? 3 : tileM == 128 ? 1 : 2; }
  void emit(func::FuncOp kernel) override;

private:
  /// The tile of an operand: `rows` by the elements of a step.
  struct Tile {
    const ProductFactor *factor;
    int64_t rows, step;
    /// Consecutive elements of the operand. The elements of the tile in shared memory, those
    /// between two lines there, and the bytes of one.
    int64_t line, size, stride, elementBytes;
    /// The chunks that each thread copies, and their elements.
    int64_t width = 1, count = 0;
    Value buffer, base, firstRow, shared;
    /// The end of the operand's rows; null if tiles are whole.
    Value end;

    int64_t getBytes() const { return llvm::alignTo(size * elementBytes, 16); }
  };
  bool hasWideTiles() const;
  Tile makeTile(const ProductFactor &factor, int64_t rows);
  /// Finds the matrix and the rows of this block's tile, and the elements that it sums.
  void findTile(Value number);
  void startTile(Tile &tile, Value argument, Value firstRow, Value end, Value shared,
                 int64_t offset);
  /// Where a chunk begins: its line, that modulo 8, and the element of the line.
  struct ChunkStart {
    Value line, lineInEight, element;
  };
  ChunkStart getChunkStart(const Tile &tile, int64_t chunk);
  /// Reads the chunks of the step that begins at `first`. Elements outside are zeros.
  SmallVector<Value> read(const Tile &tile, Value first);
  void write(const Tile &tile, ValueRange chunks);
  /// By mma: where an element of a line is in shared memory.
  Value permute(const Tile &tile, Value lineInEight, Value element);
  SmallVector<Value> multiplyByMma(ValueRange sums);
  SmallVector<Value> multiplyByFma(ValueRange sums);
  /// The sums of a thread, over all steps.
  SmallVector<Value> emitSums();
  void storeSums(ValueRange sums);
  /// Stores consecutive elements of a row. If there are several, all or none are in the matrix.
  void storeElements(ArrayRef<Value> values, Value row, Value column);

  bool usesMma;
  int64_t threads, tileM, tileN, step, tilesM, tilesN;
  /// By mma: warps along rows and columns, and fragments of a warp along both. By multiply-add:
  /// elements of a thread along both.
  int64_t warpsM = 1, warpsN = 1, itemsM, itemsN;
  Tile lhs, rhs;

  /// The end of the columns is null if tiles are whole.
  Value thread, firstColumn, endOfColumns;
  /// By mma: the first row and column of the warp, and the number of the lane. By multiply-add:
  /// the row and column of the thread's first element.
  Value warpRow, warpColumn, lane, threadRow, threadColumn;
};
} // namespace

ProductKernel::ProductKernel(const MatrixProduct &given, FusedRows *epilogue)
    : ProductEmitter(given, epilogue) {
  usesMma = element.getIntOrFloatBitWidth() == 16;
  bool isNarrow = product.getRowsOfMatrix() <= 16, isWide = hasWideTiles();
  tileM = isNarrow ? 16 : isWide ? 128 : 64;
  tileN = isWide ? 128 : 64;
  if (usesMma) {
    threads = isWide ? 256 : 128;
    step = isNarrow ? 64 : 32;
    warpsM = isNarrow ? 1 : 2;
    warpsN = threads / Chip::warpSize / warpsM;
    itemsM = tileM / warpsM / 16;
    itemsN = tileN / warpsN / 8;
  } else {
    threads = 256;
    step = 16;
    itemsM = tileM / 16;
    itemsN = tileN / 16;
  }
  tilesM = llvm::divideCeil(product.m, tileM);
  tilesN = llvm::divideCeil(product.n, tileN);
  lhs = makeTile(product.lhs, tileM);
  rhs = makeTile(product.rhs, tileN);
}

bool ProductKernel::hasWideTiles() const {
  // Tiles of 128 rows and columns come from memory half as often. An expert fills some of them.
  constexpr int64_t size = 128, leastTiles = 2, leastBlocks = 256;
  int64_t rows = product.getRowsOfMatrix();
  int64_t tiles = llvm::divideCeil(rows, size) * llvm::divideCeil(product.n, size);
  return usesMma && product.offsets && std::min(rows, product.n) >= leastTiles * size &&
         tiles * product.getNumMatrices() >= leastBlocks;
}

ProductKernel::Tile ProductKernel::makeTile(const ProductFactor &factor, int64_t rows) {
  Tile tile;
  tile.factor = &factor;
  tile.rows = rows;
  tile.step = step;
  tile.elementBytes = element.getIntOrFloatBitWidth() / 8;
  tile.line = factor.sumIsInner ? step : rows;
  constexpr int64_t gap = 8;
  tile.stride = usesMma ? tile.line : factor.sumIsInner ? rows + gap / tile.elementBytes : rows;
  tile.size = usesMma ? rows * step : step * tile.stride;
  return tile;
}

void ProductKernel::startTile(Tile &tile, Value argument, Value firstRow, Value end, Value shared,
                              int64_t offset) {
  const ProductFactor &factor = *tile.factor;
  tile.buffer = argument;
  tile.firstRow = firstRow;
  tile.end = end;
  tile.shared = emitShared(b, shared, offset, tile.size, stored);
  tile.base = getBase(factor);
  // Chunks do not cross the end of a line of the operand.
  int64_t inMemory = factor.sumIsInner ? product.k : factor.rows;
  int64_t share = tile.rows * step / threads;
  tile.width = std::gcd(std::gcd(inMemory, 16 / tile.elementBytes), share);
  tile.count = share / tile.width;
}

ProductKernel::ChunkStart ProductKernel::getChunkStart(const Tile &tile, int64_t chunk) {
  // The threads copy whole lines at a time, so most of the start is the same for all chunks.
  int64_t chunks = tile.line / tile.width, lines = threads / chunks;
  Value first = div(thread, chunks);
  return {add(first, chunk * lines), rem(add(first, chunk * lines % 8), 8),
          mul(rem(thread, chunks), tile.width)};
}

SmallVector<Value> ProductKernel::read(const Tile &tile, Value first) {
  SmallVector<Value> chunks;
  auto type = VectorType::get(tile.width, stored);
  for (int64_t i = 0; i < tile.count; ++i) {
    auto [line, lineInEight, element] = getChunkStart(tile, i);
    bool isInner = tile.factor->sumIsInner;
    Value row = add(tile.firstRow, isInner ? line : element);
    Value at = add(first, isInner ? element : line);
    Value exists;
    if (tile.end)
      exists = isBelow(row, tile.end);
    exists = both(exists, isBelow(at, sumEnd));
    auto load = [&] {
      Value from = isInner ? add(mul(row, product.k), at) : add(mul(at, tile.factor->rows), row);
      return SmallVector<Value>{vector::LoadOp::create(b, type, tile.buffer, add(tile.base, from))};
    };
    chunks.push_back(
        choose(exists, load, [&] { return SmallVector<Value>{emitConstant(b, type, 0)}; }).front());
  }
  return chunks;
}

void ProductKernel::write(const Tile &tile, ValueRange chunks) {
  for (auto [i, chunk] : llvm::enumerate(chunks)) {
    auto [line, lineInEight, element] = getChunkStart(tile, i);
    if (usesMma)
      element = permute(tile, lineInEight, element);
    if (usesMma || !tile.factor->sumIsInner) {
      vector::StoreOp::create(b, chunk, tile.shared, add(mul(line, tile.stride), element));
      continue;
    }
    for (int64_t j = 0; j < tile.width; ++j)
      memref::StoreOp::create(b, vector::ExtractOp::create(b, chunk, j), tile.shared,
                              add(mul(add(element, j), tile.stride), line));
  }
}

Value ProductKernel::permute(const Tile &tile, Value lineInEight, Value element) {
  // 64 elements, which are all banks, hold one line or several. Lines of 64 elements and more have
  // eight permutations, and shorter ones fewer.
  constexpr int64_t chunk = 8, banks = 64;
  int64_t lines = std::max<int64_t>(banks / tile.line, 1);
  return arith::XOrIOp::create(b, element, mul(div(lineInEight, lines), chunk));
}

SmallVector<Value> ProductKernel::multiplyByMma(ValueRange sums) {
  SmallVector<Value> next(sums);
  // The rows and elements of the step that a lane addresses: fragments of rows follow each other
  // in the left operand, those of elements in the right one. Lines differ from `low` by multiples
  // of 8.
  Value low = rem(lane, 8), second = mul(rem(div(lane, 8), 2), 8), third = mul(div(lane, 16), 8);
  auto load = [&](const Tile &tile, Value row, Value at) {
    bool isInner = tile.factor->sumIsInner;
    Value line = isInner ? row : at, element = permute(tile, low, isInner ? at : row);
    return std::pair(add(mul(line, tile.stride), element), isInner);
  };
  bool isLhsInner = lhs.factor->sumIsInner, isRhsInner = rhs.factor->sumIsInner;
  for (int64_t k = 0; k < step; k += 16) {
    SmallVector<SmallVector<Value>> left;
    for (int64_t i = 0; i < itemsM; ++i) {
      Value row = add(add(warpRow, isLhsInner ? add(low, second) : second), 16 * i);
      Value at = add(isLhsInner ? third : add(low, third), k);
      auto [index, isInner] = load(lhs, row, at);
      left.push_back(emitLoadFragments(b, lhs.shared, index, /*transposed=*/!isInner));
    }
    for (int64_t j = 0; j < itemsN; j += 2) {
      Value column = add(add(warpColumn, isRhsInner ? add(low, third) : third), 8 * j);
      Value at = add(isRhsInner ? second : add(low, second), k);
      auto [index, isInner] = load(rhs, column, at);
      SmallVector<Value> right = emitLoadFragments(b, rhs.shared, index, /*transposed=*/!isInner);
      for (int64_t i = 0; i < itemsM; ++i)
        for (int64_t half : {0, 1})
          emitMma(b, element, left[i], ArrayRef(right).slice(2 * half, 2),
                  MutableArrayRef(next).slice((i * itemsN + j + half) * 4, 4));
    }
  }
  return next;
}

SmallVector<Value> ProductKernel::multiplyByFma(ValueRange sums) {
  SmallVector<Value> next(sums);
  auto load = [&](const Tile &tile, Value row, int64_t item, int64_t k) -> Value {
    return memref::LoadOp::create(b, tile.shared, add(row, k * tile.stride + 16 * item));
  };
  for (int64_t k = 0; k < step; ++k) {
    SmallVector<Value> left, right;
    for (int64_t i = 0; i < itemsM; ++i)
      left.push_back(load(lhs, threadRow, i, k));
    for (int64_t j = 0; j < itemsN; ++j)
      right.push_back(load(rhs, threadColumn, j, k));
    for (int64_t i = 0; i < itemsM; ++i)
      for (int64_t j = 0; j < itemsN; ++j) {
        Value &sum = next[i * itemsN + j];
        sum = math::FmaOp::create(b, left[i], right[j], sum);
      }
  }
  return next;
}

void ProductKernel::storeElements(ArrayRef<Value> values, Value row, Value column) {
  Value exists;
  if (endOfRows)
    exists = isBelow(row, endOfRows);
  if (endOfColumns)
    exists = both(exists, isBelow(column, endOfColumns));
  store(values, row, column, exists);
}

void ProductKernel::storeSums(ValueRange sums) {
  if (!usesMma) {
    for (int64_t i = 0; i < itemsM; ++i)
      for (int64_t j = 0; j < itemsN; ++j)
        storeElements(sums[i * itemsN + j], add(add(firstRow, threadRow), 16 * i),
                      add(add(firstColumn, threadColumn), 16 * j));
    return;
  }
  Value rows = add(add(firstRow, warpRow), div(lane, 4));
  Value columns = add(add(firstColumn, warpColumn), mul(rem(lane, 4), 2));
  for (int64_t i = 0; i < itemsM; ++i)
    for (int64_t j = 0; j < itemsN; ++j)
      for (int64_t half : {0, 1}) {
        ValueRange pair = sums.slice((i * itemsN + j) * 4 + 2 * half, 2);
        Value row = add(rows, 16 * i + 8 * half), column = add(columns, 8 * j);
        if (product.n % 2 == 0) {
          storeElements({pair[0], pair[1]}, row, column);
          continue;
        }
        storeElements({pair[0]}, row, column);
        storeElements({pair[1]}, row, add(column, 1));
      }
}

SmallVector<Value> ProductKernel::emitSums() {
  SmallVector<Value> held(itemsM * itemsN * (usesMma ? 4 : 1), emitConstant(b, compute, 0));
  size_t numSums = held.size();
  llvm::append_range(held, read(lhs, sumBegin));
  llvm::append_range(held, read(rhs, sumBegin));
  held = loop(sumBegin, sumEnd, step, held, [&](Value first, ValueRange known) {
    emitBarrier(b);
    write(lhs, known.slice(numSums, lhs.count));
    write(rhs, known.drop_front(numSums + lhs.count));
    emitBarrier(b);
    Value next = add(first, step);
    SmallVector<Value> chunks = read(lhs, next);
    llvm::append_range(chunks, read(rhs, next));
    ValueRange sums = known.take_front(numSums);
    SmallVector<Value> after = usesMma ? multiplyByMma(sums) : multiplyByFma(sums);
    llvm::append_range(after, chunks);
    return after;
  });
  held.truncate(numSums);
  return held;
}

void ProductKernel::findTile(Value number) {
  if (product.n % tileN)
    endOfColumns = getIndex(product.n);
  if (product.hasRowsOfExperts())
    return findRowsOfExpert(number, tileM);
  matrix = div(number, tilesM);
  firstRow = mul(rem(number, tilesM), tileM);
  if (product.m % tileM)
    endOfRows = getIndex(product.m);
  if (product.sumsRows) {
    sumBegin = emitFirstRow(b, offsets, matrix);
    sumEnd = emitFirstRow(b, offsets, add(matrix, 1));
  }
}

void ProductKernel::emit(func::FuncOp kernel) {
  start(kernel);
  thread = emitThread(b, threads);
  Value block = emitBlock(b, getNumBlocks());
  firstColumn = mul(rem(block, tilesN), tileN);
  findTile(div(block, tilesN));
  Value shared = kernel.getArguments().back();
  startTile(lhs, kernel.getArgument(0), firstRow, endOfRows, shared, 0);
  startTile(rhs, kernel.getArgument(1), firstColumn, endOfColumns, shared, lhs.getBytes());
  if (usesMma) {
    lane = rem(thread, Chip::warpSize);
    Value warp = div(thread, Chip::warpSize);
    warpColumn = mul(rem(warp, warpsN), tileN / warpsN);
    warpRow = mul(div(warp, warpsN), tileM / warpsM);
  } else {
    threadColumn = rem(thread, 16);
    threadRow = div(thread, 16);
  }
  SmallVector<Value> sums = emitSums();
  startResult();
  storeSums(sums);
}

static std::unique_ptr<ProductEmitter> makeEmitter(const MatrixProduct &product,
                                                   FusedRows *epilogue) {
  if (isThinProduct(product))
    return makeThinProduct(product, epilogue);
  return std::make_unique<ProductKernel>(product, epilogue);
}

std::optional<KernelInfo> GpuKernelBuilder::buildProduct(rt::KernelOp launch) {
  KernelRegion region = KernelRegion::of(launch);
  Operation *op = getSingleOp(launch);
  std::optional<ProductFusion> fusion;
  if (!op && (fusion = planGpuProduct(region, target)))
    op = findLinear(region);
  std::optional<MatrixProduct> product = op ? getProduct(op) : std::nullopt;
  if (!product || (!fusion && isForLibrary(*product, target)))
    return std::nullopt;
  std::optional<FusedRows> rows;
  if (fusion)
    rows.emplace(region, cast<nn::LinearOp>(op), *fusion);
  std::unique_ptr<ProductEmitter> emitter = makeEmitter(*product, rows ? &*rows : nullptr);
  KernelInfo info;
  info.kind = MW_RT_GEMM;
  info.inputs = {product->lhs.value, product->rhs.value};
  if (product->bias)
    info.inputs.push_back(product->bias);
  if (product->offsets)
    info.inputs.push_back(product->offsets);
  if (fusion) {
    for (Value input : region.inputs)
      if (!llvm::is_contained(info.inputs, input))
        info.inputs.push_back(input);
    llvm::append_range(info.inputs, region.getPositions());
  }
  // The kernel reads the offsets in any case.
  if (product->hasRowsOfExperts()) {
    info.rows = product->m;
    info.counter = info.inputs.size() - 1;
    info.numOffsets = product->getNumMatrices() + 1;
  }
  info.items = emitter->getNumBlocks();
  info.grain = emitter->getNumThreads();
  info.flops = 2 * product->m * product->n * product->k;
  if (!product->offsets)
    info.flops *= product->getNumMatrices();
  func::FuncOp kernel =
      begin(launch, info.inputs, emitter->getSharedBytes(), emitter->getNumThreads());
  kernel->setAttr(kBlocksAttr, IntegerAttr::get(IntegerType::get(launch.getContext(), 64),
                                                emitter->getLeastBlocks()));
  if (rows) {
    ValueRange arguments = kernel.getArguments();
    SmallVector<std::pair<Value, Value>> buffers;
    for (auto [i, input] : llvm::enumerate(info.inputs))
      buffers.push_back({input, arguments[i]});
    rows->setBuffers(buffers, arguments.slice(info.inputs.size(), region.outputs.size()));
  }
  if (info.items > 0)
    emitter->emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower
