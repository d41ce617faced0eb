//===- AnnotateGtp.cpp - weights stored in shards, fetched before use -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATEGTPPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// A weight of a program, or a part of one, which all functions that read it store alike.
struct StoredWeight {
  /// Null for a parameter that one function reads.
  const SharedValue *shared = nullptr;
  SmallVector<BlockArgument> arguments;
  StringAttr name;
};

/// How a weight is stored.
struct Storage {
  /// The rows of a part of dimension 0 that is stored in shards of its own (see dist.fetch).
  int64_t rows;
  int64_t align;
  /// The axes of the shards, behind the axes that shard the weight where it is used.
  AxisList axes;
  /// The layout in which the program uses the weight. Null if it states none.
  ShardingAttr used;
  /// The form in which it travels.
  GatherKind kind;
};

/// Slow links come last: then a gather over them moves the smallest shards, and those of fast links
/// follow in a step of their own.
static AxisList sortByLink(AxisList axes, MeshAttr mesh) {
  constexpr int64_t kBytes = int64_t(1) << 30;
  CostModel model(mesh);
  llvm::stable_sort(axes, [&](const Axis &a, const Axis &b) {
    return model.getTime(a, kBytes, /*steps=*/0) < model.getTime(b, kBytes, /*steps=*/0);
  });
  return axes;
}

class GtpPolicy {
public:
  /// `rules` have the axes of weights, each with those of its own in `ruleAxes`. Without rules all weights
  /// have `axes`.
  GtpPolicy(ModuleOp module, MeshOp meshOp, AxisList axes, const AxisRules &rules,
            ArrayRef<AxisList> ruleAxes, std::optional<int64_t> align, const GatherRules &kinds)
      : module(module), meshOp(meshOp), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), axes(sortByLink(std::move(axes), mesh)), rules(rules),
        align(align), kinds(kinds), hasAxes(rules.rules.size()), matched(kinds.rules.size()),
        rounds(kinds.rules.size()), refused(kinds.rules.size()), functions(getGlobalFunctions(module)), weights(module) {
    for (const AxisList &own : ruleAxes)
      this->ruleAxes.push_back(sortByLink(own, mesh));
  }

  /// Inserts the fetches. `factors` are those of the functions before.
  LogicalResult insert(const FactorAnalysis &factors);
  /// States the layouts of storage. `factors` are those of the functions with fetches.
  LogicalResult annotate(const FactorAnalysis &factors);

private:
  SmallVector<StoredWeight> collect(const FactorAnalysis &factors);
  FailureOr<std::optional<Storage>> plan(const StoredWeight &weight, const FactorAnalysis &factors);
  FailureOr<int64_t> getAlign(Type element, GatherKind kind) const;
  template <typename E>
  std::optional<size_t> match(const StoredWeight &weight, const NamedRules<E> &rules,
                              SmallVector<bool> &matched) const;
  AxisList getAxes(const StoredWeight &weight);
  GatherKind getKind(const StoredWeight &weight, ArrayRef<Axis> axes);
  template <typename E>
  LogicalResult checkMatched(StringRef option, const NamedRules<E> &rules,
                             ArrayRef<bool> matched);
  LogicalResult checkRounds();
  void fetch(const StoredWeight &weight, const Storage &storage);
  void log(int64_t count);

  ModuleOp module;
  MeshOp meshOp;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  AxisList axes;
  const AxisRules &rules;
  SmallVector<AxisList> ruleAxes;
  std::optional<int64_t> align;
  const GatherRules &kinds;
  /// For each rule, true if it has matched a weight.
  SmallVector<bool> hasAxes, matched;
  /// For each rule of a form, true if a weight that it matches may travel so, and else the first that may not.
  SmallVector<bool> rounds;
  SmallVector<std::string> refused;
  SmallVector<func::FuncOp> functions;
  WeightFinder weights;
  /// The ops of each function on which its losses and outputs depend.
  ProgramSet<Operation *> forward;
  SmallVector<std::pair<StoredWeight, Storage>> stored;
  int64_t whole = 0;
};

} // namespace

/// Rows of bf16 and f16 weights come in multiples of 16, which products read at once, and those of
/// other forms in multiples of their blocks.
FailureOr<int64_t> GtpPolicy::getAlign(Type element, GatherKind kind) const {
  int64_t blocks = getRowMultiple(kind);
  if (!align)
    return std::max<int64_t>(blocks, element.getIntOrFloatBitWidth() == 16 ? 16 : 1);
  if (*align % blocks == 0)
    return *align;
  return emitError(meshOp->getLoc())
         << "gtp-align: expected a multiple of " << blocks << " rows for weights that travel in "
         << stringify(kind) << ", got " << *align;
}

