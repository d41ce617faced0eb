//===- RingAttentionModels.cpp - attention in steps around a ring ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over keys that a constraint keeps sharded runs in steps around a ring.
//
// 1. `assign` and `bringOperands` bring the operands to their layouts.
// 2. `addMasks` pads and orders masks and biases as the keys.
// 3. `Ring::writeAttention` computes attention over one chunk of the keys in each step, moves keys
//    and values to the next rank, and merges the parts by their log-sum-exps.
// 4. `Ring::writeGradients` moves keys and values in the same way. The gradient of a query is
//    summed on its rank. The gradients of a chunk of keys and values travel with the chunk, and
//    make one last move home. The gradient of a bias has a block of rows and columns in each step.
//    Its rank joins them, or adds them where the bias broadcasts.
//
// A step that the mask leaves empty on all ranks is left out. In other steps, a rank that
// neither reads its chunk nor passes it on receives none.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/RingSteps.h"
#include "meshwright/passes/partition/Partitioner.h"
#include "meshwright/passes/partition/RingChunks.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The `shift` or `pairs` of a permute that moves chunks by `distance` to the ranks `to`.
static std::pair<IntegerAttr, DenseI64ArrayAttr> getMove(OpBuilder &builder, int64_t distance,
                                                         const llvm::SmallBitVector &to) {
  if (to.all())
    return {builder.getI64IntegerAttr(distance), nullptr};
  int64_t size = to.size();
  SmallVector<int64_t> pairs;
  for (int64_t rank : to.set_bits())
    pairs.append({(rank + size - distance) % size, rank});
  return {nullptr, builder.getDenseI64ArrayAttr(pairs)};
}

namespace {

/// Writes the steps of one ring.
class Ring {
public:
  Ring(OpBuilder &builder, Location loc, ArrayAttr axes, ChunkWriter &chunks,
       const RingOperands &operands, RanksOfSteps holding, const llvm::SmallBitVector &needed)
      : builder(builder), loc(loc), axes(axes), chunks(chunks), operands(operands),
        holding(std::move(holding)), steps(needed.set_bits_begin(), needed.set_bits_end()) {}

  /// Returns the result of type `type`, and its log-sum-exp or null.
  std::pair<Value, Value> writeAttention(nn::AttentionOp op, RankedTensorType type);
  /// Returns the gradients of query, key and value, and that of the bias if the op has it, from the
  /// local log-sum-exp, delta and cotangent.
  SmallVector<Value, 4> writeGradients(nn::AttentionGradOp op, ArrayRef<Value> ofResult);

private:
  /// Moves the chunks of keys and values from where they are to step `to`.
  void moveKeys(int64_t to);
  /// Moves all chunks of `values` by `distance`.
  void moveAll(MutableArrayRef<Value> values, int64_t distance);
  Value add(Value sum, Value term) {
    return nn::AddOp::create(builder, loc, sum.getType(), sum, term);
  }

  OpBuilder &builder;
  Location loc;
  ArrayAttr axes;
  ChunkWriter &chunks;
  /// With the keys and values of the step `shift`.
  RingOperands operands;
  int64_t shift = 0;
  /// For each step the ranks that must hold their chunk.
  RanksOfSteps holding;
  SmallVector<int64_t> steps;
};

} // namespace

void Ring::moveKeys(int64_t to) {
  if (to == shift)
    return;
  Value both[] = {operands.key, operands.value};
  auto [distance, pairs] = getMove(builder, to - shift, holding[to]);
  auto moved =
      PermuteOp::create(builder, loc, TypeRange{operands.key.getType(), operands.value.getType()},
                        both, axes, distance, pairs);
  operands.key = moved.getResult(0);
  operands.value = moved.getResult(1);
  shift = to;
}

void Ring::moveAll(MutableArrayRef<Value> values, int64_t distance) {
  auto moved = PermuteOp::create(builder, loc, ValueRange(values).getTypes(), values, axes,
                                 builder.getI64IntegerAttr(distance), nullptr);
  llvm::copy(moved.getResults(), values.begin());
}

