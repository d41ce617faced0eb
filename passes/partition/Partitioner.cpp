//===- Partitioner.cpp - from global to local -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/Partitioner.h"

#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/SignatureAttrs.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

/// The axes over which an attribute declares a value unreduced.
FailureOr<Part> Partitioner::readUnreduced(ShardingAttr attr, Type type,
                                           function_ref<InFlightDiagnostic()> emitError) const {
  Part unreduced;
  for (AxisRefAttr axis : attr.getUnreduced())
    unreduced.axes.push_back(getAxis(axis, mesh));
  llvm::sort(unreduced.axes);
  canonicalizeAxes(unreduced.axes, mesh);
  if (!unreduced.empty())
    unreduced.reduction = attr.getReduction();
  if (!unreduced.empty() && !hasSums(getElementTypeOrSelf(type)))
    return LogicalResult(emitError()
                         << "expected numbers, which have sums and maxima, as it is unreduced, got "
                         << type);
  return unreduced;
}

LogicalResult Partitioner::readTargets() {
  Block &block = func.getBody().front();
  auto read = [&](Value value) -> LogicalResult {
    ShardingAttr attr = getShardingAttr(value);
    if (!attr)
      return emitError(value.getLoc())
             << "value has no 'dist.sharding': expected every value to carry one (see "
                "--propagate-shardings)";
    auto sharding =
        readSharding(attr, value, factors, mesh, [&] { return emitError(value.getLoc()); });
    if (failed(sharding))
      return failure();
    LocalForm form;
    form.target = std::move(*sharding);
    if (isa<BlockArgument>(value) || value.getDefiningOp<ConstrainOp>()) {
      auto unreduced = readUnreduced(attr, value.getType(),
                                     [&] { return emitError(value.getLoc()) << "value: "; });
      if (failed(unreduced))
        return failure();
      form.unreduced = std::move(*unreduced);
    }
    addForm(value, std::move(form));
    return success();
  };
  for (BlockArgument arg : block.getArguments())
    if (failed(read(arg)))
      return failure();
  for (Operation &op : block.without_terminator())
    for (Value value : op.getResults())
      if (failed(read(value)))
        return failure();
  Operation *terminator = block.getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    resultTargets.push_back({getForm(value).target, {}});
    auto attr = func.getResultAttrOfType<ShardingAttr>(i, DistDialect::kShardingAttr);
    if (!attr)
      continue;
    auto emit = [&, i = i] { return terminator->emitOpError() << "result " << i << ": "; };
    auto sharding = readSharding(attr, value, factors, mesh, emit);
    if (failed(sharding))
      return failure();
    auto unreduced = readUnreduced(attr, value.getType(), emit);
    if (failed(unreduced))
      return failure();
    resultTargets.back() = {std::move(*sharding), std::move(*unreduced)};
  }
  readDemands();
  return success();
}

/// A sum that only a constraint or the return reads gets the layout that they ask for. The
/// layout that propagation gave it would be a detour.
void Partitioner::readDemands() {
  Block &block = func.getBody().front();
  for (Operation &op : block.without_terminator()) {
    if (op.getNumOperands() == 0 || !contracts(factors.getFactors(&op).rule))
      continue;
    for (Value value : op.getResults()) {
      if (!value.hasOneUse())
        continue;
      OpOperand &use = *value.use_begin();
      LocalForm &form = getForm(value);
      if (auto constrain = dyn_cast<ConstrainOp>(use.getOwner())) {
        if (!isCrossing(constrain))
          form.target = getForm(constrain.getResult()).target;
      } else if (use.getOwner() == block.getTerminator()) {
        form.target = resultTargets[use.getOperandNumber()].sharding;
      }
      form.unreduced = getDemand(use);
    }
  }
}

