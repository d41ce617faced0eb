//===- SumShardedSlices.cpp - few elements of a sharded dimension ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/partition/Passes.h"

#include "mlir/IR/Matchers.h"
#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_SUMSHARDEDSLICESPASS
#include "meshwright/passes/partition/Passes.h.inc"
} // namespace meshwright

namespace {

using Dims = SmallVector<DimShardingAttr>;

/// The indices of an op that only takes elements of its first operand by index; none for
/// another op.
LookupOpInterface getTaking(Operation *op) {
  auto lookup = dyn_cast<LookupOpInterface>(op);
  bool takes = lookup && op->hasTrait<MovesOnly>() && op->getNumOperands() == 2;
  return takes && lookup.getTableOperand() == 0 ? lookup : LookupOpInterface();
}

/// Replaces an op that takes elements of a sharded dimension by their positions.
/// 1. `findDim` finds the dimension.
/// 2. `run` compares the bytes of a sum with the bytes of a gather.
/// 3. `cutOthers` slices the other dimensions first.
/// 4. The data is kept at the wanted positions (`getPositions`), zero elsewhere, and summed.
class SliceSum {
public:
  SliceSum(Operation *op, MeshAttr mesh, FlatSymbolRefAttr symbol)
      : op(op), mesh(mesh), symbol(symbol), builder(op), loc(op->getLoc()), data(op->getOperand(0)),
        whole(DimShardingAttr::get(op->getContext(), {}, false)) {}

  /// Replaces the op by a sum where that moves less than gathering the dimension, and
  /// returns whether it did. A slice of other dimensions that remains goes to `rest`.
  bool run(SmallVectorImpl<Operation *> &rest);

private:
  LogicalResult findDim();
  Value checkIndices(Value indices);
  Value getPositions();
  Value cutOthers(SmallVectorImpl<Operation *> &rest);
  bool overlaps(DimShardingAttr dim) const;
  AxisList getAxes(DimShardingAttr dim) const;
  Dims getDims(Value value) const { return Dims(getShardingAttr(value).getDims()); }

  /// Gives an op that was made the stage of the rewritten one, and its result this sharding.
  Value lay(const Dims &dims, Operation *made) {
    if (Attribute stage = op->getAttr(nn::NnDialect::kStageAttr))
      made->setAttr(nn::NnDialect::kStageAttr, stage);
    setShardingAttr(made->getResult(0),
                    ShardingAttr::get(op->getContext(), symbol, dims, {}, ReductionKind::Sum));
    return made->getResult(0);
  }
  Value constant(RankedTensorType type, ArrayRef<Attribute> values) {
    return lay(Dims(type.getRank(), whole),
               nn::ConstantOp::create(builder, loc, DenseElementsAttr::get(type, values)));
  }

  Operation *op;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  OpBuilder builder;
  Location loc;
  Value data;
  /// The dimension, the number of its elements that each result row takes, and the sizes of
  /// the result's dimensions that count them.
  int64_t dim = -1, picks = 1;
  SmallVector<int64_t> counted;
  /// The other dimensions of the indices are those of the data: each element has an index of
  /// its own.
  bool isPaired = false;
  DimShardingAttr whole;
};

} // namespace

AxisList SliceSum::getAxes(DimShardingAttr dim) const {
  AxisList axes;
  for (FactorShardingAttr factor : dim.getFactors())
    for (AxisRefAttr axis : factor.getAxes())
      axes.push_back(getAxis(axis, mesh));
  return axes;
}

/// Returns true if a sharding of a dimension uses axes of the data.
bool SliceSum::overlaps(DimShardingAttr dim) const {
  return llvm::any_of(getDims(data),
                      [&](DimShardingAttr own) { return anyOverlap(getAxes(own), getAxes(dim)); });
}

/// The first sharded dimension that the op takes elements of.
LogicalResult SliceSum::findDim() {
  Dims dims = getDims(data);
  auto isSharded = [&](int64_t d) { return !getAxes(dims[d]).empty(); };
  if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    for (int64_t d = 0, e = dims.size(); d < e && dim < 0; ++d)
      if (isSharded(d) && slice.getType().getDimSize(d) != typeOf(data).getDimSize(d))
        dim = d;
    if (dim >= 0)
      counted = {slice.getType().getDimSize(dim)};
  } else {
    LookupOpInterface lookup = getTaking(op);
    dim = lookup.getTableDim();
    FactorRule rule = cast<ShardingRuleOpInterface>(op).getFactorRule();
    ArrayRef<int64_t> indices = typeOf(op->getOperand(lookup.getIndexOperand())).getShape();
    for (auto [size, factors] : llvm::zip_equal(indices, rule.operands[lookup.getIndexOperand()])) {
      if (llvm::is_contained(rule.operands[0], factors))
        isPaired = true;
      else
        counted.push_back(size);
    }
  }
  picks = std::accumulate(counted.begin(), counted.end(), int64_t(1), std::multiplies<>());
  // Only numbers can be summed.
  return success(dim >= 0 && isSharded(dim) && picks > 0 &&
                 hasSums(typeOf(data).getElementType()));
}

