//===- Passes.td - from programs to launches ---------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD
#define MESHWRIGHT_PASSES_SCHEDULE_PASSES_TD

include "mlir/Pass/PassBase.td"

def RequestSchedulePass : Pass<"request-schedule", "::mlir::ModuleOp"> {
  let summary = "notes on SPMD functions how they are to be scheduled";
  let description = [{
    The schedule is made when a program is compiled; what its user asked for
    travels with it.

    ```mlir
    func.func @main(...) attributes {dist.spmd = @mesh}
    ```
    with `overlap=off memory-ceiling=1024` becomes
    ```mlir
    func.func @main(...) attributes {dist.spmd = @mesh, rt.memory_ceiling = 1024 : i64, rt.overlap = "off"}
    ```

    With `overlap=auto` and a ceiling, copies are scheduled with collectives in chunks
    where that pays, nowhere, and wherever they can be. If the first does not keep to the
    ceiling, `rt.chunks = "none"` or `"all"` notes the one that does; if none does, the
    one that needs least, which the refusal names. What is noted already stays.
  }];
  let options = [Option<"overlap", "overlap", "::meshwright::OnOffAuto",
                        /*default=*/"::meshwright::OnOffAuto::Auto", "on, off or auto">,
                 Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
                        "bytes of arguments and arena; no limit if 0">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def CheckMemoryPass : Pass<"check-memory", "::mlir::ModuleOp"> {
  let summary = "refuse SPMD programs that need more memory than a rank has";
  let description = [{
    Schedules a copy of each SPMD function. It is an error if no order that the schedule
    phase tries keeps weights, inputs and arena to `ceiling` bytes on a rank. Changes
    nothing.
  }];
  let options = [Option<"ceiling", "ceiling", "int64_t", /*default=*/"0",
                        "bytes; no limit if 0">];
}

def SetTargetPass : Pass<"set-target", "::mlir::ModuleOp"> {
  let summary = "note on functions the target that they are compiled for";
  let description = [{
    Fusion, packed weights and alignment depend on the target, so memory ceilings and the
    schedule do, too. All of them read it from the function. The target `cpu`, this machine's
    processor, is the default and is not noted.

    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32>
    ```
    with `target=cpu:x86-64-v3` becomes
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> attributes {rt.target = "cpu:x86-64-v3"}
    ```
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"\"cpu\"",
                        "cpu or cpu:NAME, a processor by LLVM's name">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def SplitCollectivesPass : Pass<"split-collectives", "::mlir::func::FuncOp"> {
  let summary = "cuts collectives and the products around them into chunks that overlap";
  let description = [{
    Requires an SPMD function (passes over others); guarantees the same results
    in the same layouts.

    From each collective on, the ops that compute each row (token, or sequence
    of a batch) on its own are found through their factor rules, up to those
    that mix rows (attention). Where the cost model says that it saves time they
    run in chunks of the rows: while one chunk is on the links, another one is
    computed. Rows that a reduce-scatter hands out are those of its chunk, so
    that in between each rank has a part of each chunk, not a chunk of its own.
    At the ends chunks are slices and concats of whole rows.

    Attention computes each head, and each sequence of a batch, on its own: these
    are rows, too. Between the all-to-alls of Ulysses attention runs in chunks of
    key/value heads, from the projections on, of whose weights each chunk has the
    rows that make its heads. A collective of several values is in chunks where
    each of its values is.

    What it costs: weights are read once for each chunk of tokens, what is
    projected once for each chunk of heads, and each chunk is a launch. Chunks are as many as take least time when the program is played
    with the model's times; the decision log has the numbers.

    ```mlir
    %0 = nn.linear %x, %w : (tensor<32x8xf32>, tensor<16x8xf32>) -> tensor<32x16xf32>
    %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<32x16xf32>) -> tensor<32x16xf32>
    %2 = nn.linear %1, %v : (tensor<32x16xf32>, tensor<8x16xf32>) -> tensor<32x8xf32>
    ```
    becomes
    ```mlir
    %x0 = nn.slice %x starts [0, 0] limits [16, 8] strides [1, 1] : (tensor<32x8xf32>) -> tensor<16x8xf32>
    %3 = nn.linear %x0, %w : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>
    %4 = dist.all_reduce sum %3 axes ["tp"] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %x1 = nn.slice %x starts [16, 0] limits [32, 8] strides [1, 1] : (tensor<32x8xf32>) -> tensor<16x8xf32>
    %5 = nn.linear %x1, %w : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>
    %6 = dist.all_reduce sum %5 axes ["tp"] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %7 = nn.linear %4, %v : (tensor<16x16xf32>, tensor<8x16xf32>) -> tensor<16x8xf32>
    %8 = nn.linear %6, %v : (tensor<16x16xf32>, tensor<8x16xf32>) -> tensor<16x8xf32>
    %2 = nn.concat %7, %8 dim 0 : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<32x8xf32>
    ```
  }];
  let options = [Option<"when", "when", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
                        "on: wherever it can be done; off: nowhere; auto: where it pays by the cost "
                        "model; the function's rt.overlap goes before">,
                 Option<"chunks", "chunks", "int64_t", /*default=*/"0",
                        "how many; 0: as many as take least time">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def FormKernelsPass : Pass<"form-kernels", "::mlir::func::FuncOp"> {
  let summary = "groups the ops of a program into launches";
  let description = [{
    Takes an SPMD function or a global one without collectives, ops of `nn` and
    `dist` on tensors; leaves functions that have launches already as they are.
    Guarantees the same results: a function of `rt.kernel`, and of `rt.start`
    followed by its `rt.wait` for each collective. Constants and views
    (`nn.reshape`, `dist.constrain`) stay between them. Ops that nobody reads go.

    An op joins the kernel that reads it where one kernel can go over the rows of
    both: elementwise ops, movement, casts, rotary ops, norms, softmax and
    reductions of rows. Where others read it too, it is one more result (a
    residual sum and its norm). Ops that cost nothing are in each kernel that
    reads them. It does not join where it would be computed several times at
    some cost; that, and rows that do not agree, are decisions in the log.

    A product by a parameter goes on with its results in the kernel that computes
    them, where fewer bytes then go through memory: with the activation or the
    gate that reads them, with the residual addition ahead of a norm. Casts between
    the types of values stay, so that results are the same bit by bit. Cheap ops
    whose result only products read (a scale of features, a cast, a mask of rows),
    on one buffer of that size, are computed where each product copies its operand.

    An attention computes its bias where that is cheap, elementwise, and of values
    of which none varies with both the query and the key: segments of a packed sequence,
    positions, padding of keys. The bias is then never in memory. Each attention that
    reads it does so for itself; where anything else reads it, or it is looked at, or
    has no more bytes than these values, all read it from memory.

    ```mlir
    %s = nn.compare eq %r, %k : (tensor<1x1x64x1xi64>, tensor<1x1x1x64xi64>) -> tensor<1x1x64x64xi1>
    %b = nn.select %s, %zero, %lowest : (tensor<1x1x64x64xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x64x64xf32>
    %o = nn.attention %q, %q, %q bias %b scale 1.0 : (tensor<1x2x64x8xf32>, ...) -> tensor<1x2x64x8xf32>
    ```
    becomes
    ```mlir
    %o = rt.kernel %r, %k, %q : (tensor<1x1x64x1xi64>, tensor<1x1x1x64xi64>, tensor<1x2x64x8xf32>) -> tensor<1x2x64x8xf32> {
    ^bb0(%a: tensor<1x1x64x1xi64>, %b: tensor<1x1x1x64xi64>, %c: tensor<1x2x64x8xf32>):
      %zero = nn.constant dense<0.0> : tensor<f32>
      %lowest = nn.constant dense<0xFF800000> : tensor<f32>
      %s = nn.compare eq %a, %b : (tensor<1x1x64x1xi64>, tensor<1x1x1x64xi64>) -> tensor<1x1x64x64xi1>
      %d = nn.select %s, %zero, %lowest : (tensor<1x1x64x64xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x64x64xf32>
      %e = nn.attention %c, %c, %c bias %d scale 1.0 : (tensor<1x2x64x8xf32>, ...) -> tensor<1x2x64x8xf32>
      rt.yield %e : tensor<1x2x64x8xf32>
    }
    ```

    Collectives get the stream of their axes: those whose groups can share two
    or more ranks are in one stream, in order.

    ```mlir
    %1 = nn.neg %x : tensor<4x8xf32>
    %2 = nn.exp %1 : tensor<4x8xf32>
    %3 = dist.all_gather %2 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    ```
    becomes
    ```mlir
    %1 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      %3 = nn.exp %2 : tensor<4x8xf32>
      rt.yield %3 : tensor<4x8xf32>
    }
    %f = rt.start %1 stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      rt.yield %2 : tensor<16x8xf32>
    }
    %4 = rt.wait %f : !rt.future<tensor<16x8xf32>>
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

def OverlapCollectivesPass : Pass<"overlap-collectives", "::mlir::func::FuncOp"> {
  let summary = "orders launches so that collectives run beside kernels";
  let description = [{
    Takes a function of launches; guarantees the same results. A collective starts
    as soon as its operands are there and is waited for where its results are
    first read; among the kernels that could run, those go first from which a
    collective follows soonest. Several such orders are played, with collectives
    in time and late; the one with the least time is kept. What goes around a
    ring takes two places in turn. Collectives of one stream keep one order on all
    ranks. Where links take the device's own time (see `overlap` in
    docs/devices.md) nothing moves.

    With a ceiling the arguments, in the forms that they are held in, and the arena
    together stay within it: less overlaps then, down to the order with the smallest
    arena. Where that is still too large it is an error that says how much is needed.

    ```mlir
    %f = rt.start %a stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
    ^bb0(%0: tensor<4x8xf32>):
      %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      rt.yield %1 : tensor<16x8xf32>
    }
    %g = rt.wait %f : !rt.future<tensor<16x8xf32>>
    %b = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%0: tensor<4x8xf32>):
      %1 = nn.exp %0 : tensor<4x8xf32>
      rt.yield %1 : tensor<4x8xf32>
    }
    ```
    becomes
    ```mlir
    %f = rt.start %a stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
    ^bb0(%0: tensor<4x8xf32>):
      %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      rt.yield %1 : tensor<16x8xf32>
    }
    %b = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%0: tensor<4x8xf32>):
      %1 = nn.exp %0 : tensor<4x8xf32>
      rt.yield %1 : tensor<4x8xf32>
    }
    %g = rt.wait %f : !rt.future<tensor<16x8xf32>>
    ```
  }];
  let options = [Option<"when", "when", "::meshwright::OnOffAuto", /*default=*/"::meshwright::OnOffAuto::Auto",
                        "on; off: orders for the ceiling alone; auto: where links run beside the "
                        "device's work; the function's rt.overlap goes before">,
                 Option<"memoryCeiling", "memory-ceiling", "int64_t", /*default=*/"0",
                        "bytes of arguments, of their packing, and of the arena; the function's "
                        "rt.memory_ceiling if 0">];
  let dependentDialects = ["::meshwright::rt::RtDialect", "::meshwright::dist::DistDialect"];
}

def PackWeightsPass : Pass<"pack-weights", "::mlir::func::FuncOp"> {
  let summary = "has the weights of matrix products packed at load";
  let description = [{
    Takes a function of launches. Where a launch is a product that a kernel is
    generated for (`nn.linear` in f32 or bf16) and its weight is a parameter, it
    reads the parameter as `rt.prepare` gives it; or its part, where that is in
    one piece (a view, see docs/dialects/rt.md). Other launches read parameters
    as they lie, so that a parameter may be there in both forms.

    ```mlir
    %1 = rt.kernel %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32> {
    ^bb0(%a: tensor<4x8xf32>, %b: tensor<16x8xf32>):
      %2 = nn.linear %a, %b : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
      rt.yield %2 : tensor<4x16xf32>
    }
    ```
    becomes
    ```mlir
    %0 = rt.prepare %w <k = 8, n = 16, transposed = true, panel = 32> : tensor<16x8xf32>
    %1 = rt.kernel %x, %0 : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32> {
    ^bb0(%a: tensor<4x8xf32>, %b: tensor<16x8xf32>):
      %2 = nn.linear %a, %b : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
      rt.yield %2 : tensor<4x16xf32>
    }
    ```
  }];
  let options = [Option<"target", "target", "std::string", /*default=*/"",
                        "the target that the program is for; the function's rt.target if empty">];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

def PlanBuffersPass : Pass<"plan-buffers", "::mlir::func::FuncOp"> {
  let summary = "gives every result of a launch its place in the arena";
  let description = [{
    Takes a function of launches, planned or not. Guarantees that buffers that
    are needed at one time do not overlap: a launch's operands and results are
    needed while it runs, those of a collective from its start to its wait. The
    function gets `rt.arena`, the bytes of all of them, and `rt.live`, the
    largest sum of what is needed at once, which no plan can stay below.

    A kernel of elementwise ops writes over an operand that it reads at the same
    index where nobody needs the operand later; arguments of the function are
    never written.

    ```mlir
    %1 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      rt.yield %2 : tensor<4x8xf32>
    }
    ```
    becomes
    ```mlir
    %1 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
    ^bb0(%a: tensor<4x8xf32>):
      %2 = nn.neg %a : tensor<4x8xf32>
      rt.yield %2 : tensor<4x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::rt::RtDialect"];
}

#endif
