//===- Processor.h - the processor that code is made for --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_PROCESSOR_H
#define MESHWRIGHT_LIB_CODEGEN_PROCESSOR_H

#include "mlir/Support/LLVM.h"
#include "llvm/Support/Error.h"

#include <string>
#include <vector>

namespace meshwright {

/// The facts of a processor that kernels and the compiler use.
struct Processor {
  /// In LLVM's spelling: "znver5", "+avx512f,+avx512bf16,...".
  std::string cpu, features;
  /// Bytes of the widest vector registers, and their number.
  int64_t vectorBytes = 16;
  int64_t numVectorRegisters = 16;
  /// An instruction computes x * y + z of f32 vectors.
  bool hasFma = false;
  /// An instruction multiplies pairs of bf16 and sums them in f32 (vdpbf16ps on 512 bits).
  bool hasBf16Dot = false;
  /// An instruction converts f32 to bf16.
  bool hasBf16Conversion = false;
  /// Instructions store vectors past the caches. sfence orders these stores.
  bool hasStreamingStores = false;
  int64_t l1Bytes = 32 << 10, l2Bytes = 1 << 20, l3Bytes = 32 << 20;

  /// Returns true if an instruction converts two registers of f32 to one of bf16.
  bool narrowsPairs() const { return hasBf16Dot && vectorBytes == 64; }
  /// f32 elements of a vector register.
  int64_t getLanes() const { return vectorBytes / 4; }

  /// Returns the given extensions of the instruction set that the processor has.
  std::vector<std::string> select(llvm::ArrayRef<std::string> extensions) const;

  /// This machine.
  static const Processor &host();
  /// A processor by LLVM's name ("haswell", "x86-64-v3"); this machine's if the name is empty
  /// or "host". Names that LLVM does not know are errors.
  static llvm::Expected<Processor> get(llvm::StringRef cpu);
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_PROCESSOR_H
