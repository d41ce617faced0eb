//===- BuildSteps.cpp - training steps of a program with gradients --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/train/LossScale.h"
#include "meshwright/passes/train/Microbatches.h"
#include "meshwright/passes/train/Optimizer.h"
#include "meshwright/passes/train/RandomSteps.h"

namespace meshwright {
#define GEN_PASS_DEF_BUILDSTEPSPASS
#include "meshwright/passes/train/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

namespace {

/// Turns an entry of a module into training steps. `evaluate` is the entry of that name, or null.
class StepBuilder {
public:
  StepBuilder(func::FuncOp func, func::FuncOp evaluate, const BuildStepsPassOptions &options)
      : func(func), evaluate(evaluate), module(func->getParentOfType<ModuleOp>()),
        options(options), states(module), lossScale(options, states) {}

  LogicalResult run();

private:
  void buildEvaluation();
  void addStates();
  LogicalResult addRate();
  void clip(Writer &w);
  void update(Optimizer &optimizer);

  func::FuncOp func, evaluate;
  ModuleOp module;
  const BuildStepsPassOptions &options;
  States states;
  LossScale lossScale;
  SmallVector<Trained> trained;
  Value rate;
};

} // namespace

/// Writes the entry that computes the outputs alone, or takes the one that is there. It drops
/// nothing. The function has neither gradients nor an update yet.
void StepBuilder::buildEvaluation() {
  if (!evaluate) {
    evaluate = func.clone();
    evaluate.setName("evaluate");
    OpBuilder builder(func.getContext());
    builder.setInsertionPointAfter(func);
    builder.insert(evaluate);
  }
  for (auto gradient : llvm::make_early_inc_range(evaluate.getOps<nn::GradientOp>()))
    gradient.erase();
  for (auto write : llvm::make_early_inc_range(evaluate.getOps<nn::WriteOp>()))
    write.erase();
  dropNothing(evaluate);
}

void StepBuilder::addStates() {
  for (const Trained &parameter : trained)
    states.add(parameter.name, parameter.argument.getType(), {}, "", "parameter",
               parameter.argument.getLoc());
  for (const Trained &parameter : trained) {
    auto type = cast<RankedTensorType>(parameter.argument.getType());
    Type wide = elementOf(parameter.gradient);
    if (wide != type.getElementType())
      states.add(("master." + parameter.name).str(), type.clone(wide), {}, parameter.name, "master",
                 parameter.argument.getLoc());
  }
}

/// Adds the input `lr`.
LogicalResult StepBuilder::addRate() {
  OpBuilder builder(func.getContext());
  auto name = builder.getStringAttr("lr");
  for (unsigned i = 0; i < func.getNumArguments(); ++i)
    if (func.getArgAttr(i, NnDialect::kInputAttr) == name)
      return emitError(func.getArgument(i).getLoc())
             << "the model has an input 'lr': expected no input of the name of the learning rate";
  NamedAttrList attrs;
  attrs.set(NnDialect::kInputAttr, name);
  attrs.set(NnDialect::kDefaultAttr, builder.getF32FloatAttr(options.lr));
  auto type = RankedTensorType::get({}, builder.getF32Type());
  unsigned index = func.getNumArguments();
  if (failed(func.insertArgument(index, type, attrs.getDictionary(func.getContext()),
                                 func.getLoc())))
    return failure();
  rate = func.getArgument(index);
  return success();
}

/// Scales all gradients by one factor, so that their common norm is at most `clipNorm`.
void StepBuilder::clip(Writer &w) {
  Value sum;
  for (const Trained &parameter : trained) {
    Value square = w.mul(parameter.gradient, parameter.gradient);
    SmallVector<int64_t> all;
    for (int64_t d = 0; d < typeOf(square).getRank(); ++d)
      all.push_back(d);
    Value own = w.cast(all.empty() ? square : w.reduce(nn::ReduceKind::Sum, square, all, false),
                       w.getBuilder().getF32Type());
    sum = sum ? w.add(sum, own) : own;
  }
  Value norm = w.addNumber(w.unary<nn::SqrtOp>(sum), 1e-6);
  Type element = elementOf(norm);
  Value factor = w.binary<nn::MinimumOp>(w.div(w.number(options.clipNorm, element), norm),
                                         w.number(1, element));
  for (Trained &parameter : trained)
    parameter.gradient =
        w.mul(parameter.gradient, w.cast(factor, elementOf(parameter.gradient)));
}

void StepBuilder::update(Optimizer &optimizer) {
  OpBuilder builder(func.front().getTerminator());
  Writer shared(builder, func.getLoc());
  if (options.lossScale > 0)
    lossScale.unscale(shared, trained);
  if (options.clipNorm > 0)
    clip(shared);
  optimizer.begin(shared, states, rate);
  for (const Trained &parameter : trained) {
    Writer w(builder, parameter.argument.getLoc());
    std::string master = ("master." + parameter.name).str();
    bool hasMaster = states.has(master);
    Value value = hasMaster ? states.read(w, master, parameter.gradient.getType())
                            : Value(parameter.argument);
    Value next = optimizer.update(w, states, parameter.name, value, parameter.gradient);
    if (hasMaster)
      states.update(w, master, value, next);
    states.update(w, parameter.name, parameter.argument,
                  w.cast(next, elementOf(parameter.argument)));
  }
}

LogicalResult StepBuilder::run() {
  auto optimizer = Optimizer::create(options, [&] { return emitError(func.getLoc()); });
  if (!optimizer)
    return failure();
  FailureOr<TrainedParameters> found = takeGradients(func);
  if (failed(found))
    return failure();
  trained = std::move(found->parameters);
  buildEvaluation();
  if (options.lossScale > 0)
    lossScale.scale(func, found->loss);
  setSeed(module, options.seed);
  func.setName("step");
  addStates();
  if (options.microbatches > 1) {
    Microbatches microbatches(options.microbatches, states);
    if (failed(microbatches.splitEvaluation(evaluate)) ||
        failed(microbatches.splitStep(func, trained)))
      return failure();
  }
  if (failed(addRate()))
    return failure();
  update(*optimizer);
  countSteps(func, states);
  return success();
}

namespace {
struct BuildStepsPass : meshwright::impl::BuildStepsPassBase<BuildStepsPass> {
  using BuildStepsPassBase::BuildStepsPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<FunctionOpInterface> entries = nn::getEntries(module);
    auto isGlobal = [](FunctionOpInterface entry) {
      return isa<func::FuncOp>(*entry) && !entry->hasAttr(dist::DistDialect::kSpmdAttr) &&
             entry.getFunctionBody().hasOneBlock();
    };
    bool hasEvaluation = entries.size() == 2 && entries[1].getName() == "evaluate";
    if ((entries.size() != 1 && !hasEvaluation) || !llvm::all_of(entries, isGlobal)) {
      module.emitError() << "expected one global function of one block to train, and at most "
                            "'evaluate' besides, got "
                         << entries.size() << " entries";
      return signalPassFailure();
    }
    auto func = cast<func::FuncOp>(*entries.front());
    auto evaluate = hasEvaluation ? cast<func::FuncOp>(*entries[1]) : func::FuncOp();
    BuildStepsPassOptions own{optimizer, lr, momentum, beta1, beta2, eps, weightDecay, clipNorm,
                              microbatches, seed, lossScale, growthInterval};
    if (failed(StepBuilder(func, evaluate, own).run()))
      signalPassFailure();
  }
};
} // namespace
