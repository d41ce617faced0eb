//===- RtCalls.cpp - calls that perform ops of rt -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/CallModels.h"

#include "meshwright/dialects/Dist/Forms.h"

using namespace mlir;

namespace meshwright::lower {

mw_rt_packing getPacking(rt::PrepareOp op) {
  mw_rt_packing what = {};
  what.batch = 1;
  what.stored = codeOf(op.getWeight());
  what.dtype = codeOf(op.getResult());
  bool isCoded = bool(dist::getForm(op.getWeight().getType()));
  if (isCoded || dist::getForm(op.getResult().getType())) {
    mw_rt_form form = getFormCall((isCoded ? op.getWeight() : op.getResult()).getType());
    what.k = form.rows;
    what.n = form.columns;
    what.group = 1;
    what.form = form.kind;
    what.along = form.along;
    what.stored = isCoded ? what.dtype : what.stored;
  }
  if (std::optional<rt::PackingAttr> packing = op.getPacking()) {
    what.k = packing->getK();
    what.n = packing->getN();
    what.transposed = packing->getTransposed();
    what.panel = packing->getPanel();
    what.group = packing->getGroup();
    what.batch = packing->getBatch();
  } else if (!what.form) {
    what.k = what.group = 1;
    what.n = countOf(shapeOf(op.getResult()));
  }
  return what;
}

static LogicalResult describePack(rt::PrepareOp op, mw_rt_pack &what, RuntimeCall &call) {
  call.inputs = {op.getWeight()};
  what.packing = getPacking(op);
  return success();
}

void addRtCalls(CallModels &models) { models.add(describePack); }

} // namespace meshwright::lower
