//===- CollectiveCalls.cpp - calls that perform collectives ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/CallModels.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/Refine.h"
#include "meshwright/dialects/Rt/Rt.h"

#include <cstddef>

using namespace mlir;

namespace meshwright::lower {

/// The descriptor of a collective, piece by piece: the structure, its tensors, and more integers.
class CollectiveCall {
public:
  explicit CollectiveCall(dist::CollectiveOpInterface op) : op(op) {
    call.inputs.assign(op->operand_begin(), op->operand_end());
  }

  /// Begins with the fields before the tensors. Fails after an error at the op.
  LogicalResult begin(int64_t kind, int64_t reduction) {
    FailureOr<dist::MeshAttr> mesh = getMesh(op);
    mw_rt_collective what = {};
    what.kind = kind;
    what.reduction = reduction;
    if (failed(mesh) || failed(setAxes(op, op.getGroupAxes(*mesh), what.group)))
      return failure();
    what.num_tensors = op->getNumOperands();
    what.extra = getEnd();
    append(call.descriptor, what, offsetof(mw_rt_collective, tensors));
    return success();
  }

  /// Adds a tensor. Fails after an error at the op.
  LogicalResult addTensor(Value value, ArrayRef<int64_t> in, ArrayRef<int64_t> out, int64_t dim,
                          int64_t toDim, int64_t layouts = 0) {
    if (failed(checkRank(op, in.size())) || failed(checkRank(op, out.size())))
      return failure();
    mw_rt_moved_tensor moved = {};
    moved.dtype = getTypeCode(dist::getBytesType(cast<RankedTensorType>(value.getType()))
                                  .getElementType());
    if (moved.dtype < 0)
      return op->emitOpError("has an element type that the runtime does not know");
    moved.rank = in.size();
    moved.dim = dim;
    moved.to_dim = toDim;
    llvm::copy(in, moved.in_shape);
    llvm::copy(out, moved.out_shape);
    moved.layouts = layouts;
    auto maker = rt::getBuffer(rt::getOuterValue(value)).getDefiningOp<rt::KernelOp>();
    moved.counted = maker && maker.getCountedBy();
    append(call.descriptor, moved);
    return success();
  }

  /// The index of the first integer behind the tensors.
  int64_t getEnd() const {
    return (offsetof(mw_rt_collective, tensors) +
            op->getNumOperands() * sizeof(mw_rt_moved_tensor)) /
           sizeof(int64_t);
  }

