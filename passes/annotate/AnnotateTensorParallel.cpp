//===- AnnotateTensorParallel.cpp - shard weights, by structure -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/AnnotateTensorParallel.h"

#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/ExpandNorms.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATETENSORPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// The rows of an embedding are sharded if each rank has at least so many. Fewer rows save
/// less memory than a partial sum is worth.
constexpr int64_t kMinTableRows = 8;

/// Facts about a class of tied factors.
struct ClassInfo {
  /// Some op needs this factor whole.
  bool isSpecial = false;
  /// Rows of an embedding table.
  bool isTableRows = false;
  /// An annotation shards it or keeps it whole.
  bool isForced = false, isForbidden = false;
  bool isOutput = false, isContracted = false;
  /// Bytes of the weights that have this factor.
  double weightBytes = 0;
  /// Bytes of the partial sums that result if it is sharded.
  double partialBytes = 0;
  /// Classes that occur in some value together with this one.
  llvm::SmallDenseSet<int, 8> neighbours;
  /// The next minor factors in dimensions of weights.
  SmallVector<int, 2> below;
};

class TensorParallel {
public:
  TensorParallel(func::FuncOp func, const FactorAnalysis &factors, MeshAttr mesh,
                 FlatSymbolRefAttr symbol, AxisList axes, const StageFilter &stages)
      : func(func), factors(factors), mesh(mesh), symbol(symbol), group(std::move(axes)),
        size(getNumShards(group)), stages(stages), classes(factors.getNumClasses()) {}

  LogicalResult run() {
    if (failed(collect()))
      return failure();
    choose();
    annotate();
    report();
    expandNorms();
    return success();
  }

  /// Returns true if norms were expanded: analyses of the function are then stale.
  bool hasRewritten() const { return rewritten; }

private:
  LogicalResult collect();
  void countFactors(Operation &op);
  void choose();
  /// Axes for a class of this size, and for the one below it.
  bool place(int leaf);
  void annotate();
  void report();
  void expandNorms();

  func::FuncOp func;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  /// The axes to shard over, major to minor, and the product of their sizes.
  AxisList group;
  int64_t size;
  const StageFilter &stages;
  std::vector<ClassInfo> classes;
  llvm::DenseMap<int, AxisList> chosen;
  /// The weight of each product that has one.
  llvm::DenseMap<Operation *, Value> weights;
  bool rewritten = false;
};

/// Notes in the classes of its factors how an op uses them.
void TensorParallel::countFactors(Operation &op) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
  // A norm over heads and head size can be expanded into sums. A norm over the features
  // of the residual stream cannot: its users would exchange these sums each time.
  bool isNorm = op.hasTrait<RowNorm>();
  for (auto [factor, leaves] : llvm::zip_equal(opFactors.rule.factors, opFactors.leaves))
    for (int leaf : leaves) {
      if (factor.kind == FactorKind::Special) {
        if (isNorm && leaves.size() > 1)
          classes[leaf].partialBytes += getTensorBytes(op.getResult(0).getType()) / factor.size;
        else
          classes[leaf].isSpecial = true;
      }
      // Its maxima and sums are exchanged.
      if (factor.kind == FactorKind::Expandable)
        classes[leaf].partialBytes +=
            getTensorBytes(op.getOperand(0).getType()) / factor.size *
            cast<ExpandOpInterface>(op).getNumStatistics();
      if (factor.kind == FactorKind::Contracted) {
        classes[leaf].isContracted = true;
        classes[leaf].partialBytes += getTensorBytes(op.getResult(0).getType());
      }
    }
}

