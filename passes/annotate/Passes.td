//===- Passes.td - annotate --------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_PASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_PASSES_TD

include "mlir/Pass/PassBase.td"

class AnnotatePass<string name> : Pass<name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def DeclareMeshPass : AnnotatePass<"declare-mesh"> {
  let summary = "declare the mesh, where the module has none";
  let description = [{
    Adds `dist.mesh @mesh`. A module with the same mesh is left as it is; one with
    another mesh is an error.

    `--declare-mesh="mesh=dp=2,tp=4 device=h100"` gives
    ```mlir
    dist.mesh @mesh = <["dp"=2, "tp"=4], device = "h100">
    ```

    The stages of a composed program may each have a mesh over the same ranks. The
    module's is then the coarsest that all of them cut, and says what each makes of
    it; axes that a policy names are looked up in the mesh of each stage.

    `--declare-mesh="mesh=target:dp=2,tp=3;draft:dp=3,sp=2"` gives
    ```mlir
    dist.mesh @mesh = <["ranks"=6]> {dist.stages = {
        draft = #dist.mesh<["dp"=3, "sp"=2]>, target = #dist.mesh<["dp"=2, "tp"=3]>}}
    ```
  }];
  let options = [
    Option<"mesh", "mesh", "::meshwright::MeshOption", "",
           "axes, name=size, major to minor; or stage:axes;stage:axes">,
    Option<"device", "device", "std::string", "\"\"", "device preset">,
  ];
}

def AnnotateRulesPass : AnnotatePass<"annotate-rules"> {
  let summary = "give parameters the shardings that rules state";
  let description = [{
    Each rule is a shell pattern on parameter names and the bracketed part of a
    sharding; the first that matches a parameter wins. What a rule says stands
    above what policies find. A rule that matches nothing is a warning.

    Before, with `shardings={"*.up.weight": [{"tp"}, {} ] }`:
    ```mlir
    func.func @main(%w: tensor<8x4xf32> {nn.parameter = "mlp.up.weight"}) -> ...
    ```
    After:
    ```mlir
    func.func @main(%w: tensor<8x4xf32> {nn.parameter = "mlp.up.weight",
        dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>}) -> ...
    ```
  }];
  let options = [
    Option<"shardings", "shardings", "::meshwright::ShardingRules", "", "rules, as --parallelize takes them">,
  ];
}

