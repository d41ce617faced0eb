//===- Passes.td - from programs to launches ---------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD
#define MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD

include "meshwright/passes/schedule/PlanPasses.td"
include "mlir/Pass/PassBase.td"

def RequestSchedulePass : Pass<"request-schedule", "::mlir::ModuleOp"> {
  let summary = "notes on SPMD functions how they are to be scheduled";
  let description = [{
    The schedule is made when a program is compiled. This pass stores the user's requests
    as attributes of the SPMD functions. `prefetch` becomes `rt.prefetch`.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main() attributes {dist.spmd = @mesh} { return }
    ```
    After, with `overlap=off memory-ceiling=1024`:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main() attributes {dist.spmd = @mesh, rt.memory_ceiling = 1024 : i64,
                                  rt.overlap = "off"} { return }
    ```

    With `overlap=auto` and a ceiling, the pass schedules copies with three choices of
    chunks: those that pay, none, and all. If the first choice exceeds the ceiling,
    `rt.chunks = "none"` or `"all"` names the choice that fits; if none fits, the one that
    needs least, which the error of the schedule names. An attribute that is there stays.
    A program with experts that does not fit runs them in chunks of tokens: `rt.expert_chunks`
    is the fewest of 2, 4, 8 and so on that fit. With
    `refuse` it is an error if no order keeps to the ceiling, as that of `check-memory`.
  }];
  let options = [Option<"overlap", "overlap", "::meshwright::OnOffAuto",
                        /*default=*/"::meshwright::OnOffAuto::Auto", "on, off or auto">,
                 Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
                        "bytes of arguments and arena; no limit if 0">,
                 Option<"prefetch", "prefetch", "::meshwright::NumberOrAuto<0>",
                        /*default=*/"::meshwright::NumberOrAuto<0>()",
                        "the most weights that are gathered before the one in use">,
                 Option<"refuses", "refuse", "bool", /*default=*/"false",
                        "refuses a program that no order keeps to the ceiling">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def CheckMemoryPass : Pass<"check-memory", "::mlir::ModuleOp"> {
  let summary = "refuse SPMD programs that need more memory than a rank has";
  let description = [{
    Schedules a copy of each SPMD function. It is an error if no order that the schedule
    phase tries keeps weights, inputs and arena to `ceiling` bytes on a rank. Changes nothing.

    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<4x8xf32>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %0 = nn.relu %x : !x
      return %0 : !x
    }
    ```
    Prints, with `ceiling=100`:
    ```text
    error: 'main' needs 256 bytes on a rank, 128 for parameters and inputs and 128 for what it
    computes, in the most frugal order: expected at most 100, the memory ceiling
    ```
  }];
  let options = [Option<"ceiling", "ceiling", "int64_t", /*default=*/"0",
                        "bytes; no limit if 0">];
}

def ExpandOpsPass : Pass<"expand-ops", "::mlir::func::FuncOp"> {
  let summary = "compute ops that no target has a kernel for by other ops";
  let description = [{
    Replaces each op whose `ExpandOpInterface` says so by its expansion, whose elementwise
    ops and reductions become part of larger kernels. `nn.cross_entropy` becomes the logarithm
    of a sum of exponentials, less the logit of the label.

    Before:
    ```mlir
    func.func @main(%x: tensor<2xf32>) -> tensor<4xf32> {
      %0 = nn.pad %x low [1] high [1] interior [0] : (tensor<2xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<2xf32>) -> tensor<4xf32> {
      %low = nn.constant dense<0.0> : tensor<1xf32>
      %high = nn.constant dense<0.0> : tensor<1xf32>
      %0 = nn.concat %low, %x, %high dim 0
        : (tensor<1xf32>, tensor<2xf32>, tensor<1xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    ```

    A stored weight that products alone read stays (`nn.dequantize`), where the target's products read
    codes.
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"",
                        "the target; by default the module's, else this processor">];
  let dependentDialects = ["::meshwright::nn::NnDialect"];
}

def CompactRowsPass : Pass<"compact-rows", "::mlir::func::FuncOp"> {
  let summary = "compute the rows of experts that exist";
  let description = [{
    A routed tensor [experts, tokens..., features...] becomes a tensor [capacity, 1..., features...]
    of the rows that exist, expert by expert. `nn.route` finds their places once for each routing.
    Ops that treat rows one by one become the same ops on rows that exist. The factor rules of the
    ops on routed tensors say how ranks share them, so this pass comes behind the passes that move
    data. A collective that moves rows becomes `nn.send_rows` or `nn.return_rows`, which notes the rows
    that a rank is expected to have (`nn.expected_rows`).

    Before:
    ```mlir
    func.func @main(%x: tensor<7x16xf32>, %i: tensor<7x2xi64>) -> tensor<7x16xf32> {
      %r = nn.dispatch %x, %i
        : (tensor<7x16xf32>, tensor<7x2xi64>) -> tensor<8x7x16xf32, #nn.routed<2>>
      %h = nn.relu %r : tensor<8x7x16xf32, #nn.routed<2>>
      %y = nn.combine %h, %i
        : (tensor<8x7x16xf32, #nn.routed<2>>, tensor<7x2xi64>) -> tensor<7x16xf32>
      return %y : tensor<7x16xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<7x16xf32>, %i: tensor<7x2xi64>) -> tensor<7x16xf32> {
      %offsets, %choices, %places = nn.route %i {experts = 8 : i64, layer = 0 : i64}
        : (tensor<7x2xi64>) -> (tensor<9xi64>, tensor<14xi64>, tensor<7x2xi64>)
      %r = nn.take_rows %x, %choices {group = 2 : i64, tokens = 1 : i64}
        : (tensor<7x16xf32>, tensor<14xi64>) -> tensor<14x1x16xf32>
      %h = nn.relu %r : tensor<14x1x16xf32>
      %y = nn.sum_rows %h, %places : (tensor<14x1x16xf32>, tensor<7x2xi64>) -> tensor<7x16xf32>
      return %y : tensor<7x16xf32>
    }
    ```
  }];
}

def ReplaceRowsPass : Pass<"replace-rows", "::mlir::func::FuncOp"> {
  let summary = "replace the rows of a state that change";
  let description = [{
    The new value of a state that is a concatenation of new rows and of rows that stay at their
    places becomes `nn.index_copy`, which can replace the new ones in place. At most half of
    the rows may be new: of more, all rows are written at less cost than the old ones are saved.

    Before:
    ```mlir
    nn.state @s : tensor<8x4xf32>
    func.func @main(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<2x4xf32>)
        -> (tensor<8x4xf32> {nn.state = "s"}) {
      %0 = nn.slice %s starts [0, 0] limits [6, 4] strides [1, 1]
        : (tensor<8x4xf32>) -> tensor<6x4xf32>
      %1 = nn.concat %0, %x dim 0 : (tensor<6x4xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
      return %1 : tensor<8x4xf32>
    }
    ```
    After:
    ```mlir
    nn.state @s : tensor<8x4xf32>
    func.func @main(%s: tensor<8x4xf32> {nn.state = "s"}, %x: tensor<2x4xf32>)
        -> (tensor<8x4xf32> {nn.state = "s"}) {
      %0 = nn.constant dense<[6, 7]> : tensor<2xi64>
      %1 = nn.index_copy %s, %0, %x dim 0
        : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
      return %1 : tensor<8x4xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::nn::NnDialect"];
}

def SetTargetPass : Pass<"set-target", "::mlir::ModuleOp"> {
  let summary = "note on functions the target that they are compiled for";
  let description = [{
    Fusion, packed weights and alignment depend on the target, so memory ceilings and the
    schedule do, too. All of them read it from the function. The target `cpu`, this machine's
    processor, is the default and is not noted.

    Before:
    ```mlir
    func.func @main() { return }
    ```
    After, with `target=cpu:x86-64-v3`:
    ```mlir
    func.func @main() attributes {rt.target = "cpu:x86-64-v3"} { return }
    ```
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"\"cpu\"",
                        "cpu or cpu:NAME, a processor by LLVM's name">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def SplitCollectivesPass : Pass<"split-collectives", "::mlir::func::FuncOp"> {
  let summary = "cuts collectives and the products around them into chunks that overlap";
  let description = [{
    Requires an SPMD function and leaves other functions as they are. Guarantees the same
    results in the same layouts.

    From each collective on, factor rules find the ops that compute each row (a token, or a
    sequence of a batch) by itself, up to ops that mix rows (attention). If it saves time by
    the cost model, these ops run in chunks of the rows: while one chunk is on the links,
    another chunk is computed. A reduce-scatter within the region scatters the rows of one
    chunk, so each rank has a part of each chunk, not a chunk of its own. At the ends of the
    region, chunks are slices and concats of whole rows.

    Attention computes each head, and each sequence of a batch, by itself, so these are rows
    too. Between the all-to-alls of Ulysses, attention runs in chunks of key/value heads.
    The projections belong to the region: each chunk has the rows of the weights that make
    its heads. A collective of several values runs in chunks if each of its values does.

    Cost: weights are read once for each chunk of tokens, the projected values once for each
    chunk of heads, and each chunk is a launch. The number of chunks is the one with the
    least time in a simulation with the model's times. The decision log has the numbers.

    Before:
    ```mlir
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<32x8xf32>
    !w = tensor<8x8xf32>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: !x {dist.sharding = #columns, dist.global = tensor<32x32xf32>},
                    %w: !w {dist.sharding = #columns, dist.global = tensor<8x32xf32>},
                    %v: !w {dist.sharding = #whole, dist.global = !w})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %h = nn.linear %x, %w : (!x, !w) -> !x
      %s = dist.all_reduce sum %h axes ["tp"] : (!x) -> !x
      %y = nn.linear %s, %v : (!x, !w) -> !x
      return %y : !x
    }
    ```
    After, with `when=on`:
    ```mlir
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<32x8xf32>
    !half = tensor<16x8xf32>
    !w = tensor<8x8xf32>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: !x {dist.sharding = #columns, dist.global = tensor<32x32xf32>},
                    %w: !w {dist.sharding = #columns, dist.global = tensor<8x32xf32>},
                    %v: !w {dist.sharding = #whole, dist.global = !w})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %x0 = nn.slice %x starts [0, 0] limits [16, 8] strides [1, 1] : (!x) -> !half
      %h0 = nn.linear %x0, %w : (!half, !w) -> !half
      %s0 = dist.all_reduce sum %h0 axes ["tp"] : (!half) -> !half
      %x1 = nn.slice %x starts [16, 0] limits [32, 8] strides [1, 1] : (!x) -> !half
      %h1 = nn.linear %x1, %w : (!half, !w) -> !half
      %s1 = dist.all_reduce sum %h1 axes ["tp"] : (!half) -> !half
      %y0 = nn.linear %s0, %v : (!half, !w) -> !half
      %y1 = nn.linear %s1, %v : (!half, !w) -> !half
      %y = nn.concat %y0, %y1 dim 0 : (!half, !half) -> !x
      return %y : !x
    }
    ```
  }];
  let options = [Option<"when", "when", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
                        "on: wherever it can be done; off: nowhere; auto: where it pays by the cost "
                        "model; the function's rt.overlap goes before">,
                 Option<"chunks", "chunks", "::meshwright::ChunkCount",
                        /*default=*/"::meshwright::ChunkCount()",
                        "how many; 0: as many as take least time">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def SplitRoutingsPass : Pass<"split-routings", "::mlir::func::FuncOp"> {
  let summary = "runs layers of experts for one chunk of tokens after the other";
  let description = [{
    Requires an SPMD function and leaves other functions as they are. Guarantees the same
    results in the same layouts; sums over tokens, as gradients of weights are, are added by
    chunk.

    The rows of experts have room for the tokens of all ranks, so they may be many times the
    tokens. The ops that routed values connect, from dispatch to combine, forward and
    backward, are cut along a dimension of the tokens, and run chunk by chunk. A dimension
    whose tokens stay on their rank goes before one that other ranks receive. Experts whose
    tokens are padded along each dimension stay whole. The function's `rt.expert_chunks` goes
    before the option. `request-schedule` sets it under a memory ceiling.

    Cost: weights are read once for each chunk, and each chunk is some launches.

    Before:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<8x4xf32>
    !i = tensor<8x1xi64>
    !r = tensor<2x8x4xf32, #nn.routed<1>>
    dist.mesh @mesh = <["ep"=1]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x}, %i: !i {dist.sharding = #whole, dist.global = !i})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh} {
      %r = nn.dispatch %x, %i : (!x, !i) -> !r
      %h = nn.relu %r : !r
      %y = nn.combine %h, %i : (!r, !i) -> !x
      return %y : !x
    }
    ```
    After, with `chunks=2`:
    ```mlir
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    !x = tensor<8x4xf32>
    !i = tensor<8x1xi64>
    !half = tensor<4x4xf32>
    !halves = tensor<4x1xi64>
    !r = tensor<2x4x4xf32, #nn.routed<1>>
    dist.mesh @mesh = <["ep"=1]>
    func.func @main(%x: !x {dist.sharding = #whole, dist.global = !x}, %i: !i {dist.sharding = #whole, dist.global = !i})
        -> (!x {dist.sharding = #whole, dist.global = !x}) attributes {dist.spmd = @mesh, rt.expert_chunks = 2 : i64} {
      %x0 = nn.slice %x starts [0, 0] limits [4, 4] strides [1, 1] : (!x) -> !half
      %i0 = nn.slice %i starts [0, 0] limits [4, 1] strides [1, 1] : (!i) -> !halves
      %r0 = nn.dispatch %x0, %i0 : (!half, !halves) -> !r
      %h0 = nn.relu %r0 : !r
      %y0 = nn.combine %h0, %i0 : (!r, !halves) -> !half
      %x1 = nn.slice %x starts [4, 0] limits [8, 4] strides [1, 1] : (!x) -> !half
      %i1 = nn.slice %i starts [4, 0] limits [8, 1] strides [1, 1] : (!i) -> !halves
      %r1 = nn.dispatch %x1, %i1 : (!half, !halves) -> !r
      %h1 = nn.relu %r1 : !r
      %y1 = nn.combine %h1, %i1 : (!r, !halves) -> !half
      %y = nn.concat %y0, %y1 dim 0 : (!half, !half) -> !x
      return %y : !x
    }
    ```
  }];
  let options = [Option<"chunks", "chunks", "int64_t", /*default=*/"1", "how many; 1: the experts stay whole">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def FormKernelsPass : Pass<"form-kernels", "::mlir::func::FuncOp"> {
  let summary = "groups the ops of a program into launches";
  let description = [{
    Requires an SPMD function, or a global one without collectives, with ops of `nn` and
    `dist` on tensors. Leaves functions that have launches as they are. Guarantees the same
    results, computed by `rt.kernel`, and by an `rt.start` and its `rt.wait` for each
    collective. Constants and views (`nn.reshape`, `dist.constrain`) stay between them. Dead
    ops are removed.

    An op joins the kernel that reads it if one kernel can process the rows of both:
    elementwise ops, movement, casts, rotary ops, norms, softmax and reductions of rows. If
    other kernels read it too, it becomes a result of the kernel (a residual sum and its
    norm). Free ops are in each kernel that reads them: splats, counts, and masks of padding
    (`dist.positions` of a padded dimension and cheap ops on them). An op does not join if that
    would compute it several times at some cost, or if the rows do not agree; the decision log
    says so.

    The kernel of a product by a parameter also computes ops on the product's results, if
    fewer bytes then go through memory: the activation or gate that reads them, or the
    residual addition before a norm. Casts between the types of values stay, so that results
    are the same bit by bit. Cheap ops on one buffer of the operand's size that only products
    read (a scale of features, a cast, a mask of rows) are computed where each product copies
    its operand.

    An attention computes its bias if the bias is cheap, elementwise, and made of values
    that vary with the query or with the key, but not with both: segments of a packed
    sequence, positions, padding of keys. The bias is then never in memory; each attention
    that reads it computes it. If another op reads the bias, or it is probed, or it has no
    more bytes than these values, all read it from memory.

    Before:
    ```mlir
    !q = tensor<1x2x64x8xf32>
    !r = tensor<1x1x64x1xi64>
    !k = tensor<1x1x1x64xi64>
    !bias = tensor<1x1x64x64xf32>
    func.func @main(%q: !q, %r: !r, %k: !k) -> !q {
      %zero = nn.constant dense<0.0> : tensor<f32>
      %low = nn.constant dense<0xFF800000> : tensor<f32>
      %s = nn.compare eq %r, %k : (!r, !k) -> tensor<1x1x64x64xi1>
      %b = nn.select %s, %zero, %low : (tensor<1x1x64x64xi1>, tensor<f32>, tensor<f32>) -> !bias
      %o = nn.attention %q, %q, %q bias %b scale 1.0 : (!q, !q, !q, !bias) -> !q
      return %o : !q
    }
    ```
    After:
    ```mlir
    !q = tensor<1x2x64x8xf32>
    !r = tensor<1x1x64x1xi64>
    !k = tensor<1x1x1x64xi64>
    !bias = tensor<1x1x64x64xf32>
    func.func @main(%q: !q, %r: !r, %k: !k) -> !q {
      %o = rt.kernel %r, %k, %q : (!r, !k, !q) -> !q {
      ^bb0(%a: !r, %b: !k, %c: !q):
        %zero = nn.constant dense<0.0> : tensor<f32>
        %low = nn.constant dense<0xFF800000> : tensor<f32>
        %s = nn.compare eq %a, %b : (!r, !k) -> tensor<1x1x64x64xi1>
        %d = nn.select %s, %zero, %low : (tensor<1x1x64x64xi1>, tensor<f32>, tensor<f32>) -> !bias
        %e = nn.attention %c, %c, %c bias %d scale 1.0 : (!q, !q, !q, !bias) -> !q
        rt.yield %e : !q
      }
      return %o : !q
    }
    ```

    Collectives get the stream of their axes and their role: those of one role whose
    groups can share two or more ranks are in one stream, in order.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<4x8xf32> {dist.sharding = #rows, dist.global = tensor<16x8xf32>})
        -> (tensor<16x8xf32> {dist.sharding = #whole, dist.global = tensor<16x8xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.neg %x : tensor<4x8xf32>
      %1 = nn.exp %0 : tensor<4x8xf32>
      %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      return %2 : tensor<16x8xf32>
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
      %0 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
      ^bb0(%a: tensor<4x8xf32>):
        %2 = nn.neg %a : tensor<4x8xf32>
        %3 = nn.exp %2 : tensor<4x8xf32>
        rt.yield %3 : tensor<4x8xf32>
      }
      %f = rt.start %0 stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
      ^bb0(%a: tensor<4x8xf32>):
        %2 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
        rt.yield %2 : tensor<16x8xf32>
      }
      %1 = rt.wait %f : !rt.future<tensor<16x8xf32>>
      return %1 : tensor<16x8xf32>
    }
    ```
  }];
  let options = [Option<"keepProbed", "keep-probed", "bool", /*default=*/"false",
                        "keep every value that has an nn.id between kernels, for --check">,
                 Option<"target", "target", "std::string", /*default=*/"",
                        "the target that kernels are written for, cpu or cpu:NAME; the "
                        "function's rt.target if empty">];
  let dependentDialects = ["::meshwright::rt::RtDialect", "::meshwright::nn::NnDialect",
                           "::meshwright::dist::DistDialect"];
}

def PackWeightsPass : Pass<"pack-weights", "::mlir::func::FuncOp"> {
  let summary = "brings weights to the form that their kernels read";
  let description = [{
    Requires a function of launches. If a launch is a product with a generated kernel
    (`nn.linear` in f32 or bf16) by a weight, the launch reads the weight from an `rt.prepare`.
    Other launches read it as stored, so it may be there in both forms.

    A parameter, or a view of one, is packed at load, a trained state whenever it has another value.
    Casts between f32, bf16 and f16 are done at the same time, also for other readers. A weight that
    the function makes otherwise, for example gathers, is packed at use, by a launch of its own.
    If that is once in each call, because the function changes the state or makes the weight, the pass
    does it only if several products read that form, or one whose kernel takes in other ops. A weight
    that travels in another form (`dist.decode`) is decoded and packed at once.

    Before:
    ```mlir
    !x = tensor<4x8xf32>
    !y = tensor<4x16xf32>
    !w = tensor<16x8xf32>
    func.func @main(%x: !x, %w: !w {nn.parameter = "w"}) -> !y {
      %0 = rt.kernel %x, %w : (!x, !w) -> !y {
      ^bb0(%a: !x, %b: !w):
        %1 = nn.linear %a, %b : (!x, !w) -> !y
        rt.yield %1 : !y
      }
      return %0 : !y
    }
    ```
    After, with `target=cpu:x86-64-v4`:
    ```mlir
    !x = tensor<4x8xf32>
    !y = tensor<4x16xf32>
    !w = tensor<16x8xf32>
    func.func @main(%x: !x, %w: !w {nn.parameter = "w"}) -> !y {
      %p = rt.prepare %w <k = 8, n = 16, transposed = true, panel = 32> at load : !w
      %0 = rt.kernel %x, %p : (!x, !w) -> !y {
      ^bb0(%a: !x, %b: !w):
        %1 = nn.linear %a, %b : (!x, !w) -> !y
        rt.yield %1 : !y
      }
      return %0 : !y
    }
    ```
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"",
                        "the target that the program is for; the function's rt.target if empty">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def FuseDecodingsPass : Pass<"fuse-decodings", "::mlir::func::FuncOp"> {
  let summary = "let products read weights in the form in which they travel";
  let description = [{
    Requires a function of launches. A product that a library performs decodes the weight itself, a few
    columns at a time, if the target can do that. So the decoded weight is never in memory as a whole.
    A launch that decodes a weight stays for other readers.

    Before:
    ```mlir
    !c = tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    !w = tensor<32x64xf64>
    func.func @main(%x: tensor<4x64xf64>, %c: !c) -> tensor<4x32xf64> {
      %0 = rt.kernel %c : (!c) -> !w {
      ^bb0(%a: !c):
        %1 = dist.decode %a : (!c) -> !w
        rt.yield %1 : !w
      }
      %2 = rt.kernel %x, %0 : (tensor<4x64xf64>, !w) -> tensor<4x32xf64> {
      ^bb0(%a: tensor<4x64xf64>, %b: !w):
        %3 = nn.linear %a, %b : (tensor<4x64xf64>, !w) -> tensor<4x32xf64>
        rt.yield %3 : tensor<4x32xf64>
      }
      return %2 : tensor<4x32xf64>
    }
    ```
    After:
    ```mlir
    !c = tensor<32x64xf8E4M3FN, #dist.form<mxfp8 along 1>>
    !w = tensor<32x64xf64>
    func.func @main(%x: tensor<4x64xf64>, %c: !c) -> tensor<4x32xf64> {
      %2 = rt.kernel %x, %c : (tensor<4x64xf64>, !c) -> tensor<4x32xf64> {
      ^bb0(%a: tensor<4x64xf64>, %b: !c):
        %1 = dist.decode %b : (!c) -> !w
        %3 = nn.linear %a, %1 : (tensor<4x64xf64>, !w) -> tensor<4x32xf64>
        rt.yield %3 : tensor<4x32xf64>
      }
      return %2 : tensor<4x32xf64>
    }
    ```
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"",
                        "the target that the program is for; the function's rt.target if empty">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def OrderUpdatesPass : Pass<"order-updates", "::mlir::func::FuncOp"> {
  let summary = "read the old value of a state before the launch that replaces it";
  let description = [{
    A kernel may write the new value of a state over the state if no later launch needs the old
    one. Moves kernels that compute new values behind the last reader of the old one, or
    readers before them, where values permit that.

    Then it moves kernels that write all their results over states to where their last operand is
    there and the old values have been read. So the update of a weight frees its gradient, which
    would stay to the end of a step otherwise. Single elements that the updates read, such as a rate,
    move with them.

    Before:
    ```mlir
    nn.state @s : tensor<4xf32>
    func.func @main(%s: tensor<4xf32> {nn.state = "s"})
        -> (tensor<4xf32>, tensor<4xf32> {nn.state = "s"}) {
      %1 = rt.kernel %s : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.neg %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      %2 = rt.kernel %s : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.exp %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      return %2, %1 : tensor<4xf32>, tensor<4xf32>
    }
    ```
    After:
    ```mlir
    nn.state @s : tensor<4xf32>
    func.func @main(%s: tensor<4xf32> {nn.state = "s"})
        -> (tensor<4xf32>, tensor<4xf32> {nn.state = "s"}) {
      %2 = rt.kernel %s : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.exp %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      %1 = rt.kernel %s : (tensor<4xf32>) -> tensor<4xf32> {
      ^bb0(%a: tensor<4xf32>):
        %0 = nn.neg %a : tensor<4xf32>
        rt.yield %0 : tensor<4xf32>
      }
      return %2, %1 : tensor<4xf32>, tensor<4xf32>
    }
    ```
  }];
}

#endif
