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
    A pooler reads the first token of a sequence, a decoder's head the last, a
    classifier one at an index. Ops that count elements want a dimension whole, so
    each rank would receive all of a sharded sequence for the sake of one token.
    Instead every rank keeps, of its own elements, those at the wanted positions and
    zero elsewhere: the sum over the dimension is what was asked for, `--partition`
    leaves a partial sum, and only the picked elements travel. Exact, since all other
    terms are zero; what stands elsewhere (NaN, padding) is not looked at; and right in
    every order of tokens, which positions follow.

    Looks at `nn.slice` (with strides, and of several elements), `nn.gather` and
    `nn.take_along` of a program with a sharding on every value. Leaves what would send
    no fewer bytes as a sum, and what picks more elements than ranks share the dimension:
    one chunk of it is held for each. The decision has the bytes.

    Before:
    ```mlir
    %y = nn.slice %x starts [0, 15, 0] limits [1, 16, 32] strides [1, 1, 1]
      {dist.sharding = #dist.sharding<@mesh, [{}, {}, {} ]>} : (tensor<1x16x32xf32>) -> tensor<1x1x32xf32>
    ```
    where `%x` lies as `[{}, {"ring"}, {} ]`; after, with shardings left out:
    ```mlir
    %t = nn.constant dense<15> : tensor<i64>
    %i = nn.iota dim 0 : tensor<16xi64>  // [{"ring"} ]
    %c = nn.reshape %i : (tensor<16xi64>) -> tensor<16x1xi64>
    %m = nn.compare eq %c, %t : (tensor<16x1xi64>, tensor<i64>) -> tensor<16x1xi1>
    %z = nn.constant dense<0.0> : tensor<f32>
    %s = nn.select %m, %x, %z : (tensor<16x1xi1>, tensor<1x16x32xf32>, tensor<f32>) -> tensor<1x16x32xf32>
    %y = nn.reduce sum %s dims [1] {keep_dims} : (tensor<1x16x32xf32>) -> tensor<1x1x32xf32>
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def PartitionPass : Pass<"partition", "::mlir::ModuleOp"> {
  let summary = "turn a global program with shardings into an SPMD program";
  let description = [{
    Requires a sharding on every value of `@main` (see `propagate-shardings`).
    Guarantees an SPMD program: local shapes, collectives where layouts change,
    the layouts of arguments and results on the function, nothing annotated
    inside; proved by the placement verifier.

    Each op computes on the layout its result asks for; operands are resharded
    to what that needs. A contraction over a sharded factor leaves a partial
    sum, which is reduced straight into the layout its reader needs. Partial sums
    that are added share one reduction, and what else is added (residual, bias)
    is added once, behind it. A dimension that the axes do not divide is padded at
    its tail.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"} ]>},
                    %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"} ]>})
        -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>}) {
      %y = nn.linear %x, %w {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>}
        : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %y : tensor<4x6xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%x: tensor<4x4xf32> {...}, %w: tensor<6x4xf32> {...}) -> (tensor<2x6xf32> {...})
        attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
      %1 = dist.reduce_scatter sum %0 axes ["tp"] dims [0] : (tensor<4x6xf32>) -> tensor<2x6xf32>
      return %1 : tensor<2x6xf32>
    }
    ```

    Attention whose keys a constraint keeps sharded goes in steps around a ring: each
    rank attends to one chunk of the keys after the other, and the parts are merged by
    their log-sum-exps. Positions tell chunks what the mask hides; what belongs to keys
    (padding masks, a bias) is cut with them. Steps that the mask leaves empty on all
    ranks are left out; where it leaves one empty on some, a permute by `pairs` brings
    nothing to those that neither read the chunk nor pass it on.

    Before:
    ```mlir
    %k1 = dist.constrain %k <@mesh, [{}, {}, (8 zigzag 2{"ring"}), {} ]> : tensor<1x2x8x16xf32>
    ... // %q1 and %v1 likewise
    %o = nn.attention %q1, %k1, %v1 scale 0.25 {causal} : (tensor<1x2x8x16xf32>, ...) -> tensor<1x2x8x16xf32>
    ```
    After:
    ```mlir
    %p = dist.positions <8 zigzag 2{"ring"}> : tensor<4xi64>
    %o0, %l0 = nn.attention %q, %k, %v positions %p, %p scale 0.25 {causal} : (tensor<1x2x4x16xf32>, ...) -> (tensor<1x2x4x16xf32>, tensor<1x2x4xf32>)
    %kv:2 = dist.permute %k, %v axes ["ring"] shift 1 : (tensor<1x2x4x16xf32>, tensor<1x2x4x16xf32>) -> (tensor<1x2x4x16xf32>, tensor<1x2x4x16xf32>)
    %p1 = dist.positions <8 zigzag 2{"ring"}> shift 1 : tensor<4xi64>
    %o1, %l1 = nn.attention %q, %kv#0, %kv#1 positions %p, %p1 scale 0.25 {causal} : (tensor<1x2x4x16xf32>, ...) -> (tensor<1x2x4x16xf32>, tensor<1x2x4xf32>)
    %o, %l = nn.merge_attention %o0, %l0, %o1, %l1 : (tensor<1x2x4x16xf32>, ...) -> (tensor<1x2x4x16xf32>, tensor<1x2x4xf32>)
    ```
    In contiguous order the first rank sees none of the second's keys, and the permute is
    ```mlir
    %kv:2 = dist.permute %k, %v axes ["ring"] pairs [[0, 1]] : (tensor<1x2x4x16xf32>, tensor<1x2x4x16xf32>) -> (tensor<1x2x4x16xf32>, tensor<1x2x4x16xf32>)
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
