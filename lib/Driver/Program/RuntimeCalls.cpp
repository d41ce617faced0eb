//===- RuntimeCalls.cpp - ops that the runtime performs -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Descriptors are the structures of meshwright-c/Runtime.h, field by field.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Driver/Program/Step.h"

#include "meshwright-c/Runtime.h"
#include "meshwright/dialects/Dist/Refine.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/ADT/bit.h"
#include "llvm/Support/MathExtras.h"

#include <limits>

using namespace mlir;

namespace meshwright {

int64_t getRankStride(const dist::Axis &axis, dist::MeshAttr mesh) {
  int64_t stride = 1;
  for (int64_t i = mesh.getAxes().size() - 1; i > axis.axis; --i)
    stride *= mesh.getAxes()[i].getSize();
  return stride * (mesh.getAxes()[axis.axis].getSize() / (axis.pre * axis.size));
}

namespace lower {

static int64_t codeOf(Value value) { return getTypeCode(getElementTypeOrSelf(value.getType())); }

static int64_t codeOfOptional(Value value) { return value ? codeOf(value) : 0; }

/// Appends an array of fixed length.
static void appendPadded(Descriptor &descriptor, ArrayRef<int64_t> values, size_t length) {
  descriptor.append(values.begin(), values.end());
  descriptor.append(length - values.size(), 0);
}

static LogicalResult checkRank(Operation *op, int64_t rank) {
  if (rank <= MW_RT_MAX_RANK)
    return success();
  return op->emitOpError() << "has " << rank << " dimensions, the runtime takes at most "
                           << MW_RT_MAX_RANK;
}

//===----------------------------------------------------------------------===//
// nn
//===----------------------------------------------------------------------===//

static Step getLinear(nn::LinearOp op) {
  ArrayRef<int64_t> input = shapeOf(op.getInput()), weight = shapeOf(op.getWeight());
  bool inOut = op.getInOut();
  Step step(op, "mw_rt_run_gemm");
  step.inputs = {op.getInput(), op.getWeight(), op.getBias()};
  step.descriptor = {codeOf(op.getInput()),
                     codeOf(op.getResult()),
                     ShapedType::getNumElements(input.drop_back()),
                     weight[inOut ? 1 : 0],
                     input.back(),
                     0,
                     !inOut,
                     op.getBias() != nullptr,
                     0};
  step.descriptor.append(3 * MW_RT_MAX_RANK, 0);
  return step;
}

/// For each batch dimension of the result, how many matrices the operand
/// advances: 0 where it is stretched.
static Descriptor getBatchStrides(ArrayRef<int64_t> batch, ArrayRef<int64_t> operand) {
  Descriptor strides(batch.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < operand.size(); ++i) {
    int64_t size = operand[operand.size() - 1 - i];
    strides[batch.size() - 1 - i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

static FailureOr<Step> getMatmul(nn::MatmulOp op) {
  ArrayRef<int64_t> lhs = shapeOf(op.getLhs()), rhs = shapeOf(op.getRhs());
  ArrayRef<int64_t> result = shapeOf(op.getResult());
  ArrayRef<int64_t> batch = result.drop_back(2);
  if (failed(checkRank(op, batch.size())))
    return failure();
  bool transposeLhs = op.getTransposeLhs(), transposeRhs = op.getTransposeRhs();
  Step step(op, "mw_rt_run_gemm");
  step.inputs = {op.getLhs(), op.getRhs(), Value()};
  step.descriptor = {codeOf(op.getLhs()),
                     codeOf(op.getResult()),
                     result[result.size() - 2],
                     result.back(),
                     lhs[lhs.size() - (transposeLhs ? 2 : 1)],
                     transposeLhs,
                     transposeRhs,
                     0,
                     int64_t(batch.size())};
  appendPadded(step.descriptor, batch, MW_RT_MAX_RANK);
  appendPadded(step.descriptor, getBatchStrides(batch, lhs.drop_back(2)), MW_RT_MAX_RANK);
  appendPadded(step.descriptor, getBatchStrides(batch, rhs.drop_back(2)), MW_RT_MAX_RANK);
  return step;
}

static Step getEmbedding(nn::EmbeddingOp op) {
  ArrayRef<int64_t> table = shapeOf(op.getTable());
  Step step(op, "mw_rt_run_gather");
  step.inputs = {op.getTable(), op.getIds(), op.getOffset()};
  step.descriptor = {codeOf(op.getTable()),
                     codeOf(op.getIds()),
                     1,
                     table[0],
                     table[1],
                     ShapedType::getNumElements(shapeOf(op.getIds())),
                     nn::getTableRows(op).value_or(std::numeric_limits<int64_t>::max()),
                     op.getOffset() != nullptr,
                     codeOfOptional(op.getOffset())};
  return step;
}

static Step getWeightGrad(nn::WeightGradOp op) {
  ArrayRef<int64_t> lhs = shapeOf(op.getLhs());
  Step step(op, "mw_rt_run_weight_grad");
  step.inputs = {op.getLhs(), op.getRhs()};
  step.descriptor = {codeOf(op.getLhs()), ShapedType::getNumElements(lhs.drop_back()), lhs.back(),
                     shapeOf(op.getRhs()).back()};
  return step;
}

static Step getScatterAdd(nn::ScatterAddOp op) {
  ArrayRef<int64_t> updates = shapeOf(op.getUpdates());
  int64_t dim = op.getDim(), count = op.getNumIndexedDims();
  Step step(op, "mw_rt_run_scatter_add");
  step.inputs = {op.getUpdates(), op.getIndices(), op.getOffset()};
  step.descriptor = {codeOf(op.getUpdates()),
                     codeOf(op.getIndices()),
                     ShapedType::getNumElements(updates.take_front(dim)),
                     shapeOf(op.getResult())[dim],
                     ShapedType::getNumElements(updates.drop_front(dim + count)),
                     ShapedType::getNumElements(updates.slice(dim, count)),
                     op.getAlong(),
                     nn::getTableRows(op).value_or(std::numeric_limits<int64_t>::max()),
                     op.getOffset() != nullptr,
                     codeOfOptional(op.getOffset())};
  return step;
}

static Step getGather(nn::GatherOp op) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  Step step(op, "mw_rt_run_gather");
  step.inputs = {op.getData(), op.getIndices(), Value()};
  step.descriptor = {codeOf(op.getData()),
                     codeOf(op.getIndices()),
                     ShapedType::getNumElements(data.take_front(dim)),
                     data[dim],
                     ShapedType::getNumElements(data.drop_front(dim + 1)),
                     ShapedType::getNumElements(shapeOf(op.getIndices())),
                     data[dim],
                     0,
                     0};
  return step;
}

static Step getTakeAlong(nn::TakeAlongOp op) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  Step step(op, "mw_rt_run_take_along");
  step.inputs = {op.getData(), op.getIndices()};
  step.descriptor = {codeOf(op.getData()),
                     codeOf(op.getIndices()),
                     ShapedType::getNumElements(data.take_front(dim)),
                     data[dim],
                     ShapedType::getNumElements(data.drop_front(dim + 1)),
                     shapeOf(op.getIndices())[dim]};
  return step;
}

Step getRowUpdate(Operation *op, int64_t result, int64_t offset) {
  FailureOr<Step> step = getRuntimeCall(op);
  step->callee = "mw_rt_replace_rows";
  step->numbers = {offset};
  step->outputs.clear();
  step->log = result;
  return *step;
}

static Step getIndexCopy(nn::IndexCopyOp op) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  Step step(op, "mw_rt_run_index_copy");
  step.inputs = {op.getData(), op.getIndices(), op.getSource()};
  step.descriptor = {codeOf(op.getData()),
                     codeOf(op.getIndices()),
                     ShapedType::getNumElements(data.take_front(dim)),
                     data[dim],
                     ShapedType::getNumElements(data.drop_front(dim + 1)),
                     shapeOf(op.getIndices()).front()};
  return step;
}

//===----------------------------------------------------------------------===//
// dist
//===----------------------------------------------------------------------===//

static void appendAxisList(Descriptor &descriptor, ArrayRef<dist::Axis> axes, dist::MeshAttr mesh) {
  descriptor.push_back(axes.size());
  for (const dist::Axis &axis : axes) {
    descriptor.push_back(getRankStride(axis, mesh));
    descriptor.push_back(axis.size);
  }
}

/// As `mw_rt_axes`.
static LogicalResult appendAxes(Operation *op, Descriptor &descriptor, ArrayRef<dist::Axis> axes,
                                dist::MeshAttr mesh) {
  if (axes.size() > MW_RT_MAX_AXES)
    return op->emitOpError() << "acts over " << axes.size() << " axes, the runtime takes at most "
                             << MW_RT_MAX_AXES;
  Descriptor list;
  appendAxisList(list, axes, mesh);
  appendPadded(descriptor, list, 1 + 2 * MW_RT_MAX_AXES);
  return success();
}

static FailureOr<dist::MeshAttr> getMesh(Operation *op) {
  dist::MeshAttr mesh = dist::getSpmdMesh(op);
  if (!mesh)
    return op->emitOpError("needs a mesh: its function has no 'dist.spmd'");
  return mesh;
}

LogicalResult getRankAxes(Operation *op, ArrayRef<dist::Axis> axes,
                          SmallVectorImpl<int64_t> &fields) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  Descriptor descriptor;
  if (failed(mesh) || failed(appendAxes(op, descriptor, axes, *mesh)))
    return failure();
  fields.append(descriptor.begin(), descriptor.end());
  return success();
}

/// A tensor of a collective, as `mw_rt_moved_tensor`.
static LogicalResult appendMoved(Operation *op, Descriptor &descriptor, int64_t code,
                                 ArrayRef<int64_t> in, ArrayRef<int64_t> out, int64_t dim,
                                 int64_t toDim, int64_t layouts) {
  if (failed(checkRank(op, in.size())) || failed(checkRank(op, out.size())))
    return failure();
  if (code < 0)
    return op->emitOpError("has an element type that the runtime does not know");
  descriptor.append({code, int64_t(in.size()), dim, toDim});
  appendPadded(descriptor, in, MW_RT_MAX_RANK);
  appendPadded(descriptor, out, MW_RT_MAX_RANK);
  descriptor.push_back(layouts);
  return success();
}

/// A collective over the axes that it names. The runtime acts on the dimension that loses
/// them, else on the one that gains them; `toDim` stands beside it, and `sources` behind
/// the tensors.
static FailureOr<Step> getMove(dist::CollectiveOpInterface op, int64_t kind, int64_t toDim = 0,
                               ArrayRef<int64_t> sources = {}, bool isMaximum = false) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  Step step(op, "mw_rt_run_collective");
  step.passing = Step::TwoArrays;
  step.inputs.assign(op->operand_begin(), op->operand_end());
  Descriptor &descriptor = step.descriptor;
  bool isMax = isMaximum || op.getReduction() == dist::ReductionKind::Max;
  descriptor = {kind, isMax ? MW_RT_MAX : MW_RT_SUM};
  if (failed(appendAxes(op, descriptor, op.getGroupAxes(*mesh), *mesh)))
    return failure();
  size_t extra = descriptor.size();
  descriptor.append({0, int64_t(op->getNumOperands())});
  for (auto [i, in, out] : llvm::enumerate(op->getOperands(), op->getResults())) {
    std::optional<int64_t> lost = op.getLostDim(i), gained = op.getGainedDim(i);
    int64_t dim = lost ? *lost : gained.value_or(0);
    if (failed(appendMoved(op, descriptor, codeOf(in), shapeOf(in), shapeOf(out), dim,
                           lost && gained ? *gained : toDim, 0)))
      return failure();
  }
  descriptor[extra] = descriptor.size();
  descriptor.append(sources.begin(), sources.end());
  return step;
}