  /// Ends with the integers behind the tensors.
  RuntimeCall finish(ArrayRef<int64_t> integers) {
    llvm::append_range(call.descriptor, integers);
    return std::move(call);
  }

private:
  dist::CollectiveOpInterface op;
  RuntimeCall call;
};

/// A collective over the axes that it names. The runtime acts on the dimension that loses them,
/// else on the one that gains them; `toDim` stands beside it, and `sources` behind the tensors.
static FailureOr<RuntimeCall> getMove(dist::CollectiveOpInterface op, int64_t kind,
                                      int64_t toDim = 0, ArrayRef<int64_t> sources = {},
                                      bool isMaximum = false) {
  CollectiveCall call(op);
  isMaximum |= op.getReduction() == dist::ReductionKind::Max;
  if (failed(call.begin(kind, isMaximum ? MW_RT_MAX : MW_RT_SUM)))
    return failure();
  for (auto [i, in, out] : llvm::enumerate(op->getOperands(), op->getResults())) {
    std::optional<int64_t> lost = op.getLostDim(i), gained = op.getGainedDim(i);
    int64_t dim = lost ? *lost : gained.value_or(0);
    auto from = cast<RankedTensorType>(in.getType()), to = cast<RankedTensorType>(out.getType());
    if (dist::getForm(from) && dim != 0)
      return op->emitOpError() << "expected to move whole rows of a weight with scales, got dimension "
                               << dim << " of " << from;
    RankedTensorType sent = dist::getBytesType(from), received = dist::getBytesType(to);
    if (failed(call.addTensor(in, sent.getShape(), received.getShape(), dim,
                              lost && gained ? *gained : toDim)))
      return failure();
  }
  return call.finish(sources);
}

static FailureOr<RuntimeCall> getPermute(dist::CollectiveOpInterface op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  int64_t ranks = dist::getNumShards(op.getGroupAxes(*mesh));
  return getMove(op, MW_RT_PERMUTE, /*toDim=*/0, op.getChunkSources(ranks));
}

//===----------------------------------------------------------------------===//
// Redistribute
//===----------------------------------------------------------------------===//

namespace {
/// A dimension of a redistributed value, factors taken apart.
struct MovedDim {
  int64_t in, out;
  dist::AxisList before, after;
};
} // namespace

/// A dimension as its sharding spells it; where that names no sizes, of size `size`
/// and padded as the local one is.
static dist::DimLayout getDim(dist::DimShardingAttr attr, dist::MeshAttr mesh, int64_t size,
                              int64_t local) {
  dist::DimLayout dim;
  for (dist::FactorShardingAttr factor : attr.getFactors()) {
    if (factor.getSize() != 0) {
      dim.factors.push_back(dist::getFactor(factor, mesh));
      continue;
    }
    dist::LayoutFactor own;
    for (dist::AxisRefAttr axis : factor.getAxes())
      own.axes.push_back(dist::getAxis(axis, mesh));
    dim.factors.push_back(own);
  }
  if (dim.factors.empty())
    dim.factors.emplace_back();
  if (attr.getFactors().empty() || attr.getFactors()[0].getSize() == 0) {
    dist::LayoutFactor &factor = dim.factors.front();
    factor.padded = local * dist::getNumShards(factor.axes);
    factor.size = size ? size : factor.padded;
  }
  return dim;
}

static int64_t getSpelledSize(dist::DimShardingAttr dim) {
  int64_t size = dim.getFactors().empty() ? 0 : 1;
  for (dist::FactorShardingAttr factor : dim.getFactors())
    size *= factor.getSize();
  return size;
}

static LogicalResult appendMovedDims(dist::RedistributeOp op, dist::DimShardingAttr from,
                                     dist::MeshAttr fromMesh, dist::DimShardingAttr to,
                                     dist::MeshAttr toMesh, int64_t in, int64_t out,
                                     SmallVectorImpl<MovedDim> &dims) {
  int64_t size = std::max(getSpelledSize(from), getSpelledSize(to));
  dist::DimLayout before = getDim(from, fromMesh, size, in), after = getDim(to, toMesh, size, out);
  if (before.getLocalSize() != in || after.getLocalSize() != out)
    return op.emitOpError("has local shapes that do not fit its layouts");
  if (before.factors.size() == 1 && after.factors.size() == 1) {
    dims.push_back({in, out, before.factors[0].axes, after.factors[0].axes});
    return success();
  }
  auto pairs = dist::refine(before, after, fromMesh);
  if (!pairs)
    return op.emitOpError("cuts a dimension into factors that do not fit those it had before");
  for (auto &[source, target] : *pairs)
    dims.push_back({source.getLocalSize(), target.getLocalSize(), source.axes, target.axes});
  return success();
}

/// Appends axes as a count, then strides and sizes.
static void appendAxes(Descriptor &layouts, ArrayRef<dist::Axis> axes, dist::MeshAttr mesh) {
  layouts.push_back(axes.size());
  for (const dist::Axis &axis : axes) {
    layouts.push_back(getRankStride(axis, mesh));
    layouts.push_back(axis.size);
  }
}

static FailureOr<RuntimeCall> getRedistribute(dist::RedistributeOp op) {
  CollectiveCall call(op);
  if (failed(call.begin(MW_RT_REDISTRIBUTE, MW_RT_SUM)))
    return failure();
  Descriptor layouts;
  for (auto [i, from, to] : llvm::enumerate(op.getFrom().getAsRange<dist::ShardingAttr>(),
                                            op.getTo().getAsRange<dist::ShardingAttr>())) {
    dist::MeshAttr fromMesh = dist::lookupMesh(op, from.getMesh());
    dist::MeshAttr toMesh = dist::lookupMesh(op, to.getMesh());
    if (!fromMesh || !toMesh)
      return op.emitOpError("names a mesh that the module does not have");
    ArrayRef<int64_t> in = shapeOf(op.getInputs()[i]), out = shapeOf(op.getOutputs()[i]);
    SmallVector<MovedDim> dims;
    for (size_t d = 0; d < in.size(); ++d)
      if (failed(appendMovedDims(op, from.getDims()[d], fromMesh, to.getDims()[d], toMesh, in[d],
                                 out[d], dims)))
        return failure();
    SmallVector<int64_t> before, after;
    int64_t begin = call.getEnd() + layouts.size();
    for (const MovedDim &dim : dims) {
      before.push_back(dim.in);
      after.push_back(dim.out);
      appendAxes(layouts, dim.before, fromMesh);
      appendAxes(layouts, dim.after, toMesh);
    }
    if (failed(call.addTensor(op.getInputs()[i], before, after, /*dim=*/0, /*toDim=*/0, begin)))
      return failure();
  }
  return call.finish(layouts);
}

//===----------------------------------------------------------------------===//
// All
//===----------------------------------------------------------------------===//

FailureOr<RuntimeCall> getCollectiveCall(dist::CollectiveOpInterface op) {
  switch (op.getKind()) {
  case dist::CollectiveKind::AllReduce:
    return getMove(op, MW_RT_ALL_REDUCE);
  case dist::CollectiveKind::ReduceScatter:
    return getMove(op, MW_RT_REDUCE_SCATTER);
  case dist::CollectiveKind::AllGather:
    return getMove(op, MW_RT_ALL_GATHER);
  case dist::CollectiveKind::AllToAll:
    return getMove(op, MW_RT_ALL_TO_ALL);
  case dist::CollectiveKind::Permute:
    return getPermute(op);
  case dist::CollectiveKind::Redistribute:
    return getRedistribute(cast<dist::RedistributeOp>(*op));
  case dist::CollectiveKind::Slice:
    return getMove(op, MW_RT_SLICE, cast<dist::SliceOp>(*op).getShift());
  case dist::CollectiveKind::Partial:
    return getMove(op, MW_RT_PARTIAL, /*toDim=*/0, /*sources=*/{},
                   cast<dist::PartialOp>(*op).getIsMaximum());
  case dist::CollectiveKind::AllGatherV:
  case dist::CollectiveKind::ReduceScatterV:
    llvm_unreachable("a call of its own");
  }
  llvm_unreachable("unknown collective");
}

} // namespace meshwright::lower