LogicalResult TensorParallel::collect() {
  Block &block = func.getBody().front();
  llvm::DenseSet<Value> fromParameters, constants;
  for (BlockArgument arg : block.getArguments()) {
    if (!getWeight(arg))
      continue;
    fromParameters.insert(arg);
    // Weights of other stages are sharded over parts of axes that need not fit these.
    if (!arg.use_empty() &&
        llvm::none_of(arg.getUsers(), [&](Operation *op) { return stages.contains(op); }))
      continue;
    ShardingAttr attr = getShardingAttr(arg);
    if (!attr)
      continue;
    auto sharding = readSharding(attr, arg, factors, mesh, [&] { return emitError(arg.getLoc()); });
    if (failed(sharding))
      return failure();
    for (auto [d, leaves] : llvm::enumerate(factors.getLeaves(arg)))
      for (auto [leaf, axes] : llvm::zip_equal(leaves, sharding->dims[d])) {
        if (anyOverlap(axes, group)) {
          classes[leaf].isForced = true;
          chosen[leaf] = axes;
        } else if (!attr.getDims()[d].getIsOpen()) {
          classes[leaf].isForbidden = true;
        }
      }
  }
  llvm::DenseSet<Value> counted;
  for (Operation &op : block.without_terminator()) {
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    if (!stages.contains(&op)) {
      // A factor that another stage has, too, is not for this stage to shard.
      for (const FactorAnalysis::Leaves &leaves : opFactors.leaves)
        for (int leaf : leaves)
          classes[leaf].isForbidden = true;
      continue;
    }
    // A constant beside a parameter is one of the numbers that it is computed with.
    auto isFromParameters = [&](Value v) { return fromParameters.contains(v); };
    auto isConstant = [&](Value v) { return constants.contains(v); };
    bool allConstant = llvm::all_of(op.getOperands(), isConstant) && isPure(&op);
    bool allFromParameters = !allConstant && llvm::all_of(op.getOperands(), [&](Value v) {
      return isFromParameters(v) || isConstant(v);
    });
    if (allFromParameters || allConstant)
      (allConstant ? constants : fromParameters).insert(op.getResult(0));
    countFactors(op);
    auto visit = [&](Value value) {
      ArrayRef<FactorAnalysis::Leaves> dims = factors.getLeaves(value);
      SmallVector<int, 8> all;
      for (const FactorAnalysis::Leaves &dim : dims)
        all.append(dim.begin(), dim.end());
      for (size_t i = 0; i < all.size(); ++i)
        for (size_t j = 0; j < all.size(); ++j)
          if (i != j)
            classes[all[i]].neighbours.insert(all[j]);
    };
    for (Value result : op.getResults())
      visit(result);
    for (auto [i, operand] : llvm::enumerate(op.getOperands())) {
      if (isa<BlockArgument>(operand))
        visit(operand);
      auto product = dyn_cast<MatrixOpInterface>(op);
      if (!fromParameters.contains(operand) || allFromParameters || !product ||
          product.getBiasOperand() == i)
        continue;
      weights[&op] = operand;
      auto lookup = dyn_cast<LookupOpInterface>(op);
      bool isNew = counted.insert(operand).second;
      for (auto [d, dim] : llvm::enumerate(opFactors.rule.operands[i]))
        for (int factor : dim) {
          const FactorAnalysis::Leaves &leaves = opFactors.leaves[factor];
          for (auto [j, leaf] : llvm::enumerate(leaves)) {
            ClassInfo &info = classes[leaf];
            if (isNew)
              info.weightBytes += getTensorBytes(operand.getType());
            if (opFactors.rule.factors[factor].kind == FactorKind::Parallel)
              info.isOutput = true;
            if (lookup && lookup.getTableOperand() == i && lookup.getTableDim() == int64_t(d))
              info.isTableRows = true;
            if (j + 1 < leaves.size() && !llvm::is_contained(info.below, leaves[j + 1]))
              info.below.push_back(leaves[j + 1]);
          }
        }
    }
  }
  return success();
}

