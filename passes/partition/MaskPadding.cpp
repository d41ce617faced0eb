//===- MaskPadding.cpp - padding that contractions would read -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Sizes.h"
#include "meshwright/lib/Placement/CandidateCombinations.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The largest number of candidate layouts of a value.
static constexpr size_t kMaxCandidates = 32;

/// Derives the candidate layouts of an op's results. Drops combinations of candidates with
/// which the op would be wrong. If the intended layout of a result is known, drops all other
/// candidates of it.
LogicalResult Partitioner::deriveOp(Operation *op) {
  SmallVector<Candidates> given;
  for (Value operand : op->getOperands())
    given.push_back(derived.find(operand)->second);
  const FactorRule *rule = mayHaveCandidates(op) ? nullptr : memo.getRule(op);
  SmallVector<CandidateCombination> combinations = combineCandidates(op->getOperands(), given, rule);
  bool isOnly = combinations.size() == 1;
  auto emit = [&] {
    InFlightDiagnostic diag = op->emitOpError();
    if (!isOnly)
      diag.abandon();
    return diag;
  };
  auto add = [&](Value result, LayoutRef layout) {
    Candidates &candidates = derived[result];
    if (candidates.size() < kMaxCandidates &&
        llvm::none_of(candidates, [&](LayoutRef r) { return isSameCandidate(*r, *layout); }))
      candidates.push_back(layout);
  };
  bool any = false;
  for (const auto &operands : combinations) {
    FailureOr<TransferMemo::Outcome> outcome = memo.transfer(op, operands, emit);
    if (failed(outcome))
      continue;
    any = true;
    for (auto [result, layout] : llvm::zip_equal(op->getResults(), outcome->results))
      add(result, layout);
    for (LayoutRef layout : outcome->alternatives)
      add(op->getResult(0), layout);
  }
  if (!any) {
    if (!isOnly)
      (void)memo.transfer(op, combinations.front(), [&] { return op->emitOpError(); });
    return failure();
  }
  for (Value result : op->getResults()) {
    Candidates &candidates = derived.find(result)->second;
    if (candidates.size() == 1)
      continue;
    // Few programs mean a block (see PlacementDerivation::visitCandidates).
    auto isBlock = [](LayoutRef candidate) { return candidate->isBlock(); };
    if (!llvm::all_of(candidates, isBlock))
      llvm::erase_if(candidates, isBlock);
    auto meant = known.find(result);
    if (meant == known.end())
      continue;
    auto fits = [&](LayoutRef candidate) { return isLayout(*candidate, meant->second, mesh); };
    if (llvm::any_of(candidates, fits))
      llvm::erase_if(candidates, [&](LayoutRef candidate) { return !fits(candidate); });
  }
  return success();
}

const Layout *Partitioner::derive(Value local) {
  Block *block = builder.getInsertionBlock();
  if (derived.empty())
    for (auto [arg, argType] : llvm::zip_equal(block->getArguments(), func.getArgumentTypes())) {
      unsigned i = arg.getArgNumber();
      const LocalForm &own = getForm(func.getArgument(i));
      Layout layout = getLayout(func.getArgument(i), own.target, own.unreduced);
      describeArgument(layout, func.getArgAttrDict(i), arg.getType());
      derived[arg].push_back(memo.intern(layout));
    }
  // Derive the ops that were written since the last call, in order.
  Operation *op =
      derivedTo ? derivedTo->getNextNode() : (block->empty() ? nullptr : &block->front());
  for (; op; op = op->getNextNode()) {
    if (failed(deriveOp(op)))
      return nullptr;
    derivedTo = op;
  }
  auto it = derived.find(local);
  return it == derived.end() ? nullptr : it->second.front();
}

/// Checks that the function has the number of each run-time size of its values.
LogicalResult Partitioner::checkSizes() {
  auto check = [&](Value value) -> LogicalResult {
    for (const FactorClasses &dim : factors.getClasses(value))
      for (int cls : dim)
        if (FlatSymbolRefAttr name = factors.getRuntimeSize(cls);
            name && failed(nn::getSize(func, name.getAttr(), value.getLoc())))
          return failure();
    return success();
  };
  Block &block = func.getBody().front();
  for (BlockArgument arg : block.getArguments())
    if (failed(check(arg)))
      return failure();
  for (Operation &op : block.without_terminator())
    for (Value value : op.getResults())
      if (failed(check(value)))
        return failure();
  return success();
}