std::pair<Value, Value> Ring::writeAttention(nn::AttentionOp op, RankedTensorType type) {
  Type element = type.getElementType();
  // A bias may hide keys by a huge number. The log-sum-exp has to tell the number of keys
  // beside it.
  bool isWide = element.isF64() || operands.bias;
  auto lseType = RankedTensorType::get(
      type.getShape().drop_back(),
      isWide ? Type(builder.getF64Type()) : Type(builder.getF32Type()));
  if (op.getLse())
    lseType = lseType.clone(getElementTypeOrSelf(op.getLse().getType()));
  bool merges = steps.size() > 1 || op.getLse();
  Value out, lse;
  for (int64_t step : steps) {
    moveKeys(step);
    RingOperands own = operands.cut(chunks, step);
    auto part = nn::AttentionOp::create(
        builder, loc, type, merges ? lseType : Type(), own.query, own.key, own.value,
        own.keyPadding, own.bias, own.queryPositions, own.keyPositions, own.lengths, own.dropRows,
        own.dropKeys, own.seed, own.step, op.getScaleAttr(), op.getCausalAttr(),
        op.getWindowLeftAttr(), op.getWindowRightAttr(), nullptr, op.getSoftCapAttr(),
        op.getDropoutAttr(), op.getStreamAttr());
    if (!out) {
      out = part.getResult();
      lse = part.getLse();
      continue;
    }
    auto merged = nn::MergeAttentionOp::create(builder, loc, type, lseType, out, lse,
                                               part.getResult(), part.getLse());
    out = merged.getResult();
    lse = merged.getLse();
  }
  return {out, lse};
}

SmallVector<Value, 4> Ring::writeGradients(nn::AttentionGradOp op, ArrayRef<Value> ofResult) {
  Type element = getElementTypeOrSelf(op.getQueryGrad().getType());
  auto getGradType = [&](Value value) {
    return cast<RankedTensorType>(value.getType()).clone(element);
  };
  Value queryGrad;
  // The gradients of the step's chunk.
  SmallVector<Value, 2> keyGrads;
  // The blocks of all steps, or their sum.
  SmallVector<Value> biasGrads;
  moveKeys(steps.front());
  for (auto [i, step] : llvm::enumerate(steps)) {
    RingOperands own = operands.cut(chunks, step);
    // The next chunk arrives while this one is used.
    if (i + 1 < steps.size())
      moveKeys(steps[i + 1]);
    auto part = nn::AttentionGradOp::create(
        builder, loc, getGradType(own.query), getGradType(own.key), getGradType(own.value),
        op.getBiasGrad() ? getGradType(own.bias) : Type(), own.query, own.key, own.value,
        own.keyPadding, own.bias, own.queryPositions, own.keyPositions, own.lengths, own.dropRows,
        own.dropKeys, own.seed, own.step, ofResult[0], ofResult[1], ofResult[2], op.getScaleAttr(),
        op.getCausalAttr(), op.getWindowLeftAttr(), op.getWindowRightAttr(), nullptr,
        op.getSoftCapAttr(), op.getDropoutAttr(), op.getStreamAttr());
    if (i == 0) {
      queryGrad = part.getQueryGrad();
      keyGrads = {part.getKeyGrad(), part.getValueGrad()};
    } else {
      queryGrad = add(queryGrad, part.getQueryGrad());
      keyGrads[0] = add(keyGrads[0], part.getKeyGrad());
      keyGrads[1] = add(keyGrads[1], part.getValueGrad());
    }
    if (Value block = part.getBiasGrad()) {
      if (operands.cutsBias || biasGrads.empty())
        biasGrads.push_back(block);
      else
        biasGrads[0] = add(biasGrads[0], block);
    }
    // To the next step, or home.
    int64_t next = i + 1 < steps.size() ? steps[i + 1] : holding.size();
    if (next != int64_t(holding.size()) || step != 0)
      moveAll(keyGrads, next - step);
  }
  SmallVector<Value, 4> gradients = {queryGrad, keyGrads[0], keyGrads[1]};
  if (op.getBiasGrad())
    gradients.push_back(operands.cutsBias ? chunks.join(biasGrads, operands.biasDim, steps)
                                          : biasGrads.front());
  return gradients;
}

