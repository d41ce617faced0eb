//===- CodeEmitter.h - lowered kernels to code ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CODEEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_CODEEMITTER_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

#include <string>

namespace meshwright {

/// The bytes of compiled code. Code for a processor is an object file.
using ObjectCode = std::string;

/// Emits the code of kernels for one target. Not safe for use from several threads.
class CodeEmitter {
public:
  virtual ~CodeEmitter() = default;

  /// The code of a module with one kernel, after `KernelTarget::lowerKernel`.
  virtual llvm::Expected<ObjectCode> emitKernel(mlir::ModuleOp module) = 0;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_CODEEMITTER_H
