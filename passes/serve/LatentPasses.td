//===- LatentPasses.td - caches of latent values -----------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_LATENTPASSES_TD
#define MESHWRIGHT_PASSES_SERVE_LATENTPASSES_TD

include "mlir/Pass/PassBase.td"

def AbsorbLatentKeysPass : Pass<"absorb-latent-keys", "::mlir::ModuleOp"> {
  let summary = "attention to the narrowest values from which keys and values follow";
  let description = [{
    Keys and values of causal self-attention may follow from fewer numbers a token, by products with
    matrices that treat all positions alike: for each head, `k = W c` and `v = U c`. The pass moves
    these products to the queries and results, since `q . W c = (W^T q) . c` and
    `sum p U c = U (sum p c)`. The attention then has one kv head. Its columns are the features that
    the products read, and the columns that all heads share. Its values are the first columns of its
    keys, so a cache holds the keys alone.

    - Reshapes, transposes, slices, concatenations and broadcasts between products and attention may
      be in any order.
    - A bias of the keys is dropped, because it adds the same number to all scores of a query. A bias
      of the values is added to the result.
    - Norms, rotary positions and all other ops stay before the cache.

    The pass applies where the elements of a token fall by a larger factor, from those of the kv heads
    on one of `ranks` ranks, than the multiplications of a query head for a key grow. A decision
    states these numbers.

    Before:
    ```mlir
    func.func @main(%c: tensor<1x3x2xf32>, %wq: tensor<4x2xf32> {nn.parameter = "wq"},
                    %w: tensor<8x2xf32> {nn.parameter = "w"}) -> tensor<1x2x3x2xf32> {
      %0 = nn.linear %c, %wq : (tensor<1x3x2xf32>, tensor<4x2xf32>) -> tensor<1x3x4xf32>
      %1 = nn.reshape %0 : (tensor<1x3x4xf32>) -> tensor<1x3x2x2xf32>
      %q = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x3x2x2xf32>) -> tensor<1x2x3x2xf32>
      %2 = nn.linear %c, %w : (tensor<1x3x2xf32>, tensor<8x2xf32>) -> tensor<1x3x8xf32>
      %3 = nn.reshape %2 : (tensor<1x3x8xf32>) -> tensor<1x3x2x4xf32>
      %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<1x3x2x4xf32>) -> tensor<1x2x3x4xf32>
      %k = nn.slice %4 starts [0, 0, 0, 0] limits [1, 2, 3, 2] strides [1, 1, 1, 1] : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x2xf32>
      %v = nn.slice %4 starts [0, 0, 0, 2] limits [1, 2, 3, 4] strides [1, 1, 1, 1] : (tensor<1x2x3x4xf32>) -> tensor<1x2x3x2xf32>
      %o = nn.attention %q, %k, %v scale 0.5 {causal} : (tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32>) -> tensor<1x2x3x2xf32>
      return %o : tensor<1x2x3x2xf32>
    }
    ```
    After:
    ```mlir
    func.func @main(%arg0: tensor<1x3x2xf32>, %arg1: tensor<4x2xf32> {nn.parameter = "wq"}, %arg2: tensor<8x2xf32> {nn.parameter = "w"}) -> tensor<1x2x3x2xf32> {
      %0 = nn.linear %arg0, %arg1 : (tensor<1x3x2xf32>, tensor<4x2xf32>) -> tensor<1x3x4xf32>
      %1 = nn.reshape %0 : (tensor<1x3x4xf32>) -> tensor<1x3x2x2xf32>
      %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x3x2x2xf32>) -> tensor<1x2x3x2xf32>
      %3 = nn.reshape %arg0 : (tensor<1x3x2xf32>) -> tensor<1x1x3x2xf32>
      %4 = nn.reshape %arg2 : (tensor<8x2xf32>) -> tensor<2x4x2xf32>
      %5 = nn.slice %4 starts [0, 0, 0] limits [2, 2, 2] strides [1, 1, 1] : (tensor<2x4x2xf32>) -> tensor<2x2x2xf32>
      %6 = nn.matmul %2, %5 : (tensor<1x2x3x2xf32>, tensor<2x2x2xf32>) -> tensor<1x2x3x2xf32>
      %result = nn.attention %6, %3, %3 scale 5.000000e-01 {causal} : (tensor<1x2x3x2xf32>, tensor<1x1x3x2xf32>, tensor<1x1x3x2xf32>) -> tensor<1x2x3x2xf32>
      %7 = nn.reshape %arg2 : (tensor<8x2xf32>) -> tensor<2x4x2xf32>
      %8 = nn.slice %7 starts [0, 2, 0] limits [2, 4, 2] strides [1, 1, 1] : (tensor<2x4x2xf32>) -> tensor<2x2x2xf32>
      %9 = nn.matmul %result, %8 {transpose_rhs} : (tensor<1x2x3x2xf32>, tensor<2x2x2xf32>) -> tensor<1x2x3x2xf32>
      return %9 : tensor<1x2x3x2xf32>
    }
    ```
  }];
  let options = [
    Option<"ranks", "ranks", "int64_t", /*default=*/"1",
           "ranks over which kv heads are divided where they are cached">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
