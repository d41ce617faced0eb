//===- AnnotateTensorParallel.cpp - shard weights, by structure -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/AnnotateTensorParallel.h"

#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/ExpandNorms.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/IR/TypeUtilities.h"
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
  /// Some product contracts it with a weight.
  bool isContractedByWeight = false;
  /// It occurs in an op that combines two values that depend on the inputs.
  bool isAttention = false;
  /// It occurs in rows of experts.
  bool isRouted = false;
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
                 FlatSymbolRefAttr symbol, WeightAxes axes, const StageFilter &stages)
      : func(func), factors(factors), mesh(mesh), symbol(symbol), axes(std::move(axes)),
        stages(stages), infos(factors.getNumClasses()) {}

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
  /// Notes the classes of an op that combines two values that depend on the inputs.
  void countAttention(Operation &op);
  /// The axes that may shard a class.
  const AxisList &getAxes(int cls) const;
  void choose();
  /// Axes for a class of this size, and for the one below it.
  bool place(int cls);
  void annotate();
  void report();
  void expandNorms();

  func::FuncOp func;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  WeightAxes axes;
  const StageFilter &stages;
  std::vector<ClassInfo> infos;
  llvm::DenseMap<int, AxisList> chosen;
  /// The weight of each product that has one.
  ProgramMap<Operation *, Value> weights;
  bool rewritten = false;
};

/// Notes in the classes of its factors how an op uses them.
void TensorParallel::countFactors(Operation &op) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
  // A norm over heads and head size can be expanded into sums. A norm over the features
  // of the residual stream cannot: its users would exchange these sums each time.
  bool isNorm = op.hasTrait<RowNorm>();
  // Experts are split by axes of their own.
  if (auto routing = dyn_cast<LookupOpInterface>(op); routing && routing.skipsMinusOne()) {
    std::optional<unsigned> table = routing.getTableOperand();
    const FactorRule &rule = opFactors.rule;
    for (int factor : (table ? rule.operands[*table] : rule.results[0])[routing.getTableDim()])
      for (int cls : opFactors.classes[factor])
        infos[cls].isForbidden = true;
  }
  for (auto [factor, classes] : llvm::zip_equal(opFactors.rule.factors, opFactors.classes))
    for (int cls : classes) {
      // A value without operands is made on each rank, which takes its part.
      if (factor.kind == FactorKind::Special && op.getNumOperands() > 0) {
        if (isNorm && classes.size() > 1)
          infos[cls].partialBytes += getTensorBytes(op.getResult(0).getType()) / factor.size;
        else
          infos[cls].isSpecial = true;
      }
      // Its maxima and sums are exchanged.
      if (factor.kind == FactorKind::Expandable)
        infos[cls].partialBytes += getTensorBytes(op.getOperand(0).getType()) / factor.size *
                                   cast<ExpandOpInterface>(op).getNumStatistics();
      if (factor.kind == FactorKind::Contracted) {
        infos[cls].isContracted = true;
        infos[cls].partialBytes += getTensorBytes(op.getResult(0).getType());
      }
    }
}

void TensorParallel::countAttention(Operation &op) {
  for (const FactorClasses &classes : factors.getFactors(&op).classes)
    for (int cls : classes)
      infos[cls].isAttention = true;
}

const AxisList &TensorParallel::getAxes(int cls) const {
  const ClassInfo &info = infos[cls];
  if (info.isAttention)
    return axes.attention;
  if (info.isRouted || !info.isOutput)
    return axes.all;
  return info.isContractedByWeight ? axes.dense : axes.head;
}

