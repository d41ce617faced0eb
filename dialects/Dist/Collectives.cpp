//===- Collectives.cpp - what all collectives share -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "llvm/ADT/SmallBitVector.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Queries
//===----------------------------------------------------------------------===//

bool dist::communicates(Operation *op) {
  auto collective = dyn_cast_or_null<CollectiveOpInterface>(op);
  return collective && collective.communicates();
}

AxisList CollectiveOpInterface::getGroupAxes(MeshAttr mesh) {
  if (ArrayAttr axes = getAxes())
    return dist::getAxes(axes, mesh);
  llvm::SmallBitVector used(mesh.getAxes().size());
  auto use = [&](ShardingAttr sharding) {
    // Between two meshes any rank may send to any.
    if (lookupMesh(*this, sharding.getMesh()) != mesh) {
      used.set();
      return;
    }
    for (DimShardingAttr dim : sharding.getDims())
      for (FactorShardingAttr factor : dim.getFactors())
        for (AxisRefAttr axis : factor.getAxes())
          used.set(getAxis(axis, mesh).axis);
  };
  for (unsigned i = 0; i < (*this)->getNumOperands(); ++i) {
    auto [from, to] = *getShardings(i);
    use(from);
    use(to);
  }
  AxisList axes;
  for (int i : used.set_bits())
    axes.push_back({i, 1, mesh.getAxes()[i].getSize()});
  return axes;
}

//===----------------------------------------------------------------------===//
// Joining
//===----------------------------------------------------------------------===//

/// Attributes with an entry for each operand or result, which few ops have.
static constexpr StringLiteral kStatements[] = {kOperandsAttr, kResultsAttr};

DictionaryAttr CollectiveOpInterface::getSharedAttributes() {
  NamedAttrList shared;
  for (NamedAttribute attribute : (*this)->getAttrs())
    if (!llvm::is_contained(getPerOperandAttributes(), attribute.getName().getValue()) &&
        !llvm::is_contained(kStatements, attribute.getName().getValue()))
      shared.append(attribute);
  return shared.getDictionary((*this)->getContext());
}

/// The entries of a per-operand attribute of all launches, in order.
static Attribute concatenate(ArrayRef<CollectiveOpInterface> launches, StringRef name) {
  MLIRContext *context = launches.front()->getContext();
  if (isa<DenseI64ArrayAttr>(launches.front()->getAttr(name))) {
    SmallVector<int64_t> all;
    for (CollectiveOpInterface launch : launches)
      llvm::append_range(all, launch->getAttrOfType<DenseI64ArrayAttr>(name).asArrayRef());
    return DenseI64ArrayAttr::get(context, all);
  }
  SmallVector<Attribute> all;
  for (CollectiveOpInterface launch : launches)
    llvm::append_range(all, launch->getAttrOfType<ArrayAttr>(name));
  return ArrayAttr::get(context, all);
}

/// The entries of a statement of all launches, in order. A launch without a statement has unit
/// attributes. Null if no launch has one.
static Attribute concatenateStatements(ArrayRef<CollectiveOpInterface> launches, StringRef name) {
  MLIRContext *context = launches.front()->getContext();
  SmallVector<Attribute> all;
  for (CollectiveOpInterface launch : launches) {
    if (auto own = launch->getAttrOfType<ArrayAttr>(name))
      llvm::append_range(all, own);
    else
      all.append(launch->getNumOperands(), UnitAttr::get(context));
  }
  bool states = llvm::any_of(all, [](Attribute entry) { return !isa<UnitAttr>(entry); });
  return states ? ArrayAttr::get(context, all) : nullptr;
}

double dist::getNeutral(ReductionKind kind, Type element) {
  if (kind == ReductionKind::Sum)
    return 0;
  return element.isInteger() ? -std::ldexp(1.0, element.getIntOrFloatBitWidth() - 1)
                             : -std::numeric_limits<double>::infinity();
}

CollectiveOpInterface dist::joinCollectives(OpBuilder &builder,
                                            ArrayRef<CollectiveOpInterface> launches) {
  CollectiveOpInterface first = launches.front();
  SmallVector<Location> locations;
  for (CollectiveOpInterface launch : launches)
    locations.push_back(launch.getLoc());
  OperationState state(FusedLoc::get(first->getContext(), locations), first->getName());
  state.attributes = NamedAttrList(first.getSharedAttributes());
  for (StringRef name : first.getPerOperandAttributes())
    state.attributes.set(name, concatenate(launches, name));
  for (StringRef name : kStatements)
    if (Attribute all = concatenateStatements(launches, name))
      state.attributes.set(name, all);
  for (CollectiveOpInterface launch : launches) {
    state.addOperands(launch->getOperands());
    state.addTypes(launch->getResultTypes());
  }
  return cast<CollectiveOpInterface>(builder.create(state));
}

