//===- FuseBiases.cpp - what attention computes of its bias ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A bias has an element for each query and each key: in a long sequence it is larger
// than all other values. If it is computed from values with an element for each query or
// for each key, each attention computes the bias in its own kernel, and the bias is never
// in memory. That pays only if no other op reads it.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/FuseBiases.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/lib/Support/ProgramMap.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::lower;

namespace {

struct Candidate {
  nn::ScoresOpInterface op;
  KernelRegion region;
};

} // namespace

static int64_t countBytes(ArrayRef<Value> values) {
  int64_t bytes = 0;
  for (Value value : values)
    bytes += rt::getBufferBytes(value.getType());
  return bytes;
}

static void decline(nn::ScoresOpInterface op, const Twine &reason) {
  logKernelDecision(op, Outcome::Declined,
                    (op->getName().getStringRef() + " reads its bias from memory: " + reason).str());
}

/// An op of the region that an op outside of it needs; null if there is none.
static Operation *findShared(const Candidate &candidate, const ProgramSet<Operation *> &fused,
                             const ProgramSet<Operation *> &live,
                             const GroupingOptions &options) {
  for (Operation *op : candidate.region.ops) {
    if (isFree(op))
      continue;
    if (options.keepProbed && op->hasAttr(nn::NnDialect::kIdAttr))
      return op;
    for (OpOperand &use : op->getUses()) {
      Operation *user = use.getOwner();
      auto attention = dyn_cast<nn::ScoresOpInterface>(user);
      bool isBias = attention && use.get() == attention.getBias() &&
                    llvm::count(user->getOperands(), use.get()) == 1;
      if (live.contains(user) && !(fused.contains(user) && (isBias || !attention)))
        return op;
    }
  }
  return nullptr;
}

ProgramMap<Operation *, SmallVector<Operation *>>
meshwright::fuseBiases(Block &body, const ProgramSet<Operation *> &live,
                       const GroupingOptions &options) {
  std::vector<Candidate> candidates;
  for (auto op : body.getOps<nn::ScoresOpInterface>()) {
    if (!live.contains(op))
      continue;
    std::string reason;
    std::optional<KernelRegion> region = options.target.getBiasRegion(op, reason);
    if (!region) {
      if (!reason.empty())
        decline(op, reason);
      continue;
    }
    int64_t read = countBytes(region->inputs), bytes = countBytes(region->outputs);
    if (region->ops.size() > options.target.getMaxKernelOps())
      decline(op, Twine(region->ops.size()) + " ops compute it");
    else if (read >= bytes)
      decline(op, "it has " + formatBytes(bytes) + ", and its operands have " + formatBytes(read));
    else
      candidates.push_back({op, std::move(*region)});
  }
  // A bias that one attention leaves in memory is read there by the others, so the
  // candidates are filtered until none is left out.
  while (true) {
    ProgramSet<Operation *> fused;
    for (const Candidate &candidate : candidates) {
      fused.insert(candidate.op);
      fused.insert(candidate.region.ops.begin(), candidate.region.ops.end());
    }
    size_t before = candidates.size();
    llvm::erase_if(candidates, [&](const Candidate &candidate) {
      Operation *shared = findShared(candidate, fused, live, options);
      if (shared)
        decline(candidate.op, shared->getName().getStringRef() + " is needed elsewhere, too");
      return shared;
    });
    if (candidates.size() == before)
      break;
  }
  ProgramMap<Operation *, SmallVector<Operation *>> result;
  for (const Candidate &candidate : candidates) {
    logKernelDecision(candidate.op, Outcome::Applied,
                      (candidate.op->getName().getStringRef() +
                       " computes its bias, which is not in memory")
                          .str(),
                      {{"bytes_of_bias", double(countBytes(candidate.region.outputs))},
                       {"bytes_read", double(countBytes(candidate.region.inputs))}});
    result[candidate.op] = candidate.region.ops;
  }
  return result;
}