//===----------------------------------------------------------------------===//
// The local form of attention
//===----------------------------------------------------------------------===//

namespace {

/// Writes the local form of attention whose keys stay sharded. `run` works in this order:
/// 1. `assign` chooses axes. `findKeys` finds the class of the keys that is sharded.
/// 2. `bringOperands` brings the operands to their layouts, and zeroes padding.
/// 3. `makeRing` prepares masks, and finds the steps and the ranks that take part.
/// 4. `Ring` writes the steps. `defineGradients`, or `run`, states their results.
class RingPartitioner {
public:
  RingPartitioner(Partitioner &partitioner, nn::ScoresOpInterface op)
      : partitioner(partitioner), op(op), mesh(partitioner.getMesh()),
        builder(partitioner.getBuilder()), factors(partitioner.getFactors()),
        opFactors(factors.getFactors(op)), rule(opFactors.rule),
        queryFactor(rule.operands[0][2].front()), keyFactor(rule.operands[1][2].front()),
        axes(getAxes()) {}

  /// Returns false if no axis shards the keys.
  FailureOr<bool> run();

private:
  AxisList getAxes();
  LogicalResult assign();
  LogicalResult findKeys();
  ValueSharding getSharding(unsigned operand) {
    // Masks have all keys.
    return project(op->getOperand(operand), rule.operands[operand],
                   operand < 3 ? assignment : whole);
  }
  LogicalResult bringOperands();
  LogicalResult maskValues();
  Ring makeRing(ChunkWriter &chunks);
  LogicalResult writeAttention(nn::AttentionOp attention, Ring &ring);
  LogicalResult defineGradients(nn::AttentionGradOp gradient, ArrayRef<Value> gradients);
  ValueSharding project(Value value, const FactorRule::ValueFactors &dims,
                        const Assignment &how) const {
    return partitioner.project(value, dims, opFactors, how);
  }

  Partitioner &partitioner;
  nn::ScoresOpInterface op;
  MeshAttr mesh;
  OpBuilder &builder;
  const FactorAnalysis &factors;
  const FactorAnalysis::OpFactors &opFactors;
  const FactorRule &rule;
  int queryFactor, keyFactor;
  /// The axes over which the keys stay sharded. Empty if they do not.
  AxisList axes;
  /// The axes of all factors. `whole` has the keys that are sharded in `assignment` whole.
  Assignment assignment, whole;
  KeyDim keys;
  SmallVector<Value, 16> operands;
};

} // namespace

AxisList RingPartitioner::getAxes() {
  // A constraint asks for a ring. Keys that are sharded without one are gathered.
  if (!op.getKey().getDefiningOp<ConstrainOp>())
    return {};
  auto getTokenAxes = [&](Value value) {
    AxisList axes;
    for (const AxisList &cls : partitioner.getForm(value).target.dims[2])
      axes.append(cls.begin(), cls.end());
    return axes;
  };
  AxisList axes = getTokenAxes(op.getKey());
  // With whole queries, each rank has the gradients of its keys.
  if (isa<nn::AttentionGradOp>(op.getOperation()) && getTokenAxes(op.getQuery()) != axes)
    return {};
  return axes;
}