//===----------------------------------------------------------------------===//
// Folding
//===----------------------------------------------------------------------===//

/// Returns true if each rank has its own chunk again after `first` and then `second` moved
/// chunks between the `ranks` of a group. Empty lists move none.
static bool isIdentity(ArrayRef<int64_t> first, ArrayRef<int64_t> second, int64_t ranks) {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t source = second.empty() ? rank : second[rank];
    if (source >= 0 && !first.empty())
      source = first[source];
    if (source != rank)
      return false;
  }
  return true;
}

/// Returns true if result `i` of `op` is what operand `j` of `above` was:
/// - its operand is result `j` of `above`;
/// - neither reduces;
/// - both act over the same axes, in the same order;
/// - they move rows: they lose or gain a dimension, move chunks or state layouts;
/// - the dimension that one gains the other loses, the layout that one goes to the other
///   comes from, and chunks are back on their ranks;
/// - the type is the same again, so that no padding was added or is missing.
///
/// A slice keeps one chunk of a value that the ranks of the group have alike, so that a
/// gather of it restores the whole on all of them. The orders of a dimension's elements
/// (zigzag, striped) are those of the whole, which no collective changes; padding is the
/// tail of the whole and moves like its rows. A redistribute may fill padding anew, with
/// zeros, which its result's users have to expect besides the old one.
static bool undoes(CollectiveOpInterface op, unsigned i, CollectiveOpInterface above, unsigned j) {
  if (op->getResult(i).getType() != above->getOperand(j).getType() || op.getReduction() ||
      above.getReduction() || op.getAxes() != above.getAxes())
    return false;
  auto from = above.getShardings(j), to = op.getShardings(i);
  if (from || to)
    return from && to && from->first == to->second && from->second == to->first;
  std::optional<int64_t> lost = op.getLostDim(i), gained = op.getGainedDim(i);
  if (lost != above.getGainedDim(j) || gained != above.getLostDim(j) ||
      (!lost && !gained && !(op.movesChunks() && above.movesChunks())))
    return false;
  MeshAttr mesh = getSpmdMesh(op);
  if (!mesh)
    return false;
  int64_t ranks = getNumShards(getAxes(op.getAxes(), mesh));
  return isIdentity(above.getChunkSources(ranks), op.getChunkSources(ranks), ranks);
}

LogicalResult dist::detail::foldCollective(Operation *op,
                                           SmallVectorImpl<OpFoldResult> &results) {
  auto collective = cast<CollectiveOpInterface>(op);
  if (collective.countsRows())
    return failure();
  SmallVector<OpFoldResult> sources;
  for (OpOperand &operand : op->getOpOperands()) {
    auto result = dyn_cast<OpResult>(operand.get());
    auto above = result ? dyn_cast<CollectiveOpInterface>(result.getOwner()) : nullptr;
    if (!above || above.countsRows() || !undoes(collective, operand.getOperandNumber(), above, result.getResultNumber()))
      return failure();
    sources.push_back(above->getOperand(result.getResultNumber()));
  }
  results.append(sources);
  return success();
}

//===----------------------------------------------------------------------===//
// Verification
//===----------------------------------------------------------------------===//

FailureOr<int64_t> dist::detail::verifyAxes(Operation *op, ArrayAttr refs) {
  FlatSymbolRefAttr symbol = getSpmdMeshSymbol(op);
  if (!symbol)
    return op->emitOpError() << "expected to be in a function with 'dist.spmd'";
  MeshAttr mesh = lookupMesh(op, symbol);
  if (!mesh)
    return op->emitOpError() << "no mesh named @" << symbol.getValue();
  AxisList axes;
  for (auto ref : refs.getAsRange<AxisRefAttr>()) {
    int index = mesh.getAxisIndex(ref.getName());
    if (index < 0)
      return op->emitOpError() << "unknown mesh axis \"" << ref.getName() << "\"";
    int64_t size = mesh.getAxes()[index].getSize();
    if (!ref.divides(size))
      return op->emitOpError() << "part (" << ref.getPreSize() << ")" << ref.getSubSize()
                               << " does not divide axis \"" << ref.getName() << "\" of size "
                               << size;
    Axis axis = getAxis(ref, mesh);
    if (axis.size > 1 && anyOverlap(axes, axis))
      return op->emitOpError() << "axis \"" << ref.getName() << "\" occurs twice";
    axes.push_back(axis);
  }
  return getNumShards(axes);
}

