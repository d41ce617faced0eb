//===- AnnotateContextParallel.cpp - attention over a sharded sequence ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Factors/ShardingPropagation.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATECONTEXTPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

class ContextParallelPolicy {
public:
  ContextParallelPolicy(func::FuncOp func, FactorAnalysis &factors, MeshOp meshOp, AxisList ring,
                        AxisList ulysses, std::optional<TokenOrder> order,
                        const StageFilter &stages, StringRef stage = "")
      : func(func), factors(factors), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), ring(std::move(ring)), ulysses(std::move(ulysses)),
        order(order), stages(stages), stage(stage) {}

  LogicalResult run();

private:
  bool isToken(int cls) const { return tokens.count(cls); }
  void findTokens();
  void placeTokens(const FactorClasses &classes);
  void chooseOrder(nn::AttentionOp op, int cls);
  bool onlyMasks(Value value, llvm::SmallDenseSet<Value> &seen) const;
  bool reachesMask(Value value, llvm::SmallDenseSet<Value> &seen) const;
  bool isCounted(Value value, llvm::SmallDenseSet<Value> &seen) const;
  LogicalResult annotateInputs();
  void annotateAttention(nn::AttentionOp op, const ShardingPropagation &shardings);
  /// The axes of each class of heads while attention runs.
  llvm::SmallDenseMap<int, AxisList> placeHeads(nn::AttentionOp op,
                                                const ShardingPropagation &shardings) const;
  void placeInOrder(Value value, ValueSharding &sharding,
                    llvm::function_ref<AxisList(int cls, const AxisList &axes)> getAxes) const;
  Value constrain(OpBuilder &builder, Value value, const ValueSharding &sharding) const;

  func::FuncOp func;
  FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  /// At most one axis each; empty where the plan does not use it.
  AxisList ring, ulysses;
  /// The order that the user asks for; none: the mask decides.
  std::optional<TokenOrder> order;
  const StageFilter &stages;
  /// The stage whose mesh has the axes; empty where all stages have one mesh.
  StringRef stage;
  /// Factors of the sequences that self-attention mixes, and their axes. A sequence may
  /// be a product of factors: frames, rows and columns.
  llvm::SmallDenseMap<int, AxisList> tokens;
  SmallVector<int64_t, 2> lengths;
};

void ContextParallelPolicy::findTokens() {
  auto add = [&](nn::AttentionOp op, const FactorClasses &sequence) {
    placeTokens(sequence);
    if (sequence.size() == 1)
      chooseOrder(op, sequence.front());
  };
  // Sequences of stages that the policy leaves alone, such as a prompt's. These stages
  // decide about their own sequences, unless the program has no other sequence.
  llvm::SmallDenseSet<int> foreign;
  bool takesForeign = !stage.empty(), takesShorter = false;
  func.walk([&](nn::AttentionOp op) {
    if (!stages.contains(op))
      for (Value value : {op.getQuery(), op.getKey()})
        foreign.insert_range(factors.getClasses(value)[2]);
  });
  auto visit = [&](auto isWanted) {
    func.walk([&](nn::AttentionOp op) {
      const FactorClasses &queries = factors.getClasses(op.getQuery())[2];
      const FactorClasses &keys = factors.getClasses(op.getKey())[2];
      auto isKnown = [&](int cls) {
        return isToken(cls) || (!takesForeign && foreign.contains(cls));
      };
      if (!stages.contains(op) || (!takesShorter && op->hasAttr(nn::NnDialect::kWholeKeysAttr)) ||
          queries.empty() || llvm::any_of(queries, isKnown) || llvm::any_of(keys, isKnown) ||
          !isWanted(op))
        return;
      add(op, queries);
      if (keys != queries)
        add(op, keys);
      lengths.push_back(op.getQuery().getType().getDimSize(2));
    });
  };
  auto length = [](Value value) { return cast<RankedTensorType>(value.getType()).getDimSize(2); };
  auto isSelf = [&](nn::AttentionOp op) {
    return factors.getClasses(op.getQuery())[2] == factors.getClasses(op.getKey())[2];
  };
  visit(isSelf);
  // The shorter one of joined sequences, where the longer one is of another stage.
  takesShorter = tokens.empty();
  if (takesShorter)
    visit(isSelf);
  takesForeign |= tokens.empty();
  if (tokens.empty())
    visit(isSelf);
  // In a program of attention alone, no op ties the sequences of queries and keys.
  if (tokens.empty())
    visit([&](nn::AttentionOp op) {
      return length(op.getQuery()) == length(op.getKey()) &&
             factors.getClasses(op.getQuery())[2].size() ==
                 factors.getClasses(op.getKey())[2].size();
    });
}