LogicalResult TensorParallel::collect() {
  Block &block = func.getBody().front();
  ProgramSet<Value> fromParameters, constants;
  WeightFinder finder(func);
  for (BlockArgument arg : block.getArguments()) {
    if (!finder.find(arg))
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
    for (auto [d, classes] : llvm::enumerate(factors.getClasses(arg)))
      for (auto [cls, own] : llvm::zip_equal(classes, sharding->dims[d])) {
        if (anyOverlap(own, axes.all)) {
          infos[cls].isForced = true;
          chosen[cls] = own;
        } else if (!attr.getDims()[d].getIsOpen()) {
          infos[cls].isForbidden = true;
        }
      }
  }
  ProgramSet<Value> counted;
  for (Operation &op : block.without_terminator()) {
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    if (!stages.contains(&op)) {
      // A factor that another stage has, too, is not for this stage to shard.
      for (const FactorClasses &classes : opFactors.classes)
        for (int cls : classes)
          infos[cls].isForbidden = true;
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
      ArrayRef<FactorClasses> dims = factors.getClasses(value);
      SmallVector<int, 8> all;
      for (const FactorClasses &dim : dims)
        all.append(dim.begin(), dim.end());
      for (int cls : all)
        infos[cls].isRouted |= bool(nn::getRouted(value.getType()));
      for (size_t i = 0; i < all.size(); ++i)
        for (size_t j = 0; j < all.size(); ++j)
          if (i != j)
            infos[all[i]].neighbours.insert(all[j]);
    };
    for (Value result : op.getResults())
      visit(result);
    bool isWeighted = allFromParameters || allConstant;
    for (auto [i, operand] : llvm::enumerate(op.getOperands())) {
      if (isa<BlockArgument>(operand))
        visit(operand);
      auto product = dyn_cast<MatrixOpInterface>(op);
      if (!fromParameters.contains(operand) || allFromParameters || !product ||
          product.getBiasOperand() == i)
        continue;
      weights[&op] = operand;
      isWeighted = true;
      auto lookup = dyn_cast<LookupOpInterface>(op);
      bool isNew = counted.insert(operand).second;
      for (auto [d, dim] : llvm::enumerate(opFactors.rule.operands[i]))
        for (int factor : dim) {
          const FactorClasses &classes = opFactors.classes[factor];
          for (auto [j, cls] : llvm::enumerate(classes)) {
            ClassInfo &info = infos[cls];
            if (isNew)
              info.weightBytes += getTensorBytes(operand.getType());
            if (opFactors.rule.factors[factor].kind == FactorKind::Parallel)
              info.isOutput = true;
            else if (opFactors.rule.factors[factor].kind == FactorKind::Contracted && !lookup)
              info.isContractedByWeight = true;
            if (lookup && lookup.getTableOperand() == i && lookup.getTableDim() == int64_t(d))
              info.isTableRows = true;
            if (j + 1 < classes.size() && !llvm::is_contained(info.below, classes[j + 1]))
              info.below.push_back(classes[j + 1]);
          }
        }
    }
    auto isComputed = [&](Value v) { return !isFromParameters(v) && !isConstant(v); };
    if (!isWeighted && combinesValues(&op, isComputed))
      countAttention(op);
  }
  return success();
}

bool TensorParallel::place(int cls) {
  int64_t n = factors.getSize(cls);
  const AxisList &group = getAxes(cls);
  int64_t size = getNumShards(group);
  bool fits = n < size && size % n == 0;
  std::optional<AxisList> own = fits ? getAxisPart(group, 1, n) : std::nullopt;
  std::optional<AxisList> rest = own ? getAxisPart(group, n, size / n) : std::nullopt;
  if (!rest) {
    // With less than half an element per rank, most of the work is padding.
    if (2 * n <= size)
      return false;
    chosen[cls] = group;
    return true;
  }
  // The factor takes a part of the axes. The next minor one, the query heads of a group,
  // takes the rest, or else the values are replicated over the rest.
  chosen[cls] = *own;
  for (int below : infos[cls].below)
    if (!infos[below].isSpecial && !infos[below].isForbidden && !chosen.count(below)) {
      chosen[below] = *rest;
      break;
    }
  return true;
}

