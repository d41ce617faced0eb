//===- DistOps.cpp - verifiers of collectives -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/IR/Builders.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Custom directives
//===----------------------------------------------------------------------===//

/// axes ::= `[` axis-ref (`,` axis-ref)* `]`
static ParseResult parseAxes(OpAsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> refs;
  auto parseOne = [&]() -> ParseResult {
    std::string name;
    int64_t pre = 1, size = 0;
    if (parser.parseString(&name))
      return failure();
    if (succeeded(parser.parseOptionalColon())) {
      SMLoc loc = parser.getCurrentLocation();
      if (parser.parseLParen() || parser.parseInteger(pre) || parser.parseRParen() ||
          parser.parseInteger(size))
        return failure();
      if (pre < 1 || size < 1)
        return parser.emitError(loc, "part of axis \"") << name << "\": expected positive sizes";
    }
    refs.push_back(AxisRefAttr::get(parser.getContext(), name, pre, size));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseOne))
    return failure();
  axes = ArrayAttr::get(parser.getContext(), refs);
  return success();
}

static void printAxes(OpAsmPrinter &printer, Operation *, ArrayAttr axes) {
  printer << '[';
  llvm::interleaveComma(axes.getAsRange<AxisRefAttr>(), printer, [&](AxisRefAttr axis) {
    printer << '"' << axis.getName() << '"';
    if (axis.getSubSize() != 0)
      printer << ":(" << axis.getPreSize() << ')' << axis.getSubSize();
  });
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
// Verifiers
//===----------------------------------------------------------------------===//

namespace {

/// The mesh around an op and its checked axes; null mesh outside an SPMD
/// function, where only the shapes that need no group size are checked.
struct Group {
  MeshAttr mesh;
  int64_t size = 0;
};

/// Axes exist, parts divide, none occurs twice.
FailureOr<Group> verifyAxes(Operation *op, ArrayAttr refs) {
  Group group;
  FlatSymbolRefAttr symbol = getSpmdMeshSymbol(op);
  if (!symbol)
    return op->emitOpError() << "expected to be in a function with 'dist.spmd'";
  group.mesh = lookupMesh(op, symbol);
  if (!group.mesh)
    return op->emitOpError() << "no mesh named @" << symbol.getValue();
  AxisList axes;
  group.size = 1;
  for (auto ref : refs.getAsRange<AxisRefAttr>()) {
    int index = group.mesh.getAxisIndex(ref.getName());
    if (index < 0)
      return op->emitOpError() << "unknown mesh axis \"" << ref.getName() << "\"";
    int64_t size = group.mesh.getAxes()[index].getSize();
    if (!ref.divides(size))
      return op->emitOpError() << "part (" << ref.getPreSize() << ")" << ref.getSubSize()
                               << " does not divide axis \"" << ref.getName() << "\" of size "
                               << size;
    Axis axis = getAxis(ref, group.mesh);
    if (axis.size > 1 && anyOverlap(axes, axis))
      return op->emitOpError() << "axis \"" << ref.getName() << "\" occurs twice";
    axes.push_back(axis);
    group.size *= axis.size;
  }
  return group;
}

/// As many results as operands, each a static tensor of the operand's element
/// type.
LogicalResult verifyPairs(Operation *op) {
  if (op->getNumOperands() == 0)
    return op->emitOpError() << "expected at least one operand";
  if (op->getNumOperands() != op->getNumResults())
    return op->emitOpError() << "has " << op->getNumOperands() << " operands and "
                             << op->getNumResults() << " results, expected as many of each";
  for (auto [in, out] : llvm::zip_equal(op->getOperandTypes(), op->getResultTypes())) {
    auto a = cast<RankedTensorType>(in), b = cast<RankedTensorType>(out);
    if (!a.hasStaticShape() || !b.hasStaticShape())
      return op->emitOpError() << "expected tensors of static shape, got " << a << " and " << b;
    if (a.getElementType() != b.getElementType() || a.getRank() != b.getRank())
      return op->emitOpError() << "operand " << a << " and result " << b
                               << " differ in rank or element type";
  }
  return success();
}

LogicalResult verifyDims(Operation *op, ArrayRef<int64_t> dims, StringRef name) {
  if (dims.size() != op->getNumOperands())
    return op->emitOpError() << "'" << name << "' lists " << dims.size()
                             << " dimensions, expected one for each of the " << op->getNumOperands()
                             << " operands";
  for (auto [dim, type] : llvm::zip_equal(dims, op->getOperandTypes()))
    if (dim < 0 || dim >= cast<RankedTensorType>(type).getRank())
      return op->emitOpError() << "dimension " << dim << " is out of range for " << type;
  return success();
}

/// Each result's shape is its operand's, with `change` applied.
template <typename Change> LogicalResult verifyShapes(Operation *op, Change change) {
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    auto in = cast<RankedTensorType>(op->getOperand(i).getType());
    auto out = cast<RankedTensorType>(op->getResult(i).getType());
    SmallVector<int64_t> expected(in.getShape());
    if (failed(change(i, expected, out.getShape())))
      return failure();
    if (ArrayRef<int64_t>(expected) != out.getShape())
      return op->emitOpError() << "result " << i << " has type " << out << ", expected "
                               << RankedTensorType::get(expected, in.getElementType());
  }
  return success();
}

LogicalResult multiplySize(Operation *op, int64_t &size, int64_t factor) {
  if (llvm::MulOverflow(size, factor, size))
    return op->emitOpError() << "expected a result of less than 2^63 rows, got more";
  return success();
}

LogicalResult same(unsigned, SmallVectorImpl<int64_t> &, ArrayRef<int64_t>) { return success(); }

} // namespace