void Partitioner::addShards(PaddedSizes &sizes) {
  auto add = [&](Value value, const ValueSharding &sharding) {
    for (auto [dimClasses, dim] : llvm::zip_equal(factors.getClasses(value), sharding.dims))
      for (auto [cls, axes] : llvm::zip_equal(dimClasses, dim)) {
        if (axes.empty())
          continue;
        sizes.multiple[cls] = std::lcm(sizes.multiple[cls], factors.getMultiple(cls, axes));
      }
  };
  for (const auto &[value, index] : formIndices)
    add(value, forms[index].target);
  for (auto [value, target] :
       llvm::zip_equal(func.getBody().front().getTerminator()->getOperands(), resultTargets))
    add(value, target.sharding);
}

/// Chooses one padded size for each class.
void Partitioner::choosePadding(PaddedSizes &sizes) {
  padded.assign(sizes.multiple.size(), 1);
  for (auto [cls, multiple] : llvm::enumerate(sizes.multiple)) {
    padded[cls] = llvm::alignTo(factors.getSize(cls), multiple);
    hasPadding |= padded[cls] != factors.getSize(cls) || factors.getRuntimeSize(cls);
  }

  // Report the cost of padding once for each class.
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  auto report = [&](Value value) {
    for (const FactorClasses &dim : factors.getClasses(value))
      for (int cls : dim) {
        int64_t size = factors.getSize(cls);
        if (padded[cls] == size || !sizes.reported.insert(cls).second)
          continue;
        double waste = double(padded[cls] - size) / size;
        log.add("partition", Outcome::Note, value.getLoc(),
                llvm::formatv("a dimension of size {0} is padded to {1} to divide over {2} "
                              "shards: {3:P1} more of it is computed and stored",
                              size, padded[cls], sizes.multiple[cls], waste)
                    .str(),
                {{"size", double(size)}, {"padded", double(padded[cls])}});
      }
  };
  Block &block = func.getBody().front();
  for (BlockArgument arg : block.getArguments())
    report(arg);
  for (Operation &op : block.without_terminator())
    for (Value value : op.getResults())
      report(value);
}

Layout Partitioner::getLayout(Value global, const ValueSharding &sharding,
                              const Part &unreduced) const {
  Layout layout;
  for (auto [dimClasses, dim] : llvm::zip_equal(factors.getClasses(global), sharding.dims)) {
    DimLayout dimLayout;
    for (auto [cls, axes] : llvm::zip_equal(dimClasses, dim)) {
      LayoutFactor factor = factors.getFactor(cls, axes, padded[cls]);
      // The verifier derives the content of the padding.
      factor.padding = Padding::Arbitrary;
      dimLayout.factors.push_back(std::move(factor));
    }
    if (dimLayout.factors.empty())
      dimLayout.factors.emplace_back();
    layout.dims.push_back(std::move(dimLayout));
  }
  if (!unreduced.empty())
    layout.parts.push_back(unreduced);
  canonicalize(layout, mesh);
  return layout;
}