def AnnotateDataParallelPass : AnnotatePass<"annotate-data-parallel"> {
  let summary = "split the batch over an axis";
  let description = [{
    Dimension 0 of every input whose dimension 0 equals the first input's is
    sharded over the axis; the other inputs are replicated. A batch that the axis
    does not divide is padded; a batch of one stays whole. Both leave a remark.
    Where stages have meshes of their own, each splits its own batch, and
    `dist.constrain` says how what another stage made lies in it.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32> {nn.input = "x"}) -> ...
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<8x4xf32> {nn.input = "x",
        dist.sharding = #dist.sharding<@mesh, [{"dp"}, {} ]>}) -> ...
    ```
  }];
  let options = [
    Option<"axis", "axis", "std::string", "\"dp\"", "mesh axis; empty: inputs are replicated">,
    Option<"optional", "optional", "bool", "false", "replicate where the mesh has no such axis">,
  ];
}

def SplitFusedLinearsPass : AnnotatePass<"split-fused-linears"> {
  let summary = "take fused projections apart where their outputs are";
  let description = [{
    A linear all of whose readers are slices of contiguous output features (a
    fused qkv or gate-and-up projection) becomes one linear a slice, on a part of
    the stored weight. So each part can be sharded by heads or features of its own.

    Before:
    ```mlir
    %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<24x8xf32>) -> tensor<4x24xf32>
    %q = nn.slice %y starts [0, 0] limits [4, 16] strides [1, 1] : ...
    %k = nn.slice %y starts [0, 16] limits [4, 24] strides [1, 1] : ...
    ```
    After, with `nn.parameter_offsets` on `%w0` and `%w1`:
    ```mlir
    %q = nn.linear %x, %w0 : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
    %k = nn.linear %x, %w1 : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    ```
  }];
}

def SplitJointAttentionPass : AnnotatePass<"split-joint-attention"> {
  let summary = "attend to each of several joined sequences for itself";
  let description = [{
    Diffusion transformers join the tokens of an image and of a prompt and attend to
    both at once. Attention over joined keys becomes attention over each part, put
    together by log-sum-exps; queries that are joined are taken apart too, and so are
    the readers of the result. Each sequence can then lie as suits it: the long one
    sharded, the short one whole, its keys counted once.

    Before:
    ```mlir
    %k = nn.concat %image_k, %text_k dim 2 : ... -> tensor<1x4x71x16xf32>
    %v = nn.concat %image_v, %text_v dim 2 : ... -> tensor<1x4x71x16xf32>
    %o = nn.attention %q, %k, %v scale 0.25 : ... -> tensor<1x4x64x16xf32>
    ```
    After:
    ```mlir
    %a, %la = nn.attention %q, %image_k, %image_v scale 0.25 : ... -> (tensor<1x4x64x16xf32>, tensor<1x4x64xf32>)
    %b, %lb = nn.attention %q, %text_k, %text_v scale 0.25 {nn.whole_keys} : ... -> (tensor<1x4x64x16xf32>, tensor<1x4x64xf32>)
    %o, %l = nn.merge_attention %a, %la, %b, %lb : ... -> (tensor<1x4x64x16xf32>, tensor<1x4x64xf32>)
    ```
  }];
}

def AnnotateTensorParallelPass : AnnotatePass<"annotate-tensor-parallel"> {
  let summary = "shard weights over an axis, found by structure";
  let description = [{
    Chooses classes of tied factors (see FactorAnalysis): the hidden features of
    an MLP, the heads of attention, the vocabulary. A class that is the output of
    some weights and contracted by others makes the former column-parallel and the
    latter row-parallel. Such pairs are taken first, then weights without a
    partner; among each by communication per weight byte, cheapest first, so that
    no value is sharded twice; a class that some op must
    read whole (a norm's features) is left out. No parameter names are looked at.

    Key/value heads: where the axis is a multiple of them they lie on a part of it
    and the queries of a group on the rest; otherwise they are padded.

    Before:
    ```mlir
    %1 = nn.linear %x, %up : (tensor<4x8xf32>, tensor<32x8xf32>) -> tensor<4x32xf32>
    %2 = nn.relu %1 : tensor<4x32xf32>
    %3 = nn.linear %2, %down : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
    ```
    After: `%up` carries `[{"tp"}, {} ]`, `%down` `[{}, {"tp"} ]`.
  }];
  let options = [
    Option<"axis", "axis", "std::string", "\"tp\"", "mesh axis, or several, major to minor: ring,ulysses">,
    Option<"optional", "optional", "bool", "false", "do nothing where the mesh has no such axis">,
    ListOption<"onlyStages", "stages", "std::string", "stages of a composed program; all where empty">,
    ListOption<"exceptStages", "except", "std::string", "stages to leave alone">,
  ];
}

def AnnotateScatterModesPass : AnnotatePass<"annotate-scatter-modes"> {
  let summary = "choose the residual stream's layout between blocks";
  let description = [{
    Where tensor-parallel partial sums are reduced, and from there on through all
    that works on each token alone (residual adds, norms, casts, projections by
    whole weights to something narrower), tokens are sharded over the axis:
    all-reduces become reduce-scatters and all-gathers, and norms run on the shard.
    Inputs and results of the model keep their tokens whole.

    Tokens are the sequence; where that is shorter than the axis and the batch is
    not, the batch. `mode` is on, off or auto: by cost.

    Before:
    ```mlir
    %y = nn.linear %h, %down : (tensor<1x8x32xf32>, tensor<16x32xf32>) -> tensor<1x8x16xf32>
    %z = nn.add %x, %y : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
    ```
    After: `%y` and `%z` carry `[{}, {"tp"}, {} ]`.
  }];
  let options = [
    Option<"axis", "axis", "std::string", "\"tp\"", "mesh axis">,
    Option<"optional", "optional", "bool", "false", "do nothing where the mesh has no such axis">,
    Option<"mode", "mode", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto", "on, off or auto">,
  ];
}

def ChooseContextParallelPass : AnnotatePass<"choose-context-parallel"> {
  let summary = "choose the axes for Ulysses and ring, and the order of the sequence";
  let description = [{
    What is `auto` is chosen among all plans that use as many of the mesh's axes as
    any: those that neither data nor tensor parallelism has, one for `ulysses`, one for
    `ring`, and under a causal mask the order of the sequence on the ring.

    A plan is priced by what self-attention costs a rank: all-to-alls of q, k, v and of
    the output; per step of the ring the largest work of a rank, counted pair by pair
    under the mask, the keys' way and the merge of the parts. Heads that do not go
    around are padded, key/value heads copied. Nothing counts as hidden. The fastest
    plan is taken, unless it is less than 25 % faster than the usual one: Ulysses where
    links are fast, the ring where one is slow (an axis named `host`), and no longer
    than it must be.

    Of the orders zigzag balances causal work. Striped balances it as well, but leaves
    runs of one token: all steps remain needed under a window, and no tile of a kernel
    is free of the mask. So it is taken only where it is asked for.

    Before, `ulysses=auto ring=auto` with 8 heads:
    ```mlir
    dist.mesh @mesh = <["host"=2, "sp"=4], device = "h100">
    ```
    After:
    ```mlir
    module attributes {dist.context_parallel = {order = "zigzag", ring = "host", ulysses = "sp"}}
    ```
    which `--fold-encoder` reads and `--annotate-context-parallel` reads and removes.
  }];
  let options = [
    Option<"ulysses", "ulysses", "std::string", "\"auto\"", "mesh axis, auto, or empty for none">,
    Option<"ring", "ring", "std::string", "\"auto\"", "mesh axis, auto, or empty for none">,
    Option<"order", "order", "std::string", "\"auto\"", "contiguous, zigzag, striped or auto">,
    Option<"data", "data", "std::string", "\"dp\"", "mesh axis of data parallelism">,
    Option<"tensor", "tensor", "std::string", "\"tp\"", "mesh axis of tensor parallelism">,
    ListOption<"exceptStages", "except", "std::string",
           "stages of a composed program whose sequences stay whole">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", "0",
           "bytes that attention may take on a rank; 0: any">,
  ];
}

def AnnotateContextParallelPass : AnnotatePass<"annotate-context-parallel"> {
  let summary = "shard the sequence, and move heads where attention mixes it";
  let description = [{
    The sequences that self-attention mixes are sharded over `ring` and `ulysses`,
    from the inputs to the results. Around attention, `dist.constrain` moves
    `ulysses` from the sequence to the heads and back: the resharder writes
    all-to-alls. Key/value heads take a part of the axis and the queries of a group
    the rest, on whose ranks there are copies of the keys: the parts that send fewest
    bytes, then compute fewest heads. Heads that do not divide are padded.

    Along `ring` the keys stay sharded: `--partition` writes attention in steps, in
    which keys and values go around. Under a causal mask the sequence lies in zigzag
    order (`order`), so that all ranks have as much to do.

    Ids of which a mask or an index is made are whole on every rank, and cut where they
    are embedded.

    Before:
    ```mlir
    %o = nn.attention %q, %k, %v scale 0.25 : (tensor<1x4x8x16xf32>, ...) -> tensor<1x4x8x16xf32>
    ```
    After:
    ```mlir
    %q1 = dist.constrain %q <@mesh, [{}, {"ulysses"}, {"ring"}, {} ]> : tensor<1x4x8x16xf32>
    ... // %k1 and %v1 likewise
    %o1 = nn.attention %q1, %k1, %v1 scale 0.25 : (tensor<1x4x8x16xf32>, ...) -> tensor<1x4x8x16xf32>
    %o = dist.constrain %o1 <@mesh, [{}, {}, {"ring", "ulysses"}, {} ]> : tensor<1x4x8x16xf32>
    ```
  }];
  let options = [
    Option<"ulysses", "ulysses", "std::string", "\"\"",
           "mesh axis that heads move along, or auto: as choose-context-parallel chose">,
    Option<"ring", "ring", "std::string", "\"\"",
           "mesh axis that keys and values move along, or auto">,
    Option<"order", "order", "std::string", "\"auto\"",
           "how the sequence lies on the ring: contiguous, zigzag, striped or auto">,
    ListOption<"exceptStages", "except", "std::string",
           "stages of a composed program whose sequences stay whole">,
  ];
}

def FoldEncoderPass : AnnotatePass<"fold-encoder"> {
  let summary = "shard a stage's weights over axes that other stages split sequences over";
  let description = [{
    A text encoder before a denoiser whose sequence is sharded would be held and
    computed whole by every rank. Folded, its weights are sharded over the axes of
    `mode`, found by structure as for tensor parallelism:
    - sp: ring and ulysses; ulysses; ring;
    - replica: all axes but that of data parallelism;
    - batch: weights whole, the batch split over ring and ulysses instead;
    - none: as other stages, over `tensor`;
    - auto: the one that takes the least time of those whose memory fits (see below).

    Over axes that a mode does not name the stage is replicated. What other stages
    read of it is whole again on every rank. Features that do not divide are
    padded, or take a part of the axes, and a remark says which; a group of one
    leaves a remark.

    `auto` plans the stage alone in each mode that the mesh offers, up to the
    optimised SPMD program, and asks the cost model: weights are read from memory
    once a run (what counts with few tokens), products take their arithmetic (what
    counts with many), collectives their latency and bytes. Of the modes whose memory,
    with the other stages' weights, stays below the ceiling the fastest is taken,
    unless it is less than 15 % faster than one with fewer collectives (30 % than
    `batch`). The decision has the table: time, bytes, memory.

    Before:
    ```mlir
    func.func @main(%ids: tensor<1x7xi64> {nn.input = "encoder.ids"},
        %w: tensor<64x32xf32> {nn.parameter = "encoder.wi.weight"}) -> ...
    ```
    After `stage=encoder mode=ulysses`:
    ```mlir
    func.func @main(%ids: tensor<1x7xi64> {nn.input = "encoder.ids"},
        %w: tensor<64x32xf32> {nn.parameter = "encoder.wi.weight",
            dist.sharding = #dist.sharding<@mesh, [{"ulysses"}, {} ]>}) -> ...
    ```
  }];
  let options = [
    Option<"stage", "stage", "std::string", "", "a stage of a composed program">,
    Option<"mode", "mode", "::meshwright::FoldMode", "::meshwright::FoldMode::Sp",
           "sp, ulysses, ring, replica, batch, none or auto">,
    Option<"ulysses", "ulysses", "std::string", "\"\"", "mesh axis, or auto: as chosen before">,
    Option<"ring", "ring", "std::string", "\"\"", "mesh axis, or auto: as chosen before">,
    Option<"data", "data", "std::string", "\"dp\"", "mesh axis of data parallelism">,
    Option<"tensor", "tensor", "std::string", "\"\"",
           "mesh axis of tensor parallelism, if the mesh has it: mode none">,
    Option<"sequenceParallel", "sequence-parallel", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto",
           "on, off or auto: how alternatives of mode auto are planned">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", "0",
           "bytes a rank may use, for mode auto; 0: the device's memory">,
  ];
}

#endif