static FailureOr<Step> getPermute(dist::CollectiveOpInterface op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  int64_t ranks = dist::getNumShards(op.getGroupAxes(*mesh));
  return getMove(op, MW_RT_PERMUTE, /*toDim=*/0, op.getChunkSources(ranks));
}

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

static FailureOr<Step> getRedistribute(dist::RedistributeOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  struct Moved {
    SmallVector<MovedDim> dims;
    dist::MeshAttr fromMesh, toMesh;
  };
  SmallVector<Moved> tensors;
  for (auto [i, from, to] : llvm::enumerate(op.getFrom().getAsRange<dist::ShardingAttr>(),
                                            op.getTo().getAsRange<dist::ShardingAttr>())) {
    Moved moved;
    moved.fromMesh = dist::lookupMesh(op, from.getMesh());
    moved.toMesh = dist::lookupMesh(op, to.getMesh());
    if (!moved.fromMesh || !moved.toMesh)
      return op.emitOpError("names a mesh that the module does not have");
    ArrayRef<int64_t> in = shapeOf(op.getInputs()[i]), out = shapeOf(op.getOutputs()[i]);
    for (size_t d = 0; d < in.size(); ++d)
      if (failed(appendMovedDims(op, from.getDims()[d], moved.fromMesh, to.getDims()[d],
                                 moved.toMesh, in[d], out[d], moved.dims)))
        return failure();
    tensors.push_back(std::move(moved));
  }

  Step step(op, "mw_rt_run_collective");
  step.passing = Step::TwoArrays;
  step.inputs.assign(op->operand_begin(), op->operand_end());
  Descriptor &descriptor = step.descriptor;
  descriptor = {MW_RT_REDISTRIBUTE, MW_RT_SUM};
  dist::AxisList group = dist::CollectiveOpInterface(op).getGroupAxes(*mesh);
  if (failed(appendAxes(op, descriptor, group, *mesh)))
    return failure();
  descriptor.append({0, int64_t(tensors.size())});
  constexpr size_t movedFields = 5 + 2 * MW_RT_MAX_RANK;
  int64_t behind = descriptor.size() + tensors.size() * movedFields;
  Descriptor layouts;
  for (auto [i, moved] : llvm::enumerate(tensors)) {
    Descriptor in, out;
    int64_t at = behind + layouts.size();
    for (const MovedDim &dim : moved.dims) {
      in.push_back(dim.in);
      out.push_back(dim.out);
      appendAxisList(layouts, dim.before, moved.fromMesh);
      appendAxisList(layouts, dim.after, moved.toMesh);
    }
    if (failed(appendMoved(op, descriptor, codeOf(op.getInputs()[i]), in, out, 0, 0, at)))
      return failure();
  }
  descriptor.append(layouts);
  return step;
}

