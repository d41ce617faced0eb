//===- Jit.h - object code in this process ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_JIT_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_JIT_H

#include "meshwright/lib/Codegen/CodeEmitter.h"

#include "meshwright-c/Runtime.h"

#include <vector>

namespace llvm::orc {
class LLJIT;
}

namespace meshwright {

/// Code in this process, until the object is destroyed.
class LoadedCode {
public:
  /// Loads object files, which may call each other, the runtime and the C
  /// library's mathematics. They have the given number of entries.
  static llvm::Expected<std::unique_ptr<LoadedCode>> load(llvm::ArrayRef<ObjectCode> objects,
                                                          size_t numEntries);
  ~LoadedCode();
  const std::vector<mw_rt_entry> &getEntries() const { return entries; }

private:
  LoadedCode();
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::vector<mw_rt_entry> entries;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_JIT_H