/// Assigns axes for attention in steps. Queries keep their constrained axes, and no other
/// factor takes the axes of the ring.
LogicalResult RingPartitioner::assign() {
  assignment = partitioner.assign(op);
  for (auto &classes : assignment)
    for (AxisList &cls : classes)
      if (anyOverlap(cls, axes))
        cls.clear();
  AxisList queryAxes;
  for (auto [own, given] :
       llvm::zip(assignment[queryFactor], partitioner.getForm(op.getQuery()).target.dims[2])) {
    own = given;
    queryAxes.append(given.begin(), given.end());
  }
  if (anyOverlap(queryAxes, axes) && queryAxes != axes)
    return op.emitOpError() << "expected keys and queries sharded over the same axes, got "
                            << toString(axes, mesh) << " and " << toString(queryAxes, mesh);
  return success();
}

LogicalResult RingPartitioner::findKeys() {
  whole = assignment;
  bool found = false;
  for (auto [i, cls] : llvm::enumerate(opFactors.classes[keyFactor])) {
    const AxisList &own = partitioner.getForm(op.getKey()).target.dims[2][i];
    assignment[keyFactor][i] = own;
    whole[keyFactor][i].clear();
    if (own.empty()) {
      (found ? keys.below : keys.above) *= factors.getSize(cls);
      continue;
    }
    if (found)
      return op.emitOpError() << "has keys of which two factors are sharded, over "
                              << toString(axes, mesh) << ": a ring moves chunks of one";
    found = true;
    keys.factor = partitioner.getFactor(cls, own);
    keys.size = partitioner.getSize(keys.factor);
  }
  return success();
}

LogicalResult RingPartitioner::bringOperands() {
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    auto local = partitioner.use(operand, getSharding(i), op.getLoc());
    if (failed(local))
      return failure();
    operands.push_back(*local);
  }
  if (isa<nn::AttentionOp>(op.getOperation()))
    return keys.factor.isPadded() ? maskValues() : success();
  // The steps sum over queries and keys, and each step over the queries of a head of keys.
  SmallVector<int, 4> summed = {queryFactor, keyFactor};
  for (auto [i, factor] : llvm::enumerate(rule.factors))
    if (factor.kind == FactorKind::Contracted && !llvm::is_contained(summed, int(i)))
      summed.push_back(i);
  return partitioner.maskSums(op, summed, [&](unsigned i) { return getSharding(i); }, operands);
}

/// Zeroes the padding of values of attention that may not be finite: a hidden key has
/// weight zero, and zero times NaN is NaN.
LogicalResult RingPartitioner::maskValues() {
  const Layout *layout = partitioner.derive(operands[2]);
  if (!layout)
    return failure();
  auto isNumber = [](const LayoutFactor &f) {
    return !f.isPadded() || padding::isFinite(padding::getUnconditional(f.padding));
  };
  if (!llvm::all_of(layout->dims[2].factors, isNumber))
    operands[2] = partitioner.mask(operands[2], *layout, 2, op.getLoc());
  return success();
}

Ring RingPartitioner::makeRing(ChunkWriter &chunks) {
  MaskShape mask = MaskShape::of(op);
  // Positions that the program gives are known at run time.
  bool comparesIndices = mask.isPositional() && !op.getKvPositions();
  SmallVector<LayoutFactor, 2> queries;
  if (comparesIndices)
    for (auto [cls, own] : llvm::zip_equal(opFactors.classes[queryFactor], assignment[queryFactor]))
      queries.push_back(partitioner.getFactor(cls, own));
  // A sequence of one token.
  if (comparesIndices && queries.empty())
    queries.emplace_back();
  bool isProduct = opFactors.classes[keyFactor].size() != 1 || queries.size() > 1;
  RingOperands local{operands[0], operands[1], operands[2], {}, {}, {}, {}, {}, {}, {}, {}, {}};
  addMasks(builder, op, mesh, keys, queries, chunks, ArrayRef(operands).drop_front(3), local);
  bool isKnown = comparesIndices && !isProduct;
  RanksOfSteps needing = getNeedingRanks(mask, isKnown ? &queries.front() : nullptr, keys.factor);
  RanksOfSteps holding = getHoldingRanks(needing);
  // Positions of a product, and positions that the program gives, do not show which keys a
  // rank lacks.
  if (isProduct || op.getKvPositions())
    for (llvm::SmallBitVector &ranks : holding)
      ranks.set();
  return Ring(builder, op.getLoc(), getAxesAttr(builder.getContext(), axes, mesh), chunks, local,
              std::move(holding), getNeededSteps(needing));
}

