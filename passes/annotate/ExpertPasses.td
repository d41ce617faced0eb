//===- ExpertPasses.td - policies for mixtures of experts --*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_EXPERTPASSES_TD
#define MESHWRIGHT_PASSES_ANNOTATE_EXPERTPASSES_TD

include "meshwright/passes/annotate/AnnotatePass.td"

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
  ];
}

#endif
