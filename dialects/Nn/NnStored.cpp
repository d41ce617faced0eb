//===- NnStored.cpp - weights in 8 and 4 bits -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A dimension of codes is a product of its blocks and of the elements of a block. Scales have the
// first factor alone, so an axis shards codes and scales by whole blocks. Where shards are made of parts
// of blocks, scales are whole, and the partitioner gives each part its scale.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::FactorKind;
using dist::FactorRule;
using padding::Operands;
using padding::Padding;
using ValueFactors = FactorRule::ValueFactors;

/// The codes of 4 bits in a byte.
static constexpr int64_t kPerByte = 2;

//===----------------------------------------------------------------------===//
// nn.dequantize
//===----------------------------------------------------------------------===//

/// Sizes along the last dimensions, and 1 along the others.
static SmallVector<int64_t> getSizes(ArrayAttr attr, int64_t rank) {
  SmallVector<int64_t> sizes(rank - attr.size(), 1);
  for (Attribute size : attr)
    sizes.push_back(cast<IntegerAttr>(size).getInt());
  return sizes;
}

SmallVector<int64_t> DequantizeOp::getBlockSizes() {
  return getSizes(getBlock(), getCodes().getType().getRank());
}

SmallVector<int64_t> DequantizeOp::getPartSizes() {
  SmallVector<int64_t> parts = getSizes(getParts().value_or(getBlock()), getCodes().getType().getRank());
  for (auto [part, size] : llvm::zip_equal(parts, getCodeShape()))
    part = part >= size ? size : std::gcd(part, size);
  return parts;
}

SmallVector<int64_t> DequantizeOp::getCodeShape() {
  SmallVector<int64_t> shape(shapeOf(getCodes()));
  if (getPacked())
    shape.back() *= kPerByte;
  return shape;
}

/// Checks that codes are codes of numbers, not scales, and how many a table has.
static LogicalResult verifyCodes(DequantizeOp op) {
  Type codes = elementOf(op.getCodes());
  if (isa<Float8E8M0FNUType>(codes))
    return op.emitOpError() << "expected codes of numbers, got scales: " << op.getCodes().getType();
  if (op.getPacked() && !codes.isInteger(8))
    return op.emitOpError() << "expected packed codes in bytes of i8, got "
                            << op.getCodes().getType();
  if (!op.getTable())
    return success();
  bool isFour = op.getPacked() || isa<Float4E2M1FNType>(codes);
  if (!isFour && !codes.isInteger(8))
    return op.emitOpError() << "expected codes of i8 or f4E2M1FN for a table, got " << codes;
  return verifyShape(op, "table", op.getTable(), {isFour ? 16 : 256});
}

/// Checks that
///  - the codes have numbers, and as many dimensions as a block or more;
///  - a block has sizes of 1 or more;
///  - parts have a size for each one of a block, which they divide;
///  - there is a scale for each block, and one number for all;
///  - the result has the shape of the codes.
LogicalResult DequantizeOp::verify() {
  int64_t rank = getCodes().getType().getRank(), blocked = getBlock().size();
  if (blocked == 0)
    return emitOpError() << "expected block of one size or more, got none";
  if (failed(verifyRankAtLeast(*this, "codes", getCodes(), blocked)) || failed(verifyCodes(*this)))
    return failure();
  SmallVector<int64_t> expected = getCodeShape();
  if (failed(verifyShape(*this, "result", getResult(), expected)))
    return failure();
  SmallVector<int64_t> sizes = getBlockSizes();
  for (int64_t dim = rank - blocked; dim < rank; ++dim) {
    if (sizes[dim] < 1)
      return emitOpError() << "expected sizes of a block of 1 or more, got " << getBlock();
    expected[dim] = llvm::divideCeil(expected[dim], sizes[dim]);
  }
  if (getParts()) {
    if (getParts()->size() != getBlock().size())
      return emitOpError() << "expected parts of " << getBlock().size() << " sizes as a block, got "
                           << *getParts();
    for (auto [part, size] : llvm::zip_equal(getSizes(*getParts(), rank), sizes))
      if (part < 1 || size % part != 0)
        return emitOpError() << "expected parts of equal size of a block " << getBlock() << ", got "
                             << *getParts();
  }
  if (getWhole() && failed(verifyShape(*this, "number of the whole", getWhole(), {})))
    return failure();
  return verifyShape(*this, "scales", getScales(), expected);
}

FactorRule DequantizeOp::getFactorRule() {
  FactorRule rule;
  ValueFactors codes, scales, result;
  SmallVector<int64_t> shape = getCodeShape(), parts = getPartSizes();
  for (auto [dim, size, blocks] : llvm::enumerate(shape, shapeOf(getScales()))) {
    int64_t part = std::max<int64_t>(parts[dim], 1);
    bool isPacked = getPacked() && dim + 1 == shape.size(), isWhole = blocks * part != size;
    if (isPacked && part % kPerByte != 0) {
      // The codes of a byte have different scales, which are one for each code or read whole.
      int bytes = rule.addFactor(size / kPerByte);
      codes.push_back({bytes});
      result.push_back({bytes, rule.addFactor(kPerByte, FactorKind::Special)});
      bool isEach = part == 1 && !isWhole;
      scales.push_back(isEach ? result.back()
                              : FactorRule::DimFactors{rule.addFactor(blocks, FactorKind::Special)});
      if (!isEach)
        rule.factors[bytes].kind = FactorKind::Special;
      continue;
    }
    int count = rule.addFactor(size / part);
    codes.push_back({count});
    scales.push_back({isWhole ? rule.addFactor(blocks, FactorKind::Special) : count});
    if (int64_t inPart = isPacked ? part / kPerByte : part; inPart > 1)
      codes.back().push_back(
          rule.addFactor(inPart, size == part ? FactorKind::Parallel : FactorKind::Special));
    result.push_back(codes.back());
    if (isPacked)
      result.back().push_back(rule.addFactor(kPerByte, FactorKind::Special));
  }
  // Two elements that share a byte stay together.
  if (isa<Float4E2M1FNType>(elementOf(getCodes())))
    rule.factors[codes.back().back()].align = kPerByte;
  rule.operands = {codes, scales};
  if (getWhole())
    rule.operands.push_back({});
  if (getTable())
    rule.operands.push_back(rule.addFactors(shapeOf(getTable()), FactorKind::Special));
  rule.results = {result};
  return rule;
}