static FailureOr<Step> getMask(dist::MaskPaddingOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getInput());
  int64_t dim = op.getDim();
  Step step(op, "mw_rt_run_mask");
  step.inputs = {op.getInput()};
  step.descriptor = {codeOf(op.getInput())};
  if (failed(appendAxes(op, step.descriptor, dist::getAxes(op.getAxes(), *mesh), *mesh)))
    return failure();
  step.descriptor.append({ShapedType::getNumElements(shape.take_front(dim)), shape[dim],
                          ShapedType::getNumElements(shape.drop_front(dim + 1)),
                          int64_t(op.getSize()),
                          llvm::bit_cast<int64_t>(op.getValue().convertToDouble())});
  return step;
}

static FailureOr<Step> getAxisIndex(dist::AxisIndexOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  int64_t code = codeOf(op.getResult());
  if (code != MW_I64 && code != MW_I32)
    return op.emitOpError("is of type ")
           << getElementTypeOrSelf(op.getResult().getType()) << ", expected i64 or i32";
  Step step(op, "mw_rt_run_axis_index");
  step.descriptor = {code};
  if (failed(appendAxes(op, step.descriptor, dist::getAxes(op.getAxes(), *mesh), *mesh)))
    return failure();
  step.descriptor.push_back(op.getChunk());
  return step;
}