/// Returns true if an op multiplies by the weight that an operand is.
static bool isFactor(OpOperand &use) {
  auto product = dyn_cast<MatrixOpInterface>(use.getOwner());
  return product && !isa<LookupOpInterface>(use.getOwner()) &&
         product.getMatrixOperand() == use.getOperandNumber();
}

/// The first rule that matches a name of a weight.
template <typename E>
std::optional<size_t> GtpPolicy::match(const StoredWeight &weight, const NamedRules<E> &rules,
                                       SmallVector<bool> &matched) const {
  std::optional<size_t> rule;
  for (BlockArgument argument : weight.arguments)
    for (StringAttr name : weights.find(argument)->getNames())
      if (std::optional<size_t> own = rules.find(name); own && (!rule || *own < *rule))
        rule = own;
  if (rule)
    matched[*rule] = true;
  return rule;
}

template <typename E>
LogicalResult GtpPolicy::checkMatched(StringRef option, const NamedRules<E> &rules,
                                      ArrayRef<bool> matched) {
  for (auto [rule, isMatched] : llvm::zip_equal(rules.rules, matched))
    if (!isMatched)
      return emitError(module.getLoc())
             << option << ": expected a pattern that matches a weight, got \"" << rule.pattern << '"';
  return success();
}

/// Checks that each rule of a form matches a weight that can travel so. The pattern `*` stands for all such
/// weights, also where there are none.
LogicalResult GtpPolicy::checkRounds() {
  for (auto [rule, isRounding, weight] : llvm::zip_equal(kinds.rules, rounds, refused))
    if (rule.value != GatherKind::Plain && !isRounding && rule.pattern != "*")
      return emitError(module.getLoc())
             << "gtp-gather: expected a pattern that matches a matrix which only products read, got \""
             << rule.pattern << "\", which matches '" << weight << "': it cannot travel in "
             << stringify(rule.value);
  return success();
}

/// The axes over which a weight may be stored.
AxisList GtpPolicy::getAxes(const StoredWeight &weight) {
  if (rules.rules.empty())
    return axes;
  std::optional<size_t> rule = match(weight, rules, hasAxes);
  return rule ? ruleAxes[*rule] : AxisList();
}

/// The form in which a weight travels. Only products read rounded elements.
GatherKind GtpPolicy::getKind(const StoredWeight &weight, ArrayRef<Axis> axes) {
  std::optional<size_t> rule = match(weight, kinds, matched);
  if (!rule)
    return GatherKind::Plain;
  bool isMatrix = cast<RankedTensorType>(weight.arguments.front().getType()).getRank() == 2;
  for (BlockArgument argument : weight.arguments)
    for (OpOperand &use : argument.getUses())
      isMatrix &= !forward.contains(use.getOwner()) || isFactor(use);
  rounds[*rule] |= isMatrix;
  if (!isMatrix && refused[*rule].empty())
    refused[*rule] = weight.name.str();
  return isMatrix && getNumShards(axes) > 1 ? kinds.rules[*rule].value : GatherKind::Plain;
}

SmallVector<StoredWeight> GtpPolicy::collect(const FactorAnalysis &factors) {
  SmallVector<StoredWeight> all;
  ProgramSet<Value> seen;
  auto add = [&](const SharedValue *shared, ArrayRef<BlockArgument> arguments) {
    std::optional<Weight> weight = weights.find(arguments.front());
    auto type = cast<RankedTensorType>(arguments.front().getType());
    if (weight && type.getRank() > 1 && isa<FloatType>(type.getElementType()))
      all.push_back({shared, llvm::to_vector(arguments), weight->name});
  };
  for (const SharedValue &value : factors.getSharedValues()) {
    seen.insert_range(value.arguments);
    if (!value.arguments.empty())
      add(&value, value.arguments);
  }
  for (func::FuncOp func : functions)
    for (BlockArgument argument : func.getArguments())
      if (!seen.contains(argument))
        add(nullptr, argument);
  return all;
}