LogicalResult ConstrainOp::verify() {
  if (getSpmdMeshSymbol(*this))
    return emitOpError() << "expected to be in a global program, got a function with 'dist.spmd'";
  auto type = cast<RankedTensorType>(getInput().getType());
  ShardingAttr sharding = getSharding();
  if (sharding.getRank() != type.getRank())
    return emitOpError() << "sharding has " << sharding.getRank() << " dimensions, expected "
                         << type.getRank();
  MeshAttr mesh = lookupMesh(*this, sharding.getMesh());
  if (!mesh)
    return emitOpError() << "no mesh named @" << sharding.getMesh().getValue();
  return sharding.verifyForMesh(mesh, [&] { return emitOpError(); });
}

LogicalResult AllReduceOp::verify() {
  if (failed(verifyAxes(*this, getAxes())) || failed(verifyPairs(*this)))
    return failure();
  return verifyShapes(*this, same);
}

LogicalResult PartialOp::verify() {
  if (failed(verifyAxes(*this, getAxes())) || failed(verifyPairs(*this)))
    return failure();
  return verifyShapes(*this, same);
}

LogicalResult ReduceScatterOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group) || failed(verifyPairs(*this)) || failed(verifyDims(*this, getDims(), "dims")))
    return failure();
  return verifyShapes(
      *this, [&](unsigned i, SmallVectorImpl<int64_t> &shape, ArrayRef<int64_t>) -> LogicalResult {
        int64_t &size = shape[getDims()[i]];
        if (size % group->size != 0)
          return emitOpError() << "operand " << i << " has size " << size << " in dimension "
                               << getDims()[i] << ", expected a multiple of the " << group->size
                               << " ranks of the group";
        size /= group->size;
        return success();
      });
}

LogicalResult AllGatherOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group) || failed(verifyPairs(*this)) || failed(verifyDims(*this, getDims(), "dims")))
    return failure();
  return verifyShapes(*this, [&](unsigned i, SmallVectorImpl<int64_t> &shape, ArrayRef<int64_t>) {
    return multiplySize(*this, shape[getDims()[i]], group->size);
  });
}

LogicalResult AllToAllOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group) || failed(verifyPairs(*this)) || failed(verifyDims(*this, getFrom(), "from")) ||
      failed(verifyDims(*this, getTo(), "to")))
    return failure();
  return verifyShapes(
      *this, [&](unsigned i, SmallVectorImpl<int64_t> &shape, ArrayRef<int64_t>) -> LogicalResult {
        if (getFrom()[i] == getTo()[i])
          return emitOpError() << "moves dimension " << getFrom()[i] << " to itself";
        int64_t &size = shape[getTo()[i]];
        if (size % group->size != 0)
          return emitOpError() << "operand " << i << " has size " << size << " in dimension "
                               << getTo()[i] << ", expected a multiple of the " << group->size
                               << " ranks of the group";
        size /= group->size;
        return multiplySize(*this, shape[getFrom()[i]], group->size);
      });
}

