//===- EncodeFetches.cpp - weights that travel in other forms -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/recompute/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

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

/// Returns true for an op that gives a rounded weight to its readers in another shape or type.
static bool isLink(Operation *op) {
  return op->hasTrait<KeepsWeight>() && op->getNumOperands() == 1 && op->getNumResults() == 1 &&
         !isa<CollectiveOpInterface>(op);
}

/// The dimension of an operand that an op contracts, or -1 if it contracts none.
static int64_t getContracted(OpOperand &use) {
  Operation *op = use.getOwner();
  auto sharding = dyn_cast<ShardingRuleOpInterface>(op);
  if (!sharding)
    return -1;
  FactorRule rule = sharding.getFactorRule();
  const FactorRule::ValueFactors &dims = rule.operands[use.getOperandNumber()];
  for (auto [d, factors] : llvm::enumerate(dims))
    if (llvm::any_of(factors, [&](int factor) { return rule.isReducedIn(factor, 0); }))
      return d;
  return -1;
}

/// The dimension of a link's operand that a dimension of its result is, or -1 if it is none.
static int64_t moveThrough(Operation *link, int64_t dim) {
  auto sharding = dyn_cast<ShardingRuleOpInterface>(link);
  if (!sharding || dim < 0)
    return dim;
  FactorRule rule = sharding.getFactorRule();
  for (auto [d, factors] : llvm::enumerate(rule.operands[0]))
    if (factors == rule.results[0][dim])
      return d;
  return -1;
}

namespace {

class FetchEncoder {
public:
  explicit FetchEncoder(func::FuncOp func) : func(func), mesh(getSpmdMesh(func)) {}

  void run();
  int64_t getNumEncodings() const { return encodings.size(); }
  int64_t getNumGathers() const { return gathers; }

private:
  /// The gathers of rows that lead from what is encoded to the weight that is rounded, and the ops
  /// behind them, which drop padding.
  struct Way {
    Value source;
    SmallVector<AllGatherOp> gathers;
    SmallVector<Operation *> rest;
  };

  void separate(Value value);
  int64_t getAlong(OpOperand &use) const;
  Way findWay(Value whole, FormAttr form) const;
  Value encode(Value source, FormAttr form);
  Value decode(Operation *round, FormAttr form, Operation *reader);
  void addLargest();

  func::FuncOp func;
  MeshAttr mesh;
  llvm::MapVector<std::pair<Value, Attribute>, EncodeOp> encodings;
  int64_t gathers = 0;
};

} // namespace

/// Gives each reader of a rounded weight links of its own, since readers may want other forms.
void FetchEncoder::separate(Value value) {
  for (OpOperand &use : llvm::make_early_inc_range(value.getUses())) {
    Operation *link = use.getOwner();
    if (!isLink(link))
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
  while (isLink(read->getOwner()) && !read->getOwner()->use_empty()) {
    links.push_back(read->getOwner());
    read = &*links.back()->getResult(0).getUses().begin();
  }
  int64_t along = getContracted(*read);
  for (Operation *link : llvm::reverse(links))
    along = moveThrough(link, along);
  return along == 0 ? 0 : 1;
}

/// The shape of a matrix, seen without dimensions of size 1 before it. Empty for other shapes.
static ArrayRef<int64_t> getMatrixShape(Value value) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(value.getType()).getShape();
  if (shape.size() < 2 || llvm::any_of(shape.drop_back(2), [](int64_t size) { return size != 1; }))
    return {};
  return shape.take_back(2);
}

/// Goes back over gathers of rows, over what drops the padding behind the rows, and over what sees
/// the matrix otherwise. Shards of whole blocks are encoded where they are stored.
FetchEncoder::Way FetchEncoder::findWay(Value whole, FormAttr form) const {
  int64_t rows = getBlockShape(form.getKind(), form.getAlong()).rows;
  Way way{whole, {}, {}}, known = way;
  while (Operation *op = way.source.getDefiningOp()) {
    ArrayRef<int64_t> result = getMatrixShape(way.source);
    ArrayRef<int64_t> operand =
        op->getNumOperands() == 1 ? getMatrixShape(op->getOperand(0)) : ArrayRef<int64_t>();
    if (result.empty() || operand.empty() || operand[1] != result[1])
      break;
    auto gather = dyn_cast<AllGatherOp>(op);
    auto slice = dyn_cast<nn::SliceOp>(op);
    bool isView = op->hasTrait<View>() && operand == result;
    bool dropsRows = slice && way.gathers.empty() &&
                     llvm::all_of(slice.getStarts(), [](int64_t start) { return start == 0; }) &&
                     llvm::all_of(slice.getStrides(), [](int64_t stride) { return stride == 1; });
    bool gathersRows = gather && gather.getRole() == CollectiveRole::Weights &&
                       operand[0] % rows == 0 && operand[0] != result[0];
    if (!isView && !dropsRows && !gathersRows)
      break;
    if (gathersRows)
      way.gathers.push_back(gather);
    else if (way.gathers.empty())
      way.rest.push_back(op);
    way.source = op->getOperand(0);
    if (!way.gathers.empty() && cast<RankedTensorType>(way.source.getType()).getRank() == 2)
      known = way;
  }
  std::reverse(known.gathers.begin(), known.gathers.end());
  std::reverse(known.rest.begin(), known.rest.end());
  return known;
}

/// The form of a weight, made where the weight is there.
Value FetchEncoder::encode(Value source, FormAttr form) {
  EncodeOp &known = encodings[{source, form}];
  if (!known) {
    OpBuilder builder(func.getContext());
    builder.setInsertionPointAfterValue(source);
    known = EncodeOp::create(builder, source.getLoc(),
                             form.getType(cast<RankedTensorType>(source.getType())), source,
                             /*largest=*/Value());
  }
  return known.getResult();
}

/// Writes the way of a weight in a form, before its first reader: encoded, gathered, decoded, and
/// without padding.
Value FetchEncoder::decode(Operation *round, FormAttr form, Operation *reader) {
  Way way = findWay(round->getOperand(0), form);
  Value value = encode(way.source, form);
  OpBuilder builder(reader);
  for (AllGatherOp gather : way.gathers) {
    int64_t ranks = getNumShards(getAxes(gather.getAxes(), mesh));
    auto coded = cast<RankedTensorType>(value.getType());
    RankedTensorType type = coded.clone({coded.getDimSize(0) * ranks, coded.getDimSize(1)});
    auto dims = builder.getDenseI64ArrayAttr(0);
    value = AllGatherOp::create(builder, gather.getLoc(), TypeRange(type), value, gather.getAxes(),
                                dims, CollectiveRole::Weights)
                .getResult(0);
    ++gathers;
  }
  auto type = cast<RankedTensorType>(round->getResult(0).getType());
  ArrayRef<int64_t> shape = cast<RankedTensorType>(value.getType()).getShape();
  value = DecodeOp::create(builder, round->getLoc(), type.clone(shape), value);
  if (type.getShape() == shape)
    return value;
  // The number of a part may stand before its rows.
  Type seen = way.rest.front()->getOperand(0).getType();
  if (seen != value.getType())
    value = nn::ReshapeOp::create(builder, round->getLoc(), seen, value);
  for (Operation *op : way.rest) {
    IRMapping mapping;
    mapping.map(op->getOperand(0), value);
    value = builder.clone(*op, mapping)->getResult(0);
  }
  return value;
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
