//===- PagesModels.cpp - what ops do with pages ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Models.h"

using namespace mlir;
using namespace meshwright;

namespace {

struct WriteModel : PagesOpInterface::ExternalModel<WriteModel, nn::PageWriteOp> {
  std::optional<unsigned> getWritten(Operation *op) const {
    return cast<nn::PageWriteOp>(op).getPagesMutable().getOperandNumber();
  }
};

struct AttentionModel : PagesOpInterface::ExternalModel<AttentionModel, nn::PagedAttentionOp> {
  SmallVector<unsigned, 2> getCaches(Operation *op) const {
    auto attention = cast<nn::PagedAttentionOp>(op);
    return {attention.getKeysMutable().getOperandNumber(), attention.getValuesMutable().getOperandNumber()};
  }
  Value getRangeNumbers(Operation *op) const { return cast<nn::PagedAttentionOp>(op).getDeals(); }
  std::optional<int64_t> getPartsDim(Operation *op) const {
    return cast<nn::PagedAttentionOp>(op).hasParts() ? std::optional<int64_t>(1) : std::nullopt;
  }
};

struct MergeModel : PagesOpInterface::ExternalModel<MergeModel, nn::MergePartsOp> {
  std::optional<int64_t> getMergedDim(Operation *) const { return 1; }
};

} // namespace

void layout_transfer::attachPagesModels(MLIRContext *context) {
  nn::PageWriteOp::attachInterface<WriteModel>(*context);
  nn::PagedAttentionOp::attachInterface<AttentionModel>(*context);
  nn::MergePartsOp::attachInterface<MergeModel>(*context);
}
