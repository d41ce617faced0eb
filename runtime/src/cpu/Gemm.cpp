//===- Gemm.cpp - matrix products by oneDNN -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Gemm.h"

#include "SmallProduct.h"
#include "StoredColumns.h"
#include "Workers.h"
#include "meshwright/runtime/src/ranks/GemmShape.h"

#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <sys/mman.h>
#include <vector>

// A function of the OpenMP runtime that oneDNN was built with. Its header belongs to GCC.
extern "C" void omp_set_num_threads(int count);

namespace meshwright::rt {

void setThreadsOfLibraries(int count) { omp_set_num_threads(count); }

namespace {

/// C[i] = A[i] B[i] (+ bias) for a batch of dense row-major matrices that follow one
/// another. With `sharedA` or `sharedB` all products read the same matrix. `in` is f32,
/// bf16 or f64; `out` is the same, or f32.
struct Product {
  DType in, out;
  int64_t m, n, k, batch;
  bool transposeA, transposeB, sharedA, sharedB, bias;
  /// B, a single matrix that is stored otherwise. Each tile decodes its columns.
  const StoredMatrix *stored = nullptr;
};

/// A weight in the form in which it travels.
class FormMatrix final : public StoredMatrix {
public:
  FormMatrix(const mw_rt_form &form, const void *from) : form(form), from(from) {}
  void decode(const FormBlock &block, DType type, void *to) const override {
    decodeBlock(form, type, from, block, to);
  }

private:
  const mw_rt_form &form;
  const void *from;
};

/// A range of indices.
struct Range {
  int64_t begin, size;
};

/// A part of the results of a product.
struct Tile {
  Range batch, rows, columns;
};

/// A product and the size of a tile, as far as the library depends on them.
using Key = std::array<int64_t, 15>;

/// The primitive for a tile and the types of its operands.
struct Prepared {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, bias, c, scratchpad;
  /// True if b is in panels.
  bool hasPanels = false;
  /// True once it has multiplied: until then the library may have to write code.
  bool hasRun = false;
  /// The bytes behind the library's scratch memory: of decoded columns, of a piece of them that is packed,
  /// and of the results.
  int64_t decodedBytes = 0, pieceBytes = 0, resultBytes = 0;
};

/// The operands of a product. `bias` may be null.
struct Operands {
  const char *a, *b, *bias;
  char *c;
};

} // namespace

static dnnl::engine &getEngine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// The error of a failure of the library.
static std::string describe(const std::exception &failure) {
  auto *own = dynamic_cast<const dnnl::error *>(&failure);
  bool isMemory = own ? own->status == dnnl_out_of_memory
                      : dynamic_cast<const std::bad_alloc *>(&failure) != nullptr;
  if (isMemory)
    return "out of memory in a matrix product";
  return std::string(own ? "oneDNN: " : "a matrix product: ") + failure.what();
}

static dnnl::memory::data_type libraryType(DType type) {
  return type == DType::BF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Operations below which a tile is not worth a thread.
static constexpr int64_t kLeastOperations = int64_t(1) << 23;
/// A tile of fewer columns or rows reads too much of the operands for each result.
static constexpr int64_t kLeastTile = 256;
/// The most tiles of a product. Rows are cut only while there are fewer tiles than the second number,
/// since the library packs the columns' operand again for each range of rows.
static constexpr int64_t kMostTiles = 16, kTilesBeforeRows = 4;

/// Cuts `size` into `count` ranges. All but the last begin at multiples of `unit`.
static std::vector<Range> cut(int64_t size, int64_t count, int64_t unit) {
  std::vector<Range> ranges;
  int64_t units = (size + unit - 1) / unit;
  for (int64_t i = 0; i < count; ++i) {
    int64_t begin = units * i / count * unit, end = std::min(units * (i + 1) / count * unit, size);
    if (begin < end)
      ranges.push_back({begin, end - begin});
  }
  return ranges;
}

/// The largest power of two that is at most `value`, at least 1. Such numbers of tiles divide
/// evenly among the usual numbers of threads.
static int64_t floorPowerOfTwo(int64_t value) {
  int64_t power = 1;
  while (power * 2 <= value)
    power *= 2;
  return power;
}

/// Bytes of decoded columns that stay in a cache while they are multiplied.
static constexpr int64_t kDecodedBytes = 4 << 20;

/// Cuts a product whose columns are decoded: columns alone, and so that those of a tile stay in a cache.
static std::vector<Tile> cutStored(const Product &p) {
  int64_t most = std::max<int64_t>(kDecodedBytes / (p.k * sizeOf(p.in) + 1), 1);
  int64_t needed = (p.n + most - 1) / most, panels = (p.n + kPanelColumns - 1) / kPanelColumns;
  // Decoding is work, too.
  int64_t operations = 2 * std::max<int64_t>(p.m, kLeastTile) * p.n * p.k;
  int64_t wanted = floorPowerOfTwo(std::min(operations / kLeastOperations, kMostTiles));
  int64_t count = std::min((needed + wanted - 1) / wanted * wanted, panels);
  std::vector<Tile> tiles;
  for (Range column : cut(p.n, count, kPanelColumns))
    tiles.push_back({{0, 1}, {0, p.m}, column});
  return tiles;
}

/// Cuts a product into tiles: matrices of a batch first, then columns, and rows last.
static std::vector<Tile> cutTiles(const Product &p) {
  if (p.stored)
    return cutStored(p);
  int64_t operations = 2 * p.batch * p.m * p.n * std::max<int64_t>(p.k, 1);
  int64_t most = floorPowerOfTwo(std::min(operations / kLeastOperations, kMostTiles));
  int64_t matrices = std::min(floorPowerOfTwo(p.batch), most);
  int64_t columns = std::min(floorPowerOfTwo(p.n / kLeastTile), most / matrices);
  int64_t rows = std::min(floorPowerOfTwo(p.m / kLeastTile),
                          std::max<int64_t>(std::min(most, kTilesBeforeRows) / matrices / columns, 1));
  std::vector<Tile> tiles;
  for (Range batch : cut(p.batch, matrices, 1))
    for (Range column : cut(p.n, columns, 64))
      for (Range row : cut(p.m, rows, 64))
        tiles.push_back({batch, row, column});
  return tiles;
}

/// More address space than a primitive and its code take, and than the C library reserves for the heap of a thread
/// meanwhile (64 MB, or 128 MB to align them).
static constexpr int64_t kPrimitiveBytes = int64_t(160) << 20;

/// The library does not look whether it gets the memory of a kernel's code, so this asks before. Throws an exception if
/// there is none. It asks the system, as the library does: the allocator may have memory where the system has no more.
static void checkMemoryOfCode() {
  void *memory = mmap(nullptr, kPrimitiveBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw std::bad_alloc();
  munmap(memory, kPrimitiveBytes);
}

/// Makes the primitive for described operands. Returns false if the library has none and `mayFail` is set.
static bool makePrimitive(bool hasBias, Prepared &result, bool mayFail) {
  // The library's own scratch memory would belong to the thread that made the primitive.
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::matmul::desc what = hasBias ? dnnl::matmul::desc(result.a, result.b, result.bias, result.c)
                                    : dnnl::matmul::desc(result.a, result.b, result.c);
  dnnl::matmul::primitive_desc primitive(what, attributes, getEngine(), mayFail);
  if (!primitive)
    return false;
  result.b = primitive.weights_desc();
  result.scratchpad = primitive.scratchpad_desc();
  result.primitive = dnnl::matmul(primitive);
  return true;
}

/// Prepares a tile whose columns are decoded to panels. Returns false if the library does not read the
/// panels that we write.
static bool preparePanels(const Product &p, const Tile &tile, Prepared &result) {
  using Tag = dnnl::memory::format_tag;
  dnnl::memory::data_type in = libraryType(p.in);
  dnnl::memory::dims dims{p.k, tile.columns.size}, strides{p.k, 1};
  if (p.transposeA)
    strides = {1, p.m};
  result.a = dnnl::memory::desc({p.m, p.k}, in, strides);
  result.b = dnnl::memory::desc(dims, in, Tag::any);
  // Only results without gaps have such primitives.
  result.c = dnnl::memory::desc({p.m, tile.columns.size}, libraryType(p.out), Tag::ab);
  result.bias = dnnl::memory::desc({1, tile.columns.size}, in, Tag::ab);
  if (!makePrimitive(p.bias, result, /*mayFail=*/true) ||
      result.b != dnnl::memory::desc(dims, in, p.in == DType::BF16 ? Tag::BA16a64b2a : Tag::BA16a64b))
    return false;
  result.hasPanels = true;
  result.decodedBytes = sizeOfPanels(p.in, p.k, tile.columns.size);
  result.pieceBytes = kPieceBytes;
  result.resultBytes = tile.columns.size < p.n ? p.m * tile.columns.size * sizeOf(p.out) : 0;
  return true;
}

/// Prepares a tile. Returns false if the library has no primitive for it and `mayFail` is set. Throws an
/// exception if there is no memory.
static bool prepare(const Product &p, const Tile &tile, Prepared &result, bool mayFail) {
  checkMemoryOfCode();
  if (p.stored && p.k > 0 && preparePanels(p, tile, result))
    return true;
  using Dims = dnnl::memory::dims;
  // A tile has the strides of the whole matrix, of so many rows and columns.
  auto describe = [](DType type, Dims dims, int64_t rows, int64_t columns, bool transposed) {
    Dims strides{rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
    return dnnl::memory::desc(dims, libraryType(type), strides);
  };
  int64_t m = tile.rows.size, n = tile.columns.size, batch = tile.batch.size;
  result.a = describe(p.in, {p.sharedA ? 1 : batch, m, p.k}, p.m, p.k, p.transposeA);
  // Decoded columns are a matrix of their own.
  result.b = describe(p.in, {p.sharedB ? 1 : batch, p.k, n}, p.k, p.stored ? n : p.n, p.transposeB);
  result.c = describe(p.out, {batch, m, n}, p.m, p.n, false);
  result.bias = describe(p.in, {1, 1, n}, 1, n, false);
  result.decodedBytes = p.stored ? p.k * n * sizeOf(p.in) : 0;
  return makePrimitive(p.bias, result, mayFail);
}

struct Gemm::Impl {
  std::map<Key, Prepared> prepared;
  /// Operands and the result in f32, where the library does not take their type.
  std::vector<char> wide[4];
  /// 1 if the library multiplies bf16 on this processor, 0 if not, -1 if that is not yet known.
  int bf16 = -1;

  Prepared &getPrepared(const Product &p, const Tile &tile);
  bool hasBf16();
  float *getWide(int slot, int64_t count);
  bool multiply(const Product &product, const void *a, const void *b, const void *bias, void *c,
                Workers &workers, std::string &error);
};

Gemm::Gemm() = default;
Gemm::~Gemm() = default;

/// Products of so few terms, and of so small a second operand, take less time than the library's way to its kernel.
static constexpr int64_t kSmallTerms = 1 << 15, kSmallOperand = 1 << 12;

static bool isSmall(const Product &p) {
  return p.in == DType::F32 && p.out == DType::F32 && !p.stored && p.k <= kSmallSteps && p.n * p.k <= kSmallOperand &&
         p.batch * p.m * p.n * p.k <= kSmallTerms;
}

/// Multiplies a batch by loops of the runtime.
template <typename T>
static void multiplyPlainly(const Product &p, const void *a, const void *b, const void *bias, void *c,
                            void (*multiply)(const PlainProduct<T> &)) {
  auto at = [](const void *data, int64_t index) { return static_cast<const T *>(data) + index; };
  for (int64_t i = 0; i < p.batch; ++i)
    multiply({p.m, p.n, p.k,
              at(a, p.sharedA ? 0 : i * p.m * p.k), p.transposeA ? 1 : p.k, p.transposeA ? p.m : 1,
              at(b, p.sharedB ? 0 : i * p.k * p.n), p.transposeB ? 1 : p.n, p.transposeB ? p.k : 1,
              bias ? at(bias, 0) : nullptr, static_cast<T *>(c) + i * p.m * p.n});
}

Prepared &Gemm::Impl::getPrepared(const Product &p, const Tile &tile) {
  Key key{int64_t(p.in), int64_t(p.out), p.m,       p.n,       p.k,    tile.rows.size, tile.columns.size,
          tile.batch.size, p.transposeA,  p.transposeB, p.sharedA, p.sharedB, p.bias,         p.batch, p.stored != nullptr};
  auto found = prepared.find(key);
  if (found == prepared.end()) {
    Prepared made;
    prepare(p, tile, made, /*mayFail=*/false);
    found = prepared.emplace(key, std::move(made)).first;
  }
  return found->second;
}

bool Gemm::Impl::hasBf16() {
  if (bf16 < 0) {
    Prepared probe;
    bf16 = prepare({DType::BF16, DType::F32, 16, 16, 16, 1, false, false, false, false, false},
                   {{0, 1}, {0, 16}, {0, 16}}, probe, /*mayFail=*/true);
  }
  return bf16;
}

float *Gemm::Impl::getWide(int slot, int64_t count) {
  if (int64_t(wide[slot].size()) < count * 4)
    wide[slot].resize(count * 4);
  return reinterpret_cast<float *>(wide[slot].data());
}

namespace {
/// The tiles of a product that the workers share.
struct Tiles {
  const Product &product;
  Operands operands;
  std::vector<Tile> tiles;
  std::vector<Prepared *> prepared;
  Workers &workers;
  /// For each part the error of the library, empty if there is none.
  std::vector<std::string> errors;

  void run(const Tile &tile, const Prepared &how, char *scratch, dnnl::stream &stream) const;
  /// Decodes columns of the stored b.
  void decode(const Range &columns, const Prepared &how, char *to) const;
};
} // namespace

static int64_t alignUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void Tiles::run(const Tile &tile, const Prepared &how, char *scratch, dnnl::stream &stream) const {
  const Product &p = product;
  int64_t in = sizeOf(p.in), out = sizeOf(p.out);
  auto wrap = [](const dnnl::memory::desc &type, const void *data) {
    return dnnl::memory(type, getEngine(), const_cast<void *>(data));
  };
  int64_t first = tile.batch.begin, row = tile.rows.begin, column = tile.columns.begin;
  int64_t a = (p.sharedA ? 0 : first * p.m * p.k) + row * (p.transposeA ? 1 : p.k);
  int64_t b = (p.sharedB ? 0 : first * p.k * p.n) + column * (p.transposeB ? p.k : 1);
  int64_t c = (first * p.m + row) * p.n + column;
  const char *columns = operands.b ? operands.b + b * in : nullptr;
  char *result = operands.c + c * out;
  char *decoded = scratch + alignUp(how.scratchpad.get_size());
  if (p.stored) {
    decode(tile.columns, how, decoded);
    columns = decoded;
  }
  if (how.resultBytes)
    result = decoded + alignUp(how.decodedBytes) + alignUp(how.pieceBytes);
  std::unordered_map<int, dnnl::memory> arguments{
      {DNNL_ARG_SRC, wrap(how.a, operands.a + a * in)},
      {DNNL_ARG_WEIGHTS, wrap(how.b, columns)},
      {DNNL_ARG_DST, wrap(how.c, result)},
      {DNNL_ARG_SCRATCHPAD, wrap(how.scratchpad, scratch)}};
  if (p.bias)
    arguments.emplace(DNNL_ARG_BIAS, wrap(how.bias, operands.bias + column * in));
  how.primitive.execute(stream, arguments);
  if (!how.resultBytes)
    return;
  stream.wait();
  int64_t bytes = tile.columns.size * out;
  for (int64_t i = 0; i < p.m; ++i)
    std::memcpy(operands.c + (c + i * p.n) * out, result + i * bytes, bytes);
}

void Tiles::decode(const Range &columns, const Prepared &how, char *to) const {
  const Product &p = product;
  if (how.hasPanels)
    decodePanels(*p.stored, p.transposeB, p.in, p.k, columns.begin, columns.size, to,
                 to + alignUp(how.decodedBytes));
  else
    p.stored->decode(p.transposeB ? FormBlock{columns.begin, columns.size, 0, p.k}
                                  : FormBlock{0, p.k, columns.begin, columns.size},
                     p.in, to);
}

/// Computes part `index` of `count` equal, contiguous parts of the tiles.
static void runTiles(void *state, int64_t index, int64_t count) {
  Tiles &work = *static_cast<Tiles *>(state);
  int64_t begin = work.tiles.size() * index / count, end = work.tiles.size() * (index + 1) / count;
  // The library would start threads of its own on each worker.
  setThreadsOfLibraries(1);
  try {
    dnnl::stream stream(getEngine());
    for (int64_t i = begin; i < end; ++i)
      work.run(work.tiles[i], *work.prepared[i], static_cast<char *>(work.workers.getWorkspace(index).get(0)),
               stream);
    stream.wait();
  } catch (const std::exception &failure) {
    // Nothing may leave the thread of a worker.
    work.errors[index] = describe(failure);
  }
}

bool Gemm::Impl::multiply(const Product &p, const void *a, const void *b, const void *bias,
                           void *c, Workers &workers, std::string &error) {
  int64_t results = p.batch * p.m * p.n;
  if (results == 0)
    return true;
  if (p.in == DType::F64) {
    multiplyPlainly(p, a, b, bias, c, multiplyDouble);
    return true;
  }
  if (isSmall(p)) {
    multiplyPlainly(p, a, b, bias, c, multiplySmall);
    return true;
  }
  if (p.k == 0 && !p.bias) {
    std::memset(c, 0, results * sizeOf(p.out));
    return true;
  }
  try {
    Tiles work{p,
               {static_cast<const char *>(a), static_cast<const char *>(b),
                static_cast<const char *>(bias), static_cast<char *>(c)},
               cutTiles(p),
               {},
               workers,
               {}};
    int64_t scratch = 1;
    for (const Tile &tile : work.tiles) {
      Prepared &how = getPrepared(p, tile);
      work.prepared.push_back(&how);
      scratch = std::max(scratch, alignUp(how.scratchpad.get_size()) + alignUp(how.decodedBytes) +
                                      alignUp(how.pieceBytes) + how.resultBytes);
    }
    int64_t count = std::min<int64_t>(work.tiles.size(), workers.getCount());
    for (int64_t i = 0; i < count; ++i)
      workers.getWorkspace(i).get(scratch);
    work.errors.resize(count);
    // Some code is written in the first call only, when the memory above is taken.
    if (std::any_of(work.prepared.begin(), work.prepared.end(), [](const Prepared *how) { return !how->hasRun; }))
      checkMemoryOfCode();
    workers.run(count, runTiles, &work);
    for (Prepared *how : work.prepared)
      how->hasRun = true;
    for (const std::string &own : work.errors)
      if (!own.empty())
        error = own;
  } catch (const std::exception &failure) {
    error = describe(failure);
  }
  if (error.empty())
    return true;
  prepared.clear();
  return false;
}

//===----------------------------------------------------------------------===//
// Products of programs
//===----------------------------------------------------------------------===//

/// Returns the number of matrices by which a step of the batch index, row-major over all
/// dimensions, advances an operand: 1, or 0 for a matrix that all products share, or -1 if it is
/// not constant.
static int64_t uniformStride(const mw_rt_gemm &what, const int64_t *strides) {
  int64_t expected = 1;
  bool dense = true, shared = true;
  for (int64_t d = what.batch_rank; d-- > 0;) {
    if (what.batch[d] == 1)
      continue;
    dense &= strides[d] == expected;
    shared &= strides[d] == 0;
    expected *= what.batch[d];
  }
  return dense ? 1 : shared ? 0 : -1;
}

Gemm::Impl &Gemm::getImpl() {
  if (!impl)
    impl = std::make_unique<Impl>();
  return *impl;
}

bool Gemm::needsF32(int64_t dtype) {
  DType type = DType(dtype);
  return type == DType::F16 || (type == DType::BF16 && !getImpl().hasBf16());
}

bool Gemm::weightGrad(const mw_rt_weight_grad &what, const void *a, const void *b, void *c,
                      Workers &workers, std::string &error) {
  Impl &known = getImpl();
  DType type = DType(what.dtype);
  if (needsF32(what.dtype)) {
    float *wideA = known.getWide(0, what.rows * what.m);
    float *wideB = known.getWide(1, what.rows * what.n);
    widen(type, a, wideA, what.rows * what.m);
    widen(type, b, wideB, what.rows * what.n);
    a = wideA;
    b = wideB;
    type = DType::F32;
  }
  Product product{type,
                  type == DType::F64 ? DType::F64 : DType::F32,
                  what.m,
                  what.n,
                  what.rows,
                  /*batch=*/1,
                  /*transposeA=*/true,
                  /*transposeB=*/false,
                  false,
                  false,
                  /*bias=*/false};
  return known.multiply(product, a, b, nullptr, c, workers, error);
}

bool Gemm::multiply(const mw_rt_gemm &what, const void *a, const void *b, const void *bias, void *c,
                    Workers &workers, std::string &error, const StoredMatrix *stored) {
  getImpl();
  DType type = DType(what.dtype);
  bool isWide = needsF32(what.dtype);
  auto widenTo = [&](int slot, const void *data, int64_t count) -> const void * {
    if (!isWide || !data)
      return data;
    float *to = impl->getWide(slot, count);
    widen(type, data, to, count);
    return to;
  };
  int64_t batch = batchOf(what), results = batch * what.m * what.n;
  FormMatrix ofForm(what.form, b);
  if (what.form.kind)
    stored = &ofForm;
  // Plain loops, and products in another type than the program's, read the whole decoded weight.
  std::vector<char> decoded;
  if (stored && (isWide || type == DType::F64)) {
    decoded.resize(what.k * what.n * sizeOf(type));
    stored->decode(what.transpose_b ? FormBlock{0, what.n, 0, what.k} : FormBlock{0, what.k, 0, what.n}, type,
                   decoded.data());
    b = decoded.data();
    stored = nullptr;
  }
  a = widenTo(0, a, matricesOf(what, what.stride_a) * what.m * what.k);
  b = widenTo(1, b, matricesOf(what, what.stride_b) * what.k * what.n);
  bias = widenTo(2, bias, what.n);
  char *to = static_cast<char *>(c);
  bool narrows = isWide && DType(what.result) != DType::F32;
  if (narrows)
    to = reinterpret_cast<char *>(impl->getWide(3, results));

  DType in = isWide ? DType::F32 : type, out = isWide ? DType::F32 : DType(what.result);
  Product product{in,
                  out,
                  what.m,
                  what.n,
                  what.k,
                  1,
                  what.transpose_a != 0,
                  what.transpose_b != 0,
                  false,
                  false,
                  bias != nullptr,
                  stored};
  int64_t stepA = uniformStride(what, what.stride_a), stepB = uniformStride(what, what.stride_b);
  if (stepA == 1 && stepB == 0 && !product.transposeA) {
    // One tall matrix.
    product.m *= batch;
    if (!impl->multiply(product, a, b, bias, to, workers, error))
      return false;
  } else if (stepA >= 0 && stepB >= 0) {
    product.batch = batch;
    product.sharedA = stepA == 0 && batch > 1;
    product.sharedB = stepB == 0 && batch > 1;
    if (!impl->multiply(product, a, b, bias, to, workers, error))
      return false;
  } else {
    int64_t index[MW_RT_MAX_RANK] = {}, size = sizeOf(in);
    for (int64_t i = 0; i < batch; ++i) {
      int64_t matrixA = 0, matrixB = 0;
      for (int64_t d = 0; d < what.batch_rank; ++d) {
        matrixA += index[d] * what.stride_a[d];
        matrixB += index[d] * what.stride_b[d];
      }
      if (!impl->multiply(product, static_cast<const char *>(a) + matrixA * what.m * what.k * size,
                           static_cast<const char *>(b) + matrixB * what.k * what.n * size, bias,
                           to + i * what.m * what.n * sizeOf(out), workers, error))
        return false;
      for (int64_t d = what.batch_rank; d-- > 0;) {
        if (++index[d] < what.batch[d])
          break;
        index[d] = 0;
      }
    }
  }
  if (narrows)
    narrow(type, reinterpret_cast<float *>(to), c, results);
  return true;
}

} // namespace meshwright::rt
