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

#define GET_TYPEDEF_CLASSES
#include "meshwright/dialects/Rt/RtTypes.h.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Rt/RtAttrs.h.inc"

#define GET_OP_CLASSES
#include "meshwright/dialects/Rt/RtOps.h.inc"

namespace meshwright::rt {

/// Offsets in an arena are multiples of this.
constexpr int64_t kBufferAlignment = 64;

/// Bytes of a tensor's buffer; booleans take one each.
int64_t getBufferBytes(mlir::Type type);

/// What a value is at the outermost level: an argument of a launch's region is
/// its operand, and so on outward.
mlir::Value getOuterValue(mlir::Value value);

/// Where a value is made: through regions of launches, inward and outward, and
/// waits.
mlir::Value getSource(mlir::Value value);

/// Whether the op's result is its operand's buffer, seen in another shape, or a
/// part of a function's argument that is in one piece. Arguments are never
/// written, so that who reads a part of one need not know of the others.
bool isView(mlir::Operation *op);

/// The value whose buffer a value is: through views. `offset` becomes the bytes
/// before the value there.
mlir::Value getBuffer(mlir::Value value, int64_t *offset = nullptr);

/// Whether others than those that pack it read a value, or a view of it.
bool isReadAsItLies(mlir::Value value);

} // namespace meshwright::rt

#endif // MESHWRIGHT_DIALECTS_RT_RT_H
