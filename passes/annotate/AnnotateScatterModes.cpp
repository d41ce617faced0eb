//===- AnnotateScatterModes.cpp - the residual stream's layout ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/DpAttention.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Factors/ShardingPropagation.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATESCATTERMODESPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// The classes of tokens that are scattered, in the order of dimensions, each with its axes.
using ScatteredTokens = SmallVector<std::pair<int, AxisList>, 2>;

class ScatterModes {
public:
  ScatterModes(func::FuncOp func, const FactorAnalysis &factors,
               const ShardingPropagation &shardings, MeshOp meshOp, ArrayRef<Axis> axes,
               const StageFilter &stages, const DpAttention &groups)
      : func(func), factors(factors), shardings(shardings), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), axes(axes), size(getNumShards(axes)),
        stages(stages), groups(groups) {}

  /// Finds the values that would be scattered.
  void find();
  void shareGathers();
  bool empty() const { return stream.empty(); }
  /// Returns true if scattering pays by the cost model. Logs a decision.
  bool isProfitable();
  void annotate();

private:
  bool usesAxes(Value value) const { return anyOverlap(shardings.get(value).getAxes(), axes); }
  /// Returns true if the result of the op is a partial sum over the axes.
  bool isReduced(Operation *op) const;
  bool contractsAxes(Operation *op) const;
  bool sumsRoutedRows(Value rows) const;
  static bool isRouted(Value value) { return bool(nn::getRouted(value.getType())); }
  /// The tokens in a partial sum; none if the axes divide none.
  ScatteredTokens chooseTokens(Value value) const;
  /// The same where groups of ranks have split the tokens.
  ScatteredTokens chooseTokensOfGroup(Value value) const;
  /// A class of tokens, and what is left of it on a group.
  struct TokenClass {
    int cls;
    int64_t left;
  };
  ScatteredTokens spread(ArrayRef<TokenClass> classes, int padded) const;
  /// Returns true if `op` computes each of the tokens on its own, and its result has their classes.
  bool keepsTokens(Operation *op, const ScatteredTokens &tokens) const;
  bool hasTokens(Value value, const ScatteredTokens &tokens) const;
  bool goesThrough(Operation *op, Value from, const ScatteredTokens &tokens) const;

  func::FuncOp func;
  const FactorAnalysis &factors;
  const ShardingPropagation &shardings;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  /// The axes to scatter over, major to minor, and the product of their sizes.
  AxisList axes;
  int64_t size;
  const StageFilter &stages;
  /// The groups of data-parallel attention, which divide the tokens before the axes do.
  DpAttention groups;
  /// Scattered values, with their tokens, in the order found.
  llvm::MapVector<Value, ScatteredTokens> stream;
  SmallVector<Operation *> reduced;
};

bool ScatterModes::isReduced(Operation *op) const {
  // Sums without a matrix, with one number per row, are too small to gain. Partial sums of routed rows
  // are reduced behind the sum over experts.
  if (op->getNumResults() != 1 || usesAxes(op->getResult(0)) || isRouted(op->getResult(0)))
    return false;
  if (isa<nn::CombineOp>(op))
    return contractsAxes(op) || sumsRoutedRows(op->getOperand(0));
  return isa<MatrixOpInterface>(op) && contractsAxes(op);
}

/// Returns true if routed rows are partial sums over the axes.
bool ScatterModes::sumsRoutedRows(Value rows) const {
  Operation *op = rows.getDefiningOp();
  if (!op || isa<nn::DispatchOp>(op))
    return false;
  return contractsAxes(op) || llvm::any_of(op->getOperands(), [&](Value operand) {
           return isRouted(operand) && sumsRoutedRows(operand);
         });
}

/// Returns true if the op contracts a factor that the axes shard.
bool ScatterModes::contractsAxes(Operation *op) const {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  for (auto [operand, dims] : llvm::zip(op->getOperands(), opFactors.rule.operands)) {
    ValueSharding sharding = shardings.get(operand);
    for (auto [d, dim] : llvm::enumerate(dims))
      for (int factor : dim)
        if (opFactors.rule.factors[factor].kind == FactorKind::Contracted)
          for (const AxisList &own : sharding.dims[d])
            if (anyOverlap(own, axes))
              return true;
  }
  return false;
}

