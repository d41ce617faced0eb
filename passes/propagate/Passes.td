//===- Passes.td - propagate -------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PROPAGATE_PASSES_TD
#define MESHWRIGHT_PASSES_PROPAGATE_PASSES_TD

include "mlir/Pass/PassBase.td"

def PropagateShardingsPass : Pass<"propagate-shardings", "::mlir::ModuleOp"> {
  let summary = "give every value of a global program a sharding";
  let description = [{
    Propagates shardings from the arguments and values that carry one to all other
    values, forward and backward through the factor rule of each op, to a fixed point.
    Shardings of parameters and states come first, then those of inputs, then those of interior
    values. A value that carries a sharding keeps it, except in open dimensions (`?`).
    The decision log has each pair of annotations that disagree, with both places. The
    partitioner reshards between them.

    A parameter or a state has one sharding in all functions of the module: axes that one
    function gives it hold for the others. The sharding of a state propagates to the values
    that functions write to it, and back. `dist.sharding` on the `nn.state` counts as on an
    argument. It is an error if two places of one parameter or state state different
    shardings.

    Guarantees that every value, every result of a function and every state has a
    sharding without open dimensions.

    Before:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                    %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #rows})
        -> (tensor<4x6xf32> {nn.output = "y"}) {
      %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %y : tensor<4x6xf32>
    }
    ```
    After:
    ```mlir
    #rows = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=2]>
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #whole},
                    %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #rows})
        -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #columns}) {
      %y = nn.linear %x, %w {dist.sharding = #columns}
        : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %y : tensor<4x6xf32>
    }
    ```
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
