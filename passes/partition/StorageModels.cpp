//===- StorageModels.cpp - weights between storage and use ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A fetch and a stow are their collectives: the local program has no op for them. The rows of storage
// and those of use are whole where one becomes the other.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// The sharding of `other` along the classes that a value has in common with it. The rows of storage,
/// and those of use, are whole.
ValueSharding getCommon(const Partitioner &partitioner, Value value, Value other,
                        const ValueSharding &sharding) {
  const FactorAnalysis &factors = partitioner.getFactors();
  ValueSharding common = ValueSharding::getReplicated(factors.getClasses(value));
  for (auto [d, classes] : llvm::enumerate(factors.getClasses(value))) {
    ArrayRef<int> others = factors.getClasses(other)[d];
    for (auto [i, cls] : llvm::enumerate(classes))
      if (const int *same = llvm::find(others, cls); same != others.end())
        common.dims[d][i] = sharding.dims[d][same - others.begin()];
  }
  return common;
}

/// Gathers the stored rows of a weight, drops their padding, and rounds to the form in which it travels.
struct FetchModel : LocalOpInterface::ExternalModel<FetchModel, FetchOp> {
  FailureOr<bool> partition(Operation *op, Partitioner &partitioner) const {
    Value stored = op->getOperand(0), used = op->getResult(0);
    ValueSharding target = partitioner.getForm(used).target;
    ValueSharding whole = getCommon(partitioner, stored, used, target);
    Partitioner::RoleScope scope(partitioner, CollectiveRole::Weights);
    auto gathered = partitioner.use(stored, whole, op->getLoc());
    if (failed(gathered) ||
        failed(partitioner.define(
            used, {*gathered, getCommon(partitioner, used, stored, whole), {}})))
      return failure();
    // Blocks are counted from the first row and column of the part that a rank uses.
    if (FormAttr form = cast<FetchOp>(op).getFormAttr()) {
      Partitioner::LocalForm &own = partitioner.getForm(used);
      own.local.value =
          RoundOp::create(partitioner.getBuilder(), op->getLoc(), own.local.value, form);
      own.copies.clear();
    }
    return true;
  }
};

/// Scatters the parts of a gradient over the ranks that store its weight. It stays a part of a sum
/// over all other axes.
struct StowModel : LocalOpInterface::ExternalModel<StowModel, StowOp> {
  bool reducesParts(Operation *) const { return true; }

  FailureOr<bool> partition(Operation *op, Partitioner &partitioner) const {
    Value used = op->getOperand(0), stored = op->getResult(0);
    ValueSharding target = partitioner.getForm(stored).target;
    ValueSharding whole = getCommon(partitioner, used, stored, target);
    FailureOr<Partitioner::Local> sum = partitioner.usePart(used, whole, op->getLoc());
    if (failed(sum))
      return failure();
    // The same elements, by the factors of storage.
    sum->sharding = getCommon(partitioner, stored, used, whole);
    Partitioner::RoleScope scope(partitioner, CollectiveRole::Gradients);
    AxisList stores = target.getAxes();
    Partitioner::Local scattered{{}, target, sum->unreduced};
    llvm::erase_if(scattered.unreduced.axes,
                   [&](const Axis &axis) { return anyOverlap(stores, {axis}); });
    auto moved =
        partitioner.reshard(stored, *sum, target, op->getLoc(), scattered.unreduced);
    if (failed(moved))
      return failure();
    scattered.value = *moved;
    if (failed(partitioner.define(stored, std::move(scattered))))
      return failure();
    return true;
  }
};

} // namespace

void local_models::attachStorageModels(MLIRContext *context) {
  FetchOp::attachInterface<FetchModel>(*context);
  StowOp::attachInterface<StowModel>(*context);
}
