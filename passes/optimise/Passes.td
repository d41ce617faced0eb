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

    ```mlir
    %1 = nn.linear %0, %w : (tensor<16x8xbf16>, tensor<4x8xbf16>) -> tensor<16x4xbf16>
    %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<16x4xbf16>) -> tensor<16x4xbf16>
    ```
    becomes
    ```mlir
    %1 = nn.linear %0, %w : (tensor<16x8xbf16>, tensor<4x8xbf16>) -> tensor<16x4xf32>
    %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<16x4xf32>) -> tensor<16x4xf32>
    %3 = nn.cast %2 : (tensor<16x4xf32>) -> tensor<16x4xbf16>
    ```
  }];
  let options = [Option<"types", "types", "::meshwright::ReduceTypes", /*default=*/"::meshwright::ReduceTypes()",
                        "f32, or own, or rules: {\"pattern\": \"f32\", ...}">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
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

    ```mlir
    %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
    %2 = nn.relu %1 : tensor<16x8xf32>
    ```
    becomes
    ```mlir
    %1 = dist.reduce_scatter sum %0 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
    %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %3 = nn.relu %2 : tensor<16x8xf32>
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

    ```mlir
    %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %2 = nn.relu %1 : tensor<16x8xf32>
    ```
    becomes
    ```mlir
    %1 = nn.relu %0 : tensor<4x8xf32>
    %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    ```

    Behind a reshape, the gathered rows may be a part of a dimension. The major part of
    this dimension then gets a dimension of its own for the gather. If the rows are
    padded and another axis shards the major part, it gets one even if its local size is
    1: padding can be stripped only at the end of a dimension that no other axis shards.
    Here "dp" shards two concatenated sequences of 7 tokens:

    ```mlir
    %1 = nn.reshape %0 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %2 = dist.all_gather %1 axes ["tp"] dims [1] : (tensor<1x4x8xf32>) -> tensor<1x8x8xf32>
    %3 = nn.slice %2 starts [0, 0, 0] limits [1, 7, 8] strides [1, 1, 1] : (tensor<1x8x8xf32>) -> tensor<1x7x8xf32>
    %4 = nn.reshape %3 : (tensor<1x7x8xf32>) -> tensor<7x8xf32>
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

    ```mlir
    %1 = nn.compare eq %q, %k : (tensor<64x1xi64>, tensor<1x64xi64>) -> tensor<64x64xi1>
    %2 = dist.slice %1 axes ["ring"] dims [1] shift 1 : (tensor<64x64xi1>) -> tensor<64x32xi1>
    ```
    becomes
    ```mlir
    %1 = dist.slice %k axes ["ring"] dims [1] shift 1 : (tensor<1x64xi64>) -> tensor<1x32xi64>
    %2 = nn.compare eq %q, %1 : (tensor<64x1xi64>, tensor<1x32xi64>) -> tensor<64x32xi1>
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

    ```mlir
    %2 = nn.weight_grad %0, %1 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %3 = nn.linear %0, %w {in_out} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = nn.add %sum, %2 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = dist.reduce_scatter sum %4 axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
    ```
    becomes
    ```mlir
    %2 = nn.weight_grad %0, %1 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %3 = nn.add %sum, %2 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = dist.reduce_scatter sum %3 axes ["dp"] dims [0] : (tensor<4x4xf32>) -> tensor<2x4xf32>
    %5 = nn.linear %0, %w {in_out} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
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

    ```mlir
    %2 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    %3 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<4x2xf32>) -> tensor<16x2xf32>
    ```
    becomes
    ```mlir
    %2:2 = dist.all_gather %0, %1 axes ["tp"] dims [0, 0] : (tensor<4x8xf32>, tensor<4x2xf32>) -> (tensor<16x8xf32>, tensor<16x2xf32>)
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
