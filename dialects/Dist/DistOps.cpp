//===- DistOps.cpp - syntax and verifiers of the dist dialect's ops -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/AxisSyntax.h"
#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/IR/Builders.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Custom directives
//===----------------------------------------------------------------------===//

/// axes ::= `[` axis-ref (`,` axis-ref)* `]`
static ParseResult parseAxes(OpAsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> refs;
  auto parseOne = [&]() -> ParseResult {
    FailureOr<AxisRefAttr> axis = parseAxisRef(parser);
    if (failed(axis))
      return failure();
    refs.push_back(*axis);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseOne))
    return failure();
  axes = ArrayAttr::get(parser.getContext(), refs);
  return success();
}

static void printAxes(OpAsmPrinter &printer, Operation *, ArrayAttr axes) {
  printer << '[';
  llvm::interleaveComma(axes.getAsRange<AxisRefAttr>(), printer,
                        [&](AxisRefAttr axis) { printAxisRef(printer, axis); });
  printer << ']';
}

/// pairs ::= `[` (`[` integer `,` integer `]`)* `]`
static ParseResult parsePairs(OpAsmParser &parser, DenseI64ArrayAttr &pairs) {
  SmallVector<int64_t> flat;
  auto parseOne = [&]() -> ParseResult {
    int64_t from, to;
    if (parser.parseLSquare() || parser.parseInteger(from) || parser.parseComma() ||
        parser.parseInteger(to) || parser.parseRSquare())
      return failure();
    flat.append({from, to});
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseOne))
    return failure();
  pairs = DenseI64ArrayAttr::get(parser.getContext(), flat);
  return success();
}

static void printPairs(OpAsmPrinter &printer, Operation *, DenseI64ArrayAttr pairs) {
  printer << '[';
  for (int64_t i = 0; i + 1 < pairs.size(); i += 2)
    printer << (i ? ", [" : "[") << pairs[i] << ", " << pairs[i + 1] << ']';
  printer << ']';
}

#define GET_OP_CLASSES
#include "meshwright/dialects/Dist/DistOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

/// The sources of chunks that are all moved on by `shift` ranks.
static SmallVector<int64_t> shiftChunks(int64_t shift, int64_t ranks) {
  SmallVector<int64_t> sources(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank)
    sources[((rank + shift) % ranks + ranks) % ranks] = rank;
  return sources;
}

SmallVector<int64_t> SliceOp::getChunkSources(int64_t ranks) {
  int64_t shift = getShift();
  return shift % ranks == 0 ? SmallVector<int64_t>() : shiftChunks(shift, ranks);
}

SmallVector<int64_t> PermuteOp::getChunkSources(int64_t ranks) {
  if (!getPairs())
    return shiftChunks(getShift().value_or(0), ranks);
  SmallVector<int64_t> sources(ranks, -1);
  ArrayRef<int64_t> pairs = *getPairs();
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    sources[pairs[i + 1]] = pairs[i];
  return sources;
}

SmallVector<int64_t> PlaceOp::getWrappedShifts(int64_t ranks) {
  return llvm::map_to_vector(getShifts(),
                             [&](int64_t shift) { return (shift % ranks + ranks) % ranks; });
}

//===----------------------------------------------------------------------===//
// Verifiers
//===----------------------------------------------------------------------===//

LogicalResult ConstrainOp::verify() {
  if (getSpmdMeshSymbol(*this))
    return emitOpError() << "expected to be in a global program, got a function with 'dist.spmd'";
  auto type = cast<RankedTensorType>(getInput().getType());
  ShardingAttr sharding = getSharding();
  if (sharding.getRank() != type.getRank())
    return emitOpError() << "expected a sharding of " << type.getRank() << " dimensions, got "
                         << sharding.getRank();
  MeshAttr mesh = lookupMesh(*this, sharding.getMesh());
  if (!mesh)
    return emitOpError() << "no mesh named @" << sharding.getMesh().getValue();
  return sharding.verifyForMesh(mesh, [&] { return emitOpError(); });
}

