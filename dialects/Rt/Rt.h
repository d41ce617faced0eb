//===- Rt.h - how a program runs --------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_RT_RT_H
#define MESHWRIGHT_DIALECTS_RT_RT_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/OpTraits.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "meshwright/dialects/Rt/RtDialect.h.inc"
#include "meshwright/dialects/Rt/RtEnums.h.inc"

#define GET_TYPEDEF_CLASSES
#include "meshwright/dialects/Rt/RtTypes.h.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Rt/RtAttrs.h.inc"

#define GET_OP_CLASSES
#include "meshwright/dialects/Rt/RtOps.h.inc"

namespace meshwright::rt {

/// Offsets in an arena are multiples of this.
constexpr int64_t kBufferAlignment = 64;

/// A packed weight has a multiple of so many steps.
constexpr int64_t kPackedSteps = 4;

/// Bytes of a tensor of this type as it is stored; booleans take one each.
int64_t getBufferBytes(mlir::Type type);
/// Bytes of the buffer of a value, which may be packed.
int64_t getBufferBytes(mlir::Value value);

/// The op that brought the weight in a buffer to the form of its readers, at any time; null for
/// other values.
PrepareOp getPrepare(mlir::Value buffer);

/// The value outside of all launches: the operand, if `value` is an argument of the region
/// of a launch.
mlir::Value getOuterValue(mlir::Value value);

/// The value that an op computes, seen through the regions of launches and through waits:
/// never the result of a launch or a wait.
mlir::Value getSource(mlir::Value value);

/// Returns true if the op's result is in its operand's buffer: the operand in another shape,
/// or a contiguous part of a function's argument. No launch writes arguments, so a read of a
/// part needs no order with reads of others.
bool isView(mlir::Operation *op);

/// The op that is all that a launch of a kernel does. Null for a kernel of several ops, another op, and
/// null.
mlir::Operation *getOnlyOp(mlir::Operation *launch);

/// The value, seen through views, that owns the buffer of `value`. Sets `offset` to the
/// offset of `value` in it, in bytes.
mlir::Value getBuffer(mlir::Value value, int64_t *offset = nullptr);

/// The name of the state whose argument a buffer is; null for other buffers.
mlir::StringAttr getState(mlir::Value buffer);

/// Returns true if an op that does not pack the value reads it or a view of it.
bool isReadUnpacked(mlir::Value value);

} // namespace meshwright::rt

#endif // MESHWRIGHT_DIALECTS_RT_RT_H