/// The axes over the first classes, until each rank has one row of all but the last of them: so one launch
/// moves them all (`combine-collectives`). The class `padded` may have padding. Returns none where that cannot be.
ScatteredTokens ScatterModes::spread(ArrayRef<TokenClass> classes, int padded) const {
  ScatteredTokens tokens;
  int64_t ranks = 1;
  for (const TokenClass &own : classes) {
    int64_t rest = size / ranks;
    bool isLast = own.left % rest == 0 || own.cls == padded;
    if (!isLast && rest % own.left != 0)
      return {};
    if (!isLast && own.left == 1)
      continue;
    std::optional<AxisList> part = getAxisPart(axes, ranks, isLast ? rest : own.left);
    if (!part)
      return {};
    tokens.push_back({own.cls, *part});
    if (isLast)
      return tokens;
    ranks *= own.left;
  }
  return {};
}

/// The first classes that the axes divide without padding, of what is left of them on a group; else the
/// largest one.
ScatteredTokens ScatterModes::chooseTokensOfGroup(Value value) const {
  SmallVector<TokenClass> all;
  int largest = -1;
  int64_t most = 1;
  ValueSharding sharding = shardings.get(value);
  for (auto [classes, lists] : llvm::zip_equal(factors.getClasses(value).drop_back(),
                                               ArrayRef(sharding.dims).drop_back()))
    for (auto [cls, own] : llvm::zip_equal(classes, lists)) {
      int64_t left = llvm::divideCeil(factors.getSize(cls), getNumShards(own));
      all.push_back({cls, left});
      if (left > most) {
        largest = cls;
        most = left;
      }
    }
  for (int padded : {-1, largest})
    for (size_t first = 0; first < all.size(); ++first)
      if (ScatteredTokens tokens = spread(ArrayRef(all).drop_front(first), padded); !tokens.empty())
        return tokens;
  return {};
}

ScatteredTokens ScatterModes::chooseTokens(Value value) const {
  ArrayRef<FactorClasses> dims = factors.getClasses(value);
  if (dims.size() < 2)
    return {};
  if (groups.groups > 1 || nn::getServingSizes(func->getParentOfType<ModuleOp>()))
    return chooseTokensOfGroup(value);
  // With two dimensions before the features, the first one is the batch.
  int batch = dims.size() > 2 && !dims.front().empty() ? dims.front().front() : -1;
  int sequence = -1;
  for (const FactorClasses &dim : dims.drop_front(dims.size() > 2).drop_back())
    for (int cls : dim)
      if (sequence < 0 || factors.getSize(cls) > factors.getSize(sequence))
        sequence = cls;
  bool sequenceFits = sequence >= 0 && factors.getSize(sequence) >= size;
  bool batchFits = batch >= 0 && factors.getSize(batch) >= size;
  if (sequenceFits || (sequence >= 0 && !batchFits))
    return {{sequence, axes}};
  return batchFits ? ScatteredTokens{{batch, axes}} : ScatteredTokens();
}

bool ScatterModes::hasTokens(Value value, const ScatteredTokens &tokens) const {
  ArrayRef<FactorClasses> dims = factors.getClasses(value);
  return llvm::all_of(tokens, [&](const auto &own) {
    return llvm::any_of(dims, [&](const FactorClasses &dim) { return llvm::is_contained(dim, own.first); });
  });
}

bool ScatterModes::keepsTokens(Operation *op, const ScatteredTokens &tokens) const {
  if (!hasTokens(op->getResult(0), tokens))
    return false;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  for (auto [factor, classes] : llvm::zip_equal(opFactors.rule.factors, opFactors.classes))
    if (factor.kind != FactorKind::Parallel &&
        llvm::any_of(tokens, [&, &own = classes](const auto &scattered) {
          return llvm::is_contained(own, scattered.first);
        }))
      return false;
  return true;
}

bool ScatterModes::goesThrough(Operation *op, Value from, const ScatteredTokens &tokens) const {
  if (op->getNumResults() != 1 || usesAxes(op->getResult(0)) || isReduced(op) ||
      isRouted(op->getResult(0)) || !keepsTokens(op, tokens))
    return false;
  auto linear = dyn_cast<nn::LinearOp>(op);
  if (!linear)
    return !op->hasTrait<Product>();
  if (groups.denseTp == 1)
    return true;
  // A projection by a whole weight can run on scattered tokens. Its result is then
  // gathered, not its operand. This pays where the result is smaller and no other user
  // needs the whole operand.
  int64_t together = 0;
  for (Operation *user : from.getUsers()) {
    auto other = dyn_cast<nn::LinearOp>(user);
    if (!other) {
      if (usesAxes(user->getNumResults() ? user->getResult(0) : from) || isa<LogSumExpOpInterface>(user))
        return false;
      continue;
    }
    if (usesAxes(other.getResult()) || isReduced(other))
      return false;
    together += getTensorBytes(other.getResult().getType());
  }
  return together <= getTensorBytes(from.getType());
}

