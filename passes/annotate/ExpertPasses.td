//===- ExpertPasses.td - policies for mixtures of experts --*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_EXPERTPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_EXPERTPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

def LimitExpertsPass : AnnotatePass<"limit-experts"> {
  let summary = "bound the tokens that an expert takes";
  let description = [{
    Each expert takes at most floor(factor x choices / experts) of the choices of a layer, in the order
    of the tokens. `nn.limit` leaves out the others, for all ops that route by the same choices.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32>, %i: tensor<8x2xi64>) -> tensor<8x4xf32> {
      %r = nn.dispatch %x, %i : (tensor<8x4xf32>, tensor<8x2xi64>) -> tensor<4x8x4xf32, #nn.routed<2>>
      %y = nn.combine %r, %i : (tensor<4x8x4xf32, #nn.routed<2>>, tensor<8x2xi64>) -> tensor<8x4xf32>
      return %y : tensor<8x4xf32>
    }
    ```
    After, with `factor=0.5`:
    ```mlir
    func.func @main(%x: tensor<8x4xf32>, %i: tensor<8x2xi64>) -> tensor<8x4xf32> {
      %s = nn.cast %i : (tensor<8x2xi64>) -> tensor<8x2xi32>
      %j = nn.limit %s {capacity = 2 : i64} : tensor<8x2xi32>
      %r = nn.dispatch %x, %j : (tensor<8x4xf32>, tensor<8x2xi32>) -> tensor<4x8x4xf32, #nn.routed<2>>
      %y = nn.combine %r, %j : (tensor<4x8x4xf32, #nn.routed<2>>, tensor<8x2xi32>) -> tensor<8x4xf32>
      return %y : tensor<8x4xf32>
    }
    ```
  }];
  let options = [
    Option<"factor", "factor", "double", "0", "the share of its even part that an expert takes">,
  ];
}

def NarrowRowsPass : AnnotatePass<"narrow-rows"> {
  let summary = "round rows of experts before their sum, where a program rounds the sum";
  let description = [{
    A sum over experts that a program computes in a wide type, and then rounds, adds rows of the narrow
    type. It is computed as wide as before. Ranks send rows and parts of the sum in the narrow type, as they
    do those of a product (`reduce-type` widens them).

    Before:
    ```mlir
    func.func @main(%r: tensor<4x8x6xf32, #nn.routed<2>>, %i: tensor<8x2xi64>) -> tensor<8x6xbf16> {
      %y = nn.combine %r, %i : (tensor<4x8x6xf32, #nn.routed<2>>, tensor<8x2xi64>) -> tensor<8x6xf32>
      %z = nn.cast %y : (tensor<8x6xf32>) -> tensor<8x6xbf16>
      return %z : tensor<8x6xbf16>
    }
    ```
    After:
    ```mlir
    func.func @main(%r: tensor<4x8x6xf32, #nn.routed<2>>, %i: tensor<8x2xi64>) -> tensor<8x6xbf16> {
      %s = nn.cast %r : (tensor<4x8x6xf32, #nn.routed<2>>) -> tensor<4x8x6xbf16, #nn.routed<2>>
      %y = nn.combine %s, %i : (tensor<4x8x6xbf16, #nn.routed<2>>, tensor<8x2xi64>) -> tensor<8x6xbf16>
      return %y : tensor<8x6xbf16>
    }
    ```
  }];
}

def AnnotateExpertParallelPass : AnnotatePass<"annotate-expert-parallel"> {
  let summary = "split the experts of each layer over axes";
  let description = [{
    Shards the experts of each weight of `nn.grouped_linear`, and of other parameters that have them,
    such as biases. Other dimensions stay open for later policies. Propagation shards the experts of
    rows. Experts that the axes do not divide are padded; more ranks than experts are an error.

    Before:
    ```mlir
    dist.mesh @mesh = <["ep"=2]>
    !rows = tensor<8x7x6xf32, #nn.routed<2>>
    func.func @main(%r: !rows, %w: tensor<8x6x6xf32> {nn.parameter = "w"}) -> !rows {
      %y = nn.grouped_linear %r, %w : (!rows, tensor<8x6x6xf32>) -> !rows
      return %y : !rows
    }
    ```
    After, with `axis=ep`:
    ```mlir
    #experts = #dist.sharding<@mesh, [{"ep"}, {?}, {?} ]>
    dist.mesh @mesh = <["ep"=2]>
    !rows = tensor<8x7x6xf32, #nn.routed<2>>
    func.func @main(%r: !rows, %w: tensor<8x6x6xf32> {nn.parameter = "w", dist.sharding = #experts}) -> !rows {
      %y = nn.grouped_linear %r, %w : (!rows, tensor<8x6x6xf32>) -> !rows
      return %y : !rows
    }
    ```
  }];
  let options = [
    Option<"axis", "axis", "::meshwright::AxisChoice", "::meshwright::AxisChoice()",
           "mesh axis, or several, major to minor; none; auto: those with the role expert, or ep">,
    Option<"load", "load", "double", "1",
           "the rows of the fullest rank over the mean, of which costs are (dist.row_load)">,
  ];
}

#endif
