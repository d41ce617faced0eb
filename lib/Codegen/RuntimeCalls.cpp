//===- RuntimeCalls.cpp - the calls that perform ops ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RuntimeCalls.h"

#include "meshwright/lib/Codegen/CallModels.h"

using namespace mlir;

namespace meshwright {

int64_t getRankStride(const dist::Axis &axis, dist::MeshAttr mesh) {
  int64_t stride = 1;
  for (int64_t i = mesh.getAxes().size() - 1; i > axis.axis; --i)
    stride *= mesh.getAxes()[i].getSize();
  return stride * (mesh.getAxes()[axis.axis].getSize() / (axis.pre * axis.size));
}

namespace lower {

static const CallModels &getModels() {
  static const CallModels models = [] {
    CallModels models;
    addNnCalls(models);
    addDistCalls(models);
    addRtCalls(models);
    return models;
  }();
  return models;
}

std::optional<int64_t> getCallKind(Operation *op) {
  const CallModels::Model *model = getModels().find(op);
  if (!model)
    return std::nullopt;
  return model->kind;
}

FailureOr<RuntimeCall> getCall(Operation *op) {
  const CallModels::Model *model = getModels().find(op);
  if (!model)
    return op->emitOpError("cannot be compiled for execution");
  RuntimeCall call;
  if (failed(model->describe(op, call)))
    return failure();
  return call;
}

FailureOr<RuntimeCall> getRowUpdate(Operation *op, int64_t offset) {
  FailureOr<RuntimeCall> call = getCall(op);
  if (failed(call))
    return failure();
  const auto *copy = asCall<mw_rt_index_copy>(call->getHead());
  if (!copy)
    return op->emitOpError("has no call that replaces rows of a state");
  mw_rt_replace_rows what = {};
  what.call.kind = kCallKind<mw_rt_replace_rows>;
  what.rows = copy->rows;
  what.offset = offset;
  call->descriptor.clear();
  append(call->descriptor, what);
  return call;
}

LogicalResult checkRank(Operation *op, int64_t rank) {
  if (rank <= MW_RT_MAX_RANK)
    return success();
  return op->emitOpError() << "expected at most the " << MW_RT_MAX_RANK
                           << " dimensions that the runtime takes, got " << rank;
}

FailureOr<dist::MeshAttr> getMesh(Operation *op) {
  dist::MeshAttr mesh = dist::getSpmdMesh(op);
  if (!mesh)
    return op->emitOpError("needs a mesh: its function has no 'dist.spmd'");
  return mesh;
}

LogicalResult setAxes(Operation *op, ArrayRef<dist::Axis> axes, mw_rt_axes &fields) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  if (axes.size() > MW_RT_MAX_AXES)
    return op->emitOpError() << "expected at most the " << MW_RT_MAX_AXES
                             << " axes that the runtime takes, got " << axes.size();
  for (const dist::Axis &axis : axes) {
    auto &field = fields.axes[fields.count++];
    field.stride = getRankStride(axis, *mesh);
    field.size = axis.size;
  }
  return success();
}

} // namespace lower
} // namespace meshwright
