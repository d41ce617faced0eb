//===- DpAttentionPasses.td - attention in groups of ranks -*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_DPATTENTIONPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_DPATTENTIONPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

def AnnotateDpAttentionPass : AnnotatePass<"annotate-dp-attention"> {
  let summary = "shard attention over groups of ranks, and other weights over all";
  let description = [{
    Data-parallel attention. The ranks of tensor parallelism form groups. The groups, the major part of
    the axes, split the batch of the inputs behind the axes of data parallelism. The ranks of a group,
    the minor part, split the weights of attention. So a cache of keys and values is in as many parts as
    there are ranks, even where there are fewer key/value heads than ranks.

    The pass finds weights by structure, as `annotate-tensor-parallel` does, and takes its place:
    - features of ops that combine two values that depend on the inputs (heads) are split over a group's
      ranks;
    - other features between two weights, over all ranks, or with `dense-tp=1` over none: then each rank
      computes its own tokens;
    - features that no weight contracts (a vocabulary), over a group's ranks with `lm-head=on`, else over
      all ranks; `auto` compares the time to read the weights and the time to gather the tokens;
    - rows of experts and tables, over all ranks.

    Layouts say the rest: between attention and a layer of all ranks tokens are gathered, and partial
    sums are scattered on the way back. A batch that the groups do not divide is padded. A batch of 1 is
    whole on each group.

    The mesh notes the choice, which `annotate-scatter-modes` reads.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x6x8xf32> {nn.input = "x"}, %q: tensor<8x8xf32> {nn.parameter = "q"},
                    %o: tensor<8x8xf32> {nn.parameter = "o"}, %up: tensor<16x8xf32> {nn.parameter = "up"},
                    %down: tensor<8x16xf32> {nn.parameter = "down"}) -> tensor<4x6x8xf32> {
      %0 = nn.linear %x, %q : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
      %1 = nn.reshape %0 : (tensor<4x6x8xf32>) -> tensor<4x6x4x2xf32>
      %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<4x6x4x2xf32>) -> tensor<4x4x6x2xf32>
      %3 = nn.attention %2, %2, %2 scale 1.0 {causal}
        : (tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>) -> tensor<4x4x6x2xf32>
      %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<4x4x6x2xf32>) -> tensor<4x6x4x2xf32>
      %5 = nn.reshape %4 : (tensor<4x6x4x2xf32>) -> tensor<4x6x8xf32>
      %6 = nn.linear %5, %o : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
      %7 = nn.linear %6, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
      %8 = nn.linear %7, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
      return %8 : tensor<4x6x8xf32>
    }
    ```
    After, with `groups=2`:
    ```mlir
    #batch = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {} ]>
    #heads = #dist.sharding<@mesh, [{"tp":(2)2}, {} ]>
    #heads_in = #dist.sharding<@mesh, [{}, {"tp":(2)2} ]>
    #columns = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #rows = #dist.sharding<@mesh, [{}, {"tp"} ]>
    dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64, own_head = true}}
    func.func @main(%x: tensor<4x6x8xf32> {nn.input = "x", dist.sharding = #batch},
                    %q: tensor<8x8xf32> {nn.parameter = "q", dist.sharding = #heads},
                    %o: tensor<8x8xf32> {nn.parameter = "o", dist.sharding = #heads_in},
                    %up: tensor<16x8xf32> {nn.parameter = "up", dist.sharding = #columns},
                    %down: tensor<8x16xf32> {nn.parameter = "down", dist.sharding = #rows})
        -> tensor<4x6x8xf32> {
      %0 = nn.linear %x, %q : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
      %1 = nn.reshape %0 : (tensor<4x6x8xf32>) -> tensor<4x6x4x2xf32>
      %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<4x6x4x2xf32>) -> tensor<4x4x6x2xf32>
      %3 = nn.attention %2, %2, %2 scale 1.0 {causal}
        : (tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>) -> tensor<4x4x6x2xf32>
      %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<4x4x6x2xf32>) -> tensor<4x6x4x2xf32>
      %5 = nn.reshape %4 : (tensor<4x6x4x2xf32>) -> tensor<4x6x8xf32>
      %6 = nn.linear %5, %o : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
      %7 = nn.linear %6, %up : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
      %8 = nn.linear %7, %down : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
      return %8 : tensor<4x6x8xf32>
    }
    ```
  }];
  let options = [
    Option<"groups", "groups", "::meshwright::NumberOrAuto<1>", "::meshwright::NumberOrAuto<1>{1}",
           "the number of groups; auto: as many as keep ranks from holding equal key/value heads">,
    Option<"denseTp", "dense-tp", "::meshwright::NumberOrAuto<1>", "::meshwright::NumberOrAuto<1>()",
           "the ranks that share a dense layer: 1, or (auto) all ranks of tensor parallelism">,
    Option<"lmHead", "lm-head", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto",
           "on: a group computes the logits of its own tokens; off: all ranks those of all tokens; "
           "auto: by cost">,
    Option<"data", "data", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "axes of data parallelism, none, or auto: as annotate-data-parallel takes them">,
    Option<"tensor", "tensor", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "axes of tensor parallelism, none, or auto: as annotate-tensor-parallel takes them">,
    ListOption<"exceptStages", "except", "std::string", "stages to leave alone">,
  ];
}

#endif