LogicalResult SliceOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group) || failed(verifyPairs(*this)) || failed(verifyDims(*this, getDims(), "dims")))
    return failure();
  return verifyShapes(
      *this,
      [&](unsigned i, SmallVectorImpl<int64_t> &shape, ArrayRef<int64_t> result) -> LogicalResult {
        int64_t &size = shape[getDims()[i]];
        int64_t chunk = result[getDims()[i]];
        if (chunk * group->size < size)
          return emitOpError() << "result " << i << " has size " << chunk << " in dimension "
                               << getDims()[i] << ": too small, the operand's " << size
                               << " rows over " << group->size << " ranks need "
                               << llvm::divideCeil(size, group->size);
        size = chunk;
        return success();
      });
}

LogicalResult PermuteOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group) || failed(verifyPairs(*this)))
    return failure();
  if (getShift().has_value() == getPairs().has_value())
    return emitOpError() << "expected either 'shift' or 'pairs'";
  if (getPairs()) {
    ArrayRef<int64_t> pairs = *getPairs();
    if (pairs.size() % 2 != 0)
      return emitOpError() << "'pairs': expected an even number of ranks";
    llvm::SmallDenseSet<int64_t> from, to;
    for (size_t i = 0; i < pairs.size(); i += 2) {
      for (int64_t rank : {pairs[i], pairs[i + 1]})
        if (rank < 0 || rank >= group->size)
          return emitOpError() << "'pairs' names rank " << rank << " of a group of " << group->size;
      if (!to.insert(pairs[i + 1]).second)
        return emitOpError() << "'pairs' sends to rank " << pairs[i + 1] << " twice";
    }
    if (to.empty())
      return emitOpError() << "'pairs' names no ranks";
  }
  return verifyShapes(*this, same);
}

LogicalResult RedistributeOp::verify() {
  if (failed(verifyPairs(*this)))
    return failure();
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
        return emitOpError() << "'" << name << "' has " << sharding.getRank()
                             << " dimensions, expected " << in.getRank();
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
      return emitOpError() << "dimension " << d << " goes from " << in.getDimSize(d) << " to "
                           << out.getDimSize(d) << ", expected " << (listed ? "at least " : "")
                           << in.getDimSize(d);
  }
  return success();
}

LogicalResult MaskPaddingOp::verify() {
  auto group = verifyAxes(*this, getAxes());
  if (failed(group))
    return failure();
  auto type = cast<RankedTensorType>(getInput().getType());
  int64_t dim = getDim();
  if (dim < 0 || dim >= type.getRank())
    return emitOpError() << "dimension " << dim << " is out of range for " << type;
  int64_t size = getSize();
  if (size < 0 || size > type.getDimSize(dim) * group->size)
    return emitOpError() << "true size " << size << " of dimension " << dim << " is larger than "
                         << group->size << " chunks of " << type.getDimSize(dim);
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
  if (failed(verifyDims(*this, getDim(), "dim")))
    return failure();
  for (auto [name, factor] : {std::pair("from", getFrom()), std::pair("to", getTo())}) {
    if (failed(verifyFactor(*this, name, factor, mesh)))
      return failure();
    if (!factor.getAxes().empty())
      return emitOpError() << "'" << name << "' is sharded, expected a whole dimension";
    if (int64_t padded = getFactor(factor, mesh).padded; padded != type.getDimSize(getDim()))
      return emitOpError() << "'" << name << "' has " << padded << " elements, expected the "
                           << type.getDimSize(getDim()) << " of dimension " << getDim();
  }
  if (getFrom().getSize() != getTo().getSize())
    return emitOpError() << "goes from " << getFrom().getSize() << " true elements to "
                         << getTo().getSize();
  return success();
}

LogicalResult PositionsOp::verify() {
  MeshAttr mesh = getSpmdMesh(*this);
  if (!mesh)
    return emitOpError() << "expected to be in a function with 'dist.spmd'";
  if (failed(verifyFactor(*this, "factor", getFactor(), mesh)))
    return failure();
  auto type = cast<RankedTensorType>(getResult().getType());
  int64_t local = dist::getFactor(getFactor(), mesh).getLocalSize();
  if (type.getRank() != 1 || !type.getElementType().isInteger(64) || type.getDimSize(0) != local)
    return emitOpError() << "has type " << type << ", expected tensor<" << local << "xi64>";
  return success();
}

LogicalResult AxisIndexOp::verify() {
  if (failed(verifyAxes(*this, getAxes())))
    return failure();
  auto type = cast<RankedTensorType>(getResult().getType());
  if (type.getRank() != 0 || !type.getElementType().isInteger(64))
    return emitOpError() << "has type " << type << ", expected tensor<i64>";
  return success();
}
