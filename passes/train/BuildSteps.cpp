//===- BuildSteps.cpp - training steps of a program with gradients --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/train/Optimizer.h"

#include "meshwright/dialects/Nn/Batch.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_BUILDSTEPSPASS
#include "meshwright/passes/train/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

namespace {

/// A parameter that a step updates.
struct Trained {
  StringRef name;
  BlockArgument argument;
  Value gradient;
};

/// Turns an entry of a module into training steps. `evaluate` is the entry of that name, or null.
class StepBuilder {
public:
  StepBuilder(func::FuncOp func, func::FuncOp evaluate, const BuildStepsPassOptions &options)
      : func(func), evaluate(evaluate), module(func->getParentOfType<ModuleOp>()),
        options(options), states(module) {}

  LogicalResult run();

private:
  LogicalResult takeGradients();
  LogicalResult findTrained(nn::GradientOp gradient);
  llvm::DenseSet<Value> findReached(Value loss);
  LogicalResult addRate();
  void addStates();
  void scaleLoss();
  void unscale(Writer &w);
  void clip(Writer &w);
  void update(Optimizer &optimizer);
  void buildEvaluation();
  LogicalResult runMicrobatches();
  LogicalResult sumOutputs(func::FuncOp part, func::FuncOp entry);
  func::FuncOp splitOff(func::FuncOp entry, IRMapping &map);
  void accumulate(Writer &w, const std::string &name, Value value, StringRef role);
  void setSeed();
  void countSteps();
  Value readMicrobatch(Writer &w);
  void drawPerMicrobatch(func::FuncOp part);
  void numberMicrobatches(func::FuncOp part, llvm::function_ref<Value(Writer &, Value)> number);
  void passStates(func::FuncOp part);
  void countMicrobatches(func::FuncOp part);
  Value takeMean(Writer &w, const std::string &name, Value value);

  func::FuncOp func, evaluate;
  ModuleOp module;
  const BuildStepsPassOptions &options;
  States states;
  SmallVector<nn::GradientOp> gradients;
  SmallVector<Trained> trained;
  Value rate;
};

} // namespace

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

/// The values from which a float of the loss is computed, up to where gradients end.
llvm::DenseSet<Value> StepBuilder::findReached(Value loss) {
  llvm::DenseSet<Value> reached{loss};
  SmallVector<Value> worklist{loss};
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val().getDefiningOp();
    auto model = dyn_cast_or_null<nn::DifferentiableOpInterface>(op);
    if (!op || (model && model.isConstant()))
      continue;
    for (Value operand : op->getOperands())
      if (isa<FloatType>(getElementTypeOrSelf(operand.getType())) && reached.insert(operand).second)
        worklist.push_back(operand);
  }
  return reached;
}

/// Finds the argument of a gradient's parameter.
LogicalResult StepBuilder::findTrained(nn::GradientOp gradient) {
  for (BlockArgument argument : func.getArguments()) {
    std::optional<Weight> weight = getWeight(argument);
    if (!weight || weight->name != gradient.getParameterAttr())
      continue;
    if (weight->offsets)
      return emitError(argument.getLoc())
             << "parameter '" << gradient.getParameter()
             << "' is a part of a stored tensor, which cannot be trained: expected the whole one";
    trained.push_back({gradient.getParameter(), argument, gradient.getResult()});
    return success();
  }
  return success();
}

/// Takes the gradients off the results of the function.
LogicalResult StepBuilder::takeGradients() {
  Operation *terminator = func.front().getTerminator();
  for (int i = func.getNumResults() - 1; i >= 0; --i)
    if (auto gradient = terminator->getOperand(i).getDefiningOp<nn::GradientOp>()) {
      gradients.push_back(gradient);
      terminator->eraseOperand(i);
      if (failed(func.eraseResult(i)))
        return failure();
    }
  std::reverse(gradients.begin(), gradients.end());
  if (gradients.empty())
    return emitError(func.getLoc()) << "'" << func.getName()
                                    << "' has no gradients to train by: expected results of "
                                       "nn.gradient (see request-gradients)";
  llvm::DenseSet<Value> reached = findReached(gradients.front().getLoss());
  for (nn::GradientOp gradient : gradients)
    if (failed(findTrained(gradient)))
      return failure();
  llvm::erase_if(trained, [&](const Trained &parameter) {
    return !reached.contains(parameter.argument);
  });
  for (nn::GradientOp gradient : gradients)
    if (gradient->use_empty() && llvm::none_of(trained, [&](const Trained &parameter) {
          return parameter.gradient == gradient.getResult();
        }))
      gradient.erase();
  if (trained.empty())
    return emitError(func.getLoc())
           << "the loss depends on no parameter that is trained: expected at least one";
  return success();
}