/// Gives the axes to the factors of the sequence. A ring moves chunks of one factor, so it
/// takes the first factor that its size divides. The factors then take parts of ulysses,
/// major to minor, as far as these divide them. So a sequence is not padded where the
/// axes divide its length.
void ContextParallelPolicy::placeTokens(const FactorClasses &classes) {
  int64_t ringSize = getNumShards(ring);
  int largest = *llvm::max_element(
      classes, [&](int a, int b) { return factors.getSize(a) < factors.getSize(b); });
  const int *divided =
      llvm::find_if(classes, [&](int cls) { return factors.getSize(cls) % ringSize == 0; });
  int ringClass = divided == classes.end() ? largest : *divided;
  AxisList rest = ulysses;
  llvm::SmallDenseMap<int, AxisList> placed;
  placed[ringClass] = ring;
  for (int cls : classes) {
    int64_t left = factors.getSize(cls);
    if (cls == ringClass)
      left = left % ringSize == 0 ? left / ringSize : 1;
    int64_t shards = std::gcd(left, getNumShards(rest));
    auto own = getAxisPart(rest, 1, shards);
    auto behind = getAxisPart(rest, shards, getNumShards(rest) / shards);
    // The axes do not split at this size: this factor takes none of them.
    if (!own || !behind)
      continue;
    placed[cls].append(own->begin(), own->end());
    rest = *behind;
  }
  if (!rest.empty()) {
    // Padding is needed, and it is least on the largest factor.
    placed.clear();
    placed[ringClass] = ring;
    placed[largest].append(ulysses.begin(), ulysses.end());
  }
  for (int cls : classes)
    tokens[cls] = placed.lookup(cls);
}

/// Only a causal mask needs an order: without one, all ranks have the same work.
void ContextParallelPolicy::chooseOrder(nn::AttentionOp op, int cls) {
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  if (ring.empty()) {
    if (order && *order != TokenOrder::Contiguous)
      log.add("annotate-context-parallel", Outcome::Declined, op.getLoc(),
              llvm::formatv("{0} order without a ring: each rank sees all tokens of its heads, so "
                            "the sequence stays contiguous",
                            stringify(*order))
                  .str());
    return;
  }
  TokenOrder wanted = order.value_or(op.getCausal() ? TokenOrder::Zigzag : TokenOrder::Contiguous);
  if (wanted == TokenOrder::Contiguous)
    return;
  if (!op.getCausal()) {
    log.add("annotate-context-parallel", Outcome::Declined, op.getLoc(),
            llvm::formatv("{0} order for attention that is not causal: all ranks have the same to "
                          "do, so the sequence stays contiguous",
                          stringify(wanted))
                .str());
    return;
  }
  factors.setOrder(cls, {wanted, getNumShards(ring)});
}

/// Returns true if attention reads a value as a part of its mask: padding, a bias, positions or
/// lengths, and not the query, the key or the value.
static bool isMask(OpOperand &use) { return use.getOperandNumber() >= 3; }