RankedTensorType Partitioner::getLocalType(Value global, const ValueSharding &sharding) const {
  auto type = cast<RankedTensorType>(global.getType());
  if (sharding.isReplicated())
    return type;
  SmallVector<int64_t> shape;
  for (auto [dimClasses, dim] : llvm::zip_equal(factors.getClasses(global), sharding.dims)) {
    int64_t size = 1;
    for (auto [cls, axes] : llvm::zip_equal(dimClasses, dim))
      size *= axes.empty() ? factors.getSize(cls) : padded[cls] / getNumShards(axes);
    shape.push_back(size);
  }
  return type.clone(shape);
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

ValueSharding Partitioner::projectBroadcast(Value value, Value target,
                                            const ValueSharding &sharding) const {
  ValueSharding result = ValueSharding::getReplicated(factors.getClasses(value));
  ArrayRef<FactorClasses> own = factors.getClasses(value);
  ArrayRef<FactorClasses> other = factors.getClasses(target);
  size_t missing = other.size() - own.size();
  for (size_t d = 0; d < own.size(); ++d)
    if (own[d] == other[missing + d])
      result.dims[d] = sharding.dims[missing + d];
  return result;
}

FailureOr<Value> Partitioner::reshard(Value global, const Local &from, const ValueSharding &to,
                                      Location loc, const Part &unreduced) {
  // Parts of a sum are no parts of a maximum.
  if (!from.unreduced.empty() && !unreduced.empty() &&
      from.unreduced.reduction != unreduced.reduction) {
    auto reduced = reshard(global, from, to, loc);
    if (failed(reduced))
      return failure();
    return reshard(global, {*reduced, to, {}}, to, loc, unreduced);
  }
  Layout source = getLayout(global, from);
  Layout target = getLayout(global, to, unreduced);
  Block *block = builder.getInsertionBlock();
  Operation *before = block->empty() ? nullptr : &block->back();
  auto moved = changesOrder(global, from.sharding, to)
                   ? reshardByClasses(global, from, to, loc, unreduced)
                   : resharder.reshard(builder, loc, from.value, source, target);
  if (failed(moved))
    return LogicalResult(emitError(loc) << "no way from layout " << toString(source, mesh) << " to "
                                        << toString(target, mesh));
  if (role != CollectiveRole::Data)
    for (Operation *op = before ? before->getNextNode() : block->empty() ? nullptr : &block->front();
         op; op = op->getNextNode())
      if (auto collective = dyn_cast<CollectiveOpInterface>(op);
          collective && collective.communicates())
        collective.setRole(role);
  stateGathered(global, from, to, before);
  if (hasPadding && *moved != from.value)
    known[*moved] = std::move(target);
  return moved;
}

/// Returns true if a class with an order is sharded on one side only. A class that is not
/// sharded is in contiguous order.
bool Partitioner::changesOrder(Value global, const ValueSharding &from,
                               const ValueSharding &to) const {
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(global)))
    for (auto [i, cls] : llvm::enumerate(classes))
      if (factors.getOrder(cls).order != TokenOrder::Contiguous &&
          from.dims[d][i].empty() != to.dims[d][i].empty())
        return true;
  return false;
}

/// A reshard that changes orders. Each class is a dimension of its own while it is resharded.
/// Between two orders a class is not sharded, and has its padded size.
FailureOr<Value> Partitioner::reshardByClasses(Value global, const Local &from,
                                              const ValueSharding &to, Location loc,
                                              const Part &unreduced) {
  Layout at, target;
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(global))) {
    for (auto [i, cls] : llvm::enumerate(classes)) {
      at.dims.emplace_back(factors.getFactor(cls, from.sharding.dims[d][i], padded[cls]));
      target.dims.emplace_back(factors.getFactor(cls, to.dims[d][i], padded[cls]));
    }
  }
  at.setUnreduced(from.unreduced.axes, from.unreduced.reduction);
  target.setUnreduced(unreduced.axes, unreduced.reduction);
  for (Layout *layout : {&at, &target})
    for (DimLayout &dim : layout->dims)
      dim.factors.front().padding = Padding::Arbitrary;
  auto type = cast<RankedTensorType>(from.value.getType());
  Value value = nn::ReshapeOp::create(builder, loc, type.clone(at.getLocalShape()), from.value);
  known[value] = at;
  for (size_t d = 0; d < at.dims.size(); ++d) {
    const LayoutFactor source = at.dims[d].factors.front();
    const LayoutFactor &end = target.dims[d].factors.front();
    if (source.sameOrderAs(end))
      continue;
    LayoutFactor before = source, after = end;
    before.padded = after.padded = std::max(source.padded, end.padded);
    before.axes.clear();
    after.axes.clear();
    Layout whole = at;
    whole.dims[d] = DimLayout(before);
    auto moved = resharder.reshard(builder, loc, value, at, whole);
    if (failed(moved))
      return failure();
    value = ReorderOp::create(builder, loc, moved->getType(), *moved, builder.getI64IntegerAttr(d),
                              getFactorAttr(before, mesh), getFactorAttr(after, mesh));
    at = whole;
    at.dims[d] = DimLayout(after);
  }
  auto moved = resharder.reshard(builder, loc, value, at, target);
  if (failed(moved))
    return failure();
  return nn::ReshapeOp::create(builder, loc, getLocalType(global, to), *moved).getResult();
}

FailureOr<Value> Partitioner::reshard(Value local, Layout from, Layout to, Location loc) {
  canonicalize(from, mesh);
  canonicalize(to, mesh);
  return resharder.reshard(builder, loc, local, from, to);
}

