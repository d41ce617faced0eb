//===- Processor.cpp - the processor that code is made for ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Processor.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/SubtargetFeature.h"
#include "llvm/TargetParser/Triple.h"

#include <mutex>
#include <unistd.h>

using namespace llvm;

namespace meshwright {

static const llvm::Target *getRegistered(std::string &error) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
  });
  Triple triple(sys::getDefaultTargetTriple());
  return TargetRegistry::lookupTarget(triple, error);
}

static void readFeatures(Processor &processor, const MCSubtargetInfo &subtarget) {
  auto has = [&](StringRef name) { return subtarget.checkFeatures(("+" + name).str()); };
  bool isX86 = Triple(sys::getDefaultTargetTriple()).isX86();
  if (!isX86)
    return;
  if (has("avx512dq")) {
    processor.vectorBytes = 64;
    processor.numVectorRegisters = 32;
  } else if (has("avx")) {
    processor.vectorBytes = 32;
  }
  processor.hasStreamingStores = has("sse2");
  processor.hasFma = has("fma") || has("avx512dq");
  processor.hasBf16Dot = has("avx512bf16");
  processor.hasBf16Conversion = has("avx512bf16") || has("avxneconvert");
}

/// Bytes of the last cache that a core uses, which Linux states as "32768K"; 0 if it does not.
/// (sysconf may return the sum over all groups of cores.)
static int64_t readSharedCacheBytes() {
  auto file = MemoryBuffer::getFile("/sys/devices/system/cpu/cpu0/cache/index3/size",
                                    /*IsText=*/true, /*RequiresNullTerminator=*/false);
  int64_t kilobytes = 0;
  if (!file)
    return 0;
  StringRef text = (*file)->getBuffer().trim();
  return text.consume_back("K") && !text.getAsInteger(10, kilobytes) ? kilobytes << 10 : 0;
}

const Processor &Processor::host() {
  static const Processor host = [] {
    Processor processor;
    processor.cpu = sys::getHostCPUName().str();
    SubtargetFeatures features;
    for (const auto &feature : sys::getHostCPUFeatures())
      features.AddFeature(feature.first(), feature.second);
    processor.features = features.getString();
    std::string error;
    if (const llvm::Target *registered = getRegistered(error)) {
      std::unique_ptr<MCSubtargetInfo> subtarget(registered->createMCSubtargetInfo(
          Triple(sys::getDefaultTargetTriple()), processor.cpu, processor.features));
      if (subtarget)
        readFeatures(processor, *subtarget);
    }
    if (long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE); bytes > 0)
      processor.l1Bytes = bytes;
    if (long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0)
      processor.l2Bytes = bytes;
    if (int64_t bytes = readSharedCacheBytes())
      processor.l3Bytes = bytes;
    return processor;
  }();
  return host;
}

Expected<Processor> Processor::get(StringRef cpu) {
  if (cpu.empty() || cpu == "host")
    return host();
  std::string error;
  const llvm::Target *registered = getRegistered(error);
  if (!registered)
    return createStringError("no code generator: " + error);
  Triple triple(sys::getDefaultTargetTriple());
  Processor processor;
  processor.cpu = cpu.str();
  std::unique_ptr<MCSubtargetInfo> subtarget(
      registered->createMCSubtargetInfo(triple, "generic", ""));
  if (!subtarget || !subtarget->isCPUStringValid(cpu))
    return createStringError("unknown processor '" + cpu.str() + "' for " + triple.str());
  subtarget.reset(registered->createMCSubtargetInfo(triple, cpu, ""));
  // LLVM ends the process if it generates 64-bit code for a processor without it.
  if (triple.isX86() && triple.isArch64Bit() && !subtarget->checkFeatures("+64bit"))
    return createStringError("processor '" + cpu.str() + "' has no 64-bit code: expected one for " +
                             triple.str());
  readFeatures(processor, *subtarget);
  return processor;
}

std::vector<std::string> Processor::select(ArrayRef<std::string> extensions) const {
  std::string error;
  std::vector<std::string> selected;
  // Null only if `get` and `host` found no code generator either.
  const llvm::Target *registered = getRegistered(error);
  if (!registered)
    return selected;
  std::unique_ptr<MCSubtargetInfo> subtarget(registered->createMCSubtargetInfo(
      Triple(sys::getDefaultTargetTriple()), cpu, features));
  for (const std::string &name : extensions)
    if (subtarget && subtarget->checkFeatures("+" + name))
      selected.push_back(name);
  return selected;
}

} // namespace meshwright
