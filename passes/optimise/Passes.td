//===- Passes.td - passes over SPMD programs ---------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_PASSES_TD
#define MESHWRIGHT_PASSES_OPTIMISE_PASSES_TD

include "mlir/Pass/PassBase.td"

def WidenSumsPass : Pass<"widen-sums", "::mlir::ModuleOp"> {
  let summary = "partial sums of bf16 and f16 leave products in f32, and round once";
  let description = [{
    Changes SPMD functions; leaves other functions alone. Guarantees the same results, up to
    rounding.

    A product whose result is a partial sum over some axes gives its sums in f32. So do sums over
    elements. Ops that add or move partial sums follow, and the reduction sends 4 bytes an element.
    One cast behind it rounds. An addend that has no more digits in f32, as a row of a sharded
    table, gains nothing: a partial sum of such addends stays as it is.

    `types` are rules by the names of locations, which are those of modules: the first pattern that
    matches wins. A rule that matches no op is a warning.

    Before:
    ```mlir
    #split = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xbf16> {dist.sharding = #split, dist.global = tensor<4x16xbf16>},
                    %w: tensor<6x8xbf16> {dist.sharding = #split, dist.global = tensor<6x16xbf16>})
        -> (tensor<4x6xbf16> {dist.sharding = #whole, dist.global = tensor<4x6xbf16>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xbf16>
      %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x6xbf16>) -> tensor<4x6xbf16>
      return %1 : tensor<4x6xbf16>
    }
    ```
    After, with `types=f32`:
    ```mlir
    #split = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xbf16> {dist.sharding = #split, dist.global = tensor<4x16xbf16>},
                    %w: tensor<6x8xbf16> {dist.sharding = #split, dist.global = tensor<6x16xbf16>})
        -> (tensor<4x6xbf16> {dist.sharding = #whole, dist.global = tensor<4x6xbf16>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xf32>
      %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %2 = nn.cast %1 : (tensor<4x6xf32>) -> tensor<4x6xbf16>
      return %2 : tensor<4x6xbf16>
    }
    ```
  }];
  let options = [Option<"types", "types", "::meshwright::ReduceTypes", /*default=*/"::meshwright::ReduceTypes()",
                        "f32, or own, or rules: {\"pattern\": \"f32\", ...}">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def NarrowGradientsPass : Pass<"narrow-gradients", "::mlir::func::FuncOp"> {
  let summary = "let gradients of weights travel in bf16";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same results, up to the
    rounding of each part.

    A reduce-scatter of a gradient (with the role `gradients`) in f32 becomes an all-to-all of the parts,
    rounded to bf16, and a sum in f32, in the order of the ranks. Each rank sends half the bytes, and
    the result is the same bit by bit on every backend.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #parts = #dist.sharding<@mesh, [{}, {} ], unreduced = {"gtp"}>
    !g = tensor<8x4xf32>
    !s = tensor<4x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%g: !g {dist.sharding = #parts, dist.global = !g})
        -> (!s {dist.sharding = #rows, dist.global = !g}) attributes {dist.spmd = @mesh} {
      %0 = dist.reduce_scatter sum %g axes ["gtp"] dims [0] role gradients : (!g) -> !s
      return %0 : !s
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"gtp"}, {} ]>
    #parts = #dist.sharding<@mesh, [{}, {} ], unreduced = {"gtp"}>
    !g = tensor<8x4xf32>
    !s = tensor<4x4xf32>
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%g: !g {dist.sharding = #parts, dist.global = !g})
        -> (!s {dist.sharding = #rows, dist.global = !g}) attributes {dist.spmd = @mesh} {
      %0 = nn.cast parts %g : (!g) -> tensor<8x4xbf16>
      %1 = dist.parts %0 axes ["gtp"] : (tensor<8x4xbf16>) -> tensor<1x8x4xbf16>
      %2 = dist.all_to_all %1 axes ["gtp"] from [0] to [1] role gradients : (tensor<1x8x4xbf16>) -> tensor<2x4x4xbf16>
      %3 = nn.cast %2 : (tensor<2x4x4xbf16>) -> tensor<2x4x4xf32>
      %4 = nn.reduce sum %3 dims [0] : (tensor<2x4x4xf32>) -> !s
      return %4 : !s
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def MoveTrueRowsPass : Pass<"move-true-rows", "::mlir::func::FuncOp"> {
  let summary = "let ranks exchange the true rows of groups alone";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same results.

    An all-gather whose result is compacted (`dist.compact`) becomes an all-gather of the true rows, and
    a reduce-scatter of expanded rows (`dist.expand`) a reduce-scatter of the true ones. Each rank needs to
    have rows of one group alone; other collectives stay. An all-reduce of expanded rows goes before the
    `dist.expand`.

    Before:
    ```mlir
    #own = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #all = #dist.sharding<@mesh, [{}, {} ]>
    #counts = #dist.sharding<@mesh, [{} ]>
    !n = tensor<2xi64>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #own, dist.global = tensor<16x8xf32>}, %n: !n {dist.sharding = #counts, dist.global = !n})
        -> (tensor<8x8xf32> {dist.sharding = #all, dist.global = tensor<8x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %1 = dist.compact %0 counts %n tokens 8 rows 8 dim 0 : (tensor<16x8xf32>, !n) -> tensor<8x8xf32>
      return %1 : tensor<8x8xf32>
    }
    ```
    After:
    ```mlir
    #own = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #all = #dist.sharding<@mesh, [{}, {} ]>
    #counts = #dist.sharding<@mesh, [{} ]>
    !n = tensor<2xi64>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #own, dist.global = tensor<16x8xf32>}, %n: !n {dist.sharding = #counts, dist.global = !n})
        -> (tensor<8x8xf32> {dist.sharding = #all, dist.global = tensor<8x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0, %1 = dist.all_gather_v %x, %n axes ["tp"] tokens 8 rows 8 dims [0] : (tensor<4x8xf32>, !n) -> (tensor<8x8xf32>, !n)
      return %0 : tensor<8x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect"];
}

def DecomposeAllReducePass : Pass<"decompose-all-reduce", "::mlir::func::FuncOp"> {
  let summary = "splits all-reduces into a reduce-scatter and an all-gather over tokens";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same
    results.

    First, an addition of partial sums adds them before a shared reduction, as in
    parallel branches into one residual. Then each all-reduce of a value with tokens is
    split over its tokens. Tokens are the last dimension but one, or the first
    dimension if the former is shorter than the group and the latter is not. Tokens
    that do not divide are padded. `--sink-all-gather` moves the gather on.

    An all-reduce stays whole if no user of it can run on a shard of the tokens, or if
    two launches and the padding cost more than the users save on shards. The decision
    log has the numbers. Costs decide with `when=on`, too, for one number of each row, as
    softmax and losses over sharded classes reduce it.

    Before:
    ```mlir
    #partial = #dist.sharding<@mesh, [{}, {} ], unreduced = {"tp"}>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<16x8xf32> {dist.sharding = #partial, dist.global = tensor<16x8xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
      %1 = nn.relu %0 : tensor<16x8xf32>
      return %1 : tensor<16x8xf32>
    }
    ```
    After:
    ```mlir
    #partial = #dist.sharding<@mesh, [{}, {} ], unreduced = {"tp"}>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<16x8xf32> {dist.sharding = #partial, dist.global = tensor<16x8xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.reduce_scatter sum %x axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
      %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %2 = nn.relu %1 : tensor<16x8xf32>
      return %2 : tensor<16x8xf32>
    }
    ```
  }];
  let options = [Option<"when", "when", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
                        "on: wherever an op behind it can then run on a shard; off: nowhere; auto: where it "
                        "pays by the cost model">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def SinkAllGatherPass : Pass<"sink-all-gather", "::mlir::func::FuncOp"> {
  let summary = "moves all-gathers down to where the whole value is needed";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same
    results.

    An op that computes each row of the gathered dimension on its own (norm,
    residual addition, elementwise op, cast, reshape, a linear whose weight is
    not sharded over the gathered axes) runs on the shard, and its other operands are
    sliced. Its result is gathered for users that need it whole. A value is gathered
    before its users if that sends less: before two norms of one value, or before a
    projection to more features.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #rows, dist.global = tensor<16x8xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %1 = nn.relu %0 : tensor<16x8xf32>
      return %1 : tensor<16x8xf32>
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #rows, dist.global = tensor<16x8xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.relu %x : tensor<4x8xf32>
      %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      return %1 : tensor<16x8xf32>
    }
    ```

    Behind a reshape, the gathered rows may be a part of a dimension. The major part of
    this dimension then gets a dimension of its own for the gather. If the rows are
    padded and another axis shards the major part, it gets one even if its local size is
    1: padding can be stripped only at the end of a dimension that no other axis shards.
    Here "dp" shards two concatenated sequences of 7 tokens.

    Before:
    ```mlir
    #parts = #dist.sharding<@mesh, [{"dp"}, {"tp"}, {} ]>
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    dist.mesh @mesh = <["dp"=2, "tp"=2]>
    func.func @main(%x: tensor<1x4x8xf32> {dist.sharding = #parts, dist.global = tensor<2x7x8xf32>})
        -> (tensor<7x8xf32> {dist.sharding = #rows, dist.global = tensor<14x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [1] : (tensor<1x4x8xf32>) -> tensor<1x8x8xf32>
      %1 = nn.slice %0 starts [0, 0, 0] limits [1, 7, 8] strides [1, 1, 1]
        : (tensor<1x8x8xf32>) -> tensor<1x7x8xf32>
      %2 = nn.reshape %1 : (tensor<1x7x8xf32>) -> tensor<7x8xf32>
      %3 = nn.relu %2 : tensor<7x8xf32>
      return %3 : tensor<7x8xf32>
    }
    ```
    After:
    ```mlir
    #parts = #dist.sharding<@mesh, [{"dp"}, {"tp"}, {} ]>
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    dist.mesh @mesh = <["dp"=2, "tp"=2]>
    func.func @main(%x: tensor<1x4x8xf32> {dist.sharding = #parts, dist.global = tensor<2x7x8xf32>})
        -> (tensor<7x8xf32> {dist.sharding = #rows, dist.global = tensor<14x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.reshape %x : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
      %1 = nn.relu %0 : tensor<4x8xf32>
      %2 = nn.reshape %1 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
      %3 = dist.all_gather %2 axes ["tp"] dims [1] : (tensor<1x4x8xf32>) -> tensor<1x8x8xf32>
      %4 = nn.slice %3 starts [0, 0, 0] limits [1, 7, 8] strides [1, 1, 1]
        : (tensor<1x8x8xf32>) -> tensor<1x7x8xf32>
      %5 = nn.reshape %4 : (tensor<1x7x8xf32>) -> tensor<7x8xf32>
      return %5 : tensor<7x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def HoistSlicesPass : Pass<"hoist-slices", "::mlir::func::FuncOp"> {
  let summary = "moves slices up to the small values that large ones are computed from";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same
    results, except in padding.

    A `dist.slice`, and a `dist.pad` or `dist.reorder` before it, moves up past cheap
    elementwise ops if all users of their results are such slices, and if the operands
    have fewer bytes to slice. A mask that compares the ids of queries with those of
    keys is then computed for the queries of a rank and the keys of a step, not computed
    whole and sliced. Each part is computed once for all its users.

    A slice may append padding, and a pad does. After the move, that padding is computed
    by the ops that it moved past, and need not be zero. Where a reader needs zeros, the
    ops that append padding stay. So do those of values that are equal along the
    dimension, as constants are: their parts would not tell padding from true elements.

    Before:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    #keys = #dist.sharding<@mesh, [{}, {"ring"} ]>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: tensor<64x1xi64> {dist.sharding = #whole, dist.global = tensor<64x1xi64>},
                    %k: tensor<1x64xi64> {dist.sharding = #whole, dist.global = tensor<1x64xi64>})
        -> (tensor<64x32xi1> {dist.sharding = #keys, dist.global = tensor<64x64xi1>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.compare eq %q, %k : (tensor<64x1xi64>, tensor<1x64xi64>) -> tensor<64x64xi1>
      %1 = dist.slice %0 axes ["ring"] dims [1] : (tensor<64x64xi1>) -> tensor<64x32xi1>
      return %1 : tensor<64x32xi1>
    }
    ```
    After:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    #keys = #dist.sharding<@mesh, [{}, {"ring"} ]>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: tensor<64x1xi64> {dist.sharding = #whole, dist.global = tensor<64x1xi64>},
                    %k: tensor<1x64xi64> {dist.sharding = #whole, dist.global = tensor<1x64xi64>})
        -> (tensor<64x32xi1> {dist.sharding = #keys, dist.global = tensor<64x64xi1>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.slice %k axes ["ring"] dims [1] : (tensor<1x64xi64>) -> tensor<1x32xi64>
      %1 = nn.compare eq %q, %0 : (tensor<64x1xi64>, tensor<1x32xi64>) -> tensor<64x32xi1>
      return %1 : tensor<64x32xi1>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def HoistReductionsPass : Pass<"hoist-reductions", "::mlir::func::FuncOp"> {
  let summary = "moves sums over ranks up to where their terms are known";
  let description = [{
    Requires an SPMD function; leaves other functions alone. Guarantees the same results.

    A reduction moves up behind the last op that it waits for. Cheap ops that it alone reads, such
    as the addition of a gradient to those of other microbatches, move with it. So the reductions of
    a backward pass stand beside the work that they can overlap with, and `combine-collectives` sees
    this work between them.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    #partial = #dist.sharding<@mesh, [{}, {} ], unreduced = {"dp"}>
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
                    %g: tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
                    %w: tensor<4x4xf32> {dist.sharding = #whole, dist.global = tensor<4x4xf32>},
                    %sum: tensor<4x4xf32> {dist.sharding = #partial, dist.global = tensor<4x4xf32>})
        -> (tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
            tensor<2x4xf32> {dist.sharding = #rows, dist.global = tensor<4x4xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.weight_grad %g, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      %1 = nn.linear %g, %w {in_out} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %2 = nn.add %sum, %0 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %3 = dist.reduce_scatter sum %2 axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
      return %1, %3 : tensor<8x4xf32>, tensor<2x4xf32>
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    #partial = #dist.sharding<@mesh, [{}, {} ], unreduced = {"dp"}>
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
                    %g: tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
                    %w: tensor<4x4xf32> {dist.sharding = #whole, dist.global = tensor<4x4xf32>},
                    %sum: tensor<4x4xf32> {dist.sharding = #partial, dist.global = tensor<4x4xf32>})
        -> (tensor<8x4xf32> {dist.sharding = #rows, dist.global = tensor<16x4xf32>},
            tensor<2x4xf32> {dist.sharding = #rows, dist.global = tensor<4x4xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.weight_grad %g, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      %1 = nn.add %sum, %0 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = dist.reduce_scatter sum %1 axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
      %3 = nn.linear %g, %w {in_out} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      return %3, %2 : tensor<8x4xf32>, tensor<2x4xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def CombineCollectivesPass : Pass<"combine-collectives", "::mlir::func::FuncOp"> {
  let summary = "drops redundant collectives and joins independent ones into one launch";
  let description = [{
    Requires an SPMD function (passes over others); guarantees the same results.

    Equal collectives become one. A collective that undoes another one folds to that
    one's operand. Collectives of one kind over the same axes that do not depend on each
    other become one launch of several tensors, unless the wait for the later one
    costs more than the launch saved.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #rows, dist.global = tensor<16x8xf32>},
                    %y: tensor<4x2xf32> {dist.sharding = #rows, dist.global = tensor<16x2xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>},
            tensor<16x2xf32> {dist.sharding = #whole, dist.global = tensor<16x2xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      %1 = dist.all_gather %y axes ["tp"] dims [0] : (tensor<4x2xf32>) -> tensor<16x2xf32>
      return %0, %1 : tensor<16x8xf32>, tensor<16x2xf32>
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #rows, dist.global = tensor<16x8xf32>},
                    %y: tensor<4x2xf32> {dist.sharding = #rows, dist.global = tensor<16x2xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>},
            tensor<16x2xf32> {dist.sharding = #whole, dist.global = tensor<16x2xf32>})
        attributes {dist.spmd = @mesh} {
      %0:2 = dist.all_gather %x, %y axes ["tp"] dims [0, 0]
        : (tensor<4x8xf32>, tensor<4x2xf32>) -> (tensor<16x8xf32>, tensor<16x2xf32>)
      return %0#0, %0#1 : tensor<16x8xf32>, tensor<16x2xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