void ScatterModes::find() {
  Block &block = func.getBody().front();
  for (Operation &op : block.without_terminator()) {
    if (op.getNumResults() != 1 || !stages.contains(&op))
      continue;
    Value result = op.getResult(0);
    if (isReduced(&op)) {
      ScatteredTokens tokens = chooseTokens(result);
      if (!tokens.empty() && hasTokens(result, tokens)) {
        stream.insert({result, tokens});
        reduced.push_back(&op);
      }
      continue;
    }
    for (Value operand : op.getOperands()) {
      auto it = stream.find(operand);
      if (it == stream.end() || !goesThrough(&op, operand, it->second))
        continue;
      // The insertion invalidates the iterator.
      ScatteredTokens tokens = it->second;
      stream.insert({result, tokens});
      break;
    }
  }
}

/// Parallel branches, each with a norm, end the stream with several values that are
/// computed from one value. If that value is smaller than their sum, it is gathered in
/// their place, and the ops between compute all tokens.
void ScatterModes::shareGathers() {
  auto ends = [&](Value value) {
    return llvm::none_of(value.getUsers(), [&](Operation *user) {
      return user->getNumResults() == 1 && stream.count(user->getResult(0));
    });
  };
  llvm::SmallDenseSet<Value> dropped;
  for (auto [value, tokens] : stream) {
    SmallVector<Value, 2> classes;
    int64_t bytes = 0;
    llvm::SmallDenseSet<Operation *, 4> seen;
    for (Operation *user : value.getUsers()) {
      if (user->getNumResults() != 1 || !seen.insert(user).second)
        continue;
      Value result = user->getResult(0);
      bool hasReader = llvm::any_of(result.getUsers(), [](Operation *reader) {
        return !reader->hasTrait<OpTrait::IsTerminator>();
      });
      if (stream.count(result) && !isReduced(user) && hasReader && ends(result)) {
        classes.push_back(result);
        bytes += getTensorBytes(result.getType());
      }
    }
    if (classes.size() > 1 && bytes > getTensorBytes(value.getType()))
      dropped.insert(classes.begin(), classes.end());
  }
  stream.remove_if([&](const auto &entry) { return dropped.contains(entry.first); });
}

bool ScatterModes::isProfitable() {
  CostModel cost(mesh);
  double k = size;
  double saved = 0, extra = 0;
  for (auto [value, tokens] : stream) {
    Operation *op = value.getDefiningOp();
    if (llvm::is_contained(reduced, op))
      continue;
    double bytes = getTensorBytes(value.getType());
    for (Value operand : op->getOperands())
      if (!isa<BlockArgument>(operand))
        bytes += getTensorBytes(operand.getType());
    bytes /= groups.groups;
    saved += cost.getMemoryTime(bytes) * 1e-12 * (1 - 1 / k);
  }
  int64_t bytes = 0;
  for (Operation *op : reduced) {
    int64_t own = getTensorBytes(op->getResult(0).getType()) / groups.groups;
    int64_t padded = own;
    for (const auto &[cls, list] : stream.find(op->getResult(0))->second)
      padded = padded / factors.getSize(cls) * llvm::alignTo(factors.getSize(cls), getNumShards(list));
    bytes += own;
    extra += 1e-12 * (cost.getCost(CollectiveKind::ReduceScatter, axes, padded).time +
                      cost.getCost(CollectiveKind::AllGather, axes, padded).time -
                      cost.getCost(CollectiveKind::AllReduce, axes, own).time);
  }
  bool pays = saved > extra;
  std::string name = StringRef(toString(axes, mesh)).drop_front(2).drop_back().str();
  llvm::erase(name, '"');
  DistDialect::getDecisionLog(func.getContext())
      .add("annotate-scatter-modes", pays ? Outcome::Applied : Outcome::Declined,
           reduced.front()->getLoc(),
           llvm::formatv("{0} reductions over \"{1}\": scattering the tokens between blocks saves "
                         "{2:F1} us of memory traffic and costs {3:F1} us more of communication{4}",
                         reduced.size(), name, saved * 1e6, extra * 1e6,
                         pays ? "" : "; more tokens a run would change that")
               .str(),
           {{"saved_seconds", saved}, {"extra_seconds", extra}, {"bytes", double(bytes)}});
  return pays;
}