//===----------------------------------------------------------------------===//
// States
//===----------------------------------------------------------------------===//

void StepBuilder::addStates() {
  for (const Trained &parameter : trained)
    states.add(parameter.name, parameter.argument.getType(), {}, "", "parameter",
               parameter.argument.getLoc());
  for (const Trained &parameter : trained) {
    auto type = cast<RankedTensorType>(parameter.argument.getType());
    Type wide = Writer::elementOf(parameter.gradient);
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

//===----------------------------------------------------------------------===//
// Loss scaling
//===----------------------------------------------------------------------===//

constexpr StringLiteral kScaleState = "loss_scale", kGrowthState = "loss_scale.growth_tracker",
                        kSkippedState = "skipped_steps";
/// Those of PyTorch's GradScaler.
constexpr double kGrowth = 2, kBackoff = 0.5;

/// Takes the gradients of the loss times the scale. The product is in f32, since the scale may be
/// more than the loss's type has.
void StepBuilder::scaleLoss() {
  if (options.lossScale == 0)
    return;
  Value loss = gradients.front().getLoss();
  OpBuilder builder(module.getContext());
  builder.setInsertionPointAfterValue(loss);
  Writer w(builder, loss.getLoc());
  auto type = RankedTensorType::get({}, w.getWide(Writer::elementOf(loss)));
  auto scalar = RankedTensorType::get({}, builder.getF32Type());
  states.add(kScaleState, scalar, builder.getF32FloatAttr(options.lossScale), "", "optimizer",
             loss.getLoc());
  Value scale = w.cast(states.read(w, kScaleState, scalar), type.getElementType());
  Value scaled = w.mul(w.cast(loss, type.getElementType()), scale);
  for (auto gradient : func.getOps<nn::GradientOp>())
    gradient.getLossMutable().assign(scaled);
}

/// Divides the gradients by the scale. The update is skipped if one of them is not finite.
void StepBuilder::unscale(Writer &w) {
  Type number = w.getBuilder().getF32Type();
  auto scalar = RankedTensorType::get({}, number);
  Value scale = states.read(w, kScaleState, scalar);
  Value inverse = w.div(w.number(1, number), scale);
  Value infinite;
  for (Trained &parameter : trained) {
    Value &gradient = parameter.gradient;
    Value size = w.unary<nn::AbsOp>(gradient);
    Value isFinite = w.compare(nn::CompareKind::Lt, size, std::numeric_limits<double>::infinity());
    Value misses = w.select(isFinite, w.number(0, number), w.number(1, number));
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, Writer::typeOf(misses).getRank()));
    if (!dims.empty())
      misses = w.reduce(nn::ReduceKind::Sum, misses, dims, false);
    infinite = infinite ? w.add(infinite, misses) : misses;
    gradient = w.mul(gradient, w.cast(inverse, Writer::elementOf(gradient)));
  }
  Value isTaken = w.compare(nn::CompareKind::Eq, infinite, 0);
  states.setCondition(isTaken);
  auto counter = RankedTensorType::get({}, w.getBuilder().getI64Type());
  Value skipped = states.readZeros(w, kSkippedState, counter, "optimizer");
  states.write(w, kSkippedState, w.select(isTaken, skipped, w.addNumber(skipped, 1)));
  if (options.growthInterval == 0)
    return;
  Value good = w.addNumber(states.readZeros(w, kGrowthState, counter, "optimizer"), 1);
  Value grows = w.compare(nn::CompareKind::Eq, good, double(options.growthInterval));
  Value grown = w.scale(scale, kGrowth);
  // A scale that is not finite is not taken.
  Value isRoom = w.compare(nn::CompareKind::Lt, grown, std::numeric_limits<double>::infinity());
  Value next = w.select(grows, w.select(isRoom, grown, scale), scale);
  states.write(w, kScaleState, w.select(isTaken, next, w.scale(scale, kBackoff)));
  Value none = w.number(0, counter.getElementType());
  states.write(w, kGrowthState, w.select(isTaken, w.select(grows, none, good), none));
}