/// The indices by a lookup in a table of all positions: it fails where an index is out of range,
/// which a comparison would take for an element of zero.
Value SliceSum::checkIndices(Value indices) {
  int64_t size = typeOf(data).getDimSize(dim);
  DenseIntElementsAttr known;
  if (matchPattern(indices, m_Constant(&known)) &&
      llvm::all_of(known.getValues<APInt>(),
                   [&](const APInt &value) { return !value.isNegative() && value.slt(size); }))
    return indices;
  auto table = RankedTensorType::get({size}, typeOf(indices).getElementType());
  Value positions = lay(
      Dims{whole}, nn::IotaOp::create(builder, loc, table, builder.getI64IntegerAttr(0)));
  return lay(getDims(indices), nn::GatherOp::create(builder, loc, indices.getType(), positions,
                                                    indices, builder.getI64IntegerAttr(0)));
}

/// The wanted positions. They broadcast against a tensor in which the whole dimension follows
/// the dimensions in `counted`.
Value SliceSum::getPositions() {
  RankedTensorType type = typeOf(data);
  int64_t behind = type.getRank() - dim - 1;
  if (auto slice = dyn_cast<nn::SliceOp>(op)) {
    SmallVector<Attribute> values;
    for (int64_t i = 0; i < picks; ++i)
      values.push_back(
          builder.getI64IntegerAttr(slice.getStarts()[dim] + i * slice.getStrides()[dim]));
    SmallVector<int64_t> shape;
    if (picks > 1) {
      shape.assign(behind + 2, 1);
      shape.front() = picks;
    }
    return constant(RankedTensorType::get(shape, builder.getI64Type()), values);
  }
  Value indices = op->getOperand(1);
  // The indices are the same for all elements of a row: use one of them.
  if (auto broadcast = indices.getDefiningOp<nn::BroadcastOp>();
      broadcast && typeOf(broadcast.getInput()).getRank() == typeOf(indices).getRank() &&
      isPaired)
    indices = broadcast.getInput();
  indices = checkIndices(indices);
  SmallVector<int64_t> shape(typeOf(indices).getShape());
  Dims dims = getDims(indices);
  if (isPaired) {
    shape.insert(shape.begin() + dim + 1, 1);
    dims.insert(dims.begin() + dim + 1, whole);
  } else {
    shape.append(behind + 1, 1);
    dims.append(behind + 1, whole);
  }
  return lay(dims, nn::ReshapeOp::create(builder, loc, typeOf(indices).clone(shape), indices));
}

/// The data, sliced in all dimensions but `dim`.
Value SliceSum::cutOthers(SmallVectorImpl<Operation *> &rest) {
  auto slice = dyn_cast<nn::SliceOp>(op);
  if (!slice)
    return data;
  SmallVector<int64_t> starts(slice.getStarts()), limits(slice.getLimits()),
      strides(slice.getStrides()), shape(slice.getType().getShape());
  starts[dim] = 0;
  limits[dim] = shape[dim] = typeOf(data).getDimSize(dim);
  strides[dim] = 1;
  if (shape == typeOf(data).getShape())
    return data;
  Dims dims = getDims(data);
  for (auto [d, size] : llvm::enumerate(shape))
    if (size != typeOf(data).getDimSize(d))
      dims[d] = whole;
  Value cut = lay(
      dims, nn::SliceOp::create(
                builder, loc, typeOf(data).clone(shape), data, builder.getDenseI64ArrayAttr(starts),
                builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides)));
  rest.push_back(cut.getDefiningOp());
  return cut;
}

