//===- Differentiator.cpp - reverse mode ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/differentiate/Differentiator.h"

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/differentiate/Vjp.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using dist::DistDialect;

Differentiator::Differentiator(func::FuncOp func, ArrayRef<GradientOp> gradients)
    : func(func), gradients(gradients), loss(this->gradients.front().getLoss()),
      builder(func.getContext(), this) {
  for (GradientOp gradient : gradients)
    arguments[gradient.getParameterAttr()];
  WeightFinder weights(func);
  for (BlockArgument argument : func.getArguments())
    if (std::optional<Weight> weight = weights.find(argument)) {
      auto requested = arguments.find(weight->name);
      if (requested != arguments.end())
        requested->second.push_back(argument);
    } else {
      dependsOnData.insert(argument);
    }
}

bool Differentiator::isFloat(Value value) const {
  return isa<FloatType>(getElementTypeOrSelf(value.getType()));
}

//===----------------------------------------------------------------------===//
// Activity
//===----------------------------------------------------------------------===//

void Differentiator::findActive() {
  for (auto &[name, own] : arguments)
    active.insert(own.begin(), own.end());
  for (Operation &op : func.front().without_terminator()) {
    bool isData = op.hasTrait<dist::NamesMemory>() ||
                  llvm::any_of(op.getOperands(),
                               [&](Value v) { return dependsOnData.contains(v); });
    if (isData)
      dependsOnData.insert(op.result_begin(), op.result_end());
    auto model = dyn_cast<DifferentiableOpInterface>(&op);
    if ((model && model.isConstant()) || isa<GradientOp>(op) ||
        llvm::none_of(op.getOperands(), [&](Value v) { return active.contains(v); }))
      continue;
    for (Value result : op.getResults())
      if (isFloat(result))
        active.insert(result);
  }
}

Type Differentiator::getCotangentType(Value value) {
  Type type = getElementTypeOrSelf(value.getType());
  return dependsOnData.contains(value) ? type : getComputeType(type);
}

//===----------------------------------------------------------------------===//
// Cotangents
//===----------------------------------------------------------------------===//

void Differentiator::notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) {
  written.insert(op);
  if (op->getNumOperands() > 0)
    op->setAttr(NnDialect::kBackwardAttr, builder.getUnitAttr());
  if (stage)
    op->setAttr(NnDialect::kStageAttr, stage);
}

/// Slices that take a value apart along a dimension have a cotangent that is the concatenation of
/// theirs, not a sum of padded ones. Returns null if the terms are no such parts.
Value Differentiator::joinSlices(Writer &w, ArrayRef<Value> terms) {
  SmallVector<Value> parts(terms);
  auto getPad = [&](Value term) -> PadOp {
    auto pad = term.getDefiningOp<PadOp>();
    bool isOwn = pad && written.contains(pad) && pad->use_empty() &&
                 llvm::all_of(pad.getInterior(), [](int64_t zeros) { return zeros == 0; });
    return isOwn ? pad : PadOp();
  };
  std::optional<int64_t> dim;
  for (Value part : parts) {
    PadOp pad = getPad(part);
    if (!pad)
      return {};
    for (int64_t d = 0, rank = pad.getType().getRank(); d < rank; ++d) {
      if (pad.getLow()[d] == 0 && pad.getHigh()[d] == 0)
        continue;
      if (dim.value_or(d) != d)
        return {};
      dim = d;
    }
  }
  auto getStart = [&](Value part) { return part.getDefiningOp<PadOp>().getLow()[*dim]; };
  llvm::sort(parts, [&](Value a, Value b) { return getStart(a) < getStart(b); });
  int64_t end = 0;
  SmallVector<Value> inputs;
  for (Value part : parts) {
    auto pad = part.getDefiningOp<PadOp>();
    if (getStart(part) != end)
      return {};
    inputs.push_back(pad.getInput());
    end += pad.getInput().getType().getDimSize(*dim);
  }
  if (end != shapeOf(parts.front())[*dim])
    return {};
  Value joined = w.concat(inputs, *dim);
  for (Value part : parts) {
    written.erase(part.getDefiningOp());
    part.getDefiningOp()->erase();
  }
  return joined;
}

Value Differentiator::getCotangent(Value value, Location loc) {
  auto found = terms.find(value);
  if (found == terms.end())
    return {};
  SmallVector<Value, 2> own = std::move(found->second);
  terms.erase(found);
  Writer w(builder, loc);
  Value sum = own.size() > 1 ? joinSlices(w, own) : Value();
  if (!sum) {
    sum = own.front();
    for (Value term : ArrayRef(own).drop_front())
      sum = w.add(sum, term);
  }
  return annotate(sum, value);
}

/// Gives a cotangent the sharding that its value carries.
Value Differentiator::annotate(Value cotangent, Value value) {
  dist::ShardingAttr own = getShardingAttr(value);
  Operation *op = cotangent.getDefiningOp();
  if (!own || op->getNumOperands() == 0)
    return cotangent;
  auto sharding = dist::ShardingAttr::get(func.getContext(), own.getMesh(), own.getDims(), {},
                                          dist::ReductionKind::Sum);
  dist::ShardingAttr known = getShardingAttr(cotangent);
  if (known == sharding)
    return cotangent;
  if (!known) {
    setShardingAttr(cotangent, sharding);
    return cotangent;
  }
  // The cotangent of another value, too, which is sharded in another way.
  return dist::ConstrainOp::create(builder, cotangent.getLoc(), cotangent, sharding);
}