//===----------------------------------------------------------------------===//
// The update
//===----------------------------------------------------------------------===//

/// Scales all gradients by one factor, so that their common norm is at most `clipNorm`.
void StepBuilder::clip(Writer &w) {
  Value sum;
  for (const Trained &parameter : trained) {
    Value square = w.mul(parameter.gradient, parameter.gradient);
    SmallVector<int64_t> all;
    for (int64_t d = 0; d < Writer::typeOf(square).getRank(); ++d)
      all.push_back(d);
    Value own = w.cast(all.empty() ? square : w.reduce(nn::ReduceKind::Sum, square, all, false),
                       w.getBuilder().getF32Type());
    sum = sum ? w.add(sum, own) : own;
  }
  Value norm = w.addNumber(w.unary<nn::SqrtOp>(sum), 1e-6);
  Type element = Writer::elementOf(norm);
  Value factor = w.binary<nn::MinimumOp>(w.div(w.number(options.clipNorm, element), norm),
                                         w.number(1, element));
  for (Trained &parameter : trained)
    parameter.gradient =
        w.mul(parameter.gradient, w.cast(factor, Writer::elementOf(parameter.gradient)));
}

void StepBuilder::update(Optimizer &optimizer) {
  OpBuilder builder(func.front().getTerminator());
  Writer shared(builder, func.getLoc());
  if (options.lossScale > 0)
    unscale(shared);
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
                  w.cast(next, Writer::elementOf(parameter.argument)));
  }
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

/// The states from which a program draws its random numbers.
constexpr StringLiteral kSeedState = "random.seed", kStepState = "random.step";

static void dropNothing(func::FuncOp func) {
  SmallVector<nn::DropoutOpInterface> ops;
  func.walk([&](nn::DropoutOpInterface op) { ops.push_back(op); });
  for (nn::DropoutOpInterface op : ops)
    op.removeDropout();
  for (auto read : llvm::make_early_inc_range(func.getOps<nn::ReadOp>()))
    if (read->use_empty())
      read.erase();
}

void StepBuilder::setSeed() {
  if (auto state = module.lookupSymbol<nn::StateOp>(kSeedState))
    state.setFillAttr(IntegerAttr::get(IntegerType::get(module.getContext(), 64), options.seed));
}

/// Makes the number of the next step one higher.
void StepBuilder::countSteps() {
  auto state = module.lookupSymbol<nn::StateOp>(kStepState);
  if (!state)
    return;
  OpBuilder builder(func.front().getTerminator());
  Writer w(builder, func.getLoc());
  Value step = states.read(w, kStepState, state.getType());
  states.write(w, kStepState, w.addNumber(step, 1));
}

/// Gives a microbatch a number of its own in place of that of the step.
void StepBuilder::numberMicrobatches(func::FuncOp part,
                                     llvm::function_ref<Value(Writer &, Value)> number) {
  SmallVector<nn::ReadOp> reads;
  for (auto read : part.getOps<nn::ReadOp>())
    if (read.getState() == kStepState)
      reads.push_back(read);
  if (reads.empty())
    return;
  OpBuilder builder = OpBuilder::atBlockBegin(&part.front());
  Writer w(builder, part.getLoc());
  Value step = states.read(w, kStepState, reads.front().getType());
  Value own = number(w, w.scale(step, double(options.microbatches)));
  for (nn::ReadOp read : reads) {
    read.getResult().replaceAllUsesWith(own);
    read.erase();
  }
}