/// Returns true if all users of a value lead to masks of attention: every rank needs the
/// whole value.
bool ContextParallelPolicy::onlyMasks(Value value, llvm::SmallDenseSet<Value> &seen) const {
  if (!seen.insert(value).second)
    return true;
  return !value.use_empty() && llvm::all_of(value.getUses(), [&](OpOperand &use) {
    Operation *user = use.getOwner();
    if (isa<nn::AttentionOp>(user))
      return isMask(use);
    return user->getNumResults() == 1 && onlyMasks(user->getResult(0), seen);
  });
}

/// Returns true if a mask of attention depends on a value.
bool ContextParallelPolicy::reachesMask(Value value, llvm::SmallDenseSet<Value> &seen) const {
  if (!seen.insert(value).second)
    return false;
  return llvm::any_of(value.getUses(), [&](OpOperand &use) {
    if (isa<nn::AttentionOp>(use.getOwner()))
      return isMask(use);
    return llvm::any_of(use.getOwner()->getResults(),
                        [&](Value result) { return reachesMask(result, seen); });
  });
}

/// Returns true for a factor that the op reads whole, and for one of which it takes an extreme.
static bool readsAll(const RuleFactor &factor) {
  return factor.kind == FactorKind::Special || factor.kind == FactorKind::Expandable ||
         factor.getReduction(0) == ReductionKind::Max;
}

/// Returns true if integers that are computed from the value depend on all tokens at once,
/// such as the position of the last token that is no padding.
bool ContextParallelPolicy::isCounted(Value value, llvm::SmallDenseSet<Value> &seen) const {
  if (!getElementTypeOrSelf(value.getType()).isInteger() || !seen.insert(value).second)
    return false;
  return llvm::any_of(value.getUses(), [&](OpOperand &use) {
    Operation *user = use.getOwner();
    if (user->getNumResults() == 0)
      return false;
    const FactorAnalysis::OpFactors &own = factors.getFactors(user);
    for (auto [d, dim] : llvm::enumerate(own.rule.operands[use.getOperandNumber()]))
      for (int factor : dim)
        if (readsAll(own.rule.factors[factor]) &&
            llvm::any_of(factors.getClasses(value)[d], [&](int cls) { return isToken(cls); }))
          return true;
    return llvm::any_of(user->getResults(), [&](Value result) { return isCounted(result, seen); });
  });
}

LogicalResult ContextParallelPolicy::annotateInputs() {
  AxisList sequence = ring;
  sequence.append(ulysses.begin(), ulysses.end());
  // The sharding of a value with the axes of its tokens added; none if it has no tokens.
  auto place = [&](Value value, ShardingAttr &result) -> LogicalResult {
    ValueSharding sharding = ValueSharding::getReplicated(factors.getClasses(value));
    if (ShardingAttr attr = getShardingAttr(value)) {
      auto given =
          readSharding(attr, value, factors, mesh, [&] { return emitError(value.getLoc()); });
      if (failed(given))
        return failure();
      sharding = std::move(*given);
    }
    // Ids and positions from which a mask or an index is computed are few: each rank has
    // all of them, and slices its part for other uses.
    llvm::SmallDenseSet<Value> seen, reached, counted;
    bool isIds = getElementTypeOrSelf(value.getType()).isInteger();
    if (anyOverlap(sharding.getAxes(), sequence) || onlyMasks(value, seen) ||
        (isIds && (reachesMask(value, reached) || isCounted(value, counted))))
      return success();
    bool found = false;
    AxisList used = sharding.getAxes();
    for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(value), sharding.dims))
      for (auto [cls, axes] : llvm::zip_equal(classes, dim))
        if (isToken(cls) && axes.empty() && !anyOverlap(used, tokens[cls])) {
          axes = tokens[cls];
          used.append(axes.begin(), axes.end());
          found |= !axes.empty();
        }
    if (found)
      result = writeSharding(sharding, value, factors, mesh, symbol);
    return success();
  };
  // Whole ids become tokens where they select rows of a table. The result is sharded.
  std::function<LogicalResult(Value)> placeReaders = [&](Value ids) -> LogicalResult {
    for (Operation *user : ids.getUsers()) {
      ShardingAttr attr;
      if (isa<LookupOpInterface>(user) && isa<MatrixOpInterface>(user)) {
        if (failed(place(user->getResult(0), attr)))
          return failure();
        if (attr)
          setShardingAttr(user->getResult(0), attr);
      } else if ((user->hasTrait<View>() || isa<nn::CastOp>(user)) &&
                 failed(placeReaders(user->getResult(0)))) {
        return failure();
      }
    }
    return success();
  };
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments()) {
    ShardingAttr attr;
    if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) ||
        (!stage.empty() && getStage(arg) != stage))
      continue;
    if (failed(place(arg, attr)) || (!attr && failed(placeReaders(arg))))
      return failure();
    attrs[arg.getArgNumber()] = attr;
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
  // Values of other stages enter like inputs.
  for (auto op : func.getOps<ConstrainOp>()) {
    ShardingAttr attr;
    if (stage.empty() || !isCrossing(op) || getStage(op.getOperation()) != stage)
      continue;
    if (failed(place(op.getResult(), attr)))
      return failure();
    if (attr)
      op.setShardingAttr(attr);
  }
  return success();
}

