//===- MovedRows.cpp - collectives of rows of experts ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/MovedRows.h"

#include "meshwright/dialects/Nn/TableRows.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

namespace {

/// No dimension of the rows gains or loses axes: their layout has a rule of its own.
template <typename Op>
struct MovedRowsModel : dist::CollectiveOpInterface::ExternalModel<MovedRowsModel<Op>, Op> {
  static dist::CollectiveKind getKind() { return dist::CollectiveKind::AllToAll; }
  static bool communicates() { return true; }
  static bool movesChunks() { return false; }
  static bool padsChunks() { return false; }
  static bool countsRows() { return true; }
  static ArrayRef<StringRef> getPerOperandAttributes() { return {}; }
  ArrayAttr getAxes(Operation *op) const { return cast<Op>(op).getAxes(); }
  std::optional<int64_t> getLostDim(Operation *, unsigned) const { return std::nullopt; }
  std::optional<int64_t> getGainedDim(Operation *, unsigned) const { return std::nullopt; }
};

} // namespace

void nn::detail::attachMovedRows(MLIRContext *context) {
  SendRowsOp::attachInterface<MovedRowsModel<SendRowsOp>>(*context);
  ReturnRowsOp::attachInterface<MovedRowsModel<ReturnRowsOp>>(*context);
}

std::optional<int64_t> nn::getNumGroups(Value rows) {
  while (Operation *op = rows.getDefiningOp()) {
    if (auto dispatch = dyn_cast<DispatchOp>(op))
      return getTableRows(cast<dist::LookupOpInterface>(op));
    // Sums over the experts of a group are of the routing of their choices.
    auto combine = dyn_cast<CombineOp>(op);
    auto routed = llvm::find_if(op->getOperands(), [](Value operand) { return bool(getRouted(operand.getType())); });
    if (routed == op->getOperands().end())
      break;
    rows = combine ? Value(combine.getIndices()) : *routed;
  }
  return std::nullopt;
}

int64_t nn::getExpectedElements(RankedTensorType rows, int64_t all) {
  RoutedAttr routed = getRouted(rows);
  double elements = double(rows.getNumElements());
  if (routed.getShared() == 1)
    return std::min(std::llround(double(routed.getChoices()) * elements / double(all)),
                    (long long)routed.getCapacity(rows.getShape()));
  // The share of the tokens that choose no expert of a group.
  double experts = double(all) * double(routed.getShared()), others = experts - double(routed.getShared()), none = 1;
  for (int64_t choice = 0; choice < routed.getChoices() && none > 0; ++choice) {
    double taken = routed.getRepeats() ? 0 : double(choice);
    none *= experts > taken ? std::max(0.0, (others - taken) / (experts - taken)) : 0;
  }
  return std::llround((1 - none) * elements);
}

std::optional<int64_t> nn::getExpectedRows(Operation *op) {
  auto rowsOf = [](Value value) { return cast<RankedTensorType>(value.getType()).getDimSize(0); };
  int64_t most;
  if (auto route = dyn_cast<RouteOp>(op))
    most = rowsOf(route.getChoices());
  else if (isa<SendRowsOp, ReturnRowsOp>(op))
    most = std::max(rowsOf(op->getOperand(0)), rowsOf(op->getResult(0)));
  else
    return std::nullopt;
  auto stated = op->getAttrOfType<IntegerAttr>(kExpectedRowsAttr);
  return stated ? std::min(stated.getInt(), most) : most;
}
