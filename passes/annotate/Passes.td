//===- Passes.td - annotate --------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_PASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_PASSES_TD

include "meshwright/passes/annotate/CachePasses.td"
include "meshwright/passes/annotate/DpAttentionPasses.td"
include "meshwright/passes/annotate/ExpertPasses.td"
include "meshwright/passes/annotate/StoredPasses.td"

def DeclareMeshPass : AnnotatePass<"declare-mesh"> {
  let summary = "declare the mesh, where the module has none, and the roles of its axes";
  let description = [{
    Adds `dist.mesh @mesh`. A module with the same mesh is left as it is; one with
    another mesh is an error.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32> {nn.input = "x"}) { return }
    ```
    After, with `mesh=dp=2,tp=4 device=h100`:
    ```mlir
    dist.mesh @mesh = <["dp"=2, "tp"=4], device = "h100">
    func.func @main(%x: tensor<8x4xf32> {nn.input = "x"}) { return }
    ```

    With `roles` the pass also decides which axis has each role, and writes the roles of all
    axes to the mesh. A role has the axis that the option names, which must exist, or none.
    With `auto` it has the axis that has it on the module's mesh; on a mesh without roles, the
    role's usual axis if the mesh has one of this name (data: `dp`, tensor: `tp`). Roles that the
    option does not mention are `auto` if they have a usual axis, and `none` otherwise. For
    ring and ulysses `auto` leaves the axis to `choose-context-parallel`.

    Policies look up axes by role. The option of a policy may name an axis instead. On a
    mesh whose roles no pass has declared, a policy takes the usual axis. So each pass runs
    alone, too.

    Before:
    ```mlir
    dist.mesh @mesh = <["dp"=2, "model"=4]>
    ```
    After, with `roles=tensor=model`:
    ```mlir
    dist.mesh @mesh = <["dp"=2 {roles = [data]}, "model"=4 {roles = [tensor]} ]>
    ```

    Each stage of a composed program may have a mesh of its own over the same ranks.
    The module's mesh is then the finest one such that each axis of a stage is a part of
    one of its axes, and `dist.stages` has the mesh of each stage, with its roles. Policies
    look up axes in the mesh of each stage.

    Before:
    ```mlir
    func.func @main(%x: tensor<6xf32> {nn.input = "draft.x"}) -> tensor<6xf32> {
      %0 = nn.neg %x {nn.stage = "draft"} : tensor<6xf32>
      %1 = nn.exp %0 {nn.stage = "target"} : tensor<6xf32>
      return %1 : tensor<6xf32>
    }
    ```
    After, with `mesh=target:dp=2,tp=3;draft:dp=3,sp=2`:
    ```mlir
    dist.mesh @mesh = <["ranks"=6]> {dist.stages = {
      draft = #dist.mesh<["dp"=3, "sp"=2]>, target = #dist.mesh<["dp"=2, "tp"=3]>}}
    func.func @main(%x: tensor<6xf32> {nn.input = "draft.x"}) -> tensor<6xf32> {
      %0 = nn.neg %x {nn.stage = "draft"} : tensor<6xf32>
      %1 = nn.exp %0 {nn.stage = "target"} : tensor<6xf32>
      return %1 : tensor<6xf32>
    }
    ```
  }];
  let options = [
    Option<"mesh", "mesh", "::meshwright::MeshOption", "",
           "axes, name=size, major to minor; or stage:axes;stage:axes">,
    Option<"device", "device", "std::string", "\"\"",
           "a preset, numbers or a device file; auto: the device that plans assume; empty: none">,
    Option<"target", "target", "std::string", "\"\"", "the target for which auto assumes a device">,
    Option<"replacesDevice", "replaces-device", "bool", "false",
           "the mesh of the module gets the device, too">,
    Option<"roles", "roles", "::meshwright::AxisChoices", "::meshwright::AxisChoices()",
           "role=axis,... where an axis is a name, none or auto; empty: roles stay as they are">,
  ];
}

def AnnotateRulesPass : AnnotatePass<"annotate-rules"> {
  let summary = "give parameters the shardings that rules state";
  let description = [{
    A rule is a shell pattern on parameter names and the bracketed part of a
    sharding. The first rule that matches a parameter wins. Policies keep the
    shardings that rules state. A rule that matches no parameter is a warning. Axes of a dimension
    of size 1 shard nothing; the decision log says so.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%w: tensor<8x4xf32> {nn.parameter = "mlp.up.weight"}) { return }
    ```
    After, with `shardings={"*.up.weight": [{"tp"}, {} ] }`:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%w: tensor<8x4xf32> {nn.parameter = "mlp.up.weight",
        dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>}) { return }
    ```
  }];
  let options = [
    Option<"shardings", "shardings", "::meshwright::ShardingRules", "", "rules, as --parallelize takes them">,
  ];
}

def AnnotateDataParallelPass : AnnotatePass<"annotate-data-parallel"> {
  let summary = "split the batch over an axis";
  let description = [{
    The batch is dimension 0 of the first input. Every input with an equal dimension 0
    is sharded over the axis along it; the other inputs are replicated. `nn.batch` on an
    input says whether its dimension 0 is the batch; then the first input of which it says so
    has its size. A batch that
    the axis does not divide is padded, and a batch of one stays whole. The decision
    log notes both. Stages with meshes of their own split their own batches;
    `dist.constrain` states the layouts that values of other stages have in them.

    Before:
    ```mlir
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<8x4xf32> {nn.input = "x"},
                    %scale: tensor<4xf32> {nn.input = "scale"}) { return }
    ```
    After:
    ```mlir
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(
        %x: tensor<8x4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {} ]>},
        %scale: tensor<4xf32> {nn.input = "scale", dist.sharding = #dist.sharding<@mesh, [{} ]>}) {
      return
    }
    ```
  }];
  let options = [
    Option<"axis", "axis", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, or several, major to minor: host,dp; none: inputs are replicated; auto: "
           "those with the role data, or dp on a mesh without roles">,
    Option<"optional", "optional", "bool", "false", "replicate where the mesh has no such axis">,
  ];
}

def SplitFusedLinearsPass : AnnotatePass<"split-fused-linears"> {
  let summary = "split fused projections whose outputs are split";
  let description = [{
    Splits a linear of which all users slice contiguous output features, such as a
    fused qkv or gate-and-up projection. Each slice becomes a linear with a part of
    the stored weight. Each part can then be sharded by its own heads or features.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32>, %w: tensor<24x8xf32> {nn.parameter = "qk"})
        -> (tensor<4x16xf32>, tensor<4x8xf32>) {
      %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<24x8xf32>) -> tensor<4x24xf32>
      %q = nn.slice %y starts [0, 0] limits [4, 16] strides [1, 1]
        : (tensor<4x24xf32>) -> tensor<4x16xf32>
      %k = nn.slice %y starts [0, 16] limits [4, 24] strides [1, 1]
        : (tensor<4x24xf32>) -> tensor<4x8xf32>
      return %q, %k : tensor<4x16xf32>, tensor<4x8xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(
        %x: tensor<4x8xf32>,
        %w0: tensor<16x8xf32> {nn.parameter = "qk", nn.parameter_offsets = array<i64: 0, 0>},
        %w1: tensor<8x8xf32> {nn.parameter = "qk", nn.parameter_offsets = array<i64: 16, 0>})
        -> (tensor<4x16xf32>, tensor<4x8xf32>) {
      %q = nn.linear %x, %w0 : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
      %k = nn.linear %x, %w1 : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      return %q, %k : tensor<4x16xf32>, tensor<4x8xf32>
    }
    ```
  }];
}