/// Key/value heads take a part of the axis, and the query heads of a group take the rest.
/// Several ranks then hold the same key/value heads.
llvm::SmallDenseMap<int, AxisList>
ContextParallelPolicy::placeHeads(nn::AttentionOp op, const ShardingPropagation &shardings) const {
  llvm::SmallDenseMap<int, AxisList> placed;
  ValueSharding query = shardings.get(op.getQuery());
  ArrayRef<int> classes = factors.getClasses(op.getQuery())[1];
  for (auto [cls, axes] : llvm::zip_equal(classes, query.dims[1]))
    placed[cls] = axes;
  if (ulysses.empty() || classes.empty())
    return placed;
  const FactorClasses &kvClasses = factors.getClasses(op.getKey())[1];
  int kv = kvClasses.empty() ? -1 : kvClasses.front();
  int group = -1;
  for (int cls : classes)
    if (cls != kv && group < 0)
      group = cls;
  Axis axis = ulysses.front();
  auto localSize = [&](int cls) {
    int64_t shards = getNumShards(placed[cls]);
    return (factors.getSize(cls) + shards - 1) / shards;
  };
  HeadSplit split = splitHeads(kv < 0 ? 1 : localSize(kv), group < 0 ? 1 : localSize(group),
                               axis.size, getNumShards(ring));
  if (split.keyShards > 1)
    placed[kv < 0 ? group : kv].push_back({axis.axis, axis.pre, split.keyShards});
  if (split.keyShards < axis.size)
    placed[group < 0 ? kv : group].push_back(
        {axis.axis, axis.pre * split.keyShards, axis.size / split.keyShards});
  return placed;
}

Value ContextParallelPolicy::constrain(OpBuilder &builder, Value value,
                                       const ValueSharding &sharding) const {
  auto op = ConstrainOp::create(builder, value.getLoc(), value,
                                writeSharding(sharding, value, factors, mesh, symbol));
  if (!stage.empty())
    op->setAttr(nn::NnDialect::kStageAttr, builder.getStringAttr(stage));
  return op;
}

/// Gives each factor of tokens the axes of `getAxes`, or none where another factor of the value
/// has them: attention over the rows of each frame has tokens in the batch, too.
void ContextParallelPolicy::placeInOrder(
    Value value, ValueSharding &sharding,
    llvm::function_ref<AxisList(int cls, const AxisList &axes)> getAxes) const {
  AxisList used;
  auto visit = [&](bool ofTokens, auto choose) {
    for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(value), sharding.dims))
      for (auto [cls, axes] : llvm::zip_equal(classes, dim))
        if (isToken(cls) == ofTokens) {
          axes = choose(cls, axes);
          used.append(axes.begin(), axes.end());
        }
  };
  visit(false, [](int, const AxisList &axes) { return axes; });
  visit(true, [&](int cls, const AxisList &axes) {
    AxisList wanted = getAxes(cls, axes);
    return anyOverlap(used, wanted) ? AxisList() : wanted;
  });
}