/// The id of a value names it in comparisons of programs. The local op that makes the whole
/// value carries it.
static void moveId(Value global, Value local) {
  Operation *op = global.getDefiningOp();
  if (auto id = op ? op->getAttr(nn::NnDialect::kIdAttr) : Attribute())
    if (Operation *def = local.getDefiningOp())
      def->setAttr(nn::NnDialect::kIdAttr, id);
}

FailureOr<Value> Partitioner::use(Value value, const ValueSharding &sharding, Location loc,
                                  const Part &unreduced) {
  return unreduced.empty() ? use(value, sharding, loc)
                           : useUnreduced(value, sharding, loc, unreduced);
}

FailureOr<Value> Partitioner::use(Value value, const ValueSharding &sharding, Location loc) {
  LocalForm &form = getForm(value);
  if (form.isDeferred) {
    // The only user gets the sum reduced to the layout that it needs.
    if (form.rest.empty() && value.hasOneUse()) {
      auto reduced = reshard(value, form.local, sharding, value.getLoc());
      if (succeeded(reduced))
        moveId(value, *reduced);
      return reduced;
    }
    if (failed(materialize(value)))
      return failure();
  }
  if (form.local.sharding == sharding)
    return form.local.value;
  for (auto &[known, copy] : form.copies)
    if (known == sharding)
      return copy;
  Operation *op = value.getDefiningOp();
  auto copy = op && op->getNumOperands() == 0 ? generate(op, sharding)
                                              : reshard(value, form.local, sharding, loc);
  if (succeeded(copy))
    form.copies.push_back({sharding, *copy});
  return copy;
}

Partitioner::SentRows &Partitioner::getSentRows(Value choices, const AxisList &axes) {
  std::deque<SentRows> &known = sentRows[choices];
  auto found = llvm::find_if(known, [&](const SentRows &sent) { return sent.axes == axes; });
  return found == known.end() ? known.emplace_back(SentRows{axes, Value()}) : *found;
}

LogicalResult Partitioner::define(Value value, Local local, SmallVector<Value, 2> rest) {
  LocalForm &form = getForm(value);
  if (hasPadding && value.getDefiningOp() && mayHaveCandidates(value.getDefiningOp()))
    known[local.value] = getLayout(value, local);
  form.local = std::move(local);
  form.rest = std::move(rest);
  form.isDeferred = !form.local.unreduced.empty() || !form.rest.empty();
  if (form.isDeferred) {
    // The id names the whole value, not a partial sum.
    if (Operation *def = form.local.value.getDefiningOp())
      def->removeAttr(nn::NnDialect::kIdAttr);
    if (canWait(value, form.local.unreduced.reduction))
      return success();
    return materialize(value);
  }
  if (form.local.sharding == form.target)
    return success();
  // The value has its target sharding. The result of the op is a copy in another one.
  ValueSharding computed = form.local.sharding;
  Value copy = form.local.value;
  auto moved = reshard(value, form.local, form.target, value.getLoc());
  if (failed(moved))
    return failure();
  form.local = {*moved, form.target, {}};
  form.copies.push_back({computed, copy});
  return success();
}