/// - the op is in a global program;
/// - `rows` divides dimension 0, and `align` is positive.
static LogicalResult verifyStorage(Operation *op, int64_t rows, int64_t align) {
  if (getSpmdMeshSymbol(op))
    return op->emitOpError()
           << "expected to be in a global program, got a function with 'dist.spmd'";
  auto type = cast<RankedTensorType>(op->getOperand(0).getType());
  if (type.getRank() == 0 || !type.hasStaticShape())
    return op->emitOpError() << "expected a tensor of static shape with a dimension, got " << type;
  if (rows < 1 || type.getDimSize(0) % rows != 0)
    return op->emitOpError() << "expected rows to divide the " << type.getDimSize(0)
                             << " of dimension 0, got " << rows;
  if (align < 1)
    return op->emitOpError() << "expected align to be at least 1, got " << align;
  return success();
}

/// One factor for each dimension but the first, which has the number of the part, and the rows of
/// use and of storage. Both are read whole.
static FactorRule getStorageRule(Operation *op, int64_t rows, int64_t align, bool isFetch) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(op->getOperand(0).getType()).getShape();
  FactorRule rule;
  int part = rule.addFactor(shape[0] / rows);
  int used = rule.addFactor(rows, FactorKind::Special);
  int stored = rule.addFactor(rows, FactorKind::Special);
  rule.factors[stored].align = align;
  FactorRule::ValueFactors rest = rule.addFactors(shape.drop_front());
  FactorRule::ValueFactors use{{part, used}}, storage{{part, stored}};
  use.append(rest);
  storage.append(rest);
  rule.operands = {isFetch ? storage : use};
  rule.results = {isFetch ? use : storage};
  rule.linearOperands = {0};
  return rule;
}

/// The size of dimension 0; 1 of a scalar, which the verifier refuses.
static int64_t countRows(RankedTensorType type) {
  return type.getRank() == 0 ? 1 : type.getDimSize(0);
}

int64_t FetchOp::getPartRows() {
  return getRows().value_or(countRows(getType()));
}
LogicalResult FetchOp::verify() { return verifyStorage(*this, getPartRows(), getAlign()); }
FactorRule FetchOp::getFactorRule() {
  return getStorageRule(*this, getPartRows(), getAlign(), /*isFetch=*/true);
}

int64_t StowOp::getPartRows() {
  return getRows().value_or(countRows(getType()));
}
LogicalResult StowOp::verify() { return verifyStorage(*this, getPartRows(), getAlign()); }
FactorRule StowOp::getFactorRule() {
  return getStorageRule(*this, getPartRows(), getAlign(), /*isFetch=*/false);
}

/// - the axes are those of the mesh;
/// - the result has the operand's shape behind a dimension of one element.
LogicalResult PartsOp::verify() {
  if (failed(detail::verifyAxes(*this, getAxes())))
    return failure();
  auto type = cast<RankedTensorType>(getInput().getType());
  SmallVector<int64_t> shape(type.getShape());
  shape.insert(shape.begin(), 1);
  if (RankedTensorType expected = type.clone(shape); getResult().getType() != expected)
    return emitOpError() << "expected a result of " << expected << ", got " << getResult().getType();
  return success();
}

/// - no dimension moves to itself.
LogicalResult AllToAllOp::verify() {
  for (auto [from, to] : llvm::zip_equal(getFrom(), getTo()))
    if (from == to)
      return emitOpError() << "moves dimension " << from << " to itself";
  return success();
}

/// - either a shift or pairs;
/// - the ranks of pairs are in the group, none is a destination twice, and there is one.
LogicalResult PermuteOp::verify() {
  if (getShift().has_value() == getPairs().has_value())
    return emitOpError() << "expected either 'shift' or 'pairs'";
  if (!getPairs())
    return success();
  int64_t size = getNumShards(dist::getAxes(getAxes(), getSpmdMesh(*this)));
  ArrayRef<int64_t> pairs = *getPairs();
  if (pairs.size() % 2 != 0)
    return emitOpError() << "'pairs': expected an even number of ranks";
  llvm::SmallDenseSet<int64_t> to;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    for (int64_t rank : {pairs[i], pairs[i + 1]})
      if (rank < 0 || rank >= size)
        return emitOpError() << "'pairs': expected ranks of a group of " << size << ", got " << rank;
    if (!to.insert(pairs[i + 1]).second)
      return emitOpError() << "'pairs' sends to rank " << pairs[i + 1] << " twice";
  }
  if (to.empty())
    return emitOpError() << "'pairs' names no ranks";
  return success();
}

