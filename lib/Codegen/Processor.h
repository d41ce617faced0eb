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

/// What kernels need to know of a processor.
struct Processor {
  /// As LLVM spells them: "znver5", "+avx512f,+avx512bf16,...".
  std::string cpu, features;
  /// Of the widest vector registers.
  int64_t vectorBytes = 16;
  int64_t numVectorRegisters = 16;
  /// x * y + z of f32 vectors in one instruction.
  bool hasFma = false;
  /// Dot products of pairs of bf16, summed in f32 (vdpbf16ps on 512 bits).
  bool hasBf16Dot = false;
  /// Conversion from f32 to bf16 in one instruction.
  bool hasBf16Conversion = false;
  /// Vectors can be stored past the caches (in an order that sfence ends).
  bool hasStreamingStores = false;
  int64_t l1Bytes = 32 << 10, l2Bytes = 1 << 20, l3Bytes = 32 << 20;

  /// Two registers of f32 become one of bf16 in one instruction.
  bool narrowsPairs() const { return hasBf16Dot && vectorBytes == 64; }
  /// f32 elements of a vector register.
  int64_t getLanes() const { return vectorBytes / 4; }

  /// Those of the instruction set extensions that the processor has.
  std::vector<std::string> select(llvm::ArrayRef<std::string> extensions) const;

  /// This machine.
  static const Processor &host();
  /// A processor by LLVM's name ("haswell", "x86-64-v3"), or "host"; an error for
  /// names that LLVM does not know.
  static llvm::Expected<Processor> get(llvm::StringRef cpu);
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_PROCESSOR_H
