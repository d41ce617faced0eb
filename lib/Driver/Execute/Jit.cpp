//===- Jit.cpp - object code in this process ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Jit.h"

#include "meshwright/runtime/include/Program.h"

#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"

#include <dlfcn.h>

using namespace llvm;

namespace meshwright {

LoadedCode::LoadedCode() = default;
LoadedCode::~LoadedCode() = default;

Expected<std::unique_ptr<LoadedCode>> LoadedCode::load(ArrayRef<ObjectCode> objects,
                                                       size_t numEntries) {
  auto builder = orc::JITTargetMachineBuilder::detectHost();
  if (!builder)
    return builder.takeError();
  auto jit = orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(*builder)).create();
  if (!jit)
    return jit.takeError();
  // Symbols are looked up by the runtime's own handle. It also has the libraries that the runtime
  // depends on (the C library, its mathematics, conversions of small floats). The symbols of the
  // process need not have them if a library was opened separately.
  Dl_info runtime;
  if (!dladdr(reinterpret_cast<void *>(&mw_rt_run_collective), &runtime))
    return createStringError("the runtime library is not found");
  auto symbols = orc::DynamicLibrarySearchGenerator::Load(
      runtime.dli_fname, (*jit)->getDataLayout().getGlobalPrefix());
  if (!symbols)
    return symbols.takeError();
  (*jit)->getMainJITDylib().addGenerator(std::move(*symbols));
  for (const ObjectCode &object : objects)
    if (Error error = (*jit)->addObjectFile(MemoryBuffer::getMemBufferCopy(object)))
      return std::move(error);
  std::unique_ptr<LoadedCode> code(new LoadedCode());
  for (size_t i = 0; i < numEntries; ++i) {
    auto address = (*jit)->lookup(rt::getEntrySymbol(i));
    if (!address)
      return address.takeError();
    code->entries.push_back(address->toPtr<mw_rt_entry>());
  }
  code->jit = std::move(*jit);
  return code;
}

} // namespace meshwright
