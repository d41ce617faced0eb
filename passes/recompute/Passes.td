//===- Passes.td - recompute -------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_PASSES_TD
#define MESHWRIGHT_PASSES_RECOMPUTE_PASSES_TD

include "mlir/Pass/PassBase.td"

def RecomputePass : Pass<"recompute", "::mlir::ModuleOp"> {
  let summary = "compute values of the forward pass again where the backward pass needs them";
  let description = [{
    Requires SPMD functions; leaves other functions alone. Guarantees the same results. A function
    with ops that carry `nn.backward` has a backward pass. The marks are removed at the end, in
    all functions, unless `keep-marks` leaves them to `split-fetches`.

    The forward pass is cut into segments where few bytes are alive, such as between layers. The
    cuts are those for which the values that cross them, and the values that the backward pass
    needs of the largest segment, are fewest bytes together. Values that cross a cut are kept. The
    others are computed again, by copies of the ops of their segment. `dist.after` orders the
    copies behind a cotangent that enters the segment from behind, and behind the gradients of
    weights of the segment behind. Without it they would only repeat the forward pass early. The
    last segment is left alone, because the backward pass begins there.

    Copies have the operands of their originals, and so the same bits: dropout depends on seed,
    step and index. Ops with effects are not copied, and neither is a value that the function
    returns. Indices that an op chooses by numbers are kept, as experts by scores: they are few bytes,
    and a copy must not choose others in a tie.

    - `none` copies nothing.
    - `full` copies all segments but the last.
    - `auto` without `memory-ceiling` copies nothing: a kernel that reads a cheap value computes
      it itself (see `form-kernels`), and other copies cost more time than the memory is worth. With
      a ceiling, it repeats first the ops of a segment that neither multiply matrices nor
      communicate, or the whole segment, by bytes saved for each second of the cost model. It stops
      at the first choice for which the schedule keeps to the ceiling. If none does, it takes all
      of them, and `check-memory` says what they need.

    Before:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    !h = tensor<4x32xf32>
    !w = tensor<32x8xf32>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %w: !w {dist.sharding = #whole, dist.global = !w})
        -> (!w {dist.sharding = #whole, dist.global = !w},
            !w {dist.sharding = #whole, dist.global = !w}) attributes {dist.spmd = @mesh} {
      %h0 = nn.linear %x, %w : (!x, !w) -> !h
      %a0 = nn.exp %h0 : !h
      %x1 = nn.linear %a0, %w {in_out} : (!h, !w) -> !x
      // The cut is here.
      %h1 = nn.linear %x1, %w : (!x, !w) -> !h
      %a1 = nn.exp %h1 : !h
      %g1 = nn.mul %a1, %a1 {nn.backward} : (!h, !h) -> !h
      %dw1 = nn.weight_grad %g1, %x1 {nn.backward} : (!h, !x) -> !w
      %g0 = nn.mul %g1, %a0 {nn.backward} : (!h, !h) -> !h
      %dw0 = nn.weight_grad %g0, %x {nn.backward} : (!h, !x) -> !w
      return %dw0, %dw1 : !w, !w
    }
    ```
    After, with `mode=full`:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    !h = tensor<4x32xf32>
    !w = tensor<32x8xf32>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %w: !w {dist.sharding = #whole, dist.global = !w})
        -> (!w {dist.sharding = #whole, dist.global = !w},
            !w {dist.sharding = #whole, dist.global = !w}) attributes {dist.spmd = @mesh} {
      %h0 = nn.linear %x, %w : (!x, !w) -> !h
      %a0 = nn.exp %h0 : !h
      %x1 = nn.linear %a0, %w {in_out} : (!h, !w) -> !x
      %h1 = nn.linear %x1, %w : (!x, !w) -> !h
      %a1 = nn.exp %h1 : !h
      %g1 = nn.mul %a1, %a1 : (!h, !h) -> !h
      %dw1 = nn.weight_grad %g1, %x1 : (!h, !x) -> !w
      %0 = dist.after %g1, %dw1 : !h, !w
      %1 = dist.after %x, %0 : !x, !h
      %2 = nn.linear %1, %w : (!x, !w) -> !h
      %3 = nn.exp %2 : !h
      %g0 = nn.mul %g1, %3 : (!h, !h) -> !h
      %dw0 = nn.weight_grad %g0, %x : (!h, !x) -> !w
      return %dw0, %dw1 : !w, !w
    }
    ```
  }];
  let options = [
    Option<"mode", "mode", "::meshwright::RecomputeMode",
           /*default=*/"::meshwright::RecomputeMode::Auto",
           "none, full, or auto: as few values as the memory ceiling allows">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
           "the most bytes that a rank may use; 0: any">,
    Option<"shardSaved", "shard-saved", "::meshwright::OnOffAuto",
           /*default=*/"::meshwright::OnOffAuto::Auto",
           "on: values are kept in shards (see save-shards), so their parts count; auto: where the memory "
           "ceiling asks for it">,
    Option<"keepMarks", "keep-marks", "bool", /*default=*/"false",
           "leaves the marks of the backward pass">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def SaveShardsPass : Pass<"save-shards", "::mlir::ModuleOp"> {
  let summary = "keep values for the backward pass in shards";
  let description = [{
    Requires SPMD functions with the marks of the backward pass (`nn.backward`); leaves other functions
    alone. Guarantees the same results.

    A value that the backward pass reads, and that several ranks hold alike, is cut where it is made:
    each of these ranks keeps a part of the outermost dimension that they divide. A gather with the role
    `saved` makes it whole before its first reader in the backward pass, behind a cotangent that this
    reader reads. A value that ops behind the forward pass read as well stays as it is.

    - `on` keeps all such values in shards, `off` none.
    - `auto` without `memory-ceiling` keeps none. With a ceiling that the schedule does not keep to otherwise,
      it plans several numbers of values, between all and the fewest that are needed, and keeps that with which the
      schedule takes least time. The values come first that save most bytes for each second of their gathers. If
      the schedule keeps to the ceiling with whole values, but not the order that hides most, and takes more time
      than without a ceiling, it keeps all or none: the choice that takes less time. It keeps none if all shards together save less than one
      part in 64 of the bytes of the arguments.

    Before:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %0 = nn.exp %x : !x
      %1 = nn.sin %0 : !x
      %2 = nn.cos %1 {nn.backward} : !x
      %3 = nn.mul %2, %0 {nn.backward} : (!x, !x) -> !x
      return %3 : !x
    }
    ```
    After, with `mode=on`:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    !s = tensor<2x8xf32>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %0 = nn.exp %x : !x
      %s = dist.slice %0 axes ["tp"] dims [0] : (!x) -> !s
      %1 = nn.sin %0 : !x
      %2 = nn.cos %1 {nn.backward} : !x
      %a = dist.after %s, %2 : !s, !x
      %g = dist.all_gather %a axes ["tp"] dims [0] role saved : (!s) -> !x
      %3 = nn.mul %2, %g {nn.backward} : (!x, !x) -> !x
      return %3 : !x
    }
    ```
  }];
  let options = [
    Option<"mode", "mode", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
           "on, off, or auto: as few values as the memory ceiling asks for">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
           "the most bytes that a rank may use; 0: any">];
  let dependentDialects = ["::meshwright::dist::DistDialect"];
}

def EncodeFetchesPass : Pass<"encode-fetches", "::mlir::func::FuncOp"> {
  let summary = "let rounded weights travel as codes with scales";
  let description = [{
    Guarantees the same results. A `dist.round`, and in a global program a `dist.fetch` with a form, becomes
    an encoding to its form and a decoding, one for each dimension that its readers contract: the forward
    pass reads a weight along its columns, the gradient of its input along its rows. A `dist.fetch` with a
    sharding rounds each of its parts alone, as the rank that uses it will. Where an all-gather made the weight whole, each rank encodes its own rows and the codes
    travel, with their scales. A form is made once, for all gathers of it.

    The form nvfp4 needs the largest magnitude of the whole weight. Those of trained weights are found at
    the begin of the function: a part on each rank, and then one all-reduce for all weights over the same
    axes. That of a parameter is known where it is loaded.

    Before:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !w = tensor<64x64xf32>
    !s = tensor<32x64xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !w {dist.sharding = #whole, dist.global = !w},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !w})
        -> (!w {dist.sharding = #whole, dist.global = !w}) attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !w
      %1 = dist.round %0 form <mxfp8> : !w
      %2 = nn.linear %x, %1 : (!w, !w) -> !w
      %3 = nn.linear %2, %1 {in_out} : (!w, !w) -> !w
      return %3 : !w
    }
    ```
    After:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !w = tensor<64x64xf32>
    !s = tensor<32x64xf32>
    !wc = tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    !sc = tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    !wr = tensor<64x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
    !sr = tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 0>>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !w {dist.sharding = #whole, dist.global = !w},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !w})
        -> (!w {dist.sharding = #whole, dist.global = !w}) attributes {dist.spmd = @mesh} {
      %4 = dist.encode %a : (!s) -> !sr
      %0 = dist.encode %a : (!s) -> !sc
      %1 = dist.all_gather %0 axes ["gtp"] dims [0] role weights : (!sc) -> !wc
      %2 = dist.decode %1 : (!wc) -> !w
      %3 = nn.linear %x, %2 : (!w, !w) -> !w
      %5 = dist.all_gather %4 axes ["gtp"] dims [0] role weights : (!sr) -> !wr
      %6 = dist.decode %5 : (!wr) -> !w
      %7 = nn.linear %3, %6 {in_out} : (!w, !w) -> !w
      return %7 : !w
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect"];
}

def SplitFetchesPass : Pass<"split-fetches", "::mlir::ModuleOp"> {
  let summary = "gather a weight again where it is used again";
  let description = [{
    Requires SPMD functions; leaves other functions alone. Guarantees the same results.

    A gather of a weight (collectives with the role `weights`, and local links between them) serves the readers of its result
    that are close to each other: at most one other weight is read in between. Readers further away get
    a gather of their own, before the first of them. So a gathered weight does not live from the
    forward pass to the backward pass. One gather serves what is computed again and the backward pass
    beside it.

    - `keep=on` gathers nothing again.
    - `keep=off` gathers again, as above.
    - `keep=auto` gathers again without `memory-ceiling`. With a ceiling, it plans a function in which
      weights are kept. It takes that if the order that hides most keeps to the ceiling and takes less
      time.

    `dist.phase` on a gather says in which phase it is read first: `forward`, `recompute` or
    `backward`. The marks of the backward pass (`nn.backward`) are removed.

    Before:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                    %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                    %c: !s {nn.parameter = "c", dist.sharding = #shard, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
      %1 = nn.linear %x, %0 : (!x, !x) -> !x
      %2 = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
      %3 = nn.linear %1, %2 : (!x, !x) -> !x
      %4 = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!s) -> !x
      %5 = nn.linear %3, %4 : (!x, !x) -> !x
      %6 = nn.linear %5, %0 : (!x, !x) -> !x
      return %6 : !x
    }
    ```
    After:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                    %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                    %c: !s {nn.parameter = "c", dist.sharding = #shard, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights {dist.phase = "forward"} : (!s) -> !x
      %1 = nn.linear %x, %0 : (!x, !x) -> !x
      %2 = dist.all_gather %b axes ["gtp"] dims [0] role weights {dist.phase = "forward"} : (!s) -> !x
      %3 = nn.linear %1, %2 : (!x, !x) -> !x
      %4 = dist.all_gather %c axes ["gtp"] dims [0] role weights {dist.phase = "forward"} : (!s) -> !x
      %5 = nn.linear %3, %4 : (!x, !x) -> !x
      %6 = dist.all_gather %a axes ["gtp"] dims [0] role weights {dist.phase = "forward"} : (!s) -> !x
      %7 = nn.linear %5, %6 : (!x, !x) -> !x
      return %7 : !x
    }
    ```
  }];
  let options = [
    Option<"keep", "keep", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
           "on: a gather serves all readers; off: those close to each other; auto: all readers where "
           "that fits and saves time">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
           "the most bytes that a rank may use; 0: any">];
  let dependentDialects = ["::meshwright::dist::DistDialect"];
}

def JoinFetchesPass : Pass<"join-fetches", "::mlir::func::FuncOp"> {
  let summary = "small weights that are read close to each other travel in one launch";
  let description = [{
    Requires SPMD functions; leaves other functions alone. Guarantees the same results.

    Gathers of weights and collectives of their gradients are small if their bytes take at most four times
    the time of a launch without bytes. Small ones of one role, kind, phase and axes become one launch if
    no other one of these stands between them. Weights are gathered before the reader of the first one.
    Gradients are scattered when the last one is there.

    A joint launch takes no more memory than the largest weight or gradient of the function does, and its
    bytes take at most eight times the time of a launch without bytes. With `ahead`, a launch gathers at most
    so many weights.

    Before:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    !l = tensor<8x4xf32>
    !t = tensor<4x4xf32>
    dist.mesh @mesh = <["gtp"=2 {bandwidth = 1.0e9, latency = 1.0e-6} ]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                    %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                    %c: !t {nn.parameter = "c", dist.sharding = #shard, dist.global = !l})
        -> (tensor<4x8xf32> {dist.sharding = #whole, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %a axes ["gtp"] dims [0] role weights : (!s) -> !x
      %1 = nn.linear %x, %0 : (!x, !x) -> !x
      %2 = dist.all_gather %b axes ["gtp"] dims [0] role weights : (!s) -> !x
      %3 = nn.linear %1, %2 : (!x, !x) -> !x
      %4 = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!t) -> !l
      %5 = nn.linear %3, %4 : (!x, !l) -> tensor<4x8xf32>
      return %5 : tensor<4x8xf32>
    }
    ```
    After:
    ```mlir
    #shard = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x4xf32>
    !s = tensor<2x4xf32>
    !l = tensor<8x4xf32>
    !t = tensor<4x4xf32>
    dist.mesh @mesh = <["gtp"=2 {bandwidth = 1.0e9, latency = 1.0e-6} ]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x},
                    %a: !s {nn.parameter = "a", dist.sharding = #shard, dist.global = !x},
                    %b: !s {nn.parameter = "b", dist.sharding = #shard, dist.global = !x},
                    %c: !t {nn.parameter = "c", dist.sharding = #shard, dist.global = !l})
        -> (tensor<4x8xf32> {dist.sharding = #whole, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
      %0, %1 = dist.all_gather %a, %b axes ["gtp"] dims [0, 0] role weights : (!s, !s) -> (!x, !x)
      %2 = nn.linear %x, %0 : (!x, !x) -> !x
      %3 = nn.linear %2, %1 : (!x, !x) -> !x
      %4 = dist.all_gather %c axes ["gtp"] dims [0] role weights : (!t) -> !l
      %5 = nn.linear %3, %4 : (!x, !l) -> tensor<4x8xf32>
      return %5 : tensor<4x8xf32>
    }
    ```
  }];
  let options = [Option<"ahead", "ahead", "::meshwright::NumberOrAuto<0>",
                        /*default=*/"::meshwright::NumberOrAuto<0>()",
                        "the most weights of one launch; auto: any">];
  let dependentDialects = ["::meshwright::dist::DistDialect"];
}

#endif