/// Lets each microbatch draw other random numbers. The step knows the number of the last one.
void StepBuilder::drawPerMicrobatch(func::FuncOp part) {
  numberMicrobatches(part, [&](Writer &w, Value first) { return w.add(first, readMicrobatch(w)); });
  numberMicrobatches(func, [&](Writer &w, Value first) {
    return w.addNumber(first, double(options.microbatches - 1));
  });
}

//===----------------------------------------------------------------------===//
// Evaluation
//===----------------------------------------------------------------------===//

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

//===----------------------------------------------------------------------===//
// Microbatches
//===----------------------------------------------------------------------===//

/// The number of the microbatch, from 0 on: a transient state.
constexpr StringLiteral kMicrobatchState = "microbatch";

Value StepBuilder::readMicrobatch(Writer &w) {
  auto counter = RankedTensorType::get({}, w.getBuilder().getI64Type());
  return states.readZeros(w, kMicrobatchState, counter, "", /*isTransient=*/true);
}

/// Counts the microbatches before the last one if something depends on their number. The next step
/// begins at 0.
void StepBuilder::countMicrobatches(func::FuncOp part) {
  if (!states.has(kMicrobatchState))
    return;
  OpBuilder inside(part.front().getTerminator()), outside(func.front().getTerminator());
  Writer w(inside, part.getLoc()), end(outside, func.getLoc());
  states.write(w, kMicrobatchState, w.addNumber(readMicrobatch(w), 1));
  states.write(end, kMicrobatchState, end.number(0, end.getBuilder().getI64Type()));
}

/// Passes the states that the program writes from one microbatch to the next. The first microbatch
/// begins with the state. The others begin with a transient copy, which all but the last write. The
/// last one is a part of the step, which writes the state. So a step that fails leaves it as it was.
void StepBuilder::passStates(func::FuncOp part) {
  llvm::MapVector<StringAttr, nn::WriteOp> writes;
  for (auto write : part.getOps<nn::WriteOp>())
    writes.insert({write.getStateAttr().getAttr(), write});
  for (auto [state, write] : writes) {
    std::string copy = ("microbatch." + state.getValue()).str();
    SmallVector<nn::ReadOp> reads;
    for (auto read : part.getOps<nn::ReadOp>())
      if (read.getState() == state.getValue())
        reads.push_back(read);
    OpBuilder builder = OpBuilder::atBlockBegin(&part.front());
    Writer w(builder, write.getLoc());
    RankedTensorType type = Writer::typeOf(write.getValue());
    Value passed = states.readZeros(w, copy, type, "", /*isTransient=*/true);
    Value isFirst = w.compare(nn::CompareKind::Eq, readMicrobatch(w), 0);
    Value value = w.select(isFirst, states.read(w, state, type), passed);
    for (nn::ReadOp read : reads) {
      read.getResult().replaceAllUsesWith(value);
      read.erase();
    }
    write.setState(copy);
    for (auto read : func.getOps<nn::ReadOp>())
      if (read.getState() == state.getValue())
        read.setState(copy);
  }
}

/// Adds a value to a sum over microbatches, which is a transient state.
void StepBuilder::accumulate(Writer &w, const std::string &name, Value value, StringRef role) {
  Value sum = states.readZeros(w, name, Writer::typeOf(value), role, /*isTransient=*/true);
  states.write(w, name, w.add(sum, value));
}

/// The mean of a sum over microbatches and the value of the last one. Makes the sum zero for the
/// next call.
Value StepBuilder::takeMean(Writer &w, const std::string &name, Value value) {
  RankedTensorType type = Writer::typeOf(value);
  Value sum = w.add(states.read(w, name, type), value);
  auto zeros = DenseElementsAttr::get(type, w.getBuilder().getZeroAttr(type.getElementType()));
  states.write(w, name, nn::ConstantOp::create(w.getBuilder(), w.getLoc(), zeros));
  return w.div(sum, w.number(double(options.microbatches), type.getElementType()));
}

/// Says of each input that is not the batch that it is none: each microbatch has all of it.
static void stateWholeInputs(func::FuncOp entry) {
  OpBuilder builder(entry.getContext());
  for (auto [i, isBatch] : llvm::enumerate(nn::findBatchInputs(entry)))
    if (entry.getArgAttr(i, NnDialect::kInputAttr) && !isBatch)
      entry.setArgAttr(i, nn::kBatchAttr, builder.getBoolAttr(false));
}