/// Finds what leads to losses, and to results other than the states of training, `updated`. An
/// update reads weights as they are stored.
static void findForward(func::FuncOp func, const llvm::DenseSet<StringAttr> &updated,
                        ProgramSet<Operation *> &found) {
  SmallVector<Value> worklist;
  for (auto gradient : func.getOps<nn::GradientOp>())
    worklist.push_back(gradient.getLoss());
  for (auto [i, value] : llvm::enumerate(func.front().getTerminator()->getOperands()))
    if (auto state = func.getResultAttrOfType<StringAttr>(i, nn::NnDialect::kStateAttr);
        !state || !updated.contains(state))
      worklist.push_back(value);
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val().getDefiningOp();
    if (op && !isa<nn::GradientOp>(op) && found.insert(op).second)
      worklist.append(op->operand_begin(), op->operand_end());
  }
}

FailureOr<std::optional<Storage>> GtpPolicy::plan(const StoredWeight &weight,
                                                  const FactorAnalysis &factors) {
  Value value = weight.arguments.front();
  auto type = cast<RankedTensorType>(value.getType());
  AxisList own = getAxes(weight);
  GatherKind kind = getKind(weight, own);
  FailureOr<int64_t> align = getAlign(type.getElementType(), kind);
  if (failed(align))
    return failure();
  Storage storage{type.getDimSize(0), *align, {}, getShardingAttr(value), kind};
  ValueSharding used = ValueSharding::getReplicated(factors.getClasses(value));
  if (storage.used) {
    auto read =
        readSharding(storage.used, value, factors, mesh, [&] { return emitError(value.getLoc()); });
    if (failed(read))
      return failure();
    used = std::move(*read);
  }
  for (const Axis &axis : own)
    if (!anyOverlap(used.getAxes(), {axis}))
      storage.axes.push_back(axis);
  // The parts above the rows are tied to those of use: chunks that are used stay together.
  ArrayRef<int> classes = factors.getClasses(value)[0];
  int last = classes.size() - 1;
  while (last >= 0 && used.dims[0][last].empty())
    --last;
  if (last >= 0) {
    storage.rows = 1;
    for (int cls : classes.drop_front(last + 1))
      storage.rows *= factors.getSize(cls);
    int64_t size = factors.getSize(classes[last]), shards = getNumShards(used.dims[0][last]);
    int64_t chunk = llvm::divideCeil(size, shards);
    if (size % chunk == 0)
      storage.rows *= chunk;
    else if (storage.rows == 1 || getNumShards(storage.axes) * shards * 20 > size)
      storage.rows = type.getDimSize(0);
  }
  int64_t ranks = getNumShards(storage.axes);
  int64_t share = llvm::divideCeil(storage.rows, storage.align * ranks) * storage.align;
  if (ranks == 1 || share >= storage.rows)
    storage.axes.clear();
  // A weight that stays whole is rounded like the others.
  if (storage.axes.empty() && kind == GatherKind::Plain)
    return std::optional<Storage>();
  return std::optional(std::move(storage));
}

/// One fetch for all uses of the forward pass, before the first of them.
void GtpPolicy::fetch(const StoredWeight &weight, const Storage &storage) {
  auto type = cast<RankedTensorType>(weight.arguments.front().getType());
  OpBuilder builder(module.getContext());
  for (BlockArgument argument : weight.arguments) {
    Operation *first = nullptr;
    auto isForward = [&](OpOperand &use) { return forward.contains(use.getOwner()); };
    for (OpOperand &use : argument.getUses())
      if (isForward(use) && (!first || use.getOwner()->isBeforeInBlock(first)))
        first = use.getOwner();
    if (!first)
      continue;
    builder.setInsertionPoint(first);
    auto rows = storage.rows == type.getDimSize(0) ? IntegerAttr()
                                                   : builder.getI64IntegerAttr(storage.rows);
    auto form = storage.kind == GatherKind::Plain
                    ? FormAttr()
                    : FormAttr::get(module.getContext(), storage.kind, /*along=*/-1);
    auto op = FetchOp::create(builder, argument.getLoc(), argument, rows, storage.align, form);
    if (auto stage = first->getAttr(nn::NnDialect::kStageAttr))
      op->setAttr(nn::NnDialect::kStageAttr, stage);
    if (storage.used)
      setShardingAttr(op.getResult(), storage.used);
    argument.replaceUsesWithIf(
        op.getResult(), [&](OpOperand &use) { return use.getOwner() != op && isForward(use); });
  }
}

