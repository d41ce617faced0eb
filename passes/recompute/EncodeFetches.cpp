//===- EncodeFetches.cpp - weights that travel in other forms -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Placement/FormUses.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/recompute/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

#include <numeric>

namespace meshwright {
#define GEN_PASS_DEF_ENCODEFETCHESPASS
#include "meshwright/passes/recompute/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The form to which an op rounds a weight; null if it rounds none. In a global program a fetch
/// does.
static FormAttr getRounding(Operation &op) {
  if (auto round = dyn_cast<RoundOp>(op))
    return round.getForm();
  auto fetch = dyn_cast<FetchOp>(op);
  return fetch ? fetch.getFormAttr() : FormAttr();
}

static bool rounds(Operation &op) { return bool(getRounding(op)); }

namespace {

class FetchEncoder {
public:
  explicit FetchEncoder(func::FuncOp func) : func(func), mesh(getSpmdMesh(func)), weights(func) {}

  void run();
  int64_t getNumEncodings() const { return encodings.size(); }
  int64_t getNumGathers() const { return gathers; }

private:
  /// The value that is encoded, and the axes over which its rows are gathered then.
  struct Way {
    Value source;
    AxisList axes = {};
    /// The number of a part stands before the rows.
    bool hasParts = false;
  };

  void separate(Value value);
  int64_t getAlong(OpOperand &use) const;
  Way findWay(Value whole, FormAttr form);
  Value encode(Value source, FormAttr form);
  Value decode(Operation *round, FormAttr form, Operation *reader);
  Value decodeParts(OpBuilder &builder, Value part, ArrayRef<LayoutFactor> factors,
                    int64_t columnFactors, FormAttr form);
  void addLargest();