FailureOr<bool> RingPartitioner::run() {
  if (axes.empty())
    return false;
  if (failed(assign()) || failed(findKeys()) || failed(bringOperands()))
    return failure();
  ChunkWriter chunks(builder, op.getLoc(), mesh, keys);
  Ring ring = makeRing(chunks);
  if (auto attention = dyn_cast<nn::AttentionOp>(op.getOperation())) {
    if (failed(writeAttention(attention, ring)))
      return failure();
    return true;
  }
  auto gradient = cast<nn::AttentionGradOp>(op.getOperation());
  if (failed(defineGradients(gradient,
                             ring.writeGradients(gradient, ArrayRef(operands).take_back(3)))))
    return failure();
  return true;
}

LogicalResult RingPartitioner::writeAttention(nn::AttentionOp attention, Ring &ring) {
  auto defineAs = [&](unsigned i, Value made) {
    Value result = op->getResult(i);
    return partitioner.define(result, {made, project(result, rule.results[i], assignment), {}});
  };
  Value result = attention.getResult();
  ValueSharding sharding = project(result, rule.results[0], assignment);
  auto [out, lse] = ring.writeAttention(attention, partitioner.getLocalType(result, sharding));
  if (Attribute id = op->getAttr(nn::NnDialect::kIdAttr))
    out.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  return LogicalResult::success(succeeded(defineAs(0, out)) &&
                                (!lse || !attention.getLse() || succeeded(defineAs(1, lse))));
}

/// Defines the gradients that a ring computed. The gradient of a bias is as the bias: it has all
/// keys.
LogicalResult RingPartitioner::defineGradients(nn::AttentionGradOp gradient,
                                               ArrayRef<Value> gradients) {
  // A ring gives queries their positions, so that it may sum over them under any mask.
  FactorRule own = rule;
  own.factors[queryFactor].kind = FactorKind::Contracted;
  // The steps are the sums of other gradients over queries and keys.
  Assignment summed = whole;
  for (AxisList &cls : summed[queryFactor])
    cls.clear();
  for (auto [i, made] : llvm::enumerate(gradients)) {
    Value result = op->getResult(i);
    bool isBias = result == gradient.getBiasGrad();
    ValueSharding sharding = project(result, own.results[i], isBias ? whole : assignment);
    Part sum;
    sum.axes = partitioner.getContractedAxes(own, isBias ? whole : summed, i);
    sum.reduction = Partitioner::getReduction(own, i);
    if (failed(partitioner.define(result, {made, std::move(sharding), std::move(sum)})))
      return failure();
  }
  return success();
}

namespace {

template <typename OpT>
struct RingModel : LocalOpInterface::ExternalModel<RingModel<OpT>, OpT> {
  FailureOr<bool> partition(Operation *op, Partitioner &partitioner) const {
    return RingPartitioner(partitioner, cast<nn::ScoresOpInterface>(op)).run();
  }
  /// The local op says that it has all keys only if no axis shards them.
  void fitFacts(Operation *op, Partitioner &partitioner, const Assignment &assignment,
                Operation *local) const {
    auto isSharded = [](const AxisList &axes) { return !axes.empty(); };
    for (int factor : partitioner.getFactors().getFactors(op).rule.operands[1][2])
      if (llvm::any_of(assignment[factor], isSharded))
        local->removeAttr(nn::NnDialect::kWholeKeysAttr);
  }
};

} // namespace

void local_models::attachRingAttentionModels(MLIRContext *context) {
  nn::AttentionOp::attachInterface<RingModel<nn::AttentionOp>>(*context);
  nn::AttentionGradOp::attachInterface<RingModel<nn::AttentionGradOp>>(*context);
}
