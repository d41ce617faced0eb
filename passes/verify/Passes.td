//===- Passes.td - verifying what passes made --------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_VERIFY_PASSES_TD
#define MESHWRIGHT_PASSES_VERIFY_PASSES_TD

include "mlir/Pass/PassBase.td"

def VerifyPlacementPass : Pass<"verify-placement", "::mlir::func::FuncOp"> {
  let summary = "prove that the operands of all ops have the layouts and the buffers that these need";
  let description = [{
    Derives the layout of every value from the layouts of the arguments, and reports
    the first op that does not fit:
    - a reduction that is missing, done twice, or over the wrong axes;
    - an unreduced value in an op that is not linear, or added to a reduced value;
    - padding in a place where its value counts;
    - a collective that only some ranks issue;
    - a result with another layout than the signature promises;
    - rows of experts of two routings, or choices that are not those of the rows;
    - true rows of groups that meet others, go to other places than those from which they come, or that an
      op sums;
    - pages that an op reads before the rows of the step are written;
    - parts of attention to dealt pages that are merged twice, or without the others.

    In a function of launches, the pass also proves that
    - each start has exactly one wait;
    - the collectives of a stream have one role, and those in flight on different streams
      share at most one rank or have different roles;
    - once buffers are planned, no op writes to a buffer that holds a value for a later
      user, or that a collective in flight reads or writes.

    Functions with `dist.spmd` need layouts (`dist.sharding`, `dist.global`) on all
    arguments and results. Of other functions the pass checks the launches only. It
    changes nothing.

    ```mlir
    #columns = #dist.sharding<@mesh, [{}, {"tp"} ]>
    #whole = #dist.sharding<@mesh, [{}, {} ]>
    dist.mesh @mesh = <["tp"=4]>
    func.func @main(%x: tensor<8x4xf32> {dist.sharding = #columns, dist.global = tensor<8x16xf32>},
                    %w: tensor<6x4xf32> {dist.sharding = #columns, dist.global = tensor<6x16xf32>})
        -> (tensor<8x6xf32> {dist.sharding = #whole, dist.global = tensor<8x6xf32>})
        attributes {dist.spmd = @mesh} {
      %0 = nn.linear %x, %w : (tensor<8x4xf32>, tensor<6x4xf32>) -> tensor<8x6xf32>
      %1 = nn.relu %0 : tensor<8x6xf32>
      %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<8x6xf32>) -> tensor<8x6xf32>
      return %2 : tensor<8x6xf32>
    }
    ```
    Prints:
    ```text
    error: 'nn.relu' op is not linear in operand 0, which is unreduced over {"tp"}
    note: operand 0 is unreduced over {"tp"} from here on
    ```
  }];
}

def VerifyRoutingsPass : Pass<"verify-routings", "::mlir::func::FuncOp"> {
  let summary = "prove that rows of experts meet rows and choices of their routing alone";
  let description = [{
    Reports the first op of a global function that reads rows of two routings, or rows and other choices
    than those by which they were dispatched. Two routings are one if their choices are one value, or if
    equal ops compute them from equal values. Routed arguments have routings of their own. Of a function
    with `dist.spmd`, `verify-placement` proves this. The pass changes nothing.

    ```mlir
    func.func @main(%x: tensor<4x3xf32>, %i: tensor<4x1xi64>, %j: tensor<4x1xi64>) -> tensor<4x3xf32> {
      %0 = nn.dispatch %x, %i : (tensor<4x3xf32>, tensor<4x1xi64>) -> tensor<2x4x3xf32, #nn.routed<1>>
      %1 = nn.combine %0, %j : (tensor<2x4x3xf32, #nn.routed<1>>, tensor<4x1xi64>) -> tensor<4x3xf32>
      return %1 : tensor<4x3xf32>
    }
    ```
    Prints:
    ```text
    error: 'nn.combine' op expected operand 1 to be the choices by which operand 0 was dispatched, got other choices
    ```
  }];
}

#endif
