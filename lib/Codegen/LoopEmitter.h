//===- LoopEmitter.h - indices, loops and branches of kernels ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_LOOPEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_LOOPEMITTER_H

#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower {

using llvm::ArrayRef;
using llvm::function_ref;
using llvm::SmallVector;
using mlir::Type;
using mlir::Value;
using mlir::ValueRange;

/// The base of emitters that write loops with values that change from turn to turn.
class LoopEmitter {
protected:
  explicit LoopEmitter(mlir::MLIRContext *context)
      : b(mlir::UnknownLoc::get(context), context) {}

  Value getIndex(int64_t value);
  Value add(Value a, Value c);
  Value add(Value a, int64_t c) { return add(a, getIndex(c)); }
  Value sub(Value a, Value c);
  Value mul(Value a, int64_t c);
  Value div(Value a, int64_t c);
  Value rem(Value a, int64_t c);
  Value min(Value a, Value c);
  Value min(Value a, int64_t c) { return min(a, getIndex(c)); }
  Value max(Value a, Value c);
  Value isBelow(Value a, Value c);
  /// The conjunction. Null stands for true.
  Value both(Value a, Value c);

  using LoopBody = function_ref<SmallVector<Value>(Value, ValueRange)>;
  SmallVector<Value> loop(Value from, Value to, int64_t step, ValueRange inits, LoopBody body);
  void loop(Value from, Value to, int64_t step, function_ref<void(Value)> body);
  void when(Value condition, function_ref<void()> body, function_ref<void()> otherwise = nullptr);
  SmallVector<Value> choose(Value condition, function_ref<SmallVector<Value>()> body,
                            function_ref<SmallVector<Value>()> otherwise);

  mlir::ImplicitLocOpBuilder b;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_LOOPEMITTER_H
