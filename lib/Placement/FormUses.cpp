//===- FormUses.cpp - which form of a weight an op needs ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/FormUses.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Dist/OpTraits.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

bool meshwright::isFormLink(Operation *op) {
  return op->hasTrait<KeepsWeight>() && op->getNumOperands() == 1 && op->getNumResults() == 1 &&
         !isa<CollectiveOpInterface>(op);
}

static int64_t getContracted(OpOperand &use) {
  auto sharding = dyn_cast<ShardingRuleOpInterface>(use.getOwner());
  if (!sharding)
    return -1;
  FactorRule rule = sharding.getFactorRule();
  const FactorRule::ValueFactors &dims = rule.operands[use.getOperandNumber()];
  for (auto [d, factors] : llvm::enumerate(dims))
    if (llvm::any_of(factors, [&](int factor) { return rule.isReducedIn(factor, 0); }))
      return d;
  return -1;
}

/// The dimension of a link's operand that a dimension of its result is, or -1 if it is none.
static int64_t moveThrough(Operation *link, int64_t dim) {
  auto sharding = dyn_cast<ShardingRuleOpInterface>(link);
  if (!sharding || dim < 0)
    return dim;
  FactorRule rule = sharding.getFactorRule();
  for (auto [d, factors] : llvm::enumerate(rule.operands[0]))
    if (factors == rule.results[0][dim])
      return d;
  return -1;
}

int64_t meshwright::getContractedDim(OpOperand &use, ArrayRef<Operation *> links) {
  int64_t dim = getContracted(use);
  for (Operation *link : llvm::reverse(links))
    dim = moveThrough(link, dim);
  return dim;
}

namespace {

/// Visits the ops that read a value, through links and the regions of launches.
class FormReaders {
public:
  using Visit = llvm::function_ref<LogicalResult(OpOperand &use, ArrayRef<Operation *> links)>;
  explicit FormReaders(Visit visit) : visit(visit) {}

  LogicalResult visitUses(Value value) {
    return success(llvm::all_of(value.getUses(),
                                [&](OpOperand &use) { return succeeded(visitUse(use)); }));
  }

private:
  LogicalResult visitUse(OpOperand &use) {
    Operation *op = use.getOwner();
    unsigned i = use.getOperandNumber();
    if (auto kernel = dyn_cast<rt::KernelOp>(op))
      return visitUses(kernel->getRegion(0).getArgument(i));
    if (auto kernel = dyn_cast<rt::KernelOp>(op->getParentOp()); kernel && isa<rt::YieldOp>(op))
      return visitUses(kernel->getResult(i));
    if (!isFormLink(op))
      return visit(use, links);
    links.push_back(op);
    LogicalResult status = visitUses(op->getResult(0));
    links.pop_back();
    return status;
  }

  Visit visit;
  SmallVector<Operation *> links;
};

} // namespace

/// Checks the readers of a weight that an op decodes.
static LogicalResult verifyReaders(Operation *decode, FormAttr form) {
  auto verifyRead = [&](OpOperand &use, ArrayRef<Operation *> links) -> LogicalResult {
    int64_t contracted = getContractedDim(use, links);
    if (contracted < 0 || contracted == form.getAlong())
      return success();
    InFlightDiagnostic error = use.getOwner()->emitOpError()
                               << "reads a weight with blocks along dimension " << form.getAlong()
                               << ": expected blocks along dimension " << contracted
                               << ", which it contracts";
    error.attachNote(decode->getLoc()) << "the weight";
    return error;
  };
  return FormReaders(verifyRead).visitUses(decode->getResult(0));
}

/// The weight of which a value is the largest magnitude, on this rank or on all.
static Value findMeasured(Value value) {
  for (;;) {
    auto result = dyn_cast<OpResult>(rt::getSource(value));
    if (!result)
      return {};
    Operation *op = result.getOwner();
    if (auto largest = dyn_cast<LargestOp>(op))
      return largest.getInput();
    if (auto maximum = dyn_cast<AllReduceOp>(op))
      value = maximum->getOperand(result.getResultNumber());
    else if (isFormLink(op))
      value = op->getOperand(0);
    else
      return {};
  }
}

static LogicalResult verifyLargest(EncodeOp encode, const WeightFinder &weights) {
  if (!encode.getLargest())
    return success();
  Value measured = findMeasured(encode.getLargest());
  if (!measured)
    return success();
  std::optional<Weight> own = weights.find(encode.getInput()), other = weights.find(measured);
  if (!own || !other || own->stored == other->stored)
    return success();
  return encode.emitOpError() << "encodes '" << own->name.getValue()
                              << "' by the largest magnitude of '" << other->name.getValue()
                              << "': expected that of the weight itself";
}

LogicalResult meshwright::verifyForms(func::FuncOp func) {
  SmallVector<EncodeOp> encodings;
  auto verifyOp = [&](Operation *op) -> LogicalResult {
    if (auto encode = dyn_cast<EncodeOp>(op))
      encodings.push_back(encode);
    if (op->getNumOperands() != 1 || op->getNumResults() != 1 || isa<CollectiveOpInterface>(op))
      return success();
    FormAttr form = getForm(op->getOperand(0).getType());
    if (!form || form.getAlong() < 0 || getForm(op->getResult(0).getType()) ||
        op->getNumRegions() > 0)
      return success();
    return verifyReaders(op, form);
  };
  if (func.walk([&](Operation *op) {
            return failed(verifyOp(op)) ? WalkResult::interrupt() : WalkResult::advance();
          })
          .wasInterrupted())
    return failure();
  if (encodings.empty())
    return success();
  WeightFinder weights(func);
  return success(llvm::all_of(encodings, [&](EncodeOp encode) {
    return succeeded(verifyLargest(encode, weights));
  }));
}
