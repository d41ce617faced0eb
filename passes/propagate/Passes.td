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
    Shardings of parameters come first, then those of inputs, then those of interior
    values. A value that carries a sharding keeps it, except in open dimensions (`?`).
    The decision log has each pair of annotations that disagree, with both places. The
    partitioner reshards between them.

    Guarantees that every value, and every result of the function, has a
    sharding without open dimensions.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                    %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>})
        -> (tensor<4x6xf32> {nn.output = "y"}) {
      %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
      return %y : tensor<4x6xf32>
    }
    ```
    After: `%x` carries `[{}, {} ]`, `%y` and the result `[{}, {"tp"} ]`.
  }];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
