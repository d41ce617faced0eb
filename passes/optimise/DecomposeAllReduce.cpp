//===- DecomposeAllReduce.cpp - all-reduces over tokens -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/passes/optimise/GatherPlan.h"
#include "meshwright/passes/optimise/MergeReductions.h"
#include "meshwright/passes/optimise/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_DECOMPOSEALLREDUCEPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr llvm::StringLiteral kDecomposeAllReduce = "decompose-all-reduce";

struct DecomposeAllReducePass
    : meshwright::impl::DecomposeAllReducePassBase<DecomposeAllReducePass> {
  using DecomposeAllReducePassBase::DecomposeAllReducePassBase;

  void runOnOperation() override;
  /// Returns true if the all-reduce was decomposed.
  bool decompose(AllReduceOp op, const TokenDim &token, const TokenSharding &sharding,
                 const GatherPlan &plan);
};

void split(AllReduceOp op, const TokenDim &token, const TokenSharding &sharding) {
  OpBuilder builder(op);
  Location location = op.getLoc();
  Value partial = op.getInputs()[0];
  SmallVector<int64_t> shape(cast<RankedTensorType>(partial.getType()).getShape());
  DenseI64ArrayAttr dims = builder.getDenseI64ArrayAttr(token.dim);
  if (token.padded != token.size) {
    shape[token.dim] = token.padded;
    partial = PadOp::create(builder, location,
                            cast<RankedTensorType>(partial.getType()).clone(shape), partial, dims);
  }
  shape[token.dim] = token.getChunk();
  Type type = cast<RankedTensorType>(partial.getType()).clone(shape);
  Value shard = ReduceScatterOp::create(builder, location, TypeRange(type), partial,
                                        op.getReduction(), op.getAxes(), dims)
                    .getResult(0);
  Value whole = op.getResult(0);
  whole.replaceAllUsesWith(sharding.gather(builder, whole, shard, token, /*statesShard=*/false));
  op.erase();
}

/// Returns true for a reduction of one number a row, as softmax and losses take it over sharded
/// classes. It is no product and no lookup, and its tokens or its features are one.
bool isStatistic(Value partial, const TokenDim &token) {
  auto shape = cast<RankedTensorType>(partial.getType()).getShape();
  if (token.size > 1 && ShapedType::getNumElements(shape.drop_front(token.dim + 1)) > 1)
    return false;
  auto def = partial.getDefiningOp<ShardingRuleOpInterface>();
  return def && !def->hasTrait<Product>() && !isa<MatrixOpInterface>(def.getOperation()) &&
         llvm::any_of(def.getFactorRule().factors, [](const RuleFactor &factor) {
           return factor.kind == FactorKind::Contracted;
         });
}