/// Makes a private copy of an entry, which the entry repeats for all microbatches but the last.
func::FuncOp StepBuilder::splitOff(func::FuncOp entry, IRMapping &map) {
  OpBuilder builder(func.getContext());
  builder.setInsertionPointAfter(entry);
  auto part = cast<func::FuncOp>(builder.clone(*entry, map));
  part.setPrivate();
  part.setName(("repeated_" + entry.getName()).str());
  SmallVector<Attribute> outputs;
  for (unsigned i = 0; i < entry.getNumResults(); ++i)
    outputs.push_back(entry.getResultAttr(i, NnDialect::kOutputAttr));
  NamedAttrList repeat;
  repeat.set("function", builder.getStringAttr(part.getName()));
  repeat.set("times", builder.getI64IntegerAttr(options.microbatches - 1));
  repeat.set("outputs", builder.getArrayAttr(outputs));
  entry->setAttr(NnDialect::kRepeatAttr, repeat.getDictionary(builder.getContext()));
  return part;
}

/// Makes outputs without dimensions means over microbatches, which the entry returns.
LogicalResult StepBuilder::sumOutputs(func::FuncOp part, func::FuncOp entry) {
  Operation *inner = part.front().getTerminator(), *outer = entry.front().getTerminator();
  OpBuilder inside(inner), outside(outer);
  Writer w(inside, part.getLoc()), end(outside, entry.getLoc());
  for (int i = part.getNumResults() - 1; i >= 0; --i) {
    auto output = part.getResultAttrOfType<StringAttr>(i, NnDialect::kOutputAttr);
    Value value = inner->getOperand(i);
    RankedTensorType type = Writer::typeOf(value);
    if (type.getRank() > 0)
      continue;
    if (!isa<FloatType>(type.getElementType()))
      return part.emitError() << "output '" << output.getValue() << "' is " << type
                              << ": expected a float, which has a mean over microbatches, or rows";
    std::string sum = ("sum." + output.getValue()).str();
    accumulate(w, sum, value, "");
    outer->setOperand(i, takeMean(end, sum, outer->getOperand(i)));
    inner->eraseOperand(i);
    if (failed(part.eraseResult(i)))
      return failure();
  }
  return success();
}

/// Makes the gradients of a step means over microbatches. The function is for one of them, the
/// last. The step runs the others before, so that sums over ranks overlap with its backward pass.
LogicalResult StepBuilder::runMicrobatches() {
  IRMapping map;
  func::FuncOp part = splitOff(func, map);
  passStates(part);
  drawPerMicrobatch(part);
  countMicrobatches(part);
  OpBuilder inside(part.front().getTerminator()), outside(func.front().getTerminator());
  for (Trained &parameter : trained) {
    Writer w(inside, parameter.argument.getLoc()), end(outside, parameter.argument.getLoc());
    std::string sum = ("grad." + parameter.name).str();
    accumulate(w, sum, map.lookup(parameter.gradient), "gradient");
    parameter.gradient = takeMean(end, sum, parameter.gradient);
  }
  return sumOutputs(part, func);
}

LogicalResult StepBuilder::run() {
  auto optimizer = Optimizer::create(options, [&] { return emitError(func.getLoc()); });
  if (!optimizer || failed(takeGradients()))
    return failure();
  buildEvaluation();
  scaleLoss();
  setSeed();
  func.setName("step");
  addStates();
  if (options.microbatches > 1) {
    stateWholeInputs(func);
    stateWholeInputs(evaluate);
    IRMapping map;
    if (failed(sumOutputs(splitOff(evaluate, map), evaluate)) || failed(runMicrobatches()))
      return failure();
  }
  if (failed(addRate()))
    return failure();
  update(*optimizer);
  countSteps();
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
      module.emitError() << "has " << entries.size()
                         << " entries: expected one global function of one block to train, and at "
                            "most 'evaluate' besides";
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