void TensorParallel::choose() {
  SmallVector<int> candidates;
  for (auto [cls, info] : llvm::enumerate(infos)) {
    if (info.weightBytes == 0 || info.isSpecial || info.isForced || info.isForbidden ||
        info.neighbours.contains(cls))
      continue;
    int64_t n = factors.getSize(cls), size = getNumShards(getAxes(cls));
    if (getAxes(cls).empty())
      continue;
    if (info.isTableRows && n < kMinTableRows * size)
      continue;
    // A small factor that no op contracts is not worth sharding.
    if (n < size && !(info.isOutput && info.isContracted))
      continue;
    candidates.push_back(cls);
  }
  // Classes that pair a column-parallel with a row-parallel weight come first, then classes
  // without a partner. Within each group, classes are ordered by communication per byte of
  // weight, then by size (larger first), then by position.
  llvm::sort(candidates, [&](int a, int b) {
    const ClassInfo &x = infos[a], &y = infos[b];
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
  for (int cls : candidates) {
    if (chosen.count(cls))
      continue;
    bool isFree =
        llvm::none_of(infos[cls].neighbours, [&](int other) { return chosen.count(other); });
    if (isFree)
      place(cls);
  }
}

void TensorParallel::annotate() {
  SmallVector<Attribute> attrs(func.getNumArguments());
  WeightFinder finder(func);
  for (BlockArgument arg : func.getArguments()) {
    ShardingAttr stated = getShardingAttr(arg);
    auto isOpen = [&](size_t dim) { return !stated || stated.getDims()[dim].getIsOpen(); };
    if (!finder.find(arg) || llvm::none_of(llvm::seq(factors.getClasses(arg).size()), isOpen))
      continue;
    ValueSharding sharding =
        stated ? *readSharding(stated, arg, factors, mesh, [&] { return emitError(arg.getLoc()); })
               : ValueSharding::getReplicated(factors.getClasses(arg));
    AxisList used = sharding.getAxes();
    bool isNew = false;
    for (auto [d, classes] : llvm::enumerate(factors.getClasses(arg)))
      for (auto [cls, axes] : llvm::zip_equal(classes, sharding.dims[d])) {
        auto it = chosen.find(cls);
        if (!isOpen(d) || it == chosen.end() || anyOverlap(used, it->second))
          continue;
        axes = it->second;
        used.append(axes.begin(), axes.end());
        isNew = true;
      }
    if (isNew)
      attrs[arg.getArgNumber()] = writeSharding(sharding, arg, factors, mesh, symbol);
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
}

void TensorParallel::report() {
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  for (Operation &op : func.getBody().front().without_terminator()) {
    Value weight = weights.lookup(&op);
    if (!weight)
      continue;
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    const char *role = nullptr;
    int64_t features = 0;
    AxisList group;
    bool mayShard = false;
    for (auto [factor, classes] : llvm::zip_equal(opFactors.rule.factors, opFactors.classes))
      for (int cls : classes) {
        mayShard |= !getAxes(cls).empty();
        if (!chosen.count(cls))
          continue;
        group = infos[cls].isForced ? chosen[cls] : getAxes(cls);
        bool isContracted = factor.kind == FactorKind::Contracted;
        role = isa<LookupOpInterface>(op) && isContracted ? "vocabulary-parallel"
               : isContracted                             ? "row-parallel"
                                                          : "column-parallel";
        features = factor.size;
      }
    if (role) {
      std::string name = StringRef(toString(group, mesh)).drop_front().drop_back().str();
      int64_t size = getNumShards(group);
      log.add("annotate-tensor-parallel", Outcome::Applied, op.getLoc(),
              llvm::formatv("{0} over {1}: {2} features on {3} ranks", role, name, features, size)
                  .str(),
              {{"features", double(features)}, {"ranks", double(size)}});
      continue;
    }
    log.add("annotate-tensor-parallel", Outcome::Declined, op.getLoc(),
            mayShard ? "left whole: its features are read whole elsewhere (a norm, a slice) "
                       "or belong to a cheaper choice; a rule on its weight would shard it"
                     : "left whole: each rank computes its own tokens",
            {{"weight_bytes", double(getTensorBytes(weight.getType()))}});
  }
}

void TensorParallel::expandNorms() {
  SmallVector<Operation *> norms;
  for (Operation &op : func.getBody().front().without_terminator()) {
    if (!op.hasTrait<RowNorm>())
      continue;
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(&op);
    for (auto [factor, classes] : llvm::zip_equal(opFactors.rule.factors, opFactors.classes))
      if (factor.kind == FactorKind::Special &&
          llvm::any_of(classes, [&](int cls) { return chosen.count(cls); })) {
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
                           toString(axes.all, mesh))
                 .str());
    expandNorm(op);
  }
}

} // namespace

bool meshwright::combinesValues(Operation *op, function_ref<bool(Value)> isComputed) {
  auto isRouted = [](Value value) { return bool(nn::getRouted(value.getType())); };
  if (!op->hasTrait<Combines>() || llvm::any_of(op->getOperands(), isRouted))
    return false;
  return llvm::count_if(op->getOperands(), [&](Value value) {
           return isa<FloatType>(getElementTypeOrSelf(value)) && isComputed(value);
         }) > 1;
}

LogicalResult meshwright::annotateTensorParallel(func::FuncOp func, const FactorAnalysis &factors,
                                                 MeshOp meshOp, WeightAxes axes,
                                                 const StageFilter &stages, bool &rewritten) {
  TensorParallel policy(func, factors, meshOp.getMesh(), FlatSymbolRefAttr::get(meshOp),
                        std::move(axes), stages);
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
                           : annotateTensorParallel(func, *fresh, meshOp, WeightAxes::get(axes),
                                                    stages, rewritten);
    }
    auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
    return failed(factors)
               ? failure()
               : annotateTensorParallel(func, *factors, meshOp, WeightAxes::get(axes), stages,
                                        rewritten);
  }
};

} // namespace
