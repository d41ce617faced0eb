//===- RuntimeCalls.h - the calls that perform ops --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An op that a device performs has a model (CallModels.h), which fills the structure of its call
// (meshwright-c/Runtime.h). A target looks up the kind of the call in the list of its device.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_RUNTIMECALLS_H
#define MESHWRIGHT_LIB_CODEGEN_RUNTIMECALLS_H

#include "meshwright/lib/Codegen/KernelSource.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "meshwright/Calls.h"

#include <optional>

namespace meshwright {

/// The stride of an axis, or of a part of one, in rank numbers. Ranks are numbered row-major, so
/// a rank's coordinate is (rank / stride) % size.
int64_t getRankStride(const dist::Axis &axis, dist::MeshAttr mesh);

namespace lower {

/// A call of the runtime that performs an op.
struct RuntimeCall {
  Descriptor descriptor;
  /// Null for an optional operand that is absent.
  llvm::SmallVector<mlir::Value> inputs;

  const mw_rt_call &getHead() const {
    return *reinterpret_cast<const mw_rt_call *>(descriptor.data());
  }
};

/// The form of a weight that an op makes.
mw_rt_packing getPacking(rt::PrepareOp op);

/// The kind of the call that performs an op (MW_RT_CALL_...). Returns nothing for an op without a
/// model.
std::optional<int64_t> getCallKind(mlir::Operation *op);

/// Returns true if calls read a weight as codes of matrices and their scales.
bool isCodedMatrix(nn::DequantizeOp op);
/// Returns true if a product may read the codes of this operand instead of what they stand for.
bool mayReadCodes(mlir::OpOperand &use);

/// The call of `mw_rt_perform` that performs an op. Fails, after an error at the op, if it has no
/// model, or if the runtime's structure cannot describe it.
mlir::FailureOr<RuntimeCall> getCall(mlir::Operation *op);

/// The call that replaces rows of a state in place, for an op that replaces rows in a copy of it.
/// The log gets the old rows at `offset`.
mlir::FailureOr<RuntimeCall> getRowUpdate(mlir::Operation *op, int64_t offset);

/// The call that notes for the report how many rows experts have, or how many choices were dropped, behind an op
/// for which the target has a kernel. Nothing for another op.
std::optional<RuntimeCall> getNote(mlir::Operation *op);

/// The call that performs or starts a collective: a descriptor of type `mw_rt_collective`.
mlir::FailureOr<RuntimeCall> getCollectiveCall(dist::CollectiveOpInterface op);

/// Sets the axes of a structure, which is all zeros. Fails, after an error at the op, if its
/// function has no mesh or if there are too many axes.
mlir::LogicalResult setAxes(mlir::Operation *op, llvm::ArrayRef<dist::Axis> axes,
                            mw_rt_axes &fields);

} // namespace lower
} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_RUNTIMECALLS_H
