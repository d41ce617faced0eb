//===- LayoutTransferEvents.cpp - events of rows that move ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A condition of padding names an event, such as "row i of this value is not finite". Behind a slice
// or a concatenation row i is another row, and so another event.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

void layout_transfer::mapEvents(Layout &layout, function_ref<uint32_t(uint32_t)> map) {
  auto apply = [&](Padding &state) {
    if (state.cause)
      state.cause = map(state.cause);
  };
  apply(layout.data);
  apply(layout.corner);
  for (DimLayout &dim : layout.dims)
    for (LayoutFactor &factor : dim.factors)
      apply(factor.padding);
}

uint32_t layout_transfer::sliceEvent(nn::SliceOp op, uint32_t cause) {
  padding::EventTable &events = padding::EventTable::getCurrent();
  ArrayRef<int64_t> from = op.getInput().getType().getShape();
  ArrayRef<int64_t> to = op.getResult().getType().getShape();
  SmallVector<int64_t> numbers;
  for (unsigned d = 0; d < from.size(); ++d)
    if (from[d] != to[d] && events.dependsOn(cause, d))
      numbers.append({int64_t(d), to[d], op.getStarts()[d], op.getStrides()[d]});
  if (numbers.empty())
    return cause;
  return events.derive(cause, "slice", numbers, from.size(),
                       [&](unsigned d) { return events.dependsOn(cause, d); });
}

/// An event of the rows that an operand of a concatenation becomes, from row `begin` on.
static uint32_t placeEvent(uint32_t cause, unsigned dim, int64_t begin, unsigned rank) {
  padding::EventTable &events = padding::EventTable::getCurrent();
  return events.derive(cause, "place", {int64_t(dim), begin}, rank, [&](unsigned d) {
    return d == dim || events.dependsOn(cause, d);
  });
}

SmallVector<Layout, 4>
layout_transfer::placeOperands(ArrayRef<const Layout *> operands, unsigned dim) {
  auto getCauses = [](Layout layout) {
    SmallVector<uint32_t> causes;
    mapEvents(layout, [&](uint32_t cause) { return causes.emplace_back(cause | 1), cause; });
    return causes;
  };
  SmallVector<uint32_t> first = getCauses(*operands[0]);
  bool isSame = llvm::none_of(first, [&](uint32_t cause) {
    return padding::EventTable::getCurrent().dependsOn(cause, dim);
  });
  for (const Layout *operand : operands)
    isSame &= getCauses(*operand) == first;
  SmallVector<Layout, 4> placed;
  int64_t begin = 0;
  for (const Layout *operand : operands) {
    Layout &own = placed.emplace_back(*operand);
    if (!isSame)
      mapEvents(own, [&](uint32_t cause) {
        return placeEvent(cause, dim, begin, own.getRank());
      });
    begin += own.dims[dim].getLocalSize();
  }
  return placed;
}
