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
    The launches of one rank: kernels on its compute stream, and collectives that
    start on a communication stream and are waited for. Values stay tensors; an
    attribute states the offset of each result in the rank's arena.
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let extraClassDeclaration = [{
    /// On a function: bytes of its arena (i64). Every kernel and collective then
    /// has the offsets of its results.
    static constexpr llvm::StringLiteral kArenaAttr = "rt.arena";
    /// On a function: bytes of the largest set of buffers that are needed at the
    /// same time (i64). No plan has a smaller arena.
    static constexpr llvm::StringLiteral kLiveAttr = "rt.live";
    /// On a function that is to be scheduled: "on" if collectives run beside
    /// kernels, "off" if not. Without it they do if that is faster.
    static constexpr llvm::StringLiteral kOverlapAttr = "rt.overlap";
    /// On a function that is to be scheduled: bytes that its arguments and its
    /// arena may take (i64).
    static constexpr llvm::StringLiteral kCeilingAttr = "rt.memory_ceiling";
    /// On a function with a ceiling: bytes of it that a rank holds for other entries
    /// and for commits (i64).
    static constexpr llvm::StringLiteral kResidentAttr = "rt.resident_memory";
    /// On a function that is to be scheduled: new values of whole states take part in the
    /// arena, and a commit copies them, instead of a second buffer for each.
    static constexpr llvm::StringLiteral kCopiesAttr = "rt.copies_states";
    /// On a function that is to be scheduled: "all" if collectives are cut into
    /// chunks where possible, "none" if not. Without it they are if that is faster.
    static constexpr llvm::StringLiteral kChunksAttr = "rt.chunks";
    /// On a function that is to be scheduled: the number of chunks of tokens for which layers of
    /// experts run one after the other (i64). Without it they run for all tokens at once.
    static constexpr llvm::StringLiteral kExpertChunksAttr = "rt.expert_chunks";
    /// On a function that is to be scheduled: the most weights that are gathered before
    /// the one in use (i64). Without it as many as their links need.
    static constexpr llvm::StringLiteral kPrefetchAttr = "rt.prefetch";
    /// On a function that is or will be scheduled: the target of its kernels, as
    /// `cpu:x86-64-v3`. Without it the target is the processor of this machine.
    static constexpr llvm::StringLiteral kTargetAttr = "rt.target";

  private:
    void registerAttributes();
    void registerTypes();

  public:
  }];
}

#endif
