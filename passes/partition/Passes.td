//===- Passes.td - partition -------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_PASSES_TD
#define MESHWRIGHT_PASSES_PARTITION_PASSES_TD

include "mlir/Pass/PassBase.td"

def SumShardedSlicesPass : Pass<"sum-sharded-slices", "::mlir::ModuleOp"> {
  let summary = "take few elements of a sharded dimension by a sum, not a gather";
  let description = [{
    A pooler reads the first token of a sequence, the head of a decoder reads the last
    one, and a classifier reads one at an index. Ops that count elements need a whole
    dimension, so each rank would receive all of a sharded sequence for one token.
    Instead, every rank keeps its own elements at the wanted positions and replaces all
    others by zero. The sum over the dimension is the result. `--partition` leaves a
    partial sum, and only the wanted elements are sent. The sum is exact, since all other
    terms are zero. Other elements (NaN, padding) are not read, and every order of tokens
    is supported, since positions follow it.

    Requires a sharding on every value. Rewrites `nn.slice` (with strides, and of several
    elements), `nn.gather` and `nn.take_along`. Does not rewrite an op if a sum would send
    no fewer bytes than a gather, or if it takes more elements than there are ranks, since
    a rank holds one chunk for each element. The decision states the bytes.

    Before:
    ```mlir
    #sharded = #dist.sharding<@mesh, [{"ring"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%x: tensor<16x8xf32> {dist.sharding = #sharded})
        -> (tensor<1x8xf32> {dist.sharding = #whole}) {
      %y = nn.slice %x starts [15, 0] limits [16, 8] strides [1, 1] {dist.sharding = #whole}
        : (tensor<16x8xf32>) -> tensor<1x8xf32>
      return %y : tensor<1x8xf32>
    }
    ```
    After:
    ```mlir
    #number = #dist.sharding<@mesh, []>
    #positions = #dist.sharding<@mesh, [{"ring"} ]>
    #sharded = #dist.sharding<@mesh, [{"ring"}, {} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%x: tensor<16x8xf32> {dist.sharding = #sharded})
        -> (tensor<1x8xf32> {dist.sharding = #whole}) {
      %t = nn.constant {dist.sharding = #number} dense<15> : tensor<i64>
      %i = nn.iota dim 0 {dist.sharding = #positions} : tensor<16xi64>
      %c = nn.reshape %i {dist.sharding = #sharded} : (tensor<16xi64>) -> tensor<16x1xi64>
      %m = nn.compare eq %c, %t {dist.sharding = #sharded}
        : (tensor<16x1xi64>, tensor<i64>) -> tensor<16x1xi1>
      %z = nn.constant {dist.sharding = #number} dense<0.0> : tensor<f32>
      %s = nn.select %m, %x, %z {dist.sharding = #sharded}
        : (tensor<16x1xi1>, tensor<16x8xf32>, tensor<f32>) -> tensor<16x8xf32>
      %y = nn.reduce sum %s dims [0] {dist.sharding = #whole, keep_dims}
        : (tensor<16x8xf32>) -> tensor<1x8xf32>
      return %y : tensor<1x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def ExpandReductionsPass : Pass<"expand-reductions", "::mlir::ModuleOp"> {
  let summary = "compute ops over a sharded dimension from maxima and sums";
  let description = [{
    A softmax, a loss, a mean and a minimum read a dimension whole. If the dimension is
    sharded, each rank would receive all of it. Instead, the op is replaced by its expansion
    (`ExpandOpInterface`): elementwise ops, and reductions of kind `max` and `sum`.
    `--partition` leaves partial maxima and sums, and only these are sent: two numbers a row
    for a softmax, three for a cross entropy.

    Requires a sharding on every value. Does not rewrite an op over a dimension that is no
    longer than the numbers that its expansion would exchange. The decision states the
    bytes.

    Before:
    ```mlir
    #sharded = #dist.sharding<@mesh, [{}, {"tp"} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x64xf32> {dist.sharding = #sharded})
        -> (tensor<4x64xf32> {dist.sharding = #sharded}) {
      %y = nn.softmax %x dim 1 {dist.sharding = #sharded} : tensor<4x64xf32>
      return %y : tensor<4x64xf32>
    }
    ```
    After:
    ```mlir
    #number = #dist.sharding<@mesh, []>
    #rows = #dist.sharding<@mesh, [{}, {} ]>
    #sharded = #dist.sharding<@mesh, [{}, {"tp"} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x64xf32> {dist.sharding = #sharded})
        -> (tensor<4x64xf32> {dist.sharding = #sharded}) {
      %m0 = nn.reduce max %x dims [1] {dist.sharding = #rows, keep_dims}
        : (tensor<4x64xf32>) -> tensor<4x1xf32>
      %l = nn.constant {dist.sharding = #number} dense<-3.40282347E+38> : tensor<f32>
      %m = nn.maximum %m0, %l {dist.sharding = #rows}
        : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
      %c = nn.sub %x, %m {dist.sharding = #sharded}
        : (tensor<4x64xf32>, tensor<4x1xf32>) -> tensor<4x64xf32>
      %e = nn.exp %c {dist.sharding = #sharded} : tensor<4x64xf32>
      %s = nn.reduce sum %e dims [1] {dist.sharding = #rows, keep_dims}
        : (tensor<4x64xf32>) -> tensor<4x1xf32>
      %o = nn.constant {dist.sharding = #number} dense<1.0> : tensor<f32>
      %n = nn.maximum %s, %o {dist.sharding = #rows}
        : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
      %y = nn.div %e, %n {dist.sharding = #sharded}
        : (tensor<4x64xf32>, tensor<4x1xf32>) -> tensor<4x64xf32>
      return %y : tensor<4x64xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def KeepSumsOpenPass : Pass<"keep-sums-open", "::mlir::ModuleOp"> {
  let summary = "leave sums over calls unreduced until they are read";
  let description = [{
    A transient state is a sum over calls if some function only adds to it: it reads the state
    in one addition, which gives the new value. The gradients of microbatches and their losses
    are such sums. If the ranks along some axes have different terms, each term would be reduced
    before it is added. Instead, the state is declared unreduced over these axes. So each rank
    adds up its own terms, and the sum is reduced once, where another function reads it.

    Requires a sharding on every value. Axes that shard a dimension of the state are left out.
    Another function may replace the sum by a constant, as by zero for the next step. A state with
    any other new value keeps its layout.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{} ]>
    dist.mesh @mesh = <["dp"=2]>
    nn.state @sum {fill = 0.0 : f32, transient, dist.sharding = #whole} : tensor<8xf32>
    func.func private @repeated(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #rows},
                                %sum: tensor<8xf32> {nn.state = "sum", dist.sharding = #whole})
        -> (tensor<8xf32> {nn.state = "sum", dist.sharding = #whole}) {
      %0 = nn.reduce sum %x dims [0] {dist.sharding = #whole} : (tensor<4x8xf32>) -> tensor<8xf32>
      %1 = nn.add %sum, %0 {dist.sharding = #whole}
        : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      return %1 : tensor<8xf32>
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"dp"}, {} ]>
    #whole = #dist.sharding<@mesh, [{} ]>
    #open = #dist.sharding<@mesh, [{} ], unreduced = {"dp"}>
    dist.mesh @mesh = <["dp"=2]>
    nn.state @sum {fill = 0.0 : f32, transient, dist.sharding = #open} : tensor<8xf32>
    func.func private @repeated(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #rows},
                                %sum: tensor<8xf32> {nn.state = "sum", dist.sharding = #open})
        -> (tensor<8xf32> {nn.state = "sum", dist.sharding = #open}) {
      %0 = nn.reduce sum %x dims [0] {dist.sharding = #whole} : (tensor<4x8xf32>) -> tensor<8xf32>
      %1 = nn.add %sum, %0 {dist.sharding = #whole}
        : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      return %1 : tensor<8xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def PartitionPass : Pass<"partition", "::mlir::ModuleOp"> {
  let summary = "turn a global program with shardings into an SPMD program";
  let description = [{
    Requires a sharding on every value of `@main` (see `propagate-shardings`).
    Guarantees an SPMD program: local shapes, collectives where layouts change, layouts
    of arguments and results on the function, and no annotations inside. The placement
    verifier proves it. The mesh loses the roles of its axes, which only policies read.

    Each op computes in the sharding of its result, and its operands are resharded to
    fit. If an operand of a contraction has to move, the contraction computes over the axes
    that cost least. A contraction over a sharded factor leaves a partial sum, which is
    reduced directly to the layout that its user needs: to the layout of a constraint or of
    the function's result, which may be unreduced over some axes. Partial sums that are
    added to each other share one reduction. Other terms of the sum (residual, bias) are added
    once, after the reduction. A dimension that the axes do not divide is padded at its tail.

    Before:
    ```mlir
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #columns},
                    %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #columns})
        -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #rows}) {
      %y = nn.linear %x, %w {dist.sharding = #rows}
        : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %y : tensor<4x6xf32>
    }
    ```
    After:
    ```mlir
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(
        %x: tensor<4x4xf32> {nn.input = "x", dist.sharding = #columns,
                             dist.global = tensor<4x8xf32>},
        %w: tensor<6x4xf32> {nn.parameter = "w", dist.sharding = #columns,
                             dist.global = tensor<6x8xf32>})
        -> (tensor<2x6xf32> {nn.output = "y", dist.sharding = #rows, dist.global = tensor<4x6xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
      %1 = dist.reduce_scatter sum %0 axes ["tp"] dims [0] : (tensor<4x6xf32>) -> tensor<2x6xf32>
      return %1 : tensor<2x6xf32>
    }
    ```

    Where the ranks that share experts have tokens of their own, the rows of `nn.dispatch` are made at
    their tokens and move to their experts, if this sends fewer bytes at balanced load than a gather of
    the tokens. A token that has several experts on a rank goes there once, with its choices: the
    experts of a rank share its row. Sums over the experts of a rank return. Over links of two speeds a token
    goes to a rank of each group behind slower links, and from there to the ranks of its experts, if
    this takes less time.

    Before:
    ```mlir
    #tokens = #dist.sharding<@mesh, [{"dp"}, {} ]>
    #experts = #dist.sharding<@mesh, [{"dp"}, {}, {} ]>
    !rows = tensor<8x4x64xf32, #nn.routed<2>>
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<4x64xf32> {dist.sharding = #tokens}, %i: tensor<4x2xi64> {dist.sharding = #tokens})
        -> (tensor<4x64xf32> {dist.sharding = #tokens}) {
      %r = nn.dispatch %x, %i {dist.sharding = #experts} : (tensor<4x64xf32>, tensor<4x2xi64>) -> !rows
      %h = nn.silu %r {dist.sharding = #experts} : !rows
      %y = nn.combine %h, %i {dist.sharding = #tokens} : (!rows, tensor<4x2xi64>) -> tensor<4x64xf32>
      return %y : tensor<4x64xf32>
    }
    ```
    After:
    ```mlir
    #tokens = #dist.sharding<@mesh, [{"dp"}, {} ]>
    !rows = tensor<4x4x64xf32, #nn.routed<2>>
    !sent = tensor<2x2x64xf32, #nn.routed<2, shared = 4>>
    !received = tensor<1x4x64xf32, #nn.routed<2, shared = 4>>
    !chosen = tensor<2x2x2xi32, #nn.routed<2, shared = 4>>
    !choices = tensor<1x4x2xi32, #nn.routed<2, shared = 4>>
    dist.mesh @mesh = <["dp"=2]>
    func.func @main(%x: tensor<2x64xf32> {dist.sharding = #tokens, dist.global = tensor<4x64xf32>},
                    %i: tensor<2x2xi64> {dist.sharding = #tokens, dist.global = tensor<4x2xi64>})
        -> (tensor<2x64xf32> {dist.sharding = #tokens, dist.global = tensor<4x64xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.cast %i : (tensor<2x2xi64>) -> tensor<2x2xi32>
      %1 = nn.dispatch %0, %i : (tensor<2x2xi32>, tensor<2x2xi64>) -> !chosen
      %2 = dist.all_to_all %1 axes ["dp"] from [1] to [0] : (!chosen) -> !choices
      %3 = nn.dispatch %x, %i : (tensor<2x64xf32>, tensor<2x2xi64>) -> !sent
      %4 = dist.all_to_all %3 axes ["dp"] from [1] to [0] : (!sent) -> !received
      %5 = dist.axis_index ["dp"] chunk 4 : tensor<i64>
      %6 = nn.dispatch %4, %2 offset %5 {nn.table_rows = 8 : i64} : (!received, !choices, tensor<i64>) -> !rows
      %7 = nn.silu %6 : !rows
      %8 = dist.axis_index ["dp"] chunk 4 : tensor<i64>
      %9 = nn.combine %7, %2 offset %8 {nn.table_rows = 8 : i64} : (!rows, !choices, tensor<i64>) -> !received
      %10 = dist.all_to_all %9 axes ["dp"] from [0] to [1] : (!received) -> !sent
      %11 = nn.combine %10, %i : (!sent, tensor<2x2xi64>) -> tensor<2x64xf32>
      return %11 : tensor<2x64xf32>
    }
    ```

    Attention whose keys a constraint keeps sharded runs in steps around a ring. Each
    rank attends to one chunk of the keys after the other, and the parts are merged by
    their log-sum-exps. Positions decide which keys of a chunk the mask hides. Padding
    masks and a bias are sliced along with the keys. The gradient of a bias is joined from
    the chunks of all steps (`dist.place`). A step that the mask leaves empty on
    all ranks is left out. If it is empty on some ranks, a permute by `pairs` sends nothing
    to ranks that neither read the chunk nor pass it on.

    Before:
    ```mlir
    #x = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {} ]>
    !x = tensor<1x2x8x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x}, %k: !x {dist.sharding = #x},
                    %v: !x {dist.sharding = #x}) -> (!x {dist.sharding = #x}) {
      %k1 = dist.constrain %k <@mesh, [{}, {}, (8 zigzag 2{"ring"}), {} ]> {dist.sharding = #x} : !x
      %o = nn.attention %q, %k1, %v scale 0.25 {causal, dist.sharding = #x} : (!x, !x, !x) -> !x
      return %o : !x
    }
    ```
    After:
    ```mlir
    #x = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {} ]>
    !global = tensor<1x2x8x16xf32>
    !positions = tensor<4xi64>
    !rows = tensor<1x2x4xf32>
    !x = tensor<1x2x4x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x, dist.global = !global},
                    %k: !x {dist.sharding = #x, dist.global = !global},
                    %v: !x {dist.sharding = #x, dist.global = !global})
        -> (!x {dist.sharding = #x, dist.global = !global}) attributes {dist.spmd = @mesh} {
      %p = dist.positions <8 zigzag 2{"ring"}> : !positions
      %p0 = dist.positions <8 zigzag 2{"ring"}> : !positions
      %o0, %l0 = nn.attention %q, %k, %v positions %p, %p0 scale 0.25 {causal}
        : (!x, !x, !x, !positions, !positions) -> (!x, !rows)
      %kv:2 = dist.permute %k, %v axes ["ring"] shift 1 : (!x, !x) -> (!x, !x)
      %p1 = dist.positions <8 zigzag 2{"ring"}> shift 1 : !positions
      %o1, %l1 = nn.attention %q, %kv#0, %kv#1 positions %p, %p1 scale 0.25 {causal}
        : (!x, !x, !x, !positions, !positions) -> (!x, !rows)
      %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (!x, !rows, !x, !rows) -> (!x, !rows)
      return %o : !x
    }
    ```
    In contiguous order the first rank sees no keys of the second, and the permute sends less.

    Before:
    ```mlir
    #x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {} ]>
    !x = tensor<1x2x8x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x}, %k: !x {dist.sharding = #x},
                    %v: !x {dist.sharding = #x}) -> (!x {dist.sharding = #x}) {
      %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {} ]> {dist.sharding = #x} : !x
      %o = nn.attention %q, %k1, %v scale 0.25 {causal, dist.sharding = #x} : (!x, !x, !x) -> !x
      return %o : !x
    }
    ```
    After:
    ```mlir
    #x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {} ]>
    !global = tensor<1x2x8x16xf32>
    !positions = tensor<4xi64>
    !rows = tensor<1x2x4xf32>
    !x = tensor<1x2x4x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x, dist.global = !global},
                    %k: !x {dist.sharding = #x, dist.global = !global},
                    %v: !x {dist.sharding = #x, dist.global = !global})
        -> (!x {dist.sharding = #x, dist.global = !global}) attributes {dist.spmd = @mesh} {
      %p = dist.positions <8{"ring"}> : !positions
      %p0 = dist.positions <8{"ring"}> : !positions
      %o0, %l0 = nn.attention %q, %k, %v positions %p, %p0 scale 0.25 {causal}
        : (!x, !x, !x, !positions, !positions) -> (!x, !rows)
      %kv:2 = dist.permute %k, %v axes ["ring"] pairs [[0, 1]] : (!x, !x) -> (!x, !x)
      %p1 = dist.positions <8{"ring"}> shift 1 : !positions
      %o1, %l1 = nn.attention %q, %kv#0, %kv#1 positions %p, %p1 scale 0.25 {causal}
        : (!x, !x, !x, !positions, !positions) -> (!x, !rows)
      %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (!x, !rows, !x, !rows) -> (!x, !rows)
      return %o : !x
    }
    ```

    `nn.attention_grad` with the same keys runs in steps, too, if the queries are sharded around
    the ring. The gradients of queries add up on their rank. The gradients of keys and values
    travel with their chunk, and go home after the last step.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{}, {}, {"ring"} ]>
    #x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {} ]>
    !rows = tensor<1x2x8xf32>
    !x = tensor<1x2x8x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x}, %k: !x {dist.sharding = #x},
                    %v: !x {dist.sharding = #x}, %l: !rows {dist.sharding = #rows},
                    %d: !rows {dist.sharding = #rows}, %c: !x {dist.sharding = #x})
        -> (!x {dist.sharding = #x}, !x {dist.sharding = #x}, !x {dist.sharding = #x}) {
      %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {} ]> {dist.sharding = #x} : !x
      %dq, %dk, %dv = nn.attention_grad %q, %k1, %v lse %l delta %d cotangent %c scale 0.25
        {dist.sharding = [#x, #x, #x]} : (!x, !x, !x, !rows, !rows, !x) -> (!x, !x, !x)
      return %dq, %dk, %dv : !x, !x, !x
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{}, {}, {"ring"} ]>
    #x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {} ]>
    !global_rows = tensor<1x2x8xf32>
    !global_x = tensor<1x2x8x16xf32>
    !rows = tensor<1x2x4xf32>
    !x = tensor<1x2x4x16xf32>
    dist.mesh @mesh = <["ring"=2]>
    func.func @main(%q: !x {dist.sharding = #x, dist.global = !global_x},
                    %k: !x {dist.sharding = #x, dist.global = !global_x},
                    %v: !x {dist.sharding = #x, dist.global = !global_x},
                    %l: !rows {dist.sharding = #rows, dist.global = !global_rows},
                    %d: !rows {dist.sharding = #rows, dist.global = !global_rows},
                    %c: !x {dist.sharding = #x, dist.global = !global_x})
        -> (!x {dist.sharding = #x, dist.global = !global_x},
            !x {dist.sharding = #x, dist.global = !global_x},
            !x {dist.sharding = #x, dist.global = !global_x}) attributes {dist.spmd = @mesh} {
      %kv:2 = dist.permute %k, %v axes ["ring"] shift 1 : (!x, !x) -> (!x, !x)
      %dq0, %dk0, %dv0 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 0.25
        : (!x, !x, !x, !rows, !rows, !x) -> (!x, !x, !x)
      %g:2 = dist.permute %dk0, %dv0 axes ["ring"] shift 1 : (!x, !x) -> (!x, !x)
      %dq1, %dk1, %dv1 = nn.attention_grad %q, %kv#0, %kv#1 lse %l delta %d cotangent %c scale 0.25
        : (!x, !x, !x, !rows, !rows, !x) -> (!x, !x, !x)
      %dq = nn.add %dq0, %dq1 : (!x, !x) -> !x
      %dk = nn.add %g#0, %dk1 : (!x, !x) -> !x
      %dv = nn.add %g#1, %dv1 : (!x, !x) -> !x
      %home:2 = dist.permute %dk, %dv axes ["ring"] shift 1 : (!x, !x) -> (!x, !x)
      return %dq, %home#0, %home#1 : !x, !x, !x
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