  func::FuncOp func;
  MeshAttr mesh;
  WeightFinder weights;
  llvm::MapVector<std::pair<Value, Attribute>, EncodeOp> encodings;
  int64_t gathers = 0;
};

} // namespace

/// Gives each reader of a rounded weight links of its own, since readers may want other forms.
void FetchEncoder::separate(Value value) {
  for (OpOperand &use : llvm::make_early_inc_range(value.getUses())) {
    Operation *link = use.getOwner();
    if (!isFormLink(link))
      continue;
    separate(link->getResult(0));
    OpBuilder builder(link);
    for (OpOperand &further :
         llvm::make_early_inc_range(llvm::drop_begin(link->getResult(0).getUses())))
      further.set(builder.clone(*link)->getResult(0));
  }
}

/// The dimension of a rounded weight that the reader behind a use contracts; the last one if it
/// contracts none.
int64_t FetchEncoder::getAlong(OpOperand &use) const {
  SmallVector<Operation *> links;
  OpOperand *read = &use;
  while (isFormLink(read->getOwner()) && !read->getOwner()->use_empty()) {
    links.push_back(read->getOwner());
    read = &*links.back()->getResult(0).getUses().begin();
  }
  return getContractedDim(*read, links) == 0 ? 0 : 1;
}

/// Returns true for an op on the way from a stored weight to the weight that is used: a collective
/// of weights, a view, or one that drops the padding behind rows.
static bool isOfWay(Operation *op) {
  if (op->getNumOperands() != 1 || op->getNumResults() != 1)
    return false;
  if (auto collective = dyn_cast<CollectiveOpInterface>(op))
    return collective.getRole() == CollectiveRole::Weights;
  return op->hasTrait<View>() || isa<nn::SliceOp>(op);
}

/// The way from the stored weight, if the ranks of a group store its rows and use all of them.
/// Shards of whole blocks are encoded where they are stored. They travel by one gather, even if
/// other collectives make the weight whole. Otherwise the whole weight is encoded.
FetchEncoder::Way FetchEncoder::findWay(Value whole, FormAttr form) {
  Value source = whole;
  while (Operation *op = source.getDefiningOp()) {
    if (!isOfWay(op))
      return {whole};
    source = op->getOperand(0);
  }
  auto stored = cast<RankedTensorType>(source.getType());
  auto used = cast<RankedTensorType>(whole.getType());
  unsigned argument = cast<BlockArgument>(source).getArgNumber();
  auto sharding = func.getArgAttrOfType<ShardingAttr>(argument, DistDialect::kShardingAttr);
  auto global = func.getArgAttrOfType<TypeAttr>(argument, DistDialect::kGlobalAttr);
  if (!mesh || !sharding || !global || stored.getRank() != 2 ||
      stored.getDimSize(1) != used.getDimSize(1))
    return {whole};
  auto layout = getLayout(sharding, mesh, cast<RankedTensorType>(global.getValue()).getShape(),
                          stored.getShape(), Padding::Zero, [&] { return func.emitError(); });
  if (failed(layout))
    return {whole};
  ArrayRef<LayoutFactor> factors = layout->dims[0].factors;
  const LayoutFactor &rows = factors.back();
  int64_t ranks = getNumShards(rows.axes),
          blocks = getBlockShape(form.getKind(), form.getAlong()).rows;
  bool isGathered = ranks > 1 && rows.isContiguous() && rows.size == used.getDimSize(0) &&
                    stored.getDimSize(0) * ranks == rows.padded &&
                    stored.getDimSize(0) % blocks == 0;
  if (!isGathered)
    return {whole};
  return {source, rows.axes, factors.size() > 1};
}

/// The form of a weight, made where the weight is there.
Value FetchEncoder::encode(Value source, FormAttr form) {
  EncodeOp &known = encodings[{source, form}];
  if (!known) {
    OpBuilder builder(func.getContext());
    builder.setInsertionPointAfterValue(source);
    // An error of a run names the weight.
    Location loc = source.getLoc();
    if (std::optional<Weight> weight = weights.find(source))
      loc = NameLoc::get(weight->name, loc);
    known = EncodeOp::create(builder, loc,
                             form.getType(cast<RankedTensorType>(source.getType())), source,
                             /*largest=*/Value());
  }
  return known.getResult();
}

/// The factors of the rows and columns of a weight that a global program fetches, and the number of
/// factors of the columns. Empty if each rank uses whole blocks of the weight.
static std::pair<SmallVector<LayoutFactor>, int64_t> getCutFactors(Operation *round,
                                                                   FormAttr form) {
  ShardingAttr sharding = getShardingAttr(round->getResult(0));
  if (!isa<FetchOp>(round) || !sharding)
    return {};
  auto layout =
      getLayout(sharding, lookupMesh(round, sharding.getMesh()),
                shapeOf(round->getResult(0)), [&] { return round->emitError(); });
  if (failed(layout))
    return {};
  BlockShape block = getBlockShape(form.getKind(), form.getAlong());
  SmallVector<LayoutFactor> factors;
  bool isCut = false;
  for (auto [d, dim] : llvm::enumerate(layout->dims))
    for (const LayoutFactor &factor : dim.factors) {
      int64_t size = d == 0 ? block.rows : block.columns;
      isCut |=
          !factor.axes.empty() && (dim.factors.size() > 1 || factor.getLocalSize() % size != 0);
      factors.push_back(factor);
    }
  if (!isCut)
    return {};
  return {factors, layout->dims[1].factors.size()};
}

/// Rounds the parts that ranks use, one by one. `part` has a dimension for each factor of the weight;
/// the last of them are those of `factors`, which are still whole.
Value FetchEncoder::decodeParts(OpBuilder &builder, Value part, ArrayRef<LayoutFactor> factors,
                                int64_t columnFactors, FormAttr form) {
  Location loc = part.getLoc();
  RankedTensorType type = typeOf(part);
  ArrayRef<int64_t> shape = type.getShape();
  if (factors.empty()) {
    auto getProduct = [](ArrayRef<int64_t> sizes) {
      return std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<>());
    };
    RankedTensorType matrix = type.clone(
        {getProduct(shape.drop_back(columnFactors)), getProduct(shape.take_back(columnFactors))});
    Value coded = encode(builder.createOrFold<nn::ReshapeOp>(loc, matrix, part), form);
    builder.setInsertionPointAfterValue(coded);
    return builder.createOrFold<nn::ReshapeOp>(loc, type,
                                               DecodeOp::create(builder, loc, matrix, coded));
  }
  const LayoutFactor &factor = factors.front();
  if (factor.axes.empty())
    return decodeParts(builder, part, factors.drop_front(), columnFactors, form);
  int64_t dim = type.getRank() - factors.size();
  SmallVector<Value> rounded;
  for (int64_t begin = 0; begin < factor.size; begin += factor.getLocalSize()) {
    SmallVector<int64_t> starts(type.getRank()), limits(shape), sizes(shape),
        strides(type.getRank(), 1);
    starts[dim] = begin;
    limits[dim] = std::min(begin + factor.getLocalSize(), factor.size);
    sizes[dim] = limits[dim] - begin;
    Value own = nn::SliceOp::create(
        builder, loc, type.clone(sizes), part, builder.getDenseI64ArrayAttr(starts),
        builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
    rounded.push_back(decodeParts(builder, own, factors.drop_front(), columnFactors, form));
  }
  return nn::ConcatOp::create(builder, loc, type, rounded, dim);
}

/// Writes the way of a weight in a form, before its first reader: encoded, gathered, decoded, and
/// without padding. In a global program the blocks are those of the parts that ranks will use.
Value FetchEncoder::decode(Operation *round, FormAttr form, Operation *reader) {
  if (auto [factors, columnFactors] = getCutFactors(round, form); !factors.empty()) {
    OpBuilder builder(reader);
    Value weight = round->getOperand(0);
    SmallVector<int64_t> sizes =
        llvm::map_to_vector(factors, [](const LayoutFactor &factor) { return factor.size; });
    RankedTensorType type = typeOf(weight);
    Value parts = builder.createOrFold<nn::ReshapeOp>(round->getLoc(), type.clone(sizes), weight);
    parts = decodeParts(builder, parts, factors, columnFactors, form);
    return builder.createOrFold<nn::ReshapeOp>(round->getLoc(), type, parts);
  }
  Way way = findWay(round->getOperand(0), form);
  Value value = encode(way.source, form);
  OpBuilder builder(reader);
  Location loc = round->getLoc();
  if (!way.axes.empty()) {
    auto coded = cast<RankedTensorType>(value.getType());
    RankedTensorType gathered =
        coded.clone({coded.getDimSize(0) * getNumShards(way.axes), coded.getDimSize(1)});
    value = AllGatherOp::create(builder, loc, TypeRange(gathered), value,
                                getAxesAttr(func.getContext(), way.axes, mesh),
                                builder.getDenseI64ArrayAttr(0), CollectiveRole::Weights)
                .getResult(0);
    ++gathers;
  }
  auto used = cast<RankedTensorType>(round->getResult(0).getType());
  RankedTensorType padded = used.clone(cast<RankedTensorType>(value.getType()).getShape());
  bool cutsParts = way.hasParts && used != padded;
  value = DecodeOp::create(builder, loc, cutsParts ? padded : used, value);
  if (!cutsParts)
    return value;
  // The number of the part stays, and the padding behind its rows goes.
  auto toShape = [](RankedTensorType type) {
    return type.clone({1, type.getDimSize(0), type.getDimSize(1)});
  };
  value = nn::ReshapeOp::create(builder, loc, toShape(padded), value);
  value = nn::SliceOp::create(builder, loc, toShape(used), value,
                              builder.getDenseI64ArrayAttr({0, 0, 0}),
                              builder.getDenseI64ArrayAttr(toShape(used).getShape()),
                              builder.getDenseI64ArrayAttr({1, 1, 1}));
  return nn::ReshapeOp::create(builder, loc, used, value);
}

/// The axes that shard a weight where it is stored; none in a global program.
static AxisList getStorageAxes(const Weight &weight, func::FuncOp func, MeshAttr mesh) {
  AxisList axes;
  if (!mesh)
    return axes;
  auto sharding =
      func.getArgAttrOfType<ShardingAttr>(weight.stored.getArgNumber(), DistDialect::kShardingAttr);
  for (DimShardingAttr dim : sharding ? sharding.getDims() : ArrayRef<DimShardingAttr>())
    for (FactorShardingAttr factor : dim.getFactors())
      for (AxisRefAttr axis : factor.getAxes())
        axes.push_back(getAxis(axis, mesh));
  canonicalizeAxes(axes, mesh);
  return axes;
}

/// Gives encodings that need it the largest magnitude of their weight: a part of each, and then one
/// all-reduce for weights over the same axes. A parameter that is encoded as it is stored needs
/// none.
void FetchEncoder::addLargest() {
  llvm::MapVector<BlockArgument, SmallVector<EncodeOp>> users;
  llvm::MapVector<Value, Weight> weights;
  for (auto &[key, encoding] : encodings) {
    std::optional<Weight> weight = getWeight(encoding.getInput());
    if (encoding.getForm().getKind() == GatherKind::Nvfp4 && weight &&
        !(weight->isStored() && !weight->isState)) {
      users[weight->stored].push_back(encoding);
      weights.insert({weight->stored, *weight});
    }
  }
  auto builder = OpBuilder::atBlockBegin(&func.front());
  auto type = RankedTensorType::get({}, builder.getF32Type());
  llvm::MapVector<BlockArgument, Value> parts;
  for (auto &[stored, encodings] : users)
    parts[stored] = LargestOp::create(builder, stored.getLoc(), type, stored);
  SmallVector<std::pair<AxisList, SmallVector<CollectiveOpInterface>>> groups;
  for (auto &[stored, part] : parts) {
    AxisList axes = getStorageAxes(weights.find(stored)->second, func, mesh);
    Value largest = part;
    if (!axes.empty()) {
      auto maximum =
          AllReduceOp::create(builder, stored.getLoc(), TypeRange(type), part, ReductionKind::Max,
                              getAxesAttr(func.getContext(), axes, mesh));
      auto *group = llvm::find_if(groups, [&](auto &known) { return known.first == axes; });
      if (group == groups.end())
        group = groups.insert(group, {axes, {}});
      group->second.push_back(maximum);
      largest = maximum.getResult(0);
    }
    for (EncodeOp encoding : users[stored])
      encoding.getLargestMutable().assign(largest);
  }
  for (auto &[axes, maxima] : groups) {
    if (maxima.size() < 2)
      continue;
    CollectiveOpInterface joint = joinCollectives(builder, maxima);
    for (auto [i, maximum] : llvm::enumerate(maxima)) {
      maximum->getResult(0).replaceAllUsesWith(joint->getResult(i));
      maximum->erase();
    }
  }
}

void FetchEncoder::run() {
  SmallVector<Operation *> all = llvm::map_to_vector(llvm::make_filter_range(func.front(), rounds),
                                                     [](Operation &op) { return &op; });
  for (Operation *round : all) {
    Value rounded = round->getResult(0);
    FormAttr open = getRounding(*round);
    separate(rounded);
    llvm::MapVector<int64_t, SmallVector<OpOperand *>> uses;
    bool hasForms = open.getKind() == GatherKind::Mxfp8;
    SmallVector<OpOperand *> readers =
        llvm::map_to_vector(rounded.getUses(), [](OpOperand &use) { return &use; });
    llvm::sort(readers, [](OpOperand *a, OpOperand *b) {
      return a->getOwner() == b->getOwner() ? a->getOperandNumber() < b->getOperandNumber()
                                            : a->getOwner()->isBeforeInBlock(b->getOwner());
    });
    for (OpOperand *use : readers)
      uses[hasForms ? getAlong(*use) : -1].push_back(use);
    for (auto &[along, own] : uses) {
      auto form = FormAttr::get(func.getContext(), open.getKind(), along);
      Value value = decode(round, form, own.front()->getOwner());
      for (OpOperand *use : own)
        use->set(value);
    }
    // The gather of the weight as it is stored.
    for (Operation *op = round; op && op->use_empty();) {
      Operation *before = op->getOperand(0).getDefiningOp();
      op->erase();
      op = before;
    }
  }
  addLargest();
}

namespace {
struct EncodeFetchesPass : meshwright::impl::EncodeFetchesPassBase<EncodeFetchesPass> {
  using EncodeFetchesPassBase::EncodeFetchesPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!func.getBody().hasOneBlock() || llvm::none_of(func.front(), rounds))
      return markAllAnalysesPreserved();
    FetchEncoder encoder(func);
    encoder.run();
    DistDialect::getDecisionLog(func.getContext())
        .add("encode-fetches", Outcome::Applied, func.getLoc(),
             llvm::formatv("{0} forms of weights are made for {1} gathers",
                           encoder.getNumEncodings(), encoder.getNumGathers())
                 .str(),
             {{"forms", double(encoder.getNumEncodings())},
              {"gathers", double(encoder.getNumGathers())}});
  }
};
} // namespace