//===----------------------------------------------------------------------===//
// The backward pass
//===----------------------------------------------------------------------===//

LogicalResult Differentiator::visit(Operation *op) {
  stage = op->getAttr(NnDialect::kStageAttr);
  SmallVector<Value, 2> cotangents;
  for (Value result : op->getResults())
    cotangents.push_back(getCotangent(result, op->getLoc()));
  if (llvm::none_of(cotangents, [](Value v) { return bool(v); }))
    return success();
  SmallVector<Type, 4> wanted;
  for (Value operand : op->getOperands())
    wanted.push_back(active.contains(operand) ? getCotangentType(operand) : Type());
  auto model = dyn_cast<DifferentiableOpInterface>(op);
  if (!model)
    return op->emitOpError("cannot be differentiated: expected an op of the nn dialect");
  Operation *prepared = model.prepare();
  if (prepared != op) {
    if (loss.getDefiningOp() == op)
      loss = prepared->getResult(cast<OpResult>(loss).getResultNumber());
    cotangents.resize(prepared->getNumResults());
    op->erase();
    model = cast<DifferentiableOpInterface>(prepared);
  }
  Vjp vjp(prepared, builder, cotangents, wanted);
  if (failed(model.buildVjp(vjp)))
    return failure();
  for (auto [operand, term] : llvm::zip_equal(prepared->getOperands(), vjp.getContributions()))
    if (term)
      terms[operand].push_back(term);
  return success();
}

LogicalResult Differentiator::sweep() {
  if (!active.contains(loss))
    return emitError(loss.getLoc())
           << "the loss depends on no parameter by which it is to be differentiated: expected "
              "it to depend on at least one of "
           << arguments.size() << ", such as '" << gradients.front().getParameter() << "'";
  Writer w(builder, loss.getLoc());
  auto type = RankedTensorType::get(shapeOf(loss), getCotangentType(loss));
  terms[loss].push_back(w.fill(1, type));
  SmallVector<Operation *> ops;
  if (Operation *last = loss.getDefiningOp())
    for (Operation &op : llvm::make_range(func.front().begin(), std::next(last->getIterator())))
      ops.push_back(&op);
  for (Operation *op : llvm::reverse(ops))
    if (failed(visit(op)))
      return failure();
  return success();
}

void Differentiator::replace() {
  for (GradientOp gradient : gradients) {
    Writer w(builder, gradient.getLoc());
    RankedTensorType type = gradient.getType();
    SmallVector<Value, 2> parts;
    for (BlockArgument argument : arguments.find(gradient.getParameterAttr())->second) {
      Value part = getCotangent(argument, gradient.getLoc());
      if (!part)
        continue;
      DenseI64ArrayAttr offsets = getWeight(argument)->offsets;
      if (offsets && typeOf(part) != type) {
        SmallVector<int64_t> high, none(type.getRank(), 0);
        for (auto [whole, own, low] :
             llvm::zip_equal(type.getShape(), shapeOf(part), offsets.asArrayRef()))
          high.push_back(whole - own - low);
        part = PadOp::create(builder, gradient.getLoc(), type, part, offsets.asArrayRef(), high,
                             none);
      }
      parts.push_back(part);
    }
    Value whole = parts.size() > 1 ? joinSlices(w, parts) : Value();
    if (!whole) {
      whole = parts.empty() ? w.fill(0, type) : parts.front();
      for (size_t i = 1; i < parts.size(); ++i)
        whole = w.add(whole, parts[i]);
    }
    gradient.replaceAllUsesWith(whole);
  }
}

/// Erases ops of the backward pass that no gradient needs.
void Differentiator::eraseUnused() {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
    if (written.contains(&op) && isOpTriviallyDead(&op)) {
      written.erase(&op);
      op.erase();
    }
}

void Differentiator::log() {
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  for (auto &[name, own] : arguments)
    if (llvm::none_of(own, [&](BlockArgument argument) { return terms.contains(argument); }))
      log.add("differentiate", Outcome::Note, own.front().getLoc(),
              llvm::formatv("the loss does not depend on parameter '{0}': its gradient is zero",
                            name.getValue())
                  .str());
}

LogicalResult Differentiator::run() {
  findActive();
  builder.setInsertionPoint(gradients.front());
  if (failed(sweep()))
    return failure();
  log();
  replace();
  eraseUnused();
  int64_t ops = llvm::count_if(written, [](Operation *op) { return op->getNumOperands() > 0; });
  DistDialect::getDecisionLog(func.getContext())
      .add("differentiate", Outcome::Applied, loss.getLoc(),
           llvm::formatv("gradients of {0} parameter{1} in {2} ops", arguments.size(),
                         arguments.size() == 1 ? "" : "s", ops)
               .str(),
           {{"parameters", double(arguments.size())}, {"ops", double(ops)}});
  for (GradientOp gradient : gradients)
    gradient.erase();
  return success();
}
