//===- Optimizer.cpp - the update rules of optimizers ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/Optimizer.h"

#include "meshwright/lib/Support/TensorValues.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using nn::Writer;

//===----------------------------------------------------------------------===//
// Rules
//===----------------------------------------------------------------------===//

/// The type in which factors of all parameters are computed: powers of a number just below 1 lose
/// too much in f32.
static Type getExact(Writer &w) { return w.getBuilder().getF64Type(); }

namespace {

class Sgd : public Optimizer {
public:
  Sgd(double momentum, double weightDecay) : momentum(momentum), weightDecay(weightDecay) {}

  void begin(Writer &w, States &states, Value rate) override { this->rate = rate; }

  Value update(Writer &w, States &states, StringRef name, Value value, Value gradient) override {
    if (weightDecay)
      gradient = w.add(gradient, w.scale(value, weightDecay));
    if (momentum) {
      std::string own = ("optimizer.momentum_buffer." + name).str();
      Value buffer = states.readZeros(w, own, typeOf(gradient), "optimizer");
      gradient = w.add(w.scale(buffer, momentum), gradient);
      states.update(w, own, buffer, gradient);
    }
    return w.sub(value, w.mul(gradient, w.cast(rate, elementOf(gradient))));
  }

private:
  double momentum, weightDecay;
  Value rate;
};

class Adam : public Optimizer {
public:
  Adam(const BuildStepsPassOptions &options, bool isDecoupled)
      : beta1(options.beta1), beta2(options.beta2), eps(options.eps),
        weightDecay(options.weightDecay), isDecoupled(isDecoupled) {}

  void begin(Writer &w, States &states, Value rate) override;
  Value update(Writer &w, States &states, StringRef name, Value value, Value gradient) override;

private:
  /// The new value of an average: beta of the old one, and the rest of the term.
  Value average(Writer &w, States &states, const Twine &name, Value term, double beta);

  double beta1, beta2, eps, weightDecay;
  bool isDecoupled;
  /// Scalars of type f64: what a step keeps of a parameter, its length, and the root of the sum
  /// of the weights in the average of squares.
  Value kept, length, root;
};

} // namespace

void Adam::begin(Writer &w, States &states, Value rate) {
  Type exact = getExact(w);
  auto counter = RankedTensorType::get({}, w.getBuilder().getI64Type());
  Value taken = states.readZeros(w, "optimizer.step", counter, "optimizer");
  Value count = w.addNumber(taken, 1);
  states.update(w, "optimizer.step", taken, count);
  Value steps = w.cast(count, exact);
  rate = w.cast(rate, exact);
  auto getWeight = [&](double beta) {
    // The sum of the weights of all terms so far: 1 - beta ^ steps.
    Value power = beta > 0 ? w.unary<nn::ExpOp>(w.scale(steps, std::log(beta)))
                           : w.number(0, exact);
    return w.sub(w.number(1, exact), power);
  };
  length = w.div(rate, getWeight(beta1));
  root = w.unary<nn::SqrtOp>(getWeight(beta2));
  if (isDecoupled && weightDecay)
    kept = w.sub(w.number(1, exact), w.scale(rate, weightDecay));
}

Value Adam::average(Writer &w, States &states, const Twine &name, Value term, double beta) {
  std::string own = name.str();
  Value old = states.readZeros(w, own, typeOf(term), "optimizer");
  Value next = w.add(w.scale(old, beta), w.scale(term, 1 - beta));
  states.update(w, own, old, next);
  return next;
}

Value Adam::update(Writer &w, States &states, StringRef name, Value value, Value gradient) {
  Type element = elementOf(value);
  if (kept)
    value = w.mul(value, w.cast(kept, element));
  else if (weightDecay)
    gradient = w.add(gradient, w.scale(value, weightDecay));
  Value mean = average(w, states, "optimizer.exp_avg." + name, gradient, beta1);
  Value square =
      average(w, states, "optimizer.exp_avg_sq." + name, w.mul(gradient, gradient), beta2);
  Value size = w.addNumber(w.div(w.unary<nn::SqrtOp>(square), w.cast(root, element)), eps);
  return w.sub(value, w.mul(w.div(mean, size), w.cast(length, element)));
}

//===----------------------------------------------------------------------===//
// Creation
//===----------------------------------------------------------------------===//

std::unique_ptr<Optimizer>
Optimizer::create(const BuildStepsPassOptions &options,
                  llvm::function_ref<InFlightDiagnostic()> emitError) {
  struct Range {
    StringRef name;
    double value;
    bool isBelowOne = false;
  };
  const Range ranges[] = {{"lr", options.lr},
                          {"momentum", options.momentum},
                          {"weight_decay", options.weightDecay},
                          {"eps", options.eps},
                          {"beta1", options.beta1, true},
                          {"beta2", options.beta2, true},
                          {"clip_norm", options.clipNorm},
                          {"loss_scale", options.lossScale}};
  for (const Range &range : ranges)
    // Steps have the learning rate in f32.
    if (!(range.value >= 0 &&
          (range.isBelowOne ? range.value < 1 : std::isfinite(float(range.value))))) {
      emitError() << range.name << ": expected a number from 0 on"
                  << (range.isBelowOne ? ", below 1" : "") << ", got "
                  << std::to_string(range.value);
      return nullptr;
    }
  if (options.optimizer == "sgd")
    return std::make_unique<Sgd>(options.momentum, options.weightDecay);
  if (options.optimizer == "adam" || options.optimizer == "adamw")
    return std::make_unique<Adam>(options, options.optimizer == "adamw");
  emitError() << "there is no optimizer '" << options.optimizer
              << "': expected sgd, adam or adamw";
  return nullptr;
}
