//===- Jit.h - object code in this process ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_JIT_H
#define MESHWRIGHT_LIB_EXECUTE_JIT_H

#include "meshwright/lib/Codegen/CodeEmitter.h"

#include "meshwright-c/Runtime.h"

namespace llvm::orc {
class LLJIT;
}

namespace meshwright {

/// Code in this process, until the object is destroyed.
class LoadedCode {
public:
  /// Loads object files, which may call each other, the runtime and the C
  /// library's mathematics.
  static llvm::Expected<std::unique_ptr<LoadedCode>> load(llvm::ArrayRef<ObjectCode> objects);
  ~LoadedCode();
  mw_rt_entry getEntry() const { return entry; }

private:
  LoadedCode();
  std::unique_ptr<llvm::orc::LLJIT> jit;
  mw_rt_entry entry = nullptr;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_JIT_H