Value Partitioner::getSize(const LayoutFactor &factor) {
  if (!factor.runtimeSize)
    return {};
  // `prepare` has checked that there is one.
  return getForm(nn::findSize(func, factor.runtimeSize.getAttr())).local.value;
}

/// A truth value for each of the rank's elements of a factor: false in padding.
Value Partitioner::getTruth(const LayoutFactor &factor, Location loc) {
  for (auto &[known, truth] : truths)
    if (known.sameShardingAs(factor) && known.runtimeSize == factor.runtimeSize)
      return truth;
  auto type = RankedTensorType::get({factor.getLocalSize()}, builder.getI64Type());
  Value positions = PositionsOp::create(builder, loc, type, getFactorAttr(factor, mesh),
                                        getSize(factor),
                                        builder.getI64IntegerAttr(factor.shift));
  Value zero = nn::ConstantOp::create(
      builder, loc,
      DenseElementsAttr::get(RankedTensorType::get({}, builder.getI64Type()), int64_t(0)));
  Value truth =
      nn::CompareOp::create(builder, loc, type.clone(builder.getI1Type()), nn::CompareKind::Ge,
                            positions, zero);
  truths.push_back({factor, truth});
  return truth;
}

static Value makeScalar(OpBuilder &builder, Location loc, Type element, double number) {
  TypedAttr attr = isa<FloatType>(element)
                       ? TypedAttr(builder.getFloatAttr(element, number))
                       : TypedAttr(builder.getIntegerAttr(element, int64_t(number)));
  return nn::ConstantOp::create(
      builder, loc, DenseElementsAttr::get(RankedTensorType::get({}, element), Attribute(attr)));
}

/// Overwrites the padding of a dimension: a selection by the positions of its elements, which
/// becomes part of the kernel that computes the value.
Value Partitioner::mask(Value local, const Layout &layout, int dim, Location loc, double number) {
  auto type = cast<RankedTensorType>(local.getType());
  const DimLayout &factors = layout.dims[dim];
  // Each factor gets a dimension of its own while it is masked.
  SmallVector<int64_t> shape(type.getShape().take_front(dim));
  for (const LayoutFactor &factor : factors.factors)
    shape.push_back(factor.getLocalSize());
  llvm::append_range(shape, type.getShape().drop_front(dim + 1));
  Value value = local;
  RankedTensorType split = type.clone(shape);
  if (split != type) {
    value = nn::ReshapeOp::create(builder, loc, split, value);
    // A reshape that splits what the one before merged would fold, and the mask with it.
    Layout apart = layout;
    apart.dims.erase(apart.dims.begin() + dim);
    for (const LayoutFactor &factor : llvm::reverse(factors.factors))
      apart.dims.insert(apart.dims.begin() + dim, DimLayout(factor));
    llvm::SmallBitVector stated(shape.size());
    stated.set(dim, dim + factors.factors.size());
    stateResult(value.getDefiningOp(), 0, apart, stated, symbol, mesh);
  }
  for (auto [i, factor] : llvm::enumerate(factors.factors)) {
    if (!factor.isPadded())
      continue;
    // One element for each row of the factor, which broadcasts along the dimensions behind.
    SmallVector<int64_t> along(shape.size() - dim - i, 1);
    along[0] = factor.getLocalSize();
    Value isTrue = getTruth(factor, loc);
    if (along.size() > 1)
      isTrue = nn::ReshapeOp::create(
          builder, loc, RankedTensorType::get(along, builder.getI1Type()), isTrue);
    if (type.getElementType().isInteger(1) && number == 0)
      value = nn::AndOp::create(builder, loc, split, isTrue, value);
    else
      value = nn::SelectOp::create(builder, loc, split, isTrue, value,
                                   makeScalar(builder, loc, type.getElementType(), number));
  }
  if (split != type)
    value = nn::ReshapeOp::create(builder, loc, type, value);
  // The shapes alone do not tell dimensions of local size 1 apart.
  known[value] = layout;
  return value;
}