void ScatterModes::annotate() {
  auto append = [&](Value value, ValueSharding &sharding, int tokens, const AxisList &list) {
    for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(value), sharding.dims))
      for (auto [cls, own] : llvm::zip_equal(classes, dim))
        if (cls == tokens)
          return own.append(list);
  };
  auto scatter = [&](Value value, const ScatteredTokens &tokens) {
    ValueSharding sharding = shardings.get(value);
    for (const auto &[cls, list] : tokens)
      append(value, sharding, cls, list);
    return sharding;
  };
  for (auto [value, tokens] : stream)
    setShardingAttr(value, writeSharding(scatter(value, tokens), value, factors, mesh, symbol));
  // Behind the stream tokens are whole, even for users that could take shards: one gather
  // serves all users.
  auto keepWhole = [&](Operation *user) {
    if (user->getNumResults() == 1 && !stream.count(user->getResult(0)) && !getShardingAttr(user->getResult(0)))
      setShardingAttr(user->getResult(0), writeSharding(shardings.get(user->getResult(0)), user->getResult(0),
                                                        factors, mesh, symbol));
  };
  for (auto [value, tokens] : stream)
    for (Operation *user : value.getUsers()) {
      keepWhole(user);
      // Rows of experts are made of the tokens that exist.
      if (isa<CompactOp>(user))
        for (Operation *reader : user->getUsers())
          if (reader->getNumResults() == 1 && isRouted(reader->getResult(0)))
            keepWhole(reader);
    }
  // Results of the model have whole tokens.
  Operation *terminator = func.getBody().front().getTerminator();
  SignatureAttrs signatures;
  for (auto [i, value] : llvm::enumerate(terminator->getOperands()))
    if (stream.count(value) && !func.getResultAttr(i, DistDialect::kShardingAttr))
      signatures.setResult(func, i, DistDialect::kShardingAttr,
                           writeSharding(shardings.get(value), value, factors, mesh, symbol));
}

struct AnnotateScatterModesPass
    : meshwright::impl::AnnotateScatterModesPassBase<AnnotateScatterModesPass> {
  using AnnotateScatterModesPassBase::AnnotateScatterModesPassBase;
  void runOnOperation() override {
    // The pass changes attributes only, which propagation reads and verifies.
    markAllAnalysesPreserved();
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    RoleAxes role(AxisRole::Tensor, axis);
    if (!optional && failed(role.check(*meshOp, "to scatter tokens over")))
      return signalPassFailure();
    if (mode == OnOffAuto::Off)
      return;
    // Without data-parallel attention all ranks are one group.
    DpAttention groups = getDpAttention(*meshOp).value_or(DpAttention{1, /*denseTp=*/0, false});
    for (func::FuncOp func : getGlobalFunctions(module))
      for (const StageMesh &view : getStageMeshes(*meshOp)) {
        AxisList axes = role.get(*meshOp, view);
        if (std::optional<AxisList> own =
                getAxisPart(axes, groups.groups, getNumShards(axes) / groups.groups))
          axes = *own;
        if (!axes.empty() &&
            failed(annotate(func, *meshOp, mesh, view, axes, role.toString(view), groups)))
          return signalPassFailure();
      }
  }

private:
  LogicalResult annotate(func::FuncOp func, MeshOp meshOp, MeshAttr mesh, const StageMesh &view,
                         ArrayRef<Axis> axes, const std::string &names,
                         const DpAttention &groups) {
    DecisionLog &log = DistDialect::getDecisionLog(&getContext());
    auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
    if (failed(factors))
      return failure();
    auto shardings = ShardingPropagation::run(func, *factors, mesh);
    if (failed(shardings))
      return failure();
    StageFilter stages = view.getFilter();
    ScatterModes modes(func, *factors, *shardings, meshOp, axes, stages, groups);
    modes.find();
    modes.shareGathers();
    if (modes.empty()) {
      log.add("annotate-scatter-modes", Outcome::Declined, func.getLoc(),
              "nothing to scatter: no partial sum over " + names + " with more than one token");
      return success();
    }
    // Layers that are whole on each rank would compute the same tokens on all ranks of a group.
    bool pays = groups.denseTp == 1;
    if (mode == OnOffAuto::Auto && !pays && !modes.isProfitable())
      return success();
    if (mode == OnOffAuto::On)
      log.add("annotate-scatter-modes", Outcome::Applied, func.getLoc(),
              "tokens are scattered over " + names + " between blocks, as the user asks");
    modes.annotate();
    return success();
  }
};

} // namespace