LogicalResult GtpPolicy::insert(const FactorAnalysis &factors) {
  llvm::DenseSet<StringAttr> updated;
  for (auto state : module.getOps<nn::StateOp>())
    if (state.getRole())
      updated.insert(state.getSymNameAttr());
  for (func::FuncOp func : functions)
    findForward(func, updated, forward);
  for (StoredWeight &weight : collect(factors)) {
    FailureOr<std::optional<Storage>> storage = plan(weight, factors);
    if (failed(storage))
      return failure();
    whole += !*storage || (*storage)->axes.empty();
    if (*storage)
      stored.emplace_back(weight, std::move(**storage));
  }
  if (failed(checkMatched(getRoleDescription(AxisRole::Gtp).option, rules, hasAxes)) ||
      failed(checkMatched("gtp-gather", kinds, matched)) || failed(checkRounds()))
    return failure();
  for (auto &[weight, storage] : stored)
    fetch(weight, storage);
  log(llvm::count_if(stored, [](auto &entry) { return !entry.second.axes.empty(); }));
  return success();
}

LogicalResult GtpPolicy::annotate(const FactorAnalysis &factors) {
  SignatureAttrs signatures;
  for (auto &[weight, storage] : stored) {
    BlockArgument first = weight.arguments.front();
    auto fetches = llvm::make_filter_range(first.getUsers(), llvm::IsaPred<FetchOp>);
    // A weight that no output depends on has no fetch.
    Value used = fetches.empty() ? Value(first) : (*fetches.begin())->getResult(0);
    ValueSharding sharding = ValueSharding::getReplicated(factors.getClasses(first));
    if (storage.used) {
      auto read = readSharding(storage.used, used, factors, mesh,
                               [&] { return emitError(first.getLoc()); });
      if (failed(read))
        return failure();
      for (auto [d, classes] : llvm::enumerate(factors.getClasses(first)))
        for (auto [i, cls] : llvm::enumerate(classes)) {
          ArrayRef<int> other = factors.getClasses(used)[d];
          if (const auto *tied = llvm::find(other, cls); tied != other.end())
            sharding.dims[d][i] = read->dims[d][tied - other.begin()];
        }
    }
    // Below the parts that storage and use share there is one class, the rows.
    if (!sharding.dims[0].empty())
      sharding.dims[0].back().append(storage.axes);
    ShardingAttr attr = writeSharding(sharding, first, factors, mesh, symbol);
    if (weight.shared)
      setSharding(*weight.shared, attr, signatures);
    else
      signatures.setArgument(cast<func::FuncOp>(first.getOwner()->getParentOp()), first.getArgNumber(),
                             DistDialect::kShardingAttr, attr);
  }
  return success();
}

void GtpPolicy::log(int64_t count) {
  DistDialect::getDecisionLog(module.getContext())
      .add(
          "annotate-gtp", count ? Outcome::Applied : Outcome::Declined, module.getLoc(),
          llvm::formatv("{0} of {1} weights are stored in shards over {2} and gathered before they "
                        "are used; a shard of the others would be no smaller",
                        count, count + whole, toString(axes, mesh))
              .str(),
          {{"weights", double(count)}, {"ranks", double(getNumShards(axes))}});
}

namespace {
struct AnnotateGtpPass : meshwright::impl::AnnotateGtpPassBase<AnnotateGtpPass> {
  using AnnotateGtpPassBase::AnnotateGtpPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    bool hasAxes = false;
    auto find = [&](const AxisChoice &choice) {
      AxisList found;
      RoleAxes role(AxisRole::Gtp, choice);
      for (const StageMesh &view : getStageMeshes(*meshOp)) {
        hasAxes |= role.areIn(view);
        for (const Axis &axis : role.get(*meshOp, view))
          if (!contains(found, axis))
            found.push_back(axis);
      }
      return found;
    };
    AxisList found = find(axes);
    SmallVector<AxisList> ruleAxes;
    for (const auto &rule : rules.rules) {
      if (failed(RoleAxes(AxisRole::Gtp, rule.value).check(*meshOp)))
        return signalPassFailure();
      ruleAxes.push_back(find(rule.value));
    }
    if (!hasAxes && !option.empty()) {
      emitError(meshOp->getLoc()) << option
                                  << ": expected an axis to store weights in shards over, as by "
                                     "gtp=dp or an axis \"gtp\" of the mesh";
      return signalPassFailure();
    }
    if (found.empty())
      return markAllAnalysesPreserved();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    GtpPolicy policy(module, *meshOp, std::move(found), rules, ruleAxes, align.number,
                     gather);
    auto &before = SharedFactorAnalysis::get(getAnalysisManager(), functions);
    if (failed(before) || failed(policy.insert(*before)))
      return signalPassFailure();
    auto after = FactorAnalysis::run(functions);
    if (failed(after) || failed(policy.annotate(*after)))
      return signalPassFailure();
  }
};
} // namespace
