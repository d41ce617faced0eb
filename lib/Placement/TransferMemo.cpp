//===- TransferMemo.cpp - transfers of equal ops, computed once -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/TransferMemo.h"

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "llvm/ADT/bit.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

bool sameFactor(const LayoutFactor &a, const LayoutFactor &b) {
  return a.sameShardingAs(b) && a.uniform == b.uniform && a.runtimeSize == b.runtimeSize &&
         (!a.isPadded() || a.padding == b.padding);
}

bool sameLayout(const Layout &a, const Layout &b) {
  return a.corner == b.corner && a.data == b.data && a.parts == b.parts &&
         llvm::equal(a.dims, b.dims, [](const DimLayout &x, const DimLayout &y) {
           return llvm::equal(x.factors, y.factors, sameFactor);
         });
}

/// Layouts of the layers of a padded program may differ in the causes of conditions alone.
llvm::hash_code hashWithStates(const Layout &layout) {
  llvm::hash_code hash = hash_value(layout);
  auto add = [&](const Padding &content) {
    // Zeros of both signs are equal.
    hash = llvm::hash_combine(hash, llvm::bit_cast<uint64_t>(content.lower + 0.0),
                              llvm::bit_cast<uint64_t>(content.upper + 0.0), content.cause);
  };
  add(layout.data);
  for (const DimLayout &dim : layout.dims)
    for (const LayoutFactor &factor : dim.factors)
      if (factor.isPadded())
        add(factor.padding);
  return hash;
}

} // namespace

LayoutRef TransferMemo::intern(const Layout &layout) {
  SmallVector<LayoutRef, 1> &bucket = interned[static_cast<size_t>(hashWithStates(layout))];
  for (LayoutRef candidate : bucket)
    if (sameLayout(*candidate, layout))
      return candidate;
  storage.push_back(layout);
  bucket.push_back(&storage.back());
  return bucket.back();
}

/// Returns true if a transfer through the op depends on its signature and the layouts of its
/// operands alone. It depends on more where it looks at the ops that define operands:
/// - constants, of which it reads the value,
/// - positions, indices and offsets, which are integers,
/// - one value as both factors of a square.
/// A layout that the op states is no part of its signature.
bool TransferMemo::dependsOnLayoutsOnly(Operation *op) const {
  bool isSquare = op->getNumOperands() == 2 && op->getOperand(0) == op->getOperand(1);
  return op->getNumRegions() == 0 && !isSquare && !op->getDiscardableAttr(operandsAttr) &&
         llvm::all_of(op->getOperands(), [](Value operand) {
           auto type = dyn_cast<RankedTensorType>(operand.getType());
           return type && isa<FloatType>(type.getElementType()) &&
                  !rt::getSource(operand).getDefiningOp<nn::ConstantOp>();
         });
}

FailureOr<TransferMemo::Outcome>
TransferMemo::transfer(Operation *op, ArrayRef<LayoutRef> operands, std::optional<unsigned> only,
                       function_ref<InFlightDiagnostic()> emitError,
                       function_ref<void(InFlightDiagnostic &, unsigned)> explain) {
  bool isShared = dependsOnLayoutsOnly(op);
  size_t hash = 0;
  Attribute stated = op->getDiscardableAttr(resultsAttr);
  if (isShared) {
    hash = llvm::hash_combine(OpSignature::getHashValue(op), only, stated,
                              llvm::hash_combine_range(operands.begin(), operands.end()));
    if (auto it = known.find(hash); it != known.end())
      for (const Transfer *other : it->second)
        if (other->only == only && OpSignature::isEqual(other->op, op) &&
            other->op->getDiscardableAttr(resultsAttr) == stated &&
            other->operands == operands)
          return other->outcome;
  }
  SmallVector<Layout, 1> alternatives;
  bool namesOperands = false;
  padding::EventTable::Scope scope(events);
  FailureOr<ResultLayouts> results =
      meshwright::transfer({op, operands, mesh, emitError, explain, tracksPadding, isExhaustive,
                            &namesOperands, getRule(op), only, &numbers},
                           &alternatives);
  if (failed(results))
    return failure();
  // A source names values, too.
  isShared &= !namesOperands;
  Outcome outcome;
  for (const Layout &layout : *results) {
    isShared &= !layout.getPartOfSource();
    outcome.results.push_back(intern(layout));
  }
  for (const Layout &layout : alternatives)
    outcome.alternatives.push_back(intern(layout));
  if (isShared) {
    transfers.push_back({op, SmallVector<LayoutRef, 4>(operands), only, outcome});
    known[hash].push_back(&transfers.back());
  }
  return outcome;
}

const FactorRule *TransferMemo::getRule(Operation *op) {
  auto interface = dyn_cast<ShardingRuleOpInterface>(op);
  if (!interface)
    return nullptr;
  std::optional<FactorRule> &rule = rules[op];
  if (!rule)
    rule = interface.getFactorRule();
  return &*rule;
}
