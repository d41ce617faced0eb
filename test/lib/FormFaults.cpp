//===- FormFaults.cpp - weights in other forms ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weights that travel in blocks along the dimension that their reader does not contract, and weights that
// are encoded by the largest magnitude of another one. Layouts are the same, so nothing but the form tells.
//
//===----------------------------------------------------------------------===//

#include "PlacementFaults.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/Forms.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Gives a tensor of codes another form, and all tensors that are made of it.
static void setForm(Value value, FormAttr form) {
  auto type = cast<RankedTensorType>(value.getType());
  value.setType(RankedTensorType::get(type.getShape(), type.getElementType(), form));
  for (OpOperand &use : value.getUses()) {
    Operation *op = use.getOwner();
    if (op->getNumResults() == op->getNumOperands() &&
        getForm(op->getResult(use.getOperandNumber()).getType()))
      setForm(op->getResult(use.getOperandNumber()), form);
  }
}

void test::wrongForm(func::FuncOp func, const PlacementAnalysis &, std::vector<Fault> &faults) {
  SmallVector<EncodeOp> encodings;
  func.walk([&](EncodeOp op) { encodings.push_back(op); });
  for (EncodeOp encode : encodings) {
    FormAttr form = encode.getForm();
    if (form.getAlong() >= 0)
      faults.push_back({"blocks along the other dimension", encode.getLoc(), [encode, form]() mutable {
                          auto other = FormAttr::get(form.getContext(), form.getKind(),
                                                     1 - form.getAlong());
                          setForm(encode.getResult(), other);
                        }});
    for (EncodeOp other : encodings)
      if (encode.getLargest() && other.getLargest() && encode.getLargest() != other.getLargest())
        faults.push_back({"encoded by the largest magnitude of another weight", encode.getLoc(),
                          [encode, other]() mutable {
                            encode.getLargestMutable().assign(other.getLargest());
                          }});
  }
}
