//===- CachePasses.td - policies for caches ----------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CACHEPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_CACHEPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

def AnnotateDealtPagesPass : AnnotatePass<"annotate-dealt-pages"> {
  let summary = "shard dealt pages over the ranks of attention";
  let description = [{
    Attention to dealt pages (`nn.paged_attention` with `deals`) computes each range of pages by itself.
    The pass shards the ranges over the ranks of attention: the minor part of the axes of tensor
    parallelism, as many ranks as there are ranges. It states this at the states that hold the pages.
    Other dimensions of the states stay open, and propagation shards the tables and the parts.

    It is an error if the ranges are not a part of the axes.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    nn.state @cache {fill = 0.0 : f32, role = "cache"} : tensor<1x4x2x1x8xf32>
    func.func @main(%q: tensor<1x3x2x8xf32> {nn.input = "q"}, %t: tensor<1x2x1x2xi64> {nn.input = "t"},
                    %s: tensor<1x2xi64> {nn.input = "s"}, %l: tensor<1x1xi64> {nn.input = "l"},
                    %k: tensor<1x4x2x1x8xf32> {nn.state = "cache"})
        -> (tensor<1x3x2x8xf32> {nn.output = "o"}, tensor<1x4x2x1x8xf32> {nn.state = "cache"}) {
      %d = nn.iota dim 0 : tensor<2xi64>
      %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %d scale 1.0 {deal = 2 : i64}
        : (tensor<1x3x2x8xf32>, tensor<1x4x2x1x8xf32>, tensor<1x4x2x1x8xf32>, tensor<1x2x1x2xi64>, tensor<1x2xi64>, tensor<1x1xi64>, tensor<2xi64>)
        -> (tensor<1x2x3x2x8xf32>, tensor<1x2x3x2xf32>)
      %o = nn.merge_parts %p, %e : (tensor<1x2x3x2x8xf32>, tensor<1x2x3x2xf32>) -> tensor<1x3x2x8xf32>
      return %o, %k : tensor<1x3x2x8xf32>, tensor<1x4x2x1x8xf32>
    }
    ```
    After:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    nn.state @cache {dist.sharding = #dist.sharding<@mesh, [{?}, {"tp", ?}, {?}, {?}, {?} ]>, fill = 0.0 : f32, role = "cache"} : tensor<1x4x2x1x8xf32>
    func.func @main(%q: tensor<1x3x2x8xf32> {nn.input = "q"}, %t: tensor<1x2x1x2xi64> {nn.input = "t"},
                    %s: tensor<1x2xi64> {nn.input = "s"}, %l: tensor<1x1xi64> {nn.input = "l"},
                    %k: tensor<1x4x2x1x8xf32> {nn.state = "cache"})
        -> (tensor<1x3x2x8xf32> {nn.output = "o"}, tensor<1x4x2x1x8xf32> {nn.state = "cache"}) {
      %d = nn.iota dim 0 : tensor<2xi64>
      %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %d scale 1.0 {deal = 2 : i64, dist.sharding = [#dist.sharding<@mesh, [{?}, {"tp", ?}, {?}, {?}, {?} ]>, #dist.sharding<@mesh, [{?}, {"tp", ?}, {?}, {?} ]> ]}
        : (tensor<1x3x2x8xf32>, tensor<1x4x2x1x8xf32>, tensor<1x4x2x1x8xf32>, tensor<1x2x1x2xi64>, tensor<1x2xi64>, tensor<1x1xi64>, tensor<2xi64>)
        -> (tensor<1x2x3x2x8xf32>, tensor<1x2x3x2xf32>)
      %o = nn.merge_parts %p, %e : (tensor<1x2x3x2x8xf32>, tensor<1x2x3x2xf32>) -> tensor<1x3x2x8xf32>
      return %o, %k : tensor<1x3x2x8xf32>, tensor<1x4x2x1x8xf32>
    }
    ```
  }];
}

#endif