LogicalResult Partitioner::maskSums(Operation *op, ArrayRef<int> summed,
                                    function_ref<ValueSharding(unsigned)> getSharding,
                                    MutableArrayRef<Value> operands) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  auto interface = cast<PaddingOpInterface>(op);
  auto reads = [&](int factor) {
    return llvm::is_contained(summed, factor) &&
           llvm::any_of(opFactors.classes[factor],
                        [&](int cls) {
                          return padded[cls] != factors.getSize(cls) || factors.getRuntimeSize(cls);
                        });
  };
  for (auto [i, dims] : llvm::enumerate(opFactors.rule.operands))
    for (auto [d, dim] : llvm::enumerate(dims))
      for (int factor : dim) {
        if (!reads(factor))
          continue;
        std::optional<Padding> need = interface.getSummedNeed(i, factor);
        if (!need)
          continue;
        const Layout *derived = derive(operands[i]);
        if (!derived)
          return failure();
        Layout layout = *derived;
        // Which of equal elements are padding is known from the layout that the op asks for.
        if (llvm::any_of(layout.dims[d].factors, [](const LayoutFactor &f) { return f.uniform; })) {
          layout = getLayout(op->getOperand(i), getSharding(i));
          for (LayoutFactor &piece : layout.dims[d].factors)
            piece.padding = derived->data;
        }
        bool isMissed = llvm::any_of(layout.dims[d].factors, [&](const LayoutFactor &piece) {
          return piece.isPadded() && !padding::isWithin(piece.padding, *need);
        });
        if (isMissed)
          operands[i] = mask(operands[i], layout, d, op->getLoc());
      }
  return success();
}

LogicalResult Partitioner::maskContraction(Operation *op, const Assignment &assignment,
                                           MutableArrayRef<Value> operands) {
  // An index outside a rank's rows of a table gives zeros: no row of padding is read.
  if (auto lookup = dyn_cast<LookupOpInterface>(op); lookup && lookup.getTableOperand())
    return success();
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  bool isPadded = false;
  // Such an op may sum over factors that it reads whole, too.
  bool sumsWhole = cast<PaddingOpInterface>(op).statesSummedNeeds();
  SmallVector<int, 2> summed;
  for (auto [i, factor] : llvm::enumerate(opFactors.rule.factors))
    if (factor.kind == FactorKind::Contracted ||
        (sumsWhole && factor.kind == FactorKind::Special)) {
      summed.push_back(i);
      for (auto [cls, axes] : llvm::zip_equal(opFactors.classes[i], assignment[i]))
        isPadded |= this->isPadded(cls, axes);
    }
  if (!isPadded)
    return success();
  if (sumsWhole)
    return maskSums(
        op, summed,
        [&](unsigned i) {
          return project(op->getOperand(i), opFactors.rule.operands[i], opFactors, assignment);
        },
        operands);
  if (getReduction(opFactors.rule, 0) == ReductionKind::Max)
    return maskMaximum(op, operands);

  // The contracted dimensions of each operand, and the content of their padding.
  struct Read {
    SmallVector<int, 2> dims;
    bool isZero = true, isFinite = true;
  };
  // A sum over the first operand needs zeros there. The others do not count.
  std::optional<padding::Need> need = cast<PaddingOpInterface>(op).getPaddingNeed();
  bool sumsFirst = need && need->content == Padding::Zero;
  SmallVector<Read, 2> reads(sumsFirst ? 1 : operands.size());
  bool hasSizes = false;
  auto visit = [&](auto body) -> LogicalResult {
    for (auto [i, dims] : llvm::enumerate(ArrayRef(opFactors.rule.operands).take_front(reads.size())))
      for (auto [d, dim] : llvm::enumerate(dims))
        for (int factor : dim) {
          if (opFactors.rule.factors[factor].kind != FactorKind::Contracted)
            continue;
          const Layout *layout = derive(operands[i]);
          if (!layout)
            return failure();
          body(i, d, *layout);
        }
    return success();
  };
  if (failed(visit([&](size_t, size_t d, const Layout &layout) {
        hasSizes |= layout.dims[d].hasRuntimeSize();
      })))
    return failure();
  // Which elements are padding is known from the layout that the op asks for: of equal elements, and
  // of true elements beside another operand's padding.
  auto isToldByUse = [&](const DimLayout &dim) {
    return llvm::any_of(dim.factors, [](const LayoutFactor &f) { return f.uniform; }) ||
           (hasSizes && !dim.hasRuntimeSize());
  };
  if (failed(visit([&](size_t i, size_t d, const Layout &layout) {
        reads[i].dims.push_back(d);
        for (const LayoutFactor &f : layout.dims[d].factors)
          if (f.isPadded()) {
            // Either may be conditional (see RuleTransfer::checkProduct).
            reads[i].isZero &= padding::isZero(f.padding) &&
                               !(sumsFirst && need->isStrict && f.padding.cause);
            reads[i].isFinite &= padding::isFinite(f.padding);
          } else if (f.uniform || isToldByUse(layout.dims[d])) {
            reads[i].isZero &= padding::isZero(layout.data);
            reads[i].isFinite &= padding::isFinite(layout.data);
          }
      })))
    return failure();
  auto maskOperand = [&](size_t i) {
    for (int dim : reads[i].dims) {
      Layout layout = *derive(operands[i]);
      if (isToldByUse(layout.dims[dim])) {
        Value global = op->getOperand(i);
        layout = getLayout(global, project(global, opFactors.rule.operands[i], opFactors, assignment));
      }
      if (layout.dims[dim].isPadded())
        operands[i] = mask(operands[i], layout, dim, op->getLoc());
    }
    reads[i].isZero = true;
  };
  bool anyZero = false;
  for (auto [i, read] : llvm::enumerate(reads)) {
    if (read.dims.empty())
      continue;
    if (!read.isFinite)
      maskOperand(i);
    anyZero |= read.isZero;
  }
  if (!anyZero)
    maskOperand(0);
  return success();
}