/// - a source and a target for each operand, of its rank;
/// - their meshes exist and have the axes;
/// - neither has unreduced axes.
LogicalResult RedistributeOp::verify() {
  if (getFrom().size() != getNumOperands() || getTo().size() != getNumOperands())
    return emitOpError() << "expected one sharding in 'from' and in 'to' for each of the "
                         << getNumOperands() << " operands";
  for (auto [i, from, to] :
       llvm::enumerate(getFrom().getAsRange<ShardingAttr>(), getTo().getAsRange<ShardingAttr>())) {
    auto in = cast<RankedTensorType>(getOperand(i).getType());
    for (bool source : {true, false}) {
      ShardingAttr sharding = source ? from : to;
      StringRef name = source ? "from" : "to";
      MeshAttr mesh = lookupMesh(*this, sharding.getMesh());
      if (!mesh)
        return emitOpError() << "'" << name << "': no mesh named @"
                             << sharding.getMesh().getValue();
      if (sharding.getRank() != in.getRank())
        return emitOpError() << "'" << name << "': expected " << in.getRank() << " dimensions, got "
                             << sharding.getRank();
      if (!sharding.getUnreduced().empty())
        return emitOpError() << "'" << name << "': unreduced axes cannot be redistributed";
      if (failed(
              sharding.verifyForMesh(mesh, [&] { return emitOpError() << "'" << name << "': "; })))
        return failure();
    }
  }
  return success();
}

LogicalResult PadOp::verify() {
  auto in = cast<RankedTensorType>(getInput().getType());
  auto out = cast<RankedTensorType>(getResult().getType());
  if (!in.hasStaticShape() || !out.hasStaticShape() || in.getRank() != out.getRank() ||
      in.getElementType() != out.getElementType())
    return emitOpError() << "operand " << in << " and result " << out
                         << ": expected static tensors of one rank and element type";
  for (int64_t dim : getDims())
    if (dim < 0 || dim >= in.getRank())
      return emitOpError() << "dimension " << dim << " is out of range for " << in;
  for (int64_t d = 0; d < in.getRank(); ++d) {
    bool listed = llvm::is_contained(getDims(), d);
    if (listed ? out.getDimSize(d) < in.getDimSize(d) : out.getDimSize(d) != in.getDimSize(d))
      return emitOpError() << "dimension " << d << ": expected " << (listed ? "at least " : "")
                           << "the operand's size " << in.getDimSize(d) << ", got "
                           << out.getDimSize(d);
  }
  return success();
}

LogicalResult MaskPaddingOp::verify() {
  FailureOr<int64_t> ranks = dist::detail::verifyAxes(*this, getAxes());
  if (failed(ranks))
    return failure();
  auto type = cast<RankedTensorType>(getInput().getType());
  int64_t dim = getDim();
  if (dim < 0 || dim >= type.getRank())
    return emitOpError() << "dimension " << dim << " is out of range for " << type;
  int64_t size = getSize();
  if (size < 0 || size > type.getDimSize(dim) * *ranks)
    return emitOpError() << "dimension " << dim << ": expected a true size of at most " << *ranks
                         << " chunks of " << type.getDimSize(dim) << ", got " << size;
  return success();
}

/// - the factor has a size;
/// - the mesh has its axes and parts, and none occurs twice;
/// - its padded size divides over its shards and over the ranks of its order.
static LogicalResult verifyFactor(Operation *op, StringRef name, FactorShardingAttr factor,
                                  MeshAttr mesh) {
  if (factor.getSize() < 1)
    return op->emitOpError() << "'" << name << "' gives no size";
  AxisList axes;
  for (AxisRefAttr ref : factor.getAxes()) {
    int index = mesh.getAxisIndex(ref.getName());
    if (index < 0 || !ref.divides(mesh.getAxes()[index].getSize()))
      return op->emitOpError() << "'" << name << "': the mesh has no axis or part \""
                               << ref.getName() << "\"";
    Axis axis = getAxis(ref, mesh);
    if (axis.size > 1 && anyOverlap(axes, axis))
      return op->emitOpError() << "'" << name << "': axis \"" << ref.getName() << "\" occurs twice";
    axes.push_back(axis);
  }
  LayoutFactor layout = getFactor(factor, mesh);
  int64_t shards = getNumShards(layout.axes);
  if (layout.padded < layout.size || layout.padded % shards != 0 ||
      layout.padded % layout.orderRanks != 0)
    return op->emitOpError() << "'" << name << "': a factor of size " << layout.size
                             << " padded to " << layout.padded << " does not divide over " << shards
                             << " shards in an order for " << layout.orderRanks << " ranks";
  return success();
}