static_assert(int(TokenOrder::Natural) == MW_RT_NATURAL &&
              int(TokenOrder::Zigzag) == MW_RT_ZIGZAG && int(TokenOrder::Striped) == MW_RT_STRIPED);

static FailureOr<Step> getReorder(dist::ReorderOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getInput());
  int64_t dim = op.getDim();
  dist::LayoutFactor from = dist::getFactor(op.getFrom(), *mesh);
  dist::LayoutFactor to = dist::getFactor(op.getTo(), *mesh);
  Step step(op, "mw_rt_run_reorder");
  step.inputs = {op.getInput()};
  step.descriptor = {codeOf(op.getInput()),
                     ShapedType::getNumElements(shape.take_front(dim)),
                     from.size,
                     shape[dim],
                     ShapedType::getNumElements(shape.drop_front(dim + 1)),
                     int64_t(from.order),
                     from.orderRanks,
                     int64_t(to.order),
                     to.orderRanks};
  return step;
}

static FailureOr<Step> getPlace(dist::PlaceOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getChunks().front());
  int64_t dim = op.getDim();
  dist::AxisList axes = dist::getAxes(op.getAxes(), *mesh);
  Step step(op, "mw_rt_run_place");
  step.passing = Step::TwoArrays;
  step.inputs.assign(op->operand_begin(), op->operand_end());
  step.descriptor = {codeOf(op.getResult())};
  if (failed(appendAxes(op, step.descriptor, axes, *mesh)))
    return failure();
  step.descriptor.append({ShapedType::getNumElements(shape.take_front(dim)), shape[dim],
                          ShapedType::getNumElements(shape.drop_front(dim + 1)),
                          int64_t(op.getChunks().size())});
  llvm::append_range(step.descriptor, op.getWrappedShifts(dist::getNumShards(axes)));
  return step;
}