def SplitJointAttentionPass : AnnotatePass<"split-joint-attention"> {
  let summary = "split attention over joined sequences into attention over each";
  let description = [{
    Diffusion transformers join the tokens of an image and of a prompt, and attend to
    both at once. The pass replaces attention over joined keys by attention over the
    keys of each part, merged by log-sum-exps. It also splits joined queries and the
    users of the result. Each sequence can then have a layout of its own: the long one
    is sharded, the short one is whole, and its keys count once.

    Before:
    ```mlir
    func.func @main(%q: tensor<1x2x6x8xf32>, %image: tensor<1x2x6x8xf32>,
                    %text: tensor<1x2x3x8xf32>) -> tensor<1x2x6x8xf32> {
      %kv = nn.concat %image, %text dim 2
        : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
      %o = nn.attention %q, %kv, %kv scale 0.25
        : (tensor<1x2x6x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>) -> tensor<1x2x6x8xf32>
      return %o : tensor<1x2x6x8xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%q: tensor<1x2x6x8xf32>, %image: tensor<1x2x6x8xf32>,
                    %text: tensor<1x2x3x8xf32>) -> tensor<1x2x6x8xf32> {
      %a, %la = nn.attention %q, %image, %image scale 0.25
        : (tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>)
        -> (tensor<1x2x6x8xf32>, tensor<1x2x6xf32>)
      %b, %lb = nn.attention %q, %text, %text scale 0.25 {nn.whole_keys}
        : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>)
        -> (tensor<1x2x6x8xf32>, tensor<1x2x6xf32>)
      %o, %l = nn.merge_attention %a, %la, %b, %lb
        : (tensor<1x2x6x8xf32>, tensor<1x2x6xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6xf32>)
        -> (tensor<1x2x6x8xf32>, tensor<1x2x6xf32>)
      return %o : tensor<1x2x6x8xf32>
    }
    ```
  }];
}

