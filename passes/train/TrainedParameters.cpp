//===- TrainedParameters.cpp - parameters that a step updates -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/TrainedParameters.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace meshwright;

/// The values from which a float of the loss is computed, up to where gradients end.
static ProgramSet<Value> findReached(Value loss) {
  ProgramSet<Value> reached{loss};
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
static LogicalResult findTrained(func::FuncOp func, nn::GradientOp gradient,
                                 SmallVectorImpl<Trained> &trained) {
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

FailureOr<TrainedParameters> meshwright::takeGradients(func::FuncOp func) {
  SmallVector<nn::GradientOp> gradients;
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
  TrainedParameters result{gradients.front().getLoss(), {}};
  SmallVector<Trained> &trained = result.parameters;
  ProgramSet<Value> reached = findReached(result.loss);
  for (nn::GradientOp gradient : gradients)
    if (failed(findTrained(func, gradient, trained)))
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
  return result;
}