void ContextParallelPolicy::annotateAttention(nn::AttentionOp op,
                                              const ShardingPropagation &shardings) {
  auto hasTokens = [&](Value value) {
    return llvm::any_of(factors.getClasses(value)[2], [&](int cls) { return isToken(cls); });
  };
  if (!hasTokens(op.getQuery()) && !hasTokens(op.getKey()))
    return;
  // In a stage that the policy leaves alone, tokens are whole and heads keep their axes.
  bool isOwn = stages.contains(op);
  llvm::SmallDenseMap<int, AxisList> heads;
  if (isOwn)
    heads = placeHeads(op, shardings);
  OpBuilder builder(op);
  // While attention runs, heads are sharded over more ranks and the sequence over fewer.
  auto inside = [&](Value value) {
    ValueSharding sharding = shardings.get(value);
    for (auto [cls, axes] : llvm::zip_equal(factors.getClasses(value)[1], sharding.dims[1]))
      if (!isToken(cls) && heads.count(cls))
        axes = heads[cls];
    placeInOrder(value, sharding, [&](int cls, const AxisList &) {
      return llvm::to_vector_of<Axis, 2>(llvm::make_filter_range(
          tokens[cls], [&](const Axis &axis) { return isOwn && anyOverlap(axis, ring); }));
    });
    return sharding;
  };
  auto annotateResults = [&](Operation *producer) {
    for (Value result : producer->getResults())
      setShardingAttr(result, writeSharding(inside(result), result, factors, mesh, symbol));
  };
  for (unsigned i = 0; i < 3; ++i)
    op->setOperand(i, constrain(builder, op->getOperand(i), inside(op->getOperand(i))));
  annotateResults(op);
  // Parts are merged in the same layout.
  Operation *last = op;
  while (last->getResult(0).hasOneUse()) {
    auto merge = dyn_cast<nn::MergeAttentionOp>(*last->getResult(0).user_begin());
    if (!merge)
      break;
    annotateResults(merge);
    last = merge;
  }
  Value output = last->getResult(0);
  if (llvm::any_of(output.getUsers(), [](Operation *user) { return isa<ConstrainOp>(user); }))
    return;
  // After attention, the output takes the layout of the stream.
  builder.setInsertionPointAfter(last);
  ValueSharding outside = shardings.get(output);
  AxisList used = outside.getAxes();
  placeInOrder(output, outside, [&](int cls, const AxisList &axes) {
    return isOwn || !anyOverlap(used, tokens[cls]) ? tokens[cls] : axes;
  });
  Value whole = constrain(builder, output, outside);
  output.replaceAllUsesExcept(whole, whole.getDefiningOp());
}

LogicalResult ContextParallelPolicy::run() {
  findTokens();
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  if (tokens.empty()) {
    log.add("annotate-context-parallel", Outcome::Declined, func.getLoc(),
            "no self-attention over a sequence of more than one token");
    return success();
  }
  if (failed(annotateInputs()))
    return failure();
  auto shardings = ShardingPropagation::run(func, factors, mesh);
  if (failed(shardings))
    return failure();
  SmallVector<nn::AttentionOp> attentions;
  func.walk([&](nn::AttentionOp op) { attentions.push_back(op); });
  // Backward, as the propagation knows nothing of the constraints that this adds.
  for (nn::AttentionOp op : llvm::reverse(attentions))
    if (stage.empty() || stages.contains(op))
      annotateAttention(op, *shardings);
  for (int64_t length : lengths)
    log.add("annotate-context-parallel", Outcome::Applied, func.getLoc(),
            llvm::formatv("a sequence of {0} is sharded over {1} ranks (ring {2}, ulysses {3})",
                          length, getNumShards(ring) * getNumShards(ulysses), getNumShards(ring),
                          getNumShards(ulysses))
                .str());
  return success();
}