bool DecomposeAllReducePass::decompose(AllReduceOp op, const TokenDim &token,
                                       const TokenSharding &sharding, const GatherPlan &plan) {
  DecisionLog &log = DistDialect::getDecisionLog(op.getContext());
  const CostModel &model = sharding.getModel();
  const GatherPlan::Entry &entry = plan.getEntry(op.getResult(0));
  if (entry.shardedUsers == 0) {
    log.add(kDecomposeAllReduce.str(), Outcome::Declined, op.getLoc(),
            "all-reduce stays whole: no user of it can run on a shard of the tokens");
    return false;
  }
  int64_t bytes = getTensorBytes(op.getResult(0).getType()) / token.size * token.padded;
  auto shape = cast<RankedTensorType>(op.getResult(0).getType()).getShape();
  bool isOutermost =
      llvm::all_of(shape.take_front(token.dim), [](int64_t size) { return size == 1; });
  Cost whole = *model.getCost(op.getOperation());
  Cost scatter =
      model.getCost(CollectiveKind::ReduceScatter, token.axes, bytes, isOutermost ? 0 : 1);
  if (token.padded != token.size)
    scatter.time += model.getMemoryTime(2 * bytes);
  int64_t after = scatter.time + entry.getBest();
  std::vector<std::pair<std::string, double>> numbers = {
      {"all_reduce_bytes", double(whole.bytes)},
      {"all_reduce_seconds", double(whole.time) * 1e-12},
      {"reduce_scatter_bytes", double(scatter.bytes)},
      {"reduce_scatter_seconds", double(scatter.time) * 1e-12},
      {"gathers_less_savings_seconds", double(entry.getBest()) * 1e-12}};
  if (token.padded != token.size)
    numbers.push_back({"padded_rows", double(token.padded - token.size)});
  bool isForced = when == OnOffAuto::On && !isStatistic(op.getInputs()[0], token);
  if (after > whole.time && !isForced) {
    log.add(kDecomposeAllReduce.str(), Outcome::Declined, op.getLoc(),
            token.padded != token.size
                ? "all-reduce stays whole: padding and launches cost more than sharding the tokens "
                  "saves; more tokens would change that"
                : "all-reduce stays whole: the second launch costs more than sharding the tokens "
                  "saves; more tokens would change that",
            std::move(numbers));
    return false;
  }
  log.add(kDecomposeAllReduce.str(), Outcome::Applied, op.getLoc(),
          "all-reduce becomes reduce-scatter and all-gather over tokens", std::move(numbers));
  split(op, token, sharding);
  return true;
}

void DecomposeAllReducePass::runOnOperation() {
  func::FuncOp func = getOperation();
  if (!getSpmdMeshSymbol(func) || func.isDeclaration() || when == OnOffAuto::Off)
    return markAllAnalysesPreserved();
  MeshAttr mesh = getSpmdMesh(func);
  if (failed(verifyDevice(mesh, func)))
    return signalPassFailure();
  if (func.front().getOps<AllReduceOp>().empty())
    return markAllAnalysesPreserved();
  CostModel model(mesh);
  bool changed = mergeReductions(func, model, kDecomposeAllReduce);
  FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(func);
  if (failed(placement))
    return signalPassFailure();
  TokenSharding sharding(func.front(), *placement, model);
  llvm::MapVector<Value, TokenDim> seeds;
  DecisionLog &log = DistDialect::getDecisionLog(&getContext());
  for (auto op : func.front().getOps<AllReduceOp>()) {
    if (op.getRole() != CollectiveRole::Data) {
      log.add(kDecomposeAllReduce.str(), Outcome::Declined, op.getLoc(),
              "all-reduce stays whole: its role is " + stringifyCollectiveRole(op.getRole()).str() +
                  ", and only data has tokens");
      continue;
    }
    if (op->getNumResults() != 1) {
      log.add(kDecomposeAllReduce.str(), Outcome::Declined, op.getLoc(),
              "all-reduce stays whole: it sends several values in one launch");
      continue;
    }
    std::optional<TokenDim> token = chooseTokens(cast<RankedTensorType>(op.getResult(0).getType()),
                                                 getCollectiveAxes(op, mesh));
    // The tail of a dimension that is sharded or padded already is no tail of the tensor. Equal
    // elements may be a part of such a dimension.
    auto isCut = [](const DimLayout &dim) {
      return dim.isSharded() || dim.isPadded() ||
             llvm::any_of(dim.factors, [](const LayoutFactor &factor) { return factor.uniform; });
    };
    if (token && isCut(placement->getLayout(op.getResult(0)).dims[token->dim]))
      token.reset();
    if (token)
      seeds.insert({op.getResult(0), *token});
  }
  GatherPlan plan(func.front(), sharding, seeds, GatherPlan::Joins::Last);
  for (auto &[value, token] : seeds)
    changed |= decompose(value.getDefiningOp<AllReduceOp>(), token, sharding, plan);
  if (!changed)
    return markAllAnalysesPreserved();
  if (failed(verifyPlacement(func)))
    signalPassFailure();
}

} // namespace