def AnnotateTensorParallelPass : AnnotatePass<"annotate-tensor-parallel"> {
  let summary = "shard weights over an axis, found by structure";
  let description = [{
    Chooses classes of tied factors (see FactorAnalysis): the hidden features of
    an MLP, the heads of attention, the vocabulary. If a class is the output of some
    weights and other weights contract it, the former become column-parallel and the
    latter row-parallel. The pass takes such pairs first, then weights without a
    partner, each in the order of communication per byte of weight. A class that would
    shard a value twice is left out, and so is one that some op needs whole, such as
    the features of a norm. Names of parameters play no part.

    If the size of the axis is a multiple of the number of key/value heads, these are
    sharded over a part of the axis and the query heads of a group over the rest.
    Otherwise key/value heads are padded.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32>, %up: tensor<32x8xf32> {nn.parameter = "up"},
                    %down: tensor<8x32xf32> {nn.parameter = "down"}) -> tensor<4x8xf32> {
      %0 = nn.linear %x, %up : (tensor<4x8xf32>, tensor<32x8xf32>) -> tensor<4x32xf32>
      %1 = nn.relu %0 : tensor<4x32xf32>
      %2 = nn.linear %1, %down : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
      return %2 : tensor<4x8xf32>
    }
    ```
    After:
    ```mlir
    #column_parallel = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #row_parallel = #dist.sharding<@mesh, [{}, {"tp"} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32>,
                    %up: tensor<32x8xf32> {nn.parameter = "up", dist.sharding = #column_parallel},
                    %down: tensor<8x32xf32> {nn.parameter = "down", dist.sharding = #row_parallel})
        -> tensor<4x8xf32> {
      %0 = nn.linear %x, %up : (tensor<4x8xf32>, tensor<32x8xf32>) -> tensor<4x32xf32>
      %1 = nn.relu %0 : tensor<4x32xf32>
      %2 = nn.linear %1, %down : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
      return %2 : tensor<4x8xf32>
    }
    ```
  }];
  let options = [
    Option<"axis", "axis", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, or several, major to minor: ring,ulysses; none; auto: those with the role "
           "tensor, or tp on a mesh without roles">,
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

    With data-parallel attention (see `annotate-dp-attention`) tokens are sharded over the ranks of a
    group: the rows of its batch, if the ranks divide them; one row of the batch and a part of its tokens for each rank, if
    the rows are fewer than the ranks and divide them; else the tokens. Where dense layers are whole on each rank, they compute the shards, too.

    Before:
    ```mlir
    #row_parallel = #dist.sharding<@mesh, [{}, {"tp"} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<1x8x16xf32>, %h: tensor<1x8x32xf32>,
                    %down: tensor<16x32xf32> {nn.parameter = "down", dist.sharding = #row_parallel})
        -> tensor<1x8x16xf32> {
      %y = nn.linear %h, %down : (tensor<1x8x32xf32>, tensor<16x32xf32>) -> tensor<1x8x16xf32>
      %z = nn.add %x, %y : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
      return %z : tensor<1x8x16xf32>
    }
    ```
    After, with `mode=on`:
    ```mlir
    #row_parallel = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #tokens = #dist.sharding<@mesh, [{}, {"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<1x8x16xf32>, %h: tensor<1x8x32xf32>,
                    %down: tensor<16x32xf32> {nn.parameter = "down", dist.sharding = #row_parallel})
        -> (tensor<1x8x16xf32> {dist.sharding = #whole}) {
      %y = nn.linear %h, %down {dist.sharding = #tokens}
        : (tensor<1x8x32xf32>, tensor<16x32xf32>) -> tensor<1x8x16xf32>
      %z = nn.add %x, %y {dist.sharding = #tokens}
        : (tensor<1x8x16xf32>, tensor<1x8x16xf32>) -> tensor<1x8x16xf32>
      return %z : tensor<1x8x16xf32>
    }
    ```
  }];
  let options = [
    Option<"axis", "axis", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, or several, major to minor; none; auto: those with the role tensor, or tp on "
           "a mesh without roles">,
    Option<"optional", "optional", "bool", "false", "do nothing where the mesh has no such axis">,
    Option<"mode", "mode", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto", "on, off or auto">,
  ];
}

def ChooseContextParallelPass : AnnotatePass<"choose-context-parallel"> {
  let summary = "choose the axes for Ulysses and ring, and the order of the sequence";
  let description = [{
    Chooses the options that are `auto`: an axis for `ulysses`, an axis for `ring`, and
    under a causal mask the order of the sequence on the ring. The candidates are the
    plans that use the most axes, of those that neither data nor tensor parallelism
    uses.

    The price of a plan is the time that self-attention takes on a rank:
    - the all-to-alls of q, k, v and the output;
    - for each step of the ring, the largest work of a rank, counted in pairs of a
      query and a key that the mask shows; the permutes of keys and values; and the
      merge of the parts.
    Query heads that do not divide are padded, and key/value heads are copied. No
    communication counts as hidden. The fastest plan wins, unless it is less than 25 %
    faster than the usual plan: Ulysses over fast links, the ring over a slow one (an
    axis named `host`), and a ring no longer than it must be.

    Zigzag order balances causal work. So does striped order, but its runs have one
    token. Under a window all its steps remain, and no tile of a kernel is free of the
    mask. So only a user can ask for striped order.

    Before:
    ```mlir
    dist.mesh @mesh = <["host"=2, "sp"=4], device = "h100">
    func.func @main(%x: tensor<1x8x64x128xf32>) -> tensor<1x8x64x128xf32> {
      %o = nn.attention %x, %x, %x scale 0.25 {causal}
        : (tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>)
        -> tensor<1x8x64x128xf32>
      return %o : tensor<1x8x64x128xf32>
    }
    ```
    After, with `ulysses=auto ring=auto`:
    ```mlir
    dist.mesh @mesh = <["host"=2 {roles = [ring], order = zigzag}, "sp"=4 {roles = [ulysses]} ],
                       device = "h100">
    func.func @main(%x: tensor<1x8x64x128xf32>) -> tensor<1x8x64x128xf32> {
      %o = nn.attention %x, %x, %x scale 0.25 {causal}
        : (tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>, tensor<1x8x64x128xf32>)
        -> tensor<1x8x64x128xf32>
      return %o : tensor<1x8x64x128xf32>
    }
    ```
    An axis that has the role ring or ulysses before keeps it. On a mesh without roles, the pass
    writes those of `data` and `tensor`, too.
  }];
  let options = [
    Option<"ulysses", "ulysses", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, none or auto">,
    Option<"ring", "ring", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, none or auto">,
    Option<"order", "order", "::meshwright::SequenceOrder", "::meshwright::SequenceOrder::Auto",
           "contiguous, zigzag, striped or auto">,
    Option<"data", "data", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis of data parallelism, none, or auto: as annotate-data-parallel takes it">,
    Option<"tensor", "tensor", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis of tensor parallelism, none, or auto: as annotate-tensor-parallel takes it">,
    ListOption<"exceptStages", "except", "std::string",
           "stages of a composed program whose sequences stay whole">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", "0",
           "bytes that attention may take on a rank; 0: any">,
  ];
}

def AnnotateContextParallelPass : AnnotatePass<"annotate-context-parallel"> {
  let summary = "shard the sequence, and move heads where attention mixes it";
  let description = [{
    Shards the sequences that self-attention mixes over `ring` and `ulysses`, from the
    inputs to the results. Around attention, `dist.constrain` moves `ulysses` from the
    sequence to the heads and back, and the resharder writes all-to-alls. Key/value
    heads take a part of the axis, and the query heads of a group take the rest, over
    which keys and values are replicated. Of such splits the pass takes the one that
    sends the fewest bytes, then the one that computes the fewest heads. Heads that do
    not divide are padded.

    Along `ring` keys stay sharded: `--partition` writes attention in steps, in which
    keys and values travel around the ring. Under a causal mask the sequence is in
    zigzag order (`order`), which gives all ranks equal work.

    Ids from which a mask or an index is computed are whole on every rank. They are
    sliced where they are embedded.

    Before:
    ```mlir
    dist.mesh @mesh = <["ring"=2, "ulysses"=2]>
    func.func @main(%x: tensor<1x4x8x16xf32> {nn.input = "x"}) -> tensor<1x4x8x16xf32> {
      %o = nn.attention %x, %x, %x scale 0.25
        : (tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
      return %o : tensor<1x4x8x16xf32>
    }
    ```
    After, with `ulysses=ulysses ring=ring`:
    ```mlir
    #tokens = #dist.sharding<@mesh, [{}, {}, {"ring", "ulysses"}, {} ]>
    #heads = #dist.sharding<@mesh, [{}, {"ulysses"}, {"ring"}, {} ]>
    dist.mesh @mesh = <["ring"=2, "ulysses"=2]>
    func.func @main(%x: tensor<1x4x8x16xf32> {nn.input = "x", dist.sharding = #tokens})
        -> tensor<1x4x8x16xf32> {
      %q = dist.constrain %x <@mesh, [{}, {"ulysses"}, {"ring"}, {} ]> : tensor<1x4x8x16xf32>
      %k = dist.constrain %x <@mesh, [{}, {"ulysses"}, {"ring"}, {} ]> : tensor<1x4x8x16xf32>
      %v = dist.constrain %x <@mesh, [{}, {"ulysses"}, {"ring"}, {} ]> : tensor<1x4x8x16xf32>
      %0 = nn.attention %q, %k, %v scale 0.25 {dist.sharding = #heads}
        : (tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>, tensor<1x4x8x16xf32>) -> tensor<1x4x8x16xf32>
      %o = dist.constrain %0 <@mesh, [{}, {}, {"ring", "ulysses"}, {} ]> : tensor<1x4x8x16xf32>
      return %o : tensor<1x4x8x16xf32>
    }
    ```
  }];
  let options = [
    Option<"ulysses", "ulysses", "::meshwright::AxisChoice", "::meshwright::AxisChoice::get(\"\")",
           "mesh axis that heads move along, none, or auto: the one with the role ulysses">,
    Option<"ring", "ring", "::meshwright::AxisChoice", "::meshwright::AxisChoice::get(\"\")",
           "mesh axis that keys and values move along, none, or auto: the one with the role ring">,
    Option<"order", "order", "::meshwright::SequenceOrder", "::meshwright::SequenceOrder::Auto",
           "order of the sequence on the ring: contiguous, zigzag, striped, or auto: that of the "
           "ring's axis, or else by the mask">,
    ListOption<"exceptStages", "except", "std::string",
           "stages of a composed program whose sequences stay whole">,
  ];
}

def AnnotateGtpPass : AnnotatePass<"annotate-gtp"> {
  let summary = "store weights in shards, and fetch them where they are used";
  let description = [{
    Generalized tensor parallelism. A weight, a parameter of two dimensions at least, gets a layout for
    storage beside the one in which the program uses it: its rows are in shards over the axes, behind
    the axes that shard it where it is used. `dist.fetch` joins the two, once in each function, before the
    first use. Averages of an optimizer have the layout of storage, because the update ties them to their
    weight. The derivative of the fetch, `dist.stow`, scatters the gradient.

    Storage pads rows of its own at their tail. A weight whose shard would be no smaller stays whole,
    and so does a parameter of one dimension. The last policy to run: the others choose the layouts of
    use.

    A weight that only products read may travel in another form (`gather`). Its fetch has the form, also
    where the weight stays whole: every product then computes with elements that are rounded so.

    Before:
    ```mlir
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                    %w: tensor<6x8xf32> {nn.parameter = "w"}) -> tensor<4x6xf32> {
      %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %0 : tensor<4x6xf32>
    }
    ```
    After:
    ```mlir
    dist.mesh @mesh = <["gtp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                    %w: tensor<6x8xf32> {nn.parameter = "w",
                        dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {} ]>}) -> tensor<4x6xf32> {
      %0 = dist.fetch %w : tensor<6x8xf32>
      %1 = nn.linear %x, %0 : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %1 : tensor<4x6xf32>
    }
    ```
  }];
  let options = [
    Option<"axes", "axes", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, or several, major to minor; none; auto: those with the role">,
    Option<"rules", "rules", "::meshwright::AxisRules", "::meshwright::AxisRules()",
           "the axes of weights by their names, of which the first pattern that matches wins; others stay "
           "whole. Without rules: all axes">,
    Option<"align", "align", "::meshwright::NumberOrAuto<1>", "::meshwright::NumberOrAuto<1>()",
           "a shard has a multiple of so many rows; auto: 32 for mxfp8, 16 for nvfp4 and of bf16 and "
           "f16 weights, else 1">,
    Option<"gather", "gather", "::meshwright::GatherRules", "::meshwright::GatherRules()",
           "the form in which weights travel: plain, mxfp8, nvfp4, or rules by name">,
    Option<"option", "option", "std::string", "\"\"",
           "an option that asks for axes: without any, an error names it">,
  ];
}

def FoldEncoderPass : AnnotatePass<"fold-encoder"> {
  let summary = "shard a stage's weights over axes that other stages split sequences over";
  let description = [{
    Every rank would hold and compute the whole of a text encoder before a denoiser
    whose sequence is sharded. A folded encoder has weights that are sharded over the
    axes of `mode`; the pass finds the dimensions to shard by structure, as for tensor
    parallelism:
    - sp: ring and ulysses; ulysses; ring;
    - replica: all axes but that of data parallelism;
    - batch: weights whole, the batch split over ring and ulysses instead;
    - none: as other stages, over `tensor`;
    - auto: the mode that takes the least time of those that fit into memory (see below).

    The stage is replicated over axes that a mode does not name. Values that other
    stages use are whole on every rank. Features that do not divide are padded, or take
    a part of the axes; the decision log has the weights. It also notes a group of one
    rank, which changes nothing.

    For `auto`, the phases compile the stage alone in each mode that the mesh offers,
    and the cost model prices the programs. It counts that a run reads each weight from
    memory once (which matters with few tokens), the arithmetic of products (which
    matters with many), and the latency and bytes of collectives. A mode fits if its
    schedule and the weights of the other stages keep to the memory ceiling. The fastest
    mode that fits wins, unless it is less than 15 % faster than one with fewer
    collectives (30 % for `batch`). The decision has a table of time, bytes and memory.

    Before:
    ```mlir
    dist.mesh @mesh = <["ulysses"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "encoder.x"},
                    %wi: tensor<16x8xf32> {nn.parameter = "encoder.wi"},
                    %wo: tensor<8x16xf32> {nn.parameter = "encoder.wo"}) -> tensor<4x8xf32> {
      %0 = nn.linear %x, %wi {nn.stage = "encoder"}
        : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
      %1 = nn.linear %0, %wo {nn.stage = "encoder"}
        : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
      return %1 : tensor<4x8xf32>
    }
    ```
    After, with `stage=encoder mode=ulysses ulysses=ulysses`:
    ```mlir
    #columns = #dist.sharding<@mesh, [{"ulysses"}, {} ]>
    #rows = #dist.sharding<@mesh, [{}, {"ulysses"} ]>
    dist.mesh @mesh = <["ulysses"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "encoder.x"},
                    %wi: tensor<16x8xf32> {nn.parameter = "encoder.wi", dist.sharding = #columns},
                    %wo: tensor<8x16xf32> {nn.parameter = "encoder.wo", dist.sharding = #rows})
        -> tensor<4x8xf32> {
      %0 = nn.linear %x, %wi {nn.stage = "encoder"}
        : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
      %1 = nn.linear %0, %wo {nn.stage = "encoder"}
        : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
      return %1 : tensor<4x8xf32>
    }
    ```
  }];
  let options = [
    Option<"stage", "stage", "std::string", "", "a stage of a composed program">,
    Option<"mode", "mode", "::meshwright::FoldMode", "::meshwright::FoldMode::Sp",
           "sp, ulysses, ring, replica, batch, none or auto">,
    Option<"ulysses", "ulysses", "::meshwright::AxisChoice", "::meshwright::AxisChoice::get(\"\")",
           "mesh axis, none, or auto: the one with the role ulysses">,
    Option<"ring", "ring", "::meshwright::AxisChoice", "::meshwright::AxisChoice::get(\"\")",
           "mesh axis, none, or auto: the one with the role ring">,
    Option<"data", "data", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis of data parallelism, none, or auto: as annotate-data-parallel takes it">,
    Option<"tensor", "tensor", "::meshwright::AxisChoice", "::meshwright::AxisChoice::get(\"\")",
           "mesh axis of tensor parallelism, if the mesh has it, for mode none; none; or auto: as "
           "annotate-tensor-parallel takes it">,
    Option<"sequenceParallel", "sequence-parallel", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto",
           "on, off or auto: how alternatives of mode auto are planned">,
    Option<"memoryCeiling", "memory-ceiling", "int64_t", "0",
           "bytes a rank may use, for mode auto; 0: the device's memory">,
  ];
}

#endif
