//===- Link.h - object code to a shared object ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_LINK_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_LINK_H

#include "meshwright/lib/Codegen/CodeEmitter.h"

#include "llvm/ADT/ArrayRef.h"

namespace meshwright {

/// Links object files to a shared object, which may call the runtime, the C library and its
/// mathematics. The linker is ld.lld-22, ld.lld or cc, the first of them on the path.
llvm::Error linkSharedObject(llvm::ArrayRef<ObjectCode> objects, llvm::StringRef path);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_LINK_H