mw_rt_packing getPacking(rt::PrepareOp op) {
  mw_rt_packing what = {};
  what.stored = codeOf(op.getWeight());
  what.dtype = codeOf(op.getResult());
  if (std::optional<rt::PackingAttr> packing = op.getPacking()) {
    what.k = packing->getK();
    what.n = packing->getN();
    what.transposed = packing->getTransposed();
    what.panel = packing->getPanel();
    what.group = packing->getGroup();
  } else {
    what.k = what.group = 1;
    what.n = cast<RankedTensorType>(op.getResult().getType()).getNumElements();
  }
  return what;
}

static Step getPack(rt::PrepareOp op) {
  mw_rt_packing what = getPacking(op);
  Step step(op, "mw_rt_run_pack");
  step.inputs = {op.getWeight()};
  step.descriptor = {what.stored,     what.dtype, what.k,    what.n,
                     what.transposed, what.panel, what.group};
  return step;
}

static FailureOr<Step> getPositions(dist::PositionsOp op) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  dist::LayoutFactor factor = dist::getFactor(op, *mesh);
  Step step(op, "mw_rt_run_positions");
  if (failed(appendAxes(op, step.descriptor, factor.axes, *mesh)))
    return failure();
  step.descriptor.append(
      {factor.size, factor.padded, int64_t(factor.order), factor.orderRanks, factor.shift});
  return step;
}

//===----------------------------------------------------------------------===//
// All
//===----------------------------------------------------------------------===//

static FailureOr<Step> getCollective(dist::CollectiveOpInterface op) {
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
  }
  llvm_unreachable("unknown collective");
}

static FailureOr<Step> getCall(Operation *op) {
  if (auto linear = dyn_cast<nn::LinearOp>(op))
    return getLinear(linear);
  if (auto matmul = dyn_cast<nn::MatmulOp>(op))
    return getMatmul(matmul);
  if (auto gradient = dyn_cast<nn::WeightGradOp>(op))
    return getWeightGrad(gradient);
  if (auto scatter = dyn_cast<nn::ScatterAddOp>(op))
    return getScatterAdd(scatter);
  if (auto embedding = dyn_cast<nn::EmbeddingOp>(op))
    return getEmbedding(embedding);
  if (auto gather = dyn_cast<nn::GatherOp>(op))
    return getGather(gather);
  if (auto take = dyn_cast<nn::TakeAlongOp>(op))
    return getTakeAlong(take);
  if (auto copy = dyn_cast<nn::IndexCopyOp>(op))
    return getIndexCopy(copy);
  if (auto collective = dyn_cast<dist::CollectiveOpInterface>(op))
    return getCollective(collective);
  if (auto mask = dyn_cast<dist::MaskPaddingOp>(op))
    return getMask(mask);
  if (auto reorder = dyn_cast<dist::ReorderOp>(op))
    return getReorder(reorder);
  if (auto place = dyn_cast<dist::PlaceOp>(op))
    return getPlace(place);
  if (auto positions = dyn_cast<dist::PositionsOp>(op))
    return getPositions(positions);
  if (auto prepare = dyn_cast<rt::PrepareOp>(op))
    return getPack(prepare);
  if (auto index = dyn_cast<dist::AxisIndexOp>(op))
    return getAxisIndex(index);
  return op->emitOpError("cannot be compiled for execution");
}

FailureOr<Step> getRuntimeCall(Operation *op) {
  FailureOr<Step> step = getCall(op);
  if (succeeded(step))
    step->outputs.assign(op->result_begin(), op->result_end());
  return step;
}

} // namespace lower
} // namespace meshwright