/// Hides the padding of an operand from a maximum over it.
LogicalResult Partitioner::maskMaximum(Operation *op, MutableArrayRef<Value> operands) {
  const FactorRule &rule = factors.getFactors(op).rule;
  for (auto [d, dim] : llvm::enumerate(rule.operands[0])) {
    if (llvm::none_of(dim, [&](int f) { return rule.factors[f].kind == FactorKind::Contracted; }))
      continue;
    const Layout *layout = derive(operands[0]);
    if (!layout)
      return failure();
    double least = getNeutral(ReductionKind::Max, getElementTypeOrSelf(operands[0].getType()));
    bool isSeen = llvm::any_of(layout->dims[d].factors, [&](const LayoutFactor &factor) {
      Padding content = padding::getUnconditional(factor.padding);
      return factor.isPadded() && (content.mayBeNaN || content.upper > least);
    });
    if (isSeen)
      operands[0] = mask(operands[0], *layout, d, op->getLoc(), least);
  }
  return success();
}

/// Zeroes the padding of indices. An index out of range ends the run, and zero is in the
/// range of every table.
LogicalResult Partitioner::maskIndices(Operation *op, const Assignment &assignment,
                                       MutableArrayRef<Value> operands) {
  auto lookup = dyn_cast<LookupOpInterface>(op);
  if (!lookup || !hasPadding)
    return success();
  unsigned index = lookup.getIndexOperand();
  double number = lookup.skipsMinusOne() ? -1 : 0;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  Value global = op->getOperand(index);
  Layout meant =
      getLayout(global, project(global, opFactors.rule.operands[index], opFactors, assignment));
  for (int dim = 0; dim < meant.getRank(); ++dim) {
    const Layout *derived = derive(operands[index]);
    if (!derived)
      return failure();
    // Shapes alone may leave several layouts.
    bool isMeant = isLayout(*derived, meant, mesh);
    const DimLayout &own = (isMeant ? derived : &meant)->dims[dim];
    bool mayBeOut = llvm::any_of(own.factors, [&](const LayoutFactor &factor) {
      const Padding &tail = factor.padding;
      return factor.isPadded() &&
             (!isMeant || tail.lower != number || tail.upper != number || tail.mayBeNaN);
    });
    if (mayBeOut)
      operands[index] =
          mask(operands[index], Layout(isMeant ? *derived : meant), dim, op->getLoc(), number);
  }
  return success();
}

LogicalResult Partitioner::maskOperands(Operation *op, const Assignment &assignment,
                                        MutableArrayRef<Value> operands) {
  if (failed(maskContraction(op, assignment, operands)))
    return failure();
  auto model = dyn_cast<LocalOpInterface>(op);
  if (model && failed(model.maskOperands(*this, assignment, operands)))
    return failure();
  return maskIndices(op, assignment, operands);
}

FailureOr<Value> Partitioner::maskState(Value local, const Layout &layout, Location loc) {
  for (int dim = 0; dim < layout.getRank(); ++dim) {
    if (!layout.dims[dim].isPadded())
      continue;
    const Layout *own = derive(local);
    if (!own)
      return failure();
    // Elements of a splat are padding wherever the state has padding.
    bool isZero = own->corner == Padding::Zero &&
                  llvm::all_of(own->dims[dim].factors, [&](const LayoutFactor &factor) {
                    if (factor.uniform)
                      return own->data == Padding::Zero;
                    return !factor.isPadded() || factor.padding == Padding::Zero;
                  });
    if (!isZero)
      local = mask(local, layout, dim, loc);
  }
  return local;
}