bool TensorParallel::place(int leaf) {
  int64_t n = factors.getSize(leaf);
  bool fits = n < size && size % n == 0;
  std::optional<AxisList> own = fits ? getPart(group, 1, n) : std::nullopt;
  std::optional<AxisList> rest = own ? getPart(group, n, size / n) : std::nullopt;
  if (!rest) {
    // With less than half an element per rank, most of the work is padding.
    if (2 * n <= size)
      return false;
    chosen[leaf] = group;
    return true;
  }
  // The factor takes a part of the axes. The next minor one, the query heads of a group,
  // takes the rest, or else the values are replicated over the rest.
  chosen[leaf] = *own;
  for (int below : classes[leaf].below)
    if (!classes[below].isSpecial && !classes[below].isForbidden && !chosen.count(below)) {
      chosen[below] = *rest;
      break;
    }
  return true;
}

void TensorParallel::choose() {
  SmallVector<int> candidates;
  for (auto [leaf, info] : llvm::enumerate(classes)) {
    if (info.weightBytes == 0 || info.isSpecial || info.isForced || info.isForbidden ||
        info.neighbours.contains(leaf))
      continue;
    int64_t n = factors.getSize(leaf);
    if (info.isTableRows && n < kMinTableRows * size)
      continue;
    // A small factor that no op contracts is not worth sharding.
    if (n < size && !(info.isOutput && info.isContracted))
      continue;
    candidates.push_back(leaf);
  }
  // Classes that pair a column-parallel with a row-parallel weight come first, then classes
  // without a partner. Within each group, classes are ordered by communication per byte of
  // weight, then by size (larger first), then by position.
  llvm::sort(candidates, [&](int a, int b) {
    const ClassInfo &x = classes[a], &y = classes[b];
    bool xPairs = x.isOutput && x.isContracted, yPairs = y.isOutput && y.isContracted;
    if (xPairs != yPairs)
      return xPairs;
    double left = x.partialBytes * y.weightBytes, right = y.partialBytes * x.weightBytes;
    if (left != right)
      return left < right;
    if (x.weightBytes != y.weightBytes)
      return x.weightBytes > y.weightBytes;
    return a < b;
  });
  for (int leaf : candidates) {
    if (chosen.count(leaf))
      continue;
    bool isFree =
        llvm::none_of(classes[leaf].neighbours, [&](int other) { return chosen.count(other); });
    if (isFree)
      place(leaf);
  }
}

void TensorParallel::annotate() {
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments()) {
    if (!getWeight(arg) || getShardingAttr(arg))
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(factors.getLeaves(arg));
    AxisList used;
    for (auto [leaves, dim] : llvm::zip_equal(factors.getLeaves(arg), sharding.dims))
      for (auto [leaf, axes] : llvm::zip_equal(leaves, dim)) {
        auto it = chosen.find(leaf);
        if (it == chosen.end() || anyOverlap(used, it->second))
          continue;
        axes = it->second;
        used.append(axes.begin(), axes.end());
      }
    if (!sharding.isReplicated())
      attrs[arg.getArgNumber()] = writeSharding(sharding, arg, factors, mesh, symbol);
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
}

void TensorParallel::report() {
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  std::string name = StringRef(toString(group, mesh)).drop_front().drop_back().str();
  for (Operation &op : func.getBody().front().without_terminator()) {
    Value weight = weights.lookup(&op);
    if (!weight)
      continue;
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    const char *role = nullptr;
    int64_t features = 0;
    for (auto [factor, leaves] : llvm::zip_equal(opFactors.rule.factors, opFactors.leaves))
      for (int leaf : leaves) {
        if (!chosen.count(leaf))
          continue;
        bool isContracted = factor.kind == FactorKind::Contracted;
        role = isa<LookupOpInterface>(op) && isContracted ? "vocabulary-parallel"
               : isContracted                             ? "row-parallel"
                                                          : "column-parallel";
        features = factor.size;
      }
    if (role) {
      log.add("annotate-tensor-parallel", Outcome::Applied, op.getLoc(),
              llvm::formatv("{0} over {1}: {2} features on {3} ranks", role, name, features, size)
                  .str(),
              {{"features", double(features)}, {"ranks", double(size)}});
      continue;
    }
    log.add("annotate-tensor-parallel", Outcome::Declined, op.getLoc(),
            llvm::formatv("left whole: its features are read whole elsewhere (a norm, a slice) "
                          "or belong to a cheaper choice; a rule on its weight would shard it")
                .str(),
            {{"weight_bytes", double(getTensorBytes(weight.getType()))}});
  }
}