LogicalResult ReorderOp::verify() {
  MeshAttr mesh = getSpmdMesh(*this);
  if (!mesh)
    return emitOpError() << "expected to be in a function with 'dist.spmd'";
  auto type = cast<RankedTensorType>(getInput().getType());
  if (int64_t dim = getDim(); dim < 0 || dim >= type.getRank())
    return emitOpError() << "dimension " << dim << " is out of range for " << type;
  for (auto [name, factor] : {std::pair("from", getFrom()), std::pair("to", getTo())}) {
    if (failed(verifyFactor(*this, name, factor, mesh)))
      return failure();
    if (!factor.getAxes().empty())
      return emitOpError() << "'" << name << "': expected a whole dimension, got a sharded one";
    if (int64_t padded = getFactor(factor, mesh).padded; padded != type.getDimSize(getDim()))
      return emitOpError() << "'" << name << "': expected the " << type.getDimSize(getDim())
                           << " elements of dimension " << getDim() << ", got " << padded;
  }
  if (getFrom().getSize() != getTo().getSize())
    return emitOpError() << "expected 'to' to have the " << getFrom().getSize()
                         << " true elements of 'from', got " << getTo().getSize();
  return success();
}

/// - there is a chunk, and each has a shift of its own;
/// - chunks have one static type, and the result as many chunks along 'dim' as there are shards.
LogicalResult PlaceOp::verify() {
  FailureOr<int64_t> ranks = dist::detail::verifyAxes(*this, getAxes());
  if (failed(ranks))
    return failure();
  if (getChunks().empty() || getShifts().size() != getChunks().size())
    return emitOpError() << "expected one shift for each of at least one chunk, got "
                         << getShifts().size() << " shifts for " << getChunks().size() << " chunks";
  llvm::SmallDenseSet<int64_t> seen;
  for (int64_t shift : getWrappedShifts(*ranks))
    if (!seen.insert(shift).second)
      return emitOpError() << "places two chunks with shift " << shift << " of " << *ranks;
  auto type = cast<RankedTensorType>(getChunks().front().getType());
  for (Type other : getChunks().getTypes())
    if (other != type)
      return emitOpError() << "expected chunks of one type, got " << type << " and " << other;
  int64_t dim = getDim();
  if (dim < 0 || dim >= type.getRank())
    return emitOpError() << "dimension " << dim << " is out of range for " << type;
  if (!type.hasStaticShape())
    return emitOpError() << "expected chunks of static shape, got " << type;
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] *= *ranks;
  if (getResult().getType() != type.clone(shape))
    return emitOpError() << "expected result of type " << type.clone(shape) << ", got "
                         << getResult().getType();
  return success();
}

LogicalResult PositionsOp::verify() {
  MeshAttr mesh = getSpmdMesh(*this);
  if (!mesh)
    return emitOpError() << "expected to be in a function with 'dist.spmd'";
  if (failed(verifyFactor(*this, "factor", getFactor(), mesh)))
    return failure();
  if (bool(getSize()) != bool(getFactor().getRuntimeSize()))
    return emitOpError() << (getSize() ? "gives a size of a factor without a run-time size"
                                       : "expected the size of a factor with a run-time size");
  auto type = cast<RankedTensorType>(getResult().getType());
  int64_t local = dist::getFactor(getFactor(), mesh).getLocalSize();
  if (type.getRank() != 1 || !type.getElementType().isInteger(64) || type.getDimSize(0) != local)
    return emitOpError() << "expected result of type tensor<" << local << "xi64>, got " << type;
  return success();
}

LogicalResult AxisIndexOp::verify() {
  if (failed(dist::detail::verifyAxes(*this, getAxes())))
    return failure();
  auto type = cast<RankedTensorType>(getResult().getType());
  if (type.getRank() != 0 || !type.getElementType().isInteger(64))
    return emitOpError() << "expected result of type tensor<i64>, got " << type;
  return success();
}