Padding DequantizeOp::getResultPadding(const Operands &in) {
  if (getTable())
    return Padding::Arbitrary;
  Type type = elementOf(getResult());
  Padding content = padding::multiply(in[0], in[1], type);
  return getWhole() ? padding::multiply(content, in.getOverall(2), type) : content;
}

SmallVector<int64_t, 2> DequantizeOp::getExpandedDims() { return {}; }

int64_t DequantizeOp::getNumStatistics() { return 0; }

bool DequantizeOp::needsExpansion() { return true; }

namespace {

/// Writes the ops that compute a dequantisation.
class Expansion {
public:
  Expansion(OpBuilder &builder, DequantizeOp op)
      : w(builder, op.getLoc()), op(op),
        wide(elementOf(op.getResult()).isF64() ? Type(builder.getF64Type())
                                               : Type(builder.getF32Type())) {}

  Value write() {
    Value scales = widen(op.getScales());
    if (op.getWhole())
      scales = w.mul(scales, w.cast(op.getWhole(), wide));
    Value product = writeInBlocks(scales);
    if (!product)
      product = w.mul(getNumbers(), repeat(scales));
    return w.cast(w.reshape(product, op.getCodeShape()), elementOf(op.getResult()));
  }

private:
  Value widen(Value codes) {
    if (!isCode(elementOf(codes)))
      return w.cast(codes, wide);
    return w.cast(makeWiden(codes, Value(), w.getBuilder().getF32Type()), wide);
  }

  Value makeWiden(Value codes, Value half, Type element) {
    SmallVector<int64_t> shape(shapeOf(codes));
    if (half)
      shape.back() = kPerByte;
    return WidenOp::create(w.getBuilder(), w.getLoc(), RankedTensorType::get(shape, element), codes,
                           half);
  }

  /// The numbers of the codes, in their shape.
  Value getNumbers() {
    OpBuilder &b = w.getBuilder();
    Value codes = op.getCodes(), half;
    if (op.getPacked()) {
      SmallVector<int64_t> pairs(shapeOf(codes));
      pairs.push_back(1);
      codes = w.reshape(codes, pairs);
      half = w.iota(0, RankedTensorType::get({kPerByte}, b.getI32Type()));
    }
    if (!op.getTable()) {
      Value numbers = half ? makeWiden(codes, half, b.getF32Type()) : widen(codes);
      return w.reshape(w.cast(numbers, wide), op.getCodeShape());
    }
    Value indices = w.reshape(makeWiden(codes, half, b.getI32Type()), op.getCodeShape());
    auto type = RankedTensorType::get(op.getCodeShape(), elementOf(op.getTable()));
    return w.cast(GatherOp::create(b, w.getLoc(), type, op.getTable(), indices, 0), wide);
  }

  /// Blocks and elements of a block as dimensions of their own, along which scales broadcast. Null if
  /// the last block is cut.
  Value writeInBlocks(Value scales) {
    SmallVector<int64_t> apart, ofScales;
    for (auto [size, block, blocks] :
         llvm::zip_equal(op.getCodeShape(), op.getBlockSizes(), shapeOf(scales))) {
      if (size != blocks * block && blocks > 1)
        return {};
      ofScales.push_back(blocks);
      apart.push_back(blocks);
      if (block == 1)
        continue;
      ofScales.push_back(1);
      apart.push_back(blocks > 1 ? block : size);
    }
    return w.mul(w.reshape(getNumbers(), apart), w.reshape(scales, ofScales));
  }

  /// The scale of each element.
  Value repeat(Value scales) {
    SmallVector<int64_t> shape = op.getCodeShape(), block = op.getBlockSizes();
    for (auto [dim, size] : llvm::enumerate(block))
      if (size != 1)
        scales = w.repeat(scales, dim, size, shape[dim]);
    return scales;
  }

  Writer w;
  DequantizeOp op;
  /// The type that computes.
  Type wide;
};

} // namespace

Value DequantizeOp::expand(OpBuilder &builder) { return Expansion(builder, *this).write(); }

//===----------------------------------------------------------------------===//
// nn.widen
//===----------------------------------------------------------------------===//

/// Checks that
///  - bytes that hold two codes are i8;
///  - the operands broadcast to the shape of the result.
LogicalResult WidenOp::verify() {
  if (getHalf() && !elementOf(getCodes()).isInteger(8))
    return emitOpError() << "expected bytes of i8 whose halves are codes, got "
                         << getCodes().getType();
  return verifyBroadcast(*this, getOperands(), getResult());
}

FactorRule WidenOp::getFactorRule() { return dist::getElementwiseRule(*this); }

Padding WidenOp::getResultPadding(const Operands &in) {
  if (!padding::isZero(in[0]))
    return Padding::Arbitrary;
  // Zero bits are zero. Those of a power of two are the smallest one.
  return isa<Float8E8M0FNUType>(elementOf(getCodes())) ? Padding{0, std::ldexp(1.0, -127)} : Padding::Zero;
}