struct AnnotateContextParallelPass
    : meshwright::impl::AnnotateContextParallelPassBase<AnnotateContextParallelPass> {
  using AnnotateContextParallelPassBase::AnnotateContextParallelPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    RoleAxes ringRole(AxisRole::Ring, ring), ulyssesRole(AxisRole::Ulysses, ulysses);
    if (failed(ringRole.check(*meshOp)) || failed(ulyssesRole.check(*meshOp)))
      return signalPassFailure();
    if (hasStageMeshes(*meshOp)) {
      if (failed(annotateStages(module, *meshOp, ringRole, ulyssesRole)))
        signalPassFailure();
      return;
    }
    StageMesh view = getStageMeshes(*meshOp).front();
    bool hasRing = ringRole.areIn(view), hasUlysses = ulyssesRole.areIn(view);
    if ((hasRing || hasUlysses) && nn::getServingSizes(module)) {
      emitError(module.getLoc()) << "context-parallel: expected no axes for a program that serves, got "
                                 << (hasRing ? ringRole : ulyssesRole).toString(view);
      return signalPassFailure();
    }
    if (hasRing && ringRole.getNames(view) == ulyssesRole.getNames(view)) {
      emitError(module.getLoc())
          << "annotate-context-parallel: expected two axes for ulysses and ring, got '"
          << ringRole.getNames(view).front() << "' for both";
      return signalPassFailure();
    }
    AxisList ringAxes = ringRole.get(*meshOp, view), ulyssesAxes = ulyssesRole.get(*meshOp, view);
    if (ringAxes.empty() && ulyssesAxes.empty()) {
      if (hasRing || hasUlysses)
        DistDialect::getDecisionLog(&getContext())
            .add("annotate-context-parallel", Outcome::Declined, module.getLoc(),
                 "the axes of context-parallel have one rank: sequences stay whole");
      return markAllAnalysesPreserved();
    }
    std::optional<TokenOrder> chosenOrder = getTokenOrder(order);
    if (!chosenOrder && !ringAxes.empty())
      chosenOrder = view.mesh.getAxes()[ringAxes.front().axis].getOrder();
    StageFilter stages;
    stages.except.assign(exceptStages.begin(), exceptStages.end());
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      ContextParallelPolicy policy(func, *factors, *meshOp, ringAxes, ulyssesAxes,
                                   chosenOrder, stages);
      if (failed(policy.run()))
        return signalPassFailure();
    }
  }

private:
  /// Annotates each stage by the axes of its own mesh. Sequences stay contiguous: another
  /// order would apply to the tokens of all stages.
  LogicalResult annotateStages(ModuleOp module, MeshOp meshOp, const RoleAxes &ringRole,
                               const RoleAxes &ulyssesRole) {
    SmallVector<StageMesh> views = getStageMeshes(meshOp);
    bool hasRing =
        llvm::any_of(views, [&](const StageMesh &view) { return ringRole.areIn(view); });
    if (hasRing && order != SequenceOrder::Contiguous && order != SequenceOrder::Auto)
      return meshOp->emitOpError() << "has a mesh for each stage, whose tokens have one order: "
                                      "expected order contiguous or auto, got '"
                                   << stringify(order.getValue()) << "'";
    for (func::FuncOp func : getGlobalFunctions(module))
      for (const StageMesh &view : views) {
        AxisList ringAxes = ringRole.get(meshOp, view);
        AxisList ulyssesAxes = ulyssesRole.get(meshOp, view);
        if (ringAxes.empty() && ulyssesAxes.empty())
          continue;
        FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
        if (failed(factors))
          return failure();
        StageFilter stages = view.getFilter();
        ContextParallelPolicy policy(func, *factors, meshOp, ringAxes, ulyssesAxes,
                                     TokenOrder::Contiguous, stages, view.stage);
        if (failed(policy.run()))
          return failure();
      }
    return success();
  }
};

} // namespace