LogicalResult Partitioner::materialize(Value value) {
  LocalForm &form = getForm(value);
  auto reduced = reshard(value, form.local, form.target, value.getLoc());
  if (failed(reduced))
    return failure();
  Value sum = *reduced;
  SmallVector<Value, 2> rest = std::move(form.rest);
  if (rest.empty())
    form.partial = std::make_unique<Local>(form.local);
  form.isDeferred = false;
  form.rest.clear();
  for (Value other : rest) {
    auto term = use(other, projectBroadcast(other, value, form.target), value.getLoc());
    if (failed(term))
      return failure();
    sum = nn::AddOp::create(builder, value.getLoc(), sum.getType(), sum, *term);
  }
  form.local = {sum, form.target, {}};
  moveId(value, sum);
  return success();
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

Operation *Partitioner::emit(Operation *op, ArrayRef<Value> operands, ArrayRef<Type> types) {
  NamedAttrList attributes(op->getDiscardableAttrDictionary());
  attributes.erase(DistDialect::kShardingAttr);
  Operation *local = Operation::create(op->getLoc(), op->getName(), types, operands,
                                       attributes.getDictionary(op->getContext()),
                                       op->getPropertiesStorage(), {}, op->getNumRegions());
  if (auto model = dyn_cast<LocalOpInterface>(op))
    model.fitAttributes(local);
  return builder.insert(local);
}

/// Writes an op without operands in a layout, without communication. Values of which a rank cannot
/// make its part are made whole on each rank and sliced.
FailureOr<Value> Partitioner::generate(Operation *op, const ValueSharding &sharding) {
  Value value = op->getResult(0);
  if (auto model = dyn_cast<LocalOpInterface>(op))
    if (Value part = model.generate(builder, getLocalType(value, sharding)))
      return part;
  ValueSharding replicated = ValueSharding::getReplicated(factors.getClasses(value));
  LocalForm &form = getForm(value);
  auto whole = llvm::find_if(form.copies, [&](auto &copy) { return copy.first == replicated; });
  if (whole == form.copies.end()) {
    Value made = emit(op, {}, value.getType())->getResult(0);
    form.copies.push_back({replicated, made});
    whole = std::prev(form.copies.end());
  }
  return reshard(value, {whole->second, replicated, {}}, sharding, op->getLoc());
}

LogicalResult Partitioner::partition(Operation *op) {
  Value result = op->getResult(0);
  if (op->getNumOperands() == 0) {
    const ValueSharding &target = getForm(result).target;
    auto value = generate(op, target);
    if (failed(value))
      return failure();
    return define(result, {*value, target, {}});
  }
  if (auto constrain = dyn_cast<ConstrainOp>(op)) {
    const LocalForm &form = getForm(result);
    ValueSharding target = form.target;
    Part unreduced = form.unreduced;
    auto value = use(constrain.getInput(), target, op->getLoc(), unreduced);
    if (failed(value))
      return failure();
    keepStated(op);
    return define(result, {*value, target, unreduced});
  }
  auto passed = passPartials(op);
  if (succeeded(passed) && *passed)
    keepStated(op);
  if (failed(passed) || *passed)
    return LogicalResult(passed);
  if (auto model = dyn_cast<LocalOpInterface>(op))
    if (auto made = model.partition(*this); failed(made) || *made)
      return LogicalResult(made);
  return partitionByRule(op, assign(op));
}

LogicalResult Partitioner::partitionByRule(Operation *op, const Assignment &assignment) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  const FactorRule &rule = opFactors.rule;
  AxisList unreduced = getContractedAxes(rule, assignment, /*result=*/0);

  // A bias is added once, not to every partial sum.
  SmallVector<Value, 2> rest;
  auto matrix = dyn_cast<MatrixOpInterface>(op);
  std::optional<unsigned> bias =
      matrix && !unreduced.empty() ? matrix.getBiasOperand() : std::nullopt;
  if (bias)
    rest.push_back(op->getOperand(*bias));

  SmallVector<Value, 4> operands;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (bias == i)
      continue;
    auto value =
        use(operand, project(operand, rule.operands[i], opFactors, assignment), op->getLoc());
    if (failed(value))
      return failure();
    operands.push_back(*value);
  }
  SmallVector<Value, 4> read(operands);
  if (failed(maskOperands(op, assignment, operands)))
    return failure();
  for (auto [i, from, to] : llvm::enumerate(read, operands))
    if (from != to)
      stateMasked(op->getOperand(i), project(op->getOperand(i), rule.operands[i], opFactors, assignment),
                  from, to);
  SmallVector<ValueSharding, 2> shardings;
  SmallVector<Type, 2> types;
  for (auto [value, dims] : llvm::zip_equal(op->getResults(), rule.results)) {
    shardings.push_back(project(value, dims, opFactors, assignment));
    types.push_back(getLocalType(value, shardings.back()));
  }
  auto model = dyn_cast<LocalOpInterface>(op);
  if (model)
    model.addOperands(*this, assignment, types, operands);
  Operation *local = emit(op, operands, types);
  if (model)
    model.fitFacts(*this, assignment, local);
  stateEqual(op, local, assignment);
  stateSplit(op->getResult(0), local, shardings.front());
  for (auto [i, value] : llvm::enumerate(op->getResults())) {
    Part sum;
    sum.axes = getContractedAxes(rule, assignment, i);
    sum.reduction = getReduction(rule, i);
    if (failed(define(value, {local->getResult(i), shardings[i], std::move(sum)}, rest)))
      return failure();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

LogicalResult Partitioner::prepare(PaddedSizes &sizes) {
  if (failed(readTargets()) || failed(checkSizes()))
    return failure();
  addShards(sizes);
  return success();
}

LogicalResult Partitioner::run(PaddedSizes &sizes) {
  choosePadding(sizes);

  Block &block = func.getBody().front();
  auto *local = new Block();
  func.getBody().push_back(local);
  builder.setInsertionPointToStart(local);
  // `hasSizes` is false for a value whose elements are all true, though it is tied to others.
  auto describe = [&](Value value, const ValueSharding &sharding, const Part &unreduced,
                      bool hasSizes) {
    Layout layout = getLayout(value, sharding, unreduced);
    if (!hasSizes)
      dropRuntimeSizes(layout, mesh);
    return std::pair(getSharding(layout, symbol, mesh), TypeAttr::get(value.getType()));
  };
  SmallVector<Type> argumentTypes, resultTypes;
  SignatureAttrs signatures;
  for (auto [i, arg] : llvm::enumerate(block.getArguments())) {
    LocalForm &form = getForm(arg);
    RankedTensorType type = getLocalType(arg, form.target);
    form.local = {local->addArgument(type, arg.getLoc()), form.target, form.unreduced};
    form.isDeferred = !form.unreduced.empty();
    if (form.isDeferred && form.unreduced.reduction == ReductionKind::Sum)
      statedParts.insert(arg);
    argumentTypes.push_back(type);
    bool hasSizes = bool(func.getArgAttr(i, nn::NnDialect::kSizesAttr));
    auto [sharding, global] = describe(arg, form.target, form.unreduced, hasSizes);
    signatures.setArgument(func, i, DistDialect::kShardingAttr, sharding);
    signatures.setArgument(func, i, DistDialect::kGlobalAttr, global);
  }
  for (Operation &op : block.without_terminator()) {
    noteEqualElements(&op);
    if (failed(partitionInto(&op, *local)))
      return failure();
  }
  SmallVector<Value> results;
  Operation *terminator = block.getTerminator();
  for (auto [i, value] : llvm::enumerate(terminator->getOperands())) {
    const auto &[target, unreduced] = resultTargets[i];
    // Zeros on all ranks are a sum as they are.
    bool isOpenZero = !unreduced.empty() && unreduced.reduction == ReductionKind::Sum &&
                      padding::getSplat(value) == 0.0;
    auto result = isOpenZero ? generate(value.getDefiningOp(), target)
                             : use(value, target, terminator->getLoc(), unreduced);
    if (succeeded(result) && func.getResultAttr(i, nn::NnDialect::kStateAttr))
      result = maskState(*result, getLayout(value, target, unreduced), terminator->getLoc());
    if (failed(result))
      return failure();
    results.push_back(*result);
    resultTypes.push_back(result->getType());
    bool hasSizes = !func.getResultAttr(i, nn::NnDialect::kStateAttr);
    auto [sharding, global] = describe(value, target, unreduced, hasSizes);
    signatures.setResult(func, i, DistDialect::kShardingAttr, sharding);
    signatures.setResult(func, i, DistDialect::kGlobalAttr, global);
  }
  func::ReturnOp::create(builder, terminator->getLoc(), results);
  signatures.apply();
  block.dropAllUses();
  block.erase();
  func.setType(FunctionType::get(func.getContext(), argumentTypes, resultTypes));
  func->setAttr(DistDialect::kSpmdAttr, symbol);
  return success();
}
