//===- Jit.h - LLVM IR to code in this process ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_JIT_H
#define MESHWRIGHT_LIB_EXECUTE_JIT_H

#include "meshwright-c/Runtime.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

#include <memory>

namespace llvm::orc {
class LLJIT;
}

namespace meshwright {

/// Whether this machine's processor converts f32 to bf16 by itself.
bool hostConvertsBf16();

/// Code that stays as long as the object.
class CompiledCode {
public:
  /// Compiles a module of the LLVM dialect for this machine; it may call the
  /// runtime and the C library's mathematics.
  static llvm::Expected<std::unique_ptr<CompiledCode>> compile(mlir::ModuleOp module,
                                                               llvm::StringRef entry);
  ~CompiledCode();
  mw_rt_entry getEntry() const { return entry; }

private:
  CompiledCode();
  std::unique_ptr<llvm::orc::LLJIT> jit;
  mw_rt_entry entry = nullptr;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_JIT_H