void TensorParallel::expandNorms() {
  SmallVector<Operation *> norms;
  for (Operation &op : func.getBody().front().without_terminator()) {
    if (!op.hasTrait<RowNorm>())
      continue;
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    for (auto [factor, leaves] : llvm::zip_equal(opFactors.rule.factors, opFactors.leaves))
      if (factor.kind == FactorKind::Special &&
          llvm::any_of(leaves, [&](int leaf) { return chosen.count(leaf); })) {
        norms.push_back(&op);
        break;
      }
  }
  rewritten = !norms.empty();
  for (Operation *op : norms) {
    DistDialect::getDecisionLog(func.getContext())
        .add("annotate-tensor-parallel", Outcome::Applied, op->getLoc(),
             llvm::formatv("a norm over features on several ranks of {0} exchanges the sums "
                           "of its rows",
                           toString(group, mesh))
                 .str());
    expandNorm(op);
  }
}

} // namespace

LogicalResult meshwright::annotateTensorParallel(func::FuncOp func, const FactorAnalysis &factors,
                                                 MeshOp meshOp, ArrayRef<Axis> axes,
                                                 const StageFilter &stages, bool &rewritten) {
  TensorParallel policy(func, factors, meshOp.getMesh(), FlatSymbolRefAttr::get(meshOp),
                        AxisList(axes), stages);
  if (failed(policy.run()))
    return failure();
  rewritten |= policy.hasRewritten();
  return success();
}

namespace {

struct AnnotateTensorParallelPass
    : meshwright::impl::AnnotateTensorParallelPassBase<AnnotateTensorParallelPass> {
  using AnnotateTensorParallelPassBase::AnnotateTensorParallelPassBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    RoleAxes role(AxisRole::Tensor, axis);
    if (!optional && failed(role.check(*meshOp)))
      return signalPassFailure();
    StageFilter given;
    given.only.assign(onlyStages.begin(), onlyStages.end());
    given.except.assign(exceptStages.begin(), exceptStages.end());
    bool rewritten = false;
    for (func::FuncOp func : getGlobalFunctions(module))
      for (const StageMesh &view : getStageMeshes(*meshOp)) {
        StageFilter stages = given;
        if (!view.stage.empty()) {
          if (!given.only.empty() && !llvm::is_contained(given.only, view.stage))
            continue;
          stages.only.assign({view.stage});
        }
        AxisList axes = role.get(*meshOp, view);
        if (axes.empty())
          continue;
        if (failed(annotate(func, *meshOp, axes, stages, rewritten)))
          return signalPassFailure();
      }
    // Without expanded norms the pass changes attributes only, which propagation reads and
    // verifies.
    if (!rewritten)
      markAllAnalysesPreserved();
  }

private:
  LogicalResult annotate(func::FuncOp func, MeshOp meshOp, ArrayRef<Axis> axes,
                         const StageFilter &stages, bool &rewritten) {
    // The policy of an earlier stage may have expanded norms.
    if (rewritten) {
      FailureOr<FactorAnalysis> fresh = FactorAnalysis::run(func);
      return failed(fresh) ? failure()
                           : annotateTensorParallel(func, *fresh, meshOp, axes, stages, rewritten);
    }
    auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
    return failed(factors)
               ? failure()
               : annotateTensorParallel(func, *factors, meshOp, axes, stages, rewritten);
  }
};

} // namespace