/// - there is an operand, and a result for each;
/// - shapes are static;
/// - an operand and its result have the same rank and element type.
static LogicalResult verifyOperands(Operation *op) {
  if (op->getNumOperands() == 0)
    return op->emitOpError() << "expected at least one operand";
  if (op->getNumOperands() != op->getNumResults())
    return op->emitOpError() << "expected as many operands as results, got " << op->getNumOperands()
                             << " operands and " << op->getNumResults() << " results";
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

/// - a collective that combines partial values, or makes them, has operands that are no codes.
static LogicalResult verifyCombined(CollectiveOpInterface op) {
  if (!op.getReduction() && op.getKind() != CollectiveKind::Partial)
    return success();
  for (auto [i, type] : llvm::enumerate(op->getOperandTypes()))
    if (isCode(getElementTypeOrSelf(type)))
      return op->emitOpError() << "operand " << i << ": expected elements that have sums, got "
                               << type << ": programs only store and move "
                               << getElementTypeOrSelf(type);
  return success();
}

/// - an attribute that lists dimensions has one for each operand;
/// - the operand has the dimension.
static LogicalResult verifyDims(CollectiveOpInterface op) {
  for (StringRef name : op.getPerOperandAttributes()) {
    auto dims = op->getAttrOfType<DenseI64ArrayAttr>(name);
    if (!dims)
      continue;
    if (dims.size() != op->getNumOperands())
      return op->emitOpError() << "'" << name << "': expected one dimension for each of the "
                               << op->getNumOperands() << " operands, got " << dims.size();
    for (auto [dim, type] : llvm::zip_equal(dims.asArrayRef(), op->getOperandTypes()))
      if (dim < 0 || dim >= cast<RankedTensorType>(type).getRank())
        return op->emitOpError() << "dimension " << dim << " is out of range for " << type;
  }
  return success();
}

/// - the dimension that gains axes divides over the `ranks` of the group, or has chunks
///   that hold all of it where they may be padded;
/// - the dimension that loses axes becomes `ranks` times as large;
/// - all other dimensions keep their size.
static LogicalResult verifyShape(CollectiveOpInterface op, unsigned i, int64_t ranks) {
  auto in = cast<RankedTensorType>(op->getOperand(i).getType());
  auto out = cast<RankedTensorType>(op->getResult(i).getType());
  SmallVector<int64_t> expected(in.getShape());
  if (std::optional<int64_t> dim = op.getGainedDim(i)) {
    int64_t &size = expected[*dim];
    int64_t chunk = op.padsChunks() ? out.getDimSize(*dim) : size / ranks;
    if (op.padsChunks() && chunk * ranks < size)
      return op->emitOpError() << "result " << i << ", dimension " << *dim
                               << ": expected at least size " << llvm::divideCeil(size, ranks)
                               << " for the operand's " << size << " rows over " << ranks
                               << " ranks, got " << chunk;
    if (!op.padsChunks() && size % ranks != 0)
      return op->emitOpError() << "operand " << i << ", dimension " << *dim
                               << ": expected a multiple of the " << ranks
                               << " ranks of the group, got size " << size;
    size = chunk;
  }
  if (std::optional<int64_t> dim = op.getLostDim(i))
    if (llvm::MulOverflow(expected[*dim], ranks, expected[*dim]))
      return op->emitOpError() << "expected a result of less than 2^63 rows, got more";
  if (ArrayRef<int64_t>(expected) != out.getShape())
    return op->emitOpError() << "result " << i << ": expected "
                             << RankedTensorType::get(expected, in.getElementType()) << ", got "
                             << out;
  return success();
}

LogicalResult dist::detail::verifyCollective(Operation *op) {
  auto collective = cast<CollectiveOpInterface>(op);
  ArrayAttr axes = collective.getAxes();
  FailureOr<int64_t> ranks = axes ? verifyAxes(op, axes) : FailureOr<int64_t>(1);
  if (failed(ranks) || failed(verifyOperands(op)) || failed(verifyCombined(collective)) ||
      failed(verifyDims(collective)))
    return failure();
  // The op itself verifies the sizes of counted rows.
  for (unsigned i = 0; axes && !collective.countsRows() && i < op->getNumOperands(); ++i)
    if (failed(verifyShape(collective, i, *ranks)))
      return failure();
  return success();
}