bool SliceSum::run(SmallVectorImpl<Operation *> &rest) {
  if (failed(findDim()))
    return false;
  Value result = op->getResult(0);
  AxisList axes = getAxes(getDims(data)[dim]);
  int64_t ranks = getNumShards(axes), size = typeOf(data).getDimSize(dim);
  // The bytes of a rank at one position of the dimension.
  int64_t row = getElementBytes(typeOf(data).getElementType());
  for (auto [d, own] : llvm::enumerate(getDims(data)))
    if (int64_t(d) != dim)
      row *= llvm::divideCeil(isa<nn::SliceOp>(op) ? typeOf(result).getDimSize(d)
                                                   : typeOf(data).getDimSize(d),
                              getNumShards(getAxes(own)));
  int64_t gathered =
      getBytesSent(CollectiveKind::AllGather, ranks, llvm::alignTo(size, ranks) * row);
  int64_t summed = getBytesSent(CollectiveKind::AllReduce, ranks, picks * row);
  DecisionLog &log = DistDialect::getDecisionLog(op->getContext());
  auto decide = [&](Outcome outcome, StringRef what) {
    log.add("sum-sharded-slices", outcome, op->getLoc(),
            llvm::formatv("{0} of {1} elements of a dimension over {2} ranks are {3}: a sum sends "
                          "{4} bytes and holds {0} x a chunk, a gather {5} and {2} x a chunk",
                          picks, size, ranks, what, summed, gathered)
                .str(),
            {{"elements", double(picks)},
             {"size", double(size)},
             {"ranks", double(ranks)},
             {"bytes_summed", double(summed)},
             {"bytes_gathered", double(gathered)}});
  };
  if (summed >= gathered || picks > ranks) {
    decide(Outcome::Declined, "gathered");
    return false;
  }
  decide(Outcome::Applied, "summed");

  Value x = cutOthers(rest);
  RankedTensorType type = typeOf(x);
  Value positions = getPositions();
  int64_t behind = type.getRank() - dim - 1;
  // A slice of one element keeps its dimension. Other ops get new dimensions before it.
  bool isOne = isa<nn::SliceOp>(op) && picks == 1;
  int64_t added = isOne ? 0 : counted.size();
  SmallVector<int64_t> shape(type.getShape());
  Dims dims = getDims(x), resultDims = getDims(result);
  DimShardingAttr own = dims[dim];
  for (int64_t i = 0; i < added; ++i) {
    shape.insert(shape.begin() + dim + i, counted[i]);
    DimShardingAttr wanted = resultDims[dim + i];
    dims.insert(dims.begin() + dim + i, overlaps(wanted) ? whole : wanted);
  }
  if (added) {
    SmallVector<int64_t> spread(type.getShape());
    Dims spreadDims = getDims(x);
    spread.insert(spread.begin() + dim, added, 1);
    spreadDims.insert(spreadDims.begin() + dim, added, whole);
    x = lay(spreadDims, nn::ReshapeOp::create(builder, loc, type.clone(spread), x));
  }

  Type number = typeOf(positions).getElementType();
  Value index = lay(Dims{own}, nn::IotaOp::create(builder, loc, RankedTensorType::get({size}, number),
                                                  builder.getI64IntegerAttr(0)));
  if (behind) {
    SmallVector<int64_t> column(behind + 1, 1);
    Dims columnDims(behind + 1, whole);
    column.front() = size;
    columnDims.front() = own;
    index = lay(columnDims, nn::ReshapeOp::create(builder, loc,
                                                  RankedTensorType::get(column, number), index));
  }
  // Operands broadcast from the last dimension on.
  SmallVector<int64_t> maskShape(std::max(typeOf(positions).getRank(), typeOf(index).getRank()), 1);
  for (Value operand : {index, positions})
    for (auto [d, extent] : llvm::enumerate(llvm::reverse(typeOf(operand).getShape())))
      maskShape[maskShape.size() - 1 - d] = std::max(maskShape[maskShape.size() - 1 - d], extent);
  Dims maskDims;
  for (size_t d = 0, missing = shape.size() - maskShape.size(); d < maskShape.size(); ++d)
    maskDims.push_back(maskShape[d] == shape[missing + d] ? dims[missing + d] : whole);
  Value isPicked = lay(
      maskDims,
      nn::CompareOp::create(builder, loc, RankedTensorType::get(maskShape, builder.getI1Type()),
                            nn::CompareKindAttr::get(op->getContext(), nn::CompareKind::Eq), index,
                            positions));
  Value zero = constant(RankedTensorType::get({}, type.getElementType()),
                        builder.getZeroAttr(type.getElementType()));
  Value kept = lay(dims, nn::SelectOp::create(builder, loc, type.clone(shape), isPicked, x, zero));
  Value sum = lay(
      resultDims,
      nn::ReduceOp::create(builder, loc, result.getType(),
                           nn::ReduceKindAttr::get(op->getContext(), nn::ReduceKind::Sum), kept,
                           builder.getDenseI64ArrayAttr({dim + added}),
                           isOne ? builder.getUnitAttr() : UnitAttr()));
  if (Attribute id = op->getAttr(nn::NnDialect::kIdAttr))
    sum.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  result.replaceAllUsesWith(sum);
  op->erase();
  return true;
}

namespace {
struct SumShardedSlicesPass : meshwright::impl::SumShardedSlicesPassBase<SumShardedSlicesPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    auto symbol = FlatSymbolRefAttr::get(*meshOp);
    bool changed = false;
    for (func::FuncOp func : getGlobalFunctions(module)) {
      SmallVector<Operation *> open;
      func.walk([&](Operation *op) {
        if (isa<nn::SliceOp>(op) || getTaking(op))
          open.push_back(op);
      });
      // A slice of the other dimensions is added to `open`.
      for (size_t i = 0; i < open.size(); ++i) {
        auto isLaid = [](Value value) { return bool(getShardingAttr(value)); };
        if (llvm::all_of(open[i]->getOperands(), isLaid) && isLaid(open[i]->getResult(0)))
          changed |= SliceSum(open[i], meshOp->getMesh(), symbol).run(open);
      }
    }
    // The partitioner needs the factors of the same ops next.
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace
