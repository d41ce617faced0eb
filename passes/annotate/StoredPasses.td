//===- StoredPasses.td - policies for stored weights -------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_STOREDPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_STOREDPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

def RefineBlocksPass : AnnotatePass<"refine-blocks"> {
  let summary = "let shards of stored weights cut blocks";
  let description = [{
    An axis shards codes by whole blocks of a scale. Where a dimension has no multiple of blocks, shards
    are made of equal parts of blocks, the largest ones of which each shard has as many. Each rank then
    has the scales of all blocks along this dimension. Parts have 8 elements or more.

    Before:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%c: tensor<320x256xf8E4M3FN>, %s: tensor<3x2xf32>) -> tensor<320x256xf32> {
      %w = nn.dequantize %c, %s {block = [128, 128]} : (tensor<320x256xf8E4M3FN>, tensor<3x2xf32>) -> tensor<320x256xf32>
      return %w : tensor<320x256xf32>
    }
    ```
    After:
    ```mlir
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%c: tensor<320x256xf8E4M3FN>, %s: tensor<3x2xf32>) -> tensor<320x256xf32> {
      %w = nn.dequantize %c, %s {block = [128, 128], parts = [32, 128]} : (tensor<320x256xf8E4M3FN>, tensor<3x2xf32>) -> tensor<320x256xf32>
      return %w : tensor<320x256xf32>
    }
    ```
  }];
}

#endif
