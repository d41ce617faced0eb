//===- RtDialect.td - how a program runs -------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_RT_RTDIALECT_TD
#define MESHWRIGHT_DIALECTS_RT_RTDIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/OpBase.td"

def Rt_Dialect : Dialect {
  let name = "rt";
  let cppNamespace = "::meshwright::rt";
  let summary = "how a program runs";
  let description = [{
    What one rank does, launch by launch: kernels on its compute stream,
    collectives that start on a communication stream and are waited for, and
    where in the rank's arena their results lie. Values stay tensors; a result
    gets its place by an attribute.
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let extraClassDeclaration = [{
    /// On a function: bytes of its arena (i64). Every kernel and collective then
    /// has the offsets of its results.
    static constexpr llvm::StringLiteral kArenaAttr = "rt.arena";
    /// On a function: bytes of the largest set of buffers that are needed at
    /// once (i64). No plan has a smaller arena.
    static constexpr llvm::StringLiteral kLiveAttr = "rt.live";
    /// On a function that is to be scheduled: "on" or "off", whether collectives
    /// run beside kernels; without it where it pays.
    static constexpr llvm::StringLiteral kOverlapAttr = "rt.overlap";
    /// On a function that is to be scheduled: bytes that its arguments and its
    /// arena may take (i64).
    static constexpr llvm::StringLiteral kCeilingAttr = "rt.memory_ceiling";
    /// On a function that is to be scheduled: "all" or "none", whether collectives
    /// are cut into chunks wherever they can be or nowhere; without it where it pays.
    static constexpr llvm::StringLiteral kChunksAttr = "rt.chunks";
    /// On a function that is to be scheduled, or is: the target of its kernels, as
    /// `cpu:x86-64-v3`; without it the processor of this machine.
    static constexpr llvm::StringLiteral kTargetAttr = "rt.target";
    /// On a function that no order brings under its ceiling: bytes of the least (i64).
    static constexpr llvm::StringLiteral kNeededAttr = "rt.needed_memory";

  private:
    void registerAttributes();
    void registerTypes();

  public:
  }];
}

#endif
